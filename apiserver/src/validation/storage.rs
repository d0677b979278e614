//! Persistent volumes, claims, storage classes, attachments, drivers.

use proto::Value;
use serde_json::Map;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::names::{complain, dns1123_subdomain};
use super::selectors::{label_selector, node_selector};
use super::tree::{at, entries, get, has, list, quantity, same, text, texts};
use super::volume::{driver_name, host_path, needed, source};

const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// What a persistent volume can be made of.
const SOURCES: &[&str] = &[
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

fn access_modes(spec: &Value, none: &str, path: &Path, out: &mut Vec<Error>) {
    let (modes, path) = (texts(spec, "accessModes"), path.child("accessModes"));
    if modes.is_empty() {
        out.push(Error::required(&path, none));
    }
    for mode in modes.iter().filter(|m| !MODES.contains(m)) {
        out.push(Error::not_supported(&path, *mode, MODES));
    }
    if modes.len() > 1 && modes.contains(&"ReadWriteOncePod") {
        out.push(Error::forbidden(&path, "may not use ReadWriteOncePod with other access modes"));
    }
}

fn volume_mode(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let mode = text(spec, "volumeMode");
    if !matches!(mode, "" | "Block" | "Filesystem") {
        out.push(Error::not_supported(path.child("volumeMode"), mode, &["Block", "Filesystem"]));
    }
}

fn class_name(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let name = text(spec, "storageClassName");
    if !name.is_empty() {
        complain(out, &path.child("storageClassName"), name, dns1123_subdomain(name));
    }
}

fn positive(value: &Value, path: &Path, out: &mut Vec<Error>) {
    let q = quantity(value);
    if q.sign() <= 0 {
        out.push(Error::invalid(path, q.to_string(), "must be greater than zero"));
    }
}

/// A persistent volume.
pub(super) fn volume(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    access_modes(spec, "", &path, out);
    let capacity = get(spec, "capacity");
    let size = entries(spec, "capacity").count();
    if size == 0 {
        out.push(Error::required(path.child("capacity"), ""));
    }
    if !has(capacity, "storage") || size > 1 {
        out.push(Error::not_supported(path.child("capacity"), capacity.clone(), &["storage"]));
    }
    for (name, value) in entries(spec, "capacity") {
        positive(value, &path.child("capacity").key(name), out);
    }
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    if !matches!(policy, "" | "Delete" | "Recycle" | "Retain") {
        out.push(Error::not_supported(&policy_path, policy, &["Delete", "Recycle", "Retain"]));
    }
    let required = at(spec, &["nodeAffinity", "required"]);
    if has(spec, "nodeAffinity") {
        let path = path.child("nodeAffinity").child("required");
        if required.is_null() {
            out.push(Error::required(path, "must specify required node constraints"));
        } else {
            node_selector(required, &path, out);
        }
    }
    volume_source(spec, &path, out);
    if policy == "Recycle" && text(get(spec, "hostPath"), "path") == "/" {
        out.push(Error::forbidden(&policy_path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    class_name(spec, &path, out);
    volume_mode(spec, &path, out);
}

fn volume_source(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut first = true;
    for kind in SOURCES.iter().filter(|k| has(spec, k)) {
        let (value, path_of) = (get(spec, kind), path.child(kind));
        if !first {
            out.push(Error::forbidden(path_of, "may not specify more than 1 volume type"));
            continue;
        }
        first = false;
        match *kind {
            "hostPath" => host_path(value, &path_of, out),
            "local" => {
                if text(value, "path").is_empty() {
                    out.push(Error::required(path_of.child("path"), ""));
                }
                if !has(spec, "nodeAffinity") {
                    out.push(Error::required(path.child("nodeAffinity"), "Local volume requires node affinity"));
                }
            }
            "csi" => {
                driver_name(text(value, "driver"), &path_of.child("driver"), out);
                if text(value, "volumeHandle").is_empty() {
                    out.push(Error::required(path_of.child("volumeHandle"), ""));
                }
            }
            kind => source(kind, needed(kind), value, &path_of, out),
        }
    }
    if first {
        out.push(Error::required(path, "must specify a volume type"));
    }
}

/// What may change on a volume.
pub(super) fn volume_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    if SOURCES.iter().any(|k| !same(get(spec, k), get(before, k))) {
        let message = "spec.persistentvolumesource is immutable after creation";
        out.push(Error::forbidden(path.child("persistentvolumesource"), message));
    }
    immutable(get(spec, "volumeMode"), get(before, "volumeMode"), &path.child("volumeMode"), out);
    if has(before, "nodeAffinity") && !same(get(spec, "nodeAffinity"), get(before, "nodeAffinity")) {
        let message = "field is immutable, except for updating from beta label to GA";
        out.push(Error::invalid(path.child("nodeAffinity"), get(spec, "nodeAffinity").clone(), message));
    }
}

/// A claim.
pub(super) fn claim(object: &Value, out: &mut Vec<Error>) {
    claim_spec(get(object, "spec"), &Path::new("spec"), out);
}

/// The spec of a claim or of a claim template.
pub(super) fn claim_spec(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    access_modes(spec, "at least 1 access mode is required", path, out);
    label_selector(get(spec, "selector"), &path.child("selector"), out);
    let storage = at(spec, &["resources", "requests", "storage"]);
    let storage_path = path.child("resources").key("storage");
    if storage.is_null() {
        out.push(Error::required(&storage_path, ""));
    } else {
        positive(storage, &storage_path, out);
    }
    class_name(spec, path, out);
    volume_mode(spec, path, out);
    let data = get(spec, "dataSource");
    if !data.is_null() {
        let path = path.child("dataSource");
        for key in ["name", "kind"] {
            if text(data, key).is_empty() {
                out.push(Error::required(path.child(key), ""));
            }
        }
        if text(data, "apiGroup").is_empty() && text(data, "kind") != "PersistentVolumeClaim" {
            let message = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            out.push(Error::invalid(&path, text(data, "kind"), message));
        }
    }
}

/// The new spec with what may change set back to what it was.
fn masked(spec: &Value, before: &Value, loose: &[&str], bound: bool) -> Value {
    let mut copy = spec.clone();
    let restore = |map: &mut Map<String, Value>, from: &Value, key: &str| match get(from, key) {
        Value::Null => {
            map.remove(key);
        }
        value => {
            map.insert(key.to_owned(), value.clone());
        }
    };
    if let Some(map) = copy.as_object_mut() {
        for key in loose {
            restore(map, before, key);
        }
    }
    let requests = copy.get_mut("resources").and_then(|r| r.get_mut("requests")).and_then(Value::as_object_mut);
    if let (true, Some(requests)) = (bound, requests) {
        restore(requests, at(before, &["resources", "requests"]), "storage");
    }
    copy
}

/// What may change on a claim: the size once bound, the volume while unbound.
pub(super) fn claim_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    let mut loose = vec!["volumeAttributesClassName"];
    if text(before, "volumeName").is_empty() {
        loose.push("volumeName");
    }
    if !has(before, "storageClassName") {
        loose.push("storageClassName");
    }
    let bound = text(get(old, "status"), "phase") == "Bound";
    let masked = masked(spec, before, &loose, bound);
    if !same(&masked, before) {
        let message =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let changes = super::internal::claim_diff(before, &masked);
        out.push(Error::forbidden(&path, &format!("{message}{changes}")));
    }
    let size = |o: &Value, keys: &[&str]| quantity(at(o, keys));
    let (now, was) =
        (size(spec, &["resources", "requests", "storage"]), size(before, &["resources", "requests", "storage"]));
    if bound && now < was && now <= size(old, &["status", "capacity", "storage"]) {
        let path = path.child("resources").child("requests").child("storage");
        out.push(Error::forbidden(path, "field can not be less than status.capacity"));
    }
    immutable(get(spec, "volumeMode"), get(before, "volumeMode"), &path.child("volumeMode"), out);
}

/// A storage class.
pub(super) fn class(object: &Value, out: &mut Vec<Error>) {
    let provisioner = text(object, "provisioner");
    if provisioner.is_empty() {
        out.push(Error::required("provisioner", ""));
    } else {
        complain(
            out,
            &Path::new("provisioner"),
            provisioner,
            super::names::qualified_name(&provisioner.to_lowercase()),
        );
    }
    let parameters: Vec<_> = entries(object, "parameters").collect();
    if parameters.len() > 512 {
        out.push(Error::too_long("parameters", 512));
    }
    for (key, _) in &parameters {
        if key.is_empty() {
            out.push(Error::invalid("parameters", "", "field can not be empty."));
        }
    }
    let policy = text(object, "reclaimPolicy");
    if !matches!(policy, "" | "Delete" | "Retain") {
        out.push(Error::not_supported("reclaimPolicy", policy, &["Delete", "Retain"]));
    }
    match text(object, "volumeBindingMode") {
        "" => out.push(Error::required("volumeBindingMode", "")),
        "Immediate" | "WaitForFirstConsumer" => {}
        other => {
            out.push(Error::not_supported("volumeBindingMode", other, &["Immediate", "WaitForFirstConsumer"]));
        }
    }
}

/// What may not change on a storage class.
pub(super) fn class_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    for key in ["parameters", "provisioner", "reclaimPolicy"] {
        if !same(get(new, key), get(old, key)) {
            out.push(Error::forbidden(key, &format!("updates to {key} are forbidden.")));
        }
    }
    immutable(get(new, "volumeBindingMode"), get(old, "volumeBindingMode"), &Path::new("volumeBindingMode"), out);
}

/// A volume attachment.
pub(super) fn attachment(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    match text(spec, "attacher") {
        "" => out.push(Error::required(path.child("attacher"), "")),
        name => complain(out, &path.child("attacher"), name, super::names::qualified_name(&name.to_lowercase())),
    }
    if text(spec, "nodeName").is_empty() {
        out.push(Error::required(path.child("nodeName"), ""));
    }
    let holder = get(spec, "source");
    match (has(holder, "inlineVolumeSpec"), has(holder, "persistentVolumeName")) {
        (false, false) => {
            let message = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            out.push(Error::required(path.child("source"), message));
        }
        (true, true) => {
            let message = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            out.push(Error::forbidden(path.child("source"), message));
        }
        _ => {}
    }
}

/// An attachment's spec may not change.
pub(super) fn attachment_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    immutable(get(new, "spec"), get(old, "spec"), &Path::new("spec"), out);
}

/// A CSI driver.
pub(super) fn csi_driver(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    for (i, mode) in texts(spec, "volumeLifecycleModes").iter().enumerate() {
        if !matches!(*mode, "Ephemeral" | "Persistent") {
            let path = path.child("volumeLifecycleModes").index(i);
            out.push(Error::not_supported(path, *mode, &["Ephemeral", "Persistent"]));
        }
    }
    let policy = text(spec, "fsGroupPolicy");
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    if !policy.is_empty() && !policies.contains(&policy) {
        out.push(Error::not_supported(path.child("fsGroupPolicy"), policy, &policies));
    }
}

/// A node's CSI drivers.
pub(super) fn csi_node(object: &Value, out: &mut Vec<Error>) {
    let mut names = Vec::new();
    for (i, driver) in list(get(object, "spec"), "drivers").iter().enumerate() {
        let path = Path::of(&["spec", "drivers"]).index(i);
        let name = text(driver, "name");
        driver_name(name, &path.child("name"), out);
        if names.contains(&name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
        names.push(name);
        if text(driver, "nodeID").is_empty() {
            out.push(Error::required(path.child("nodeID"), ""));
        }
    }
}
