//! The EndpointSlices of a service: endpoints per address family and set of ports, at most so many per slice, changed
//! with as few writes as possible. Answers for upstream's `k8s.io/endpointslice` (`reconcileByPortMapping`).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::iter;
use std::sync::Arc;

use foldhash::HashMap;
use k8s_openapi::api::core::v1::{Node, Service, ServiceSpec};
use k8s_openapi::jiff::Timestamp;

use super::draft::{Draft, write_port};
use super::topology::{self, Served, Zones};
use super::write::Write;
use crate::engine::action::Action;
use crate::engine::packed::{NewMeta, Texts};
use crate::engine::pod::Pod;
use crate::engine::services::{self, Port, PortSet, PortSets, TRIGGER, sorted};
use crate::engine::slice::{self, Content, MANAGED_BY, SERVICE_NAME, Slice};
use crate::engine::{object, pods};

/// This controller's mark.
pub const CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The service.
    pub service: Arc<Service>,
    /// The pods it selects.
    pub pods: Vec<Arc<Pod>>,
    /// The nodes those pods are on, by name.
    pub nodes: HashMap<String, Arc<Node>>,
    /// The slices this controller made for it.
    pub slices: Vec<Arc<Slice>>,
    /// The most endpoints in a slice.
    pub max_per_slice: usize,
    /// Time of the change that caused this one.
    pub trigger: Option<Timestamp>,
    /// The zones of the cluster, for services that ask for hints by topology.
    pub zones: Option<Zones>,
    /// The service was given such hints the last time.
    pub hinted: bool,
}

/// Writes for a service, and its state.
#[derive(Debug, Default)]
pub struct Plan {
    /// The writes that bring the slices in line.
    pub writes: Vec<Write>,
    /// The service has hints by topology now.
    pub hinted: bool,
    /// Number of endpoints that serve each zone by such hints, for each family that has them.
    pub served: Vec<Served>,
    /// Pods that are left out, and the nodes they are said to be on, which are not there.
    pub lost: BTreeSet<(String, String)>,
}

type Ports<'a> = Vec<Port<'a>>;

/// Decide.
#[must_use]
pub fn plan(s: &Snapshot) -> Plan {
    let Some(spec) = services::selecting(&s.service) else { return Plan::default() };
    let families = address_types(spec);
    let strays: Vec<&Arc<Slice>> = s.slices.iter().filter(|x| !families.contains(&x.address_type())).collect();
    let mut out = Plan { hinted: s.hinted && strays.is_empty(), ..Plan::default() };
    for family in families {
        reconcile_family(s, spec, family, &mut out);
    }
    out.writes.extend(strays.into_iter().map(|slice| Write::Delete(Arc::clone(slice))));
    // What is about to be collected together with the service gets no company.
    if object::deleting(&s.service.metadata) {
        out.writes.retain(|write| !matches!(write, Write::Create(_)));
    }
    out
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

fn reconcile_family(s: &Snapshot, spec: &ServiceSpec, family: &str, plan: &mut Plan) {
    let mut groups = groups(s, spec, family, &mut plan.lost);
    let told = zone_hints(s, family, &mut groups, plan);
    let frame = Frame { s, family, labels: labels(s, spec) };
    let mut out = SliceChanges::default();
    let mut by_ports: BTreeMap<Ports<'_>, Vec<&Arc<Slice>>> = BTreeMap::new();
    for slice in s.slices.iter().filter(|x| x.address_type() == family && !x.meta().deleting()) {
        if !slice.meta().has_owner("v1", "Service", object::uid(&s.service.metadata)) {
            // Of an earlier service of that name, with which it goes: it is no use to this one.
            out.foreign.push(slice);
            continue;
        }
        let ports: Ports<'_> = slice.ports().map(slice::port).collect();
        by_ports.entry(sorted(&ports)).or_default().push(slice);
    }
    let wanted: Vec<Wanted<'_>> = groups.iter().map(Wanted::of).collect();
    for group in &wanted {
        let there = by_ports.remove(group.key).unwrap_or_default();
        reconcile_ports(&frame, group, &there, &mut out);
    }
    // Slices for ports nobody serves any more.
    out.delete.extend(by_ports.into_values().flatten());
    plan.writes.extend(out.finish(&frame));
    plan.writes.extend(told.map(|event| Write::Tell(Box::new(event))));
}

/// The endpoints of one set of ports.
struct Group<'a> {
    set: PortSet<'a>,
    endpoints: Vec<Draft<'a>>,
}

