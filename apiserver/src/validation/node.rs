//! Nodes and runtime classes.

use std::collections::BTreeSet;

use proto::Value;
use serde_json::json;
use shared::status::field::{Error, Path};

use super::meta::{immutable, labels};
use super::names::{cidr, complain, dns1123_label, label_key, label_value};
use super::pod::placement::{taint_effect, tolerations};
use super::pod::resources::{amount, overhead};
use super::tree::{entries, get, list, text, texts};

/// A new node.
pub(super) fn create(object: &Value, out: &mut Vec<Error>) {
    let spec = get(object, "spec");
    taints(spec, out);
    resources(object, out);
    let path = Path::of(&["spec", "podCIDRs"]);
    let networks = texts(spec, "podCIDRs");
    let mut families = Vec::new();
    for (i, network) in networks.iter().enumerate() {
        families.extend(cidr(out, &path.index(i), network).map(|n| n.addr().is_ipv4()));
    }
    if networks.len() > 1
        && let Some(odd) = networks.iter().find(|network| cidr(&mut Vec::new(), &path, network).is_none())
    {
        let why = format!("failed to parse cidr value:{odd:?} with error:invalid CIDR address: {odd}");
        let why = format!("invalid PodCIDRs. failed to check with dual stack with error:{why}");
        out.push(Error::internal(&path, &why));
    }
    let pair = families.len() == 2 && families[0] != families[1];
    if networks.len() > 1 && (networks.len() > 2 || !pair) {
        out.push(Error::invalid(&path, json!(networks), "may specify no more than one CIDR for each IP family"));
    }
}

fn taints(spec: &Value, out: &mut Vec<Error>) {
    let mut seen = BTreeSet::new();
    for (i, taint) in list(spec, "taints").iter().enumerate() {
        let path = Path::of(&["metadata", "taints"]).index(i);
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

fn resources(object: &Value, out: &mut Vec<Error>) {
    for key in ["capacity", "allocatable"] {
        for (name, value) in entries(get(object, "status"), key) {
            amount(name, value, &Path::of(&["status", key, name]), out);
        }
    }
}

/// A changed node.
pub(super) fn update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    resources(new, out);
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
    taints(spec, out);
    if text(spec, "externalID") != text(before, "externalID") {
        out.push(Error::forbidden(Path::of(&["spec", "externalID"]), "may not be updated"));
    }
}

/// A way of running containers.
pub(super) fn runtime_class(object: &Value, out: &mut Vec<Error>) {
    let handler = text(object, "handler");
    complain(out, &Path::new("handler"), handler, dns1123_label(handler));
    overhead(get(object, "overhead"), "podFixed", &Path::new("overhead"), out);
    let (scheduling, path) = (get(object, "scheduling"), Path::new("scheduling"));
    labels(scheduling, "nodeSelector", &path.child("nodeSelector"), out);
    tolerations(scheduling, &path.child("tolerations"), out);
}

/// A runtime class keeps its handler.
pub(super) fn runtime_class_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    immutable(get(new, "handler"), get(old, "handler"), &Path::new("handler"), out);
}
