//! Objects that plugins look up beside nodes and pods.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};

use crate::model::selector::Labels;
use crate::model::{PodInfo, Selector};

/// Read access; answers come from informer stores, in memory.
pub trait Listers: Send + Sync {
    /// A claim.
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>>;
    /// A volume.
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// All volumes of a storage class.
    fn volumes_of_class(&self, class: &str) -> Vec<Arc<PersistentVolume>>;
    /// A storage class.
    fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>>;
    /// A node's CSI drivers.
    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>>;
    /// Labels of a namespace.
    fn namespace_labels(&self, name: &str) -> Option<Labels>;
    /// Names of namespaces whose labels match.
    fn namespaces(&self, selector: &Selector) -> Vec<String>;
    /// Disruption budgets of a namespace.
    fn budgets(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>>;
    /// Selectors of the Services and the controller that a pod belongs to, all in one.
    fn spread_selector(&self, pod: &PodInfo) -> Selector;
}

/// Objects in maps, for tests, benches and simulations.
#[derive(Debug, Default)]
pub struct Fixed {
    /// Claims by namespace and name.
    pub claims: HashMap<(String, String), Arc<PersistentVolumeClaim>>,
    /// Volumes by name.
    pub volumes: HashMap<String, Arc<PersistentVolume>>,
    /// Classes by name.
    pub classes: HashMap<String, Arc<StorageClass>>,
    /// CSI nodes by name.
    pub csi_nodes: HashMap<String, Arc<CSINode>>,
    /// Labels of namespaces.
    pub namespaces: HashMap<String, Labels>,
    /// Disruption budgets.
    pub budgets: Vec<Arc<PodDisruptionBudget>>,
    /// The spread selector of every pod.
    pub spread: Option<Selector>,
}

impl Listers for Fixed {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(name).cloned()
    }

    fn volumes_of_class(&self, class: &str) -> Vec<Arc<PersistentVolume>> {
        let of = |v: &PersistentVolume| v.spec.as_ref().and_then(|s| s.storage_class_name.clone()).unwrap_or_default();
        self.volumes.values().filter(|v| of(v) == class).cloned().collect()
    }

    fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(name).cloned()
    }

    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get(name).cloned()
    }

    fn namespace_labels(&self, name: &str) -> Option<Labels> {
        self.namespaces.get(name).cloned()
    }

    fn namespaces(&self, selector: &Selector) -> Vec<String> {
        self.namespaces.iter().filter(|(_, l)| selector.matches(l)).map(|(n, _)| n.clone()).collect()
    }

    fn budgets(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.budgets.iter().filter(|b| b.metadata.namespace.as_deref() == Some(namespace)).cloned().collect()
    }

    fn spread_selector(&self, _pod: &PodInfo) -> Selector {
        self.spread.clone().unwrap_or(Selector::NOTHING)
    }
}
