//! Matching of a claim and a volume on a node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use shared::csi;

use crate::model::demand::NO_LABELS;
use crate::model::resource::value;
use crate::model::selector::NodeTerm;
use crate::model::{NodeBase, Selector};

/// Plugins of old whose volumes the binder takes as they are.
const UNMOVED: [&str; 2] = ["kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"];

/// Reports whether the volume's node affinity allows a node.
pub(crate) fn reachable(volume: &PersistentVolume, node: &NodeBase) -> bool {
    allows(volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()), node)
}

fn allows(affinity: Option<&VolumeNodeAffinity>, node: &NodeBase) -> bool {
    let required = affinity.and_then(|a| a.required.as_ref());
    required
        .is_none_or(|r| r.node_selector_terms.iter().any(|t| NodeTerm::from_api(t).matches(&node.name, &node.labels)))
}

/// Reports whether a bound volume is [`reachable`]: where the node leaves in-tree volumes to the driver that took over, the
/// driver's labels count. Answers for upstream's `tryTranslatePVToCSI`.
///
/// # Errors
/// A volume of old that cannot be translated.
pub(crate) fn reachable_through(
    volume: &PersistentVolume,
    node: &NodeBase,
    csi_node: impl FnOnce() -> Option<Arc<CSINode>>,
) -> Result<bool, String> {
    let old = volume.spec.as_ref().and_then(csi::plugin).filter(|plugin| !UNMOVED.contains(plugin));
    if !old.is_some_and(|plugin| csi_node().is_some_and(|csi_node| csi::moved_on(&csi_node, plugin))) {
        return Ok(reachable(volume, node));
    }
    let affinity = csi::node_affinity(volume).map_err(|error| format!("could not translate pv: {error}"))?;
    Ok(allows(affinity.as_ref(), node))
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
