//! Persistent volume claims. Answers for upstream's `ValidatePersistentVolumeClaim`,
//! `ValidatePersistentVolumeClaimUpdate`.

use proto::Value;
use serde_json::Map;
use shared::status::field::{Error, Path};
use shared::types::{OLD_CLASS, is_native_resource};

use super::persistent::{
    ATTRIBUTES, access_modes, attributes_stay, class_name, not_below_nothing, positive, volume_mode,
};
use crate::rules::meta::{annotation, immutable};
use crate::rules::names::{complain, dns1123_label, dns1123_subdomain, qualified_name};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{at, entries, get, has, quantity, same, text, texts};
use crate::validation::fields::shaped_if_said;
use crate::validation::internal;
use crate::validation::selectors::{label_selector, label_selector_of};

const RESIZES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// A claim.
pub(crate) fn claim(object: &Value, out: &mut FieldErrors) {
    spec(get(object, "spec"), &Path::new("spec"), out);
}

/// Reports whether a claim's data source has an API group.
pub(crate) fn has_groups(spec: &Value) -> bool {
    ["dataSource", "dataSourceRef"].iter().any(|key| has(get(spec, key), "apiGroup"))
}

/// Reports whether a claim's selector has invalid label values.
pub(crate) fn has_invalid_selector(spec: &Value) -> bool {
    let mut out = FieldErrors::default();
    label_selector(get(spec, "selector"), &Path::new("selector"), &mut out);
    !out.is_empty()
}

/// The spec of a claim or of a claim template.
pub(in crate::validation) fn spec(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if texts(spec, "accessModes").is_empty() {
        out.push(Error::required(path.child("accessModes"), "at least 1 access mode is required"));
    }
    let strict = !out.allows(ValidationOption::InvalidLabelValueInClaimSelector);
    label_selector_of(get(spec, "selector"), strict, &path.child("selector"), out);
    access_modes(spec, path, out);
    let storage = at(spec, &["resources", "requests", "storage"]);
    let storage_path = path.child("resources").key("storage");
    if storage.is_null() {
        out.push(Error::required(&storage_path, ""));
    } else {
        positive(storage, &storage_path, out);
    }
    class_name(spec, path, out);
    volume_mode(spec, path, out);
    data_source(spec, path, out);
    shaped_if_said(spec, ATTRIBUTES, dns1123_subdomain, path, out);
}

/// Validates the data source of a claim.
fn data_source(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let (source, reference) = (get(spec, "dataSource"), get(spec, "dataSourceRef"));
    one_source(source, &path.child("dataSource"), out);
    one_source(reference, &path.child("dataSourceRef"), out);
    let namespace = text(reference, "namespace");
    if !namespace.is_empty() {
        let path = path.child("dataSourceRef").child("namespace");
        complain(out, &path, namespace, dns1123_label(namespace));
    }
    let differ = || ["apiGroup", "kind", "name"].iter().any(|k| get(source, k) != get(reference, k));
    let why = if !namespace.is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if differ() {
        "must match dataSourceRef"
    } else {
        return;
    };
    if !source.is_null() && !reference.is_null() {
        let mut error = Error::invalid(path, Value::Null, why);
        error.shown = Some(path.child("dataSource").to_string());
        out.push(error);
    }
}

