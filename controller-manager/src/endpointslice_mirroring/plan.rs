//! EndpointSlices for Endpoints that somebody maintains by hand. Answers for upstream's `addressToEndpoint`,
//! `reconcileByPortMapping`.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use foldhash::HashMap;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort as CorePort, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::endpointslice::write::Write;
use crate::engine::action::body;
use crate::engine::packed::NewMeta;
use crate::engine::services::TRIGGER;
use crate::engine::slice::{Content, MANAGED_BY, SERVICE_NAME, Slice};
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
    /// Slices: one for each set of ports and family.
    slices: Vec<Slice>,
    /// Addresses that are left out.
    pub skipped: usize,
    /// Number of addresses that are invalid.
    pub invalid: usize,
}

/// Most bytes of the slices of one object: labels and annotations are in each of them, and there may be as many as there
/// are ports. Addresses beyond are left out.
const MAX_BYTES: usize = 64 << 20;
/// Most ports that are looked at for one object, where addresses in several subsets have the ports of all of them.
const MAX_PORTS: usize = 1_000_000;

/// Read an object, up to `limit` addresses for each set of ports.
#[must_use]
pub fn mirror(endpoints: &Endpoints, limit: usize) -> Mirrored {
    let (sets, skipped) = canonical(endpoints, MAX_PORTS);
    let mut out = Mirrored { skipped, ..Mirrored::default() };
    let mut bytes = 0;
    for (ports, addresses) in sets {
        if bytes > MAX_BYTES {
            out.skipped += addresses.len();
            continue;
        }
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
            let slice = Slice::of_json(&body(&slice)).ok();
            bytes += slice.as_ref().map_or(0, Slice::size);
            out.slices.extend(slice);
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

/// Subsets that an address is in, by their number, and whether it is ready there.
type Places = Vec<(usize, bool)>;

/// The addresses of an object by the sets of ports they serve, and the number of those left out because the ports to be
/// looked at for them are too many. One that is ready in one place and not in another is not.
fn canonical(endpoints: &Endpoints, mut budget: usize) -> (Vec<(Vec<EndpointPort>, Addresses<'_>)>, usize) {
    let mut ports: Vec<Vec<PortKey<'_>>> = Vec::new();
    let mut addresses: BTreeMap<(&str, &str), (&EndpointAddress, Places)> = BTreeMap::new();
    for (at, subset) in endpoints.subsets.iter().flatten().enumerate() {
        let own: Vec<PortKey<'_>> = subset.ports.iter().flatten().map(PortKey::of).collect();
        // Without ports an address is there all the same.
        ports.push(if own.is_empty() { vec![PortKey::NONE] } else { own });
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|a| (a, false));
        for (address, ready) in ready.chain(unready) {
            let uid = address.target_ref.as_ref().and_then(|t| t.uid.as_deref()).unwrap_or_default();
            let known = addresses.entry((&address.ip, uid)).or_insert_with(|| (address, Places::new()));
            known.1.push((at, ready));
        }
    }
    // Addresses in the same places have the same ports: these are looked at once, not once for each address.
    let mut serving: HashMap<&Places, [Option<usize>; 2]> = HashMap::default();
    let mut sets = PortSets::default();
    let mut skipped = 0;
    for (_, places) in addresses.values() {
        if serving.contains_key(places) {
            continue;
        }
        let cost: usize = places.iter().map(|(at, _)| ports[*at].len()).sum();
        let served = budget.checked_sub(cost).map(|left| {
            budget = left;
            sets.of(&ports, places)
        });
        serving.insert(places, served.unwrap_or_default());
    }
    let mut by_set: Vec<Addresses<'_>> = vec![Vec::new(); sets.0.len()];
    for ready in [true, false] {
        for (address, places) in addresses.values() {
            match serving[places] {
                [None, None] => skipped += usize::from(ready),
                sets => {
                    if let Some(set) = sets[usize::from(ready)] {
                        by_set[set].push((address, ready));
                    }
                }
            }
        }
    }
    let mut out: Vec<_> = sets.0.into_iter().map(|(ports, at)| (ports, std::mem::take(&mut by_set[at]))).collect();
    out.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let made = |ports: Vec<PortKey<'_>>| ports.into_iter().filter_map(PortKey::port).collect();
    (out.into_iter().map(|(ports, addresses)| (made(ports), addresses)).collect(), skipped)
}

/// Sets of ports, in order, each with its number.
#[derive(Default)]
struct PortSets<'a>(HashMap<Vec<PortKey<'a>>, usize>);

impl<'a> PortSets<'a> {
    /// The numbers of the ports of addresses in these places: of those on which they are not ready, and of those on which
    /// they are.
    fn of(&mut self, ports: &[Vec<PortKey<'a>>], places: &Places) -> [Option<usize>; 2] {
        let mut served: BTreeMap<PortKey<'a>, bool> = BTreeMap::new();
        for (at, ready) in places {
            for port in &ports[*at] {
                *served.entry(*port).or_insert(true) &= ready;
            }
        }
        [false, true].map(|ready| {
            let set: Vec<PortKey<'a>> = served.iter().filter(|(_, is)| **is == ready).map(|(port, _)| *port).collect();
            (!set.is_empty()).then(|| self.number(set))
        })
    }

    fn number(&mut self, set: Vec<PortKey<'a>>) -> usize {
        let next = self.0.len();
        *self.0.entry(set).or_insert(next)
    }
}

/// Identity of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    let mut used = vec![false; slices.len()];
    // An object may have tens of thousands of sets of ports, each with slices of its own.
    let mut alike: HashMap<(&str, Vec<&[u8]>), Vec<usize>> = HashMap::default();
    for (at, slice) in slices.iter().enumerate() {
        alike.entry((slice.address_type(), slice.ports().collect())).or_default().push(at);
    }
    let mut missing = Vec::new();
    for slice in desired {
        // Equal ones stay, then those for the same family are changed.
        let is = |s: &Slice| same(s, &slice) && s.meta().has_owner("v1", "Endpoints", uid);
        let mut candidates = alike.get(&(slice.address_type(), slice.ports().collect())).into_iter().flatten();
        match candidates.find(|at| !used[**at] && is(&slices[**at])) {
            Some(at) => used[*at] = true,
            None => missing.push(slice),
        }
    }
    let mut free: HashMap<&str, VecDeque<usize>> = HashMap::default();
    for (at, slice) in slices.iter().enumerate().filter(|(at, _)| !used[*at]) {
        free.entry(slice.address_type()).or_default().push_back(at);
    }
    for slice in missing {
        match free.get_mut(slice.address_type()).and_then(VecDeque::pop_front) {
            Some(at) => {
                used[at] = true;
                writes.push(Write::Update(renamed(&slice, slices[at].meta().name())));
            }
            None if object::deleting(&endpoints.metadata) => {}
            None => writes.push(Write::Create(slice)),
        }
    }
    let left = slices.iter().zip(used).filter(|(_, used)| !used);
    writes.extend(left.map(|(slice, _)| Write::Delete(Arc::clone(slice))));
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
    use std::time::Duration;

    use super::*;
    use crate::endpointslice::report;
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

    /// Endpoints of a megabyte in which every address has a port of its own, in so many subsets.
    fn scattered(count: usize) -> Endpoints {
        let subset = |n: usize| {
            json!({"addresses": [{"ip": format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255)}],
                "ports": [{"port": n % 65_000 + 1}]})
        };
        endpoints((0..count).map(subset).collect())
    }

    /// Processor time of planning for such an object from nothing, and once more with a label changed.
    fn cost(count: usize) -> Duration {
        let mut object = scattered(count);
        let (_, polls) = shared::run::measured(|| {
            let made = plan(Some((&object, mirror(&object, 1000))), &[]);
            let slices: Vec<Arc<Slice>> = made
                .into_iter()
                .map(|write| match write {
                    Write::Create(slice) => Arc::new(slice),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(slices.len(), count);
            assert!(plan(Some((&object, mirror(&object, 1000))), &slices).is_empty());
            object.metadata.labels = Some(BTreeMap::from([("l".to_owned(), "2".to_owned())]));
            let writes = plan(Some((&object, mirror(&object, 1000))), &slices);
            assert!(writes.len() == count && writes.iter().all(|write| matches!(write, Write::Update(_))));
            let seen = report::read(&slices, &writes, 100);
            assert_eq!((seen.changed, seen.totals.packed), (count, count));
        });
        polls
    }

    #[test]
    fn time_grows_with_the_sets_of_ports_and_not_with_their_square() {
        let least = |count: usize| (0..3).map(|_| cost(count)).min().unwrap_or_default();
        let (some, many) = (least(1500), least(6000));
        assert!(many < some * 8, "four times as many took {many:?} instead of {some:?}");
    }

    #[test]
    fn addresses_times_ports_are_not_looked_at() {
        let ip = |n: usize| json!({"ip": format!("10.0.{}.{}", n >> 8, n & 255)});
        let addresses: Value = (0..5000).map(ip).collect();
        let ports = |from: usize| -> Value { (from..from + 5000).map(|port| json!({"port": port})).collect() };
        let subset = |from: usize| json!({"addresses": addresses, "ports": ports(from)});
        let object = endpoints(json!([subset(1), subset(5001)]));
        let (sets, skipped) = canonical(&object, 10_000);
        assert_eq!((sets.len(), sets[0].0.len(), sets[0].1.len(), skipped), (1, 10_000, 5000, 0));
        assert_eq!(canonical(&object, 9_999), (vec![], 5000), "more than may be looked at");
    }

    #[test]
    fn slices_of_one_object_are_bounded_by_their_size() {
        let mut object = scattered(2000);
        object.metadata.annotations = Some(BTreeMap::from([("big".to_owned(), "x".repeat(200_000))]));
        let mirrored = mirror(&object, 1000);
        let bytes: usize = mirrored.slices.iter().map(Slice::size).sum();
        assert!((MAX_BYTES..MAX_BYTES + 1_000_000).contains(&bytes), "{bytes}");
        assert_eq!(mirrored.slices.len() + mirrored.skipped, 2000);
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