/// The endpoints of a family, in the order of their sets of ports.
fn groups<'a>(
    s: &'a Snapshot,
    spec: &'a ServiceSpec,
    family: &str,
    lost: &mut BTreeSet<(String, String)>,
) -> Vec<Group<'a>> {
    let publish = spec.publish_not_ready_addresses == Some(true);
    let mut sets = PortSets::new(spec);
    let mut endpoints: Vec<Vec<Draft<'a>>> = Vec::new();
    for pod in s.pods.iter().filter(|p| services::belongs(p, true)) {
        let node = s.nodes.get(pods::node(pod));
        if node.is_none() && !publish {
            lost.insert((object::name(&pod.metadata).to_owned(), pods::node(pod).to_owned()));
            continue;
        }
        let Some(draft) = Draft::of(&s.service, spec, pod, node.map(AsRef::as_ref), family) else { continue };
        let at = sets.of(pod);
        if at == endpoints.len() {
            // The first set is most often the only one.
            endpoints.push(Vec::with_capacity(if at == 0 { s.pods.len() } else { 0 }));
        }
        endpoints[at].push(draft);
    }
    let mut groups: Vec<Group<'a>> =
        sets.all.into_iter().zip(endpoints).map(|(set, endpoints)| Group { set, endpoints }).collect();
    groups.sort_by(|a, b| a.set.key.cmp(&b.set.key));
    groups
}

/// Hints by topology for all endpoints of a family, and the event that tells of them.
fn zone_hints<'a>(s: &'a Snapshot, family: &str, groups: &mut [Group<'a>], plan: &mut Plan) -> Option<Action> {
    let about = object::reference::<Service>(&s.service.metadata);
    let disabled =
        |why: &str| Action::warning(&about, "TopologyAwareHintsDisabled", format!("{why}, addressType: {family}"));
    let Some(zones) = s.zones.as_ref() else {
        return std::mem::take(&mut plan.hinted).then(|| disabled("Topology Aware Hints has been disabled"));
    };
    let mut all: Vec<&mut Draft<'a>> = groups.iter_mut().flat_map(|group| group.endpoints.iter_mut()).collect();
    match topology::allocate(zones, &mut all) {
        Ok(()) => {
            let mut served = Served::new();
            for zone in all.iter().filter_map(|e| e.hints?.zone) {
                *served.entry(zone.to_owned()).or_default() += 1;
            }
            plan.served.push(served);
            (!std::mem::replace(&mut plan.hinted, true)).then(|| {
                let text = format!("Topology Aware Hints has been enabled, addressType: {family}");
                Action::normal(&about, "TopologyAwareHintsEnabled", text)
            })
        }
        Err(why) => {
            plan.hinted = false;
            Some(disabled(&why.to_string()))
        }
    }
}

/// Desired endpoints of one set of ports, as they are written.
struct Wanted<'a> {
    key: &'a [Port<'a>],
    ports: Vec<Vec<u8>>,
    /// One behind the other.
    endpoints: Vec<u8>,
    /// End offsets of the endpoints.
    ends: Vec<usize>,
}

impl<'a> Wanted<'a> {
    fn of(group: &'a Group<'_>) -> Self {
        /// Most endpoints are shorter.
        const EACH: usize = 192;
        let mut endpoints = Vec::with_capacity(group.endpoints.len() * EACH);
        let mut ends = Vec::with_capacity(group.endpoints.len());
        for draft in &group.endpoints {
            draft.write(&mut endpoints);
            ends.push(endpoints.len());
        }
        let port = |port: &Port<'_>| {
            let mut written = Vec::new();
            write_port(port, &mut written);
            written
        };
        Self { key: &group.set.key, ports: group.set.ports.iter().map(port).collect(), endpoints, ends }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn endpoint(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.endpoints[start..self.ends[at]]
    }

