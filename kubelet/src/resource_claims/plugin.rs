//! Drivers of dynamic resources: which have registered, and their calls. Upstream's `pkg/kubelet/cm/dra/plugin`.

use super::v1alpha1::dra_resource_health_client::DraResourceHealthClient;
use super::{v1, v1alpha1};
use crate::bounded::Bounded;
use crate::plugins::{Plugin, call_error, channel, metrics};
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::transport::Channel;

/// Services that the kubelet knows, the best first, by the names that drivers register with and by those that gRPC has. Their
/// messages are the same.
const SERVICES: [(&str, &str); 2] = [
    ("v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"),
    ("v1beta1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"),
];

/// Upstream's `defaultClientCallTimeout`: longest time of a call.
const TIMEOUT: Duration = Duration::from_secs(45);

/// A driver that has registered.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    name: String,
    endpoint: PathBuf,
    channel: Bounded<Channel>,
    service: &'static str,
    /// The process is away.
    pub(super) gone: CancellationToken,
}

/// The service of a plugin that the kubelet uses.
pub(super) fn service(versions: &[String]) -> Result<&'static str, String> {
    if versions.is_empty() {
        return Err("empty list of supported gRPC services (aka supported versions)".to_owned());
    }
    let known = SERVICES.iter().find(|(name, _)| versions.iter().any(|version| version == name));
    known.map(|(_, service)| *service).ok_or_else(|| {
        let ours = SERVICES.map(|(name, _)| format!("{name:?}")).join(" ");
        let theirs: Vec<String> = versions.iter().map(|version| format!("{version:?}")).collect();
        let theirs = theirs.join(" ");
        format!("none of services supported by the plugin ([{theirs}]) are supported by the kubelet ([{ours}])")
    })
}

impl Driver {
    pub(super) fn new(plugin: &Plugin) -> Result<Self, String> {
        let (channel, service) = (channel(&plugin.endpoint)?, service(&plugin.versions)?);
        let (name, endpoint) = (plugin.name.clone(), plugin.endpoint.clone());
        Ok(Self { name, endpoint, channel, service, gone: CancellationToken::new() })
    }

    /// Hands on all that the driver tells of its devices' health; returns when it tells nothing any more.
    pub(super) async fn follow_health(&self, mut update: impl FnMut(Vec<v1alpha1::DeviceHealth>)) {
        let mut client = DraResourceHealthClient::new(self.channel.clone());
        let mut told = match client.node_watch_resources(v1alpha1::NodeWatchResourcesRequest {}).await {
            Ok(told) => told.into_inner(),
            Err(status) => {
                let error = call_error(&status);
                tracing::debug!(driver = self.name, error, "Failed to establish WatchResources stream, will retry");
                return;
            }
        };
        loop {
            match told.message().await {
                Ok(Some(list)) => update(list.devices),
                Ok(None) => return,
                Err(status) => {
                    let error = call_error(&status);
                    tracing::debug!(driver = self.name, error, "WatchResources health stream has ended");
                    return;
                }
            }
        }
    }

    async fn call<Q, A>(&self, method: &'static str, message: Q) -> Result<A, String>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let failed = |error: String| format!("{method}: {error}");
        let path = PathAndQuery::try_from(format!("/{}/{method}", self.service));
        let path = path.map_err(|error| failed(error.to_string()))?;
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.map_err(|error| failed(error.to_string()))?;
        let mut request = Request::new(message);
        request.set_timeout(TIMEOUT);
        let begun = Instant::now();
        let answer = client.unary(request, path, tonic_prost::ProstCodec::default()).await;
        metrics::claim_call(&self.name, &format!("/{}/{method}", self.service), begun, &answer);
        Ok(answer.map_err(|status| failed(call_error(&status)))?.into_inner())
    }

    /// Prepares a claim on the node: its devices.
    pub(super) async fn prepare(&self, claim: v1::Claim) -> Result<Vec<v1::Device>, String> {
        let (uid, name) = (claim.uid.clone(), claim.name.clone());
        let request = v1::NodePrepareResourcesRequest { claims: vec![claim] };
        let mut answer: v1::NodePrepareResourcesResponse = self.call("NodePrepareResources", request).await?;
        let result = answer.claims.remove(&uid).ok_or("NodePrepareResources skipped 1 ResourceClaims")?;
        match result.error.as_str() {
            "" => Ok(result.devices),
            error => Err(format!("NodePrepareResources failed for ResourceClaim {name}: {error}")),
        }
    }

    /// Undoes the preparation of a claim.
    pub(super) async fn unprepare(&self, claim: v1::Claim) -> Result<(), String> {
        let (uid, name) = (claim.uid.clone(), claim.name.clone());
        let request = v1::NodeUnprepareResourcesRequest { claims: vec![claim] };
        let mut answer: v1::NodeUnprepareResourcesResponse = self.call("NodeUnprepareResources", request).await?;
        let result = answer.claims.remove(&uid).ok_or("NodeUnprepareResources skipped 1 ResourceClaims")?;
        match result.error.as_str() {
            "" => Ok(()),
            error => Err(format!("NodeUnprepareResources failed for ResourceClaim {name}: {error}")),
        }
    }
}

/// Keeps the processes of a driver that do not serve a socket.
fn retain(drivers: &mut Vec<Driver>, gone: &Path) {
    drivers.retain(|driver| {
        let is_gone = driver.endpoint == gone;
        if is_gone {
            driver.gone.cancel();
        }
        !is_gone
    });
}

/// Drivers by name. Several processes may serve one while it is updated: the last that has registered is used.
#[derive(Default)]
pub(super) struct Drivers(Mutex<BTreeMap<String, Vec<Driver>>>);

impl Drivers {
    pub(super) fn get(&self, name: &str) -> Result<Driver, String> {
        let known = self.0.lock().get(name).and_then(|drivers| drivers.last().cloned());
        known.ok_or_else(|| format!("DRA driver {name} is not registered"))
    }

    pub(super) fn add(&self, name: &str, driver: Driver) {
        let mut known = self.0.lock();
        let drivers = known.entry(name.to_owned()).or_default();
        retain(drivers, &driver.endpoint);
        drivers.push(driver);
    }

    /// Removes a process of a driver. Reports whether it was the last.
    pub(super) fn remove(&self, plugin: &Plugin) -> bool {
        let mut known = self.0.lock();
        let Some(drivers) = known.get_mut(&plugin.name) else { return false };
        retain(drivers, &plugin.endpoint);
        let is_last = drivers.is_empty();
        if is_last {
            known.remove(&plugin.name);
        }
        is_last
    }

    /// Names of the drivers that have registered.
    pub(super) fn names(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_service_that_both_know_is_used() {
        let versions = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        assert_eq!(service(&versions(&["v1beta1.DRAPlugin", "v1.DRAPlugin"])), Ok(SERVICES[0].1));
        assert_eq!(service(&versions(&["v1beta1.DRAPlugin", "other"])), Ok(SERVICES[1].1));
        service(&[]).expect_err("nothing");
        let refused = "none of services supported by the plugin ([\"v9.DRAPlugin\"]) are supported by the kubelet \
                       ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])";
        assert_eq!(service(&versions(&["v9.DRAPlugin"])), Err(refused.to_owned()));
    }
}
