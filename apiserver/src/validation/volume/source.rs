//! Sources that pods and persistent volumes share, in the few ways in which they differ.

use proto::Value;
use shared::status::field::{Error, Path};

use super::{descending_path, iscsi, no_backsteps, projected};
use crate::validation::names::{between, complain, dns1123_label, dns1123_subdomain};
use crate::validation::tree::{entries, get, has, int, list, quantity, text};

/// Texts that sources must have.
const NEEDED: &[(&str, &[&str])] = &[
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("secret", &["secretName"]),
    ("nfs", &["server", "path"]),
    ("glusterfs", &["endpoints", "path"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("cinder", &["volumeID"]),
    ("flexVolume", &["driver"]),
    ("configMap", &["name"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
];

/// The name of a field in upstream's complaint that there are two sources; some are spelt otherwise there.
pub(super) fn misnamed(kind: &str) -> &str {
    match kind {
        "cephfs" => "cephFS",
        "downwardAPI" => "downwarAPI",
        other => other,
    }
}

/// One source of a volume, `persistent` or a pod's own. `holder` is what has the source, under its name.
pub(super) fn source(holder: &Value, kind: &str, volume: &str, persistent: bool, path: &Path, out: &mut Vec<Error>) {
    let value = get(holder, kind);
    let at = path.child(if kind == "gcePersistentDisk" { "persistentDisk" } else { kind });
    let needed = NEEDED.iter().find(|(k, _)| *k == kind).map_or(&[][..], |(_, needed)| needed);
    required(value, needed, &at, out);
    match kind {
        "emptyDir" => {
            if quantity(get(value, "sizeLimit")).sign() < 0 {
                let why = "SizeLimit field must be a valid resource quantity";
                out.push(Error::forbidden(at.child("sizeLimit"), why));
            }
        }
        "hostPath" => host_path(value, &at, out),
        "gitRepo" => descending_path(text(value, "directory"), &at.child("directory"), out),
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            if let Some(partition) = int(value, "partition").filter(|p| !(0..=255).contains(p)) {
                out.push(Error::invalid(at.child("partition"), partition, &between(1, 255)));
            }
        }
        "secret" | "configMap" => {
            projected::mode(value, "defaultMode", &at, out);
            projected::items(value, &at, out);
        }
        "nfs" => {
            if !text(value, "path").starts_with('/') {
                out.push(Error::invalid(at.child("path"), text(value, "path"), "must be an absolute path"));
            }
        }
        "iscsi" => iscsi::iscsi(value, volume, persistent, path, out),
        "glusterfs" => {
            let namespace = text(value, "endpointsNamespace");
            let path = at.child("endpointsNamespace");
            if !namespace.is_empty() {
                complain(out, &path, namespace, dns1123_label(namespace));
            } else if has(value, "endpointsNamespace") {
                let why = "if the endpointnamespace is set, it must be a valid namespace name";
                out.push(Error::invalid(path, namespace, why));
            }
        }
        "flocker" => flocker(value, &at, out),
        "rbd" | "cephfs" => {
            if list(value, "monitors").is_empty() {
                out.push(Error::required(at.child("monitors"), ""));
            }
            if kind == "rbd" {
                required(value, &["image"], &at, out);
            }
        }
        "cinder" => secret(value, persistent, &at, out),
        "quobyte" => quobyte(value, &at, out),
        "fc" => fibre_channel(value, &at, out),
        "flexVolume" => flex_options(value, &at, out),
        "azureFile" => {
            if has(value, "secretNamespace") {
                required(value, &["secretNamespace"], &at, out);
            }
        }
        "azureDisk" => azure_disk(value, &at, out),
        "storageos" => {
            match text(value, "volumeName") {
                "" => out.push(Error::required(at.child("volumeName"), "")),
                name => complain(out, &at.child("volumeName"), name, dns1123_label(name)),
            }
            let namespace = text(value, "volumeNamespace");
            if !namespace.is_empty() {
                complain(out, &at.child("volumeNamespace"), namespace, dns1123_label(namespace));
            }
            secret(value, persistent, &at, out);
        }
        "local" => match text(value, "path") {
            "" => out.push(Error::required(at.child("path"), "")),
            target => no_backsteps(target, &at.child("path"), out),
        },
        "csi" if persistent => persistent_csi(value, &at, out),
        "csi" => pod_csi(value, &at, out),
        _ => {}
    }
}

fn required(value: &Value, keys: &[&str], path: &Path, out: &mut Vec<Error>) {
    for key in keys {
        if text(value, key).is_empty() {
            out.push(Error::required(path.child(key), ""));
        }
    }
}

fn host_path(value: &Value, path: &Path, out: &mut Vec<Error>) {
    const KINDS: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let target = text(value, "path");
    if target.is_empty() {
        out.push(Error::required(path.child("path"), ""));
        return;
    }
    no_backsteps(target, &path.child("path"), out);
    let kind = text(value, "type");
    if !KINDS.contains(&kind) {
        out.push(Error::not_supported(path.child("type"), kind, &KINDS));
    }
}

fn flocker(value: &Value, path: &Path, out: &mut Vec<Error>) {
    let (name, id) = (text(value, "datasetName"), text(value, "datasetUUID"));
    match (name.is_empty(), id.is_empty()) {
        (true, true) => out.push(Error::required(path, "one of datasetName and datasetUUID is required")),
        (false, false) => {
            let why = "datasetName and datasetUUID can not be specified simultaneously";
            out.push(Error::invalid(path, "resource", why));
        }
        _ => {}
    }
    if name.contains('/') {
        out.push(Error::invalid(path.child("datasetName"), name, "must not contain '/'"));
    }
}

/// A reference to a secret, which names its namespace outside of pods.
fn secret(value: &Value, persistent: bool, path: &Path, out: &mut Vec<Error>) {
    if has(value, "secretRef") {
        let needed: &[&str] = if persistent { &["name", "namespace"] } else { &["name"] };
        required(get(value, "secretRef"), needed, &path.child("secretRef"), out);
    }
}

fn quobyte(value: &Value, path: &Path, out: &mut Vec<Error>) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(value, "registry");
    if registry.is_empty() {
        out.push(Error::required(path.child("registry"), PAIRS));
    } else if text(value, "tenant").len() >= 65 {
        let why = "must be a UUID and may not exceed a length of 64 characters";
        out.push(Error::required(path.child("tenant"), why));
    } else {
        let pair = |p: &&str| !p.rsplit_once(':').is_some_and(|(h, _)| !h.contains(':') || h.ends_with(']'));
        for _ in registry.split(',').filter(pair) {
            out.push(Error::invalid(path.child("registry"), registry, PAIRS));
        }
    }
    required(value, &["volume"], path, out);
}

fn fibre_channel(value: &Value, path: &Path, out: &mut Vec<Error>) {
    let (wwns, wwids) = (list(value, "targetWWNs"), list(value, "wwids"));
    let at = path.child("targetWWNs");
    match (wwns.is_empty(), wwids.is_empty()) {
        (true, true) => out.push(Error::required(at, "must specify either targetWWNs or wwids, but not both")),
        (false, false) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            out.push(Error::invalid(at, get(value, "targetWWNs").clone(), why));
        }
        _ => {}
    }
    if wwns.is_empty() {
        return;
    }
    match int(value, "lun") {
        None => out.push(Error::required(path.child("lun"), "lun is required if targetWWNs is specified")),
        Some(lun) if !(0..=255).contains(&lun) => {
            out.push(Error::invalid(path.child("lun"), lun, &between(0, 255)));
        }
        Some(_) => {}
    }
}

/// Names of this project's own domains are not for users.
fn flex_options(value: &Value, path: &Path, out: &mut Vec<Error>) {
    for (key, _) in entries(value, "options") {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let why = "kubernetes.io and k8s.io namespaces are reserved";
            out.push(Error::invalid(path.child("options").key(key), key.as_str(), why));
        }
    }
}

