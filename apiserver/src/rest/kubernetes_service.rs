//! The Service `kubernetes` and its endpoints: where pods find this server. Answers for upstream's
//! `pkg/controlplane/controller/kubernetesservice`, pkg/controlplane/reconcilers.
//!
//! By default each server keeps a key with its address under `/registry/masterleases` alive, and the endpoints are the
//! addresses of all such keys. The older way needs no keys but to be told how many servers there are: each adds itself,
//! and removes others where there are too many.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::{Value, protobuf, schema};
use serde_json::json;
use shared::flags::FlagSet;
use shared::status::Status;

use crate::api::Api;
use crate::machinery::GroupResource;
use crate::machinery::identity::server_user;
use crate::machinery::meta;
use crate::registry::core::endpoints::ENDPOINTS;
use crate::registry::core::service::SERVICES;
use crate::registry::discovery::endpoint_slice::ENDPOINT_SLICES;
use crate::rest::node_ports::PortRange;
use crate::rest::{Services, ip_allocator};
use crate::verbs::engine::storage_status;

/// Seconds a key outlives its server.
const LEASE_SECONDS: i64 = 15;
/// Time between renewals.
const EVERY: Duration = Duration::from_secs(10);
const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";

/// Flags about the service that cannot be obeyed, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ServiceFlagsError {
    /// There are so many servers, which are none.
    #[error("--apiserver-count should be a positive number, but value '{0}' provided")]
    NoServers(i64),
    /// There is no such reconciler.
    #[error("--endpoint-reconciler-type must be one of: [master-count lease none]")]
    Reconciler,
    /// This number is no port.
    #[error(
        "--kubernetes-service-node-port {0} must be between 0 and 65535, inclusive. If 0, the Kubernetes master service will be of type ClusterIP"
    )]
    NoPort(i64),
    /// The port is not one for services.
    #[error("kubernetes service node port range {}-{} doesn't contain {port}", .range.first, .range.last)]
    OtherPort {
        /// The port.
        port: u16,
        /// Ports for services.
        range: PortRange,
    },
}

/// `--endpoint-reconciler-type`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconcilerType {
    /// The endpoints are somebody else's business.
    None,
    /// The addresses of servers that live.
    Lease,
    /// So many addresses, `--apiserver-count`.
    MasterCount(usize),
}

impl ReconcilerType {
    /// From the flags.
    ///
    /// # Errors
    /// A type that there is not, or no servers.
    pub(crate) fn from_flags(flags: &FlagSet) -> Result<Self, ServiceFlagsError> {
        let servers = flags.integer("apiserver-count");
        let Some(servers) = usize::try_from(servers).ok().filter(|n| *n > 0) else {
            return Err(ServiceFlagsError::NoServers(servers));
        };
        match flags.string("endpoint-reconciler-type").as_str() {
            "lease" => Ok(Self::Lease),
            "master-count" => Ok(Self::MasterCount(servers)),
            "none" => Ok(Self::None),
            _ => Err(ServiceFlagsError::Reconciler),
        }
    }
}

/// `--kubernetes-service-node-port`: the port on every node under which this server is found, 0 for none.
///
/// # Errors
/// A number that is no port, or not one for services.
pub(crate) fn node_port(flags: &FlagSet, range: PortRange) -> Result<Option<u16>, ServiceFlagsError> {
    let number = flags.integer("kubernetes-service-node-port");
    let port = u16::try_from(number).map_err(|_| ServiceFlagsError::NoPort(number))?;
    if port > 0 && !(range.first..=range.last).contains(&port) {
        return Err(ServiceFlagsError::OtherPort { port, range });
    }
    Ok(Some(port).filter(|port| *port > 0))
}

/// The addresses with our own among them, and no more of them than there are servers: those after ours go first.
fn counted(mut there: Vec<String>, own: &str, servers: usize) -> Vec<String> {
    if there.iter().any(|a| a == own) && there.len() <= servers {
        return there;
    }
    there.push(own.to_owned());
    there.sort();
    there.dedup();
    while there.len() > servers.max(1) {
        let at = there.iter().position(|a| a == own).unwrap_or(0);
        there.remove((at + 1) % there.len());
    }
    there
}

/// The addresses in an Endpoints object.
fn listed(endpoints: &Value) -> Vec<String> {
    let all = endpoints["subsets"].as_array().filter(|s| s.len() == 1).and_then(|s| s[0]["addresses"].as_array());
    all.into_iter().flatten().filter_map(|a| a["ip"].as_str()).map(str::to_owned).collect()
}

