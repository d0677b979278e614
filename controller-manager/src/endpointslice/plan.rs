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
use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::services::{self, HEADLESS, TRIGGER};
use crate::engine::{hash, object, pods};

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

type Ports = Vec<EndpointPort>;

/// The writes that bring the slices in line.
#[must_use]
pub fn plan(s: &Snapshot) -> Vec<Action> {
    let Some(spec) = services::selecting(&s.service) else { return Vec::new() };
    if object::deleting(&s.service.metadata) {
        return Vec::new();
    }
    let mut actions = Vec::new();
    let families = address_types(spec);
    for slice in s.slices.iter().filter(|x| !families.contains(&x.address_type.as_str())) {
        actions.push(Action::delete::<EndpointSlice>(&slice.metadata));
    }
    for family in families {
        actions.extend(reconcile_family(s, spec, family));
    }
    actions
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

fn reconcile_family(s: &Snapshot, spec: &ServiceSpec, family: &str) -> Vec<Action> {
    let mut desired: BTreeMap<String, (Ports, Vec<Endpoint>)> = BTreeMap::new();
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
        let ports = ports_of(pod, spec);
        let entry = desired.entry(ports_key(&ports)).or_insert_with(|| (ports, Vec::new()));
        entry.1.push(endpoint(s, spec, pod, node.map(AsRef::as_ref), ips));
    }
    let told = zone_hints(s, family, &mut desired);
    let existing: Vec<&Arc<EndpointSlice>> =
        s.slices.iter().filter(|x| x.address_type == family && !object::deleting(&x.metadata)).collect();
    let labels = labels(s, spec);
    let mut out = Changes::default();
    let mut by_ports: BTreeMap<String, Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let key = ports_key(slice.ports.as_deref().unwrap_or_default());
        by_ports.entry(key).or_default().push(slice);
    }
    for (key, (ports, endpoints)) in desired {
        let there = by_ports.remove(&key).unwrap_or_default();
        reconcile_ports(s, family, &labels, ports, endpoints, &there, &mut out);
    }
    // Slices for ports nobody serves any more.
    out.delete.extend(by_ports.into_values().flatten().map(|x| EndpointSlice::clone(x)));
    let mut actions = out.finish(s, family, &labels);
    actions.extend(told);
    actions
}