    fn ports(&self) -> Vec<&[u8]> {
        self.ports.iter().map(Vec::as_slice).collect()
    }
}

/// Fields that the slices of a family have in common.
struct Frame<'a> {
    s: &'a Snapshot,
    family: &'a str,
    labels: Texts<'a>,
}

impl<'a> Frame<'a> {
    fn created(&self, content: &Content<'_>) -> Slice {
        let service = &self.s.service.metadata;
        let (prefix, trigger) = (pods::name_prefix(object::name(service)), self.trigger());
        let meta = NewMeta {
            name: &prefix,
            generate: true,
            namespace: object::namespace(service),
            labels: &self.labels,
            annotations: trigger.iter().map(|at| (TRIGGER, at.as_str())).collect(),
            owner: Some(["v1", "Service", object::name(service), object::uid(service)]),
        };
        Slice::new(&meta, content)
    }

    fn updated(&self, slice: &Slice, content: &Content<'_>) -> Slice {
        let (mut annotations, trigger) = (slice.meta().annotations(), self.trigger());
        match &trigger {
            Some(at) => annotations.insert(TRIGGER, at),
            None => annotations.remove(TRIGGER),
        };
        slice.with(&self.labels, &annotations, content)
    }

    fn trigger(&self) -> Option<String> {
        self.s.trigger.map(services::trigger_text)
    }

    fn content<'b>(&self, endpoints: Vec<&'b [u8]>, ports: Vec<&'b [u8]>) -> Content<'b>
    where
        'a: 'b,
    {
        Content { family: self.family, endpoints, ports }
    }
}

#[derive(Default)]
struct SliceChanges<'a> {
    create: Vec<Content<'a>>,
    update: Vec<(&'a Arc<Slice>, Content<'a>)>,
    delete: Vec<&'a Arc<Slice>>,
    /// Deleted, and never used for anything else.
    foreign: Vec<&'a Arc<Slice>>,
    kept: usize,
}

impl<'a> SliceChanges<'a> {
    /// Turn deletions and creations of the same shape into updates, keep a placeholder where nothing is left.
    fn finish(mut self, frame: &Frame<'a>) -> Vec<Write> {
        if self.create.is_empty() && self.update.is_empty() && self.kept == 0 {
            let placeholder = |d: &&Arc<Slice>| {
                d.endpoints().next().is_none() && d.ports().next().is_none() && d.meta().has_labels(&frame.labels)
            };
            match self.delete.iter().position(placeholder) {
                Some(i) => drop(self.delete.remove(i)),
                None => self.create.push(frame.content(Vec::new(), Vec::new())),
            }
        }
        while !self.create.is_empty() && !self.delete.is_empty() {
            let (fresh, old) = (self.create.remove(0), self.delete.remove(0));
            self.update.push((old, fresh));
        }
        let created = self.create.iter().map(|content| Write::Create(frame.created(content)));
        let updated = self.update.iter().map(|(slice, content)| Write::Update(frame.updated(slice, content)));
        let deleted = self.delete.iter().chain(&self.foreign).map(|slice| Write::Delete(Arc::clone(slice)));
        created.chain(updated).chain(deleted).collect()
    }
}

/// A slice that is written in any case, with the endpoints that stay in it.
struct Touched<'a> {
    slice: &'a Arc<Slice>,
    endpoints: Vec<&'a [u8]>,
}

