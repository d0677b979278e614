//! What happens in the cluster, as far as it can make an unschedulable pod schedulable.

use std::sync::Arc;

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
    /// Another object that plugins look up came or changed.
    Object(ObjectKind, Action),
    /// Try everything again.
    Everything(&'static str),
}

/// Kinds looked up outside the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// PersistentVolume.
    PersistentVolume,
    /// PersistentVolumeClaim.
    PersistentVolumeClaim,
    /// StorageClass.
    StorageClass,
    /// CSINode.
    CsiNode,
    /// CSIDriver.
    CsiDriver,
    /// Namespace.
    Namespace,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It came.
    Add,
    /// It changed.
    Update,
    /// It went.
    Delete,
}

impl ClusterEvent {
    /// Upstream's name of the event, for metrics.
    pub fn label(&self) -> &'static str {
        use Action::{Add, Delete, Update};
        match self {
            Self::Node { old: None, .. } => "NodeAdd",
            Self::Node { old: Some(old), new } => {
                if old.allocatable != new.allocatable {
                    "NodeAllocatableChange"
                } else if old.labels != new.labels {
                    "NodeLabelChange"
                } else if old.taints != new.taints || old.unschedulable != new.unschedulable {
                    "NodeTaintChange"
                } else {
                    "NodeConditionChange"
                }
            }
            Self::NodeGone => "NodeDelete",
            Self::AssignedPod { old: None, .. } => "AssignedPodAdd",
            Self::AssignedPod { new: None, .. } => "AssignedPodDelete",
            Self::AssignedPod { .. } => "AssignedPodUpdate",
            Self::Target { .. } => "PodUpdate",
            Self::Object(kind, action) => match (kind, action) {
                (ObjectKind::PersistentVolume, Add) => "PvAdd",
                (ObjectKind::PersistentVolume, Update) => "PvUpdate",
                (ObjectKind::PersistentVolume, Delete) => "PvDelete",
                (ObjectKind::PersistentVolumeClaim, Add) => "PvcAdd",
                (ObjectKind::PersistentVolumeClaim, Update) => "PvcUpdate",
                (ObjectKind::PersistentVolumeClaim, Delete) => "PvcDelete",
                (ObjectKind::StorageClass, Add) => "StorageClassAdd",
                (ObjectKind::StorageClass, Update) => "StorageClassUpdate",
                (ObjectKind::StorageClass, Delete) => "StorageClassDelete",
                (ObjectKind::CsiNode, Add) => "CSINodeAdd",
                (ObjectKind::CsiNode, Update) => "CSINodeUpdate",
                (ObjectKind::CsiNode, Delete) => "CSINodeDelete",
                (ObjectKind::CsiDriver, Add) => "CSIDriverAdd",
                (ObjectKind::CsiDriver, Update) => "CSIDriverUpdate",
                (ObjectKind::CsiDriver, Delete) => "CSIDriverDelete",
                (ObjectKind::Namespace, Add) => "NamespaceAdd",
                (ObjectKind::Namespace, Update) => "NamespaceUpdate",
                (ObjectKind::Namespace, Delete) => "NamespaceDelete",
            },
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

/// Whether an event is worth another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// It may help.
    Queue,
    /// It does not.
    Skip,
}

impl From<bool> for Hint {
    fn from(helps: bool) -> Self {
        if helps { Self::Queue } else { Self::Skip }
    }
}
