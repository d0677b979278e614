//! Pods and pod templates. Answers for upstream's `ValidatePodCreate`, `ValidatePodSpec`, `ValidatePodTemplateSpec`.

pub(crate) mod annotations;
pub(super) mod containers;
mod context;
mod environment;
pub(super) mod handlers;
mod mounts;
pub(super) mod placement;
mod qos;
pub(super) mod resize;
pub(super) mod resources;
mod security;
mod signals;
pub(crate) mod status;
pub(crate) mod stored;
pub(crate) mod update;
pub(super) mod windows;

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::fields::{choice, shaped_if_said};
use super::meta;
use super::names::{between, complain, dns1123_label, dns1123_subdomain, ip, pattern, too_long};
use super::tree::{flag, get, has, int, list, text, texts};
use super::volume;
use crate::rules::options::FieldErrors;
pub(super) use environment::{field_ref, resource_ref};
pub use qos::qos_class;

/// A new pod.
pub(crate) fn create(pod: &Value, out: &mut FieldErrors) {
    whole(pod, out);
    let path = Path::new("spec");
    if !list(get(pod, "spec"), "ephemeralContainers").is_empty() {
        out.push(Error::forbidden(path.child("ephemeralContainers"), "cannot be set on create"));
    }
    let spec = get(pod, "spec");
    if !text(spec, "nodeName").is_empty() && !list(spec, "schedulingGates").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        out.push(Error::forbidden(path.child("nodeName"), why));
    }
    annotations::fields_match(get(pod, "metadata"), spec, &path, out);
}

/// A pod as such, new or changed.
fn whole(pod: &Value, out: &mut FieldErrors) {
    let (inner, path) = (get(pod, "spec"), Path::new("spec"));
    let name = text(get(pod, "metadata"), "name");
    annotations::no_claims(get(pod, "metadata"), inner, out);
    annotations::check(get(pod, "metadata"), inner, &Path::of(&["metadata", "annotations"]), out);
    spec(inner, if name.is_empty() { text(get(pod, "metadata"), "generateName") } else { name }, &path, out);
    if text(inner, "serviceAccountName").is_empty() {
        tokens_need_account(inner, &path.child("volumes"), out);
    }
    for kind in ["containers", "initContainers"] {
        for (i, container) in list(inner, kind).iter().enumerate() {
            containers::trimmed_image(container, &path.child(kind).index(i), out);
        }
    }
}

fn tokens_need_account(spec: &Value, path: &Path, out: &mut FieldErrors) {
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        for (j, source) in list(get(volume, "projected"), "sources").iter().enumerate() {
            if has(source, "serviceAccountToken") {
                let path = path.index(i).child("projected").child("sources").index(j).child("serviceAccountToken");
                out.push(Error::forbidden(path, "must not be specified when serviceAccountName is not set"));
            }
        }
    }
}

/// A `PodTemplate` object.
pub(crate) fn template_object(object: &Value, out: &mut FieldErrors) {
    template(get(object, "template"), &Path::new("template"), out);
}

/// The template inside a workload.
pub(super) fn template(template: &Value, path: &Path, out: &mut FieldErrors) {
    let (metadata, inner) = (get(template, "metadata"), get(template, "spec"));
    template_metadata(template, path, out);
    spec(inner, "", &path.child("spec"), out);
    annotations::fields_match(metadata, inner, &path.child("spec"), out);
    if !list(inner, "ephemeralContainers").is_empty() {
        let path = path.child("spec").child("ephemeralContainers");
        out.push(Error::forbidden(path, "ephemeral containers not allowed in pod template"));
    }
}

/// Labels and annotations of a template.
pub(super) fn template_metadata(template: &Value, path: &Path, out: &mut FieldErrors) {
    let metadata = get(template, "metadata");
    meta::labels(metadata, "labels", &path.child("labels"), out);
    meta::annotations(metadata, &path.child("annotations"), out);
    annotations::check(metadata, get(template, "spec"), &path.child("annotations"), out);
}