fn reconcile_ports<'a>(frame: &Frame<'a>, group: &'a Wanted<'_>, there: &[&'a Arc<Slice>], out: &mut SliceChanges<'a>) {
    let max = frame.s.max_per_slice;
    let mut missing = Missing::of(group);
    let mut unchanged: Vec<&'a Arc<Slice>> = Vec::new();
    let mut touched: Vec<Touched<'a>> = Vec::new();
    for &slice in there {
        let endpoints: Vec<&[u8]> = slice.endpoints().filter_map(|e| missing.take(e)).collect();
        let same = slice.meta().has_labels(&frame.labels) && endpoints.iter().copied().eq(slice.endpoints());
        if same { unchanged.push(slice) } else { touched.push(Touched { slice, endpoints }) }
    }
    let mut rest = missing.left();
    // New endpoints go where a write is due anyway, fullest first.
    touched.sort_by_key(|x| std::cmp::Reverse(x.endpoints.len()));
    for Touched { endpoints, .. } in &mut touched {
        let room = max.saturating_sub(endpoints.len()).min(rest.len());
        endpoints.extend(rest.drain(..room));
    }
    // Then into one untouched slice that can take them all, else into new ones.
    while !rest.is_empty() {
        let fits = unchanged
            .iter()
            .map(|x| x.endpoints().count())
            .enumerate()
            .filter(|(_, count)| count + rest.len() <= max)
            .max_by_key(|(_, count)| *count)
            .map(|(i, _)| i);
        if let Some(i) = fits {
            let slice = unchanged.remove(i);
            let endpoints = slice.endpoints().chain(rest.drain(..)).collect();
            touched.push(Touched { slice, endpoints });
        } else {
            let chunk = rest.drain(..rest.len().min(max)).collect();
            out.create.push(frame.content(chunk, group.ports()));
        }
    }
    out.kept += unchanged.len();
    for Touched { slice, endpoints } in touched {
        if endpoints.is_empty() {
            out.delete.push(slice);
        } else {
            out.update.push((slice, frame.content(endpoints, slice.ports().collect())));
        }
    }
}

/// Endpoints that no slice was found for yet.
struct Missing<'a> {
    group: &'a Wanted<'a>,
    taken: Vec<bool>,
    /// Behind the one that was taken last: slices hold their endpoints mostly in the order of the pods.
    next: usize,
    /// Positions by identity, once one was not the next.
    by_id: Option<HashMap<Id<'a>, usize>>,
}

impl<'a> Missing<'a> {
    fn of(group: &'a Wanted<'a>) -> Self {
        Self { group, taken: iter::repeat_n(false, group.len()).collect(), next: 0, by_id: None }
    }

    /// The endpoint that one in a slice is to become.
    fn take(&mut self, is: &[u8]) -> Option<&'a [u8]> {
        let at = if self.is_next(is) { self.next } else { *self.by_id().get(&Id(is))? };
        if std::mem::replace(&mut self.taken[at], true) {
            return None;
        }
        self.next = at + 1;
        Some(self.group.endpoint(at))
    }

    fn is_next(&self, is: &[u8]) -> bool {
        let free = self.taken.get(self.next) == Some(&false);
        let next = || self.group.endpoint(self.next);
        free && (next() == is || Id(next()) == Id(is))
    }

    fn by_id(&mut self) -> &HashMap<Id<'a>, usize> {
        let group = self.group;
        self.by_id.get_or_insert_with(|| (0..group.len()).map(|at| (Id(group.endpoint(at)), at)).collect())
    }

    fn left(self) -> Vec<&'a [u8]> {
        (0..self.group.len()).filter(|at| !self.taken[*at]).map(|at| self.group.endpoint(at)).collect()
    }
}

/// Identity of an endpoint, as it is written: the pod, and its addresses.
#[derive(Clone, Copy)]
struct Id<'a>(&'a [u8]);

impl PartialEq for Id<'_> {
    fn eq(&self, other: &Self) -> bool {
        slice::addresses(self.0).eq(slice::addresses(other.0))
            && slice::target_uid(self.0) == slice::target_uid(other.0)
    }
}

impl Eq for Id<'_> {}

impl Hash for Id<'_> {
    /// Few pods have more addresses of a family than one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        slice::addresses(self.0).next().hash(state);
    }
}

fn labels<'a>(s: &'a Snapshot, spec: &ServiceSpec) -> Texts<'a> {
    let mut labels = services::labels(&s.service, spec);
    labels.insert(SERVICE_NAME, object::name(&s.service.metadata));
    labels.insert(MANAGED_BY, CONTROLLER);
    labels
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
