//! Dynamic resources: claims for devices, templates of claims, classes and slices of devices. Answers for upstream's
//! `pkg/apis/resource/validation` (`ValidateResourceClaim`).

pub(crate) mod admin;
mod capacity;
mod configuration;
mod names;
pub(crate) mod slice;
pub(crate) mod status;
pub(crate) mod taint_rule;

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};
use shared::types::is_extended_resource;

use super::fields::shaped;
use super::meta::{self, immutable};
use super::names::{complain, dns1123_label, dns1123_subdomain, label_key, label_value};
use super::tree::{get, has, int, list, same, text, texts};
use crate::rules::options::{FieldErrors, ValidationOption};
use configuration::opaque;
use names::{Requests, fully_qualified};

/// Most requests, constraints, configurations and selectors of one place.
const MAX_ENTRIES: usize = 32;
/// Most alternatives of a request.
const MAX_ALTERNATIVES: usize = 8;
const MAX_EXPRESSION: usize = 10 * 1024;
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

/// Judges the entries of a list that is not too long.
fn each<'a>(
    holder: &'a Value,
    key: &str,
    most: usize,
    path: &Path,
    out: &mut FieldErrors,
    mut judge: impl FnMut(&'a Value, &Path, &mut FieldErrors),
) -> &'a [Value] {
    let (items, path) = (list(holder, key), path.child(key));
    if items.len() > most {
        out.push(Error::too_many(path, items.len(), most));
        return &[];
    }
    for (i, item) in items.iter().enumerate() {
        judge(item, &path.index(i), out);
    }
    items
}

/// No entry may be there twice.
fn unique<'a>(keys: impl Iterator<Item = &'a str>, path: &Path, out: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, key) in keys.enumerate() {
        if !seen.insert(key) {
            out.push(Error::duplicate(path.index(i), key));
        }
    }
}

/// A claim.
pub(crate) fn claim(object: &Value, out: &mut FieldErrors) {
    devices(get(get(object, "spec"), "devices"), &Path::of(&["spec", "devices"]), out);
}

/// A template of claims.
pub(crate) fn template(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    meta::template(get(spec, "metadata"), &path.child("metadata"), out);
    devices(get(get(spec, "spec"), "devices"), &path.child("spec").child("devices"), out);
}

/// Validates that the spec of claims and templates is immutable.
pub(crate) fn spec_stays(new: &Value, old: &Value, out: &mut FieldErrors) {
    immutable(get(new, "spec"), get(old, "spec"), &Path::new("spec"), out);
}

fn devices(claim: &Value, path: &Path, out: &mut FieldErrors) {
    let names = Requests::of(claim);
    let requests = each(claim, "requests", MAX_ENTRIES, path, out, request);
    unique(requests.iter().map(|r| text(r, "name")), &path.child("requests"), out);
    each(claim, "constraints", MAX_ENTRIES, path, out, |c, path, out| constraint(c, &names, path, out));
    each(claim, "config", MAX_ENTRIES, path, out, |c, path, out| {
        names.references(c, path, out);
        opaque(c, true, path, out);
    });
}

fn request(request: &Value, path: &Path, out: &mut FieldErrors) {
    complain(out, &path.child("name"), text(request, "name"), dns1123_label(text(request, "name")));
    match (has(request, "exactly"), !list(request, "firstAvailable").is_empty()) {
        (false, false) => {
            out.push(Error::required(path, "exactly one of `exactly` or `firstAvailable` is required"));
        }
        (true, true) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            out.push(Error::invalid(path, Value::Null, why));
        }
        (true, false) => wanted(get(request, "exactly"), &path.child("exactly"), out),
        (false, true) => {
            let all = each(request, "firstAvailable", MAX_ALTERNATIVES, path, out, |alternative, path, out| {
                let name = text(alternative, "name");
                complain(out, &path.child("name"), name, dns1123_label(name));
                wanted(alternative, path, out);
            });
            unique(all.iter().map(|a| text(a, "name")), &path.child("firstAvailable"), out);
        }
    }
}

/// Validates a device request or one of its subrequests.
fn wanted(wanted: &Value, path: &Path, out: &mut FieldErrors) {
    shaped(wanted, "deviceClassName", dns1123_subdomain, path, out);
    selectors(wanted, false, path, out);
    let count = int(wanted, "count").unwrap_or_default();
    match text(wanted, "allocationMode") {
        "All" if count != 0 => {
            let why = "must not be specified when allocationMode is 'All'";
            out.push(Error::invalid(path.child("count"), count, why));
        }
        "ExactCount" if count <= 0 => {
            out.push(Error::invalid(path.child("count"), count, "must be greater than zero"));
        }
        "All" | "ExactCount" => {}
        other => out.push(Error::not_supported(path.child("allocationMode"), other, &["All", "ExactCount"])),
    }
    for (i, t) in list(wanted, "tolerations").iter().enumerate() {
        toleration(t, &path.child("tolerations").index(i), out);
    }
}

