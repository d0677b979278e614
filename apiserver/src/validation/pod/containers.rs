//! Containers of a pod: regular, init and ephemeral.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::{environment, handlers, resources, security};
use crate::validation::names::{complain, dns1123_label, port_name, port_number};
use crate::validation::tree::{flag, get, has, int, list, text, texts};
use crate::validation::volume::descending_path;

/// What containers may refer to.
pub(super) struct Surroundings<'a> {
    pub volumes: BTreeSet<&'a str>,
    pub claims: Vec<&'a str>,
    pub grace: i64,
}

/// The regular containers.
pub(super) fn regular(spec: &Value, around: &Surroundings<'_>, path: &Path, out: &mut Vec<Error>) {
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
        handlers::lifecycle(container, around.grace, &path, out);
        handlers::liveness(container, "livenessProbe", around.grace, &path, out);
        handlers::readiness(container, around.grace, &path, out);
        handlers::liveness(container, "startupProbe", around.grace, &path, out);
        restart_rules(container, &path, out);
    }
    host_ports(containers, path, out);
}

/// The init containers, with sidecars among them.
pub(super) fn init(spec: &Value, around: &Surroundings<'_>, path: &Path, out: &mut Vec<Error>) {
    let mut names: BTreeSet<&str> = list(spec, "containers").iter().map(|c| text(c, "name")).collect();
    for (i, container) in list(spec, "initContainers").iter().enumerate() {
        let path = path.index(i);
        let sidecar = text(container, "restartPolicy") == "Always";
        common(container, around, &path, out);
        if !names.insert(text(container, "name")) {
            out.push(Error::duplicate(path.child("name"), text(container, "name")));
        }
        if sidecar {
            handlers::lifecycle(container, around.grace, &path, out);
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
        restart_rules(container, &path, out);
        if !list(container, "resizePolicy").is_empty() && !sidecar {
            let message = "must not be set for init containers without restartPolicy=Always";
            out.push(Error::invalid(path.child("resizePolicy"), get(container, "resizePolicy").clone(), message));
        }
    }
}

/// The ephemeral containers.
pub(super) fn ephemeral(spec: &Value, around: &Surroundings<'_>, path: &Path, out: &mut Vec<Error>) {
    let others: BTreeSet<&str> =
        list(spec, "containers").iter().chain(list(spec, "initContainers")).map(|c| text(c, "name")).collect();
    let mut names = others.clone();
    for (i, container) in list(spec, "ephemeralContainers").iter().enumerate() {
        let path = path.index(i);
        common(container, around, &path, out);
        if !names.insert(text(container, "name")) {
            out.push(Error::duplicate(path.child("name"), text(container, "name")));
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            out.push(Error::not_found(path.child("targetContainerName"), target));
        }
        for key in
            ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources", "resizePolicy"]
        {
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

fn restart_rules(container: &Value, path: &Path, out: &mut Vec<Error>) {
    let policy = text(container, "restartPolicy");
    if has(container, "restartPolicy") && !matches!(policy, "Always" | "OnFailure" | "Never") {
        let supported = ["Always", "Never", "OnFailure"];
        out.push(Error::not_supported(path.child("restartPolicy"), policy, &supported));
    }
    let rules = list(container, "restartPolicyRules");
    if !rules.is_empty() && policy.is_empty() {
        let message = "must specify restartPolicy when restart rules are used";
        out.push(Error::required(path.child("restartPolicy"), message));
    }
}

fn common(container: &Value, around: &Surroundings<'_>, path: &Path, out: &mut Vec<Error>) {
    let name = text(container, "name");
    if name.is_empty() {
        out.push(Error::required(path.child("name"), ""));
    } else {
        complain(out, &path.child("name"), name, dns1123_label(name));
    }
    let image = text(container, "image");
    if image.is_empty() {
        out.push(Error::required(path.child("image"), ""));
    } else if image.trim() != image {
        out.push(Error::invalid(path.child("image"), image, "must not have leading or trailing whitespace"));
    }
    choice(container, "terminationMessagePolicy", &["FallbackToLogsOnError", "File"], path, out);
    ports(container, &path.child("ports"), out);
    environment::env(container, &path.child("env"), out);
    environment::env_from(container, &path.child("envFrom"), out);
    mounts(container, around, &path.child("volumeMounts"), out);
    devices(container, around, &path.child("volumeDevices"), out);
    choice(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], path, out);
    resources::requirements(get(container, "resources"), &around.claims, &path.child("resources"), out);
    resize_policies(container, &path.child("resizePolicy"), out);
    security::container(get(container, "securityContext"), &path.child("securityContext"), out);
}

/// A required text with few allowed values.
pub(in crate::validation) fn choice(holder: &Value, key: &str, allowed: &[&str], path: &Path, out: &mut Vec<Error>) {
    match text(holder, key) {
        "" => out.push(Error::required(path.child(key), "")),
        value if allowed.contains(&value) => {}
        value => out.push(Error::not_supported(path.child(key), value, allowed)),
    }
}

fn resize_policies(container: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut seen = BTreeSet::new();
    for (i, policy) in list(container, "resizePolicy").iter().enumerate() {
        let path = path.index(i);
        let name = text(policy, "resourceName");
        if !seen.insert(name) {
            out.push(Error::duplicate(&path, name));
        }
        match name {
            "" => out.push(Error::required(&path, "")),
            "cpu" | "memory" => {}
            other => out.push(Error::not_supported(&path, other, &["cpu", "memory"])),
        }
        match text(policy, "restartPolicy") {
            "" => out.push(Error::required(&path, "")),
            "NotRequired" | "RestartContainer" => {}
            other => out.push(Error::not_supported(&path, other, &["NotRequired", "RestartContainer"])),
        }
    }
}

fn ports(container: &Value, path: &Path, out: &mut Vec<Error>) {
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

fn numbered(out: &mut Vec<Error>, path: &Path, number: i64) {
    out.extend(port_number(number).into_iter().map(|m| Error::invalid(path, number, &m)));
}

fn host_ports(containers: &[Value], path: &Path, out: &mut Vec<Error>) {
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

fn mounts(container: &Value, around: &Surroundings<'_>, path: &Path, out: &mut Vec<Error>) {
    let devices = list(container, "volumeDevices");
    let mut seen = BTreeSet::new();
    for (i, mount) in list(container, "volumeMounts").iter().enumerate() {
        let path = path.index(i);
        let (name, target) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
        }
        if !around.volumes.contains(name) {
            out.push(Error::not_found(path.child("name"), name));
        }
        if target.is_empty() {
            out.push(Error::required(path.child("mountPath"), ""));
        }
        if !seen.insert(target) {
            out.push(Error::invalid(path.child("mountPath"), target, "must be unique"));
        }
        if devices.iter().any(|d| text(d, "name") == name) {
            out.push(Error::invalid(path.child("name"), name, "must not already exist in volumeDevices"));
        }
        if devices.iter().any(|d| text(d, "devicePath") == target) {
            let message = "must not already exist as a path in volumeDevices";
            out.push(Error::invalid(path.child("mountPath"), target, message));
        }
        let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        descending_path(sub, &path.child("subPath"), out);
        if !expression.is_empty() && !sub.is_empty() {
            let message = "subPathExpr and subPath are mutually exclusive";
            out.push(Error::invalid(path.child("subPathExpr"), expression, message));
        }
        descending_path(expression, &path.child("subPathExpr"), out);
        propagation(mount, container, &path, out);
    }
}

fn propagation(mount: &Value, container: &Value, path: &Path, out: &mut Vec<Error>) {
    let mode = text(mount, "mountPropagation");
    let privileged = flag(get(container, "securityContext"), "privileged");
    match mode {
        "" | "None" | "HostToContainer" => {}
        "Bidirectional" if privileged => {}
        "Bidirectional" => {
            let message = "Bidirectional mount propagation is available only to privileged containers";
            out.push(Error::forbidden(path.child("mountPropagation"), message));
        }
        other => {
            let supported = ["Bidirectional", "HostToContainer", "None"];
            out.push(Error::not_supported(path.child("mountPropagation"), other, &supported));
        }
    }
    let read_only = text(mount, "recursiveReadOnly");
    match read_only {
        "" | "Disabled" => {}
        "IfPossible" | "Enabled" => {
            if !flag(mount, "readOnly") {
                let message = "may only be specified when readOnly is true";
                out.push(Error::forbidden(path.child("recursiveReadOnly"), message));
            }
            if !matches!(mode, "" | "None") {
                let message = "may only be specified when mountPropagation is None or not specified";
                out.push(Error::forbidden(path.child("recursiveReadOnly"), message));
            }
        }
        other => {
            let supported = ["Disabled", "IfPossible", "Enabled"];
            out.push(Error::not_supported(path.child("recursiveReadOnly"), other, &supported));
        }
    }
}

fn devices(container: &Value, around: &Surroundings<'_>, path: &Path, out: &mut Vec<Error>) {
    let mounted: Vec<&str> = list(container, "volumeMounts").iter().map(|m| text(m, "name")).collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in list(container, "volumeDevices").iter().enumerate() {
        let path = path.index(i);
        let (name, target) = (text(device, "name"), text(device, "devicePath"));
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
        }
        if !names.insert(name) {
            out.push(Error::invalid(path.child("name"), name, "must be unique"));
        }
        if !around.volumes.contains(name) {
            out.push(Error::not_found(path.child("name"), name));
        }
        if target.is_empty() {
            out.push(Error::required(path.child("devicePath"), ""));
        }
        if !paths.insert(target) {
            out.push(Error::invalid(path.child("devicePath"), target, "must be unique"));
        }
        if target.split('/').any(|p| p == "..") {
            out.push(Error::invalid(path.child("devicePath"), target, "can not contain backsteps ('..')"));
        }
        if mounted.contains(&name) {
            out.push(Error::invalid(path.child("name"), name, "must not already exist in volumeMounts"));
        }
    }
}

/// The names of claims a pod declares.
pub(super) fn claim_names(spec: &Value) -> Vec<&str> {
    list(spec, "resourceClaims").iter().map(|c| text(c, "name")).collect()
}

/// The names of the volumes a pod declares.
pub(super) fn volume_names(spec: &Value) -> BTreeSet<&str> {
    list(spec, "volumes").iter().map(|v| text(v, "name")).collect()
}

/// Texts of a list, for messages about capabilities.
pub(super) fn capabilities<'a>(context: &'a Value, key: &str) -> Vec<&'a str> {
    texts(get(context, "capabilities"), key)
}
