//! One pod: who it is, where it is, and what it demands. Answers for upstream's `PodInfo`.

use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};

use super::claim::PodClaim;
use super::demand::{Demand, Interner};

/// A pod. What it demands is reached by dereferencing.
#[derive(Debug, Clone)]
pub struct PodInfo {
    /// Name.
    pub name: Arc<str>,
    /// Uid.
    pub uid: Arc<str>,
    /// Version of the object this was read from.
    pub resource_version: Box<str>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The node it is bound to, or assumed to be.
    pub node_name: Option<Arc<str>>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<Arc<str>>,
    /// Creation time.
    pub created: Timestamp,
    /// Time at which the kubelet took the pod, if it has.
    pub started: Option<Timestamp>,
    /// The pod is being deleted.
    pub terminating: bool,
    /// The pod is being deleted because a scheduler chose it as a victim.
    pub preempted: bool,
    /// Succeeded or failed.
    pub finished: bool,
    /// Reason and message of a false `PodScheduled` condition.
    pub unscheduled: Option<Box<(String, String)>>,
    /// Resource claims. Their names differ between pods of one template, so they are no part of the demand.
    pub resource_claims: Option<Arc<[PodClaim]>>,
    /// Demand of the pod.
    pub demand: Arc<Demand>,
}

impl Deref for PodInfo {
    type Target = Demand;

    fn deref(&self) -> &Demand {
        &self.demand
    }
}

impl PodInfo {
    /// Reads a pod.
    pub fn from_api(pod: &Pod) -> Self {
        Self::with_demand(pod, Arc::new(Demand::from_api(pod)))
    }

    /// Reads a pod, sharing its demand with equal ones.
    pub fn interned(pod: &Pod, interner: &mut Interner) -> Self {
        let mut out = Self::from_api(pod);
        out.intern(interner);
        out
    }

    /// Shares with other pods what they have in common.
    pub fn intern(&mut self, interner: &mut Interner) {
        self.demand = interner.share(Arc::clone(&self.demand));
        for node in [&mut self.node_name, &mut self.nominated].into_iter().flatten() {
            *node = interner.name(node);
        }
    }

    fn with_demand(pod: &Pod, demand: Arc<Demand>) -> Self {
        let meta = &pod.metadata;
        let status = pod.status.as_ref();
        let filled = |v: Option<&String>| v.filter(|s| !s.is_empty()).map(|s| Arc::from(s.as_str()));
        let condition = |kind| shared::types::pod_condition(pod, kind);
        Self {
            name: meta.name.as_deref().unwrap_or_default().into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            generation: meta.generation,
            node_name: filled(pod.spec.as_ref().and_then(|s| s.node_name.as_ref())),
            nominated: filled(status.and_then(|s| s.nominated_node_name.as_ref())),
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            started: status.and_then(|s| s.start_time.as_ref()).map(|t| t.0),
            terminating: meta.deletion_timestamp.is_some(),
            preempted: condition("DisruptionTarget")
                .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler")),
            finished: shared::types::is_pod_terminal(pod),
            unscheduled: condition("PodScheduled")
                .filter(|c| c.status == "False")
                .map(|c| Box::new((c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default()))),
            resource_claims: super::claim::of(pod),
            demand,
        }
    }

    /// Reports whether other pods' chances are the same beside this form of a pod as beside that: on the same node,
    /// with the same demand, started at the same time, and neither or both being deleted.
    pub fn weighs_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.demand, &other.demand)
            && self.node_name == other.node_name
            && self.started == other.started
            && self.terminating == other.terminating
            && self.preempted == other.preempted
            && self.resource_claims == other.resource_claims
    }

    /// Returns the pod as placed on a node.
    #[must_use]
    pub fn placed(&self, node: &Arc<str>) -> Self {
        Self { node_name: Some(Arc::clone(node)), ..self.clone() }
    }

    /// For events and bindings.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(self.namespace.as_ref().into()),
            name: Some(self.name.as_ref().into()),
            uid: Some(self.uid.as_ref().into()),
            resource_version: Some(self.resource_version.as_ref().into()),
            field_path: None,
        }
    }

    /// Start time as preemption compares pods: now when the pod has not started.
    pub fn start_or(&self, now: Timestamp) -> Timestamp {
        self.started.unwrap_or(now)
    }
}

impl std::fmt::Display for PodInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
