//! Persistent volumes: which one a pod's claim stands for, and the sources among them that lie on the node itself.

use crate::objects::ObjectSource;
use crate::pods;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use shared::types::ephemeral_claim;

/// A volume as the pod names it and as it is.
pub(super) struct Claimed {
    /// The volume with the source of the persistent volume, where it is one that a pod can name, too.
    pub(super) volume: Volume,
    /// The claim is used read-only.
    pub(super) read_only: bool,
}

/// What `volume` stands for if it is a claim.
pub(super) async fn resolve(objects: &dyn ObjectSource, pod: &Pod, volume: &Volume) -> Result<Option<Claimed>, String> {
    let (claim, read_only) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => (source.claim_name.clone(), source.read_only.unwrap_or(false)),
        (None, Some(_)) => (ephemeral_claim(pods::name(pod), &volume.name), false),
        (None, None) => return Ok(None),
    };
    let namespace = pods::namespace(pod);
    let processing = |error: String| format!("error processing PVC {namespace}/{claim}: {error}");
    let found = objects.claim(namespace, &claim).await;
    let found = found.map_err(|e| processing(format!("failed to fetch PVC from API server: {e}")))?;
    let name = bound(&found, volume.ephemeral.is_some().then_some(pod)).map_err(processing)?;
    let persistent = objects.persistent_volume(&name).await;
    let persistent = persistent.map_err(|e| format!("failed to fetch PV {name} from API server: {e}"))?;
    let volume = source(&persistent, &found, &volume.name)?;
    Ok(Some(Claimed { volume, read_only }))
}

/// The name of the volume that a claim is bound to; a claim made for a pod is used by that pod alone.
fn bound(claim: &PersistentVolumeClaim, made_for: Option<&Pod>) -> Result<String, String> {
    if let Some(pod) = made_for {
        let owners = claim.metadata.owner_references.iter().flatten();
        let own = owners.into_iter().any(|owner| owner.uid == pods::uid(pod) && owner.controller == Some(true));
        if !own {
            let (namespace, name) = (pods::namespace(pod), claim.metadata.name.as_deref().unwrap_or_default());
            return Err(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
                pods::name(pod)
            ));
        }
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("PVC is being deleted".to_owned());
    }
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    name.filter(|_| phase == Some("Bound")).ok_or_else(|| "PVC is not bound".to_owned())
}

/// The persistent volume as a volume of a pod.
fn source(persistent: &PersistentVolume, claim: &PersistentVolumeClaim, name: &str) -> Result<Volume, String> {
    let pv = persistent.metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = &persistent.spec else { return Err(format!("PV {pv} has no source")) };
    let claimed = spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.metadata.uid);
    if !claimed {
        return Err(format!("found PV object {pv} with nil or unexpected ClaimRef.UID"));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!("PV {pv} is a block device, which this kubelet does not support"));
    }
    let host_path = match (&spec.host_path, &spec.local) {
        (Some(source), _) => source.clone(),
        (None, Some(local)) => HostPathVolumeSource { path: local.path.clone(), type_: Some("Directory".to_owned()) },
        (None, None) => return Err(format!("no volume plugin matched for PV {pv}")),
    };
    Ok(Volume { name: name.to_owned(), host_path: Some(host_path), ..Volume::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(change: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "p-v", "uid": "c"}, "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"}});
        for (name, value) in change.as_object().expect("object") {
            claim[name] = value.clone();
        }
        serde_json::from_value(claim).expect("claim")
    }

    #[test]
    fn a_claim_has_to_be_bound_and_the_pods_own() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})).expect("pod");
        let error = |text: &str| Err(text.to_owned());
        let owned = |uid: &str| {
            let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
            json!({"metadata": {"name": "p-v", "ownerReferences": [owner]}})
        };
        let foreign = error("PVC n/p-v was not created for pod n/p (pod is not owner)");
        for (change, made_for, expected) in [
            (json!({}), None, Ok("pv".to_owned())),
            (json!({"status": {"phase": "Pending"}}), None, error("PVC is not bound")),
            (json!({"spec": {}}), None, error("PVC is not bound")),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), None, error("PVC is being deleted")),
            (owned("u"), Some(&pod), Ok("pv".to_owned())),
            (owned("other"), Some(&pod), foreign),
        ] {
            assert_eq!(bound(&claim(change.clone()), made_for), expected, "{change}");
        }
    }

    #[test]
    fn what_lies_on_the_node_is_a_path_on_it() {
        let pv = |uid: &str, kind: &str, source: Value| -> PersistentVolume {
            let spec = json!({"claimRef": {"uid": uid}, kind: source});
            serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("volume")
        };
        let path = |pv: PersistentVolume| {
            let found = source(&pv, &claim(json!({})), "v")?;
            let source = found.host_path.ok_or("no path")?;
            Ok::<_, String>((source.path, source.type_))
        };
        let made = || Some("DirectoryOrCreate".to_owned());
        let host_path = json!({"path": "/x", "type": "DirectoryOrCreate"});
        assert_eq!(path(pv("c", "hostPath", host_path.clone())), Ok(("/x".to_owned(), made())));
        assert_eq!(path(pv("c", "local", json!({"path": "/y"}))), Ok(("/y".to_owned(), Some("Directory".to_owned()))));
        let other = "found PV object pv with nil or unexpected ClaimRef.UID".to_owned();
        assert_eq!(path(pv("d", "hostPath", host_path)), Err(other));
        let nfs = pv("c", "nfs", json!({"path": "/", "server": "s"}));
        assert_eq!(path(nfs), Err("no volume plugin matched for PV pv".to_owned()));
    }
}
