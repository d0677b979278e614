//! `status` of a pod. Answers for upstream's `ValidatePodStatusUpdate`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::annotations;
use crate::rules::names::{between, complain, dns1123_label, dns1123_subdomain, ip, qualified_name};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{at, entries, get, has, int, list, text};
use crate::validation::fields::shaped;

/// `status`.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    annotations::update(new, old, &Path::of(&["metadata", "annotations"]), out);
    let path = Path::new("status");
    let (status, before) = (get(new, "status"), get(old, "status"));
    let observed = |holder: &Value, path: &Path, out: &mut FieldErrors| {
        if let Some(number) = int(holder, "observedGeneration").filter(|n| *n < 0) {
            let why = "must be a non-negative integer";
            out.push(Error::invalid(path.child("observedGeneration"), number, why));
        }
    };
    for (i, condition) in list(status, "conditions").iter().enumerate() {
        let (kind, path) = (text(condition, "type"), path.child("conditions").index(i));
        observed(condition, &path, out);
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            complain(out, &path.child("Type"), kind, qualified_name(kind));
        }
    }
    let bound = text(get(old, "spec"), "nodeName");
    if text(get(new, "spec"), "nodeName") != bound {
        out.push(Error::forbidden(path.child("nodeName"), "may not be changed directly"));
    }
    let nominated = text(status, "nominatedNodeName");
    if !nominated.is_empty() && nominated != text(before, "nominatedNodeName") {
        let path = path.child("nominatedNodeName");
        complain(out, &path, nominated, dns1123_subdomain(nominated));
        if !bound.is_empty() && !out.allows(ValidationOption::NominatedNodeNameOfBoundPod) {
            out.push(Error::forbidden(path, "may not be set on pods that are already bound to a node"));
        }
    }
    observed(status, &path, out);
    if text(status, "qosClass") != text(before, "qosClass") {
        out.push(Error::invalid(path.child("qosClass"), text(status, "qosClass"), "field is immutable"));
    }
    ended(new, old, &path, out);
    claims(new, &path.child("resourceClaimStatuses"), out);
    extended_claim(new, &path.child("extendedResourceClaimStatus"), out);
    addresses(status, before, "podIPs", &path, out);
    host_address(status, &path, out);
    addresses(status, before, "hostIPs", &path, out);
    for key in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for (i, status) in list(get(new, "status"), key).iter().enumerate() {
            user(status, new, &path.child(key).index(i), out);
        }
    }
    for (key, kind) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        for (i, status) in list(status, key).iter().enumerate() {
            let container = list(get(new, "spec"), kind).iter().find(|c| text(c, "name") == text(status, "name"));
            health(status, container, &path.child(key).index(i).child(HEALTH), out);
        }
    }
    for (i, status) in list(status, "ephemeralContainerStatuses").iter().enumerate() {
        if !list(status, HEALTH).is_empty() {
            let path = path.child("ephemeralContainerStatuses").index(i).child(HEALTH);
            out.push(Error::forbidden(path, "must not be specified in container status"));
        }
    }
}

const HEALTH: &str = "allocatedResourcesStatus";

/// Validates the health of resources in a container's status: each one requested and listed once.
fn health(status: &Value, container: Option<&Value>, path: &Path, out: &mut FieldErrors) {
    for (i, given) in list(status, HEALTH).iter().enumerate() {
        let (name, path) = (text(given, "name"), path.index(i));
        if let Some(why) = container.and_then(|container| not_asked_for(name, get(container, "resources"))) {
            out.push(Error::invalid(path.child("name"), name, why));
        }
        let mut seen = BTreeSet::new();
        for (j, one) in list(given, "resources").iter().enumerate() {
            let (id, path) = (text(one, "resourceID"), path.child("resources").index(j));
            let health = text(one, "health");
            if !HEALTHS.contains(&health) {
                out.push(Error::not_supported(path.child("health"), health, &HEALTHS));
            }
            if !seen.insert(id) {
                out.push(Error::duplicate(path.child("resourceID"), id));
            }
        }
    }
}

const HEALTHS: [&str; 3] = ["Healthy", "Unhealthy", "Unknown"];

