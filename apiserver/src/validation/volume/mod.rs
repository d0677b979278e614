//! Volumes of pods, persistent volumes and claims. Answers for upstream's `ValidateVolumes`, `validateVolumeSource`.

pub(crate) mod claim;
mod iscsi;
mod paths;
pub(crate) mod persistent;
mod projected;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use proto::Value;
use shared::status::field::{Error, Path};
use shared::types::ephemeral_claim;

use super::fields::choice;
use super::meta;
use super::names::{complain, dns1123_label, dns1123_subdomain};
use super::tree::{get, has, list, text};
use crate::rules::options::FieldErrors;
pub(super) use paths::{descending_path, local_path, no_backsteps};
pub(super) use source::driver_name;

/// Sources of pods in the order they are judged.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];
const MORE_THAN_ONE: &str = "may not specify more than 1 volume type";

/// `volumes` of a pod, or of a template, which has no name. What is well formed can be mounted.
pub(super) fn volumes<'a>(
    spec: &'a Value,
    pod: &str,
    path: &Path,
    out: &mut FieldErrors,
) -> BTreeMap<&'a str, &'a Value> {
    let made: BTreeSet<String> = list(spec, "volumes")
        .iter()
        .filter(|v| !pod.is_empty() && has(v, "ephemeral"))
        .map(|v| ephemeral_claim(pod, text(v, "name")))
        .collect();
    let mut known = BTreeMap::new();
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        let (path, name, before) = (path.index(i), text(volume, "name"), out.len());
        one(volume, pod, &path, out);
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
        } else {
            complain(out, &path.child("name"), name, dns1123_label(name));
        }
        if known.contains_key(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
        if out.len() == before {
            known.insert(name, volume);
        }
        let claim = text(get(volume, "persistentVolumeClaim"), "claimName");
        if made.contains(claim) {
            let path = path.child("persistentVolumeClaim").child("claimName");
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            out.push(Error::invalid(path, claim, why));
        }
    }
    known
}

fn one(volume: &Value, pod: &str, path: &Path, out: &mut FieldErrors) {
    let mut kinds = SOURCES.into_iter().filter(|k| has(volume, k));
    let Some(kind) = kinds.next() else {
        out.push(Error::required(path, "must specify a volume type"));
        return;
    };
    match kind {
        "projected" => projected::projected(get(volume, kind), &path.child(kind), out),
        "downwardAPI" => projected::downward(get(volume, kind), &path.child(kind), out),
        "ephemeral" => ephemeral(volume, pod, path, out),
        "image" => image(get(volume, kind), pod, &path.child(kind), out),
        _ => source::source(volume, kind, text(volume, "name"), false, path, out),
    }
    for other in kinds {
        out.push(Error::forbidden(path.child(source::misnamed(other)), MORE_THAN_ONE));
        if other == "iscsi" {
            iscsi::named(get(volume, other), text(volume, "name"), path, out);
        }
    }
}

/// A claim of the volume's own, which is named after pod and volume.
fn ephemeral(volume: &Value, pod: &str, path: &Path, out: &mut FieldErrors) {
    let template = get(get(volume, "ephemeral"), "volumeClaimTemplate");
    let template_path = path.child("ephemeral").child("volumeClaimTemplate");
    if template.is_null() {
        out.push(Error::required(template_path, ""));
    } else {
        meta::template(get(template, "metadata"), &template_path.child("metadata"), out);
        claim::spec(get(template, "spec"), &template_path.child("spec"), out);
    }
    let name = text(volume, "name");
    if !pod.is_empty() && !name.is_empty() {
        let claim = ephemeral_claim(pod, name);
        for why in dns1123_subdomain(&claim) {
            out.push(Error::invalid(path.child("name"), name, &format!("PVC name {claim:?}: {why}")));
        }
    }
}

/// An image as a volume; templates may leave open which.
fn image(value: &Value, pod: &str, path: &Path, out: &mut FieldErrors) {
    if !pod.is_empty() && text(value, "reference").is_empty() {
        out.push(Error::required(path.child("reference"), ""));
    }
    choice(value, "pullPolicy", &["Always", "IfNotPresent", "Never"], path, out);
}
