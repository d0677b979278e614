//! Objects that plugins look up beside nodes and pods.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1alpha1::Workload;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use parking_lot::Mutex;
use shared::types::volume_class;

use super::gangs::Gangs;
use super::ledger::Ledger;
use crate::model::devices::Sources;
use crate::model::extended::{OF_CLASS, pod_of};
use crate::model::selector::Labels;
use crate::model::{Demand, Inventory, PodInfo, Selector};

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
    /// A CSI driver.
    fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>>;
    /// Capacities that drivers still have for a storage class, place by place.
    fn storage_capacities(&self, class: &str) -> Vec<Arc<CSIStorageCapacity>>;
    /// Volumes attached to a node, or on their way.
    fn attachments(&self, node: &str) -> Vec<Arc<VolumeAttachment>>;
    /// A device class.
    fn device_class(&self, name: &str) -> Option<Arc<DeviceClass>>;
    /// The device class that stands for an extended resource; of several the newest, and of those the first by name.
    fn class_of_resource(&self, resource: &str) -> Option<Arc<DeviceClass>>;
    /// The claim that was made for the extended resources of a pod.
    fn extended_claim(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>>;
    /// A resource claim, in the newest form this scheduler knows.
    fn resource_claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>>;
    /// The devices there are.
    fn inventory(&self) -> Arc<Inventory>;
    /// Promises of this scheduler that are not yet confirmed.
    fn ledger(&self) -> &Arc<Ledger>;
    /// A Workload.
    fn workload(&self, namespace: &str, name: &str) -> Option<Arc<Workload>>;
    /// Pods of pod groups.
    fn gangs(&self) -> &Arc<Gangs>;
    /// Labels of a namespace.
    fn namespace_labels(&self, name: &str) -> Option<Labels>;
    /// Names of namespaces whose labels match.
    fn namespaces(&self, selector: &Selector) -> Vec<String>;
    /// Disruption budgets of a namespace.
    fn budgets(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>>;
    /// Selectors of the Services and the controller that a pod belongs to, all in one.
    fn spread_selector(&self, pod: &Demand) -> Selector;
    /// Grows when a namespace's labels or anything that [`Listers::spread_selector`] reads changes.
    fn version(&self) -> u64;
    /// Grows when a disruption budget changes.
    fn budgets_version(&self) -> u64;
}

/// The selectors of all Services that a pod belongs to and of its controller, all in one.
pub fn combined_selector(pod: &Demand, services: &[Arc<Service>], owner: Option<Selector>) -> Selector {
    let mut all = Vec::new();
    if !pod.labels.is_empty() {
        for selector in services.iter().filter_map(|s| s.spec.as_ref()?.selector.as_ref()) {
            let selector = Selector::from_map(selector);
            if selector.matches(&pod.labels) {
                all.extend(selector.0.unwrap_or_default());
            }
        }
    }
    all.extend(owner.and_then(|o| o.0).unwrap_or_default());
    Selector(Some(all))
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
    /// CSI drivers by name.
    pub csi_drivers: HashMap<String, Arc<CSIDriver>>,
    /// Storage capacities.
    pub capacities: Vec<Arc<CSIStorageCapacity>>,
    /// Volume attachments.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// Device classes by name.
    pub device_classes: HashMap<String, Arc<DeviceClass>>,
    /// Resource claims by namespace and name; put there with [`Fixed::add_resource_claim`].
    pub resource_claims: HashMap<(String, String), Arc<ResourceClaim>>,
    /// Resource slices.
    pub slices: Vec<Arc<ResourceSlice>>,
    /// Rules that taint devices.
    pub rules: Vec<Arc<DeviceTaintRule>>,
    /// DRAPartitionableDevices.
    pub partitions: bool,
    /// DRADeviceBindingConditions.
    pub bindings: bool,
    /// Inventory that was last read, with the slices it was read from.
    inventory: Mutex<(Vec<Arc<ResourceSlice>>, Arc<Inventory>)>,
    /// The books.
    pub ledger: Arc<Ledger>,
    /// Workloads by namespace and name.
    pub workloads: HashMap<(String, String), Arc<Workload>>,
    /// Pods of pod groups.
    pub gangs: Arc<Gangs>,
    /// Labels of namespaces.
    pub namespaces: HashMap<String, Labels>,
    /// Disruption budgets.
    pub budgets: Vec<Arc<PodDisruptionBudget>>,
    /// Services.
    pub services: Vec<Arc<Service>>,
    /// Selectors of controllers by kind, namespace and name.
    pub owners: HashMap<(String, String, String), Selector>,
    /// The spread selector of every pod, in place of what services and owners say.
    pub spread: Option<Selector>,
    /// To be raised by who changes anything here between two pods.
    pub version: u64,
}

/// The extended resources that a device class stands for.
pub fn resources_of(class: &DeviceClass) -> impl Iterator<Item = String> {
    let own = class.metadata.name.as_ref().map(|name| format!("{OF_CLASS}{name}"));
    own.into_iter().chain(class.spec.extended_resource_name.clone())
}

/// Of classes that stand for the same resource the one that counts, as in upstream's `ExtendedResourceCache`.
pub fn preferred(classes: impl Iterator<Item = Arc<DeviceClass>>) -> Option<Arc<DeviceClass>> {
    let age = |class: &Arc<DeviceClass>| {
        (class.metadata.creation_timestamp.as_ref().map(|at| std::cmp::Reverse(at.0)), class.metadata.name.clone())
    };
    classes.min_by_key(age)
}

impl Fixed {
    fn sources(&self) -> Sources<'_> {
        Sources { slices: &self.slices, rules: &self.rules, partitions: self.partitions, bindings: self.bindings }
    }

    /// Adds a resource claim or takes over its new form.
    pub fn add_resource_claim(&mut self, claim: ResourceClaim) {
        let meta = &claim.metadata;
        let key = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let claim = Arc::new(claim);
        let old = self.resource_claims.insert(key, Arc::clone(&claim));
        self.ledger.seen(old.as_deref(), Some(&claim));
    }
}

