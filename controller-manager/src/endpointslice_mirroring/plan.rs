//! EndpointSlices for Endpoints that somebody maintains by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::endpointslice::plan::{MANAGED_BY, SERVICE_NAME};
use crate::endpointslice::slice::{Content, Slice};
use crate::endpointslice::write::Write;
use crate::engine::action::body;
use crate::engine::services::TRIGGER;
use crate::engine::{object, pods};

/// This controller's mark on slices.
pub const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
/// The label that says not to mirror.
pub const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Whether the endpoints of a service are its selector's business.
#[must_use]
pub fn selects(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|s| s.selector.is_some())
}

/// Whether this Endpoints object is to be mirrored, given its service.
#[must_use]
pub fn wanted(endpoints: &Endpoints, service: &Service) -> bool {
    let skip = object::label(&endpoints.metadata, SKIP) == Some("true");
    let election = object::annotation(&endpoints.metadata, LEADER).is_some();
    !skip && !election && !selects(service) && !object::deleting(&endpoints.metadata)
}

/// The writes that make the slices mirror the object; with None they all go.
#[must_use]
pub fn plan(endpoints: Option<&Endpoints>, slices: &[Arc<Slice>], limit: usize) -> Vec<Write> {
    let Some(endpoints) = endpoints else {
        return slices.iter().map(|s| Write::Delete(Arc::clone(s))).collect();
    };
    let mirrored = endpoints.subsets.iter().flatten().flat_map(|subset| mirror(endpoints, subset, limit));
    // What is made here can be read.
    let desired = mirrored.filter_map(|slice| Slice::of_json(&body(&slice)).ok());
    let mut writes = Vec::new();
    let mut left: Vec<&Arc<Slice>> = slices.iter().collect();
    let mut missing = Vec::new();
    for slice in desired {
        // Equal ones stay, then those for the same ports and family are changed.
        match left.iter().position(|s| same(s, &slice)) {
            Some(i) => drop(left.remove(i)),
            None => missing.push(slice),
        }
    }
    for slice in missing {
        let fits = left.iter().position(|s| s.address_type() == slice.address_type());
        writes.push(match fits {
            Some(i) => Write::Update(left.remove(i).with(
                &slice.meta().labels(),
                &slice.meta().annotations(),
                &content(&slice),
            )),
            None => Write::Create(slice),
        });
    }
    writes.extend(left.into_iter().map(|s| Write::Delete(Arc::clone(s))));
    writes
}

fn content(slice: &Slice) -> Content<'_> {
    Content { family: slice.address_type(), endpoints: slice.endpoints().collect(), ports: slice.ports().collect() }
}

/// How many addresses of an object are not mirrored, as there are too many in a subset.
#[must_use]
pub fn skipped(endpoints: &Endpoints, limit: usize) -> usize {
    let count = |s: &EndpointSubset| s.addresses.iter().chain(&s.not_ready_addresses).map(Vec::len).sum::<usize>();
    endpoints.subsets.iter().flatten().map(|s| count(s).saturating_sub(limit)).sum()
}

fn same(a: &Slice, b: &Slice) -> bool {
    content(a) == content(b)
        && a.meta().has_labels(&b.meta().labels())
        && a.meta().annotations() == b.meta().annotations()
}

fn mirror(endpoints: &Endpoints, subset: &EndpointSubset, limit: usize) -> Vec<EndpointSlice> {
    let ports: Vec<EndpointPort> = subset
        .ports
        .iter()
        .flatten()
        .map(|p| EndpointPort {
            name: Some(p.name.clone().unwrap_or_default()),
            port: Some(p.port),
            protocol: Some(p.protocol.clone().unwrap_or_else(|| "TCP".into())),
            app_protocol: p.app_protocol.clone(),
        })
        .collect();
    let ready = subset.addresses.iter().flatten().map(|a| (a, true));
    let unready = subset.not_ready_addresses.iter().flatten().map(|a| (a, false));
    let mut by_family: BTreeMap<&str, Vec<Endpoint>> = BTreeMap::new();
    for (address, ready) in ready.chain(unready).take(limit) {
        let family = if address.ip.contains(':') { "IPv6" } else { "IPv4" };
        by_family.entry(family).or_default().push(endpoint(address, ready));
    }
    by_family
        .into_iter()
        .map(|(family, list)| EndpointSlice {
            metadata: metadata(endpoints),
            address_type: family.to_owned(),
            endpoints: list,
            ports: Some(ports.clone()).filter(|p| !p.is_empty()),
        })
        .collect()
}

fn endpoint(a: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![a.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: a.hostname.clone().filter(|h| !h.is_empty()),
        node_name: a.node_name.clone(),
        target_ref: a.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn metadata(endpoints: &Endpoints) -> ObjectMeta {
    let meta = &endpoints.metadata;
    let mut labels = meta.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.into(), object::name(meta).to_owned());
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.retain(|k, _| k != LAST_APPLIED && k != TRIGGER);
    ObjectMeta {
        generate_name: Some(pods::name_prefix(object::name(meta))),
        namespace: meta.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations).filter(|a| !a.is_empty()),
        owner_references: Some(vec![object::controller_ref::<Endpoints>(meta)]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn endpoints(subsets: Value) -> Endpoints {
        serde_json::from_value(json!({"metadata": {"name": "db", "namespace": "ns", "uid": "e", "labels": {"l": "1"}}, "subsets": subsets})).expect("endpoints")
    }

    #[test]
    fn mirrored_changed_and_removed() {
        let e = endpoints(
            json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "notReadyAddresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 3306}]}]),
        );
        let made: Vec<Arc<Slice>> = plan(Some(&e), &[], 1000)
            .into_iter()
            .map(|a| match a {
                Write::Create(slice) => Arc::new(slice),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            made.iter().map(|s| (s.address_type(), s.endpoints().count())).collect::<Vec<_>>(),
            [("IPv4", 2), ("IPv6", 1)]
        );
        assert!(plan(Some(&e), &made, 1000).is_empty());
        let less = endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 3306}]}]));
        assert!(matches!(plan(Some(&less), &made, 1000).as_slice(), [Write::Update(_), Write::Delete(_)]));
        assert_eq!(plan(None, &made, 1000).len(), 2);
        assert_eq!([skipped(&e, 1000), skipped(&e, 2)], [0, 1]);
    }

    #[test]
    fn what_is_mirrored() {
        let service = |selector: Value| -> Service {
            serde_json::from_value(json!({"spec": {"selector": selector}})).expect("service")
        };
        let e = endpoints(json!([]));
        assert!(wanted(&e, &service(Value::Null)));
        assert!(!wanted(&e, &service(json!({"a": "b"}))));
        let mut skipped = e;
        skipped.metadata.labels.get_or_insert_default().insert(SKIP.into(), "true".into());
        assert!(!wanted(&skipped, &service(Value::Null)));
    }
}
