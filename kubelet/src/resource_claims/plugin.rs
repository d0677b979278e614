//! Drivers of dynamic resources: which have registered, and their calls. Upstream's `pkg/kubelet/cm/dra/plugin`.

use super::v1alpha1::dra_resource_health_client::DraResourceHealthClient;
use super::{v1, v1alpha1};
use crate::bounded::Bounded;
use crate::plugins::{Plugin, SocketError, call_error, channel, metrics};
use http::uri::InvalidUri;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tower::BoxError;

/// Services that the kubelet knows, the best first, by the names that drivers register with and by those that gRPC has. Their
/// messages are the same.
const SERVICES: [(&str, &str); 2] = [
    ("v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"),
    ("v1beta1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"),
];

/// Upstream's `defaultClientCallTimeout`: longest time of a call.
const TIMEOUT: Duration = Duration::from_secs(45);

/// Versions of a driver that do not suit, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionsError {
    /// No version at all.
    #[error("empty list of supported gRPC services (aka supported versions)")]
    None,
    /// Other versions than the kubelet's.
    #[error(
        "none of services supported by the plugin ([{}]) are supported by the kubelet ([{}])",
        quoted(.0.iter().map(String::as_str)),
        quoted(SERVICES.iter().map(|(name, _)| *name))
    )]
    Others(Vec<String>),
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("{name:?}")).collect::<Vec<String>>().join(" ")
}

/// Failures of drivers, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A driver that has not registered.
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    /// Versions that do not suit.
    #[error(transparent)]
    Versions(#[from] VersionsError),
    /// A path that is no address.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A method has no path.
    #[error("{method}: {cause}")]
    Path {
        /// The method.
        method: &'static str,
        /// Cause.
        #[source]
        cause: InvalidUri,
    },
    /// A driver that cannot be called.
    #[error("{method}: {cause}")]
    Away {
        /// The method.
        method: &'static str,
        /// Cause.
        #[source]
        cause: BoxError,
    },
    /// A call failed.
    #[error("{method}: {}", call_error(.status))]
    Call {
        /// The method.
        method: &'static str,
        /// Cause.
        #[source]
        status: Status,
    },
    /// An answer that is not about the claim.
    #[error("{0} skipped 1 ResourceClaims")]
    Skipped(&'static str),
    /// A claim that the driver refused.
    #[error("{method} failed for ResourceClaim {claim}: {message}")]
    Claim {
        /// The method.
        method: &'static str,
        /// Name of the claim.
        claim: String,
        /// The driver's message.
        message: String,
    },
}

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
pub(super) fn service(versions: &[String]) -> Result<&'static str, VersionsError> {
    if versions.is_empty() {
        return Err(VersionsError::None);
    }
    let known = SERVICES.iter().find(|(name, _)| versions.iter().any(|version| version == name));
    known.map(|(_, service)| *service).ok_or_else(|| VersionsError::Others(versions.to_vec()))
}

impl Driver {
    pub(super) fn new(plugin: &Plugin) -> Result<Self, DriverError> {
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

    async fn call<Q, A>(&self, method: &'static str, message: Q) -> Result<A, DriverError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let path = PathAndQuery::try_from(format!("/{}/{method}", self.service));
        let path = path.map_err(|cause| DriverError::Path { method, cause })?;
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.map_err(|cause| DriverError::Away { method, cause })?;
        let mut request = Request::new(message);
        request.set_timeout(TIMEOUT);
        let begun = Instant::now();
        let answer = client.unary(request, path, tonic_prost::ProstCodec::default()).await;
        metrics::claim_call(&self.name, &format!("/{}/{method}", self.service), begun, &answer);
        Ok(answer.map_err(|status| DriverError::Call { method, status })?.into_inner())
    }

    /// Prepares a claim on the node: its devices.
    pub(super) async fn prepare(&self, claim: v1::Claim) -> Result<Vec<v1::Device>, DriverError> {
        let method = "NodePrepareResources";
        let (uid, name) = (claim.uid.clone(), claim.name.clone());
        let request = v1::NodePrepareResourcesRequest { claims: vec![claim] };
        let mut answer: v1::NodePrepareResourcesResponse = self.call(method, request).await?;
        let result = answer.claims.remove(&uid).ok_or(DriverError::Skipped(method))?;
        match result.error.as_str() {
            "" => Ok(result.devices),
            message => Err(DriverError::Claim { method, claim: name, message: message.to_owned() }),
        }
    }

    /// Undoes the preparation of a claim.
    pub(super) async fn unprepare(&self, claim: v1::Claim) -> Result<(), DriverError> {
        let method = "NodeUnprepareResources";
        let (uid, name) = (claim.uid.clone(), claim.name.clone());
        let request = v1::NodeUnprepareResourcesRequest { claims: vec![claim] };
        let mut answer: v1::NodeUnprepareResourcesResponse = self.call(method, request).await?;
        let result = answer.claims.remove(&uid).ok_or(DriverError::Skipped(method))?;
        match result.error.as_str() {
            "" => Ok(()),
            message => Err(DriverError::Claim { method, claim: name, message: message.to_owned() }),
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
    pub(super) fn get(&self, name: &str) -> Result<Driver, DriverError> {
        let known = self.0.lock().get(name).and_then(|drivers| drivers.last().cloned());
        known.ok_or_else(|| DriverError::NotRegistered(name.to_owned()))
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
        assert_eq!(service(&versions(&["v9.DRAPlugin"])).expect_err("refused").to_string(), refused);
    }
}
