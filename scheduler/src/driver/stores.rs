//! Objects that plugins look up, from the informers' stores; and which informers there are.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1alpha1::Workload;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use parking_lot::Mutex;
use proto::schema::Message;
use serde::{Deserialize, Deserializer};
use shared::informer::{Cached, Event, Factory, Informer, Scope, Store};
use shared::types::volume_class;

use crate::framework::gangs::Gangs;
use crate::framework::lister::{combined_selector, preferred, resources_of};
use crate::framework::{Features, Ledger, Listers};
use crate::model::devices::Sources;
use crate::model::extended::pod_of;
use crate::model::protobuf::PodReader;
use crate::model::selector::Labels;
use crate::model::{Demand, Inventory, NodeBase, PodInfo, Selector};

const BY_CLASS: &str = "class";
const BY_NODE: &str = "node";
/// Device classes by the extended resources that they stand for.
const BY_RESOURCE: &str = "resource";
/// Claims for extended resources by the uid of their pod.
const BY_POD: &str = "pod";

/// One informer per kind.
pub(super) struct Informers {
    pub(super) pods: Informer<PodInfo>,
    pub(super) whole_pods: Option<Informer<Pod>>,
    pub(super) nodes: Informer<SeenNode>,
    /// Nodes as they are, for extenders.
    pub(super) whole_nodes: Option<Informer<Node>>,
    pub(super) volumes: Informer<PersistentVolume>,
    pub(super) claims: Informer<PersistentVolumeClaim>,
    pub(super) classes: Informer<StorageClass>,
    pub(super) csi_nodes: Informer<CSINode>,
    pub(super) csi_drivers: Informer<CSIDriver>,
    pub(super) namespaces: Informer<Namespace>,
    pub(super) capacities: Informer<CSIStorageCapacity>,
    pub(super) attachments: Informer<VolumeAttachment>,
    pub(super) device_classes: Informer<DeviceClass>,
    pub(super) resource_claims: Informer<ResourceClaim>,
    pub(super) slices: Informer<ResourceSlice>,
    /// Made when gangs are scheduled.
    pub(super) workloads: Option<Informer<Workload>>,
    /// Made when rules taint devices.
    pub(super) rules: Option<Informer<DeviceTaintRule>>,
    features: Features,
    ledger: Arc<Ledger>,
    inventory: Arc<Mutex<Option<Arc<Inventory>>>>,
    pub(super) budgets: Informer<PodDisruptionBudget>,
    pub(super) services: Informer<Service>,
    pub(super) controllers: Informer<ReplicationController>,
    pub(super) replica_sets: Informer<ReplicaSet>,
    pub(super) stateful_sets: Informer<StatefulSet>,
}

impl Informers {
    /// `whole` keeps pods and nodes as they are, too, for extenders.
    pub(super) fn new(factory: &Factory, whole: bool, features: Features) -> Self {
        let unfinished = "status.phase!=Succeeded,status.phase!=Failed".to_owned();
        let pods = || Scope { fields: Some(unfinished.clone()), ..Scope::default() };
        let it = Self {
            pods: factory.informer_in(pods()),
            whole_pods: whole.then(|| factory.informer_in(pods())),
            nodes: factory.informer(),
            whole_nodes: whole.then(|| factory.informer()),
            volumes: factory.informer(),
            claims: factory.informer(),
            classes: factory.informer(),
            csi_nodes: factory.informer(),
            csi_drivers: factory.informer(),
            namespaces: factory.informer(),
            capacities: factory.informer(),
            attachments: factory.informer(),
            device_classes: factory.informer(),
            resource_claims: factory.informer(),
            slices: factory.informer(),
            workloads: features.gangs.then(|| factory.informer()),
            rules: features.taint_rules.then(|| factory.informer()),
            features,
            ledger: Arc::default(),
            inventory: Arc::default(),
            budgets: factory.informer(),
            services: factory.informer(),
            controllers: factory.informer(),
            replica_sets: factory.informer(),
            stateful_sets: factory.informer(),
        };
        let reader = Arc::new(Mutex::new(PodReader::default()));
        let (interning, sharing) = (Arc::clone(&reader), Arc::clone(&reader));
        it.pods.read_protobuf(move |raw| reader.lock().read(raw));
        it.pods.set_transform(move |pod| pod.intern(&mut interning.lock().interner));
        it.nodes.set_transform(move |node| {
            if let Some(base) = Arc::get_mut(&mut node.base) {
                base.intern(&mut sharing.lock().interner);
            }
        });
        it.volumes.add_index(BY_CLASS, |v| vec![volume_class(v).to_owned()]);
        it.capacities.add_index(BY_CLASS, |c| vec![c.storage_class_name.clone()]);
        it.attachments.add_index(BY_NODE, |a| vec![a.spec.node_name.clone()]);
        it.device_classes.add_index(BY_RESOURCE, |class| resources_of(class).collect());
        it.resource_claims.add_index(BY_POD, |claim| pod_of(claim).map(str::to_owned).into_iter().collect());
        let ledger = Arc::clone(&it.ledger);
        it.resource_claims.add_handler(move |event| match event {
            Event::Added(new) => ledger.seen(None, Some(new)),
            Event::Updated { old, new } => ledger.seen(Some(old), Some(new)),
            Event::Deleted(old) => ledger.seen(Some(old), None),
        });
        let inventory = Arc::clone(&it.inventory);
        it.slices.add_handler(move |_| *inventory.lock() = None);
        if let Some(rules) = &it.rules {
            let inventory = Arc::clone(&it.inventory);
            rules.add_handler(move |_| *inventory.lock() = None);
        }
        it.keep_selectors();
        it
    }

