//! Roles and their bindings. Answers for upstream's `ValidateRole`, `ValidateClusterRoleBinding`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::fields::shaped;
use super::names::{complain, dns1123_subdomain, path_segment};
use super::selectors::own_selector;
use super::tree::{get, list, same, text};
use crate::rules::options::FieldErrors;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A role.
pub(crate) fn role(object: &Value, out: &mut FieldErrors) {
    rules(object, true, out);
}

/// A cluster role.
pub(crate) fn cluster_role(object: &Value, out: &mut FieldErrors) {
    rules(object, false, out);
    let aggregation = get(object, "aggregationRule");
    if aggregation.is_null() {
        return;
    }
    let path = Path::of(&["aggregationRule", "clusterRoleSelectors"]);
    let selectors = list(aggregation, "clusterRoleSelectors");
    if selectors.is_empty() {
        let message = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        out.push(Error::required(&path, message));
    }
    for (i, selector) in selectors.iter().enumerate() {
        own_selector(selector, &path.index(i), out);
    }
}

fn rules(object: &Value, namespaced: bool, out: &mut FieldErrors) {
    for (i, rule) in list(object, "rules").iter().enumerate() {
        let path = Path::new("rules").index(i);
        if list(rule, "verbs").is_empty() {
            out.push(Error::required(path.child("verbs"), "verbs must contain at least one value"));
        }
        let urls = get(rule, "nonResourceURLs");
        if !list(rule, "nonResourceURLs").is_empty() {
            let regular = ["apiGroups", "resources", "resourceNames"].iter().any(|k| !list(rule, k).is_empty());
            for (wrong, message) in [
                (namespaced, "namespaced rules cannot apply to non-resource URLs"),
                (regular, "rules cannot apply to both regular resources and non-resource URLs"),
            ] {
                if wrong {
                    out.push(Error::invalid(path.child("nonResourceURLs"), urls.clone(), message));
                }
            }
            continue;
        }
        if list(rule, "apiGroups").is_empty() {
            out.push(Error::required(path.child("apiGroups"), "resource rules must supply at least one api group"));
        }
        if list(rule, "resources").is_empty() {
            out.push(Error::required(path.child("resources"), "resource rules must supply at least one resource"));
        }
    }
}

/// A role binding.
pub(crate) fn role_binding(object: &Value, out: &mut FieldErrors) {
    binding(object, &["Role", "ClusterRole"], true, out);
}

/// A cluster role binding.
pub(crate) fn cluster_role_binding(object: &Value, out: &mut FieldErrors) {
    binding(object, &["ClusterRole"], false, out);
}

fn binding(object: &Value, kinds: &[&str], namespaced: bool, out: &mut FieldErrors) {
    let (reference, path) = (get(object, "roleRef"), Path::new("roleRef"));
    let group = text(reference, "apiGroup");
    if group != GROUP {
        out.push(Error::not_supported(path.child("apiGroup"), group, &[GROUP]));
    }
    let kind = text(reference, "kind");
    if !kinds.contains(&kind) {
        out.push(Error::not_supported(path.child("kind"), kind, kinds));
    }
    shaped(reference, "name", |name| path_segment(name, false), &path, out);
    for (i, subject) in list(object, "subjects").iter().enumerate() {
        one_subject(subject, namespaced, &Path::new("subjects").index(i), out);
    }
}

fn one_subject(subject: &Value, namespaced: bool, path: &Path, out: &mut FieldErrors) {
    let (name, group) = (text(subject, "name"), text(subject, "apiGroup"));
    if name.is_empty() {
        out.push(Error::required(path.child("name"), ""));
    }
    match text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                complain(out, &path.child("name"), name, dns1123_subdomain(name));
            }
            if !group.is_empty() {
                out.push(Error::not_supported(path.child("apiGroup"), group, &[""]));
            }
            if !namespaced && text(subject, "namespace").is_empty() {
                out.push(Error::required(path.child("namespace"), ""));
            }
        }
        kind @ ("User" | "Group") => {
            if name.is_empty() {
                let message = format!("{} name cannot be empty", kind.to_lowercase());
                out.push(Error::invalid(path.child("name"), name, &message));
            }
            if group != GROUP {
                out.push(Error::not_supported(path.child("apiGroup"), group, &[GROUP]));
            }
        }
        other => out.push(Error::not_supported(path.child("kind"), other, &["ServiceAccount", "User", "Group"])),
    }
}

/// A binding keeps its role.
pub(crate) fn reference_stays(new: &Value, old: &Value, out: &mut FieldErrors) {
    let reference = get(new, "roleRef");
    if !same(reference, get(old, "roleRef")) {
        out.push(Error::invalid("roleRef", reference.clone(), "cannot change roleRef"));
    }
}
