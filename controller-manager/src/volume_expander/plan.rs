//! Plan for a claim that asks for more than it has. Answers for upstream's `pkg/controller/volume/expand`.
//!
//! In: the claim and its volume. Out: who expands it. CSI volumes are expanded by their driver's own resizer, which is
//! told by an event and, for kinds that were moved to CSI, by an annotation. FlexVolumes are expanded by their drivers,
//! here and then by the kubelet, and the controller keeps the books. No other kind can grow.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeSpec,
};
use k8s_openapi::jiff::Timestamp;
use proto::quantity::Quantity;
use serde_json::json;
use shared::csi;

use crate::engine::action::{Action, PatchKind};
use crate::engine::object::{self, seconds};

/// On claims: the driver whose resizer is in charge.
pub const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// On volumes: the size before an expansion that the node has still to finish.
const BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// Sizes in bytes that a volume shall have and that its claim has; none where the volume is as large already.
#[must_use]
pub fn growth(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<(i64, i64)> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref().and_then(|c| c.get("storage"));
    (size(capacity) < asked(claim)).then(|| (asked(claim).value(), had(claim).value()))
}

/// The volume of a claim is not bound to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("persistent Volume is not bound to PVC being updated : {0}")]
pub struct NotBound(object::Key);

/// The writes, or why the pair cannot be worked on. `flex` tells of a FlexVolume whether nodes have a share in its growth;
/// none where its driver is not here.
pub fn plan(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    flex: Option<bool>,
    now: Timestamp,
) -> Result<Vec<Action>, NotBound> {
    let bound = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    if bound.and_then(|r| r.uid.as_ref()) != claim.metadata.uid.as_ref() {
        return Err(NotBound(object::Key::of(&claim.metadata)));
    }
    if asked(claim) <= had(claim) && object::annotation(&volume.metadata, BEFORE).is_none() {
        return Ok(Vec::new());
    }
    let about = object::reference::<PersistentVolumeClaim>(&claim.metadata);
    let Some(spec) = volume.spec.as_ref() else { return Ok(Vec::new()) };
    if let Some((plugin, driver)) = moved_to_csi(spec) {
        let text = format!("CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc");
        let mut out = vec![Action::normal(&about, "ExternalExpanding", text)];
        if object::annotation(&claim.metadata, RESIZER) != Some(driver) {
            let body = json!({"metadata": {"annotations": {RESIZER: driver}}});
            out.push(Action::patch_status::<PersistentVolumeClaim>(&claim.metadata, PatchKind::Merge, body));
        }
        return Ok(out);
    }
    if let (Some(_), Some(by_nodes)) = (&spec.flex_volume, flex) {
        return Ok(if by_nodes { by_node(claim, volume, now) } else { grown(claim, volume) });
    }
    let text = "waiting for an external controller to expand this PVC";
    Ok(vec![Action::normal(&about, "ExternalExpanding", text.to_owned())])
}

fn asked(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
    size(requests.and_then(|r| r.get("storage")))
}

