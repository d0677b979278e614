//! The next write in the life of a claim or a volume: one at a time, so that every step can be repeated. Answers for
//! upstream's `syncUnboundClaim`, `syncBoundClaim`, `syncVolume`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::quantity::Quantity;

use super::maker::{self, MIGRATED_TO, Maker};
use super::matching::{asks_for_attributes, best, bound_to, claim_class, mismatch, same_mode};
use crate::engine::action::Action;
use crate::engine::object;

const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BY_US: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation with the provisioner of the claim's volume.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const BEFORE_RESIZE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const YES: &str = "yes";
/// The provisioner of volumes on this host.
pub const HOST_PATH: &str = "kubernetes.io/host-path";

/// Inputs of the decisions.
#[derive(Debug, Default)]
pub struct World {
    /// Volumes that the claim may be bound to.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// The storage class of the claim.
    pub class: Option<Arc<StorageClass>>,
    /// `--enable-dynamic-provisioning`
    pub dynamic: bool,
    /// The class of claims that name none.
    pub default_class: Option<String>,
    /// Pods that use the claim and are on no node yet.
    pub unscheduled: Vec<String>,
    /// There are no classes of attributes (VolumeAttributesClass is off).
    pub without_attributes: bool,
}

impl World {
    /// Reports whether the scheduler chooses the volume of the claim.
    #[must_use]
    pub fn delayed(&self) -> bool {
        self.class.as_deref().is_some_and(waits_for_consumer)
    }
}

/// Reports whether the scheduler chooses the volumes of a class.
#[must_use]
pub fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
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
    if let Some(notes) = maker::noted_of_claim(claim.metadata.annotations.as_ref()) {
        let mut copy = claim.clone();
        copy.metadata.annotations = Some(notes);
        return vec![Action::update(&copy)];
    }
    let named = spec.volume_name.as_deref().filter(|n| !n.is_empty());
    let volume = named.map(|n| w.volumes.iter().find(|v| object::name(&v.metadata) == n));
    if object::annotation(&claim.metadata, COMPLETED).is_some() {
        let Some(volume) = volume else {
            return lost(
                claim,
                "ClaimLost",
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            );
        };
        let Some(volume) = volume else {
            return lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
        };
        return match volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
            Some(r) if r.uid.as_deref().unwrap_or_default() != object::uid(&claim.metadata) => {
                lost(claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
            }
            _ => bind(volume, claim),
        };
    }
    match volume {
        // The claim names a volume.
        Some(Some(v)) if bound_to(v, claim) => bind(v, claim),
        Some(Some(v)) if v.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) => {
            match mismatch(v, claim, !w.without_attributes) {
                None => bind(v, claim),
                Some(why) => {
                    let text = format!("Cannot bind to requested volume \"{}\": {why}", object::name(&v.metadata));
                    pending(claim, Some(Action::warning(&claim_reference(claim), "VolumeMismatch", text)))
                }
            }
        }
        Some(Some(v)) => {
            let text = format!("volume \"{}\" already bound to a different claim.", object::name(&v.metadata));
            let event = Action::warning(&claim_reference(claim), "FailedBinding", text);
            // What was named here, and not by a user, stays as it is.
            if object::annotation(&claim.metadata, BY_US).is_some() { vec![event] } else { pending(claim, Some(event)) }
        }
        Some(None) => pending(claim, None),
        None => unnamed(claim, w),
    }
}