/// Keeps service and endpoints in shape.
pub(crate) struct Reconciler {
    /// Ranges, and the keys of servers.
    pub services: Arc<Services>,
    /// The pipeline, for objects.
    pub api: Api,
    /// Our address.
    pub address: IpAddr,
    /// Our port.
    pub port: u16,
    /// `--kubernetes-service-node-port`, where the service has one.
    pub node_port: Option<u16>,
    /// Source of the endpoint addresses.
    pub way: ReconcilerType,
}

impl Reconciler {
    fn family(&self) -> &'static str {
        if self.address.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    /// Type and ports of the service.
    fn shape(&self) -> (&'static str, Value) {
        let mut port = json!({"name": "https", "port": 443, "protocol": "TCP", "targetPort": self.port});
        let Some(node_port) = self.node_port else { return ("ClusterIP", json!([port])) };
        port["nodePort"] = node_port.into();
        ("NodePort", json!([port]))
    }

    fn service(&self) -> Value {
        let (kind, ports) = self.shape();
        let first = self.services.ranges.first().map(ip_allocator::first);
        json!({
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "type": kind, "clusterIP": first.map(|ip| ip.to_string()).unwrap_or_default(), "sessionAffinity": "None",
                "ipFamilyPolicy": "SingleStack",
                "ports": ports,
            },
        })
    }

    fn ports(&self) -> Value {
        json!([{"name": "https", "port": self.port, "protocol": "TCP"}])
    }

    async fn ensure(
        &self,
        resource: GroupResource<'_>,
        object: Value,
        same: impl Fn(&Value) -> bool,
    ) -> Result<(), Status> {
        let user = server_user();
        match self.api.get(resource, NAMESPACE, NAME).await {
            Ok(there) if same(&there) => Ok(()),
            Ok(there) => {
                let mut object = object;
                for field in ["resourceVersion", "uid"] {
                    meta::set_text(&mut object, field, meta::text(&there, field));
                }
                self.api.update(&user, resource, "", object).await.map(|_| ())
            }
            Err(e) if e.is_not_found() => match self.api.create(&user, resource, NAMESPACE, object).await {
                Err(e) if !e.is_already_exists() => Err(e),
                _ => Ok(()),
            },
            Err(e) => Err(e),
        }
    }

    /// Creates the service; of one that exists, sees to its type and ports.
    pub(crate) async fn ensure_service(&self) -> Result<(), Status> {
        self.ensure(SERVICES, self.service(), |_| true).await?;
        let mut there = self.api.get(SERVICES, NAMESPACE, NAME).await?;
        let (kind, ports) = self.shape();
        if there["spec"]["type"] == kind && there["spec"]["ports"] == ports {
            return Ok(());
        }
        there["spec"]["type"] = kind.into();
        there["spec"]["ports"] = ports;
        self.api.update(&server_user(), SERVICES, "", there).await.map(|_| ())
    }

    fn lease_key(&self) -> String {
        self.services.backend.store.key(&format!("/registry/masterleases/{}", self.address))
    }

    async fn renew(&self) -> Result<(), Status> {
        let schema = schema::kind("", "v1", "Endpoints").ok_or_else(|| Status::internal("no Endpoints"))?;
        let failed = |e| storage_status(&e);
        let (there, _) = self.services.backend.store.get(&self.lease_key()).await.map_err(failed)?;
        // Upstream counts renewals in the generation, so that every write changes something.
        let tree = json!({"metadata": {"generation": there.as_ref().map_or(1, |s| s.revision)}, "subsets": [{"addresses": [{"ip": self.address.to_string()}]}]});
        let bytes = protobuf::wrap("v1", "Endpoints", &protobuf::encode(schema, &tree));
        self.services
            .backend
            .store
            .put_if(&self.lease_key(), bytes, there.map_or(0, |s| s.revision), Some(LEASE_SECONDS))
            .await
            .map(|_| ())
            .map_err(failed)
    }

    /// The addresses in the Endpoints object, none where there is none.
    async fn published(&self) -> Result<Vec<String>, Status> {
        match self.api.get(ENDPOINTS, NAMESPACE, NAME).await {
            Ok(there) => Ok(listed(&there)),
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// The addresses of servers that live.
    async fn leased(&self) -> Result<Vec<String>, Status> {
        let prefix = self.services.backend.store.key("/registry/masterleases/");
        let page = self.services.backend.store.page(&prefix, &prefix, 0, 0).await.map_err(|e| storage_status(&e))?;
        let mut all: Vec<String> = page.items.iter().map(|s| s.key[prefix.len()..].to_owned()).collect();
        all.sort();
        Ok(all)
    }

    async fn publish(&self, addresses: Vec<String>) -> Result<(), Status> {
        let subsets = if addresses.is_empty() {
            json!([])
        } else {
            json!([{"addresses": addresses.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(), "ports": self.ports()}])
        };
        let labels = json!({"endpointslice.kubernetes.io/skip-mirror": "true"});
        let endpoints =
            json!({"metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels}, "subsets": subsets});
        let same = |there: &Value| {
            there["subsets"].as_array().map_or(&[][..], Vec::as_slice)
                == subsets.as_array().map_or(&[][..], Vec::as_slice)
        };
        self.ensure(ENDPOINTS, endpoints.clone(), same).await?;
        let ready: Vec<Value> =
            addresses.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
        let slice = json!({
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": self.family(), "endpoints": ready, "ports": self.ports(),
        });
        let listed = |there: &Value| there["endpoints"].as_array().map_or(0, Vec::len) == ready.len();
        let same = |there: &Value| {
            listed(there)
                && there["ports"][0]["port"] == self.port
                && there["endpoints"]
                    .as_array()
                    .is_some_and(|l| l.iter().zip(&ready).all(|(a, b)| a["addresses"] == b["addresses"]))
        };
        self.ensure(ENDPOINT_SLICES, slice, same).await
    }

    /// One round: that we are there, then the endpoints.
    pub(crate) async fn round(&self) -> Result<(), Status> {
        let addresses = match self.way {
            ReconcilerType::Lease => {
                self.renew().await?;
                self.leased().await?
            }
            ReconcilerType::None => return Ok(()),
            ReconcilerType::MasterCount(servers) => {
                counted(self.published().await?, &self.address.to_string(), servers)
            }
        };
        self.publish(addresses).await
    }

    /// The addresses without ours.
    async fn other_servers(&self) -> Result<Vec<String>, Status> {
        if self.way == ReconcilerType::Lease {
            let failed = |e| storage_status(&e);
            let (there, _) = self.services.backend.store.get(&self.lease_key()).await.map_err(failed)?;
            if let Some(s) = there {
                self.services.backend.store.delete_if(&self.lease_key(), s.revision).await.map_err(failed)?;
            }
            return self.leased().await;
        }
        let mut all = self.published().await?;
        all.retain(|a| *a != self.address.to_string());
        Ok(all)
    }

    /// Renews until dropped, and makes the service again when somebody deleted it.
    pub(crate) async fn run(&self) {
        loop {
            if let Err(error) = self.ensure(SERVICES, self.service(), |_| true).await {
                tracing::warn!(%error, "Failed to create the kubernetes service");
            }
            if let Err(error) = self.round().await {
                tracing::warn!(%error, "Failed to reconcile endpoints of the kubernetes service");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Takes our address out, when the server goes down.
    pub(crate) async fn remove_endpoint(&self) {
        if self.way == ReconcilerType::None {
            return;
        }
        let gone = async { self.publish(self.other_servers().await?).await };
        match tokio::time::timeout(Duration::from_secs(2), gone).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "Failed to remove this server from the kubernetes service's endpoints")
            }
            Err(_) => tracing::warn!("Timed out removing this server from the kubernetes service's endpoints"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_counted_make_room() {
        for (there, own, servers, want) in [
            ("", "b", 1, "b"),
            ("b", "b", 1, "b"),
            ("a", "b", 2, "a b"),
            ("a", "b", 1, "b"),
            // Those after ours go first, and then from the beginning.
            ("a c d", "b", 3, "a b d"),
            ("a b", "c", 2, "b c"),
            ("a b c", "b", 2, "a b"),
            ("a b", "a", 3, "a b"),
        ] {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(counted(words(there), own, servers), words(want), "{there} and {own} of {servers}");
        }
    }

    #[test]
    fn ports_of_nodes() {
        let range = PortRange { first: 30000, last: 32767 };
        for (port, want) in [
            ("0", Ok(None)),
            ("30443", Ok(Some(30443))),
            ("443", Err("kubernetes service node port range 30000-32767 doesn't contain 443")),
            (
                "-1",
                Err(
                    "--kubernetes-service-node-port -1 must be between 0 and 65535, inclusive. If 0, the Kubernetes master service will be of type ClusterIP",
                ),
            ),
        ] {
            let flags =
                FlagSet::of("kube-apiserver", &[&format!("--kubernetes-service-node-port={port}")]).expect("flags");
            let got = node_port(&flags, range).map_err(|e| e.to_string());
            assert_eq!(got, want.map_err(str::to_owned), "{port}");
        }
    }

    #[test]
    fn endpoints_of_another_shape_are_rewritten() {
        let subset = |ip: &str| json!({"addresses": [{"ip": ip}]});
        assert_eq!(listed(&json!({"subsets": [subset("a")]})), ["a"]);
        assert!(listed(&json!({"subsets": [subset("a"), subset("b")]})).is_empty());
        assert!(listed(&json!({})).is_empty());
    }
}
