//! Nodes and runtime classes. Answers for upstream's `ValidateNode`, `ValidateNodeUpdate`.

use std::collections::BTreeSet;

use proto::Value;
use serde_json::json;
use shared::status::field::{Error, Path};

use super::meta::{immutable, labels};
use super::names::{cidr, complain, dns1123_label, label_key, label_value};
use super::node_config;
use super::old_annotations;
use super::pod::placement::{taint_effect, tolerations};
use super::pod::resources::{amount, overhead};
use super::tree::{at, entries, get, int, list, text, texts};
use crate::rules::options::FieldErrors;

/// A new node.
pub(crate) fn create(object: &Value, out: &mut FieldErrors) {
    let spec = get(object, "spec");
    old_annotations::of_node(object, out);
    taints(spec, &Path::of(&["metadata", "taints"]), out);
    resources(object, out);
    swap(object, out);
    features(object, out);
    let path = Path::of(&["spec", "podCIDRs"]);
    let networks = texts(spec, "podCIDRs");
    let mut families = Vec::new();
    for (i, network) in networks.iter().enumerate() {
        families.extend(cidr(out, &path.index(i), network).map(|n| n.addr().is_ipv4()));
    }
    if networks.len() > 1
        && let Some(i) = networks.iter().position(|network| cidr(&mut Vec::new(), &path, network).is_none())
    {
        let why = format!("invalid CIDR[{i}]: <nil> (invalid CIDR address: {})", networks[i]);
        let why = format!("invalid PodCIDRs. failed to check with dual stack with error:{why}");
        out.push(Error::internal(&path, &why));
    }
    let pair = families.len() == 2 && families[0] != families[1];
    if networks.len() > 1 && (networks.len() > 2 || !pair) {
        out.push(Error::invalid(&path, json!(networks), "may specify no more than one CIDR for each IP family"));
    }
}

/// Taints; upstream looks for them in the metadata.
pub(super) fn taints(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, taint) in list(spec, "taints").iter().enumerate() {
        let path = path.index(i);
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        complain(out, &path.child("key"), key, label_key(key));
        let complaints = label_value(value);
        if !complaints.is_empty() {
            out.push(Error::invalid(path.child("value"), value, &complaints.join(";")));
        }
        if effect.is_empty() {
            out.push(Error::required(path.child("effect"), ""));
        } else {
            taint_effect(effect, &path.child("effect"), out);
        }
        if !seen.insert((key, effect)) {
            let mut error = Error::duplicate(&path, taint.clone());
            error.detail = "taints must be unique by key and effect pair".to_owned();
            out.push(error);
        }
    }
}

fn resources(object: &Value, out: &mut FieldErrors) {
    for key in ["capacity", "allocatable"] {
        for (name, value) in entries(get(object, "status"), key) {
            amount(name, value, &Path::of(&["status", key, name]), out);
        }
    }
}

/// Swap, where there is any; upstream looks for it in the metadata.
fn swap(object: &Value, out: &mut FieldErrors) {
    let capacity = int(at(object, &["status", "nodeInfo", "swap"]), "capacity");
    if let Some(bytes) = capacity.filter(|bytes| *bytes <= 0) {
        let path = Path::of(&["metadata", "nodeSwapStatus", "capacity"]);
        out.push(Error::invalid(path, bytes, "must be greater than zero"));
    }
}

/// Names of features that a node says it has, in order.
fn features(object: &Value, out: &mut FieldErrors) {
    let names = texts(get(object, "status"), "declaredFeatures");
    let path = Path::of(&["status", "declaredFeatures"]);
    for (i, name) in names.iter().enumerate() {
        if let Some(why) = feature_name(name) {
            out.push(Error::invalid(path.index(i), *name, &why));
        }
        match names.get(i + 1) {
            Some(next) if next == name => out.push(Error::duplicate(path.index(i + 1), *next)),
            Some(next) if next < name => {
                out.push(Error::invalid(path.index(i + 1), *next, "list must be sorted alphabetically"));
            }
            _ => {}
        }
    }
}

