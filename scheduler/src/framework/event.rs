//! Cluster events, as far as they can make an unschedulable pod schedulable. Answers for upstream's `ClusterEvent`,
//! `PodSchedulingPropertiesChange`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::resource::v1alpha3 as alpha;
use k8s_openapi::api::scheduling::v1alpha1 as scheduling;
use k8s_openapi::api::storage::v1 as storage;

use crate::model::{NodeBase, PodInfo};

/// Something happened.
#[derive(Debug, Clone)]
pub enum ClusterEvent {
    /// A node came or changed; `old` is `None` for a new one.
    Node {
        /// Before.
        old: Option<Arc<NodeBase>>,
        /// After.
        new: Arc<NodeBase>,
    },
    /// A node went.
    NodeGone,
    /// A pod that has a node came, changed or went.
    AssignedPod {
        /// Before.
        old: Option<Arc<PodInfo>>,
        /// After.
        new: Option<Arc<PodInfo>>,
    },
    /// A waiting pod itself changed.
    Target {
        /// Before.
        old: Arc<PodInfo>,
        /// After.
        new: Arc<PodInfo>,
    },
    /// A pod without a node came.
    WaitingPod(Arc<PodInfo>),
    /// Another object that plugins look up came, changed or went.
    Object(ExternalChange),
    /// Try everything again.
    Everything(&'static str),
}

/// An object before and after; one of the two is always there.
#[derive(Debug)]
pub struct Delta<K> {
    /// Before; `None` for a new one.
    pub old: Option<Arc<K>>,
    /// After; `None` for one that went.
    pub new: Option<Arc<K>>,
}

impl<K> Clone for Delta<K> {
    fn clone(&self) -> Self {
        Self { old: self.old.clone(), new: self.new.clone() }
    }
}

impl<K> Delta<K> {
    /// Action of the event.
    pub fn action(&self) -> Action {
        match (&self.old, &self.new) {
            (None, _) => Action::Add,
            (_, None) => Action::Delete,
            _ => Action::Update,
        }
    }

    /// The object as it is now, unless it went.
    pub fn now(&self) -> Option<&K> {
        self.new.as_deref()
    }

    /// The object as it was before a change; `None` when it is new or went.
    pub fn before(&self) -> Option<&K> {
        self.new.as_ref().and(self.old.as_deref())
    }
}

macro_rules! kinds {
    ($($kind:ident($type:ty) = $label:literal),* $(,)?) => {
        /// Changes of kinds that are looked up outside of the snapshot.
        #[derive(Debug, Clone)]
        #[allow(missing_docs, reason = "one variant for each kind of the list above")]
        pub enum ExternalChange {
            $($kind(Delta<$type>),)*
        }

        impl ExternalChange {
            /// Action of the event.
            pub fn action(&self) -> Action {
                match self {
                    $(Self::$kind(delta) => delta.action(),)*
                }
            }

            /// Upstream's name of the event, for metrics.
            pub fn label(&self) -> &'static str {
                match self {
                    $(Self::$kind(delta) => match delta.action() {
                        Action::Add => concat!($label, "Add"),
                        Action::Update => concat!($label, "Update"),
                        Action::Delete => concat!($label, "Delete"),
                    },)*
                }
            }
        }

        $(impl From<Delta<$type>> for ExternalChange {
            fn from(delta: Delta<$type>) -> Self {
                Self::$kind(delta)
            }
        })*
    };
}