/// A claim that takes any suitable volume.
fn unnamed(claim: &PersistentVolumeClaim, w: &World) -> Vec<Action> {
    let about = claim_reference(claim);
    if w.without_attributes && asks_for_attributes(claim) {
        tracing::error!(
            claim = object::name(&claim.metadata),
            "unsupported volumeAttributesClassName is set when the feature-gate VolumeAttributesClass is disabled"
        );
        return Vec::new();
    }
    if let Some(v) = best(claim, &w.volumes, w.delayed()) {
        return bind(v, claim);
    }
    let class = claim_class(claim);
    let unset = shared::types::claim_class(claim).is_none();
    if let Some(default) = w.default_class.as_ref().filter(|_| unset) {
        // It was made before there was a default class.
        let mut copy = claim.clone();
        copy.spec.get_or_insert_default().storage_class_name = Some(default.clone());
        return vec![Action::update(&copy)];
    }
    if w.delayed() && object::annotation(&claim.metadata, SELECTED_NODE).is_none() {
        let (reason, text) = match w.unscheduled.as_slice() {
            [] => ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".to_owned()),
            [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
            all => ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", all.join(","))),
        };
        return pending(claim, Some(Action::normal(&about, reason, text)));
    }
    if class.is_empty() {
        let text = "no persistent volumes available for this claim and no storage class is set".into();
        return pending(claim, Some(Action::normal(&about, "FailedBinding", text)));
    }
    if w.dynamic { provision(claim, w, &about) } else { Vec::new() }
}

/// Ask for a volume.
fn provision(claim: &PersistentVolumeClaim, w: &World, about: &ObjectReference) -> Vec<Action> {
    let failed = |text: String| vec![Action::warning(about, "ProvisioningFailed", text)];
    let Some(class) = w.class.as_ref() else {
        return failed(format!("storageclass.storage.k8s.io \"{}\" not found", claim_class(claim)));
    };
    let provisioner = match maker::maker(&class.provisioner) {
        Maker::Driver(driver) => driver,
        Maker::Host => HOST_PATH,
        Maker::Nobody(why) => return failed(why),
    };
    if object::annotation(&claim.metadata, PROVISIONER) != Some(provisioner) {
        let mut copy = claim.clone();
        let notes = copy.metadata.annotations.get_or_insert_default();
        notes.insert(PROVISIONER.into(), provisioner.to_owned());
        notes.insert(OLD_PROVISIONER.into(), provisioner.to_owned());
        return vec![Action::update(&copy)];
    }
    if provisioner == HOST_PATH {
        // Where it is switched on, the binder makes the volume instead.
        return failed(format!(
            "Failed to create provisioner: provisioning in volume plugin {HOST_PATH:?} is disabled"
        ));
    }
    let text = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    vec![Action::normal(about, "ExternalProvisioning", text)]
}

/// The claim is bound to nothing, in this phase.
fn unbound(claim: &PersistentVolumeClaim, phase: &str) -> Option<Action> {
    let mut copy = claim.clone();
    let status = copy.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.access_modes = None;
    status.capacity = None;
    status.current_volume_attributes_class_name = None;
    (copy.status != claim.status).then(|| Action::update_status(&copy))
}

fn pending(claim: &PersistentVolumeClaim, event: Option<Action>) -> Vec<Action> {
    event.into_iter().chain(unbound(claim, "Pending")).collect()
}

fn lost(claim: &PersistentVolumeClaim, reason: &'static str, text: &str) -> Vec<Action> {
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
        return Vec::new();
    }
    // Told once, when it is so.
    let event = Action::warning(&claim_reference(claim), reason, text.to_owned());
    unbound(claim, "Lost").into_iter().chain([event]).collect()
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
    c.status = Some(bound_status(volume, claim));
    if c.status == claim.status { Vec::new() } else { vec![Action::update_status(&c)] }
}

/// The status of a claim with its volume. Once it is bound, its capacity and its attributes are others' business.
fn bound_status(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolumeClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    let spec = volume.spec.as_ref();
    let before = status.phase.replace("Bound".to_owned()).unwrap_or_default();
    status.access_modes = spec.and_then(|s| s.access_modes.clone());
    if before == "Bound" {
        return status;
    }
    let size = spec.and_then(|s| s.capacity.as_ref()?.get("storage"));
    match object::annotation(&volume.metadata, BEFORE_RESIZE) {
        // The file system has not grown with the volume yet.
        Some(small) => {
            let small = Some(Stored(small.to_owned())).filter(|q| Quantity::parse(&q.0).is_ok()).or(size.cloned());
            status.capacity.get_or_insert_default().extend(small.map(|q| ("storage".to_owned(), q)));
        }
        None if status.capacity.as_ref().and_then(|c| c.get("storage")) != size => {
            status.capacity = spec.and_then(|s| s.capacity.clone());
        }
        None => {}
    }
    if before == "Pending" {
        status.current_volume_attributes_class_name = spec.and_then(|s| s.volume_attributes_class_name.clone());
    }
    status
}

