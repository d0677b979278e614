//! Matching of a claim and a volume on a node. Answers for upstream's `FindMatchingVolume`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use shared::csi::{self, Untranslatable};

use crate::model::demand::NO_LABELS;
use crate::model::resource::value;
use crate::model::selector::NodeTerm;
use crate::model::{NodeBase, Selector};

/// Plugins of old whose volumes the binder takes as they are.
const UNMOVED: [&str; 2] = ["kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"];

/// Reports whether the volume's node affinity allows a node.
pub(crate) fn reachable(volume: &PersistentVolume, node: &NodeBase) -> bool {
    allows(&terms(volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref())), node)
}

/// Terms of which one is enough; `None` where every node will do.
type Terms = Option<Vec<NodeTerm>>;

fn terms(affinity: Option<&VolumeNodeAffinity>) -> Terms {
    let required = affinity.and_then(|affinity| affinity.required.as_ref())?;
    Some(required.node_selector_terms.iter().map(NodeTerm::from_api).collect())
}

fn allows(terms: &Terms, node: &NodeBase) -> bool {
    terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(&node.name, &node.labels)))
}

/// The nodes that reach a bound volume, read once for all of them. Answers for upstream's `tryTranslatePVToCSI`.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    own: Terms,
    /// Of a volume of old.
    moved: Option<Moved>,
}

/// A volume of old that cannot be translated.
#[derive(Debug, Clone, thiserror::Error)]
#[error("could not translate pv: {0}")]
pub(crate) struct TranslationError(#[source] Untranslatable);

/// Terms that count on nodes which leave the volumes of an in-tree plugin to the driver that took over.
#[derive(Clone, Debug)]
struct Moved {
    plugin: &'static str,
    /// By the driver's labels, or why the volume cannot be translated.
    terms: Result<Terms, Untranslatable>,
}

impl Reach {
    /// Reads the affinity of a volume.
    pub(crate) fn of(volume: &PersistentVolume) -> Self {
        let spec = volume.spec.as_ref();
        let plugin = spec.and_then(csi::plugin).filter(|plugin| !UNMOVED.contains(plugin));
        let translated = || match csi::node_affinity(volume) {
            Ok(affinity) => Ok(terms(affinity.as_ref())),
            Err(error) => Err(error),
        };
        Self {
            own: terms(spec.and_then(|spec| spec.node_affinity.as_ref())),
            moved: plugin.map(|plugin| Moved { plugin, terms: translated() }),
        }
    }

    /// Reports whether a node, of which its drivers say `csi_node`, reaches the volume.
    ///
    /// # Errors
    /// A volume of old that cannot be translated.
    pub(crate) fn from(
        &self,
        node: &NodeBase,
        csi_node: impl FnOnce() -> Option<Arc<CSINode>>,
    ) -> Result<bool, TranslationError> {
        let has_moved = |moved: &&Moved| csi_node().is_some_and(|csi_node| csi::moved_on(&csi_node, moved.plugin));
        match self.moved.as_ref().filter(has_moved) {
            None => Ok(allows(&self.own, node)),
            Some(moved) => {
                moved.terms.as_ref().map(|terms| allows(terms, node)).map_err(|e| TranslationError(e.clone()))
            }
        }
    }
}

/// Reports whether a class makes volumes that a node can reach.
pub(super) fn topology_allows(class: &StorageClass, node: &NodeBase) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|t| {
            t.match_label_expressions
                .iter()
                .flatten()
                .all(|e| node.labels.get(&e.key).is_some_and(|v| e.values.contains(v)))
        })
}

/// The smallest free volume that suits; one set aside for this very claim comes first.
pub(super) fn smallest(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    node: &NodeBase,
    taken: impl Fn(&str) -> bool,
) -> Option<Arc<PersistentVolume>> {
    let spec = claim.spec.as_ref()?;
    let wanted = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("storage")).map_or(0, value);
    let selector = spec.selector.as_ref().map(|s| Selector::from_api(Some(s)));
    let mode = |m: &Option<String>| m.as_deref().unwrap_or("Filesystem").to_owned();
    let attributes = |class: &Option<String>| class.as_deref().unwrap_or_default().to_owned();
    let mut best: Option<(i64, &Arc<PersistentVolume>)> = None;
    let (name, namespace) = (&claim.metadata.name, &claim.metadata.namespace);
    for volume in volumes {
        let Some(v) = &volume.spec else { continue };
        let size = v.capacity.as_ref().and_then(|c| c.get("storage")).map_or(0, value);
        let modes = v.access_modes.as_deref().unwrap_or_default();
        let suits = volume.metadata.deletion_timestamp.is_none()
            && size >= wanted
            && mode(&v.volume_mode) == mode(&spec.volume_mode)
            && attributes(&v.volume_attributes_class_name) == attributes(&spec.volume_attributes_class_name);
        if !suits {
            continue;
        }
        if let Some(r) = &v.claim_ref {
            let same = r.name == *name && r.namespace == *namespace;
            if same && r.uid.as_ref().is_none_or(|u| u.is_empty() || Some(u) == claim.metadata.uid.as_ref()) {
                // Whoever set it aside meant this one: it will do, or nothing here will.
                return reachable(volume, node).then(|| Arc::clone(volume));
            }
            continue;
        }
        let available = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available");
        let labelled =
            selector.as_ref().is_none_or(|s| s.matches(volume.metadata.labels.as_ref().unwrap_or(&NO_LABELS)));
        if available
            && labelled
            && spec.access_modes.iter().flatten().all(|m| modes.contains(m))
            && reachable(volume, node)
            && !taken(volume.metadata.name.as_deref().unwrap_or_default())
            && best.is_none_or(|(s, _)| size < s)
        {
            best = Some((size, volume));
        }
    }
    best.map(|(_, v)| Arc::clone(v))
}
