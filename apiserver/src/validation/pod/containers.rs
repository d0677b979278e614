//! Containers of a pod: regular, init and ephemeral. Answers for upstream's `validateContainers`,
//! `validateInitContainers`, `validateEphemeralContainers`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::context::PodContext;
use super::{environment, handlers, mounts, resources, security};
use crate::rules::names::{complain, dns1123_label, port_name, port_number};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{get, has, int, list, text, texts};
use crate::validation::fields::{choice, required, shaped};

/// Fields that ephemeral containers may not set.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];
const NO_POLICY: &str = "must specify restartPolicy when restart rules are used";
const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// The regular containers.
pub(super) fn regular(spec: &Value, around: &PodContext<'_>, path: &Path, out: &mut FieldErrors) {
    let containers = list(spec, "containers");
    if containers.is_empty() {
        out.push(Error::required(path, ""));
        return;
    }
    let mut names = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let path = path.index(i);
        common(container, around, &path, out);
        if !names.insert(text(container, "name")) {
            out.push(Error::duplicate(path.child("name"), text(container, "name")));
        }
        handlers::lifecycle(container, around, &path, out);
        handlers::liveness(container, "livenessProbe", around.grace, &path, out);
        handlers::readiness(container, around.grace, &path, out);
        handlers::liveness(container, "startupProbe", around.grace, &path, out);
        restart_policy(container, &path, out);
    }
    host_ports(containers, path, out);
}

/// The init containers, with sidecars among them.
pub(super) fn init(spec: &Value, around: &PodContext<'_>, all: &Path, out: &mut FieldErrors) {
    let mut names: BTreeSet<&str> = list(spec, "containers").iter().map(|c| text(c, "name")).collect();
    for (i, container) in list(spec, "initContainers").iter().enumerate() {
        let path = all.index(i);
        let sidecar = text(container, "restartPolicy") == "Always";
        common(container, around, &path, out);
        init_restart_policy(container, &path, out);
        let name = text(container, "name");
        if names.contains(name) {
            out.push(Error::duplicate(path.child("name"), name));
        } else if !name.is_empty() {
            names.insert(name);
        }
        // These run one after the other: each may have the ports to itself.
        host_ports(std::slice::from_ref(container), all, out);
        if sidecar {
            handlers::lifecycle(container, around, &path, out);
            handlers::liveness(container, "livenessProbe", around.grace, &path, out);
            handlers::readiness(container, around.grace, &path, out);
            handlers::liveness(container, "startupProbe", around.grace, &path, out);
        } else {
            for key in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if has(container, key) {
                    let message = "may not be set for init containers without restartPolicy=Always";
                    out.push(Error::forbidden(path.child(key), message));
                }
            }
        }
    }
}

/// The ephemeral containers.
pub(super) fn ephemeral(spec: &Value, around: &PodContext<'_>, path: &Path, out: &mut FieldErrors) {
    let others: BTreeSet<&str> =
        list(spec, "containers").iter().chain(list(spec, "initContainers")).map(|c| text(c, "name")).collect();
    let mut names = others.clone();
    for (i, container) in list(spec, "ephemeralContainers").iter().enumerate() {
        let path = path.index(i);
        common(container, around, &path, out);
        trimmed_image(container, &path, out);
        if !names.insert(text(container, "name")) {
            out.push(Error::duplicate(path.child("name"), text(container, "name")));
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            out.push(Error::not_found(path.child("targetContainerName"), target));
        }
        for key in NOT_EPHEMERAL {
            let set = match get(container, key) {
                Value::Array(items) => !items.is_empty(),
                Value::Object(map) if key == "resources" => !map.is_empty(),
                other => !other.is_null(),
            };
            if set {
                out.push(Error::forbidden(path.child(key), "cannot be set for an Ephemeral Container"));
            }
        }
        for (j, mount) in list(container, "volumeMounts").iter().enumerate() {
            for key in ["subPath", "subPathExpr"] {
                if !text(mount, key).is_empty() {
                    let path = path.child("volumeMounts").index(j).child(key);
                    out.push(Error::forbidden(path, "cannot be set for an Ephemeral Container"));
                }
            }
        }
    }
}

/// Templates may have spaces around an image, pods may not.
pub(super) fn trimmed_image(container: &Value, path: &Path, out: &mut FieldErrors) {
    let image = text(container, "image");
    if image.trim() != image {
        out.push(Error::invalid(path.child("image"), image, "must not have leading or trailing whitespace"));
    }
}

/// Validates the restart policy of an init container: a sidecar's is `Always`; rules need a policy.
fn init_restart_policy(container: &Value, path: &Path, out: &mut FieldErrors) {
    let rules = !list(container, "restartPolicyRules").is_empty();
    if rules && !has(container, "restartPolicy") {
        return out.push(Error::required(path.child("restartPolicy"), NO_POLICY));
    }
    let beside = text(container, "restartPolicy") == "Always" && !out.allows(ValidationOption::RestartAllContainers);
    if !beside {
        return restart_policy(container, path, out);
    }
    if rules {
        let why = "restartPolicyRules are not allowed for init containers with restart policy Always";
        out.push(Error::forbidden(path.child("restartPolicyRules"), why));
    }
}