fn had(claim: &PersistentVolumeClaim) -> Quantity {
    size(claim.status.as_ref().and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage")))
}

fn size(stored: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>) -> Quantity {
    stored.and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default()
}

/// Reports whether the claim is bound and asks for more than it has.
#[must_use]
pub fn grows(claim: &PersistentVolumeClaim) -> bool {
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    phase == Some("Bound") && asked(claim) > had(claim)
}

/// The in-tree plugin and the CSI driver that took over from it.
fn moved_to_csi(spec: &PersistentVolumeSpec) -> Option<(&'static str, &'static str)> {
    let plugin = csi::plugin(spec)?;
    Some((plugin, csi::driver(plugin)?))
}

/// Growth that the driver has finished.
fn grown(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Vec<Action> {
    let wanted = claim.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
    let Some(wanted) = wanted.and_then(|r| r.get("storage")) else { return Vec::new() };
    let mut out = Vec::new();
    if growth(claim, volume).is_some() {
        let body = json!({"spec": {"capacity": {"storage": wanted}}});
        out.push(Action::patch::<PersistentVolume>(&volume.metadata, PatchKind::Merge, body));
    }
    let conditions = claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let left: Vec<_> =
        conditions.iter().filter(|c| c.type_ != "Resizing" && c.type_ != "FileSystemResizePending").collect();
    let body = json!({"status": {"capacity": {"storage": wanted}, "conditions": left}});
    out.push(Action::patch_status::<PersistentVolumeClaim>(&claim.metadata, PatchKind::Merge, body));
    let about = object::reference::<PersistentVolumeClaim>(&claim.metadata);
    let text = format!("ExpandVolume succeeded for volume {}", object::Key::of(&claim.metadata));
    out.push(Action::normal(&about, "VolumeResizeSuccessful", text));
    out
}

/// The volume counts as grown, and the node is asked to grow the file system.
fn by_node(claim: &PersistentVolumeClaim, volume: &PersistentVolume, now: Timestamp) -> Vec<Action> {
    let wanted = claim.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
    let Some(wanted) = wanted.and_then(|r| r.get("storage")) else { return Vec::new() };
    let mut out = Vec::new();
    if growth(claim, volume).is_some() {
        let body = json!({"spec": {"capacity": {"storage": wanted}}});
        out.push(Action::patch::<PersistentVolume>(&volume.metadata, PatchKind::Merge, body));
    }
    let conditions = claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    if conditions.iter().any(|c| c.type_ == "FileSystemResizePending" && c.status == "True") {
        return out;
    }
    let mut new: Vec<PersistentVolumeClaimCondition> =
        conditions.iter().filter(|c| c.type_ != "Resizing" && c.type_ != "FileSystemResizePending").cloned().collect();
    new.push(PersistentVolumeClaimCondition {
        type_: "FileSystemResizePending".into(),
        status: "True".into(),
        last_transition_time: Some(seconds(now)),
        message: Some("Waiting for user to (re-)start a pod to finish file system resize of volume on node.".into()),
        ..PersistentVolumeClaimCondition::default()
    });
    let body = json!({"status": {"conditions": new}});
    out.push(Action::patch_status::<PersistentVolumeClaim>(&claim.metadata, PatchKind::Merge, body));
    let about = object::reference::<PersistentVolumeClaim>(&claim.metadata);
    out.push(Action::normal(&about, "FileSystemResizeRequired", "Require file system resize of volume on node".into()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn pair(asked: &str, had: &str, source: Value) -> (PersistentVolumeClaim, PersistentVolume) {
        let claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"},
            "spec": {"resources": {"requests": {"storage": asked}}}, "status": {"phase": "Bound", "capacity": {"storage": had}}});
        let mut spec = json!({"claimRef": {"uid": "u"}, "capacity": {"storage": had}});
        spec.as_object_mut().expect("map").extend(source.as_object().expect("map").clone());
        let volume = json!({"metadata": {"name": "v"}, "spec": spec});
        (serde_json::from_value(claim).expect("claim"), serde_json::from_value(volume).expect("volume"))
    }

    fn look(asked: &str, source: Value) -> Vec<String> {
        look_with(asked, source, Some(true))
    }

    fn look_with(asked: &str, source: Value, flex: Option<bool>) -> Vec<String> {
        let (claim, volume) = pair(asked, "1Gi", source);
        let now = "2026-01-01T00:00:00Z".parse().expect("time");
        let show = |a: Action| match a {
            Action::Event { reason, message, .. } => format!("{reason}: {message}"),
            Action::Patch { path, body, .. } => format!("{} {body}", path.rsplit('/').next().unwrap_or_default()),
            other => format!("{other:?}"),
        };
        plan(&claim, &volume, flex, now).expect("plan").into_iter().map(show).collect()
    }

    #[test]
    fn who_expands() {
        let csi = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
        assert!(look("1024Mi", csi.clone()).is_empty(), "it has what it asks for");
        assert_eq!(look("2Gi", csi), ["ExternalExpanding: waiting for an external controller to expand this PVC"]);
        assert_eq!(
            look("2Gi", json!({"cinder": {"volumeID": "x"}})),
            [
                "ExternalExpanding: CSI migration enabled for kubernetes.io/cinder; waiting for external resizer to expand the pvc",
                r#"status {"metadata":{"annotations":{"volume.kubernetes.io/storage-resizer":"cinder.csi.openstack.org"}}}"#
            ]
        );
        let flex = look("2Gi", json!({"flexVolume": {"driver": "d"}}));
        assert_eq!(flex[0], r#"v {"spec":{"capacity":{"storage":"2Gi"}}}"#);
        assert_eq!(
            (flex.len(), flex[2].as_str()),
            (3, "FileSystemResizeRequired: Require file system resize of volume on node")
        );
        let source = json!({"flexVolume": {"driver": "d"}});
        assert_eq!(
            look_with("2Gi", source.clone(), Some(false)),
            [
                r#"v {"spec":{"capacity":{"storage":"2Gi"}}}"#,
                r#"status {"status":{"capacity":{"storage":"2Gi"},"conditions":[]}}"#,
                "VolumeResizeSuccessful: ExpandVolume succeeded for volume ns/c"
            ]
        );
        let external = "ExternalExpanding: waiting for an external controller to expand this PVC";
        assert_eq!(look_with("2Gi", source.clone(), None), [external], "its driver is not here");
        let (claim, volume) = pair("2Gi", "1Gi", source);
        assert_eq!(growth(&claim, &volume), Some((2 << 30, 1 << 30)));
        assert_eq!(growth(&claim, &pair("2Gi", "2Gi", json!({})).1), None);
    }

    #[test]
    fn a_foreign_volume() {
        let (mut claim, volume) = pair("2Gi", "1Gi", json!({}));
        claim.metadata.uid = Some("other".into());
        let now = "2026-01-01T00:00:00Z".parse().expect("time");
        assert_eq!(
            plan(&claim, &volume, None, now).unwrap_err().to_string(),
            "persistent Volume is not bound to PVC being updated : ns/c"
        );
    }
}
