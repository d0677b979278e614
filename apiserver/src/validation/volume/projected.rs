//! Files made of secrets, config maps, the pod's own fields and tokens. Answers for upstream's
//! `validateProjectedVolumeSource`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::local_path;
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{get, has, int, list, text};
use crate::validation::certificates::signer_name;
use crate::validation::pod::{field_ref, resource_ref};
use crate::validation::pod_certificate;
use crate::validation::selectors::label_selector;
use crate::validation::trust_bundle::misnamed;

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const SOURCES: [&str; 6] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
const NO_PATH: &str = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";

pub(super) fn mode(value: &Value, key: &str, path: &Path, out: &mut FieldErrors) {
    if let Some(mode) = int(value, key).filter(|m| !(0..=0o777).contains(m)) {
        out.push(Error::invalid(path.child(key), mode, MODE));
    }
}

/// Keys and the files they go to.
pub(super) fn items(value: &Value, path: &Path, out: &mut FieldErrors) {
    for (i, item) in list(value, "items").iter().enumerate() {
        let path = path.child("items").index(i);
        for key in ["key", "path"] {
            if text(item, key).is_empty() {
                out.push(Error::required(path.child(key), ""));
            }
        }
        local_path(text(item, "path"), &path.child("path"), out);
        mode(item, "mode", &path, out);
    }
}

/// A volume of the pod's fields. Upstream's paths do not say which item it is.
pub(super) fn downward(value: &Value, path: &Path, out: &mut FieldErrors) {
    mode(value, "defaultMode", path, out);
    for file in list(value, "items") {
        downward_file(file, path, out);
    }
}

fn downward_file(file: &Value, path: &Path, out: &mut FieldErrors) {
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

/// Files that two sources want to make.
struct Files<'a>(BTreeSet<&'a str>);

impl<'a> Files<'a> {
    fn add(&mut self, target: &'a str, whose: &str, path: &Path, out: &mut FieldErrors) {
        if !self.0.insert(target) {
            out.push(Error::invalid(path, whose, "conflicting duplicate paths"));
        }
    }
}

pub(super) fn projected(value: &Value, path: &Path, out: &mut FieldErrors) {
    mode(value, "defaultMode", path, out);
    let mut files = Files(BTreeSet::new());
    for (i, source) in list(value, "sources").iter().enumerate() {
        let at = path.child("sources").index(i);
        for kind in SOURCES.into_iter().filter(|k| has(source, k)) {
            let (value, at) = (get(source, kind), at.child(kind));
            match kind {
                "secret" | "configMap" => {
                    let name = text(value, "name");
                    if name.is_empty() {
                        out.push(Error::required(at.child("name"), ""));
                    }
                    items(value, &at, out);
                    for item in list(value, "items").iter().map(|i| text(i, "path")).filter(|p| !p.is_empty()) {
                        files.add(item, name, path, out);
                    }
                }
                "downwardAPI" => {
                    for file in list(value, "items") {
                        downward_file(file, &at, out);
                        let target = text(file, "path");
                        if !target.is_empty() {
                            files.add(target, target, path, out);
                        }
                    }
                }
                "serviceAccountToken" => token(value, &at, path, out),
                "clusterTrustBundle" => {
                    trust_bundle(value, &at, out);
                    files.add(text(value, "path"), text(value, "path"), path, out);
                }
                _ => {
                    pod_certificate::projection(value, &at, out);
                    let paths = ["credentialBundlePath", "keyPath", "certificateChainPath"];
                    for key in paths.into_iter().filter(|k| !text(value, k).is_empty()) {
                        local_path(text(value, key), &at.child(key), out);
                        files.add(text(value, key), text(value, key), path, out);
                    }
                    if paths.iter().all(|k| text(value, k).is_empty()) {
                        out.push(Error::required(at, NO_PATH));
                    }
                }
            }
        }
        if SOURCES.iter().filter(|k| has(source, k)).count() > 1 {
            out.push(Error::forbidden(at, "may not specify more than 1 volume type per source"));
        }
    }
}

fn token(value: &Value, path: &Path, volume: &Path, out: &mut FieldErrors) {
    let seconds = int(value, "expirationSeconds").unwrap_or_default();
    if seconds < 600 {
        let message = "may not specify a duration less than 10 minutes";
        out.push(Error::invalid(path.child("expirationSeconds"), seconds, message));
    }
    if seconds > i64::from(u32::MAX) + 1 {
        let message = "may not specify a duration larger than 2^32 seconds";
        out.push(Error::invalid(path.child("expirationSeconds"), seconds, message));
    }
    match text(value, "path") {
        "" => out.push(Error::required(volume.child("path"), "")),
        target if !out.allows(ValidationOption::NonLocalProjectedTokenPath) => {
            local_path(target, &volume.child("path"), out)
        }
        _ => {}
    }
}

/// The signer that the name of a bundle begins with.
fn signer_of(bundle: &str) -> String {
    bundle.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/")).unwrap_or_default()
}

fn trust_bundle(value: &Value, path: &Path, out: &mut FieldErrors) {
    let (name, signer) = (text(value, "name"), text(value, "signerName"));
    match (has(value, "name"), has(value, "signerName")) {
        (true, true) => {
            out.push(Error::invalid(path, value.clone(), "only one of name and signerName may be used"));
        }
        (true, false) => {
            if name.is_empty() {
                out.push(Error::required(path.child("name"), "must be a valid object name"));
            }
            for why in misnamed(name, &signer_of(name), false) {
                let why = format!("not a valid clustertrustbundlename: {why}");
                out.push(Error::invalid(path.child("name"), name, &why));
            }
            if has(value, "labelSelector") {
                let why = "labelSelector must be unset if name is specified";
                out.push(Error::invalid(path.child("labelSelector"), get(value, "labelSelector").clone(), why));
            }
        }
        (false, true) => {
            if signer.is_empty() {
                out.push(Error::required(path.child("signerName"), "must be a valid signer name"));
            }
            signer_name(signer, &path.child("signerName"), out);
            label_selector(get(value, "labelSelector"), &path.child("labelSelector"), out);
        }
        (false, false) => {
            out.push(Error::required(path, "either name or signerName must be specified"));
        }
    }
    let target = text(value, "path");
    if target.is_empty() {
        out.push(Error::required(path.child("path"), ""));
    }
    local_path(target, &path.child("path"), out);
}
