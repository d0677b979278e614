//! Pods, and what pods are made of. Answers for upstream's `GetWarningsForPod`, `GetWarningsForPodTemplate`.

use proto::Value;
use shared::status::go_quote;

use super::{fractional, label_key, networking, node_selector, node_selector_term, paths, ports, preferred_term};
use crate::rules::options::{ValidationOption, Warnings};
use crate::rules::tree::{at, get, has, int, list, text, texts};
use crate::validation::pod_annotations::{APP_ARMOR, SECCOMP, SECCOMP_POD};

/// Volume sources that no longer do anything, or soon will not: their field, their name and what became of them.
pub(super) const OLD_VOLUMES: &[(&str, &str, &str)] = &[
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Annotations that became fields: since when they do nothing, and the field.
const OLD_ANNOTATIONS: &[(&str, &str, &str)] = &[
    ("scheduler.alpha.kubernetes.io/critical-pod", "v1.16", "priorityClassName"),
    ("security.alpha.kubernetes.io/sysctls", "v1.11", "sysctls"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "v1.11", "sysctls"),
];
const NO_SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
/// Resources that are counted in bytes.
const BYTES: [&str; 2] = ["memory", "ephemeral-storage"];

/// The template of pods at `path`.
pub(super) fn template(template: &Value, path: &str, out: &mut Warnings) {
    spec_and_annotations(template, &format!("{path}."), out);
}

/// A pod or a template, in upstream's order; `prefix` is in front of the paths of a template's fields.
pub(super) fn spec_and_annotations(pod: &Value, prefix: &str, out: &mut Warnings) {
    let spec = get(pod, "spec");
    let path = format!("{prefix}spec");
    node_selector(spec, &path, out);
    nodes(get(spec, "affinity"), &format!("{path}.affinity.nodeAffinity"), out);
    for (i, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{i}]");
        label_key(text(constraint, "topologyKey"), &format!("{path}.topologyKey"), out);
        selects_nothing(constraint, &path, out);
    }
    annotations(pod, prefix, out);
    volumes(spec, &path, out);
    references(spec, &path, out);
    for name in BYTES {
        bytes(get(get(spec, "overhead"), name), name, &format!("{path}.overhead"), out);
    }
    if has(at(pod, &["metadata", "annotations"]), SECCOMP_POD) && !says(spec, "seccompProfile") {
        out.push(format!("{prefix}metadata.annotations[{SECCOMP_POD}]: {NO_SECCOMP}"));
    }
    for (at, container) in containers(spec) {
        superseded(pod, container, (SECCOMP, "seccompProfile"), NO_SECCOMP, prefix, out);
        // Of pods, annotations of AppArmor become fields.
        if !prefix.is_empty() && !says(spec, "appArmorProfile") {
            let advice = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
            superseded(pod, container, (APP_ARMOR, "appArmorProfile"), advice, prefix, out);
        }
        one_container(container, &format!("{path}.{at}"), out);
    }
    ports::of(spec, &path, out);
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|s| s < 0) {
        out.push(format!(
            "{path}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    other_pods(get(spec, "affinity"), &format!("{path}.affinity"), out);
    for (i, server) in texts(get(spec, "dnsConfig"), "nameservers").iter().enumerate() {
        networking::ip(server, &format!("{path}.dnsConfig.nameservers[{i}]"), out);
    }
    for (i, alias) in list(spec, "hostAliases").iter().enumerate() {
        networking::ip(text(alias, "ip"), &format!("{path}.hostAliases[{i}].ip"), out);
    }
}

/// The containers of a pod, each with its place in the specification.
fn containers(spec: &Value) -> impl Iterator<Item = (String, &Value)> {
    ["initContainers", "containers"]
        .into_iter()
        .flat_map(|key| list(spec, key).iter().enumerate().map(move |(i, c)| (format!("{key}[{i}]"), c)))
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn nodes(affinity: &Value, path: &str, out: &mut Warnings) {
    let nodes = get(affinity, "nodeAffinity");
    for (i, term) in list(get(nodes, REQUIRED), "nodeSelectorTerms").iter().enumerate() {
        node_selector_term(term, &format!("{path}.{REQUIRED}.nodeSelectorTerms[{i}]"), out);
    }
    for (i, term) in list(nodes, PREFERRED).iter().enumerate() {
        preferred_term(get(term, "preference"), &format!("{path}.{PREFERRED}[{i}].preference"), out);
    }
}

fn other_pods(affinity: &Value, path: &str, out: &mut Warnings) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = get(affinity, kind);
        for (i, term) in list(pods, REQUIRED).iter().enumerate() {
            selects_nothing(term, &format!("{path}.{kind}.{REQUIRED}[{i}]"), out);
        }
        for (i, term) in list(pods, PREFERRED).iter().enumerate() {
            let path = format!("{path}.{kind}.{PREFERRED}[{i}].podAffinityTerm");
            selects_nothing(get(term, "podAffinityTerm"), &path, out);
        }
    }
}

fn selects_nothing(holder: &Value, path: &str, out: &mut Warnings) {
    if !has(holder, "labelSelector") {
        out.push(format!("{path}.labelSelector: a null labelSelector results in matching no pod"));
    }
}

fn annotations(pod: &Value, prefix: &str, out: &mut Warnings) {
    let all = at(pod, &["metadata", "annotations"]);
    for (key, since, field) in OLD_ANNOTATIONS.iter().filter(|(key, ..)| has(all, key)) {
        out.push(format!(
            "{prefix}metadata.annotations[{key}]: non-functional in {since}+; use the \"{field}\" field instead"
        ));
    }
}

/// Reports whether the security context of a pod or container sets a field.
fn says(holder: &Value, field: &str) -> bool {
    has(get(holder, "securityContext"), field)
}

/// A container's annotation, unless the field that took its place says something.
fn superseded(
    pod: &Value,
    container: &Value,
    (annotation, field): (&str, &str),
    advice: &str,
    prefix: &str,
    out: &mut Warnings,
) {
    let key = format!("{annotation}{}", text(container, "name"));
    if has(at(pod, &["metadata", "annotations"]), &key) && !says(container, field) {
        out.push(format!("{prefix}metadata.annotations[{key}]: {advice}"));
    }
}

/// Aliases of hosts and secrets for pulling images, which lists should hold once.
fn references(spec: &Value, path: &str, out: &mut Warnings) {
    let aliases = list(spec, "hostAliases");
    for (i, ip) in aliases.iter().map(|alias| text(alias, "ip")).enumerate() {
        if !ip.is_empty() && aliases[..i].iter().any(|alias| text(alias, "ip") == ip) {
            out.push(format!("{path}.hostAliases[{i}].ip: duplicate ip {}", go_quote(ip)));
        }
    }
    let secrets = list(spec, "imagePullSecrets");
    for (i, name) in secrets.iter().map(|secret| text(secret, "name")).enumerate() {
        if secrets[..i].iter().any(|secret| text(secret, "name") == name) {
            out.push(format!("{path}.imagePullSecrets[{i}].name: duplicate name {}", go_quote(name)));
        }
    }
    for (i, _) in secrets.iter().enumerate().filter(|(_, secret)| text(secret, "name").is_empty()) {
        out.push(format!("{path}.imagePullSecrets[{i}].name: invalid empty name \"\""));
    }
}

fn volumes(spec: &Value, path: &str, out: &mut Warnings) {
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{i}]");
        for (field, kind, what) in OLD_VOLUMES.iter().filter(|(field, ..)| has(volume, field)) {
            let what = if *field == "gitRepo" && out.allows(ValidationOption::GitRepoVolumes) {
                "deprecated in v1.11"
            } else {
                what
            };
            out.push(format!("{path}.{kind}: {what}"));
        }
        let claim = at(volume, &["ephemeral", "volumeClaimTemplate", "spec"]);
        super::storage::requests(claim, &format!("{path}.ephemeral.volumeClaimTemplate.spec"), out);
    }
    list(spec, "volumes").iter().for_each(|volume| paths::overlapping(volume, out));
}

fn one_container(container: &Value, path: &str, out: &mut Warnings) {
    for name in BYTES {
        for key in ["limits", "requests"] {
            bytes(at(container, &["resources", key, name]), name, &format!("{path}.resources.{key}"), out);
        }
    }
    let env = list(container, "env");
    for (i, variable) in env.iter().enumerate() {
        let name = text(variable, "name");
        let hides = env[..i].iter().any(|earlier| text(earlier, "name") == name);
        // Building on the value of before is fine; repeating it, or anything else, is not.
        let reference = format!("$({name})");
        let value = text(variable, "value");
        if hides && (value == reference || !value.contains(&reference)) {
            let shown = go_quote(name);
            out.push(format!(
                "{path}.env[{i}]: hides previous definition of {shown}, which may be dropped when using apply"
            ));
        }
    }
}

/// An amount of memory or storage.
fn bytes(value: &Value, name: &str, path: &str, out: &mut Warnings) {
    if !value.is_null() {
        fractional(value, &format!("{path}[{name}]"), out);
    }
}
