//! Demand of a pod on its place: everything that two pods of one template have in common.
//!
//! Pods with equal demands get equal answers from every plugin, so a [`Demand`] is shared between them (see
//! [`Interner`]) and its address serves as the pod's scheduling signature.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1 as core;
use shared::types::is_sidecar;

use super::extended::ContainerRequests;
use super::requests::pod_requests;
use super::resource::Resource;
use super::selector::{Labels, NodeTerm, Op, Requirement, Selector, Toleration};
use super::volume::VolumeUse;

/// The name of the scheduler that takes pods which name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A port on the host that a pod wants for itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Address, `0.0.0.0` for all.
    pub ip: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port number.
    pub port: i32,
}

impl HostPort {
    /// Reports whether both cannot be had on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        let any = |ip: &str| ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || any(&self.ip) || any(&other.ip))
    }
}

/// A required or preferred relation to other pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AffinityTerm {
    /// Namespaces by name, sorted.
    pub namespaces: Vec<String>,
    /// Namespaces by label; [`Selector::NOTHING`] when absent.
    pub namespace_selector: Selector,
    /// Selector of the pods.
    pub selector: Selector,
    /// The node label that makes a domain.
    pub topology_key: String,
}

impl AffinityTerm {
    fn from_api(term: &core::PodAffinityTerm, namespace: &str) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        namespaces.sort_unstable();
        namespaces.dedup();
        Self {
            namespaces,
            namespace_selector: Selector::from_api(term.namespace_selector.as_ref()),
            selector: Selector::from_api(term.label_selector.as_ref()),
            topology_key: term.topology_key.clone(),
        }
    }

    /// Reports whether the term speaks of a pod; `namespace_labels` are those of the pod's namespace.
    pub fn matches(&self, pod: &Demand, namespace_labels: Option<&Labels>) -> bool {
        let in_namespace = self.namespaces.binary_search_by(|n| n.as_str().cmp(&pod.namespace)).is_ok()
            || (self.namespace_selector.0.is_some()
                && self.namespace_selector.matches(namespace_labels.unwrap_or(&NO_LABELS)));
        in_namespace && self.selector.matches(&pod.labels)
    }
}

/// No labels at all.
pub static NO_LABELS: Labels = Labels::new();

/// A term with a weight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Weighted<T> {
    /// Weight, 1 to 100.
    pub weight: i64,
    /// Preferred term.
    pub term: T,
}

/// Topology spread constraint of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpreadConstraint {
    /// Largest skew that is allowed.
    pub max_skew: i32,
    /// The node label that makes a domain.
    pub topology_key: String,
    /// `DoNotSchedule` (or a mere wish).
    pub hard: bool,
    /// Selector of the pods that are counted.
    pub selector: Selector,
    /// The selector without what `matchLabelKeys` add, if they add something.
    pub without_keys: Option<Box<Selector>>,
    /// Number of domains that there should be at least.
    pub min_domains: i32,
    /// Count only nodes that the pod's node affinity allows.
    pub honor_affinity: bool,
    /// Count only nodes whose taints the pod tolerates.
    pub honor_taints: bool,
    /// Tolerations may compare numbers; whoever judges by the constraint sets it.
    pub compares: bool,
}

impl SpreadConstraint {
    /// Reads the API form for a pod with `labels`.
    pub fn from_api(c: &core::TopologySpreadConstraint, labels: &Labels) -> Self {
        let mut selector = Selector::from_api(c.label_selector.as_ref());
        let mut without_keys = None;
        for key in c.match_label_keys.iter().flatten() {
            if let Some(value) = labels.get(key) {
                without_keys.get_or_insert_with(|| Box::new(selector.clone()));
                selector.and(key, Op::In, value);
            }
        }
        Self {
            max_skew: c.max_skew,
            topology_key: c.topology_key.clone(),
            hard: c.when_unsatisfiable == "DoNotSchedule",
            selector,
            without_keys,
            min_domains: c.min_domains.unwrap_or(1),
            honor_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: c.node_taints_policy.as_deref() == Some("Honor"),
            compares: false,
        }
    }
}

