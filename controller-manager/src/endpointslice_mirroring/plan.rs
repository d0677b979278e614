//! EndpointSlices for Endpoints that somebody maintains by hand. Answers for upstream's `addressToEndpoint`,
//! `reconcileByPortMapping`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort as CorePort, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::endpointslice::plan::{MANAGED_BY, SERVICE_NAME};
use crate::endpointslice::slice::{Content, Slice};
use crate::endpointslice::write::Write;
use crate::engine::action::body;
use crate::engine::packed::NewMeta;
use crate::engine::services::TRIGGER;
use crate::engine::{object, pods};

/// This controller's mark on slices.
pub const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
/// The label that says not to mirror.
pub const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reports whether the endpoints of a service are made by its selector.
#[must_use]
pub fn selects(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|s| s.selector.is_some())
}

/// Reports whether this Endpoints object is to be mirrored, given its service.
#[must_use]
pub fn wanted(endpoints: &Endpoints, service: &Service) -> bool {
    let skip = object::label(&endpoints.metadata, SKIP) == Some("true");
    let election = object::annotation(&endpoints.metadata, LEADER).is_some();
    !skip && !election && !selects(service)
}

/// Addresses of an object that are mirrored, and those that are not.
#[derive(Debug, Default)]
pub struct Mirrored {
    /// As many slices as there are sets of ports and families.
    slices: Vec<Slice>,
    /// Addresses that are left out.
    pub skipped: usize,
    /// Number of addresses that are invalid.
    pub invalid: usize,
}

/// Read an object, up to `limit` addresses for each set of ports.
#[must_use]
pub fn mirror(endpoints: &Endpoints, limit: usize) -> Mirrored {
    let mut out = Mirrored::default();
    for (ports, addresses) in canonical(endpoints) {
        let mut by_family: BTreeMap<&str, Vec<Endpoint>> = BTreeMap::new();
        let (mut added, total) = (0, addresses.len());
        for (address, ready) in addresses {
            if added >= limit {
                break;
            }
            match address_of(&address.ip) {
                Some(ip) => {
                    let family = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
                    by_family.entry(family).or_default().push(endpoint(address, &ip, ready));
                    added += 1;
                }
                None => out.invalid += 1,
            }
        }
        out.skipped += total - added;
        for (family, list) in by_family {
            let slice = EndpointSlice {
                metadata: metadata(endpoints),
                address_type: family.to_owned(),
                endpoints: list,
                ports: Some(ports.clone()).filter(|p| !p.is_empty()),
            };
            // What is made here can be read.
            out.slices.extend(Slice::of_json(&body(&slice)));
        }
    }
    out
}

/// An address as Go reads it: zeros in front are allowed, and IPv4 in IPv6 is IPv4.
fn address_of(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4));
    }
    let parts: Vec<u8> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    <[u8; 4]>::try_from(parts).ok().map(|octets| Ipv4Addr::from(octets).into())
}

type Addresses<'a> = Vec<(&'a EndpointAddress, bool)>;

