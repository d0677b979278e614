//! The EndpointSlices of a service: endpoints per address family and set of ports, at most so many per slice, changed
//! with as few writes as possible.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::topology::{self, Zones};
use super::write::Write;
use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::services::{self, HEADLESS, Port, TRIGGER, ports_of, sorted};
use crate::engine::{object, pods};

/// Who manages a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// This controller's mark.
pub const CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// The service a slice belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label with a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// What the decision rests on.
#[derive(Debug)]
pub struct Snapshot {
    /// The service.
    pub service: Arc<Service>,
    /// The pods it selects.
    pub pods: Vec<Arc<Pod>>,
    /// The nodes those pods are on, by name.
    pub nodes: HashMap<String, Arc<Node>>,
    /// The slices this controller made for it.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// The most endpoints in a slice.
    pub max_per_slice: usize,
    /// What caused the change.
    pub trigger: Option<Timestamp>,
    /// The zones of the cluster, for services that ask for hints by topology.
    pub zones: Option<Zones>,
}

type Ports<'a> = Vec<Port<'a>>;

/// The endpoints of each set of ports, which is in order; with the set as the service has it.
type Groups<'a> = BTreeMap<Ports<'a>, (Ports<'a>, Vec<Endpoint>)>;

/// The writes that bring the slices in line.
#[must_use]
pub fn plan(s: &Snapshot) -> Vec<Write> {
    let Some(spec) = services::selecting(&s.service) else { return Vec::new() };
    if object::deleting(&s.service.metadata) {
        return Vec::new();
    }
    let families = address_types(spec);
    let stray = s.slices.iter().filter(|x| !families.contains(&x.address_type.as_str()));
    let mut writes: Vec<Write> = stray.map(|slice| Write::Delete(Arc::clone(slice))).collect();
    for family in families {
        writes.extend(reconcile_family(s, spec, family));
    }
    writes
}

fn address_types(spec: &ServiceSpec) -> Vec<&'static str> {
    let named: Vec<&str> =
        spec.ip_families.iter().flatten().map(|f| if f == "IPv6" { "IPv6" } else { "IPv4" }).collect();
    if !named.is_empty() {
        return named;
    }
    let v6 = spec.cluster_ip.as_deref().is_some_and(|ip| ip.contains(':'));
    vec![if v6 { "IPv6" } else { "IPv4" }]
}

fn reconcile_family(s: &Snapshot, spec: &ServiceSpec, family: &str) -> Vec<Write> {
    let mut desired = Groups::new();
    for pod in s.pods.iter().filter(|p| services::belongs(p, true)) {
        let publish = spec.publish_not_ready_addresses == Some(true);
        let node_name = pods::node(pod);
        let node = s.nodes.get(node_name);
        if node.is_none() && !publish {
            continue;
        }
        let ips: Vec<String> = services::pod_ips(pod)
            .into_iter()
            .filter(|ip| ip.contains(':') == (family == "IPv6"))
            .map(str::to_owned)
            .collect();
        if ips.is_empty() {
            continue;
        }
        let endpoint = endpoint(s, spec, pod, node.map(AsRef::as_ref), ips);
        let ports = ports_of(pod, spec);
        match desired.get_mut(&sorted(&ports)) {
            Some((_, endpoints)) => endpoints.push(endpoint),
            None => drop(desired.insert(sorted(&ports), (ports, vec![endpoint]))),
        }
    }
    let told = zone_hints(s, family, &mut desired);
    let labels = labels(s, spec);
    let mut out = Changes::default();
    let mut by_ports: BTreeMap<Ports<'_>, Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in s.slices.iter().filter(|x| x.address_type == family && !object::deleting(&x.metadata)) {
        by_ports.entry(sorted(&ports_in(slice))).or_default().push(slice);
    }
    for (key, (ports, endpoints)) in desired {
        let there = by_ports.remove(&key).unwrap_or_default();
        let group = Group { family, labels: &labels, ports: &ports };
        reconcile_ports(s, &group, endpoints, &there, &mut out);
    }
    // Slices for ports nobody serves any more.
    out.delete.extend(by_ports.into_values().flatten().cloned());
    let mut writes = out.finish(s, family, &labels);
    writes.extend(told.map(Write::Tell));
    writes
}

/// Hints by topology for all endpoints of a family, and the event that tells of them.
fn zone_hints(s: &Snapshot, family: &str, desired: &mut Groups<'_>) -> Option<Action> {
    let had = s.slices.iter().any(|x| x.address_type == family && x.endpoints.iter().any(|e| e.hints.is_some()));
    let about = object::reference::<Service>(&s.service.metadata);
    let Some(zones) = s.zones.as_ref() else {
        let closer = s.service.spec.as_ref().is_some_and(|x| x.traffic_distribution.is_some());
        let text = format!("Topology Aware Hints has been disabled, addressType: {family}");
        return (had && !closer).then(|| Action::normal(&about, "TopologyAwareHintsDisabled", text));
    };
    let mut all: Vec<&mut Endpoint> = desired.values_mut().flat_map(|(_, list)| list.iter_mut()).collect();
    match topology::allocate(zones, &mut all) {
        Ok(()) if had => None,
        Ok(()) => {
            let text = format!("Topology Aware Hints has been enabled, addressType: {family}");
            Some(Action::normal(&about, "TopologyAwareHintsEnabled", text))
        }
        Err(why) => {
            Some(Action::warning(&about, "TopologyAwareHintsDisabled", format!("{why}, addressType: {family}")))
        }
    }
}

