//! Priority classes, and workloads whose pods are scheduled together. Answers for upstream's `ValidatePriorityClass`,
//! `ValidateWorkload`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::fields::{choice, shaped, shaped_if_said};
use super::meta::immutable;
use super::names::{complain, dns1123_label, dns1123_subdomain, path_segment};
use super::tree::{flag, get, has, int, list, text};
use crate::rules::options::FieldErrors;

/// Highest value users may define.
const HIGHEST: i64 = 1_000_000_000;
/// The classes the system defines: name and value.
const SYSTEM: [(&str, i64); 2] = [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// A priority class.
pub(crate) fn class(object: &Value, out: &mut FieldErrors) {
    let name = text(get(object, "metadata"), "name");
    let value = int(object, "value").unwrap_or_default();
    if name.starts_with("system-") {
        let wrong = match SYSTEM.iter().find(|(n, _)| *n == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, v)) if *v != value => Some(format!("value of {name} PriorityClass must be {v}")),
            Some(_) if flag(object, "globalDefault") => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(wrong) = wrong {
            let message =
                format!("priority class names with 'system-' prefix are reserved for system use only. error: {wrong}");
            out.push(Error::forbidden(Path::of(&["metadata", "name"]), &message));
        }
    } else if value > HIGHEST {
        let message = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        out.push(Error::forbidden("value", &message));
    }
    if has(object, "preemptionPolicy") {
        choice(object, "preemptionPolicy", &["PreemptLowerPriority", "Never"], &Path::default(), out);
    }
}

/// A priority class keeps its value.
pub(crate) fn class_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    if int(new, "value") != int(old, "value") {
        out.push(Error::forbidden("value", "may not be changed in an update."));
    }
    immutable(get(new, "preemptionPolicy"), get(old, "preemptionPolicy"), &Path::new("preemptionPolicy"), out);
}

const MAX_GROUPS: usize = 8;

/// A workload.
pub(crate) fn workload(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if has(spec, "controllerRef") {
        controller(get(spec, "controllerRef"), &path.child("controllerRef"), out);
    }
    let (groups, path) = (list(spec, "podGroups"), path.child("podGroups"));
    if groups.is_empty() {
        out.push(Error::required(path, "must have at least one item"));
        return;
    }
    if groups.len() > MAX_GROUPS {
        out.push(Error::too_many(path, groups.len(), MAX_GROUPS));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, group) in groups.iter().enumerate() {
        let (name, path) = (text(group, "name"), path.index(i));
        complain(out, &path.child("name"), name, dns1123_label(name));
        if !seen.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
        scheduled(get(group, "policy"), &path.child("policy"), out);
    }
}

/// Validates the reference to the controller of a workload.
fn controller(reference: &Value, path: &Path, out: &mut FieldErrors) {
    shaped_if_said(reference, "apiGroup", dns1123_subdomain, path, out);
    for field in ["kind", "name"] {
        shaped(reference, field, |name| path_segment(name, false), path, out);
    }
}

/// Validates the scheduling policy of a pod group.
fn scheduled(policy: &Value, path: &Path, out: &mut FieldErrors) {
    match (has(policy, "basic"), has(policy, "gang")) {
        (false, false) => out.push(Error::required(path, "exactly one of `basic`, `gang` is required")),
        (true, true) => {
            let why = "exactly one of `basic`, `gang` is required, but multiple fields are set";
            out.push(Error::invalid(path, "{`basic`, `gang`}", why));
        }
        (true, false) => {}
        (false, true) => {
            let least = int(get(policy, "gang"), "minCount").unwrap_or_default();
            if least <= 0 {
                out.push(Error::invalid(path.child("gang").child("minCount"), least, "must be greater than zero"));
            }
        }
    }
}

/// A workload keeps its groups, and its maker once it has one. (Upstream's paths begin inside of the specification.)
pub(crate) fn workload_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    if has(before, "controllerRef") {
        immutable(get(spec, "controllerRef"), get(before, "controllerRef"), &Path::new("controllerRef"), out);
    }
    immutable(get(spec, "podGroups"), get(before, "podGroups"), &Path::new("podGroups"), out);
}
