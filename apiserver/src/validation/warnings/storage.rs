//! Volumes, claims and classes.

use proto::Value;
use shared::types::OLD_CLASS;

use super::pod::OLD_VOLUMES;
use super::{fractional, label_key, node_selector_term, renamed};
use crate::rules::options::Warnings;
use crate::rules::tree::{at, entries, get, has, list, text};

/// Annotations of volumes and claims that became fields.
const OLD_ANNOTATIONS: &[(&str, &str, &str)] =
    &[(OLD_CLASS, "v1.8", "storageClassName"), ("volume.beta.kubernetes.io/mount-options", "v1.31", "mountOptions")];

/// A persistent volume.
pub(crate) fn volume(new: &Value, out: &mut Warnings) {
    annotations(new, OLD_ANNOTATIONS, out);
    let spec = get(new, "spec");
    if text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        out.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_owned());
    }
    let terms = list(at(spec, &["nodeAffinity", "required"]), "nodeSelectorTerms");
    for (i, term) in terms.iter().enumerate() {
        node_selector_term(term, &format!("spec.nodeAffinity.required.nodeSelectorTerms[{i}]"), out);
    }
    // Of these upstream tells pods only.
    let told = OLD_VOLUMES.iter().filter(|(field, ..)| !matches!(*field, "flocker" | "quobyte"));
    for (_, kind, what) in told.filter(|(field, ..)| has(spec, field)) {
        out.push(format!("spec.{kind}: {what}"));
    }
}

/// A claim.
pub(crate) fn claim(new: &Value, out: &mut Warnings) {
    annotations(new, &OLD_ANNOTATIONS[..1], out);
    requests(get(new, "spec"), "spec", out);
}

/// Warns of the resources in a claim's spec.
pub(super) fn requests(spec: &Value, path: &str, out: &mut Warnings) {
    for key in ["requests", "limits"] {
        let storage = at(spec, &["resources", key, "storage"]);
        if !storage.is_null() {
            fractional(storage, &format!("{path}.resources.{key}[storage]"), out);
        }
    }
}

/// A storage class.
pub(crate) fn class(new: &Value, out: &mut Warnings) {
    for (i, term) in list(new, "allowedTopologies").iter().enumerate() {
        for (j, expression) in list(term, "matchLabelExpressions").iter().enumerate() {
            let path = format!("allowedTopologies[{i}].matchLabelExpressions[{j}].key");
            label_key(text(expression, "key"), &path, out);
        }
    }
}

/// A CSI driver that wants tokens does not say where it wants them.
pub(crate) fn driver(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    let (spec, requests) = (get(new, "spec"), list(get(new, "spec"), "tokenRequests"));
    let same = old.is_some_and(|old| list(get(old, "spec"), "tokenRequests") == requests);
    if !requests.is_empty() && !same && !has(spec, "serviceAccountTokenInSecrets") {
        out.push("spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes".to_owned());
    }
}

/// A CSI driver's capacity on nodes.
pub(crate) fn capacity(new: &Value, out: &mut Warnings) {
    let topology = get(new, "nodeTopology");
    for (i, expression) in list(topology, "matchExpressions").iter().enumerate() {
        label_key(text(expression, "key"), &format!("nodeTopology.matchExpressions[{i}].key"), out);
    }
    for (key, _) in entries(topology, "matchLabels") {
        if let Some(advice) = renamed(key) {
            out.push(format!("nodeTopology.matchLabels.{key}: {advice}"));
        }
    }
}

fn annotations(new: &Value, old: &[(&str, &str, &str)], out: &mut Warnings) {
    let all = at(new, &["metadata", "annotations"]);
    for (key, since, field) in old.iter().filter(|(key, ..)| has(all, key)) {
        out.push(format!("metadata.annotations[{key}]: deprecated since {since}; use \"{field}\" attribute instead"));
    }
}