fn one_source(source: &Value, path: &Path, out: &mut FieldErrors) {
    if source.is_null() {
        return;
    }
    for key in ["name", "kind"] {
        if text(source, key).is_empty() {
            out.push(Error::required(path.child(key), ""));
        }
    }
    let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        out.push(Error::invalid(path, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"));
    }
    if !group.is_empty() && !out.allows(ValidationOption::InvalidApiGroupInDataSourceOrRef) {
        complain(out, &path.child("apiGroup"), group, dns1123_subdomain(group));
    }
}

fn restore(map: &mut Map<String, Value>, from: &Value, key: &str) {
    match get(from, key) {
        Value::Null => map.remove(key),
        value => map.insert(key.to_owned(), value.clone()),
    };
}

/// The new spec with what may change set back to what it was.
fn masked(spec: &Value, before: &Value, loose: &[&str], bound: bool) -> Value {
    let mut copy = spec.clone();
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

/// Validates an update of a claim: size and attributes may change once bound, the volume while unbound.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    let bound = text(get(new, "status"), "phase") == "Bound";
    let mut was = before.clone();
    if let (true, Some(was)) = (text(before, "volumeName").is_empty(), was.as_object_mut()) {
        restore(was, spec, "volumeName");
    }
    let mut loose = Vec::new();
    if bound {
        loose.push(ATTRIBUTES);
    }
    if may_get_class(new, old) {
        loose.push("storageClassName");
    }
    let annotated = annotation(new, OLD_CLASS);
    if annotated != annotation(old, OLD_CLASS) && !class_of_annotation(new, old) {
        let path = Path::of(&["metadata", "annotations", OLD_CLASS]);
        out.push(Error::invalid(path, annotated, "field is immutable"));
    }
    let masked = masked(spec, before, &loose, bound);
    if !same(&masked, &was) {
        let message =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let changes = internal::claim_diff(&was, &masked);
        out.push(Error::forbidden(&path, &format!("{message}{changes}")));
    }
    let size = |o: &Value, keys: &[&str]| quantity(at(o, keys));
    let storage = ["resources", "requests", "storage"];
    let now = size(spec, &storage);
    if now < size(before, &storage) && now <= size(old, &["status", "capacity", "storage"]) {
        let path = path.child("resources").child("requests").child("storage");
        out.push(Error::forbidden(path, "field can not be less than status.capacity"));
    }
    immutable(get(spec, "volumeMode"), get(before, "volumeMode"), &Path::new("volumeMode"), out);
    attributes_stay(spec, before, &path, out);
    let current = "status.currentVolumeAttributesClassName";
    if has(get(old, "status"), "currentVolumeAttributesClassName")
        && get(spec, ATTRIBUTES) != get(before, ATTRIBUTES)
        && text(spec, ATTRIBUTES).is_empty()
    {
        let to = if has(spec, ATTRIBUTES) { "empty string" } else { "nil" };
        let why = format!("update to {to} is forbidden when {current} is not nil");
        out.push(Error::forbidden(path.child(ATTRIBUTES), &why));
    }
}

/// The class that an annotation named moves to where it belongs; the annotation may go with that.
fn class_of_annotation(new: &Value, old: &Value) -> bool {
    let (key, named) = ("storageClassName", |o| at(o, &["metadata", "annotations", OLD_CLASS]));
    let was = named(old);
    !was.is_null()
        && !has(get(old, "spec"), key)
        && get(get(new, "spec"), key) == was
        && (named(new).is_null() || named(new) == was)
}

/// A claim without a class may get one later, also the one an annotation named.
fn may_get_class(new: &Value, old: &Value) -> bool {
    let key = "storageClassName";
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    if has(before, key) || !has(spec, key) {
        return false;
    }
    let annotated = at(old, &["metadata", "annotations", OLD_CLASS]);
    annotated.is_null() || annotated == get(spec, key)
}

/// `status` of a claim.
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    for (name, value) in entries(status, "capacity") {
        not_below_nothing(value, &path.child("capacity").key(name), out);
    }
    for (name, value) in entries(status, "allocatedResourceStatuses") {
        let path = path.child("allocatedResourceStatuses");
        resizable(name, &path, out);
        // Upstream shows of what the status is, not which.
        if !RESIZES.contains(&value.as_str().unwrap_or_default()) {
            out.push(Error::not_supported(&path, name.as_str(), &RESIZES));
        }
    }
    for (name, value) in entries(status, "allocatedResources") {
        let (path, before) = (path.child("allocatedResources"), out.len());
        resizable(name, &path, out);
        if out.len() == before {
            not_below_nothing(value, &path.key(name), out);
        }
    }
}

/// Validates the name of a resizable resource: storage, or one of another domain.
fn resizable(name: &str, path: &Path, out: &mut FieldErrors) {
    let complaints = qualified_name(name);
    if !complaints.is_empty() {
        complain(out, path, name, complaints);
        return;
    }
    if is_native_resource(name) && name != "storage" {
        out.push(Error::not_supported(path, name, &["storage"]));
    }
}
