//! `status` of a pod.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use crate::validation::names::{between, complain, dns1123_subdomain, ip, qualified_name};
use crate::validation::tree::{at, get, has, int, list, text};

/// `status`.
pub(in crate::validation) fn update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let path = Path::new("status");
    for (i, condition) in list(get(new, "status"), "conditions").iter().enumerate() {
        let kind = text(condition, "type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            let path = Path::of(&["metadata", "conditions"]).index(i).child("Type");
            complain(out, &path, kind, qualified_name(kind));
        }
    }
    let nominated = text(get(new, "status"), "nominatedNodeName");
    if !nominated.is_empty() {
        complain(out, &path.child("nominatedNodeName"), nominated, dns1123_subdomain(nominated));
    }
    let class = |pod: &Value| text(get(pod, "status"), "qosClass").to_owned();
    if !class(old).is_empty() && class(new) != class(old) {
        out.push(Error::invalid(path.child("qosClass"), class(new), "field is immutable"));
    }
    if text(get(new, "spec"), "nodeName") != text(get(old, "spec"), "nodeName") {
        out.push(Error::forbidden(path.child("nodeName"), "may not be changed directly"));
    }
    let policy = text(get(old, "spec"), "restartPolicy");
    transitions(new, old, "containerStatuses", policy, &path, out);
    let always = |name: &str| {
        let mut all = list(get(old, "spec"), "initContainers").iter();
        all.any(|c| text(c, "name") == name && text(c, "restartPolicy") == "Always")
    };
    if !list(get(old, "status"), "initContainerStatuses").iter().any(|s| always(text(s, "name"))) {
        transitions(new, old, "initContainerStatuses", policy, &path, out);
    }
    transitions(new, old, "ephemeralContainerStatuses", "Never", &path, out);
    claims(new, &path.child("resourceClaimStatuses"), out);
    addresses(get(new, "status"), "podIPs", "podIP", &path, out);
    addresses(get(new, "status"), "hostIPs", "hostIP", &path, out);
    for key in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for (i, status) in list(get(new, "status"), key).iter().enumerate() {
            user(status, new, &path.child(key).index(i), out);
        }
    }
}

/// Which claims were made for the pod.
fn claims(pod: &Value, path: &Path, out: &mut Vec<Error>) {
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

/// Addresses, one of each family, the first of which stands by itself as well.
fn addresses(status: &Value, key: &str, first: &str, path: &Path, out: &mut Vec<Error>) {
    let all: Vec<&str> = list(status, key).iter().map(|a| text(a, "ip")).collect();
    let path = path.child(key);
    if all.is_empty() {
        return;
    }
    if first == "hostIP" && all[0] != text(status, first) {
        out.push(Error::invalid(path.index(0).child("ip"), all[0], "must be equal to `hostIP`"));
    }
    for (i, address) in all.iter().enumerate() {
        ip(out, &path.index(i), address);
    }
    let families: Vec<bool> = all.iter().filter_map(|a| shared::address::ip(a)).map(|a| a.is_ipv4()).collect();
    let doubled = [true, false].iter().any(|f| families.iter().filter(|g| *g == f).count() > 1);
    if all.len() > 1 && doubled {
        let why = "may specify no more than one IP for each IP family";
        out.push(Error::invalid(&path, get(status, key).clone(), why));
    }
    for (i, address) in all.iter().enumerate().filter(|(i, a)| all[..*i].contains(a)) {
        out.push(Error::duplicate(path.index(i), *address));
    }
}

/// As whom a container's first process runs.
fn user(status: &Value, pod: &Value, path: &Path, out: &mut Vec<Error>) {
    const MAX: i64 = 2_147_483_647;
    let linux = get(get(status, "user"), "linux");
    if linux.is_null() {
        return;
    }
    let path = path.child("linux");
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

/// Containers that will not be restarted stay terminated.
fn transitions(new: &Value, old: &Value, key: &str, policy: &str, path: &Path, out: &mut Vec<Error>) {
    if policy == "Always" {
        return;
    }
    for (i, before) in list(get(old, "status"), key).iter().enumerate() {
        let ended = at(before, &["state", "terminated"]);
        if ended.is_null() || (policy == "OnFailure" && int(ended, "exitCode").unwrap_or_default() != 0) {
            continue;
        }
        // Containers with rules of their own may restart whatever the pod says.
        let name = text(before, "name");
        let own = list(get(old, "spec"), "containers").iter().find(|c| text(c, "name") == name);
        if own.is_some_and(|c| has(c, "restartPolicy")) {
            continue;
        }
        for after in list(get(new, "status"), key) {
            if text(after, "name") == name && at(after, &["state", "terminated"]).is_null() {
                let path = path.child(key).index(i).child("state");
                out.push(Error::forbidden(path, "may not be transitioned to non-terminated state"));
            }
        }
    }
}