    /// Of what makes pods only the selectors are of interest.
    fn keep_selectors(&self) {
        self.controllers.set_transform(|rc| {
            rc.status = None;
            if let Some(spec) = &mut rc.spec {
                spec.template = None;
            }
        });
        self.replica_sets.set_transform(|rs| {
            rs.status = None;
            if let Some(spec) = &mut rs.spec {
                spec.template = None;
            }
        });
        self.stateful_sets.set_transform(|set| {
            set.status = None;
            if let Some(spec) = &mut set.spec {
                spec.template = Default::default();
                spec.volume_claim_templates = None;
            }
        });
    }

    pub(super) fn stores(&self) -> Stores {
        Stores {
            version: AtomicU64::default(),
            budgets_version: AtomicU64::default(),
            volumes: self.volumes.store(),
            claims: self.claims.store(),
            classes: self.classes.store(),
            csi_nodes: self.csi_nodes.store(),
            namespaces: self.namespaces.store(),
            csi_drivers: self.csi_drivers.store(),
            capacities: self.capacities.store(),
            attachments: self.attachments.store(),
            device_classes: self.device_classes.store(),
            resource_claims: self.resource_claims.store(),
            slices: self.slices.store(),
            workloads: self.workloads.as_ref().map(Informer::store).unwrap_or_default(),
            gangs: Arc::default(),
            rules: self.rules.as_ref().map(Informer::store).unwrap_or_default(),
            features: self.features,
            ledger: Arc::clone(&self.ledger),
            inventory: Arc::clone(&self.inventory),
            budgets: self.budgets.store(),
            services: self.services.store(),
            controllers: self.controllers.store(),
            replica_sets: self.replica_sets.store(),
            stateful_sets: self.stateful_sets.store(),
        }
    }
}

/// Pods are kept in the form in which they are decided upon.
impl Cached for PodInfo {
    fn kind_name() -> Cow<'static, str> {
        "Pod".into()
    }

    fn collection_path(namespace: Option<&str>) -> String {
        <Pod as Cached>::collection_path(namespace)
    }

    fn cache_key(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn cache_version(&self) -> Option<&str> {
        Some(&*self.resource_version).filter(|v| !v.is_empty())
    }

    fn schema() -> Option<&'static Message> {
        Some(proto::schema::pod())
    }
}

/// A node, in the form in which it is decided upon.
#[derive(Debug, Clone)]
pub(super) struct SeenNode {
    pub(super) base: Arc<NodeBase>,
    version: Box<str>,
}

impl<'de> Deserialize<'de> for SeenNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Node::deserialize(deserializer)?;
        let version = node.metadata.resource_version.as_deref().unwrap_or_default().into();
        Ok(Self { base: Arc::new(NodeBase::from_api(&node)), version })
    }
}

impl Cached for SeenNode {
    fn kind_name() -> Cow<'static, str> {
        "Node".into()
    }

    fn collection_path(_: Option<&str>) -> String {
        <Node as Cached>::collection_path(None)
    }

    fn cache_key(&self) -> (&str, &str) {
        ("", &self.base.name)
    }

    fn cache_version(&self) -> Option<&str> {
        Some(&*self.version).filter(|v| !v.is_empty())
    }

    fn schema() -> Option<&'static Message> {
        Node::schema()
    }
}

