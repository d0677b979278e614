//! Migrations of what is stored to the version that things are stored in now.

use proto::Value;
use shared::status::field::{Error, Path};

use super::conditions::{conditions, is_true};
use super::meta::immutable;
use super::names::{dns1035_label, dns1123_subdomain};
use super::tree::{get, text};
use crate::rules::options::FieldErrors;

/// A migration.
pub(crate) fn migration(object: &Value, out: &mut FieldErrors) {
    let (asked, path) = (get(get(object, "spec"), "resource"), Path::of(&["spec", "resource"]));
    let (group, plural) = (text(asked, "group"), text(asked, "resource"));
    let shape = |field: &str, name: &str, wrong: Vec<String>, out: &mut FieldErrors| {
        if !wrong.is_empty() {
            out.push(Error::invalid(path.child(field), name, &wrong.join(",")));
        }
    };
    if plural.is_empty() {
        out.push(Error::required(path.child("resource"), "resource is required to be set"));
    } else {
        shape("resource", plural, dns1035_label(plural), out);
    }
    if !group.is_empty() {
        shape("group", group, dns1123_subdomain(group), out);
    }
}

/// Validates that the spec of a migration is immutable.
pub(crate) fn migration_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    immutable(get(new, "spec"), get(old, "spec"), &Path::new("spec"), out);
}

/// Validates the status of a migration: running, succeeded or failed.
pub(crate) fn migration_status(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (status, before, path) = (get(new, "status"), get(old, "status"), Path::new("status"));
    let (version, known) = (text(status, "resourceVersion"), text(before, "resourceVersion"));
    if !is_version(version) {
        let why = format!("resource version is not well formed: {version}");
        out.push(Error::invalid(path.child("resourceVersion"), version, &why));
    }
    conditions(status, &path, out);
    if !known.is_empty() && known != version {
        out.push(Error::invalid(path.child("resourceVersion"), version, "field is immutable"));
    }
    let [running, done, failed] = ["Running", "Succeeded", "Failed"].map(|kind| is_true(status, kind));
    let [_, was_done, had_failed] = ["Running", "Succeeded", "Failed"].map(|kind| is_true(before, kind));
    for (wrong, why) in [
        (done && failed, "Both success and failed conditions cannot be true at the same time"),
        (done && running, "Running condition cannot be true when success condition is true"),
        (failed && running, "Running condition cannot be true when failed condition is true"),
        (was_done && !done, "Success condition cannot be set to false once it is true"),
        (had_failed && !failed, "Failed condition cannot be set to false once it is true"),
    ] {
        if wrong {
            out.push(Error::invalid(path.child("conditions"), get(status, "conditions").clone(), why));
        }
    }
}

/// A version that can be compared with others: a number from one on.
fn is_version(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit())
}