/// Hints by topology for all endpoints of a family, and the event that tells of them.
fn zone_hints(s: &Snapshot, family: &str, desired: &mut BTreeMap<String, (Ports, Vec<Endpoint>)>) -> Option<Action> {
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

#[derive(Default)]
struct Changes {
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<EndpointSlice>,
    kept: usize,
}

impl Changes {
    /// Turn deletions and creations of the same shape into updates, keep a placeholder where nothing is left.
    fn finish(mut self, s: &Snapshot, family: &str, labels: &BTreeMap<String, String>) -> Vec<Action> {
        if self.create.is_empty() && self.update.is_empty() && self.kept == 0 {
            let placeholder = new_slice(s, family, labels, Vec::new(), Vec::new());
            if let Some(i) = self.delete.iter().position(|d| {
                d.endpoints.is_empty()
                    && d.ports.as_ref().is_none_or(Vec::is_empty)
                    && d.metadata.labels.as_ref() == Some(labels)
            }) {
                self.delete.remove(i);
            } else {
                self.create.push(placeholder);
            }
        }
        while !self.create.is_empty() && !self.delete.is_empty() {
            let (fresh, old) = (self.create.remove(0), self.delete.remove(0));
            self.update.push(EndpointSlice { endpoints: fresh.endpoints, ports: fresh.ports, ..old });
        }
        let mut actions = Vec::new();
        actions.extend(self.create.iter().map(Action::create));
        for slice in &mut self.update {
            slice.metadata.labels = Some(labels.clone());
            set_trigger(&mut slice.metadata, s.trigger);
            actions.push(Action::update(slice));
        }
        actions.extend(self.delete.iter().map(|x| Action::delete::<EndpointSlice>(&x.metadata)));
        actions
    }
}

fn reconcile_ports(
    s: &Snapshot,
    family: &str,
    labels: &BTreeMap<String, String>,
    ports: Ports,
    endpoints: Vec<Endpoint>,
    there: &[&Arc<EndpointSlice>],
    out: &mut Changes,
) {
    let id = |e: &Endpoint| {
        let uid = e.target_ref.as_ref().and_then(|r| r.uid.clone()).unwrap_or_default();
        (e.addresses.clone(), uid)
    };
    let mut wanted: BTreeMap<(Vec<String>, String), Endpoint> = endpoints.into_iter().map(|e| (id(&e), e)).collect();
    let mut unchanged: Vec<EndpointSlice> = Vec::new();
    let mut touched: Vec<EndpointSlice> = Vec::new();
    for slice in there {
        let mut changed = slice.metadata.labels.as_ref() != Some(labels);
        let mut keep = Vec::with_capacity(slice.endpoints.len());
        for e in &slice.endpoints {
            match wanted.remove(&id(e)) {
                Some(w) => {
                    changed |= w != *e;
                    keep.push(w);
                }
                None => changed = true,
            }
        }
        let copy = EndpointSlice { endpoints: keep, ..EndpointSlice::clone(slice) };
        if changed { touched.push(copy) } else { unchanged.push(copy) }
    }
    let mut rest: Vec<Endpoint> = wanted.into_values().collect();
    // New endpoints go where a write is due anyway, fullest first.
    touched.sort_by_key(|x| std::cmp::Reverse(x.endpoints.len()));
    for slice in &mut touched {
        let room = s.max_per_slice.saturating_sub(slice.endpoints.len()).min(rest.len());
        slice.endpoints.extend(rest.drain(..room));
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
            let mut slice = unchanged.remove(i);
            slice.endpoints.append(&mut rest);
            touched.push(slice);
        } else {
            let take = rest.len().min(s.max_per_slice);
            let chunk: Vec<Endpoint> = rest.drain(..take).collect();
            out.create.push(new_slice(s, family, labels, ports.clone(), chunk));
        }
    }
    out.kept += unchanged.len();
    for slice in touched {
        if slice.endpoints.is_empty() { out.delete.push(slice) } else { out.update.push(slice) }
    }
}

fn new_slice(
    s: &Snapshot,
    family: &str,
    labels: &BTreeMap<String, String>,
    ports: Ports,
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let service = &s.service.metadata;
    let mut metadata = ObjectMeta {
        generate_name: Some(pods::name_prefix(object::name(service))),
        namespace: service.namespace.clone(),
        labels: Some(labels.clone()),
        owner_references: Some(vec![object::controller_ref::<Service>(service)]),
        ..ObjectMeta::default()
    };
    set_trigger(&mut metadata, s.trigger);
    EndpointSlice { metadata, address_type: family.to_owned(), endpoints, ports: Some(ports).filter(|p| !p.is_empty()) }
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

fn ports_of(pod: &Pod, spec: &ServiceSpec) -> Ports {
    spec.ports
        .iter()
        .flatten()
        .filter_map(|p| {
            Some(EndpointPort {
                // A slice always names its ports, if only with the empty name.
                name: Some(p.name.clone().unwrap_or_default()),
                port: Some(services::pod_port(pod, p)?),
                protocol: Some(p.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: p.app_protocol.clone(),
            })
        })
        .collect()
}

fn ports_key(ports: &[EndpointPort]) -> String {
    let mut parts: Vec<String> = ports
        .iter()
        .map(|p| {
            let text = |v: &Option<String>| v.clone().unwrap_or_default();
            format!("{}/{}/{}/{}", text(&p.name), p.port.unwrap_or(0), text(&p.protocol), text(&p.app_protocol))
        })
        .collect();
    parts.sort();
    hash::of(&parts, None) + &parts.join(",")
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
