//! Slices: the devices of a pool that a driver publishes. Answers for upstream's `ValidateResourceSlice`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{pool_name, qualified};
use super::taint_rule::taint;
use super::{binding_conditions, capacity, each, unique};
use crate::rules::meta::immutable;
use crate::rules::names::{complain, dns1123_label, dns1123_subdomain, is_semver};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{entries, flag, get, has, has_entries, int, list, same, text};
use crate::validation::fields::shaped;
use crate::validation::selectors::node_selector;
use crate::validation::volume::driver_name;

const MAX_DEVICES: usize = 128;
/// Maximum of devices in a slice with taints or shared counters.
const MAX_ELABORATE_DEVICES: usize = 64;
const MAX_ATTRIBUTES: usize = 32;
const MAX_TEXT: usize = 64;
/// Most of a key that errors show: a domain, a slash and a name; or a label.
const MAX_KEY: usize = 63 + 1 + 32;
const MAX_LABEL: usize = 63;
const MAX_TAINTS: usize = 16;
const MAX_COUNTERS: usize = 32;
const MAX_COUNTER_SETS: usize = 8;
const MAX_CONSUMPTIONS: usize = 2;

/// A new slice.
pub(crate) fn slice(object: &Value, out: &mut FieldErrors) {
    spec(get(object, "spec"), &Value::Null, out);
}

/// A changed slice.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    spec(get(new, "spec"), get(old, "spec"), out);
}

fn spec(spec: &Value, before: &Value, out: &mut FieldErrors) {
    let path = Path::new("spec");
    driver_name(text(spec, "driver"), &path.child("driver"), out);
    let (pool, pool_path) = (get(spec, "pool"), path.child("pool"));
    pool_name(text(pool, "name"), &pool_path.child("name"), out);
    let count = int(pool, "resourceSliceCount").unwrap_or_default();
    if count <= 0 {
        out.push(Error::invalid(pool_path.child("resourceSliceCount"), count, "must be greater than zero"));
    }
    if let Some(n) = int(pool, "generation").filter(|n| *n < 0) {
        out.push(Error::invalid(pool_path.child("generation"), n, "must be greater than or equal to zero"));
    }
    if !before.is_null() {
        immutable(get(pool, "name"), get(get(before, "pool"), "name"), &pool_path.child("name"), out);
        for key in ["driver", "nodeName"] {
            immutable(get(spec, key), get(before, key), &path.child(key), out);
        }
    }
    where_it_is(spec, &path, out);
    if has(spec, "sharedCounters") && has(spec, "devices") {
        out.push(Error::invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    devices(spec, before, &path, out);
    let sets = each(spec, "sharedCounters", MAX_COUNTER_SETS, &path, out, |set, path, out| {
        counters(set, "name", path, out);
    });
    unique(sets.iter().map(|s| text(s, "name")), &path.child("sharedCounters"), out);
}

/// Fields that are set, as upstream lists them.
fn listed(fields: &[&str]) -> String {
    let quoted: Vec<String> = fields.iter().map(|f| format!("`{f}`")).collect();
    format!("{{{}}}", quoted.join(", "))
}

/// One of the ways to say which nodes can use the devices.
fn where_it_is(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let mut set = Vec::new();
    if has(spec, "nodeName") {
        match text(spec, "nodeName") {
            "" => {
                let why = "must be either unset or set to a non-empty string";
                out.push(Error::invalid(path.child("nodeName"), "", why));
            }
            name => {
                set.push("nodeName");
                complain(out, &path.child("nodeName"), name, dns1123_subdomain(name));
            }
        }
    }
    let selector = get(spec, "nodeSelector");
    if !selector.is_null() {
        set.push("nodeSelector");
        node_selector(selector, true, &path.child("nodeSelector"), out);
        if list(selector, "nodeSelectorTerms").len() != 1 {
            let why = "must have exactly one node selector term";
            let terms = get(selector, "nodeSelectorTerms").clone();
            out.push(Error::invalid(path.child("nodeSelector").child("nodeSelectorTerms"), terms, why));
        }
    }
    for key in ["allNodes", "perDeviceNodeSelection"] {
        if flag(spec, key) {
            set.push(key);
        } else if has(spec, key) {
            out.push(Error::invalid(path.child(key), false, "must be either unset or set to true"));
        }
    }
    let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => out.push(Error::required(path, why)),
        1 => {}
        _ => out.push(Error::invalid(path, listed(&set), &format!("{why}, but multiple fields are set"))),
    }
}

fn devices(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) {
    let elaborate = |d: &Value| !list(d, "taints").is_empty() || !list(d, "consumesCounters").is_empty();
    let most = if list(spec, "devices").iter().any(elaborate) { MAX_ELABORATE_DEVICES } else { MAX_DEVICES };
    let own_nodes = flag(spec, "perDeviceNodeSelection");
    let all = each(spec, "devices", most, path, out, |device, path, out| {
        let name = text(device, "name");
        let old = list(before, "devices").iter().find(|d| text(d, "name") == name);
        complain(out, &path.child("name"), name, dns1123_label(name));
        self::device(device, old, own_nodes, path, out);
    });
    unique(all.iter().map(|d| text(d, "name")), &path.child("devices"), out);
}

fn device(device: &Value, old: Option<&Value>, own_nodes: bool, path: &Path, out: &mut FieldErrors) {
    let count = entries(device, "attributes").count() + entries(device, "capacity").count();
    if count > MAX_ATTRIBUTES {
        let why = format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}");
        out.push(Error::invalid(path, count, &why));
    }
    for (name, value) in entries(device, "attributes") {
        let path = path.child("attributes").key(&shortened(name, MAX_KEY));
        qualified(name, &path, out);
        attribute(value, &path, out);
    }
    for (name, value) in entries(device, "capacity") {
        let path = path.child("capacity").key(&shortened(name, MAX_KEY));
        qualified(name, &path, out);
        if has(value, "requestPolicy") {
            let path = path.child("requestPolicy");
            match flag(device, "allowMultipleAllocations") {
                true => capacity::policy(value, &path, out),
                false => out.push(Error::forbidden(path, "allowMultipleAllocations must be true")),
            }
        }
    }
    if old.is_none_or(|old| !same(get(old, "taints"), get(device, "taints"))) {
        each(device, "taints", MAX_TAINTS, path, out, |t, path, out| taint(t, "", path, out));
    }
    let sets = each(device, "consumesCounters", MAX_CONSUMPTIONS, path, out, |set, path, out| {
        counters(set, "counterSet", path, out);
    });
    unique(sets.iter().map(|s| text(s, "counterSet")), &path.child("consumesCounters"), out);
    nodes(device, own_nodes, path, out);
    binding_conditions(device, path, out);
}