/// Errors of a feature name: `MyFeature` or `MyFeature/mySubFeature`.
fn feature_name(name: &str) -> Option<String> {
    const LONGEST: usize = 253;
    let shown = shared::status::go_quote(name);
    if name.len() > LONGEST {
        return Some(format!("invalid feature name {shown}: must be no more than {LONGEST} characters"));
    }
    let fine = |(i, part): (usize, &str)| {
        let begins = part.bytes().next().is_some_and(|b| b.is_ascii_uppercase() || (i > 0 && b.is_ascii_lowercase()));
        begins && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    (!name.split('/').enumerate().all(fine)).then(|| {
        format!(
            "invalid feature name {shown}: must start with an UpperCamelCase segment, with subsequent segments \
             separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters \
             and slashes"
        )
    })
}

/// A changed node.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    old_annotations::of_node(new, out);
    resources(new, out);
    features(new, out);
    let mut seen: Vec<&Value> = Vec::new();
    for (i, address) in list(get(new, "status"), "addresses").iter().enumerate() {
        if seen.contains(&address) {
            out.push(Error::duplicate(Path::of(&["status", "addresses"]).index(i), address.clone()));
        }
        seen.push(address);
    }
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let (was, now) = (texts(before, "podCIDRs"), texts(spec, "podCIDRs"));
    let changed = match was.len() {
        0 => 0,
        n if n != now.len() => 1,
        _ => was.iter().zip(&now).filter(|(was, now)| was != now).count(),
    };
    // One complaint for each.
    for _ in 0..changed {
        let message = "node updates may not change podCIDR except from \"\" to valid";
        out.push(Error::forbidden(Path::of(&["spec", "podCIDRs"]), message));
    }
    let provider = text(before, "providerID");
    if !provider.is_empty() && provider != text(spec, "providerID") {
        let message = "node updates may not change providerID except from \"\" to valid";
        out.push(Error::forbidden(Path::of(&["spec", "providerID"]), message));
    }
    node_config::check(new, out);
    taints(spec, &Path::of(&["metadata", "taints"]), out);
    if text(spec, "externalID") != text(before, "externalID") {
        out.push(Error::forbidden(Path::of(&["spec", "externalID"]), "may not be updated"));
    }
}

/// A way of running containers.
pub(crate) fn runtime_class(object: &Value, out: &mut FieldErrors) {
    let handler = text(object, "handler");
    complain(out, &Path::new("handler"), handler, dns1123_label(handler));
    overhead(get(object, "overhead"), "podFixed", &Path::new("overhead"), out);
    let (scheduling, path) = (get(object, "scheduling"), Path::new("scheduling"));
    labels(scheduling, "nodeSelector", &path.child("nodeSelector"), out);
    tolerations(scheduling, &path.child("tolerations"), out);
}

/// A runtime class keeps its handler.
pub(crate) fn runtime_class_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    immutable(get(new, "handler"), get(old, "handler"), &Path::new("handler"), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_nodes() {
        let of = |names: Value| {
            let mut out = FieldErrors::default();
            features(&json!({"status": {"declaredFeatures": names}}), &mut out);
            out.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(json!(["A", "B/c", "B/cD2"])), [""; 0]);
        assert_eq!(
            of(json!(["B", "B", "A"])),
            [
                "status.declaredFeatures[1]: Duplicate value: \"B\"",
                "status.declaredFeatures[2]: Invalid value: \"A\": list must be sorted alphabetically",
            ]
        );
        let shape = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., \
                     MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";
        for name in ["a", "A//b", "A-b", ""] {
            let want = format!(
                "status.declaredFeatures[0]: Invalid value: \"{name}\": invalid feature name \"{name}\": {shape}"
            );
            assert_eq!(of(json!([name])), [want]);
        }
    }
}
