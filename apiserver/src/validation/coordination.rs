//! Leases, and those who would like to hold one. Answers for upstream's `ValidateLease`, `ValidateLeaseCandidateSpec`.

use std::cmp::Ordering;

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::names::{complain, is_semver, not_negative, qualified_name};
use super::tree::{get, int, text};
use crate::rules::options::FieldErrors;

/// Leader election strategies that Kubernetes defines.
const STRATEGIES: [&str; 1] = ["OldestEmulationVersion"];
const NO_VERSION: &str = "0.0.0";

/// A lease.
pub(crate) fn lease(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if let Some(seconds) = int(spec, "leaseDurationSeconds").filter(|s| *s <= 0) {
        out.push(Error::invalid(path.child("leaseDurationSeconds"), seconds, "must be greater than 0"));
    }
    not_negative(out, path.child("leaseTransitions"), int(spec, "leaseTransitions"));
    if get(spec, "strategy").is_string() {
        strategy(text(spec, "strategy"), &path.child("strategy"), out);
    }
    if !text(spec, "preferredHolder").is_empty() && text(spec, "strategy").is_empty() {
        let message = "may only be specified if `strategy` is defined";
        out.push(Error::forbidden(path.child("preferredHolder"), message));
    }
}

/// Upstream names the field twice in the path of what it says of it.
fn strategy(name: &str, path: &Path, out: &mut FieldErrors) {
    let path = path.child("strategy");
    if name.contains('/') {
        complain(out, &path, name, qualified_name(name));
    } else if !STRATEGIES.contains(&name) {
        out.push(Error::not_supported(path, name, &STRATEGIES));
    }
}

/// Validates a LeaseCandidate.
pub(crate) fn candidate(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if text(spec, "leaseName").is_empty() {
        out.push(Error::required(path.child("leaseName"), ""));
    }
    let (binary, emulated) = (text(spec, "binaryVersion"), text(spec, "emulationVersion"));
    for (field, version) in [("emulationVersion", emulated), ("binaryVersion", binary)] {
        if !version.is_empty() && !is_semver(version) {
            out.push(Error::invalid(path.child(field), version, "must be a valid semantic version"));
        }
    }
    // What is none is before all that are.
    let [emulates, is] = [emulated, binary].map(|text| if is_semver(text) { text } else { NO_VERSION });
    if binary.is_empty() {
        out.push(Error::required(path.child("binaryVersion"), ""));
    } else if !emulated.is_empty() && order(is, emulates).is_lt() {
        let why = "must be greater than or equal to `emulationVersion`";
        out.push(Error::invalid(path.child("binaryVersion"), binary, why));
    }
    match text(spec, "strategy") {
        "" => out.push(Error::required(path.child("strategy"), "")),
        name => {
            if name == STRATEGIES[0] && order(emulates, NO_VERSION).is_eq() {
                let why = "must be specified when `strategy` is 'OldestEmulationVersion'";
                out.push(Error::required(path.child("emulationVersion"), why));
            }
            strategy(name, &path.child("strategy"), out);
        }
    }
}

/// A candidate stays one for its lease.
pub(crate) fn candidate_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let lease = |object| get(get(object, "spec"), "leaseName");
    immutable(lease(new), lease(old), &Path::of(&["spec", "leaseName"]), out);
}

/// Compares two semantic versions; build metadata does not count.
pub(crate) fn order(a: &str, b: &str) -> Ordering {
    fn parts(version: &str) -> (Vec<u64>, Vec<&str>) {
        let version = version.split('+').next().unwrap_or_default();
        let (core, early) = version.split_once('-').map_or((version, None), |(core, early)| (core, Some(early)));
        let numbers = core.split('.').map(|n| n.parse().unwrap_or(u64::MAX)).collect();
        (numbers, early.into_iter().flat_map(|early| early.split('.')).collect())
    }
    // Numbers come before words.
    let word = |word: &&str| word.parse::<u64>().map_or((1, 0, (*word).to_owned()), |n| (0, n, String::new()));
    let ((x, early_x), (y, early_y)) = (parts(a), parts(b));
    let released = early_x.is_empty().cmp(&early_y.is_empty());
    x.cmp(&y).then(released).then_with(|| early_x.iter().map(word).cmp(early_y.iter().map(word)))
}