/// Demand of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Demand {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Labels.
    pub labels: Labels,
    /// The profile that shall place it.
    pub scheduler_name: Arc<str>,
    /// Priority.
    pub priority: i32,
    /// The pod may preempt others.
    pub preempts: bool,
    /// Scheduling gates that are still closed.
    pub gates: Vec<String>,
    /// Total request, `pods` left 0.
    pub requests: Resource,
    /// Requests, with stand-ins where CPU or memory is not named.
    pub non_zero: Resource,
    /// `spec.nodeSelector`.
    pub node_selector: Vec<Requirement>,
    /// Required node affinity, if any.
    pub required_nodes: Option<Vec<NodeTerm>>,
    /// Preferred node affinity.
    pub preferred_nodes: Vec<Weighted<NodeTerm>>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Host ports.
    pub ports: Vec<HostPort>,
    /// Images, with a tag or digest.
    pub images: Vec<Arc<str>>,
    /// Number of containers, init containers included.
    pub containers: usize,
    /// Required affinity to pods.
    pub affinity: Vec<AffinityTerm>,
    /// Required anti-affinity to pods.
    pub anti_affinity: Vec<AffinityTerm>,
    /// Preferred affinity to pods.
    pub preferred_affinity: Vec<Weighted<AffinityTerm>>,
    /// Preferred anti-affinity to pods.
    pub preferred_anti_affinity: Vec<Weighted<AffinityTerm>>,
    /// Spread constraints.
    pub spread: Vec<SpreadConstraint>,
    /// Volumes that matter.
    pub volumes: Vec<VolumeUse>,
    /// The pod uses resource claims; which ones is [`super::PodInfo::resource_claims`].
    pub claims_resources: bool,
    /// Requests of its containers, where any asks for an extended resource.
    pub extended: Vec<ContainerRequests>,
    /// Kind and name of the controlling owner.
    pub controller: Option<(String, String)>,
    /// The pod group that it is one of, and that group's Workload.
    pub group: Option<PodGroupRef>,
    /// Features that its node has to declare, where nodes declare any.
    pub needed_features: Vec<&'static str>,
}

/// A replica of a pod group, by `spec.workloadRef`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PodGroupRef {
    /// Name of the Workload, in the pod's namespace.
    pub workload: String,
    /// Name of the group in it.
    pub pod_group: String,
    /// Key of the replica; empty where there is but one.
    pub replica: String,
}

