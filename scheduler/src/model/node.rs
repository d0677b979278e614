//! One node: what it has, what runs on it, what is left. Answers for upstream's `NodeInfo`.
//!
//! The part that comes from the Node object ([`NodeBase`]) is shared between versions, so that placing a pod copies only
//! the running totals and a list of pointers.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::demand::{HostPort, Interner};
use super::pod::PodInfo;
use super::resource::Resource;
use super::selector::{Effect, Labels, Taint};

/// Facts of the Node object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeBase {
    /// Name.
    pub name: Arc<str>,
    /// Labels.
    pub labels: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Allocatable resources.
    pub allocatable: Resource,
    /// Images that are there, and their size in bytes.
    pub images: HashMap<Arc<str>, i64>,
    /// Region and zone in one text; empty when there are none.
    pub zone: Arc<str>,
    /// `status.declaredFeatures`.
    pub declared_features: Vec<String>,
}

impl NodeBase {
    /// Reads a node.
    pub fn from_api(node: &Node) -> Self {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let mut images = HashMap::new();
        for image in status.and_then(|s| s.images.as_ref()).into_iter().flatten() {
            for name in image.names.iter().flatten() {
                images.insert(Arc::from(name.as_str()), image.size_bytes.unwrap_or(0));
            }
        }
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            taints: spec.and_then(|s| s.taints.as_ref()).into_iter().flatten().map(Taint::from_api).collect(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            allocatable: status.and_then(|s| s.allocatable.as_ref()).map(Resource::from_list).unwrap_or_default(),
            images,
            declared_features: status.and_then(|s| s.declared_features.clone()).unwrap_or_default(),
            zone: zone_of(&labels),
            labels,
        }
    }

    /// Shares with other nodes what they have in common: the names of images, of which every node has dozens.
    pub fn intern(&mut self, interner: &mut Interner) {
        self.images = self.images.drain().map(|(name, size)| (interner.name(&name), size)).collect();
        self.zone = interner.name(&self.zone);
    }

    /// Taints that keep pods away.
    pub fn hard_taints(&self) -> impl Iterator<Item = &Taint> {
        self.taints.iter().filter(|t| matches!(t.effect, Effect::NoSchedule | Effect::NoExecute))
    }
}

fn zone_of(labels: &Labels) -> Arc<str> {
    let get = |new: &str, old: &str| labels.get(new).or_else(|| labels.get(old)).map_or("", String::as_str);
    let region = get("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region");
    let zone = get("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone");
    if region.is_empty() && zone.is_empty() { "".into() } else { format!("{region}\0{zone}").into() }
}

/// A node with its pods.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    /// Facts of the Node object.
    pub base: Arc<NodeBase>,
    /// Grows with every change in the whole cluster.
    pub generation: u64,
    /// Pods on it.
    pub pods: Vec<Arc<PodInfo>>,
    /// Pods with any affinity to pods.
    pub with_affinity: Vec<Arc<PodInfo>>,
    /// Pods with required anti-affinity.
    pub with_anti_affinity: Vec<Arc<PodInfo>>,
    /// Pods with volume claims.
    pub with_claims: Vec<Arc<PodInfo>>,
    /// Sum of requests.
    pub requested: Resource,
    /// Sum of CPU requests with stand-ins, in millicores.
    pub non_zero_cpu: i64,
    /// Sum of memory requests with stand-ins, in bytes.
    pub non_zero_memory: i64,
    /// Host ports in use.
    pub ports: Vec<HostPort>,
}

impl NodeInfo {
    /// An empty node.
    pub fn new(base: NodeBase) -> Self {
        Self { base: Arc::new(base), ..Self::default() }
    }

    /// Name.
    pub fn name(&self) -> &Arc<str> {
        &self.base.name
    }

    /// Puts a pod on the node.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.count(&pod);
        self.ports.extend(pod.ports.iter().cloned());
        if pod.has_pod_affinity() {
            self.with_affinity.push(Arc::clone(&pod));
        }
        if !pod.anti_affinity.is_empty() {
            self.with_anti_affinity.push(Arc::clone(&pod));
        }
        if pod.claims().next().is_some() {
            self.with_claims.push(Arc::clone(&pod));
        }
        self.pods.push(pod);
    }

    fn count(&mut self, pod: &PodInfo) {
        self.requested.add(&pod.requests);
        self.non_zero_cpu = self.non_zero_cpu.saturating_add(pod.non_zero.milli_cpu);
        self.non_zero_memory = self.non_zero_memory.saturating_add(pod.non_zero.memory);
    }

    /// Sums up the pods anew.
    fn recount(&mut self) {
        self.requested = Resource::default();
        (self.non_zero_cpu, self.non_zero_memory) = (0, 0);
        let pods = std::mem::take(&mut self.pods);
        pods.iter().for_each(|pod| self.count(pod));
        self.pods = pods;
    }

    /// Takes over a newer form of a pod that takes up as much as before; `false` when it was not there.
    pub fn replace(&mut self, pod: &Arc<PodInfo>) -> bool {
        let mut found = false;
        for list in [&mut self.pods, &mut self.with_affinity, &mut self.with_anti_affinity, &mut self.with_claims] {
            if let Some(at) = list.iter_mut().find(|p| p.uid == pod.uid) {
                *at = Arc::clone(pod);
                found = true;
            }
        }
        found
    }

    /// Takes a pod off the node; `false` when it was not there.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some(at) = self.pods.iter().position(|p| *p.uid == *uid) else { return false };
        let pod = self.pods.swap_remove(at);
        self.with_affinity.retain(|p| *p.uid != *uid);
        self.with_anti_affinity.retain(|p| *p.uid != *uid);
        self.with_claims.retain(|p| *p.uid != *uid);
        // What a pod asks for may be more than a sum can hold: taking it away again would leave a full node empty.
        if self.requested.is_saturated() || self.non_zero_cpu == i64::MAX || self.non_zero_memory == i64::MAX {
            self.recount();
        } else {
            self.requested.sub(&pod.requests);
            self.non_zero_cpu = self.non_zero_cpu.saturating_sub(pod.non_zero.milli_cpu);
            self.non_zero_memory = self.non_zero_memory.saturating_sub(pod.non_zero.memory);
        }
        for port in &pod.ports {
            if let Some(at) = self.ports.iter().position(|p| p == port) {
                self.ports.swap_remove(at);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, pod};

    #[test]
    fn sums_of_before_are_back_once_a_pod_that_asks_for_everything_is_gone() {
        let mut info = NodeInfo::new(node("n").base());
        info.add(Arc::new(pod("web").cpu("2").memory("1Gi").info()));
        let before = (info.requested.clone(), info.non_zero_cpu, info.non_zero_memory);
        let greedy = Arc::new(pod("greedy").cpu("9223372036854775807").memory("9223372036854775807").info());
        info.add(Arc::clone(&greedy));
        assert!(info.requested.is_saturated());
        assert!(info.remove(&greedy.uid));
        assert_eq!((info.requested.clone(), info.non_zero_cpu, info.non_zero_memory), before);
    }
}