/// The addresses of an object by the sets of ports they serve. One that is ready in one place and not in another is not.
fn canonical(endpoints: &Endpoints) -> Vec<(Vec<EndpointPort>, Addresses<'_>)> {
    type Id<'a> = (&'a str, &'a str);
    let mut addresses: BTreeMap<Id<'_>, &EndpointAddress> = BTreeMap::new();
    let mut by_port: BTreeMap<PortKey<'_>, BTreeMap<Id<'_>, bool>> = BTreeMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|a| (a, false));
        let ports: Vec<PortKey<'_>> = subset.ports.iter().flatten().map(PortKey::of).collect();
        for (address, ready) in ready.chain(unready) {
            let uid = address.target_ref.as_ref().and_then(|t| t.uid.as_deref()).unwrap_or_default();
            let id = (address.ip.as_str(), uid);
            addresses.entry(id).or_insert(address);
            // Without ports an address is there all the same.
            for port in if ports.is_empty() { &[PortKey::NONE] } else { ports.as_slice() } {
                *by_port.entry(*port).or_default().entry(id).or_insert(ready) &= ready;
            }
        }
    }
    let mut ports_of: BTreeMap<(Id<'_>, bool), Vec<PortKey<'_>>> = BTreeMap::new();
    for (port, served) in &by_port {
        for (id, ready) in served {
            ports_of.entry((*id, *ready)).or_default().push(*port);
        }
    }
    let mut sets: BTreeMap<Vec<PortKey<'_>>, Addresses<'_>> = BTreeMap::new();
    for ready in [true, false] {
        for ((id, is), ports) in ports_of.iter().filter(|((_, is), _)| *is == ready) {
            sets.entry(ports.clone()).or_default().push((addresses[id], *is));
        }
    }
    let made = |ports: Vec<PortKey<'_>>| ports.into_iter().filter_map(PortKey::port).collect();
    sets.into_iter().map(|(ports, addresses)| (made(ports), addresses)).collect()
}

/// Identity of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortKey<'a> {
    name: &'a str,
    number: i32,
    protocol: &'a str,
    app_protocol: Option<&'a str>,
}

impl<'a> PortKey<'a> {
    /// No port at all.
    const NONE: Self = Self { name: "", number: -1, protocol: "", app_protocol: None };

    fn of(port: &'a CorePort) -> Self {
        Self {
            name: port.name.as_deref().unwrap_or_default(),
            number: port.port,
            protocol: port.protocol.as_deref().unwrap_or("TCP"),
            app_protocol: port.app_protocol.as_deref(),
        }
    }

    fn port(self) -> Option<EndpointPort> {
        (self != Self::NONE).then(|| EndpointPort {
            name: Some(self.name.to_owned()),
            port: Some(self.number),
            protocol: Some(self.protocol.to_owned()),
            app_protocol: self.app_protocol.map(str::to_owned),
        })
    }
}

/// The writes that make the slices mirror the object; with None they all go.
#[must_use]
pub fn plan(mirrored: Option<(&Endpoints, Mirrored)>, slices: &[Arc<Slice>]) -> Vec<Write> {
    let Some((endpoints, Mirrored { slices: desired, .. })) = mirrored else {
        return slices.iter().map(|s| Write::Delete(Arc::clone(s))).collect();
    };
    let uid = object::uid(&endpoints.metadata);
    let mut writes = Vec::new();
    let mut left: Vec<&Arc<Slice>> = slices.iter().collect();
    let mut missing = Vec::new();
    for slice in desired {
        // Equal ones stay, then those for the same family are changed.
        match left.iter().position(|s| same(s, &slice) && s.meta().has_owner("v1", "Endpoints", uid)) {
            Some(i) => drop(left.remove(i)),
            None => missing.push(slice),
        }
    }
    for slice in missing {
        let fits = left.iter().position(|s| s.address_type() == slice.address_type());
        match fits {
            Some(i) => writes.push(Write::Update(renamed(&slice, left.remove(i).meta().name()))),
            None if object::deleting(&endpoints.metadata) => {}
            None => writes.push(Write::Create(slice)),
        }
    }
    writes.extend(left.into_iter().map(|s| Write::Delete(Arc::clone(s))));
    writes
}

/// The slice in the place of another, whatever that was and belonged to.
fn renamed(slice: &Slice, name: &str) -> Slice {
    let (meta, labels) = (slice.meta(), slice.meta().labels());
    let [api_version, kind, owner, uid] = meta.controller().unwrap_or_default();
    let meta = NewMeta {
        name,
        generate: false,
        namespace: meta.namespace(),
        labels: &labels,
        annotations: meta.annotations(),
        owner: Some([api_version, kind, owner, uid]),
    };
    Slice::new(&meta, &content(slice))
}

