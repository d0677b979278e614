//! Storage classes, attribute classes, attachments. Answers for upstream's `ValidateStorageClass`,
//! `ValidateVolumeAttachment`.

pub(crate) mod csi;

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::fields::choice;
use super::meta::immutable;
use super::names::{between, complain, dns1123_subdomain, label_key, qualified_name};
use super::tree::{entries, get, has, int, list, text, texts};
use super::volume;
use crate::rules::options::FieldErrors;

const MAX_PARAMETERS: usize = 512;
const MAX_BYTES: usize = 256 * 1024;
const MAX_MESSAGE: usize = 1024;
const ONE_SOURCE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";

/// The name of a driver or provisioner, where capitals do not matter.
fn driver(object: &Value, key: &str, path: &Path, out: &mut FieldErrors) {
    let (name, path) = (text(object, key).to_lowercase(), path.child(key));
    if name.is_empty() {
        out.push(Error::required(path, ""));
    } else {
        complain(out, &path, &name, qualified_name(&name));
    }
}

/// The parameters of a class; `needed` where there is no class without.
fn parameters(object: &Value, needed: bool, out: &mut FieldErrors) {
    let path = Path::new("parameters");
    let all: Vec<_> = entries(object, "parameters").collect();
    if all.len() > MAX_PARAMETERS {
        out.push(Error::too_long(&path, MAX_PARAMETERS));
        return;
    }
    let mut size = 0;
    for (key, value) in &all {
        if key.is_empty() {
            out.push(Error::invalid(&path, key.as_str(), "field can not be empty."));
        }
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > MAX_BYTES {
        out.push(Error::too_long(&path, MAX_BYTES));
    }
    if needed && all.is_empty() {
        out.push(Error::required(&path, "must contain at least one key/value pair"));
    }
}

/// A storage class.
pub(crate) fn class(object: &Value, out: &mut FieldErrors) {
    driver(object, "provisioner", &Path::default(), out);
    parameters(object, false, out);
    let policy = text(object, "reclaimPolicy");
    if !matches!(policy, "" | "Delete" | "Retain") {
        out.push(Error::not_supported("reclaimPolicy", policy, &["Delete", "Retain"]));
    }
    choice(object, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], &Path::default(), out);
    topologies(object, out);
}

fn topologies(object: &Value, out: &mut FieldErrors) {
    let terms = list(object, "allowedTopologies");
    // Upstream compares with as many terms without expressions beforehand: one like that is never allowed.
    let mut seen: Vec<Vec<(&str, BTreeSet<&str>)>> = vec![Vec::new(); terms.len()];
    for (i, term) in terms.iter().enumerate() {
        let path = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
        let mut keys = BTreeSet::new();
        let mut all = Vec::new();
        for (i, requirement) in list(term, "matchLabelExpressions").iter().enumerate() {
            let (path, key) = (path.index(i), text(requirement, "key"));
            let values = texts(requirement, "values");
            if values.is_empty() {
                out.push(Error::required(path.child("values"), ""));
            }
            let mut distinct = BTreeSet::new();
            for (i, value) in values.into_iter().enumerate() {
                if !distinct.insert(value) {
                    out.push(Error::duplicate(path.child("values").index(i), value));
                }
            }
            complain(out, &path.child("key"), key, label_key(key));
            if !keys.insert(key) {
                out.push(Error::duplicate(path.child("key"), key));
            }
            all.push((key, distinct));
        }
        all.sort();
        for _ in seen.iter().filter(|other| **other == all) {
            out.push(Error::duplicate(&path, ""));
        }
        seen.push(all);
    }
}

/// Validates an update of a storage class.
pub(crate) fn class_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    for key in ["parameters", "provisioner", "reclaimPolicy"] {
        stays(new, old, key, out);
    }
    immutable(get(new, "volumeBindingMode"), get(old, "volumeBindingMode"), &Path::new("volumeBindingMode"), out);
}

/// A field that may not change, not even from nothing to what is empty.
fn stays(new: &Value, old: &Value, key: &str, out: &mut FieldErrors) {
    if get(new, key) != get(old, key) {
        out.push(Error::forbidden(key, &format!("updates to {key} are forbidden.")));
    }
}

/// A volume attributes class.
pub(crate) fn attributes_class(object: &Value, out: &mut FieldErrors) {
    driver(object, "driverName", &Path::default(), out);
    parameters(object, true, out);
}

/// Validates an update of a volume attributes class.
pub(crate) fn attributes_class_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    for key in ["driverName", "parameters"] {
        stays(new, old, key, out);
    }
}

/// A new volume attachment, which is asked more than what older releases stored.
pub(crate) fn new_attachment(object: &Value, out: &mut FieldErrors) {
    attachment(object, out);
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    volume::driver_name(text(spec, "attacher"), &path.child("attacher"), out);
    let volume = text(get(spec, "source"), "persistentVolumeName");
    if has(get(spec, "source"), "persistentVolumeName") {
        complain(out, &path.child("source").child("persistentVolumeName"), volume, dns1123_subdomain(volume));
    }
}

/// A volume attachment.
fn attachment(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (attacher, node) = (text(spec, "attacher"), text(spec, "nodeName"));
    if attacher.is_empty() {
        out.push(Error::required(path.child("attacher"), ""));
    }
    source(get(spec, "source"), &path.child("source"), out);
    complain(out, &path.child("nodeName"), node, dns1123_subdomain(node));
    attachment_status(object, out);
}

fn source(holder: &Value, path: &Path, out: &mut FieldErrors) {
    let inline = get(holder, "inlineVolumeSpec");
    match (inline.is_null(), has(holder, "persistentVolumeName")) {
        (true, false) => out.push(Error::required(path, ONE_SOURCE)),
        (false, true) => out.push(Error::forbidden(path, ONE_SOURCE)),
        (true, true) => {
            if text(holder, "persistentVolumeName").is_empty() {
                let why = "must specify non empty persistentVolumeName";
                out.push(Error::required(path.child("persistentVolumeName"), why));
            }
        }
        (false, false) => volume::persistent::spec(inline, "", true, &path.child("inlineVolumeSpec"), out),
    }
}

/// A changed attachment, or one whose status changed: its spec may not.
pub(crate) fn attachment_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    attachment(new, out);
    immutable(get(new, "spec"), get(old, "spec"), &Path::new("spec"), out);
}

/// `status` of an attachment.
fn attachment_status(object: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(object, "status"), Path::new("status"));
    let size: usize =
        entries(status, "attachmentMetadata").map(|(k, v)| k.len() + v.as_str().unwrap_or_default().len()).sum();
    if size > MAX_BYTES {
        out.push(Error::too_long(path.child("attachmentMetadata"), MAX_BYTES));
    }
    for key in ["attachError", "detachError"] {
        let (error, path) = (get(status, key), path.child(key));
        if text(error, "message").len() > MAX_MESSAGE {
            out.push(Error::too_long(path.child("message"), MAX_BYTES));
        }
        if let Some(code) = int(error, "errorCode").filter(|c| *c < 0) {
            out.push(Error::invalid(path.child("errorCode"), code, &between(0, i64::from(i32::MAX))));
        }
    }
}
