//! What clients are warned of though the object is accepted.

use proto::Value;
use proto::resources::Resource;
use shared::status::go_quote;

use super::names::dns1123_label;
use super::tree::{at, entries, get, has, int, list, quantity, text};

/// Node labels that were renamed.
const OLD_LABELS: &[(&str, &str, &str)] = &[
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
];
/// Volume sources that no longer do anything, or soon will not.
const OLD_VOLUMES: &[(&str, &str)] = &[
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Warnings about an object.
pub(super) fn of(row: &Resource, object: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let template = |path: &[&str], at_text: &str, out: &mut Vec<String>| {
        let template = at(object, path);
        pod(get(template, "spec"), &format!("{at_text}.spec"), out);
    };
    match (&*row.group, &*row.plural) {
        ("", "pods") => {
            pod(get(object, "spec"), "spec", &mut out);
            host_name(object, &mut out);
        }
        ("", "replicationcontrollers") | ("apps", _) | ("batch", "jobs") if has(get(object, "spec"), "template") => {
            template(&["spec", "template"], "spec.template", &mut out);
        }
        ("batch", "cronjobs") => {
            template(&["spec", "jobTemplate", "spec", "template"], "spec.jobTemplate.spec.template", &mut out);
        }
        ("", "podtemplates") => template(&["template"], "template", &mut out),
        ("", "services") => service(object, &mut out),
        ("networking.k8s.io", "ingresses") => {
            if !super::meta::annotation(object, "kubernetes.io/ingress.class").is_empty() {
                out.push("annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead".to_owned());
            }
        }
        _ => {}
    }
    out
}

fn host_name(object: &Value, out: &mut Vec<String>) {
    let name = text(get(object, "metadata"), "name");
    let complaints = dns1123_label(name);
    if !name.is_empty() && !complaints.is_empty() {
        out.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
            complaints.join(" ")
        ));
    }
}

fn pod(spec: &Value, path: &str, out: &mut Vec<String>) {
    for (key, _) in entries(spec, "nodeSelector") {
        if let Some((_, since, now)) = OLD_LABELS.iter().find(|(k, ..)| k == key) {
            out.push(format!("{path}.nodeSelector[{key}]: deprecated since {since}; use {} instead", go_quote(now)));
        }
    }
    for (i, alias) in list(spec, "hostAliases").iter().enumerate() {
        let first = list(spec, "hostAliases")[..i].iter().position(|a| text(a, "ip") == text(alias, "ip"));
        if let (Some(_), false) = (first, text(alias, "ip").is_empty()) {
            out.push(format!("{path}.hostAliases[{i}].ip: duplicate ip {}", go_quote(text(alias, "ip"))));
        }
    }
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        for (kind, what) in OLD_VOLUMES.iter().filter(|(k, _)| has(volume, k)) {
            out.push(format!("{path}.volumes[{i}].{kind}: {what}"));
        }
    }
    for (i, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        let name = text(secret, "name");
        if name.is_empty() {
            out.push(format!("{path}.imagePullSecrets[{i}].name: invalid empty name \"\""));
        } else if list(spec, "imagePullSecrets")[..i].iter().any(|s| text(s, "name") == name) {
            out.push(format!("{path}.imagePullSecrets[{i}].name: duplicate name {}", go_quote(name)));
        }
    }
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|s| s < 0) {
        out.push(format!(
            "{path}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    for key in ["initContainers", "containers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            one_container(container, &format!("{path}.{key}[{i}]"), out);
        }
    }
}

fn one_container(container: &Value, path: &str, out: &mut Vec<String>) {
    for key in ["limits", "requests"] {
        for (name, value) in entries(get(container, "resources"), key) {
            if matches!(name.as_str(), "memory" | "ephemeral-storage") && quantity(value).milli_value() % 1000 != 0 {
                let shown = go_quote(value.as_str().unwrap_or_default());
                out.push(format!(
                    "{path}.resources.{key}[{name}]: fractional byte value {shown} is invalid, must be an integer"
                ));
            }
        }
    }
    let env = list(container, "env");
    for (i, variable) in env.iter().enumerate() {
        let name = text(variable, "name");
        let hidden = env[..i].iter().any(|v| text(v, "name") == name);
        let refers = text(variable, "value").contains(&format!("$({name})"));
        if hidden && !refers {
            let shown = go_quote(name);
            out.push(format!(
                "{path}.env[{i}]: hides previous definition of {shown}, which may be dropped when using apply"
            ));
        }
    }
    let ports = list(container, "ports");
    let identity = |p: &Value| {
        (int(p, "containerPort"), int(p, "hostPort"), text(p, "protocol").to_owned(), text(p, "hostIP").to_owned())
    };
    let key = |p: &Value| (int(p, "containerPort"), text(p, "protocol").to_owned());
    for (i, port) in ports.iter().enumerate() {
        if let Some(j) = ports[..i].iter().position(|p| identity(p) == identity(port)) {
            out.push(format!("{path}.ports[{i}]: duplicate port definition with {path}.ports[{j}]"));
        } else if let Some(j) = ports[..i]
            .iter()
            .position(|p| key(p) == key(port) && !text(p, "name").is_empty() && text(p, "name") == text(port, "name"))
        {
            out.push(format!("{path}.ports[{i}]: duplicate port name with {path}.ports[{j}]"));
        }
    }
}

fn service(object: &Value, out: &mut Vec<String>) {
    let spec = get(object, "spec");
    if !text(spec, "loadBalancerIP").is_empty() {
        out.push("spec.loadBalancerIP is deprecated and unreliable".to_owned());
    }
    if text(spec, "type") == "ExternalName" && !list(spec, "externalIPs").is_empty() {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if text(spec, "clusterIP") == "None" && text(spec, "sessionAffinity") == "ClientIP" {
        out.push("spec.SessionAffinity is ignored for headless services".to_owned());
    }
}
