//! Security contexts of pods and containers. Answers for upstream's `ValidateSecurityContext`,
//! `validatePodSpecSecurityContext`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::containers::capabilities;
use super::windows;
use crate::rules::names::between;
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{flag, get, has, int, list, text};
use crate::validation::fields::one_of;
use crate::validation::volume::descending_path;

const MAX_ID: i64 = 2_147_483_647;
const MAX_PROFILE: usize = 4095;

fn id(holder: &Value, key: &str, path: &Path, out: &mut FieldErrors) {
    if let Some(value) = int(holder, key).filter(|v| !(0..=MAX_ID).contains(v)) {
        out.push(Error::invalid(path.child(key), value, &between(0, MAX_ID)));
    }
}

/// A container's context; null is fine.
pub(super) fn container(context: &Value, host_users: bool, path: &Path, out: &mut FieldErrors) {
    id(context, "runAsUser", path, out);
    id(context, "runAsGroup", path, out);
    let mount = text(context, "procMount");
    if has(context, "procMount") && !matches!(mount, "Default" | "Unmasked") {
        out.push(Error::not_supported(path.child("procMount"), mount, &["Default", "Unmasked"]));
    }
    if mount == "Unmasked" && host_users {
        out.push(Error::invalid(path.child("procMount"), mount, "`hostUsers` must be false to use `Unmasked`"));
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
    windows::options(get(context, "windowsOptions"), &path.child("windowsOptions"), out);
    app_armor(get(context, "appArmorProfile"), &path.child("appArmorProfile"), out);
}

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn seccomp(profile: &Value, path: &Path, out: &mut FieldErrors) {
    if profile.is_null() {
        return;
    }
    let kind = text(profile, "type");
    if kind.is_empty() {
        out.push(Error::required(path.child("type"), "type is required when seccompProfile is set"));
    } else if !PROFILES.contains(&kind) {
        out.push(Error::not_supported(path.child("type"), kind, &PROFILES));
    }
    let path = path.child("localhostProfile");
    match (kind, has(profile, "localhostProfile")) {
        ("Localhost", false) => {
            out.push(Error::required(path, "must be set when seccomp type is Localhost"));
        }
        ("Localhost", true) => descending_path(text(profile, "localhostProfile"), &path, out),
        (_, true) => {
            let why = "can only be set when seccomp type is Localhost";
            let mut error = Error::invalid(path, Value::Null, why);
            // The profile, though it is told of a part of it.
            let local = get(profile, "localhostProfile");
            error.shown = Some(format!(r#"{{"Type":{},"LocalhostProfile":{local}}}"#, Value::from(kind)));
            out.push(error);
        }
        (_, false) => {}
    }
}

fn app_armor(profile: &Value, path: &Path, out: &mut FieldErrors) {
    if profile.is_null() {
        return;
    }
    let (kind, local) = (text(profile, "type"), text(profile, "localhostProfile"));
    let (type_path, path) = (path.child("type"), path.child("localhostProfile"));
    match kind {
        "Localhost" if !has(profile, "localhostProfile") => {
            out.push(Error::required(path, "must be set when AppArmor type is Localhost"));
        }
        "Localhost" => {
            if local.trim() != local {
                out.push(Error::invalid(&path, local, "must not be padded with whitespace"));
            } else if local.is_empty() {
                out.push(Error::required(&path, "must be set when AppArmor type is Localhost"));
            }
            if local.len() > MAX_PROFILE {
                out.push(Error::too_long(path, MAX_PROFILE));
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if has(profile, "localhostProfile") {
                out.push(Error::invalid(path, local, "can only be set when AppArmor type is Localhost"));
            }
        }
        "" => out.push(Error::required(type_path, "type is required when appArmorProfile is set")),
        other => out.push(Error::not_supported(type_path, other, &PROFILES)),
    }
}

/// The pod's context, with what lives beside it in the spec.
pub(super) fn pod(spec: &Value, spec_path: &Path, out: &mut FieldErrors) {
    let (context, path) = (get(spec, "securityContext"), spec_path.child("securityContext"));
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
    sysctls(spec, context, &path.child("sysctls"), out);
    one_of(context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"], &path, out);
    seccomp(get(context, "seccompProfile"), &path.child("seccompProfile"), out);
    windows::options(get(context, "windowsOptions"), &path.child("windowsOptions"), out);
    app_armor(get(context, "appArmorProfile"), &path.child("appArmorProfile"), out);
    one_of(context, "supplementalGroupsPolicy", &["Merge", "Strict"], &path, out);
    let policies: &[&str] = if out.allows(ValidationOption::MountOptionSELinuxChangePolicy) {
        &["MountOption", "Recursive"]
    } else {
        &["Recursive"]
    };
    one_of(context, "seLinuxChangePolicy", policies, &path, out);
}

/// On the host's network, containers use the ports they say; `defaulted` where those left out are filled in.
pub(super) fn host_network(spec: &Value, defaulted: bool, path: &Path, out: &mut FieldErrors) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    for (i, container) in list(spec, "containers").iter().enumerate() {
        for (j, port) in list(container, "ports").iter().enumerate() {
            let number = |key: &str| int(port, key).unwrap_or_default();
            let host = number("hostPort");
            if host != number("containerPort") && (defaulted || host != 0) {
                let path = path.child("containers").index(i).child("ports").index(j).child("hostPort");
                out.push(Error::invalid(path, host, "must match `containerPort` when `hostNetwork` is true"));
            }
        }
    }
}

const OWN_USERS: &str = "when `hostUsers` is false";

/// Users of the pod that are not those of the host need namespaces of their own.
pub(super) fn host_users(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if get(spec, "hostUsers") != &Value::Bool(false) {
        return;
    }
    for (key, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        let allowed = key == "hostNetwork" && out.allows(ValidationOption::UserNamespacesHostNetworkSupport);
        if flag(spec, key) && !allowed {
            out.push(Error::forbidden(path.child(shown), OWN_USERS));
        }
    }
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in list(spec, kind).iter().enumerate() {
            if !list(container, "volumeDevices").is_empty()
                && !out.allows(ValidationOption::VolumeDevicesWithUserNamespaces)
            {
                out.push(Error::forbidden(path.child(kind).index(i).child("volumeDevices"), OWN_USERS));
            }
        }
    }
}

fn sysctls(spec: &Value, context: &Value, path: &Path, out: &mut FieldErrors) {
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
            out.push(Error::required(&path, ""));
        } else if !well_formed(name) {
            let message = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            out.push(Error::invalid(&path, name, message));
        } else if names.contains(name) {
            out.push(Error::duplicate(&path, name));
        }
        names.insert(name);
        if let Some(shared) =
            of_the_host(name, spec).filter(|_| !out.allows(ValidationOption::NamespacedSysctlsForHostNetAndHostIpc))
        {
            out.push(Error::invalid(&path, name, &format!("may not be specified when '{shared}' is true")));
        }
    }
}

/// Returns the pod field (`hostIPC` or `hostNetwork`) that shares the namespace of a sysctl with the host.
pub(super) fn of_the_host(sysctl: &str, spec: &Value) -> Option<&'static str> {
    const BETWEEN_PROCESSES: [&str; 10] = [
        "kernel.sem",
        "kernel.shm",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.msg",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
    ];
    // Whichever of the two comes first separates the parts of a name.
    let dotted = match sysctl.find(['.', '/']) {
        Some(i) if sysctl.as_bytes()[i] == b'/' => {
            let swapped = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            sysctl.chars().map(swapped).collect()
        }
        _ => sysctl.to_owned(),
    };
    let field = if dotted.starts_with("net.") {
        "hostNetwork"
    } else if dotted.starts_with("fs.mqueue.") || BETWEEN_PROCESSES.contains(&&*dotted) {
        "hostIPC"
    } else {
        return None;
    };
    flag(spec, field).then_some(field)
}
