//! Sources that pods and persistent volumes share, in the few ways in which they differ.

use proto::Value;
use shared::status::field::{Error, Path};

use super::{descending_path, iscsi, no_backsteps, projected};
use crate::rules::names::{between, complain, dns1123_label, dns1123_subdomain};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{entries, get, has, int, list, quantity, text};
use crate::validation::fields::{required, shaped, shaped_if_said};

/// A source that is judged.
struct JudgedSource<'a> {
    value: &'a Value,
    /// The volume's name.
    volume: &'a str,
    /// The source is that of a persistent volume, not of a pod's volume.
    persistent: bool,
    /// Path of the object that has the source.
    holder: &'a Path,
}

type Validate = fn(&JudgedSource<'_>, &Path, &mut FieldErrors);

const NO_MORE: Validate = |_, _, _| {};

/// Texts that sources must have, and what else of them is judged. Of sources without a row nothing is.
static RULES: &[(&str, &[&str], Validate)] = &[
    ("emptyDir", &[], |s, at, out| size_limit(s.value, at, out)),
    ("hostPath", &[], |s, at, out| host_path(s.value, at, out)),
    ("gitRepo", &["repository"], |s, at, out| {
        descending_path(text(s.value, "directory"), &at.child("directory"), out);
    }),
    ("gcePersistentDisk", &["pdName"], |s, at, out| partition(s.value, at, out)),
    ("awsElasticBlockStore", &["volumeID"], |s, at, out| partition(s.value, at, out)),
    ("secret", &["secretName"], |s, at, out| files(s.value, at, out)),
    ("configMap", &["name"], |s, at, out| files(s.value, at, out)),
    ("nfs", &["server", "path"], |s, at, out| absolute(s.value, at, out)),
    ("iscsi", &[], |s, _, out| iscsi::iscsi(s.value, s.volume, s.persistent, s.holder, out)),
    ("glusterfs", &["endpoints", "path"], |s, at, out| endpoints_namespace(s.value, at, out)),
    ("persistentVolumeClaim", &["claimName"], NO_MORE),
    ("flocker", &[], |s, at, out| flocker(s.value, at, out)),
    ("rbd", &[], |s, at, out| {
        monitors(s.value, at, out);
        required(s.value, &["image"], at, out);
    }),
    ("cephfs", &[], |s, at, out| monitors(s.value, at, out)),
    ("cinder", &["volumeID"], |s, at, out| secret(s.value, s.persistent, at, out)),
    ("quobyte", &[], |s, at, out| quobyte(s.value, at, out)),
    ("fc", &[], |s, at, out| fibre_channel(s.value, at, out)),
    ("flexVolume", &["driver"], |s, at, out| flex_options(s.value, at, out)),
    ("azureFile", &["secretName", "shareName"], |s, at, out| {
        if has(s.value, "secretNamespace") {
            required(s.value, &["secretNamespace"], at, out);
        }
    }),
    ("azureDisk", &["diskName", "diskURI"], |s, at, out| azure_disk(s.value, at, out)),
    ("vsphereVolume", &["volumePath"], NO_MORE),
    ("photonPersistentDisk", &["pdID"], NO_MORE),
    ("portworxVolume", &["volumeID"], NO_MORE),
    ("scaleIO", &["gateway", "system", "volumeName"], NO_MORE),
    ("storageos", &[], |s, at, out| {
        storage_os(s.value, at, out);
        secret(s.value, s.persistent, at, out);
    }),
    ("local", &[], |s, at, out| match text(s.value, "path") {
        "" => out.push(Error::required(at.child("path"), "")),
        target => no_backsteps(target, &at.child("path"), out),
    }),
    ("csi", &[], |s, at, out| {
        let judge = if s.persistent { persistent_csi } else { pod_csi };
        judge(s.value, at, out);
    }),
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
pub(super) fn source(holder: &Value, kind: &str, volume: &str, persistent: bool, path: &Path, out: &mut FieldErrors) {
    let Some((_, needed, judge)) = RULES.iter().find(|(k, ..)| *k == kind) else { return };
    let source = JudgedSource { value: get(holder, kind), volume, persistent, holder: path };
    let at = path.child(if kind == "gcePersistentDisk" { "persistentDisk" } else { kind });
    required(source.value, needed, &at, out);
    judge(&source, &at, out);
}

fn size_limit(value: &Value, path: &Path, out: &mut FieldErrors) {
    if quantity(get(value, "sizeLimit")).sign() < 0 {
        let why = "SizeLimit field must be a valid resource quantity";
        out.push(Error::forbidden(path.child("sizeLimit"), why));
    }
}

fn partition(value: &Value, path: &Path, out: &mut FieldErrors) {
    if let Some(partition) = int(value, "partition").filter(|p| !(0..=255).contains(p)) {
        out.push(Error::invalid(path.child("partition"), partition, &between(1, 255)));
    }
}

/// Validates the files of a secret or config map volume.
fn files(value: &Value, path: &Path, out: &mut FieldErrors) {
    projected::mode(value, "defaultMode", path, out);
    projected::items(value, path, out);
}

fn absolute(value: &Value, path: &Path, out: &mut FieldErrors) {
    if !text(value, "path").starts_with('/') {
        out.push(Error::invalid(path.child("path"), text(value, "path"), "must be an absolute path"));
    }
}

fn endpoints_namespace(value: &Value, path: &Path, out: &mut FieldErrors) {
    let (namespace, path) = (text(value, "endpointsNamespace"), path.child("endpointsNamespace"));
    if !namespace.is_empty() {
        complain(out, &path, namespace, dns1123_label(namespace));
    } else if has(value, "endpointsNamespace") {
        let why = "if the endpointnamespace is set, it must be a valid namespace name";
        out.push(Error::invalid(path, namespace, why));
    }
}

fn monitors(value: &Value, path: &Path, out: &mut FieldErrors) {
    if list(value, "monitors").is_empty() {
        out.push(Error::required(path.child("monitors"), ""));
    }
}

fn storage_os(value: &Value, path: &Path, out: &mut FieldErrors) {
    shaped(value, "volumeName", dns1123_label, path, out);
    shaped_if_said(value, "volumeNamespace", dns1123_label, path, out);
}

fn host_path(value: &Value, path: &Path, out: &mut FieldErrors) {
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

fn flocker(value: &Value, path: &Path, out: &mut FieldErrors) {
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
fn secret(value: &Value, persistent: bool, path: &Path, out: &mut FieldErrors) {
    if has(value, "secretRef") {
        let needed: &[&str] = if persistent { &["name", "namespace"] } else { &["name"] };
        required(get(value, "secretRef"), needed, &path.child("secretRef"), out);
    }
}

fn quobyte(value: &Value, path: &Path, out: &mut FieldErrors) {
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

fn fibre_channel(value: &Value, path: &Path, out: &mut FieldErrors) {
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
fn flex_options(value: &Value, path: &Path, out: &mut FieldErrors) {
    for (key, _) in entries(value, "options") {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let why = "kubernetes.io and k8s.io namespaces are reserved";
            out.push(Error::invalid(path.child("options").key(key), key.as_str(), why));
        }
    }
}

fn azure_disk(value: &Value, path: &Path, out: &mut FieldErrors) {
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

fn pod_csi(value: &Value, path: &Path, out: &mut FieldErrors) {
    driver_name(text(value, "driver"), &path.child("driver"), out);
    if !has(value, "nodePublishSecretRef") {
        return;
    }
    match text(get(value, "nodePublishSecretRef"), "name") {
        "" => out.push(Error::required(path.child("nodePublishSecretRef").child("name"), "")),
        name => complain(out, &path.child("name"), name, dns1123_subdomain(name)),
    }
}

fn persistent_csi(value: &Value, path: &Path, out: &mut FieldErrors) {
    driver_name(text(value, "driver"), &path.child("driver"), out);
    required(value, &["volumeHandle"], path, out);
    let references =
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];
    for key in references.into_iter().filter(|k| has(value, k)) {
        let (reference, path) = (get(value, key), path.child(key));
        for (key, check) in [("name", dns1123_subdomain as fn(&str) -> Vec<String>), ("namespace", dns1123_label)] {
            shaped(reference, key, check, &path, out);
        }
    }
}

/// The name of a driver.
pub(in crate::validation) fn driver_name(name: &str, path: &Path, out: &mut FieldErrors) {
    if name.is_empty() {
        out.push(Error::required(path, ""));
    }
    if name.len() > 63 {
        out.push(Error::too_long(path, 63));
    }
    complain(out, path, name, dns1123_subdomain(&name.to_lowercase()));
}
