//! Resource requests and limits.

use std::cmp::Ordering;

use proto::Value;
use shared::status::field::{Error, Path};

use crate::validation::names::{complain, qualified_name};
use crate::validation::tree::{entries, get, list, quantity, text};

/// Resource names without a domain that exist at all.
pub(in crate::validation) const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Resources of the node are shared out by whole units unless they are native.
pub(in crate::validation) fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && qualified_name(&format!("requests.{name}")).is_empty()
}

fn overcommits(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

/// A resource name in a list of resources.
pub(in crate::validation) fn resource_name(name: &str, path: &Path, out: &mut Vec<Error>) {
    let before = out.len();
    complain(out, path, name, qualified_name(name));
    if out.len() == before
        && !name.contains('/')
        && !STANDARD.contains(&name)
        && !is_huge_pages(name)
        && !name.starts_with("requests.hugepages-")
    {
        out.push(Error::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
}

fn container_resource_name(name: &str, path: &Path, out: &mut Vec<Error>) {
    resource_name(name, path, out);
    if name.contains('/') {
        if !is_native(name) && !is_extended(name) {
            out.push(Error::invalid(path, name, "doesn't follow extended resource name standard"));
        }
    } else if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_pages(name) {
        out.push(Error::invalid(path, name, "must be a standard resource for containers"));
    }
}

/// A quantity of a resource.
pub(in crate::validation) fn amount(name: &str, value: &Value, path: &Path, out: &mut Vec<Error>) {
    let q = quantity(value);
    if q.sign() < 0 {
        out.push(Error::invalid(path, q.to_string(), "must be greater than or equal to 0"));
    }
    let countable = [
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    if (countable.contains(&name) || is_extended(name)) && q.milli_value() % 1000 != 0 {
        out.push(Error::invalid(path, q.to_string(), "must be an integer"));
    }
}

/// `resources` of a container.
pub(in crate::validation) fn requirements(value: &Value, claims: &[&str], path: &Path, out: &mut Vec<Error>) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let (mut huge, mut compute) = (false, false);
    let mut note = |name: &str| {
        huge |= is_huge_pages(name);
        compute |= matches!(name, "cpu" | "memory");
    };
    for (name, value) in entries(value, "limits") {
        let path = limits_path.key(name);
        container_resource_name(name, &path, out);
        amount(name, value, &path, out);
        note(name);
    }
    for (name, wanted) in entries(value, "requests") {
        let path = requests_path.key(name);
        container_resource_name(name, &path, out);
        amount(name, wanted, &path, out);
        note(name);
        let limit = get(get(value, "limits"), name);
        if limit.is_null() {
            if !overcommits(name) {
                out.push(Error::required(&limits_path, "Limit must be set for non overcommitable resources"));
            }
            continue;
        }
        let (wanted, limit) = (quantity(wanted), quantity(limit));
        let order = wanted.partial_cmp(&limit).unwrap_or(Ordering::Equal);
        if order != Ordering::Equal && !overcommits(name) {
            let message = format!("must be equal to {name} limit of {limit}");
            out.push(Error::invalid(&requests_path, wanted.to_string(), &message));
        } else if order == Ordering::Greater {
            let message = format!("must be less than or equal to {name} limit of {limit}");
            out.push(Error::invalid(&requests_path, wanted.to_string(), &message));
        }
    }
    if huge && !compute {
        out.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (i, claim) in list(value, "claims").iter().enumerate() {
        let path = path.child("claims").index(i);
        let name = text(claim, "name");
        if name.is_empty() {
            out.push(Error::required(&path, ""));
            continue;
        }
        let key = (name, text(claim, "request"));
        if seen.contains(&key) {
            out.push(Error::duplicate(&path, name));
        } else if !claims.contains(&name) {
            let mut error = Error::not_found(&path, name);
            error.detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            out.push(error);
        }
        seen.push(key);
    }
}