/// Validates the node selection of one device, allowed when the slice has `perDeviceNodeSelection`.
fn nodes(device: &Value, own: bool, path: &Path, out: &mut FieldErrors) {
    const KEYS: [&str; 3] = ["nodeName", "nodeSelector", "allNodes"];
    if !own {
        if KEYS.into_iter().any(|key| has(device, key)) {
            let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            out.push(Error::invalid(path, Value::Null, why));
        }
        return;
    }
    let name = text(device, "nodeName");
    if !name.is_empty() {
        complain(out, &path.child("nodeName"), name, dns1123_subdomain(name));
    } else if has(device, "nodeName") {
        out.push(Error::invalid(path.child("nodeName"), "", "must not be empty"));
    }
    if has(device, "nodeSelector") {
        node_selector(get(device, "nodeSelector"), true, &path.child("nodeSelector"), out);
    }
    if has(device, "allNodes") && !flag(device, "allNodes") {
        out.push(Error::invalid(path.child("allNodes"), false, "must be either unset or set to true"));
    }
    let says = |key: &str| match key {
        "nodeName" => !name.is_empty(),
        "allNodes" => flag(device, key),
        _ => has(device, key),
    };
    let set: Vec<&str> = KEYS.into_iter().filter(|key| says(key)).collect();
    let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match set.len() {
        0 => out.push(Error::required(path, why)),
        1 => {}
        _ => out.push(Error::invalid(path, listed(&set), why)),
    }
}

fn attribute(value: &Value, path: &Path, out: &mut FieldErrors) {
    let set = ["bool", "int", "string", "version"].into_iter().filter(|k| has(value, k)).count();
    for key in ["string", "version"] {
        if key == "version" && has(value, key) && !is_semver(text(value, key)) {
            let why = "must be a string compatible with semver.org spec 2.0.0";
            out.push(Error::invalid(path.child(key), text(value, key), why));
        }
        if text(value, key).len() > MAX_TEXT {
            out.push(Error::too_long(path.child(key), MAX_TEXT));
        }
    }
    match set {
        0 => out.push(Error::invalid(path, "", "exactly one value must be specified")),
        1 => {}
        _ => {
            let mut error = Error::invalid(path, value.clone(), "exactly one value must be specified");
            error.shown = Some(shown(value));
            out.push(error);
        }
    }
}

/// An attribute as Go's struct is written, whose fields have names of their own.
fn shown(value: &Value) -> String {
    let fields = [("IntValue", "int"), ("BoolValue", "bool"), ("StringValue", "string"), ("VersionValue", "version")];
    let fields = fields.map(|(name, key)| format!("{name:?}:{}", get(value, key)));
    format!("{{{}}}", fields.join(","))
}

/// A named set of counters.
fn counters(set: &Value, name_key: &str, path: &Path, out: &mut FieldErrors) {
    shaped(set, name_key, dns1123_label, path, out);
    let path = path.child("counters");
    let count = entries(set, "counters").count();
    if !has_entries(set, "counters") {
        out.push(Error::required(path, ""));
    } else if count > MAX_COUNTERS {
        out.push(Error::too_many(path, count, MAX_COUNTERS));
    } else {
        for (name, _) in entries(set, "counters") {
            complain(out, &path.key(&shortened(name, MAX_LABEL)), name, dns1123_label(name));
        }
    }
}

/// A key that is too long, without its middle.
fn shortened(key: &str, most: usize) -> std::borrow::Cow<'_, str> {
    const GAP: &str = "...";
    if key.len() <= most {
        return key.into();
    }
    let left = most - GAP.len();
    let (head, tail) = (left.div_ceil(2), key.len() - left / 2);
    let part = |range: std::ops::Range<usize>| String::from_utf8_lossy(&key.as_bytes()[range]).into_owned();
    format!("{}{GAP}{}", part(0..head), part(tail..key.len())).into()
}