/// A pod's spec; a template's is of a pod without a name.
fn spec(spec: &Value, pod: &str, path: &Path, out: &mut FieldErrors) {
    if !has(spec, "terminationGracePeriodSeconds") {
        out.push(Error::required(path.child("terminationGracePeriodSeconds"), ""));
    }
    let volumes = volume::volumes(spec, pod, &path.child("volumes"), out);
    claims(spec, &path.child("resourceClaims"), out);
    let around = context::PodContext::of(spec, volumes);
    containers::regular(spec, &around, &path.child("containers"), out);
    containers::init(spec, &around, &path.child("initContainers"), out);
    containers::ephemeral(spec, &around, &path.child("ephemeralContainers"), out);
    resources::of_pod(spec, &around.claims, &path.child("resources"), out);
    security::host_network(spec, !pod.is_empty(), path, out);
    choice(spec, "restartPolicy", &["Always", "OnFailure", "Never"], path, out);
    choice(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], path, out);
    meta::labels(spec, "nodeSelector", &path.child("nodeSelector"), out);
    security::pod(spec, path, out);
    placement::affinity(spec, &path.child("affinity"), out);
    dns_config(spec, &path.child("dnsConfig"), out);
    placement::gates(spec, path, out);
    placement::spread(spec, &path.child("topologySpreadConstraints"), out);
    windows::host_processes(spec, path, out);
    security::host_users(spec, path, out);
    names(spec, path, out);
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
        if !name.is_empty() || (key == "runtimeClassName" && has(spec, key)) {
            complain(out, &path.child(key), name, dns1123_subdomain(name));
        }
    }
    if has(spec, "preemptionPolicy") {
        choice(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"], path, out);
    }
    resources::overhead(spec, "overhead", &path.child("overhead"), out);
    windows::operating_system(spec, path, out);
    workload(get(spec, "workloadRef"), &path.child("workloadRef"), out);
    environment::files(spec, path, out);
}

/// Of which workload a pod is, in which group of its pods.
fn workload(reference: &Value, path: &Path, out: &mut FieldErrors) {
    if reference.is_null() {
        return;
    }
    let (name, group) = (text(reference, "name"), text(reference, "podGroup"));
    complain(out, &path.child("name"), name, dns1123_subdomain(name));
    complain(out, &path.child("podGroup"), group, dns1123_label(group));
    shaped_if_said(reference, "podGroupReplicaKey", dns1123_label, path, out);
}

/// Names of things the pod runs with, and how long it may.
fn names(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if has(spec, "hostnameOverride") {
        host_name(spec, &path.child("hostnameOverride"), out);
    }
    for key in ["serviceAccountName", "nodeName"] {
        shaped_if_said(spec, key, dns1123_subdomain, path, out);
    }
    let longest = i64::from(i32::MAX);
    if let Some(seconds) = int(spec, "activeDeadlineSeconds").filter(|s| !(1..=longest).contains(s)) {
        let message = between(1, longest);
        out.push(Error::invalid(path.child("activeDeadlineSeconds"), seconds, &message));
    }
    for key in ["hostname", "subdomain"] {
        shaped_if_said(spec, key, dns1123_label, path, out);
    }
}

/// The name inside the pod, whatever the cluster calls it.
fn host_name(spec: &Value, path: &Path, out: &mut FieldErrors) {
    const MAX: usize = 64;
    let name = text(spec, "hostnameOverride");
    for key in ["setHostnameAsFQDN", "hostNetwork"].into_iter().filter(|k| flag(spec, k)) {
        out.push(Error::forbidden(path, &format!("may not be specified when {key} is true")));
    }
    if name.len() > MAX {
        out.push(Error::too_long(path, MAX));
    }
    complain(out, path, name, dns1123_subdomain(name));
}

fn claims(spec: &Value, path: &Path, out: &mut FieldErrors) {
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
        for key in ["resourceClaimName", "resourceClaimTemplateName"].into_iter().filter(|k| has(claim, k)) {
            let name = text(claim, key);
            complain(out, &path.child(key), name, dns1123_subdomain(name));
        }
    }
}

fn dns_config(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let config = get(spec, "dnsConfig");
    let (servers, searches) = (texts(config, "nameservers"), texts(config, "searches"));
    if text(spec, "dnsPolicy") == "None" {
        if config.is_null() {
            out.push(Error::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            out.push(Error::required(path.child("nameservers"), message));
            return;
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
    for (i, search) in searches.iter().enumerate().filter(|(_, s)| **s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        complain(out, &searches_path.index(i), search, search_path(search));
    }
    for (i, option) in list(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            out.push(Error::required(path.child("options").index(i), "must not be empty"));
        }
    }
}

/// Complaints about a domain to search; resolvers accept underscores in it.
fn search_path(search: &str) -> Vec<String> {
    let mut out = Vec::new();
    if search.len() > 253 {
        out.push(too_long(253));
    }
    let label = |part: &str| {
        let lower = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|b| lower(b) || *b == b'_')
            && bytes.last().is_some_and(lower)
            && bytes.iter().all(|b| lower(b) || b"-_".contains(b))
    };
    if !search.split('.').all(label) {
        let message = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
        let regex = "[a-z0-9_]([-_a-z0-9]*[a-z0-9])?(\\.[a-z0-9_]([-_a-z0-9]*[a-z0-9])?)*";
        out.push(pattern(message, regex, &["example.com"]));
    }
    out
}