impl Listers for Fixed {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(name).cloned()
    }

    fn volumes_of_class(&self, class: &str) -> Vec<Arc<PersistentVolume>> {
        self.volumes.values().filter(|v| volume_class(v) == class).cloned().collect()
    }

    fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(name).cloned()
    }

    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get(name).cloned()
    }

    fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        self.csi_drivers.get(name).cloned()
    }

    fn storage_capacities(&self, class: &str) -> Vec<Arc<CSIStorageCapacity>> {
        self.capacities.iter().filter(|c| c.storage_class_name == class).cloned().collect()
    }

    fn attachments(&self, node: &str) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.iter().filter(|a| a.spec.node_name == node).cloned().collect()
    }

    fn device_class(&self, name: &str) -> Option<Arc<DeviceClass>> {
        self.device_classes.get(name).cloned()
    }

    fn class_of_resource(&self, resource: &str) -> Option<Arc<DeviceClass>> {
        let stands = |class: &&Arc<DeviceClass>| resources_of(class).any(|name| name == resource);
        preferred(self.device_classes.values().filter(stands).cloned())
    }

    fn extended_claim(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>> {
        self.resource_claims.values().find(|claim| pod_of(claim) == Some(&*pod.uid)).cloned()
    }

    fn resource_claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        let claim = self.resource_claims.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(self.ledger.newest(claim))
    }

    fn inventory(&self) -> Arc<Inventory> {
        let mut known = self.inventory.lock();
        let same = |(a, b): (&Arc<ResourceSlice>, &Arc<ResourceSlice>)| Arc::ptr_eq(a, b);
        if known.0.len() != self.slices.len() || !known.0.iter().zip(&self.slices).all(same) {
            *known = (self.slices.clone(), Arc::new(Inventory::of(self.sources())));
        }
        Arc::clone(&known.1)
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn workload(&self, namespace: &str, name: &str) -> Option<Arc<Workload>> {
        self.workloads.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn gangs(&self) -> &Arc<Gangs> {
        &self.gangs
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

    fn spread_selector(&self, pod: &Demand) -> Selector {
        if let Some(fixed) = &self.spread {
            return fixed.clone();
        }
        let here = |s: &&Arc<Service>| s.metadata.namespace.as_deref() == Some(&pod.namespace);
        let services: Vec<Arc<Service>> = self.services.iter().filter(here).cloned().collect();
        let owner = pod.controller.as_ref().and_then(|(kind, name)| {
            self.owners.get(&(kind.clone(), pod.namespace.to_string(), name.clone())).cloned()
        });
        combined_selector(pod, &services, owner)
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn budgets_version(&self) -> u64 {
        self.version
    }
}