kinds! {
    PersistentVolume(core::PersistentVolume) = "PersistentVolume",
    PersistentVolumeClaim(core::PersistentVolumeClaim) = "PersistentVolumeClaim",
    Namespace(core::Namespace) = "Namespace",
    StorageClass(storage::StorageClass) = "storage.k8s.io/StorageClass",
    CsiNode(storage::CSINode) = "storage.k8s.io/CSINode",
    CsiDriver(storage::CSIDriver) = "storage.k8s.io/CSIDriver",
    StorageCapacity(storage::CSIStorageCapacity) = "storage.k8s.io/CSIStorageCapacity",
    VolumeAttachment(storage::VolumeAttachment) = "storage.k8s.io/VolumeAttachment",
    ResourceClaim(resource::ResourceClaim) = "resource.k8s.io/ResourceClaim",
    ResourceSlice(resource::ResourceSlice) = "resource.k8s.io/ResourceSlice",
    DeviceClass(resource::DeviceClass) = "resource.k8s.io/DeviceClass",
    DeviceTaintRule(alpha::DeviceTaintRule) = "resource.k8s.io/DeviceTaintRule",
    Workload(scheduling::Workload) = "scheduling.k8s.io/Workload",
}

/// Actions on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The object was created.
    Add,
    /// The object was changed.
    Update,
    /// The object was deleted.
    Delete,
}

impl ClusterEvent {
    /// Upstream's name of the event, for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Node { old: None, .. } => "NodeAdd",
            Self::Node { old: Some(old), new } => {
                if old.allocatable != new.allocatable {
                    "NodeUpdateNodeAllocatable"
                } else if old.labels != new.labels {
                    "NodeUpdateNodeLabel"
                } else if old.taints != new.taints || old.unschedulable != new.unschedulable {
                    "NodeUpdateNodeTaint"
                } else {
                    "NodeUpdateNodeCondition"
                }
            }
            Self::NodeGone => "NodeDelete",
            Self::AssignedPod { old: None, .. } => "AssignedPodAdd",
            Self::AssignedPod { new: None, .. } => "AssignedPodDelete",
            Self::AssignedPod { old: Some(old), new: Some(new) } => pod_update(old, new, &ASSIGNED),
            Self::Target { old, new } => pod_update(old, new, &WAITING),
            Self::WaitingPod(_) => "UnschedulablePodAdd",
            Self::Object(change) => change.label(),
            Self::Everything(label) => label,
        }
    }

    /// The node as it now is, when one came, or changed in a way that `changed` cares about.
    pub fn node_if(&self, changed: impl Fn(&NodeBase, &NodeBase) -> bool) -> Option<&NodeBase> {
        match self {
            Self::Node { old: None, new } => Some(new),
            Self::Node { old: Some(old), new } if changed(old, new) => Some(new),
            _ => None,
        }
    }
}

/// Upstream's names of the ways in which a pod changes.
struct PodLabels {
    labels: &'static str,
    scale_down: &'static str,
    tolerations: &'static str,
    gates: &'static str,
    claims: &'static str,
    other: &'static str,
}

macro_rules! pod_labels {
    ($resource:literal) => {
        PodLabels {
            labels: concat!($resource, "UpdatePodLabel"),
            scale_down: concat!($resource, "UpdatePodScaleDown"),
            tolerations: concat!($resource, "UpdatePodToleration"),
            gates: concat!($resource, "UpdatePodSchedulingGatesEliminated"),
            claims: concat!($resource, "UpdatePodGeneratedResourceClaim"),
            other: concat!($resource, "Update"),
        }
    };
}

static ASSIGNED: PodLabels = pod_labels!("AssignedPod");
static WAITING: PodLabels = pod_labels!("UnschedulablePod");

fn pod_update(old: &PodInfo, new: &PodInfo, names: &PodLabels) -> &'static str {
    if old.labels != new.labels {
        names.labels
    } else if new.requests.is_less_somewhere(&old.requests) {
        names.scale_down
    } else if !old.gates.is_empty() && new.gates.is_empty() {
        names.gates
    } else if old.tolerations != new.tolerations {
        names.tolerations
    } else if old.resource_claims != new.resource_claims {
        names.claims
    } else {
        names.other
    }
}

/// Answers of a queueing hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// The event may help.
    Queue,
    /// The event does not help.
    Skip,
}

impl From<bool> for Hint {
    fn from(helps: bool) -> Self {
        if helps { Self::Queue } else { Self::Skip }
    }
}