impl Demand {
    /// Reads a pod.
    pub fn from_api(pod: &core::Pod) -> Self {
        let meta = &pod.metadata;
        let namespace: Arc<str> = meta.namespace.as_deref().unwrap_or_default().into();
        let labels = meta.labels.clone().unwrap_or_default();
        let controller = shared::types::controller_of(meta).map(|o| (o.kind.clone(), o.name.clone()));
        let Some(spec) = &pod.spec else { return Self { namespace, labels, controller, ..Self::default() } };
        let (requests, non_zero) = pod_requests(pod);
        let affinity = spec.affinity.as_ref();
        let nodes = affinity.and_then(|a| a.node_affinity.as_ref());
        let near = affinity.and_then(|a| a.pod_affinity.as_ref());
        let far = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let all_containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
        let terms = |list: Option<&Vec<core::PodAffinityTerm>>| -> Vec<AffinityTerm> {
            list.into_iter().flatten().map(|t| AffinityTerm::from_api(t, &namespace)).collect()
        };
        let weighted = |list: Option<&Vec<core::WeightedPodAffinityTerm>>| -> Vec<Weighted<AffinityTerm>> {
            list.into_iter()
                .flatten()
                .map(|w| Weighted {
                    weight: w.weight.into(),
                    term: AffinityTerm::from_api(&w.pod_affinity_term, &namespace),
                })
                .collect()
        };
        Self {
            scheduler_name: spec
                .scheduler_name
                .as_deref()
                .filter(|s| !s.is_empty())
                .unwrap_or(DEFAULT_SCHEDULER)
                .into(),
            priority: spec.priority.unwrap_or(0),
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
            gates: spec.scheduling_gates.iter().flatten().map(|g| g.name.clone()).collect(),
            requests,
            non_zero,
            node_selector: spec
                .node_selector
                .iter()
                .flatten()
                .map(|(k, v)| Requirement { key: k.clone(), op: Op::In, values: vec![v.clone()] })
                .collect(),
            required_nodes: nodes
                .and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref())
                .map(|s| s.node_selector_terms.iter().map(NodeTerm::from_api).collect()),
            preferred_nodes: nodes
                .and_then(|n| n.preferred_during_scheduling_ignored_during_execution.as_ref())
                .into_iter()
                .flatten()
                .map(|p| Weighted { weight: p.weight.into(), term: NodeTerm::from_api(&p.preference) })
                .collect(),
            tolerations: spec.tolerations.iter().flatten().map(Toleration::from_api).collect(),
            ports: host_ports(spec),
            images: all_containers().filter_map(|c| c.image.as_deref()).map(normalized_image).collect(),
            containers: all_containers().count(),
            affinity: terms(near.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            anti_affinity: terms(far.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            preferred_affinity: weighted(
                near.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
            ),
            preferred_anti_affinity: weighted(
                far.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
            ),
            spread: spec
                .topology_spread_constraints
                .iter()
                .flatten()
                .map(|c| SpreadConstraint::from_api(c, &labels))
                .collect(),
            volumes: VolumeUse::of(spec, meta.name.as_deref().unwrap_or_default()),
            group: spec.workload_ref.as_ref().map(|group| PodGroupRef {
                workload: group.name.clone(),
                pod_group: group.pod_group.clone(),
                replica: group.pod_group_replica_key.clone().unwrap_or_default(),
            }),
            claims_resources: spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty()),
            extended: super::extended::containers(spec),
            needed_features: shared::declared_features::needed_to_run(spec),
            namespace,
            labels,
            controller,
        }
    }

    /// Reports whether any affinity or anti-affinity to pods is stated.
    pub fn has_pod_affinity(&self) -> bool {
        !self.affinity.is_empty()
            || !self.anti_affinity.is_empty()
            || !self.preferred_affinity.is_empty()
            || !self.preferred_anti_affinity.is_empty()
    }

    /// Reports whether `spec.nodeSelector` and required node affinity allow a node.
    pub fn selects_node(&self, name: &str, labels: &Labels) -> bool {
        self.node_selector.iter().all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
            && self.required_nodes.as_ref().is_none_or(|terms| terms.iter().any(|t| t.matches(name, labels)))
    }

    /// Names of the claims in use.
    pub fn claims(&self) -> impl Iterator<Item = (&str, bool)> {
        self.volumes.iter().filter_map(|v| match v {
            VolumeUse::Claim { name, ephemeral } => Some((name.as_str(), *ephemeral)),
            VolumeUse::Disk { .. } | VolumeUse::Moved { .. } => None,
        })
    }

    /// Reports whether any volume may be one that a driver attaches.
    pub fn attaches(&self) -> bool {
        self.volumes.iter().any(|v| !matches!(v, VolumeUse::Disk { .. }))
    }
}

/// Host ports of containers and sidecars.
fn host_ports(spec: &core::PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    sidecars
        .chain(&spec.containers)
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| {
            let port = p.host_port.filter(|p| *p > 0)?;
            let filled = |v: &Option<String>, or: &str| v.as_deref().filter(|s| !s.is_empty()).unwrap_or(or).to_owned();
            Some(HostPort { ip: filled(&p.host_ip, "0.0.0.0"), protocol: filled(&p.protocol, "TCP"), port })
        })
        .collect()
}

