//! The next write in the life of a claim or a volume: one at a time, so that every step can be repeated.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::matching::{best, bound_to, claim_class, mismatch};
use crate::engine::action::Action;
use crate::engine::object;

const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BY_US: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Who is asked to make the volume of a claim.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const YES: &str = "yes";
/// The provisioner of volumes on this host.
pub const HOST_PATH: &str = "kubernetes.io/host-path";

/// What the decisions rest on.
#[derive(Debug, Default)]
pub struct World {
    /// Every volume.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// The storage class of the claim.
    pub class: Option<Arc<StorageClass>>,
    /// `--enable-dynamic-provisioning`
    pub dynamic: bool,
    /// The class of claims that name none.
    pub default_class: Option<String>,
}

/// The default class: of several the newest, of equally old ones the first by name.
#[must_use]
pub fn default_class(classes: &[Arc<StorageClass>]) -> Option<String> {
    let marked = |c: &&Arc<StorageClass>| {
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
            .iter()
            .any(|a| object::annotation(&c.metadata, a) == Some("true"))
    };
    let newest = classes.iter().filter(marked).min_by(|a, b| {
        object::created(&b.metadata)
            .cmp(&object::created(&a.metadata))
            .then_with(|| a.metadata.name.cmp(&b.metadata.name))
    });
    newest.and_then(|c| c.metadata.name.clone())
}

fn claim_reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    object::reference::<PersistentVolumeClaim>(&claim.metadata)
}

/// The next writes for a claim.
#[must_use]
pub fn claim(claim: &PersistentVolumeClaim, w: &World) -> Vec<Action> {
    let Some(spec) = claim.spec.as_ref() else { return Vec::new() };
    if object::deleting(&claim.metadata) && object::annotation(&claim.metadata, COMPLETED).is_none() {
        return Vec::new();
    }
    let named = spec.volume_name.as_deref().filter(|n| !n.is_empty());
    let volume = named.map(|n| w.volumes.iter().find(|v| object::name(&v.metadata) == n));
    if object::annotation(&claim.metadata, COMPLETED).is_some() {
        return match volume.flatten() {
            Some(v) if bound_to(v, claim) => bind(v, claim),
            Some(v) if v.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) => bind(v, claim),
            Some(_) => {
                lost(claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
            }
            None => lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
        };
    }
    match volume {
        // The claim names a volume.
        Some(Some(v)) if bound_to(v, claim) => bind(v, claim),
        Some(Some(v)) if v.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) => match mismatch(v, claim) {
            None => bind(v, claim),
            Some(why) => {
                let text = format!("Cannot bind to requested volume \"{}\": {why}", object::name(&v.metadata));
                pending(claim, Some(Action::warning(&claim_reference(claim), "VolumeMismatch", text)))
            }
        },
        Some(Some(v)) => {
            let text = format!("volume \"{}\" already bound to a different claim.", object::name(&v.metadata));
            pending(claim, Some(Action::warning(&claim_reference(claim), "FailedBinding", text)))
        }
        Some(None) => pending(claim, None),
        None => unnamed(claim, w),
    }
}

