//! A cluster at one moment, from an API server or from files.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::Resource;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use serde_json::Value;
use shared::client::typed;
use shared::types::from_tree;

use super::target::Priorities;
use crate::framework::explain::Explanation;
use crate::framework::lister::Fixed;
use crate::framework::{Context, Nominated, Profile};
use crate::model::{Cache, NodeBase, PodInfo, Selector, Snapshot};

/// Objects per page of a list.
const PAGE: u32 = 500;

macro_rules! kinds {
    ($($field:ident: $kind:ty),* $(,)?) => {
        /// Objects that scheduling depends on.
        #[derive(Debug, Default)]
        #[allow(missing_docs)]
        pub struct Dump {
            $(pub $field: Vec<$kind>,)*
        }

        impl Dump {
            /// Takes in an object, or a list of objects; others are passed over.
            ///
            /// # Errors
            /// An object that is not of the kind it says.
            pub fn add(&mut self, value: Value) -> anyhow::Result<()> {
                let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
                if let Some(item) = kind.strip_suffix("List") {
                    let items = value.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
                    for mut one in items {
                        if one.get("kind").is_none() {
                            one["kind"] = item.into();
                        }
                        self.add(one)?;
                    }
                    return Ok(());
                }
                match kind.as_str() {
                    $(<$kind as Resource>::KIND => {
                        let object = from_tree(&value).map_err(anyhow::Error::msg).with_context(|| format!("reading a {kind}"))?;
                        self.$field.push(object);
                    })*
                    _ => {}
                }
                Ok(())
            }

            /// Reads a live cluster.
            ///
            /// # Errors
            /// What the API server refuses; kinds it does not serve are taken as empty.
            pub async fn read(client: &kube::Client) -> anyhow::Result<Self> {
                Ok(Self { $($field: all(client).await?,)* })
            }
        }
    };
}

kinds! {
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

async fn all<K: shared::informer::Object + Resource>(client: &kube::Client) -> anyhow::Result<Vec<K>> {
    let mut out = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = match typed::page::<K>(client, &params).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(out),
            // In the server's words, once: they say who may not do what.
            Err(kube::Error::Api(status)) => anyhow::bail!("listing {}: {}", <K as Resource>::KIND, status.message),
            Err(e) => return Err(e).with_context(|| format!("listing {}", <K as Resource>::KIND)),
        };
        let more = page.metadata.continue_.clone().filter(|c| !c.is_empty());
        out.extend(page.items);
        match more {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(out),
        }
    }
}

impl Dump {
    /// Reads a file, or all files of a folder.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let mut out = Self::default();
        documents(path, &mut |document| out.add(document))?;
        Ok(out)
    }

    /// What priority classes say.
    pub fn priorities(&self) -> Priorities {
        priorities(&self.priority_classes)
    }
}

/// Calls `take` for every object (or list of objects) in a file, or in all files of a folder, in turn.
///
/// # Errors
/// Files that cannot be read, and those of `take`.
pub fn documents(path: &Path, take: &mut dyn FnMut(Value) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let reading = || format!("reading {}", path.display());
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(reading)?;
        let mut inside = entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
        inside.sort();
        let readable =
            |p: &Path| p.is_dir() || p.extension().is_some_and(|e| ["json", "yaml", "yml"].iter().any(|x| e == *x));
        return inside.iter().filter(|p| readable(p)).try_for_each(|p| documents(p, take));
    }
    let text = std::fs::read_to_string(path).with_context(reading)?;
    // JSON is read as such: it is YAML too, but that takes far longer.
    if text.trim_start().starts_with('{') {
        return serde_json::Deserializer::from_str(&text)
            .into_iter::<Value>()
            .try_for_each(|value| take(value.with_context(reading)?));
    }
    proto::yaml::each(text.as_bytes(), take).with_context(reading)
}

/// What priority classes say.
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

/// The same, as plugins see it.
pub struct World {
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

impl World {
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

/// What plugins look up.
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
