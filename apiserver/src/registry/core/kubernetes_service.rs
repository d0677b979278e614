//! The Service `kubernetes` and its endpoints: where pods find this server.
//!
//! Each server keeps a key with its address under `/registry/masterleases` alive; the endpoints are the addresses of
//! all such keys.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::{Value, protobuf, schema};
use serde_json::json;
use shared::status::Status;

use crate::api::Api;
use crate::bootstrap::server_user;
use crate::registry::meta;
use crate::verbs::engine::{Engine, storage_status};

/// Seconds a key outlives its server.
const LEASE_SECONDS: i64 = 15;
/// Time between renewals.
const EVERY: Duration = Duration::from_secs(10);
const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";

/// Keeps service and endpoints in shape.
pub struct Reconciler {
    /// The pipeline, for keys and ranges.
    pub engine: Arc<Engine>,
    /// The pipeline, for objects.
    pub api: Api,
    /// Our address.
    pub address: IpAddr,
    /// Our port.
    pub port: u16,
}

impl Reconciler {
    fn family(&self) -> &'static str {
        if self.address.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    fn service(&self) -> Value {
        let first = self.engine.services.ranges.first().map(crate::registry::core::ip_allocator::first);
        json!({
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "type": "ClusterIP", "clusterIP": first.map(|ip| ip.to_string()).unwrap_or_default(), "sessionAffinity": "None",
                "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": self.port}],
            },
        })
    }

    fn ports(&self) -> Value {
        json!([{"name": "https", "port": self.port, "protocol": "TCP"}])
    }

    async fn ensure(
        &self,
        group: &str,
        plural: &str,
        object: Value,
        same: impl Fn(&Value) -> bool,
    ) -> Result<(), Status> {
        let user = server_user();
        let namespace = if plural == "servicecidrs" { "" } else { NAMESPACE };
        match self.api.get(group, plural, namespace, NAME).await {
            Ok(there) if same(&there) => Ok(()),
            Ok(there) => {
                let mut object = object;
                for field in ["resourceVersion", "uid"] {
                    meta::set_text(&mut object, field, meta::text(&there, field));
                }
                self.api.update(&user, group, plural, "", object).await.map(|_| ())
            }
            Err(e) if e.is_not_found() => match self.api.create(&user, group, plural, namespace, object).await {
                Err(e) if !e.is_already_exists() => Err(e),
                _ => Ok(()),
            },
            Err(e) => Err(e),
        }
    }

    /// Creates the service unless it exists.
    pub async fn ensure_service(&self) -> Result<(), Status> {
        self.ensure("", "services", self.service(), |_| true).await
    }

    /// Creates the default ServiceCIDR and marks it ready.
    pub async fn ensure_cidr(&self) -> Result<(), Status> {
        let cidrs: Vec<String> = self.engine.services.ranges.iter().map(ToString::to_string).collect();
        let (group, plural) = ("networking.k8s.io", "servicecidrs");
        self.ensure(group, plural, json!({"metadata": {"name": NAME}, "spec": {"cidrs": cidrs}}), |_| true).await?;
        let mut there = self.api.get(group, plural, "", NAME).await?;
        if there["status"]["conditions"].as_array().is_some_and(|c| !c.is_empty()) {
            return Ok(());
        }
        there["status"] = json!({"conditions": [{
            "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready", "lastTransitionTime": meta::now(),
        }]});
        self.api.update(&server_user(), group, plural, "status", there).await.map(|_| ())
    }

    fn lease_key(&self) -> String {
        self.engine.store.key(&format!("/registry/masterleases/{}", self.address))
    }

    async fn renew(&self) -> Result<(), Status> {
        let schema = schema::kind("", "v1", "Endpoints").ok_or_else(|| Status::internal("no Endpoints"))?;
        let failed = |e| storage_status(&e);
        let (there, _) = self.engine.store.get(&self.lease_key()).await.map_err(failed)?;
        // Upstream counts renewals in the generation, so that every write changes something.
        let tree = json!({"metadata": {"generation": there.as_ref().map_or(1, |s| s.revision)}, "subsets": [{"addresses": [{"ip": self.address.to_string()}]}]});
        let bytes = protobuf::wrap("v1", "Endpoints", &protobuf::encode(schema, &tree));
        self.engine
            .store
            .put_if(&self.lease_key(), bytes, there.map_or(0, |s| s.revision), Some(LEASE_SECONDS))
            .await
            .map(|_| ())
            .map_err(failed)
    }

    async fn addresses(&self) -> Result<Vec<String>, Status> {
        let prefix = self.engine.store.key("/registry/masterleases/");
        let page = self.engine.store.page(&prefix, &prefix, 0, 0).await.map_err(|e| storage_status(&e))?;
        let mut all: Vec<String> = page.items.iter().map(|s| s.key[prefix.len()..].to_owned()).collect();
        all.sort();
        Ok(all)
    }

    async fn publish(&self) -> Result<(), Status> {
        let addresses = self.addresses().await?;
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
        self.ensure("", "endpoints", endpoints.clone(), same).await?;
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
        self.ensure("discovery.k8s.io", "endpointslices", slice, same).await
    }

    /// One round: our key, then the endpoints.
    pub async fn round(&self) -> Result<(), Status> {
        self.renew().await?;
        self.publish().await
    }

    /// Renews until dropped.
    pub async fn keep(&self) {
        loop {
            if let Err(error) = self.round().await {
                tracing::warn!(%error, "reconciling the kubernetes service endpoints failed");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Takes our address out, when the server goes down.
    pub async fn leave(&self) {
        let gone = async {
            let (there, _) = self.engine.store.get(&self.lease_key()).await.map_err(|e| storage_status(&e))?;
            if let Some(s) = there {
                self.engine.store.delete_if(&self.lease_key(), s.revision).await.map_err(|e| storage_status(&e))?;
            }
            self.publish().await
        };
        match tokio::time::timeout(Duration::from_secs(2), gone).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "leaving the kubernetes service endpoints failed"),
            Err(_) => tracing::warn!("leaving the kubernetes service endpoints took too long"),
        }
    }
}
