//! Resource requests and limits. Answers for upstream's `ValidateContainerResourceRequirements`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use proto::Value;
use proto::quantity::Quantity;
use shared::status::field::{Error, Path};
use shared::types::{is_extended_resource, is_native_resource};

use crate::rules::names::{complain, dns1123_label, qualified_name};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{at, entries, get, has, list, quantity, text};

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

/// Reports whether a resource's limit may exceed its request.
pub(in crate::validation) fn overcommits(name: &str) -> bool {
    is_native_resource(name) && !is_huge_pages(name)
}

/// A resource name in a list of resources.
pub(in crate::validation) fn resource_name(name: &str, path: &Path, out: &mut FieldErrors) {
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

/// A resource name in a container.
pub(in crate::validation) fn container_resource_name(name: &str, path: &Path, out: &mut FieldErrors) {
    resource_name(name, path, out);
    if name.contains('/') {
        if !is_native_resource(name) && !is_extended_resource(name) {
            out.push(Error::invalid(path, name, "doesn't follow extended resource name standard"));
        }
    } else if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_pages(name) {
        out.push(Error::invalid(path, name, "must be a standard resource for containers"));
    }
}

/// A quantity of a resource.
pub(in crate::validation) fn amount(name: &str, value: &Value, path: &Path, out: &mut FieldErrors) {
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
    if (countable.contains(&name) || is_extended_resource(name)) && q.milli_value() % 1000 != 0 {
        out.push(Error::invalid(path, q.to_string(), "must be an integer"));
    }
}

/// Validates the overhead of a sandbox, with the rules of container limits.
pub(in crate::validation) fn overhead(holder: &Value, key: &str, path: &Path, out: &mut FieldErrors) {
    let path = path.child("limits");
    for (name, value) in entries(holder, key) {
        let path = path.key(name);
        container_resource_name(name, &path, out);
        amount(name, value, &path, out);
        whole_pages(name, value, &path, out);
    }
}

/// Huge pages come whole.
fn whole_pages(name: &str, value: &Value, path: &Path, out: &mut FieldErrors) {
    if !divides(name, value) && !out.allows(ValidationOption::IndivisibleHugePagesValues) {
        let wanted = quantity(value);
        let why = format!("{wanted} is not positive integer multiple of {name}");
        out.push(Error::invalid(path, wanted.to_string(), &why));
    }
}

/// Reports whether an amount of huge pages is a multiple of the page size; true for other resources.
pub(super) fn divides(name: &str, value: &Value) -> bool {
    let Some(size) = name.strip_prefix("hugepages-") else { return true };
    Quantity::parse(size).is_ok_and(|page| {
        page.sign() > 0 && page.milli_value() % 1000 == 0 && quantity(value).value() % page.value().max(1) == 0
    })
}

/// `resources` of a container.
pub(in crate::validation) fn requirements(value: &Value, claims: &BTreeSet<&str>, path: &Path, out: &mut FieldErrors) {
    lists(value, container_resource_name, path, out);
    claims_of(value, claims, &path.child("claims"), out);
}

fn lists(value: &Value, name_rule: fn(&str, &Path, &mut FieldErrors), path: &Path, out: &mut FieldErrors) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let (mut huge, mut compute) = (false, false);
    let mut note = |name: &str| {
        huge |= is_huge_pages(name);
        compute |= matches!(name, "cpu" | "memory");
    };
    for (name, value) in entries(value, "limits") {
        let path = limits_path.key(name);
        name_rule(name, &path, out);
        amount(name, value, &path, out);
        whole_pages(name, value, &path, out);
        note(name);
    }
    for (name, wanted) in entries(value, "requests") {
        let path = requests_path.key(name);
        name_rule(name, &path, out);
        amount(name, wanted, &path, out);
        match get(get(value, "limits"), name) {
            Value::Null if overcommits(name) => {}
            Value::Null => {
                out.push(Error::required(&limits_path, "Limit must be set for non overcommitable resources"));
            }
            limit => within_limit(name, &quantity(wanted), &quantity(limit), &requests_path, out),
        }
        whole_pages(name, wanted, &path, out);
        note(name);
    }
    if huge && !compute {
        out.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// Validates a request against its limit: equal, or lower for resources that can be overcommitted.
fn within_limit(name: &str, wanted: &Quantity, limit: &Quantity, path: &Path, out: &mut FieldErrors) {
    let order = wanted.partial_cmp(limit).unwrap_or(Ordering::Equal);
    let relation = match order {
        Ordering::Equal => return,
        _ if !overcommits(name) => "equal to",
        Ordering::Less => return,
        Ordering::Greater => "less than or equal to",
    };
    out.push(Error::invalid(path, wanted.to_string(), &format!("must be {relation} {name} limit of {limit}")));
}

fn claims_of(value: &Value, known: &BTreeSet<&str>, path: &Path, out: &mut FieldErrors) {
    // Requests of each claim that were there before; the empty one is all of them.
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (i, claim) in list(value, "claims").iter().enumerate() {
        let (path, name, request) = (path.index(i), text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            out.push(Error::required(&path, ""));
            continue;
        }
        let before = seen.entry(name).or_default();
        if before.contains("") {
            out.push(Error::duplicate(&path, name));
        } else {
            if !request.is_empty() {
                complain(out, &path.child("request"), request, dns1123_label(request));
            }
            if before.contains(request) {
                out.push(Error::duplicate(&path, format!("{name}/{request}")));
            } else if request.is_empty() {
                out.extend(before.iter().map(|_| Error::duplicate(&path, name)));
            }
            before.insert(request);
        }
        if !known.contains(name) {
            let mut error = Error::not_found(&path, name);
            let names: Vec<&str> = known.iter().copied().collect();
            let names = if names.is_empty() { " which is empty".to_owned() } else { format!(": {}", names.join(", ")) };
            error.detail = format!("must be one of the names in pod.spec.resourceClaims{names}");
            out.push(error);
        }
    }
}

fn pod_resource_name(name: &str, path: &Path, out: &mut FieldErrors) {
    let before = out.len();
    resource_name(name, path, out);
    if out.len() == before && !matches!(name, "cpu" | "memory") && !is_huge_pages(name) {
        out.push(Error::not_supported(path, name, &["cpu", "hugepages-", "memory"]));
    }
}

/// `resources` of a pod as a whole, within which its containers have to stay.
pub(super) fn of_pod(spec: &Value, claims: &BTreeSet<&str>, path: &Path, out: &mut FieldErrors) {
    let resources = get(spec, "resources");
    if resources.is_null() {
        return;
    }
    if text(get(spec, "os"), "name") == "windows" {
        out.push(Error::forbidden(path, "may not be set for a windows pod"));
        return;
    }
    if has(resources, "claims") {
        out.push(Error::forbidden(path.child("claims"), "claims may not be set for Resources at pod-level"));
    }
    lists(resources, pod_resource_name, path, out);
    claims_of(resources, claims, &path.child("claims"), out);
    for (name, most) in entries(resources, "requests") {
        let (sum, most) = (together(spec, "requests", name), quantity(most));
        if sum > most {
            let why = format!("must be greater than or equal to aggregate container requests of {sum}");
            out.push(Error::invalid(path.child("requests").key(name), most.to_string(), &why));
        }
    }
    for (name, most) in entries(resources, "limits").filter(|(name, _)| is_huge_pages(name)) {
        let (sum, most) = (together(spec, "limits", name), quantity(most));
        if sum > most {
            let why = format!("must be greater than or equal to aggregate container limits of {sum}");
            out.push(Error::invalid(path.child("limits").key(name), most.to_string(), &why));
        }
    }
    for (i, container) in list(spec, "containers").iter().enumerate() {
        for (name, limit) in entries(get(container, "resources"), "limits") {
            let most = get(get(resources, "limits"), name);
            let (limit, path) = (quantity(limit), path.child("containers").index(i).key(name).child("limits"));
            if !most.is_null() && limit > quantity(most) {
                let why = format!("must be less than or equal to pod limits of {}", quantity(most));
                out.push(Error::invalid(path, limit.to_string(), &why));
            }
        }
    }
}

/// The most of a list that containers have at a time: those that keep running together, or one that runs before.
fn together(spec: &Value, list_name: &str, name: &str) -> Quantity {
    let of = |c: &Value| quantity(at(c, &["resources", list_name, name]));
    let (mut lasting, mut most) = (Quantity::default(), Quantity::default());
    for container in list(spec, "initContainers") {
        if text(container, "restartPolicy") == "Always" {
            lasting.add(&of(container));
            continue;
        }
        let mut now = lasting.clone();
        now.add(&of(container));
        if now > most {
            most = now;
        }
    }
    for container in list(spec, "containers") {
        lasting.add(&of(container));
    }
    if lasting > most { lasting } else { most }
}
