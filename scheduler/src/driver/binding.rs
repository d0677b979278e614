//! Progress of a volume claim's binding, as the informers show it.
//!
//! In: the claim, its volume, the node that was chosen for it. Out: bound, not yet, or why it never will be. Answers for
//! `checkBindings` of upstream's volume binder. Never: a request.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::model::NodeBase;
use crate::plugins::volume_binding::Reach;

/// Progress of one claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Bound,
    Waiting,
    /// The pod has to go elsewhere: why.
    Failed(String),
}

/// The version of an object as a number; 0 for one that is none.
pub(super) fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// The volume that a claim names.
pub(super) fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, name: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn fully_bound(claim: &PersistentVolumeClaim) -> Progress {
    match volume_of(claim).is_some() && annotation(claim, "pv.kubernetes.io/bind-completed").is_some() {
        true => Progress::Bound,
        false => Progress::Waiting,
    }
}

/// Node of a pod whose claims are bound, and what drivers say of it.
#[derive(Clone, Copy)]
pub(super) struct BoundNode<'a> {
    pub(super) node: &'a NodeBase,
    pub(super) csi: Option<&'a Arc<CSINode>>,
}

fn unreachable(volume: &PersistentVolume, place: BoundNode<'_>) -> Option<Progress> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    match Reach::of(volume).from(place.node, || place.csi.cloned()) {
        Ok(true) => None,
        Ok(false) => Some(Progress::Failed(format!(
            "pv {name:?} node affinity doesn't match node {:?}: no matching NodeSelectorTerms",
            place.node.name
        ))),
        Err(why) => Some(Progress::Failed(why.to_string())),
    }
}

/// Progress of a claim for which the volume `name` was set aside; `written` is the version of that volume then.
pub(super) fn of_existing(
    claim: &PersistentVolumeClaim,
    name: &str,
    volume: Option<&PersistentVolume>,
    place: BoundNode<'_>,
    written: Option<u64>,
) -> Progress {
    let Some(volume) = volume else {
        return Progress::Failed(format!("failed to check binding: could not find v1.PersistentVolume {name:?}"));
    };
    // An older form says nothing of what was written.
    if written.is_none_or(|written| version(&volume.metadata) < written) {
        return fully_bound(claim);
    }
    if let Some(failed) = unreachable(volume, place) {
        return failed;
    }
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if reference.and_then(|reference| reference.uid.as_deref()).is_none_or(str::is_empty) {
        return Progress::Failed(format!("ClaimRef got reset for pv {name:?}"));
    }
    fully_bound(claim)
}

/// Progress of a claim for which a volume is provisioned; `volume` is the one that it names, `written` the version of the
/// claim when its node was written.
pub(super) fn of_provisioned(
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    place: BoundNode<'_>,
    written: Option<u64>,
) -> Progress {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let chosen = annotation(claim, "volume.kubernetes.io/selected-node");
    // The provisioner takes the annotation back when it cannot make the volume there.
    let is_current = written.is_some_and(|written| version(&claim.metadata) >= written);
    if chosen != Some(&*place.node.name) && (is_current || chosen.is_some()) {
        return Progress::Failed(format!("provisioning failed for PVC {name:?}"));
    }
    match (volume_of(claim), volume) {
        // It may be on its way.
        (Some(_), None) => Progress::Waiting,
        (Some(_), Some(volume)) => unreachable(volume, place).unwrap_or_else(|| fully_bound(claim)),
        (None, _) => fully_bound(claim),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::node;

    fn claim(version: u64, chosen: Option<&str>, volume: &str, completed: bool) -> PersistentVolumeClaim {
        let mut annotations = json!({});
        if let Some(chosen) = chosen {
            annotations["volume.kubernetes.io/selected-node"] = json!(chosen);
        }
        if completed {
            annotations["pv.kubernetes.io/bind-completed"] = json!("yes");
        }
        let meta = json!({"name": "c", "resourceVersion": version.to_string(), "annotations": annotations});
        serde_json::from_value(json!({"metadata": meta, "spec": {"volumeName": volume}})).expect("claim")
    }

    fn volume(version: u64, host: &str, claim_ref: Value) -> PersistentVolume {
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]});
        serde_json::from_value(json!({
            "metadata": {"name": "v", "resourceVersion": version.to_string()},
            "spec": {"claimRef": claim_ref, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
        }))
        .expect("volume")
    }

    fn failed(text: &str) -> Progress {
        Progress::Failed(text.to_owned())
    }

    #[test]
    fn existing_volume_is_bound_to_its_claim_or_lost() {
        let node = node("n").base();
        let elsewhere = r#"pv "v" node affinity doesn't match node "n": no matching NodeSelectorTerms"#;
        let ours = || json!({"uid": "u"});
        let (open, bound) = (claim(1, None, "", false), claim(1, None, "v", true));
        for (what, claim, volume, expected) in [
            (
                "the volume is gone",
                &open,
                None,
                failed("failed to check binding: could not find v1.PersistentVolume \"v\""),
            ),
            ("the write is not seen", &open, Some(volume(4, "other", json!(null))), Progress::Waiting),
            ("the affinity changed", &open, Some(volume(6, "other", ours())), failed(elsewhere)),
            (
                "the reference was reset",
                &open,
                Some(volume(6, "n", json!({}))),
                failed("ClaimRef got reset for pv \"v\""),
            ),
            ("the claim is open", &open, Some(volume(5, "n", ours())), Progress::Waiting),
            ("all is bound", &bound, Some(volume(5, "n", ours())), Progress::Bound),
        ] {
            assert_eq!(
                of_existing(claim, "v", volume.as_ref(), BoundNode { node: &node, csi: None }, Some(5)),
                expected,
                "{what}"
            );
        }
    }

    #[test]
    fn provisioned_claim_fails_when_the_provisioner_gives_its_node_back() {
        let node = node("n").base();
        let elsewhere = r#"pv "v" node affinity doesn't match node "n": no matching NodeSelectorTerms"#;
        let gone = || failed("provisioning failed for PVC \"c\"");
        for (what, claim, volume, expected) in [
            ("the write is not seen", claim(4, None, "", false), None, Progress::Waiting),
            ("the volume is being made", claim(5, Some("n"), "", false), None, Progress::Waiting),
            ("the annotation is taken back", claim(6, None, "", false), None, gone()),
            ("another node is chosen", claim(4, Some("m"), "", false), None, gone()),
            ("the volume is not seen", claim(6, Some("n"), "v", true), None, Progress::Waiting),
            (
                "the volume is elsewhere",
                claim(6, Some("n"), "v", true),
                Some(volume(1, "m", json!(null))),
                failed(elsewhere),
            ),
            ("all is bound", claim(6, Some("n"), "v", true), Some(volume(1, "n", json!(null))), Progress::Bound),
        ] {
            assert_eq!(
                of_provisioned(&claim, volume.as_ref(), BoundNode { node: &node, csi: None }, Some(5)),
                expected,
                "{what}"
            );
        }
    }
}