fn content(slice: &Slice) -> Content<'_> {
    Content { family: slice.address_type(), endpoints: slice.endpoints().collect(), ports: slice.ports().collect() }
}

fn same(a: &Slice, b: &Slice) -> bool {
    content(a) == content(b)
        && a.meta().has_labels(&b.meta().labels())
        && a.meta().annotations() == b.meta().annotations()
}

fn endpoint(a: &EndpointAddress, ip: &IpAddr, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_string()],
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
        let plan = |e: Option<&Endpoints>, slices: &[Arc<Slice>]| plan(e.map(|e| (e, mirror(e, 1000))), slices);
        let made: Vec<Arc<Slice>> = plan(Some(&e), &[])
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
        assert!(plan(Some(&e), &made).is_empty());
        let less = endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 3306}]}]));
        assert!(matches!(plan(Some(&less), &made).as_slice(), [Write::Update(_), Write::Delete(_)]));
        assert_eq!(plan(None, &made).len(), 2);
        assert_eq!([mirror(&e, 1000).skipped, mirror(&e, 2).skipped], [0, 1]);
        let mut again = e.clone();
        again.metadata.uid = Some("again".into());
        let writes = plan(Some(&again), &made);
        let [Write::Update(first), Write::Update(_)] = writes.as_slice() else { panic!("{writes:?}") };
        assert!(first.meta().has_owner("v1", "Endpoints", "again"), "what an earlier object owned would go with it");
        again.metadata.deletion_timestamp = Some(object::seconds(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        assert!(plan(Some(&again), &[]).is_empty(), "nothing new for what goes");
    }

    #[test]
    fn subsets_are_read_as_a_whole() {
        let ports = |m: &Mirrored| -> Vec<(Vec<i64>, Vec<(String, bool)>)> {
            let read = |s: &Slice| {
                let tree = s.tree().expect("a tree");
                let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
                let numbers = list(&tree["ports"]).iter().filter_map(|p| p["port"].as_i64()).collect();
                let of = |e: &Value| {
                    (e["addresses"][0].as_str().unwrap_or_default().to_owned(), e["conditions"]["ready"] == true)
                };
                (numbers, list(&tree["endpoints"]).iter().map(of).collect())
            };
            m.slices.iter().map(read).collect()
        };
        let at = |ips: &[&str]| ips.iter().map(|ip| json!({"ip": ip})).collect::<Value>();
        let ip = |ip: &str, ready: bool| (ip.to_owned(), ready);
        for (subsets, want) in [
            (
                json!([{"addresses": at(&["10.0.0.2"]), "ports": [{"port": 1}]}, {"addresses": at(&["10.0.0.1"]), "ports": [{"port": 1}]}]),
                vec![(vec![1], vec![ip("10.0.0.1", true), ip("10.0.0.2", true)])],
            ),
            (
                json!([{"addresses": at(&["10.0.0.1"]), "ports": [{"port": 1}]}, {"addresses": at(&["10.0.0.1"]), "ports": [{"port": 2}]}]),
                vec![(vec![1, 2], vec![ip("10.0.0.1", true)])],
            ),
            (
                json!([{"addresses": at(&["10.0.0.1"]), "notReadyAddresses": at(&["10.0.0.1"]), "ports": [{"port": 1}]}]),
                vec![(vec![1], vec![ip("10.0.0.1", false)])],
            ),
            (json!([{"addresses": at(&["010.0.0.01"])}]), vec![(vec![], vec![ip("10.0.0.1", true)])]),
        ] {
            assert_eq!(ports(&mirror(&endpoints(subsets.clone()), 100)), want, "{subsets}");
        }
        let bad = mirror(&endpoints(json!([{"addresses": at(&["10.0.0.1", "ten", "10.0.0.300"])}])), 100);
        assert_eq!((bad.invalid, bad.skipped, bad.slices.len()), (2, 2, 1));
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