/// A claim that takes any suitable volume.
fn unnamed(claim: &PersistentVolumeClaim, w: &World) -> Vec<Action> {
    let about = claim_reference(claim);
    let waits = w.class.as_ref().is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let placed = object::annotation(&claim.metadata, SELECTED_NODE).is_some();
    let reserved = w.volumes.iter().find(|v| bound_to(v, claim) && mismatch(v, claim).is_none());
    if waits && !placed && reserved.is_none() {
        let text = "waiting for first consumer to be created before binding".into();
        return pending(claim, Some(Action::normal(&about, "WaitForFirstConsumer", text)));
    }
    if let Some(v) = best(claim, &w.volumes) {
        return bind(v, claim);
    }
    let class = claim_class(claim);
    let unset = class.is_empty() && claim.spec.as_ref().is_some_and(|s| s.storage_class_name.is_none());
    if let Some(default) = w.default_class.as_ref().filter(|_| unset) {
        // It was made before there was a default class.
        let mut copy = claim.clone();
        copy.spec.get_or_insert_default().storage_class_name = Some(default.clone());
        return vec![Action::update(&copy)];
    }
    if class.is_empty() {
        let text = "no persistent volumes available for this claim and no storage class is set".into();
        return pending(claim, Some(Action::normal(&about, "FailedBinding", text)));
    }
    let Some(provisioner) = w.class.as_ref().map(|c| c.provisioner.as_str()) else {
        let text = format!("storageclass.storage.k8s.io \"{class}\" not found");
        return pending(claim, Some(Action::warning(&about, "ProvisioningFailed", text)));
    };
    if !w.dynamic || provisioner == "kubernetes.io/no-provisioner" {
        let text = "no persistent volumes available for this claim and no storage class is set".into();
        return pending(claim, Some(Action::normal(&about, "FailedBinding", text)));
    }
    if object::annotation(&claim.metadata, PROVISIONER) != Some(provisioner) {
        let mut copy = claim.clone();
        let notes = copy.metadata.annotations.get_or_insert_default();
        notes.insert(PROVISIONER.into(), provisioner.to_owned());
        notes.insert(OLD_PROVISIONER.into(), provisioner.to_owned());
        return vec![Action::update(&copy)];
    }
    let text = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    pending(claim, Some(Action::normal(&about, "ExternalProvisioning", text)))
}

fn pending(claim: &PersistentVolumeClaim, event: Option<Action>) -> Vec<Action> {
    let mut actions: Vec<Action> = event.into_iter().collect();
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Pending") {
        let mut copy = claim.clone();
        copy.status.get_or_insert_default().phase = Some("Pending".into());
        actions.push(Action::update_status(&copy));
    }
    actions
}

fn lost(claim: &PersistentVolumeClaim, reason: &'static str, text: &str) -> Vec<Action> {
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
        return Vec::new();
    }
    let mut copy = claim.clone();
    let status = copy.status.get_or_insert_default();
    status.phase = Some("Lost".into());
    status.capacity = None;
    status.access_modes = None;
    vec![Action::warning(&claim_reference(claim), reason, text.to_owned()), Action::update_status(&copy)]
}

/// The next step of joining the two: volume, its phase, claim, its status.
fn bind(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Vec<Action> {
    let mut v = volume.clone();
    let (mut new_ref, uid) = (false, object::uid(&claim.metadata));
    if let Some(spec) = v.spec.as_mut() {
        let complete = spec.claim_ref.as_ref().is_some_and(|r| r.uid.as_deref() == Some(uid));
        if !complete {
            new_ref = true;
            if spec.claim_ref.is_none() {
                v.metadata.annotations.get_or_insert_default().insert(BY_US.into(), YES.into());
            }
            spec.claim_ref = Some(claim_reference(claim));
        }
    }
    if new_ref {
        return vec![Action::update(&v)];
    }
    if v.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return vec![phase(volume, "Bound", None)];
    }
    let mut c = claim.clone();
    let name = volume.metadata.name.clone();
    if let Some(spec) = c.spec.as_mut()
        && spec.volume_name != name
    {
        spec.volume_name = name;
        c.metadata.annotations.get_or_insert_default().insert(BY_US.into(), YES.into());
    }
    if object::annotation(&c.metadata, COMPLETED).is_none() {
        c.metadata.annotations.get_or_insert_default().insert(COMPLETED.into(), YES.into());
    }
    if c != *claim {
        return vec![Action::update(&c)];
    }
    let spec = volume.spec.as_ref();
    let status = c.status.get_or_insert_default();
    if status.phase.as_deref() == Some("Bound") {
        return Vec::new();
    }
    status.phase = Some("Bound".into());
    status.access_modes = spec.and_then(|s| s.access_modes.clone());
    status.capacity = spec.and_then(|s| s.capacity.clone());
    vec![Action::update_status(&c)]
}