/// Explains why a container with these resources cannot have a resource in its status.
fn not_asked_for(name: &str, resources: &Value) -> Option<&'static str> {
    let Some(claim) = name.strip_prefix("claim:") else {
        let asked = entries(resources, "requests").any(|(request, _)| request == name);
        return (!asked).then_some("must match one of the container's resource requests");
    };
    let asked = list(resources, "claims").iter().any(|c| match (text(c, "name"), text(c, "request")) {
        (name, "") => name == claim,
        (name, request) => claim.split_once('/') == Some((name, request)),
    });
    (!asked).then_some(
        "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or \
         'claim:<claimName>' if request is empty",
    )
}

/// Validates `resourceClaimStatuses`.
fn claims(pod: &Value, path: &Path, out: &mut FieldErrors) {
    let known: Vec<&str> = list(get(pod, "spec"), "resourceClaims").iter().map(|c| text(c, "name")).collect();
    let mut seen = BTreeSet::new();
    for (i, status) in list(get(pod, "status"), "resourceClaimStatuses").iter().enumerate() {
        let (path, name) = (path.index(i), text(status, "name"));
        if !known.contains(&name) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            out.push(Error::invalid(path.child("name"), name, why));
        }
        if !seen.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
        let claim = text(status, "resourceClaimName");
        if has(status, "resourceClaimName") {
            complain(out, &path.child("name"), claim, dns1123_subdomain(claim));
        }
    }
}

/// The claim that was made for the pod because its containers ask for resources that devices stand for.
fn extended_claim(pod: &Value, path: &Path, out: &mut FieldErrors) {
    const NO_CONTAINER: &str = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
    const NO_RESOURCE: &str = "must match the extended resource name of an entry in \
                               spec.initContainers.resources.requests or spec.containers.resources.requests";
    let status = at(pod, &["status", "extendedResourceClaimStatus"]);
    if status.is_null() {
        return;
    }
    let (mappings, mapped) = (list(status, "requestMappings"), path.child("requestMappings"));
    if mappings.is_empty() {
        out.push(Error::required(&mapped, "at least one request mapping is required"));
    }
    let spec = get(pod, "spec");
    let mut seen = BTreeSet::new();
    for (i, mapping) in mappings.iter().enumerate() {
        let at = mapped.index(i);
        let fields = ["containerName", "resourceName", "requestName"];
        let [container, resource, request] = fields.map(|field| text(mapping, field));
        let mut all = list(spec, "containers").iter().chain(list(spec, "initContainers"));
        match all.find(|c| text(c, "name") == container) {
            None => out.push(Error::invalid(at.child("containerName"), container, NO_CONTAINER)),
            Some(c) if !has(get(get(c, "resources"), "requests"), resource) => {
                out.push(Error::invalid(at.child("resourceName"), resource, NO_RESOURCE));
            }
            Some(_) => {}
        }
        // Upstream does not say of which.
        complain(out, &path.child("requestName"), request, dns1123_label(request));
        if !seen.insert([container, resource, request]) {
            out.extend(fields.map(|field| Error::duplicate(at.child(field), text(mapping, field))));
        }
    }
    shaped(status, "resourceClaimName", dns1123_subdomain, path, out);
}

/// The first of the host's addresses stands by itself as well.
fn host_address(status: &Value, path: &Path, out: &mut FieldErrors) {
    let Some(first) = list(status, "hostIPs").first().map(|one| text(one, "ip")) else { return };
    if first != text(status, "hostIP") {
        out.push(Error::invalid(path.child("hostIPs").index(0).child("ip"), first, "must be equal to `hostIP`"));
    }
}

/// Addresses, one of each family; those that were there before may be anything.
fn addresses(status: &Value, before: &Value, key: &str, path: &Path, out: &mut FieldErrors) {
    fn of<'a>(status: &'a Value, key: &str) -> Vec<&'a str> {
        list(status, key).iter().map(|one| text(one, "ip")).collect()
    }
    let (all, known, path) = (of(status, key), of(before, key), path.child(key));
    for (i, address) in all.iter().enumerate().filter(|(_, address)| !known.contains(address)) {
        ip(out, &path.index(i), address);
    }
    if all.len() < 2 {
        return;
    }
    let parsed: Vec<_> = all.iter().map(|address| shared::address::ip(address)).collect();
    if let Some(i) = parsed.iter().position(Option::is_none) {
        let why = format!("failed to check for dual stack with error:invalid IP[{i}]: {}", all[i]);
        out.push(Error::internal(&path, &why));
    }
    let families: Option<Vec<bool>> = parsed.into_iter().map(|address| address.map(|a| a.is_ipv4())).collect();
    if !families.is_some_and(|families| families.len() == 2 && families[0] != families[1]) {
        let why = "may specify no more than one IP for each IP family";
        out.push(Error::invalid(&path, get(status, key).clone(), why));
    }
}