/// What the slices of one set of ports have in common.
struct Group<'a> {
    family: &'a str,
    labels: &'a BTreeMap<String, String>,
    ports: &'a [Port<'a>],
}

#[derive(Default)]
struct Changes {
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<Arc<EndpointSlice>>,
    kept: usize,
}

impl Changes {
    /// Turn deletions and creations of the same shape into updates, keep a placeholder where nothing is left.
    fn finish(mut self, s: &Snapshot, family: &str, labels: &BTreeMap<String, String>) -> Vec<Write> {
        if self.create.is_empty() && self.update.is_empty() && self.kept == 0 {
            let placeholder = |d: &Arc<EndpointSlice>| {
                d.endpoints.is_empty()
                    && d.ports.as_ref().is_none_or(Vec::is_empty)
                    && d.metadata.labels.as_ref() == Some(labels)
            };
            match self.delete.iter().position(placeholder) {
                Some(i) => drop(self.delete.remove(i)),
                None => self.create.push(new_slice(s, &Group { family, labels, ports: &[] }, Vec::new())),
            }
        }
        while !self.create.is_empty() && !self.delete.is_empty() {
            let (fresh, old) = (self.create.remove(0), self.delete.remove(0));
            self.update.push(EndpointSlice { ports: fresh.ports, ..changed(&old, fresh.endpoints) });
        }
        let mut writes: Vec<Write> = self.create.into_iter().map(Write::Create).collect();
        for mut slice in self.update {
            slice.metadata.labels = Some(labels.clone());
            set_trigger(&mut slice.metadata, s.trigger);
            writes.push(Write::Update(slice));
        }
        writes.extend(self.delete.into_iter().map(Write::Delete));
        writes
    }
}

/// A slice with other endpoints.
fn changed(slice: &EndpointSlice, endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        metadata: slice.metadata.clone(),
        address_type: slice.address_type.clone(),
        endpoints,
        ports: slice.ports.clone(),
    }
}

/// A slice that is written in any case, with the endpoints that stay in it.
struct Touched<'a> {
    slice: &'a Arc<EndpointSlice>,
    endpoints: Vec<Endpoint>,
}

fn reconcile_ports(
    s: &Snapshot,
    group: &Group<'_>,
    endpoints: Vec<Endpoint>,
    there: &[&Arc<EndpointSlice>],
    out: &mut Changes,
) {
    // By position: endpoints are moved once it is known where they go, and most stay where they are.
    let mut missing: HashMap<Id<'_>, usize> = endpoints.iter().enumerate().map(|(i, e)| (Id::of(e), i)).collect();
    let mut unchanged: Vec<&Arc<EndpointSlice>> = Vec::new();
    let mut differing: Vec<(&Arc<EndpointSlice>, Vec<usize>)> = Vec::new();
    for &slice in there {
        let stay: Vec<usize> = slice.endpoints.iter().filter_map(|e| missing.remove(&Id::of(e))).collect();
        let same = slice.metadata.labels.as_ref() == Some(group.labels)
            && stay.len() == slice.endpoints.len()
            && stay.iter().zip(&slice.endpoints).all(|(wanted, e)| endpoints[*wanted] == *e);
        if same { unchanged.push(slice) } else { differing.push((slice, stay)) }
    }
    let mut rest: Vec<usize> = missing.into_values().collect();
    rest.sort_unstable();
    let mut wanted: Vec<Option<Endpoint>> = endpoints.into_iter().map(Some).collect();
    let mut take =
        |which: Vec<usize>| -> Vec<Endpoint> { which.into_iter().filter_map(|i| wanted[i].take()).collect() };
    let mut touched: Vec<Touched<'_>> =
        differing.into_iter().map(|(slice, stay)| Touched { slice, endpoints: take(stay) }).collect();
    let mut rest = take(rest);
    // New endpoints go where a write is due anyway, fullest first.
    touched.sort_by_key(|x| std::cmp::Reverse(x.endpoints.len()));
    for Touched { endpoints, .. } in &mut touched {
        let room = s.max_per_slice.saturating_sub(endpoints.len()).min(rest.len());
        endpoints.extend(rest.drain(..room));
    }
    // Then into one untouched slice that can take them all, else into new ones.
    while !rest.is_empty() {
        let fits = unchanged
            .iter()
            .enumerate()
            .filter(|(_, x)| x.endpoints.len() + rest.len() <= s.max_per_slice)
            .max_by_key(|(_, x)| x.endpoints.len())
            .map(|(i, _)| i);
        if let Some(i) = fits {
            let slice = unchanged.remove(i);
            let endpoints = slice.endpoints.iter().cloned().chain(rest.drain(..)).collect();
            touched.push(Touched { slice, endpoints });
        } else {
            let chunk: Vec<Endpoint> = rest.drain(..rest.len().min(s.max_per_slice)).collect();
            out.create.push(new_slice(s, group, chunk));
        }
    }
    out.kept += unchanged.len();
    for Touched { slice, endpoints } in touched {
        if endpoints.is_empty() {
            out.delete.push(Arc::clone(slice));
        } else {
            out.update.push(changed(slice, endpoints));
        }
    }
}