/// The next writes for a volume. `claim` is the claim it refers to, as far as it exists.
#[must_use]
pub fn volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Vec<Action> {
    let Some(spec) = volume.spec.as_ref() else { return Vec::new() };
    let current = volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let to = |wanted: &str| if current == wanted { Vec::new() } else { vec![phase(volume, wanted, None)] };
    let Some(reference) = spec.claim_ref.as_ref() else { return to("Available") };
    if reference.uid.as_deref().unwrap_or_default().is_empty() {
        return to("Available");
    }
    match claim.filter(|c| reference.uid == c.metadata.uid) {
        // Joining is the claim's business.
        Some(_) => Vec::new(),
        None if current == "Failed" => Vec::new(),
        None if current != "Released" => vec![phase(volume, "Released", None)],
        None => reclaim(volume),
    }
}

/// The claim is gone.
fn reclaim(volume: &PersistentVolume) -> Vec<Action> {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain");
    let external =
        object::annotation(&volume.metadata, PROVISIONED_BY).is_some() || spec.is_some_and(|s| s.csi.is_some());
    let about = object::reference::<PersistentVolume>(&volume.metadata);
    match policy {
        "Delete" if external || deletable_path(volume).is_some() => Vec::new(),
        "Delete" => not_deleted(
            volume,
            format!(
                "error getting deleter volume plugin for volume \"{}\": no deletable volume plugin matched",
                object::name(&volume.metadata)
            ),
        ),
        "Recycle" if super::recycle::due(volume) => Vec::new(),
        "Recycle" => {
            let text = "no volume plugin matched".to_owned();
            vec![Action::warning(&about, "VolumeFailedRecycle", text.clone()), phase(volume, "Failed", Some(text))]
        }
        _ => Vec::new(),
    }
}

/// Whether a volume is released and is to be deleted, by whoever made it.
#[must_use]
pub fn doomed(volume: &PersistentVolume) -> bool {
    let policy = volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    (policy, phase) == (Some("Delete"), Some("Released"))
}

/// The directory on this host that goes with a released volume. The binder removes it before it deletes the volume.
#[must_use]
pub fn deletable_path(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    let ours = object::annotation(&volume.metadata, PROVISIONED_BY).is_none_or(|p| p == HOST_PATH);
    spec.host_path.as_ref().filter(|_| doomed(volume) && ours).map(|h| h.path.as_str())
}

/// The volume could not be deleted.
#[must_use]
pub fn not_deleted(volume: &PersistentVolume, text: String) -> Vec<Action> {
    let about = object::reference::<PersistentVolume>(&volume.metadata);
    vec![Action::warning(&about, "VolumeFailedDelete", text.clone()), phase(volume, "Failed", Some(text))]
}