/// Validates the user of a container in its status.
fn user(status: &Value, pod: &Value, path: &Path, out: &mut FieldErrors) {
    const MAX: i64 = 2_147_483_647;
    let linux = get(get(status, "user"), "linux");
    if linux.is_null() {
        return;
    }
    let path = path.child("user").child("linux");
    if text(get(get(pod, "spec"), "os"), "name") == "windows" {
        out.push(Error::forbidden(&path, "cannot be set for a windows pod"));
        return;
    }
    let mut id = |value: Option<i64>, path: Path| {
        if let Some(value) = value.filter(|v| !(0..=MAX).contains(v)) {
            out.push(Error::invalid(path, value, &between(0, MAX)));
        }
    };
    for key in ["uid", "gid"] {
        id(int(linux, key), path.child(key));
    }
    for (i, group) in list(linux, "supplementalGroups").iter().enumerate() {
        id(group.as_i64(), path.child("supplementalGroups").index(i));
    }
}

/// Containers that ended stay so, unless what is said of them or of all starts them again.
fn ended(new: &Value, old: &Value, path: &Path, out: &mut FieldErrors) {
    let spec = get(old, "spec");
    let policy = text(spec, "restartPolicy");
    let all = ["containers", "initContainers"].iter().any(|kind| list(spec, kind).iter().any(restarts_all));
    for (key, kind) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        if !all {
            ended_stays(new, old, key, path, out, |name, code| {
                let container = list(spec, kind).iter().find(|c| text(c, "name") == name);
                container.is_some_and(|c| restarts(c, policy, code))
            });
        }
    }
    ended_stays(new, old, "ephemeralContainerStatuses", path, out, |_, _| false);
}

/// Reports whether a container has a rule that restarts all containers.
fn restarts_all(container: &Value) -> bool {
    list(container, "restartPolicyRules").iter().any(|rule| text(rule, "action") == "RestartAllContainers")
}

/// Containers that ended stay so unless they restart with their exit code.
fn ended_stays(
    new: &Value,
    old: &Value,
    key: &str,
    path: &Path,
    out: &mut FieldErrors,
    restarts: impl Fn(&str, i64) -> bool,
) {
    for (i, before) in list(get(old, "status"), key).iter().enumerate() {
        let (name, ended) = (text(before, "name"), at(before, &["state", "terminated"]));
        if ended.is_null() || restarts(name, int(ended, "exitCode").unwrap_or_default()) {
            continue;
        }
        let after = list(get(new, "status"), key)
            .iter()
            .find(|s| text(s, "name") == name && at(s, &["state", "terminated"]).is_null());
        if after.is_some() {
            let path = path.child(key).index(i).child("state");
            out.push(Error::forbidden(path, "may not be transitioned to non-terminated state"));
        }
    }
}

/// Reports whether a terminated container restarts: by its rules, its own policy, or the pod's.
fn restarts(container: &Value, pod: &str, code: i64) -> bool {
    if !has(container, "restartPolicy") {
        return by_policy(pod, code);
    }
    let matches = |rule: &&Value| {
        let codes = get(rule, "exitCodes");
        let named = list(codes, "values").iter().any(|v| v.as_i64() == Some(code));
        match text(codes, "operator") {
            "In" => named,
            "NotIn" => !named,
            _ => false,
        }
    };
    let rule = list(container, "restartPolicyRules").iter().find(matches);
    rule.is_some_and(|r| text(r, "action") == "Restart") || by_policy(text(container, "restartPolicy"), code)
}

fn by_policy(policy: &str, code: i64) -> bool {
    match policy {
        "OnFailure" => code != 0,
        "Never" => false,
        _ => true,
    }
}
