//! Small kinds: namespaces, service accounts, leases.

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::finalizer;
use super::names::not_negative;
use super::tree::{get, has, int, text, texts};

/// No rules beyond metadata.
pub(super) fn any(_: &Value, _: &mut Vec<Error>) {}

/// A namespace.
pub(super) fn namespace(object: &Value, out: &mut Vec<Error>) {
    for name in texts(get(object, "spec"), "finalizers") {
        finalizer(name, &Path::of(&["spec", "finalizers"]), out);
    }
}

/// `status` of a namespace: its phase says whether it is being deleted.
pub(super) fn namespace_status(new: &Value, _: &Value, out: &mut Vec<Error>) {
    let phase = text(get(new, "status"), "phase");
    let why = match (has(get(new, "metadata"), "deletionTimestamp"), phase) {
        (false, "Active") | (true, "Terminating") => return,
        (false, _) => "may only be 'Active' if `deletionTimestamp` is empty",
        (true, _) => "may only be 'Terminating' if `deletionTimestamp` is not empty",
    };
    out.push(Error::invalid(Path::of(&["status", "Phase"]), phase, why));
}

/// `finalize` of a namespace.
pub(super) fn finalizers(new: &Value, _: &Value, out: &mut Vec<Error>) {
    for (i, name) in texts(get(new, "spec"), "finalizers").iter().enumerate() {
        finalizer(name, &Path::of(&["spec", "finalizers"]).index(i), out);
    }
}

/// A lease.
pub(super) fn lease(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if let Some(seconds) = int(spec, "leaseDurationSeconds").filter(|s| *s <= 0) {
        out.push(Error::invalid(path.child("leaseDurationSeconds"), seconds, "must be greater than 0"));
    }
    not_negative(out, path.child("leaseTransitions"), int(spec, "leaseTransitions"));
    if has(spec, "preferredHolder") && text(spec, "strategy").is_empty() {
        let message = "may only be specified if `strategy` is defined";
        out.push(Error::forbidden(path.child("preferredHolder"), message));
    }
}