fn restart_policy(container: &Value, path: &Path, out: &mut FieldErrors) {
    let policy = text(container, "restartPolicy");
    if has(container, "restartPolicy") && !matches!(policy, "Always" | "OnFailure" | "Never") {
        let supported = ["Always", "Never", "OnFailure"];
        out.push(Error::not_supported(path.child("restartPolicy"), policy, &supported));
    }
    let rules = list(container, "restartPolicyRules");
    if !rules.is_empty() && !has(container, "restartPolicy") {
        out.push(Error::required(path.child("restartPolicy"), NO_POLICY));
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > MAX_RESTART_RULES {
        // Upstream counts rules and speaks of bytes, and so with exit codes.
        out.push(Error::too_long(&path, MAX_RESTART_RULES));
    }
    for (i, rule) in rules.iter().enumerate() {
        restart_rule(rule, &path.index(i), out);
    }
}

fn restart_rule(rule: &Value, path: &Path, out: &mut FieldErrors) {
    let action = text(rule, "action");
    let all = out.allows(ValidationOption::RestartAllContainers) && action == "RestartAllContainers";
    if action != "Restart" && !all {
        out.push(Error::not_supported(path.child("action"), action, &["Restart"]));
    }
    let (codes, path) = (get(rule, "exitCodes"), path.child("exitCodes"));
    if codes.is_null() {
        out.push(Error::required(path, "must be specified"));
        return;
    }
    let operator = text(codes, "operator");
    if !matches!(operator, "In" | "NotIn") {
        out.push(Error::not_supported(path.child("operator"), operator, &["In", "NotIn"]));
    }
    if list(codes, "values").len() > MAX_EXIT_CODES {
        out.push(Error::too_long(path.child("values"), MAX_EXIT_CODES));
    }
}

fn common(container: &Value, around: &PodContext<'_>, path: &Path, out: &mut FieldErrors) {
    shaped(container, "name", dns1123_label, path, out);
    required(container, &["image"], path, out);
    choice(container, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], path, out);
    ports(container, &path.child("ports"), out);
    environment::env(container, &path.child("env"), out);
    environment::env_from(container, &path.child("envFrom"), out);
    mounts::mounts(container, around, &path.child("volumeMounts"), out);
    mounts::devices(container, around, &path.child("volumeDevices"), out);
    choice(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], path, out);
    resources::requirements(get(container, "resources"), &around.claims, &path.child("resources"), out);
    resize_policies(container, around.policy, &path.child("resizePolicy"), out);
    security::container(get(container, "securityContext"), around.host_users, &path.child("securityContext"), out);
}

fn resize_policies(container: &Value, pod: &str, all: &Path, out: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, policy) in list(container, "resizePolicy").iter().enumerate() {
        let name = text(policy, "resourceName");
        if !seen.insert(name) {
            out.push(Error::duplicate(all.index(i), name));
        }
        match name {
            "" => out.push(Error::required(all, "")),
            "cpu" | "memory" => {}
            other => out.push(Error::not_supported(all, other, &["cpu", "memory"])),
        }
        let restart = text(policy, "restartPolicy");
        match restart {
            "" => out.push(Error::required(all, "")),
            "NotRequired" | "RestartContainer" => {}
            other => out.push(Error::not_supported(all, other, &["NotRequired", "RestartContainer"])),
        }
        if pod == "Never" && restart != "NotRequired" {
            let why = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            out.push(Error::invalid(all, restart, why));
        }
    }
}

fn ports(container: &Value, path: &Path, out: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    for (i, port) in list(container, "ports").iter().enumerate() {
        let path = path.index(i);
        let name = text(port, "name");
        if !name.is_empty() {
            let complaints = port_name(name);
            if complaints.is_empty() && !names.insert(name) {
                out.push(Error::duplicate(path.child("name"), name));
            }
            complain(out, &path.child("name"), name, complaints);
        }
        match int(port, "containerPort").unwrap_or_default() {
            0 => out.push(Error::required(path.child("containerPort"), "")),
            number => numbered(out, &path.child("containerPort"), number),
        }
        match int(port, "hostPort").unwrap_or_default() {
            0 => {}
            number => numbered(out, &path.child("hostPort"), number),
        }
        choice(port, "protocol", &["SCTP", "TCP", "UDP"], &path, out);
    }
}

fn numbered(out: &mut FieldErrors, path: &Path, number: i64) {
    out.extend(port_number(number).into_iter().map(|m| Error::invalid(path, number, &m)));
}

fn host_ports(containers: &[Value], path: &Path, out: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in list(container, "ports").iter().enumerate() {
            let number = int(port, "hostPort").unwrap_or_default();
            if number == 0 {
                continue;
            }
            let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
            if !seen.insert(key.clone()) {
                out.push(Error::duplicate(path.index(i).child("ports").index(j).child("hostPort"), key));
            }
        }
    }
}

/// Texts of a list, for messages about capabilities.
pub(super) fn capabilities<'a>(context: &'a Value, key: &str) -> Vec<&'a str> {
    texts(get(context, "capabilities"), key)
}
