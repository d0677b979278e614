//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::containers::capabilities;
use crate::validation::names::between;
use crate::validation::tree::{flag, get, has, int, list, text};

const MAX_ID: i64 = 2_147_483_647;

fn id(holder: &Value, key: &str, path: &Path, out: &mut Vec<Error>) {
    if let Some(value) = int(holder, key).filter(|v| !(0..=MAX_ID).contains(v)) {
        out.push(Error::invalid(path.child(key), value, &between(0, MAX_ID)));
    }
}

/// A container's context; null is fine.
pub(super) fn container(context: &Value, path: &Path, out: &mut Vec<Error>) {
    id(context, "runAsUser", path, out);
    id(context, "runAsGroup", path, out);
    let mount = text(context, "procMount");
    if !matches!(mount, "" | "Default" | "Unmasked") {
        out.push(Error::not_supported(path.child("procMount"), mount, &["Default", "Unmasked"]));
    }
    seccomp(get(context, "seccompProfile"), &path.child("seccompProfile"), out);
    if get(context, "allowPrivilegeEscalation") == &Value::Bool(false) {
        if flag(context, "privileged") {
            let message = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            out.push(Error::invalid(path, context.clone(), message));
        }
        if capabilities(context, "add").contains(&"CAP_SYS_ADMIN") {
            let message = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            out.push(Error::invalid(path, context.clone(), message));
        }
    }
    app_armor(get(context, "appArmorProfile"), &path.child("appArmorProfile"), out);
}

fn seccomp(profile: &Value, path: &Path, out: &mut Vec<Error>) {
    if profile.is_null() {
        return;
    }
    let local = text(profile, "localhostProfile");
    match text(profile, "type") {
        "Localhost" if local.is_empty() => {
            out.push(Error::required(path.child("localhostProfile"), "must be set when seccomp type is Localhost"));
        }
        "Localhost" => crate::validation::volume::descending_path(local, &path.child("localhostProfile"), out),
        kind => {
            if has(profile, "localhostProfile") {
                let message = "can only be set when seccomp type is Localhost";
                out.push(Error::invalid(path.child("localhostProfile"), local, message));
            }
            match kind {
                "RuntimeDefault" | "Unconfined" => {}
                "" => out.push(Error::required(path.child("type"), "type is required when seccompProfile is set")),
                other => {
                    let supported = ["Localhost", "RuntimeDefault", "Unconfined"];
                    out.push(Error::not_supported(path.child("type"), other, &supported));
                }
            }
        }
    }
}

fn app_armor(profile: &Value, path: &Path, out: &mut Vec<Error>) {
    if profile.is_null() {
        return;
    }
    let local = text(profile, "localhostProfile");
    match text(profile, "type") {
        "Localhost" => {
            if local.trim().is_empty() {
                out.push(Error::required(
                    path.child("localhostProfile"),
                    "must be set when AppArmor type is Localhost",
                ));
            } else if local.trim() != local {
                let message = "must not be padded with whitespace";
                out.push(Error::invalid(path.child("localhostProfile"), local, message));
            }
        }
        kind => {
            if has(profile, "localhostProfile") {
                let message = "can only be set when AppArmor type is Localhost";
                out.push(Error::invalid(path.child("localhostProfile"), local, message));
            }
            match kind {
                "RuntimeDefault" | "Unconfined" => {}
                "" => out.push(Error::required(path.child("type"), "type is required when appArmorProfile is set")),
                other => {
                    let supported = ["Localhost", "RuntimeDefault", "Unconfined"];
                    out.push(Error::not_supported(path.child("type"), other, &supported));
                }
            }
        }
    }
}

/// The pod's context, with what lives beside it in the spec.
pub(super) fn pod(spec: &Value, spec_path: &Path, out: &mut Vec<Error>) {
    let (context, path) = (get(spec, "securityContext"), spec_path.child("securityContext"));
    if flag(spec, "hostNetwork") {
        host_network(spec, spec_path, out);
    }
    id(context, "fsGroup", &path, out);
    id(context, "runAsUser", &path, out);
    id(context, "runAsGroup", &path, out);
    for (i, group) in list(context, "supplementalGroups").iter().enumerate() {
        if let Some(value) = group.as_i64().filter(|v| !(0..=MAX_ID).contains(v)) {
            out.push(Error::invalid(path.child("supplementalGroups").index(i), value, &between(0, MAX_ID)));
        }
    }
    if flag(spec, "shareProcessNamespace") && flag(spec, "hostPID") {
        let message = "ShareProcessNamespace and HostPID cannot both be enabled";
        out.push(Error::invalid(path.child("shareProcessNamespace"), true, message));
    }
    sysctls(context, &path.child("sysctls"), out);
    let policy = text(context, "fsGroupChangePolicy");
    if !matches!(policy, "" | "OnRootMismatch" | "Always") {
        out.push(Error::not_supported(path.child("fsGroupChangePolicy"), policy, &["Always", "OnRootMismatch"]));
    }
    seccomp(get(context, "seccompProfile"), &path.child("seccompProfile"), out);
    app_armor(get(context, "appArmorProfile"), &path.child("appArmorProfile"), out);
}

fn host_network(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    for key in ["containers", "initContainers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            for (j, port) in list(container, "ports").iter().enumerate() {
                // Defaults fill it in for pods; templates may leave it out.
                let host = int(port, "hostPort").unwrap_or_default();
                if host != 0 && host != int(port, "containerPort").unwrap_or_default() {
                    let path = path.child(key).index(i).child("ports").index(j).child("hostPort");
                    out.push(Error::invalid(path, host, "must match `containerPort` when `hostNetwork` is true"));
                }
            }
        }
    }
}

fn sysctls(context: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut names = BTreeSet::new();
    let well_formed = |name: &str| {
        name.len() <= 253
            && name.split(['.', '/']).all(|part| {
                let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
                let bytes = part.as_bytes();
                bytes.first().is_some_and(edge)
                    && bytes.last().is_some_and(edge)
                    && bytes.iter().all(|b| edge(b) || b"-_".contains(b))
            })
    };
    for (i, sysctl) in list(context, "sysctls").iter().enumerate() {
        let name = text(sysctl, "name");
        let path = path.index(i).child("name");
        if name.is_empty() {
            out.push(Error::required(path, ""));
        } else if !well_formed(name) {
            let message = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            out.push(Error::invalid(path, name, message));
        } else if !names.insert(name) {
            out.push(Error::duplicate(path, name));
        }
    }
}