/// An image name as nodes report it: with `:latest` when no tag is given.
pub fn normalized_image(name: &str) -> Arc<str> {
    if name.rfind(':').is_none_or(|colon| name.rfind('/').is_some_and(|slash| colon < slash)) {
        format!("{name}:latest").into()
    } else {
        name.into()
    }
}

/// Lets equal demands share one allocation.
#[derive(Debug, Default)]
pub struct Interner {
    state: RandomState,
    known: HashMap<u64, Weak<Demand>>,
    sweep_at: usize,
    names: HashSet<Arc<str>>,
    sweep_names_at: usize,
}

impl Interner {
    /// The shared form of a demand.
    pub fn intern(&mut self, demand: Demand) -> Arc<Demand> {
        self.share(Arc::new(demand))
    }

    /// The shared form of a name, of a node say.
    pub fn name(&mut self, name: &Arc<str>) -> Arc<str> {
        match self.names.get(name) {
            Some(known) => Arc::clone(known),
            None => self.add_name(Arc::clone(name)),
        }
    }

    /// Interns a text like [`Interner::name`].
    pub fn text(&mut self, name: &str) -> Arc<str> {
        match self.names.get(name) {
            Some(known) => Arc::clone(known),
            None => self.add_name(name.into()),
        }
    }

    fn add_name(&mut self, name: Arc<str>) -> Arc<str> {
        if self.names.len() >= self.sweep_names_at.max(64) {
            self.names.retain(|n| Arc::strong_count(n) > 1);
            self.sweep_names_at = self.names.len() * 2;
        }
        self.names.insert(Arc::clone(&name));
        name
    }

    /// The shared form of a demand: this one, if there was none yet.
    pub fn share(&mut self, demand: Arc<Demand>) -> Arc<Demand> {
        let hash = self.state.hash_one(&*demand);
        if let Some(known) = self.known.get(&hash).and_then(Weak::upgrade)
            && known == demand
        {
            return known;
        }
        if self.known.len() >= self.sweep_at.max(64) {
            self.known.retain(|_, w| w.strong_count() > 0);
            self.sweep_at = self.known.len() * 2;
        }
        self.known.insert(hash, Arc::downgrade(&demand));
        demand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images() {
        for (name, want) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("host:5000/nginx", "host:5000/nginx:latest"),
            ("host:5000/nginx:1", "host:5000/nginx:1"),
            ("nginx@sha256:abc", "nginx@sha256:abc"),
        ] {
            assert_eq!(&*normalized_image(name), want);
        }
    }

    #[test]
    fn ports() {
        let p = |ip: &str, protocol: &str, port| HostPort { ip: ip.into(), protocol: protocol.into(), port };
        for (a, b, want) in [
            (p("0.0.0.0", "TCP", 80), p("0.0.0.0", "TCP", 80), true),
            (p("0.0.0.0", "TCP", 80), p("10.0.0.1", "TCP", 80), true),
            (p("10.0.0.2", "TCP", 80), p("10.0.0.1", "TCP", 80), false),
            (p("0.0.0.0", "TCP", 80), p("0.0.0.0", "UDP", 80), false),
            (p("0.0.0.0", "TCP", 80), p("0.0.0.0", "TCP", 81), false),
        ] {
            assert_eq!(a.conflicts(&b), want, "{a:?} {b:?}");
        }
    }

    #[test]
    fn equal_demands_are_one() {
        let mut interner = Interner::default();
        let of = |priority| Demand { priority, ..Demand::default() };
        let a = interner.intern(of(1));
        assert!(Arc::ptr_eq(&a, &interner.intern(of(1))));
        assert!(!Arc::ptr_eq(&a, &interner.intern(of(2))));
    }
}