/// `selectors`; those that are stored were compiled before.
fn selectors(holder: &Value, stored: bool, path: &Path, out: &mut FieldErrors) {
    each(holder, "selectors", MAX_ENTRIES, path, out, |selector, path, out| {
        let path = path.child("cel");
        if !has(selector, "cel") {
            out.push(Error::required(path, ""));
        } else if !stored {
            expression(text(get(selector, "cel"), "expression"), &path.child("expression"), out);
        }
    });
}

fn expression(given: &str, path: &Path, out: &mut FieldErrors) {
    use crate::expressions::{Dialect, Names, ResultType};
    use shared::cel::device;
    if given.len() > MAX_EXPRESSION {
        out.push(Error::too_long(path, MAX_EXPRESSION));
        return;
    }
    let dialect = Dialect::Device { shared: out.allows(ValidationOption::ConsumableCapacity) };
    match Names::of(dialect).compile(given, ResultType::PerhapsBool) {
        Err(why) => out.push(Error::invalid(path, given, &why.to_string())),
        Ok(program) if program.estimate(&device::size).max > device::MAX_COST => {
            out.push(Error::forbidden(path, "too complex, exceeds cost limit"));
        }
        Ok(_) => {}
    }
}

fn constraint(constraint: &Value, names: &Requests<'_>, path: &Path, out: &mut FieldErrors) {
    names.references(constraint, path, out);
    let key = if has(constraint, "distinctAttribute") && !has(constraint, "matchAttribute") {
        "distinctAttribute"
    } else {
        "matchAttribute"
    };
    if has(constraint, key) {
        fully_qualified(text(constraint, key), &path.child(key), out);
    } else if out.allows(ValidationOption::ConsumableCapacity) {
        let why = r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#;
        out.push(Error::required(path, why));
    } else {
        out.push(Error::required(path.child(key), ""));
    }
}

/// A toleration of a device's taints.
fn toleration(toleration: &Value, path: &Path, out: &mut FieldErrors) {
    let (key, value) = (text(toleration, "key"), text(toleration, "value"));
    if !key.is_empty() {
        complain(out, &path.child("key"), key, label_key(key));
    }
    match text(toleration, "operator") {
        "Exists" if !value.is_empty() => {
            out.push(Error::invalid(path.child("value"), value, "must be empty for operator `Exists`"));
        }
        "Exists" => {}
        "Equal" => complain(out, &path.child("value"), value, label_value(value)),
        "" => out.push(Error::required(path.child("operator"), "")),
        other => out.push(Error::not_supported(path.child("operator"), other, &["Equal", "Exists"])),
    }
    let effect = text(toleration, "effect");
    if !effect.is_empty() && !EFFECTS.contains(&effect) {
        out.push(Error::not_supported(path.child("effect"), effect, &EFFECTS));
    }
}

/// A class of devices.
pub(crate) fn class(object: &Value, out: &mut FieldErrors) {
    class_spec(get(object, "spec"), &Value::Null, out);
}

/// A changed class: what did not change was compiled and measured before.
pub(crate) fn class_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    class_spec(get(new, "spec"), get(old, "spec"), out);
}

fn class_spec(spec: &Value, before: &Value, out: &mut FieldErrors) {
    let path = Path::new("spec");
    let stored = |key| !before.is_null() && same(get(spec, key), get(before, key));
    selectors(spec, stored("selectors"), &path, out);
    each(spec, "config", MAX_ENTRIES, &path, out, |c, path, out| opaque(c, !stored("config"), path, out));
    let name = text(spec, "extendedResourceName");
    if has(spec, "extendedResourceName") && !is_extended_resource(name) {
        let why = "must be a valid extended resource name";
        out.push(Error::invalid(path.child("extendedResourceName"), name, why));
    }
}

/// Conditions under which a device is bound, or given up.
fn binding_conditions(holder: &Value, path: &Path, out: &mut FieldErrors) {
    const MOST: usize = 4;
    for key in ["bindingConditions", "bindingFailureConditions"] {
        each(holder, key, MOST, path, out, |name, path, out| {
            let name = name.as_str().unwrap_or_default();
            complain(out, path, name, label_key(name));
        });
    }
    let (good, bad) = (texts(holder, "bindingConditions"), texts(holder, "bindingFailureConditions"));
    let (good_path, bad_path) = (path.child("bindingConditions"), path.child("bindingFailureConditions"));
    unique(good.iter().copied(), &good_path, out);
    unique(bad.iter().copied(), &bad_path, out);
    for (i, name) in bad.iter().enumerate().filter(|(_, name)| good.contains(name)) {
        let why = "bindingFailureConditions must not overlap with bindingConditions";
        out.push(Error::invalid(bad_path.index(i), *name, why));
    }
    if good.is_empty() && !bad.is_empty() {
        let why = "bindingConditions are required to use bindingFailureConditions";
        out.push(Error::invalid(good_path, get(holder, "bindingConditions").clone(), why));
    } else if bad.is_empty() && !good.is_empty() {
        let why = "bindingFailureConditions are required to use bindingConditions";
        out.push(Error::invalid(bad_path, get(holder, "bindingFailureConditions").clone(), why));
    }
}
