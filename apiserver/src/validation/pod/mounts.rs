//! Validation of volume mounts and volume devices. Answers for upstream's `ValidateVolumeMounts`,
//! `ValidateVolumeDevices`.

use std::collections::{BTreeMap, BTreeSet};

use proto::Value;
use shared::status::field::{Error, Path};

use super::context::PodContext;
use crate::rules::options::FieldErrors;
use crate::rules::tree::{flag, get, has, list, text};
use crate::validation::volume::descending_path;

/// Mount paths by volume name, the last one winning: upstream looks them up by name.
fn places<'a>(holder: &'a Value, key: &str, field: &str) -> BTreeMap<&'a str, &'a str> {
    list(holder, key).iter().map(|place| (text(place, "name"), text(place, field))).collect()
}

/// `volumeMounts`.
pub(super) fn mounts(container: &Value, around: &PodContext<'_>, all: &Path, out: &mut FieldErrors) {
    let devices = places(container, "volumeDevices", "devicePath");
    let mut seen = BTreeSet::new();
    for (i, mount) in list(container, "volumeMounts").iter().enumerate() {
        let path = all.index(i);
        let (name, target) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
        }
        if !around.volumes.contains_key(name) {
            out.push(Error::not_found(path.child("name"), name));
        }
        if target.is_empty() {
            out.push(Error::required(path.child("mountPath"), ""));
        }
        if !seen.insert(target) {
            out.push(Error::invalid(path.child("mountPath"), target, "must be unique"));
        }
        if devices.contains_key(name) {
            out.push(Error::invalid(path.child("name"), name, "must not already exist in volumeDevices"));
        }
        if devices.values().any(|place| *place == target) {
            let message = "must not already exist as a path in volumeDevices";
            out.push(Error::invalid(path.child("mountPath"), target, message));
        }
        // Upstream tells of some fields of a mount without saying of which.
        let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        if !sub.is_empty() {
            descending_path(sub, &all.child("subPath"), out);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                let message = "subPathExpr and subPath are mutually exclusive";
                out.push(Error::invalid(path.child("subPathExpr"), expression, message));
            }
            descending_path(expression, &all.child("subPathExpr"), out);
        }
        propagation(mount, container, all, out);
    }
}

fn propagation(mount: &Value, container: &Value, path: &Path, out: &mut FieldErrors) {
    let mode = text(mount, "mountPropagation");
    let privileged = flag(get(container, "securityContext"), "privileged");
    match mode {
        "" if !has(mount, "mountPropagation") => {}
        "None" | "HostToContainer" => {}
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
        "" if !has(mount, "recursiveReadOnly") => {}
        "Disabled" => {}
        "IfPossible" | "Enabled" => {
            if !flag(mount, "readOnly") {
                let message = "may only be specified when readOnly is true";
                out.push(Error::forbidden(path.child("recursiveReadOnly"), message));
            }
            if has(mount, "mountPropagation") && mode != "None" {
                let message = "may only be specified when mountPropagation is None or not specified";
                out.push(Error::forbidden(path.child("recursiveReadOnly"), message));
            }
        }
        other => {
            let supported = ["Disabled", "Enabled", "IfPossible"];
            out.push(Error::not_supported(path.child("recursiveReadOnly"), other, &supported));
        }
    }
}

/// `volumeDevices`.
pub(super) fn devices(container: &Value, around: &PodContext<'_>, path: &Path, out: &mut FieldErrors) {
    let mounts = places(container, "volumeMounts", "mountPath");
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in list(container, "volumeDevices").iter().enumerate() {
        let path = path.index(i);
        let (name, target) = (text(device, "name"), text(device, "devicePath"));
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
        }
        if !name.is_empty() && !names.insert(name) {
            out.push(Error::invalid(path.child("name"), name, "must be unique"));
        }
        match around.volumes.get(name) {
            Some(volume) if !has(volume, "persistentVolumeClaim") && !has(volume, "ephemeral") => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                out.push(Error::invalid(path.child("name"), name, why));
            }
            Some(_) => {}
            None => out.push(Error::not_found(path.child("name"), name)),
        }
        if target.is_empty() {
            out.push(Error::required(path.child("devicePath"), ""));
        }
        if paths.contains(target) {
            out.push(Error::invalid(path.child("devicePath"), target, "must be unique"));
        }
        if target.split('/').any(|p| p == "..") {
            out.push(Error::invalid(path.child("devicePath"), target, "can not contain backsteps ('..')"));
        } else {
            paths.insert(target);
        }
        if mounts.contains_key(name) {
            out.push(Error::invalid(path.child("name"), name, "must not already exist in volumeMounts"));
        }
        if mounts.values().any(|place| *place == target) {
            let why = "must not already exist as a path in volumeMounts";
            out.push(Error::invalid(path.child("devicePath"), target, why));
        }
    }
}