/// The stores that plugins read.
#[derive(Default)]
pub(super) struct Stores {
    /// See [`Listers::version`].
    pub(super) version: AtomicU64,
    /// See [`Listers::budgets_version`].
    pub(super) budgets_version: AtomicU64,
    pub(super) volumes: Store<PersistentVolume>,
    pub(super) claims: Store<PersistentVolumeClaim>,
    classes: Store<StorageClass>,
    csi_nodes: Store<CSINode>,
    namespaces: Store<Namespace>,
    csi_drivers: Store<CSIDriver>,
    capacities: Store<CSIStorageCapacity>,
    attachments: Store<VolumeAttachment>,
    device_classes: Store<DeviceClass>,
    resource_claims: Store<ResourceClaim>,
    slices: Store<ResourceSlice>,
    workloads: Store<Workload>,
    gangs: Arc<Gangs>,
    rules: Store<DeviceTaintRule>,
    features: Features,
    ledger: Arc<Ledger>,
    /// Read from the slices when first asked for after a change.
    inventory: Arc<Mutex<Option<Arc<Inventory>>>>,
    budgets: Store<PodDisruptionBudget>,
    services: Store<Service>,
    controllers: Store<ReplicationController>,
    replica_sets: Store<ReplicaSet>,
    stateful_sets: Store<StatefulSet>,
}

#[cfg(test)]
impl Stores {
    /// Takes over workloads.
    pub(super) fn with_workloads(self, workloads: Store<Workload>) -> Self {
        Self { workloads, ..self }
    }

    /// Takes over claims, their volumes and their classes.
    pub(super) fn with_claims(
        self,
        claims: Store<PersistentVolumeClaim>,
        volumes: Store<PersistentVolume>,
        classes: Store<StorageClass>,
    ) -> Self {
        Self { claims, volumes, classes, ..self }
    }
}

impl Listers for Stores {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(namespace, name)
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get("", name)
    }

    fn volumes_of_class(&self, class: &str) -> Vec<Arc<PersistentVolume>> {
        self.volumes.by_index(BY_CLASS, class)
    }

    fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get("", name)
    }

    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get("", name)
    }

    fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        self.csi_drivers.get("", name)
    }

    fn storage_capacities(&self, class: &str) -> Vec<Arc<CSIStorageCapacity>> {
        self.capacities.by_index(BY_CLASS, class)
    }

    fn attachments(&self, node: &str) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.by_index(BY_NODE, node)
    }

    fn device_class(&self, name: &str) -> Option<Arc<DeviceClass>> {
        self.device_classes.get("", name)
    }

    fn class_of_resource(&self, resource: &str) -> Option<Arc<DeviceClass>> {
        preferred(self.device_classes.by_index(BY_RESOURCE, resource).into_iter())
    }

    fn extended_claim(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>> {
        self.resource_claims.by_index(BY_POD, &pod.uid).into_iter().next()
    }

    fn resource_claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        self.resource_claims.get(namespace, name).map(|c| self.ledger.newest(&c))
    }

    fn inventory(&self) -> Arc<Inventory> {
        // Held while it is made, so that a change meanwhile is not forgotten.
        let mut known = self.inventory.lock();
        let read = || {
            let (slices, rules) = (self.slices.list(), self.rules.list());
            let Features { partitions, bindings, .. } = self.features;
            Arc::new(Inventory::of(Sources { slices: &slices, rules: &rules, partitions, bindings }))
        };
        Arc::clone(known.get_or_insert_with(read))
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn workload(&self, namespace: &str, name: &str) -> Option<Arc<Workload>> {
        self.workloads.get(namespace, name)
    }

    fn gangs(&self) -> &Arc<Gangs> {
        &self.gangs
    }

    fn namespace_labels(&self, name: &str) -> Option<Labels> {
        self.namespaces.get("", name).and_then(|n| n.metadata.labels.clone())
    }

    fn namespaces(&self, selector: &Selector) -> Vec<String> {
        let none = Labels::new();
        let all = self.namespaces.list();
        let matching = all.iter().filter(|n| selector.matches(n.metadata.labels.as_ref().unwrap_or(&none)));
        matching.filter_map(|n| n.metadata.name.clone()).collect()
    }

    fn budgets(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.budgets.list_namespace(namespace)
    }

    fn spread_selector(&self, pod: &Demand) -> Selector {
        let owner = pod.controller.as_ref().and_then(|(kind, name)| match kind.as_str() {
            "ReplicationController" => {
                let owner = self.controllers.get(&pod.namespace, name)?;
                owner.spec.as_ref()?.selector.as_ref().map(Selector::from_map)
            }
            "ReplicaSet" => {
                let owner = self.replica_sets.get(&pod.namespace, name)?;
                Some(Selector::from_api(Some(&owner.spec.as_ref()?.selector)))
            }
            "StatefulSet" => {
                let owner = self.stateful_sets.get(&pod.namespace, name)?;
                Some(Selector::from_api(Some(&owner.spec.as_ref()?.selector)))
            }
            _ => None,
        });
        combined_selector(pod, &self.services.list_namespace(&pod.namespace), owner)
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn budgets_version(&self) -> u64 {
        self.budgets_version.load(Ordering::Acquire)
    }
}
