//! Availability of aggregated API servers: from the cluster's objects ([`condition_from_objects`]), then from the
//! server's own response. Answers for upstream's `kube-aggregator/pkg/controllers/status`
//! (`AvailableConditionController`).

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use proto::Value;

use super::backend::Backend;
use super::error::ForwardError;
use super::service::ApiService;
use crate::admission::ServiceAddressError;
use crate::api::Reader;
use crate::machinery::tree;
use crate::registry::api_services::Condition;
use crate::registry::discovery::endpoint_slice::ENDPOINT_SLICES;

/// Questions asked at once; one good answer is enough.
const ATTEMPTS: usize = 5;
/// A server must answer its discovery in this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the `Available` condition of an API service as far as its service and endpoint slices decide it; `None` when
/// they are fine.
pub(super) fn condition_from_objects(
    api: &ApiService,
    service: Option<&Value>,
    slices: &[Arc<Value>],
) -> Option<Condition> {
    let behind = api.behind.as_ref()?;
    let (namespace, name) = (&behind.namespace, &behind.name);
    let Some(service) = service else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Some(Condition::no("ServiceNotFound", message));
    };
    if !matches!(tree::text(service, "/spec/type"), "" | "ClusterIP") {
        return None;
    }
    let port = tree::list(service, "/spec/ports").iter().find(|p| tree::int(p, "/port") == Some(behind.port));
    let Some(port) = port.map(tree::name_field) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {}", behind.port);
        return Some(Condition::no("ServicePortError", message));
    };
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Condition::no("EndpointsNotFound", message));
    }
    let ready = |slice: &Value| {
        tree::list(slice, "/ports").iter().any(|p| tree::name_field(p) == port && tree::int(p, "/port").is_some())
            && tree::list(slice, "/endpoints").iter().any(|e| {
                tree::maybe_flag(e, "/conditions/ready") != Some(false) && !tree::list(e, "/addresses").is_empty()
            })
    };
    if slices.iter().any(|slice| ready(slice)) {
        return None;
    }
    let message =
        format!("endpointslices for service/{name} in {namespace:?} have no addresses with port name {port:?}");
    Some(Condition::no("MissingEndpoints", message))
}

/// The endpoint slices of a service.
pub(super) fn slices(reader: &dyn Reader, namespace: &str, name: &str) -> Vec<Arc<Value>> {
    let mut all = reader.list(ENDPOINT_SLICES, Some(namespace));
    all.retain(|slice| tree::label(slice, "kubernetes.io/service-name") == Some(name));
    all
}

/// Asks a server for its discovery document.
pub(super) async fn check_server(api: &ApiService, backend: &Backend, reader: &dyn Reader) -> Condition {
    let mut attempts: futures::stream::FuturesUnordered<_> =
        (0..ATTEMPTS).map(|_| attempt(api, backend, reader)).collect();
    let mut last = String::new();
    while let Some(outcome) = attempts.next().await {
        match outcome {
            Ok(()) => return Condition::passed(),
            Err(why) => last = why.to_string(),
        }
    }
    Condition::no("FailedDiscoveryCheck", last)
}

/// A discovery document that a server does not give.
#[derive(Debug, thiserror::Error)]
enum DiscoveryCheckError {
    /// A service without an address.
    #[error(transparent)]
    Address(#[from] ServiceAddressError),
    /// A refusal.
    #[error("failing or missing response from {url}: bad status from {url}: {code}")]
    Status { url: String, code: u16 },
    /// No answer.
    #[error("failing or missing response from {url}: Get {url:?}: {source}")]
    Get { url: String, source: Box<ForwardError> },
    /// No answer in time.
    #[error(
        "failing or missing response from {0}: Get {0:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    )]
    Deadline(String),
}

async fn attempt(api: &ApiService, backend: &Backend, reader: &dyn Reader) -> Result<(), DiscoveryCheckError> {
    let path = api.path();
    let url = format!("https://{}{path}", backend.address(reader)?);
    // Whether it is the right server is for those to say who send something.
    let probe = backend.probe(reader, &path);
    match tokio::time::timeout(PATIENCE, probe).await {
        Ok(Ok(code)) if (200..300).contains(&code) => Ok(()),
        Ok(Ok(code)) => Err(DiscoveryCheckError::Status { url, code }),
        Ok(Err(source)) => Err(DiscoveryCheckError::Get { url, source: source.into() }),
        Err(_) => Err(DiscoveryCheckError::Deadline(url)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn availability_follows_service_and_endpoints() {
        let api = ApiService::read(&json!({"metadata": {"name": "v1.a.io"}, "spec": {"group": "a.io", "version": "v1",
            "service": {"namespace": "n", "name": "s", "port": 443}}}));
        let service = |kind: &str, port: i64| json!({"spec": {"type": kind, "ports": [{"name": "web", "port": port}]}});
        let slice = |ready: bool, port: &str| {
            Arc::new(json!({"ports": [{"name": port, "port": 8443}],
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]}))
        };
        let said = |service: Option<Value>, slices: &[Arc<Value>]| {
            condition_from_objects(&api, service.as_ref(), slices).map(|c| (c.reason, c.message))
        };
        assert_eq!(said(None, &[]), Some(("ServiceNotFound", "service/s in \"n\" is not present".to_owned())));
        assert_eq!(
            said(Some(service("ClusterIP", 80)), &[]),
            Some(("ServicePortError", "service/s in \"n\" is not listening on port 443".to_owned()))
        );
        assert_eq!(
            said(Some(service("ClusterIP", 443)), &[]),
            Some(("EndpointsNotFound", "cannot find endpointslices for service/s in \"n\"".to_owned()))
        );
        let missing = "endpointslices for service/s in \"n\" have no addresses with port name \"web\"".to_owned();
        for slices in [slice(false, "web"), slice(true, "other")] {
            let found = said(Some(service("ClusterIP", 443)), &[slices]);
            assert_eq!(found, Some(("MissingEndpoints", missing.clone())));
        }
        assert_eq!(said(Some(service("ClusterIP", 443)), &[slice(false, "web"), slice(true, "web")]), None);
        assert_eq!(said(Some(service("ExternalName", 1)), &[]), None);
    }
}
