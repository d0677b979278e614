//! Ports of the other rooms, which every worker needs.

use crate::cpus::Cpus;
use crate::cri::Runtime;
use crate::devices::Devices;
use crate::events::EventSink;
use crate::facts::PodFacts;
use crate::hooks::Hooks;
use crate::images::Images;
use crate::memory::MemoryManager;
use crate::objects::ObjectSource;
use crate::probes::Probes;
use crate::resource_claims::ResourceClaims;
use crate::resources::{Cgroups, MachineInfo};
use crate::settings::Settings;
use crate::topology::TopologyManager;
use crate::userns::{self, UserNamespaces};
use crate::volumes::Volumes;
use crate::workers::records::ResourceRecords;
use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Service};
use shared::traces::{self, SpanKind, Tracer};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Takes the statuses that workers compute.
pub trait StatusSink: Send + Sync {
    /// The pod's status changed.
    fn set(&self, pod: &Arc<Pod>, status: &PodStatus);
    /// Everything of the pod was given back; a pod that is being deleted may go from the API server.
    fn reclaimed(&self, pod: &Arc<Pod>, status: &PodStatus);
    /// The mirror pod of a static pod, once the API server has told of it.
    fn mirror(&self, pod: &Pod) -> Option<Arc<Pod>>;
    /// The kubelet forgets the pod.
    fn forget(&self, uid: &str);
}

/// All services of the cluster, for environment variables.
pub trait ServiceLister: Send + Sync {
    /// The current services; empty without an API server.
    fn services(&self) -> Vec<Arc<Service>>;
    /// False as long as the list is not complete.
    fn synced(&self) -> bool;
}

/// Nothing to list: a kubelet without an API server.
#[derive(Debug, Default)]
pub struct NoServices;

impl ServiceLister for NoServices {
    fn services(&self) -> Vec<Arc<Service>> {
        Vec::new()
    }
    fn synced(&self) -> bool {
        true
    }
}

/// Facts about the node that may change.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// Internal addresses, allocatable.
    pub facts: PodFacts,
    /// Reason why the runtime's network is not ready, if there is one.
    pub network_error: Option<String>,
    /// The runtime's name, which container ids begin with.
    pub runtime_name: String,
    /// The runtime handlers that can mount read-only recursively.
    pub recursive_read_only: BTreeSet<String>,
    /// The runtime handlers, with whether they have user namespaces.
    pub user_namespaces: userns::Handlers,
    /// Resources that run short.
    pub pressure: crate::pressure::Pressure,
    /// The machine is about to go down.
    pub going_down: bool,
    /// The node as the API server has it, once it is known.
    pub object: Option<Arc<k8s_openapi::api::core::v1::Node>>,
}

/// Doors of the other rooms.
pub struct WorkerContext {
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Settings.
    pub settings: Settings,
    /// The machine.
    pub machine: MachineInfo,
    /// Images: policy, pulls and their back-off.
    pub images: Images,
    /// Volumes.
    pub volumes: Arc<dyn Volumes>,
    /// Processors.
    pub cpus: Arc<Cpus>,
    /// Memory of NUMA nodes.
    pub memory: Arc<MemoryManager>,
    /// Placement of what containers have to themselves.
    pub topology: TopologyManager,
    /// Claims of dynamic resources.
    pub claims: Arc<ResourceClaims>,
    /// Devices of plugins.
    pub devices: Arc<Devices>,
    /// User namespaces; none with `UserNamespacesSupport` off.
    pub userns: Option<UserNamespaces>,
    /// Probes.
    pub probes: Arc<dyn Probes>,
    /// Hooks.
    pub hooks: Arc<dyn Hooks>,
    /// Resources that pods have, over restarts.
    pub records: ResourceRecords,
    /// Cgroups.
    pub cgroups: Arc<dyn Cgroups>,
    /// Objects that pods refer to.
    pub objects: Arc<dyn ObjectSource>,
    /// Services.
    pub services: Arc<dyn ServiceLister>,
    /// Events.
    pub events: Arc<dyn EventSink>,
    /// Statuses.
    pub statuses: Arc<dyn StatusSink>,
    /// The node.
    pub node: ArcSwap<NodeState>,
    /// Begins traces.
    pub tracer: Tracer,
}

/// Instrumentation scope of the kubelet's own spans.
const SCOPE: &str = "k8s.io/kubernetes/pkg/kubelet";

impl WorkerContext {
    /// Work on a pod, as a trace of its own under upstream's name for it.
    pub async fn traced<T>(&self, name: &str, pod: &Pod, update: Option<&str>, work: impl Future<Output = T>) -> T {
        let mut span = self.tracer.root(SCOPE, name, SpanKind::Internal);
        if let Some(span) = span.as_mut().filter(|span| span.is_written()) {
            let (namespace, name) = (crate::pods::namespace(pod), crate::pods::name(pod));
            span.text("k8s.pod.uid", crate::pods::uid(pod));
            span.text("k8s.pod", &format!("{namespace}/{name}"));
            span.text("k8s.pod.name", name);
            update.into_iter().for_each(|update| span.text("k8s.pod.update_type", update));
            span.text("k8s.namespace.name", namespace);
        }
        traces::within(span.as_ref(), Box::pin(work)).await
    }

    /// Facts about the node, with a pod's addresses.
    pub fn facts(&self, pod: &Pod, sandbox_ips: &[String]) -> PodFacts {
        let mut facts = self.node.load().facts.clone();
        facts.pod_ips = if crate::pods::host_network(pod) { facts.host_ips.clone() } else { sandbox_ips.to_vec() };
        facts
    }
}
