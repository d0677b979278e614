//! Volumes of pods, and the sources that pods and persistent volumes share.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{between, complain, config_key, dns1123_label, dns1123_subdomain};
use super::pod::{field_ref, resource_ref};
use super::tree::{get, has, int, list, quantity, text};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Sources in the order they are judged, with the texts each must have.
const SOURCES: &[(&str, &[&str])] = &[
    ("emptyDir", &[]),
    ("hostPath", &[]),
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("secret", &["secretName"]),
    ("nfs", &["server", "path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("persistentVolumeClaim", &["claimName"]),
    ("rbd", &["image"]),
    ("cinder", &["volumeID"]),
    ("cephfs", &[]),
    ("quobyte", &["volume"]),
    ("downwardAPI", &[]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("configMap", &["name"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("storageos", &[]),
    ("projected", &[]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("csi", &["driver"]),
    ("ephemeral", &[]),
    ("image", &[]),
];

/// `volumes` of a pod.
pub(super) fn volumes(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut names = BTreeSet::new();
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        let path = path.index(i);
        let name = text(volume, "name");
        sources(volume, &path, out);
        let mut own = Vec::new();
        if name.is_empty() {
            own.push(Error::required(path.child("name"), ""));
        } else {
            complain(&mut own, &path.child("name"), name, dns1123_label(name));
        }
        if own.is_empty() && !names.insert(name) {
            own.push(Error::duplicate(path.child("name"), name));
        }
        out.extend(own);
    }
}

fn sources(volume: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut first = true;
    for (kind, needed) in SOURCES.iter().filter(|(k, _)| has(volume, k)) {
        let path = path.child(kind);
        if !first {
            out.push(Error::forbidden(path, "may not specify more than 1 volume type"));
            continue;
        }
        first = false;
        source(kind, needed, get(volume, kind), &path, out);
    }
    if first {
        out.push(Error::required(path, "must specify a volume type"));
    }
}

/// One source by kind; what it needs comes from the table unless it has rules of its own.
pub(super) fn source(kind: &str, needed: &[&str], value: &Value, path: &Path, out: &mut Vec<Error>) {
    for key in needed {
        if text(value, key).is_empty() {
            out.push(Error::required(path.child(key), ""));
        }
    }
    match kind {
        "emptyDir" => {
            let limit = get(value, "sizeLimit");
            if !limit.is_null() && quantity(limit).sign() < 0 {
                out.push(Error::forbidden(
                    path.child("sizeLimit"),
                    "SizeLimit field must be a valid resource quantity",
                ));
            }
        }
        "hostPath" => host_path(value, path, out),
        "gitRepo" => descending_path(text(value, "directory"), &path.child("directory"), out),
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            let partition = int(value, "partition").unwrap_or_default();
            if !(0..=255).contains(&partition) {
                out.push(Error::invalid(path.child("partition"), partition, &between(0, 255)));
            }
        }
        "secret" | "configMap" => {
            mode(value, "defaultMode", path, out);
            items(value, path, out);
        }
        "nfs" => {
            if !text(value, "path").starts_with('/') {
                out.push(Error::invalid(path.child("path"), text(value, "path"), "must be an absolute path"));
            }
        }
        "downwardAPI" => downward(value, path, out),
        "projected" => projected(value, path, out),
        "csi" => {
            if has(value, "nodePublishSecretRef") && text(get(value, "nodePublishSecretRef"), "name").is_empty() {
                out.push(Error::required(path.child("nodePublishSecretRef").child("name"), ""));
            }
        }
        "cephfs" | "rbd" => {
            if list(value, "monitors").is_empty() {
                out.push(Error::required(path.child("monitors"), ""));
            }
        }
        "ephemeral" => {
            let template = get(value, "volumeClaimTemplate");
            if template.is_null() {
                out.push(Error::required(path.child("volumeClaimTemplate"), ""));
            } else {
                let path = path.child("volumeClaimTemplate").child("spec");
                super::storage::claim_spec(get(template, "spec"), &path, out);
            }
        }
        "image" => {
            let policy = text(value, "pullPolicy");
            if text(value, "reference").is_empty() {
                out.push(Error::required(path.child("reference"), ""));
            }
            if !matches!(policy, "" | "Always" | "IfNotPresent" | "Never") {
                let supported = ["Always", "IfNotPresent", "Never"];
                out.push(Error::not_supported(path.child("pullPolicy"), policy, &supported));
            }
        }
        _ => {}
    }
}

/// The texts a source must have.
pub(super) fn needed(kind: &str) -> &'static [&'static str] {
    SOURCES.iter().find(|(k, _)| *k == kind).map_or(&[], |(_, needed)| needed)
}

pub(super) fn host_path(value: &Value, path: &Path, out: &mut Vec<Error>) {
    let target = text(value, "path");
    if target.is_empty() {
        out.push(Error::required(path.child("path"), ""));
        return;
    }
    no_backsteps(target, &path.child("path"), out);
    let kinds = ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let kind = text(value, "type");
    if !kinds.contains(&kind) {
        out.push(Error::not_supported(path.child("type"), kind, &kinds));
    }
}

fn no_backsteps(target: &str, path: &Path, out: &mut Vec<Error>) {
    if target.split('/').any(|part| part == "..") {
        out.push(Error::invalid(path, target, "must not contain '..'"));
    }
}

/// A relative path that stays below where it starts; empty is fine.
pub(super) fn descending_path(target: &str, path: &Path, out: &mut Vec<Error>) {
    if target.starts_with('/') {
        out.push(Error::invalid(path, target, "must be a relative path"));
    }
    no_backsteps(target, path, out);
}

/// Such a path that may not start with `..` either, as names of projected files.
fn local_path(target: &str, path: &Path, out: &mut Vec<Error>) {
    descending_path(target, path, out);
    if target.starts_with("..") && !target.starts_with("../") && target != ".." {
        out.push(Error::invalid(path, target, "must not start with '..'"));
    }
}

fn mode(value: &Value, key: &str, path: &Path, out: &mut Vec<Error>) {
    if let Some(mode) = int(value, key).filter(|m| !(0..=0o777).contains(m)) {
        out.push(Error::invalid(path.child(key), mode, MODE));
    }
}

fn items(value: &Value, path: &Path, out: &mut Vec<Error>) {
    for (i, item) in list(value, "items").iter().enumerate() {
        let path = path.child("items").index(i);
        match text(item, "key") {
            "" => out.push(Error::required(path.child("key"), "")),
            key => complain(out, &path.child("key"), key, config_key(key)),
        }
        if text(item, "path").is_empty() {
            out.push(Error::required(path.child("path"), ""));
        }
        local_path(text(item, "path"), &path.child("path"), out);
        mode(item, "mode", &path, out);
    }
}

fn downward(value: &Value, path: &Path, out: &mut Vec<Error>) {
    mode(value, "defaultMode", path, out);
    for (i, file) in list(value, "items").iter().enumerate() {
        downward_file(file, &path.child("items").index(i), out);
    }
}

fn downward_file(file: &Value, path: &Path, out: &mut Vec<Error>) {
    if text(file, "path").is_empty() {
        out.push(Error::required(path.child("path"), ""));
    }
    local_path(text(file, "path"), &path.child("path"), out);
    match (has(file, "fieldRef"), has(file, "resourceFieldRef")) {
        (true, both) => {
            field_ref(get(file, "fieldRef"), FIELDS, &path.child("fieldRef"), out);
            if both {
                let message = "fieldRef and resourceFieldRef can not be specified simultaneously";
                out.push(Error::invalid(path, "resource", message));
            }
        }
        (false, true) => resource_ref(get(file, "resourceFieldRef"), true, &path.child("resourceFieldRef"), out),
        (false, false) => out.push(Error::required(path, "one of fieldRef and resourceFieldRef is required")),
    }
    mode(file, "mode", path, out);
}

fn projected(value: &Value, path: &Path, out: &mut Vec<Error>) {
    mode(value, "defaultMode", path, out);
    let mut paths = BTreeSet::new();
    for (i, source) in list(value, "sources").iter().enumerate() {
        let path = path.child("sources").index(i);
        let mut first = true;
        for kind in
            ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"]
        {
            if !has(source, kind) {
                continue;
            }
            let (value, path) = (get(source, kind), path.child(kind));
            if !first {
                out.push(Error::forbidden(path, "may not specify more than 1 volume type"));
                continue;
            }
            first = false;
            match kind {
                "secret" | "configMap" => {
                    if text(value, "name").is_empty() {
                        out.push(Error::required(path.child("name"), ""));
                    }
                    items(value, &path, out);
                }
                "downwardAPI" => downward(value, &path, out),
                "serviceAccountToken" => token(value, &path, out),
                _ => {}
            }
            for item in list(value, "items") {
                let target = text(item, "path");
                if !target.is_empty() && !paths.insert(target) {
                    out.push(Error::invalid(
                        &path,
                        "",
                        &format!("conflicting duplicate paths in multiple sources: {target}"),
                    ));
                }
            }
        }
        if first {
            out.push(Error::required(path, "must specify a volume type"));
        }
    }
}

fn token(value: &Value, path: &Path, out: &mut Vec<Error>) {
    let seconds = int(value, "expirationSeconds").unwrap_or_default();
    if seconds < 600 {
        let message = "may not specify a duration less than 10 minutes";
        out.push(Error::invalid(path.child("expirationSeconds"), seconds, message));
    }
    if seconds > i64::from(u32::MAX) + 1 {
        out.push(Error::invalid(
            path.child("expirationSeconds"),
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        ));
    }
    match text(value, "path") {
        "" => out.push(Error::required(path.child("path"), "")),
        target => local_path(target, &path.child("path"), out),
    }
}

/// The name of a driver.
pub(super) fn driver_name(name: &str, path: &Path, out: &mut Vec<Error>) {
    if name.is_empty() {
        out.push(Error::required(path, ""));
        return;
    }
    if name.len() > 63 {
        out.push(Error::too_long(path, 63));
    }
    complain(out, path, name, dns1123_subdomain(&name.to_lowercase()));
}