/// States of a volume by its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// The volume has no claim, or none that is there yet.
    Loose,
    /// Joining is the claim's business.
    Held,
    /// The volume is of another mode than the claim asks for.
    Unfit,
    /// The claim is gone, or took another volume than the one that was made for it.
    Released,
    /// The claim took another volume.
    Elsewhere,
}

/// Returns the state of a volume by the claim of the name that it refers to, as far as there is one.
#[must_use]
pub fn tie(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Tie {
    let Some(spec) = volume.spec.as_ref() else { return Tie::Held };
    let reference = spec.claim_ref.as_ref().filter(|r| r.uid.as_deref().is_some_and(|u| !u.is_empty()));
    let Some(reference) = reference else { return Tie::Loose };
    let Some(claim) = claim.filter(|c| reference.uid == c.metadata.uid) else { return Tie::Released };
    let named = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    let made = object::annotation(&volume.metadata, PROVISIONED_BY).is_some();
    match named {
        "" if same_mode(volume, claim) => Tie::Held,
        "" => Tie::Unfit,
        named if named == object::name(&volume.metadata) => Tie::Held,
        _ if made && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") => Tie::Released,
        _ => Tie::Elsewhere,
    }
}

/// The next writes for a volume. `claim` is the claim it refers to, as far as it exists.
#[must_use]
pub fn volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Vec<Action> {
    let (notes, guards) = (maker::noted_of_volume(volume.metadata.annotations.as_ref()), maker::guarded(volume));
    if notes.is_some() || guards.is_some() {
        let mut copy = volume.clone();
        copy.metadata.annotations = notes.or(copy.metadata.annotations);
        copy.metadata.finalizers = guards.or(copy.metadata.finalizers);
        return vec![Action::update(&copy)];
    }
    let current = volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    match (tie(volume, claim), claim) {
        (Tie::Loose, _) if current == "Available" => Vec::new(),
        (Tie::Loose, _) => vec![phase(volume, "Available", None)],
        (Tie::Unfit, Some(claim)) => unfit(volume, claim),
        (Tie::Held | Tie::Unfit, _) => Vec::new(),
        (Tie::Released, _) if !matches!(current, "Released" | "Failed") => vec![phase(volume, "Released", None)],
        (Tie::Released, _) => reclaim(volume),
        (Tie::Elsewhere, _) => vec![Action::update(&unbind(volume))],
    }
}

/// The volume without its claim. A claim that somebody else wrote in stays by name.
#[must_use]
pub fn unbind(volume: &PersistentVolume) -> PersistentVolume {
    let mut copy = volume.clone();
    let ours = copy.metadata.annotations.as_mut().and_then(|a| a.remove(BY_US)).is_some();
    if let Some(spec) = copy.spec.as_mut() {
        if ours {
            spec.claim_ref = None;
        } else if let Some(reference) = spec.claim_ref.as_mut() {
            reference.uid = None;
            reference.resource_version = None;
        }
    }
    copy
}

fn unfit(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Vec<Action> {
    let (v, c) = (object::name(&volume.metadata), object::name(&claim.metadata));
    let of_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {c:?} due to incompatible volumeMode."
    );
    let of_claim = format!(
        "Cannot bind PersistentVolume {v:?} to requested PersistentVolumeClaim due to incompatible volumeMode."
    );
    vec![
        Action::warning(&object::reference::<PersistentVolume>(&volume.metadata), "VolumeMismatch", of_volume),
        Action::warning(&claim_reference(claim), "VolumeMismatch", of_claim),
    ]
}

/// The claim is gone.
fn reclaim(volume: &PersistentVolume) -> Vec<Action> {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain");
    let made_by = object::annotation(&volume.metadata, PROVISIONED_BY);
    if object::annotation(&volume.metadata, MIGRATED_TO).is_some_and(|to| !to.is_empty()) {
        return Vec::new();
    }
    match policy {
        "Delete" => match made_by.filter(|by| *by != HOST_PATH) {
            Some(by) => maker::undeletable(by).map(|why| not_deleted(volume, why)).unwrap_or_default(),
            None if spec.is_some_and(|s| s.csi.is_some()) || deletable_path(volume).is_some() => Vec::new(),
            None => not_deleted(
                volume,
                format!(
                    "error getting deleter volume plugin for volume \"{}\": no deletable volume plugin matched",
                    object::name(&volume.metadata)
                ),
            ),
        },
        "Recycle" if spec.is_some_and(|s| s.host_path.is_some() || s.nfs.is_some()) => Vec::new(),
        "Recycle" => fails(volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned()),
        _ => Vec::new(),
    }
}

/// Reports whether a volume is released and is to be deleted, by whoever made it. One that failed is tried again.
#[must_use]
pub fn doomed(volume: &PersistentVolume) -> bool {
    let policy = volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    policy == Some("Delete") && matches!(phase, Some("Released" | "Failed"))
}

/// The directory on this host that goes with a released volume. The binder removes it before it deletes the volume.
#[must_use]
pub fn deletable_path(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    let ours = object::annotation(&volume.metadata, PROVISIONED_BY).is_none_or(|p| p == HOST_PATH);
    spec.host_path.as_ref().filter(|_| doomed(volume) && ours).map(|h| h.path.as_str())
}

/// Releases a volume whose storage has been deleted: nothing holds it any more.
#[must_use]
pub fn deleted(volume: &PersistentVolume) -> Vec<Action> {
    let mut free = volume.clone();
    let held = free.metadata.finalizers.as_mut().is_some_and(|all| {
        let before = all.len();
        all.retain(|f| f != maker::GUARD);
        all.len() < before
    });
    let going = object::deleting(&volume.metadata);
    let delete = (!going).then(|| Action::delete::<PersistentVolume>(&volume.metadata));
    held.then(|| Action::update(&free)).into_iter().chain(delete).collect()
}

/// The volume could not be deleted.
#[must_use]
pub fn not_deleted(volume: &PersistentVolume, text: String) -> Vec<Action> {
    fails(volume, "VolumeFailedDelete", text)
}

/// The volume has failed; told once, when it is so.
pub(super) fn fails(volume: &PersistentVolume, reason: &'static str, text: String) -> Vec<Action> {
    if volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed") {
        return Vec::new();
    }
    let about = object::reference::<PersistentVolume>(&volume.metadata);
    vec![phase(volume, "Failed", Some(text.clone())), Action::warning(&about, reason, text)]
}

/// The volume on this host that `--enable-hostpath-provisioner` makes for a claim, for tests on a single node.
#[must_use]
pub fn host_path_volume(claim: &PersistentVolumeClaim, class: &StorageClass, path: &str) -> PersistentVolume {
    let spec = claim.spec.as_ref();
    let annotations =
        [("kubernetes.io/createdby", "hostpath-dynamic-provisioner"), (PROVISIONED_BY, HOST_PATH), (BY_US, YES)];
    let size = spec.and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage").cloned());
    let policy = class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into());
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(format!("pvc-{}", object::uid(&claim.metadata))),
            annotations: Some(annotations.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
            finalizers: (policy == "Delete").then(|| vec![maker::GUARD.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            persistent_volume_reclaim_policy: Some(policy),
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

fn phase(volume: &PersistentVolume, phase: &str, message: Option<String>) -> Action {
    let mut copy = volume.clone();
    let status = copy.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = message;
    Action::update_status(&copy)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