/// What an endpoint is recognised by: the pod, and its addresses.
#[derive(PartialEq, Eq, Hash)]
struct Id<'a> {
    uid: &'a str,
    addresses: &'a [String],
}

impl<'a> Id<'a> {
    fn of(e: &'a Endpoint) -> Self {
        let uid = e.target_ref.as_ref().and_then(|r| r.uid.as_deref()).unwrap_or_default();
        Self { uid, addresses: &e.addresses }
    }
}

fn new_slice(s: &Snapshot, group: &Group<'_>, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let service = &s.service.metadata;
    let mut metadata = ObjectMeta {
        generate_name: Some(pods::name_prefix(object::name(service))),
        namespace: service.namespace.clone(),
        labels: Some(group.labels.clone()),
        owner_references: Some(vec![object::controller_ref::<Service>(service)]),
        ..ObjectMeta::default()
    };
    set_trigger(&mut metadata, s.trigger);
    let ports: Vec<EndpointPort> = group.ports.iter().map(written).collect();
    EndpointSlice {
        metadata,
        address_type: group.family.to_owned(),
        endpoints,
        ports: Some(ports).filter(|p| !p.is_empty()),
    }
}

fn set_trigger(meta: &mut ObjectMeta, at: Option<Timestamp>) {
    let mut annotations = meta.annotations.take().unwrap_or_default();
    match at {
        Some(at) => annotations.insert(TRIGGER.into(), services::trigger_text(at)),
        None => annotations.remove(TRIGGER),
    };
    meta.annotations = Some(annotations).filter(|a| !a.is_empty());
}

fn labels(s: &Snapshot, spec: &ServiceSpec) -> BTreeMap<String, String> {
    let mut labels = s.service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if services::headless(spec) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(SERVICE_NAME.into(), object::name(&s.service.metadata).to_owned());
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    labels
}

/// A slice always names its ports, if only with the empty name.
fn written(port: &Port<'_>) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.to_owned()),
        port: Some(port.number),
        protocol: Some(port.protocol.to_owned()),
        app_protocol: Some(port.app_protocol).filter(|p| !p.is_empty()).map(str::to_owned),
    }
}

fn ports_in(slice: &EndpointSlice) -> Ports<'_> {
    let ports = slice.ports.iter().flatten().map(|p| Port {
        name: p.name.as_deref().unwrap_or_default(),
        number: p.port.unwrap_or(0),
        protocol: p.protocol.as_deref().unwrap_or_default(),
        app_protocol: p.app_protocol.as_deref().unwrap_or_default(),
    });
    ports.collect()
}

fn endpoint(s: &Snapshot, spec: &ServiceSpec, pod: &Pod, node: Option<&Node>, addresses: Vec<String>) -> Endpoint {
    let serving = pods::ready(pod);
    let terminating = object::deleting(&pod.metadata);
    let publish = spec.publish_not_ready_addresses == Some(true);
    let ready = publish || (serving && !terminating);
    let zone = node.and_then(|n| object::label(&n.metadata, ZONE)).map(str::to_owned);
    let node_name = Some(pods::node(pod).to_owned()).filter(|n| !n.is_empty());
    let hints = hints(spec, ready, zone.as_deref(), node_name.as_deref());
    Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: services::hostname(pod, &s.service).map(str::to_owned),
        target_ref: Some(services::pod_reference(pod)),
        node_name,
        zone,
        hints,
        ..Endpoint::default()
    }
}

/// Where a ready endpoint should be used from, when the service asks to keep traffic close.
fn hints(spec: &ServiceSpec, ready: bool, zone: Option<&str>, node: Option<&str>) -> Option<EndpointHints> {
    // The annotation for hints by topology, if there is one, comes before this field.
    let wish = spec.traffic_distribution.as_deref()?;
    if !ready {
        return None;
    }
    let zones = zone.map(|z| vec![ForZone { name: z.to_owned() }]);
    let nodes = node.filter(|_| wish == "PreferSameNode").map(|n| vec![ForNode { name: n.to_owned() }]);
    matches!(wish, "PreferClose" | "PreferSameZone" | "PreferSameNode")
        .then_some(EndpointHints { for_zones: zones, for_nodes: nodes })
        .filter(|h| h.for_zones.is_some() || h.for_nodes.is_some())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