/// The volume on this host that `--enable-hostpath-provisioner` makes for a claim, for tests on a single node.
#[must_use]
pub fn host_path_volume(claim: &PersistentVolumeClaim, class: &StorageClass, path: &str) -> PersistentVolume {
    let spec = claim.spec.as_ref();
    let annotations =
        [("kubernetes.io/createdby", "hostpath-dynamic-provisioner"), (PROVISIONED_BY, HOST_PATH), (BY_US, YES)];
    let size = spec.and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage").cloned());
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(format!("pvc-{}", object::uid(&claim.metadata))),
            annotations: Some(annotations.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            persistent_volume_reclaim_policy: Some(class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into())),
            access_modes: spec.and_then(|s| s.access_modes.clone()),
            capacity: size.map(|s| [("storage".to_owned(), s)].into()),
            host_path: Some(HostPathVolumeSource { path: path.to_owned(), type_: None }),
            claim_ref: Some(claim_reference(claim)),
            storage_class_name: class.metadata.name.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// The volume could not be made free again.
pub(super) fn failed_phase(volume: &PersistentVolume, why: String) -> Action {
    phase(volume, "Failed", Some(why))
}

fn phase(volume: &PersistentVolume, phase: &str, message: Option<String>) -> Action {
    let mut copy = volume.clone();
    let status = copy.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = message;
    Action::update_status(&copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Carry the writes out until there are none, as the server and the watches would.
    fn settle(mut v: PersistentVolume, mut c: PersistentVolumeClaim) -> (Value, Value, usize) {
        for round in 0..20 {
            let w = World { volumes: vec![Arc::new(v.clone())], dynamic: true, ..World::default() };
            let mut actions = claim(&c, &w);
            actions.extend(volume(&v, Some(&c)));
            let Some(Action::Update { path, body }) = actions.into_iter().find(|a| matches!(a, Action::Update { .. }))
            else {
                return (serde_json::to_value(v).expect("json"), serde_json::to_value(c).expect("json"), round);
            };
            if path.contains("persistentvolumeclaims") {
                c = serde_json::from_value(body).expect("claim");
            } else {
                v = serde_json::from_value(body).expect("volume");
            }
        }
        panic!("does not settle");
    }

    fn a_volume() -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}}})).expect("volume")
    }

    fn a_claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})).expect("claim")
    }

    #[test]
    fn a_claim_and_a_volume_find_each_other() {
        let (v, c, _) = settle(a_volume(), a_claim());
        assert_eq!(v["status"]["phase"], "Bound");
        assert_eq!(v["spec"]["claimRef"]["uid"], "u");
        assert_eq!(c["spec"]["volumeName"], "v");
        assert_eq!(
            c["status"],
            json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}})
        );
        assert_eq!(c["metadata"]["annotations"], json!({COMPLETED: "yes", BY_US: "yes"}));
    }

    #[test]
    fn nothing_to_bind_to() {
        let events = |c: &PersistentVolumeClaim, w: &World| -> Vec<&'static str> {
            claim(c, w)
                .iter()
                .filter_map(|a| if let Action::Event { reason, .. } = a { Some(*reason) } else { None })
                .collect()
        };
        assert_eq!(events(&a_claim(), &World::default()), ["FailedBinding"]);
        let mut classed = a_claim();
        classed.spec.get_or_insert_default().storage_class_name = Some("fast".into());
        assert_eq!(events(&classed, &World::default()), ["ProvisioningFailed"]);
        let class = |mode: &str| -> Option<Arc<StorageClass>> {
            Some(Arc::new(
                serde_json::from_value(
                    json!({"metadata": {"name": "fast"}, "provisioner": "acme.io/p", "volumeBindingMode": mode}),
                )
                .expect("class"),
            ))
        };
        assert_eq!(
            events(&classed, &World { class: class("WaitForFirstConsumer"), dynamic: true, ..World::default() }),
            ["WaitForFirstConsumer"]
        );
        let now = World { class: class("Immediate"), dynamic: true, ..World::default() };
        let noted = claim(&classed, &now);
        let Some(Action::Update { body, .. }) = noted.first() else { panic!("{noted:?}") };
        assert_eq!(body["metadata"]["annotations"][PROVISIONER], "acme.io/p");
        let noted: PersistentVolumeClaim = serde_json::from_value(body.clone()).expect("claim");
        assert_eq!(events(&noted, &now), ["ExternalProvisioning"]);
    }

    #[test]
    fn when_the_claim_is_gone() {
        let (v, c, _) = settle(a_volume(), a_claim());
        let mut v: PersistentVolume = serde_json::from_value(v).expect("volume");
        let phase_after = |v: &PersistentVolume| -> Option<String> {
            volume(v, None).iter().find_map(|a| {
                if let Action::Update { body, .. } = a {
                    body["status"]["phase"].as_str().map(str::to_owned)
                } else {
                    None
                }
            })
        };
        assert_eq!(phase_after(&v).as_deref(), Some("Released"));
        v.status.get_or_insert_default().phase = Some("Released".into());
        assert_eq!(phase_after(&v), None, "retained");
        v.spec.get_or_insert_default().persistent_volume_reclaim_policy = Some("Delete".into());
        assert_eq!((phase_after(&v), deletable_path(&v)), (None, Some("/d")), "the binder removes the directory");
        let on_host = v.spec.as_mut().and_then(|s| s.host_path.take());
        assert_eq!(phase_after(&v).as_deref(), Some("Failed"), "nobody knows how to delete it");
        v.spec.get_or_insert_default().host_path = on_host;
        v.metadata.annotations.get_or_insert_default().insert(PROVISIONED_BY.into(), "acme.io/p".into());
        assert_eq!(phase_after(&v), None, "its provisioner deletes it");
        let c: PersistentVolumeClaim = serde_json::from_value(c).expect("claim");
        let gone = claim(&c, &World::default());
        assert!(matches!(gone.first(), Some(Action::Event { reason: "ClaimLost", .. })));
    }
}
