//! Growth of volumes on the node, after the controller's part: how much, and what the claim says of it. Pure.

use super::volume::Volume;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use proto::quantity::Quantity;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tonic::Code;

const STORAGE: &str = "storage";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// Conditions of a claim whose volume grows.
const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// Bytes of the volume that the claim does not have yet; none where nothing is to be done.
pub(super) fn wanted(claim: &PersistentVolumeClaim, volume: &Volume) -> Option<i64> {
    let bytes = |size: &str| size.parse::<Quantity>().ok().map(|size| size.value());
    let status = claim.status.as_ref()?;
    let known = bytes(&status.capacity.as_ref()?.get(STORAGE)?.0)?;
    let wanted = bytes(volume.capacity.as_ref()?)?;
    let is_refused = state(claim) == Some(INFEASIBLE);
    (wanted > known && !is_refused && !volume.is_read_only()).then_some(wanted)
}

fn state(claim: &PersistentVolumeClaim) -> Option<&str> {
    let states = claim.status.as_ref()?.allocated_resource_statuses.as_ref()?;
    states.get(STORAGE).map(String::as_str)
}

/// Reports whether asking again for the same size is pointless: upstream's `IsInfeasibleError`.
pub(super) fn is_infeasible(code: Code) -> bool {
    matches!(code, Code::OutOfRange | Code::InvalidArgument | Code::NotFound)
}

fn patch(claim: &PersistentVolumeClaim, status: Value) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}

/// The patch of a claim whose volume is about to grow.
pub(super) fn begun(claim: &PersistentVolumeClaim) -> Value {
    patch(claim, json!({"allocatedResourceStatuses": {STORAGE: "NodeResizeInProgress"}}))
}

/// The patch of a claim whose volume cannot grow.
pub(super) fn refused(claim: &PersistentVolumeClaim) -> Value {
    patch(claim, json!({"allocatedResourceStatuses": {STORAGE: INFEASIBLE}}))
}

/// The patch of a claim whose volume has grown. Upstream's `MarkFSResizeFinished`.
pub(super) fn finished(claim: &PersistentVolumeClaim, size: &str) -> Value {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let left: Vec<_> = conditions.filter(|condition| !CONDITIONS.contains(&condition.type_.as_str())).collect();
    let conditions = if left.is_empty() { Value::Null } else { json!(left) };
    let states: BTreeMap<&str, Value> = [(STORAGE, Value::Null)].into();
    let mut status = json!({"capacity": {STORAGE: size}, "conditions": conditions});
    if state(claim).is_some() {
        status["allocatedResourceStatuses"] = json!(states);
    }
    patch(claim, status)
}

#[cfg(test)]
mod tests {
    use super::super::volume::tests::persistent;
    use super::*;

    fn claim(status: Value) -> PersistentVolumeClaim {
        let claim = json!({"metadata": {"name": "c", "resourceVersion": "7"}, "status": status});
        serde_json::from_value(claim).expect("a claim")
    }

    #[test]
    fn volumes_grow_to_the_size_of_the_persistent_one() {
        let volume = |read_only| Volume::persistent(&persistent(json!({})), read_only).expect("a volume");
        let size = |size: &str| json!({"capacity": {"storage": size}});
        let refused = json!({"capacity": {"storage": "1"}, "allocatedResourceStatuses": {"storage": INFEASIBLE}});
        let pending =
            json!({"capacity": {"storage": "1"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
        for (status, read_only, expected) in [
            (size("512Mi"), false, Some(1 << 30)),
            (size("1Gi"), false, None),
            (size("2Gi"), false, None),
            (size("512Mi"), true, None),
            (size("nonsense"), false, None),
            (json!({}), false, None),
            (refused, false, None),
            (pending, false, Some(1 << 30)),
        ] {
            assert_eq!(wanted(&claim(status.clone()), &volume(read_only)), expected, "{status}");
        }
    }

    #[test]
    fn claims_tell_how_far_it_is() {
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let growing =
            claim(json!({"capacity": {"storage": "1"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [condition("FileSystemResizePending"), condition("Other")]}));
        let revision = json!({"resourceVersion": "7"});
        let status = json!({"capacity": {"storage": "1Gi"}, "conditions": [condition("Other")],
            "allocatedResourceStatuses": {"storage": null}});
        assert_eq!(finished(&growing, "1Gi"), json!({"metadata": revision, "status": status}));
        let plain = claim(json!({"conditions": [condition("Resizing")]}));
        let status = json!({"capacity": {"storage": "1Gi"}, "conditions": null});
        assert_eq!(finished(&plain, "1Gi"), json!({"metadata": revision, "status": status}));
        assert!(is_infeasible(Code::OutOfRange) && !is_infeasible(Code::Unavailable));
        assert_eq!(begun(&plain)["status"]["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
        assert_eq!(refused(&plain)["status"]["allocatedResourceStatuses"]["storage"], INFEASIBLE);
    }
}