fn azure_disk(value: &Value, path: &Path, out: &mut Vec<Error>) {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    for (key, known) in
        [("cachingMode", ["None", "ReadOnly", "ReadWrite"]), ("kind", ["Dedicated", "Managed", "Shared"])]
    {
        if has(value, key) && !known.contains(&text(value, key)) {
            out.push(Error::not_supported(path.child(key), text(value, key), &known));
        }
    }
    let (uri, kind) = (text(value, "diskURI"), text(value, "kind"));
    let (start, form) = if kind == "Managed" { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    if has(value, "kind") && !uri.starts_with(start) {
        out.push(Error::not_supported(path.child("diskURI"), uri, &[form]));
    }
}

fn pod_csi(value: &Value, path: &Path, out: &mut Vec<Error>) {
    driver_name(text(value, "driver"), &path.child("driver"), out);
    if !has(value, "nodePublishSecretRef") {
        return;
    }
    match text(get(value, "nodePublishSecretRef"), "name") {
        "" => out.push(Error::required(path.child("nodePublishSecretRef").child("name"), "")),
        name => complain(out, &path.child("name"), name, dns1123_subdomain(name)),
    }
}

fn persistent_csi(value: &Value, path: &Path, out: &mut Vec<Error>) {
    driver_name(text(value, "driver"), &path.child("driver"), out);
    required(value, &["volumeHandle"], path, out);
    let references =
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];
    for key in references.into_iter().filter(|k| has(value, k)) {
        let (reference, path) = (get(value, key), path.child(key));
        for (key, check) in [("name", dns1123_subdomain as fn(&str) -> Vec<String>), ("namespace", dns1123_label)] {
            match text(reference, key) {
                "" => out.push(Error::required(path.child(key), "")),
                name => complain(out, &path.child(key), name, check(name)),
            }
        }
    }
}

/// The name of a driver.
pub(in crate::validation) fn driver_name(name: &str, path: &Path, out: &mut Vec<Error>) {
    if name.is_empty() {
        out.push(Error::required(path, ""));
    }
    if name.len() > 63 {
        out.push(Error::too_long(path, 63));
    }
    complain(out, path, name, dns1123_subdomain(&name.to_lowercase()));
}
