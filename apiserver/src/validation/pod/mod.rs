//! Pods and pod templates.

pub(super) mod containers;
mod environment;
pub(super) mod handlers;
pub(super) mod placement;
pub(super) mod resources;
mod security;
pub(super) mod update;

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta;
use super::names::{between, complain, dns1123_label, dns1123_subdomain, ip};
use super::tree::{get, has, int, list, text, texts};
use super::volume;
pub(super) use environment::{field_ref, resource_ref};

/// A new pod.
pub(super) fn create(pod: &Value, out: &mut Vec<Error>) {
    spec(get(pod, "spec"), &Path::new("spec"), out);
    if !list(get(pod, "spec"), "ephemeralContainers").is_empty() {
        out.push(Error::forbidden(Path::of(&["spec", "ephemeralContainers"]), "cannot be set on create"));
    }
}

/// A `PodTemplate` object.
pub(super) fn template_object(object: &Value, out: &mut Vec<Error>) {
    template(get(object, "template"), &Path::new("template"), out);
}

/// The template inside a workload.
pub(super) fn template(template: &Value, path: &Path, out: &mut Vec<Error>) {
    let metadata = get(template, "metadata");
    meta::labels(metadata, "labels", &path.child("labels"), out);
    meta::annotations(metadata, &path.child("annotations"), out);
    let inner = get(template, "spec");
    spec(inner, &path.child("spec"), out);
    if !list(inner, "ephemeralContainers").is_empty() {
        let path = path.child("spec").child("ephemeralContainers");
        out.push(Error::forbidden(path, "ephemeral containers not allowed in pod template"));
    }
}

/// A pod's spec.
pub(super) fn spec(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    volume::volumes(spec, &path.child("volumes"), out);
    claims(spec, &path.child("resourceClaims"), out);
    let around = containers::Surroundings {
        volumes: containers::volume_names(spec),
        claims: containers::claim_names(spec),
        grace: int(spec, "terminationGracePeriodSeconds").unwrap_or(30),
    };
    containers::regular(spec, &around, &path.child("containers"), out);
    containers::init(spec, &around, &path.child("initContainers"), out);
    containers::ephemeral(spec, &around, &path.child("ephemeralContainers"), out);
    containers::choice(spec, "restartPolicy", &["Always", "OnFailure", "Never"], path, out);
    containers::choice(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], path, out);
    meta::labels(spec, "nodeSelector", &path.child("nodeSelector"), out);
    security::pod(spec, path, out);
    placement::affinity(spec, &path.child("affinity"), out);
    dns_config(spec, &path.child("dnsConfig"), out);
    placement::gates(spec, path, out);
    placement::spread(spec, &path.child("topologySpreadConstraints"), out);
    let account = text(spec, "serviceAccountName");
    if !account.is_empty() {
        complain(out, &path.child("serviceAccountName"), account, dns1123_subdomain(account));
    }
    let node = text(spec, "nodeName");
    if !node.is_empty() {
        complain(out, &path.child("nodeName"), node, dns1123_subdomain(node));
    }
    let longest = i64::from(i32::MAX);
    if let Some(seconds) = int(spec, "activeDeadlineSeconds").filter(|s| !(1..=longest).contains(s)) {
        let message = between(1, longest);
        out.push(Error::invalid(path.child("activeDeadlineSeconds"), seconds, &message));
    }
    for key in ["hostname", "subdomain"] {
        let name = text(spec, key);
        if !name.is_empty() {
            complain(out, &path.child(key), name, dns1123_label(name));
        }
    }
    placement::tolerations(spec, &path.child("tolerations"), out);
    for (i, alias) in list(spec, "hostAliases").iter().enumerate() {
        let path = path.child("hostAliases").index(i);
        ip(out, &path.child("ip"), text(alias, "ip"));
        for (j, name) in texts(alias, "hostnames").iter().enumerate() {
            complain(out, &path.child("hostnames").index(j), name, dns1123_subdomain(name));
        }
    }
    for key in ["priorityClassName", "runtimeClassName"] {
        let name = text(spec, key);
        if !name.is_empty() {
            complain(out, &path.child(key), name, dns1123_subdomain(name));
        }
    }
    let policy = text(spec, "preemptionPolicy");
    if !matches!(policy, "" | "PreemptLowerPriority" | "Never") {
        let supported = ["PreemptLowerPriority", "Never"];
        out.push(Error::not_supported(path.child("preemptionPolicy"), policy, &supported));
    }
    for (name, value) in super::tree::entries(spec, "overhead") {
        let path = path.child("overhead").key(name);
        resources::resource_name(name, &path, out);
        resources::amount(name, value, &path, out);
    }
    operating_system(spec, path, out);
}

fn operating_system(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    if !has(spec, "os") {
        return;
    }
    let path = path.child("os").child("name");
    match text(get(spec, "os"), "name") {
        "" => out.push(Error::required(path, "cannot be empty")),
        "linux" | "windows" => {}
        other => out.push(Error::not_supported(path, other, &["linux", "windows"])),
    }
}

fn claims(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut names = BTreeSet::new();
    for (i, claim) in list(spec, "resourceClaims").iter().enumerate() {
        let path = path.index(i);
        let name = text(claim, "name");
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
        } else if !names.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        } else {
            complain(out, &path.child("name"), name, dns1123_label(name));
        }
        match (has(claim, "resourceClaimName"), has(claim, "resourceClaimTemplateName")) {
            (true, true) => {
                let message = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                out.push(Error::invalid(&path, claim.clone(), message));
            }
            (false, false) => {
                let message = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                out.push(Error::invalid(&path, claim.clone(), message));
            }
            _ => {}
        }
    }
}

fn dns_config(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let config = get(spec, "dnsConfig");
    let (servers, searches) = (texts(config, "nameservers"), texts(config, "searches"));
    if text(spec, "dnsPolicy") == "None" {
        if config.is_null() {
            out.push(Error::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
        } else if servers.is_empty() {
            let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            out.push(Error::required(path.child("nameservers"), message));
        }
    }
    if servers.len() > 3 {
        let value = get(config, "nameservers").clone();
        out.push(Error::invalid(path.child("nameservers"), value, "must not have more than 3 nameservers"));
    }
    for (i, server) in servers.iter().enumerate() {
        ip(out, &path.child("nameservers").index(i), server);
    }
    let searches_path = path.child("searches");
    if searches.len() > 32 {
        let value = get(config, "searches").clone();
        out.push(Error::invalid(&searches_path, value, "must not have more than 32 search paths"));
    }
    if searches.join(" ").len() > 2048 {
        let value = get(config, "searches").clone();
        let message = "must not have more than 2048 characters (including spaces) in the search list";
        out.push(Error::invalid(&searches_path, value, message));
    }
    for (i, search) in searches.iter().enumerate() {
        // A lone or trailing dot and underscores are what resolvers accept.
        let name = search.strip_suffix('.').unwrap_or(search).replace('_', "-");
        if *search != "." {
            complain(out, &searches_path.index(i), search, dns1123_subdomain(name.trim_matches('-')));
        }
    }
    for (i, option) in list(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            out.push(Error::required(path.child("options").index(i), "must not be empty"));
        }
    }
}
