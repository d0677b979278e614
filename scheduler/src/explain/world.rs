//! A cluster at one moment, from an API server or from files.

use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::target::Priorities;
use crate::framework::explain::Explanation;
use crate::framework::lister::Fixed;
use crate::framework::{Context, Nominated, Profile};
use crate::model::{Cache, NodeBase, PodInfo, Selector, Snapshot};

shared::dump! {
    /// Objects that scheduling depends on.
    Dump
    pods: Pod,
    nodes: Node,
    volumes: PersistentVolume,
    claims: PersistentVolumeClaim,
    classes: StorageClass,
    csi_nodes: CSINode,
    csi_drivers: CSIDriver,
    capacities: CSIStorageCapacity,
    attachments: VolumeAttachment,
    namespaces: Namespace,
    budgets: PodDisruptionBudget,
    services: Service,
    controllers: ReplicationController,
    replica_sets: ReplicaSet,
    stateful_sets: StatefulSet,
    device_classes: DeviceClass,
    resource_claims: ResourceClaim,
    slices: ResourceSlice,
    priority_classes: PriorityClass,
}

impl Dump {
    /// Priorities of the priority classes.
    pub fn priorities(&self) -> Priorities {
        priorities(&self.priority_classes)
    }
}

/// Priorities of the priority classes.
pub fn priorities(classes: &[PriorityClass]) -> Priorities {
    let mut out = Priorities::new();
    for class in classes {
        let says = (class.value, class.preemption_policy.clone());
        if class.global_default == Some(true) {
            out.insert(String::new(), says.clone());
        }
        out.insert(class.metadata.name.clone().unwrap_or_default(), says);
    }
    out
}

/// Cluster of a dump as plugins see it.
pub struct DumpedWorld {
    pods: Vec<Pod>,
    cache: Cache,
    listers: Fixed,
    nominated: Nominated,
}

fn named(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

fn full(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), named(meta))
}

impl DumpedWorld {
    /// From objects.
    pub fn of(dump: Dump) -> Self {
        let mut cache = Cache::default();
        for node in &dump.nodes {
            cache.set_node(NodeBase::from_api(node));
        }
        let mut nominated = Nominated::default();
        for pod in dump.pods.iter().filter(|p| !shared::types::is_pod_terminal(p)) {
            let info = Arc::new(PodInfo::from_api(pod));
            match (&info.node_name, info.nominated.clone()) {
                (Some(_), _) => cache.add_pod(info),
                (None, Some(node)) => nominated.set(info, node),
                (None, None) => {}
            }
        }
        Self { listers: listers(&dump), pods: dump.pods, cache, nominated }
    }

    /// A pod that exists.
    ///
    /// # Errors
    /// It does not.
    pub fn pod(&self, namespace: &str, name: &str) -> anyhow::Result<Pod> {
        let wanted = |p: &&Pod| full(&p.metadata) == (namespace.to_owned(), name.to_owned());
        self.pods.iter().find(wanted).cloned().with_context(|| format!("pods \"{name}\" not found in {namespace}"))
    }

    /// Explains.
    ///
    /// # Errors
    /// No profile is the pod's, or a plugin broke.
    pub fn explain(mut self, profiles: &[Profile], pod: &Pod) -> anyhow::Result<Explanation> {
        let mut info = PodInfo::from_api(pod);
        self.cache.remove_pod(&info.uid);
        self.nominated.remove(&info.uid);
        let mut snapshot = Snapshot::default();
        self.cache.refresh(&mut snapshot);
        let bound_to = info.node_name.take();
        let profile = profiles.iter().find(|p| p.name == info.scheduler_name);
        let profile = profile.with_context(|| format!("no profile is called {:?}", info.scheduler_name))?;
        let now = jiff::Timestamp::now();
        let cx = Context { snapshot: &snapshot, listers: &self.listers, nominated: &self.nominated, now };
        let mut explanation = profile.explain(cx, &info).map_err(|s| anyhow::anyhow!("{}: {s}", s.plugin))?;
        explanation.bound_to = bound_to.map(|n| n.to_string());
        Ok(explanation)
    }
}

/// Listers of what plugins look up.
pub fn listers(dump: &Dump) -> Fixed {
    let mut out = Fixed::default();
    macro_rules! by_name {
        ($($to:ident <- $from:ident by $key:ident),* $(,)?) => {
            $(out.$to = dump.$from.iter().map(|o| ($key(&o.metadata), Arc::new(o.clone()))).collect();)*
        };
    }
    by_name! {
        claims <- claims by full, volumes <- volumes by named, classes <- classes by named,
        csi_nodes <- csi_nodes by named, csi_drivers <- csi_drivers by named,
        device_classes <- device_classes by named,
    }
    out.capacities = dump.capacities.iter().cloned().map(Arc::new).collect();
    out.attachments = dump.attachments.iter().cloned().map(Arc::new).collect();
    out.slices = dump.slices.iter().cloned().map(Arc::new).collect();
    out.budgets = dump.budgets.iter().cloned().map(Arc::new).collect();
    out.services = dump.services.iter().cloned().map(Arc::new).collect();
    for claim in &dump.resource_claims {
        out.add_resource_claim(claim.clone());
    }
    for namespace in &dump.namespaces {
        out.namespaces.insert(named(&namespace.metadata), namespace.metadata.labels.clone().unwrap_or_default());
    }
    let mut owner = |kind: &str, meta: &ObjectMeta, selector: Option<Selector>| {
        let (namespace, name) = full(meta);
        if let Some(selector) = selector {
            out.owners.insert((kind.to_owned(), namespace, name), selector);
        }
    };
    for rc in &dump.controllers {
        let selector = rc.spec.as_ref().and_then(|s| s.selector.as_ref()).map(Selector::from_map);
        owner("ReplicationController", &rc.metadata, selector);
    }
    for rs in &dump.replica_sets {
        owner("ReplicaSet", &rs.metadata, rs.spec.as_ref().map(|s| Selector::from_api(Some(&s.selector))));
    }
    for set in &dump.stateful_sets {
        owner("StatefulSet", &set.metadata, set.spec.as_ref().map(|s| Selector::from_api(Some(&s.selector))));
    }
    out
}
