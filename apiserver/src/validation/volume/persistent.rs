//! Persistent volumes, and the volume specs inside attachments. Answers for upstream's `ValidatePersistentVolume`,
//! `ValidatePersistentVolumeSpec`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::{MORE_THAN_ONE, source};
use crate::rules::meta::immutable;
use crate::rules::names::{complain, dns1123_subdomain};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{at, entries, get, has, has_entries, quantity, same, text, texts};
use crate::validation::fields::shaped_if_said;
use crate::validation::internal;
use crate::validation::selectors::node_selector;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// Sources of persistent volumes, in the order of validation.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];
/// Sources that do not support mount options in an annotation.
const WITHOUT_OPTIONS: [&str; 9] =
    ["hostPath", "flocker", "fc", "flexVolume", "portworxVolume", "scaleIO", "local", "storageos", "csi"];
pub(super) const ATTRIBUTES: &str = "volumeAttributesClassName";
const INLINE: &str = "may not be specified in the context of inline volumes";
/// Labels of nodes that were renamed, and their new names.
const RENAMED: [(&str, &str); 5] = [
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// `accessModes` of a volume or claim, as far as there are any.
pub(super) fn access_modes(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let (modes, path) = (texts(spec, "accessModes"), path.child("accessModes"));
    for mode in modes.iter().filter(|m| !MODES.contains(m)) {
        out.push(Error::not_supported(&path, *mode, &MODES));
    }
    let another = modes.iter().any(|m| *m != "ReadWriteOncePod" && MODES.contains(m));
    if another && modes.contains(&"ReadWriteOncePod") {
        out.push(Error::forbidden(&path, "may not use ReadWriteOncePod with other access modes"));
    }
}

/// `volumeMode` of a volume or claim.
pub(super) fn volume_mode(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let mode = text(spec, "volumeMode");
    if has(spec, "volumeMode") && !matches!(mode, "Block" | "Filesystem") {
        out.push(Error::not_supported(path.child("volumeMode"), mode, &["Block", "Filesystem"]));
    }
}

/// `storageClassName` of a volume or claim.
pub(super) fn class_name(spec: &Value, path: &Path, out: &mut FieldErrors) {
    shaped_if_said(spec, "storageClassName", dns1123_subdomain, path, out);
}

/// A size above nothing.
pub(super) fn positive(value: &Value, path: &Path, out: &mut FieldErrors) {
    let q = quantity(value);
    if q.sign() <= 0 {
        out.push(Error::invalid(path, q.to_string(), "must be greater than zero"));
    }
}

/// A new persistent volume.
pub(crate) fn new_volume(object: &Value, out: &mut FieldErrors) {
    volume(object, out);
    mounted_by_annotation(object, out);
}

/// A persistent volume.
fn volume(object: &Value, out: &mut FieldErrors) {
    let name = text(get(object, "metadata"), "name");
    spec(get(object, "spec"), name, false, &Path::new("spec"), out);
}

/// Only what is older than the field for it takes options of mounting from an annotation.
fn mounted_by_annotation(object: &Value, out: &mut FieldErrors) {
    const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
    let spec = get(object, "spec");
    let takes_them = SOURCES.iter().any(|kind| has(spec, kind) && !WITHOUT_OPTIONS.contains(kind));
    if !takes_them && has(at(object, &["metadata", "annotations"]), OPTIONS) {
        let path = Path::of(&["metadata", "annotations", OPTIONS]);
        out.push(Error::forbidden(path, "may not specify mount options for this volume type"));
    }
}

/// Validates the spec of a persistent volume, on its own or `inline` in an attachment.
pub(in crate::validation) fn spec(spec: &Value, name: &str, inline: bool, path: &Path, out: &mut FieldErrors) {
    if inline {
        for (key, set) in [("claimRef", has(spec, "claimRef")), ("capacity", has_entries(spec, "capacity"))] {
            if set {
                out.push(Error::forbidden(path.child(key), INLINE));
            }
        }
        if !has(spec, "csi") {
            out.push(Error::required(path.child("csi"), "has to be specified in the context of inline volumes"));
        }
    }
    if texts(spec, "accessModes").is_empty() {
        out.push(Error::required(path.child("accessModes"), ""));
    }
    access_modes(spec, path, out);
    if !inline {
        capacity(spec, &path.child("capacity"), out);
    }
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        if inline && policy != "Retain" {
            out.push(Error::forbidden(&policy_path, "may only be Retain in the context of inline volumes"));
        } else if !inline && !matches!(policy, "Delete" | "Recycle" | "Retain") {
            out.push(Error::not_supported(&policy_path, policy, &["Delete", "Recycle", "Retain"]));
        }
    }
    if has(spec, "nodeAffinity") {
        nodes(get(spec, "nodeAffinity"), inline, &path.child("nodeAffinity"), out);
    }
    volume_source(spec, name, path, out);
    let root = text(get(spec, "hostPath"), "path");
    if policy == "Recycle" && root.starts_with('/') && root.split('/').all(|part| matches!(part, "" | ".")) {
        out.push(Error::forbidden(&policy_path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    if !inline {
        class_name(spec, path, out);
    } else if !text(spec, "storageClassName").is_empty() {
        out.push(Error::forbidden(path.child("storageClassName"), INLINE));
    }
    let mode = text(spec, "volumeMode");
    if !inline {
        volume_mode(spec, path, out);
    } else if has(spec, "volumeMode") && mode != "Filesystem" {
        let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        out.push(Error::forbidden(path.child("volumeMode"), why));
    }
    if has(spec, ATTRIBUTES) {
        attributes_class(spec, path, out);
    }
}

/// Validates the node affinity of a volume.
fn nodes(affinity: &Value, inline: bool, path: &Path, out: &mut FieldErrors) {
    let (required, within) = (get(affinity, "required"), path.child("required"));
    if inline {
        out.push(Error::forbidden(path, INLINE));
    } else if required.is_null() {
        out.push(Error::required(within, "must specify required node constraints"));
    } else {
        node_selector(required, !out.allows(ValidationOption::InvalidLabelValueInRequiredNodeAffinity), &within, out);
    }
}

/// An amount that is not below nothing; upstream shows it as a plain number.
pub(super) fn not_below_nothing(value: &Value, path: &Path, out: &mut FieldErrors) {
    let amount = quantity(value).value();
    if amount < 0 {
        out.push(Error::invalid(path, amount, "must be a valid resource quantity"));
    }
}

fn capacity(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let (capacity, size) = (get(spec, "capacity"), entries(spec, "capacity").count());
    if size == 0 {
        out.push(Error::required(path, ""));
    }
    if !has(capacity, "storage") || size > 1 {
        out.push(Error::not_supported(path, capacity.clone(), &["storage"]));
    }
    for (name, value) in entries(spec, "capacity") {
        let path = path.key(name);
        not_below_nothing(value, &path, out);
        positive(value, &path, out);
    }
}

fn attributes_class(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let (name, path_of) = (text(spec, ATTRIBUTES), path.child(ATTRIBUTES));
    if name.is_empty() {
        out.push(Error::required(path_of, "an empty string is disallowed"));
    } else {
        complain(out, &path_of, name, dns1123_subdomain(name));
    }
    if !has(spec, "csi") {
        let why = "has to be specified when using volumeAttributesClassName";
        out.push(Error::required(path.child("csi"), why));
    }
}

fn volume_source(spec: &Value, name: &str, path: &Path, out: &mut FieldErrors) {
    let mut first = true;
    for kind in SOURCES.into_iter().filter(|k| has(spec, k)) {
        if first || kind == "flexVolume" {
            first = false;
            source::source(spec, kind, name, true, path, out);
            if kind == "local" && !has(spec, "nodeAffinity") {
                out.push(Error::required(path.child("nodeAffinity"), "Local volume requires node affinity"));
            }
        } else {
            out.push(Error::forbidden(path.child(source::misnamed(kind)), MORE_THAN_ONE));
        }
    }
    if first {
        out.push(Error::required(path, "must specify a volume type"));
    }
}

/// Validates an update of a persistent volume, which includes the whole of create validation.
pub(crate) fn volume_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    volume(new, out);
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    let now = expanded(spec, before);
    if SOURCES.iter().any(|k| !same(get(&now, k), get(before, k))) {
        let changes = internal::volume_diff(before, &now);
        let why = format!("spec.persistentvolumesource is immutable after creation{changes}");
        out.push(Error::forbidden(path.child("persistentvolumesource"), &why));
    }
    immutable(get(spec, "volumeMode"), get(before, "volumeMode"), &Path::new("volumeMode"), out);
    let (affinity, was) = (get(spec, "nodeAffinity"), get(before, "nodeAffinity"));
    let stays = !was.is_null() && !out.allows(ValidationOption::MutablePvNodeAffinity);
    if stays && !same(affinity, was) && !same(affinity, &renamed(was, affinity)) {
        let why = "field is immutable, except for updating from beta label to GA";
        out.push(Error::invalid("nodeAffinity", affinity.clone(), why));
    }
    attributes_stay(spec, before, &path, out);
    if has(before, ATTRIBUTES) && !has(spec, ATTRIBUTES) {
        out.push(Error::forbidden(path.child(ATTRIBUTES), "update from non-nil value to nil is forbidden"));
    }
}

/// Without the gate, the class of a volume's or claim's attributes stays.
pub(super) fn attributes_stay(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) {
    if get(spec, ATTRIBUTES) != get(before, ATTRIBUTES) && out.allows(ValidationOption::ImmutableVolumeAttributesClass)
    {
        let why = "update is forbidden when the VolumeAttributesClass feature gate is disabled";
        out.push(Error::forbidden(path.child(ATTRIBUTES), why));
    }
}

/// The new spec, without the one thing about its source that may be added later.
fn expanded(spec: &Value, before: &Value) -> Value {
    let key = "controllerExpandSecretRef";
    let mut copy = spec.clone();
    if !has(get(before, "csi"), key)
        && let Some(csi) = copy.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove(key);
    }
    copy
}

/// The old affinity where the new one's keys are the new names of its labels.
fn renamed(was: &Value, now: &Value) -> Value {
    let key = get(was, "key").as_str().zip(get(now, "key").as_str());
    match (was, now) {
        (Value::Object(a), Value::Object(_)) => {
            let mut copy: serde_json::Map<String, Value> =
                a.iter().map(|(k, v)| (k.clone(), renamed(v, get(now, k)))).collect();
            if key.is_some_and(|pair| RENAMED.contains(&pair)) {
                copy.insert("key".to_owned(), get(now, "key").clone());
            }
            Value::Object(copy)
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            Value::Array(a.iter().zip(b).map(|(a, b)| renamed(a, b)).collect())
        }
        _ => was.clone(),
    }
}
