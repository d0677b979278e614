//! Small kinds: namespaces, service accounts. Answers for upstream's `ValidateNamespace`, `ValidateServiceAccount`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::finalizer;
use super::tree::{get, has, text, texts};
use crate::rules::options::FieldErrors;

/// No rules beyond metadata.
pub(crate) fn any(_: &Value, _: &mut FieldErrors) {}

/// A namespace.
pub(crate) fn namespace(object: &Value, out: &mut FieldErrors) {
    for name in texts(get(object, "spec"), "finalizers") {
        finalizer(name, &Path::of(&["spec", "finalizers"]), out);
    }
}

/// `status` of a namespace: its phase says whether it is being deleted.
pub(crate) fn namespace_status(new: &Value, _: &Value, out: &mut FieldErrors) {
    let phase = text(get(new, "status"), "phase");
    let why = match (has(get(new, "metadata"), "deletionTimestamp"), phase) {
        (false, "Active") | (true, "Terminating") => return,
        (false, _) => "may only be 'Active' if `deletionTimestamp` is empty",
        (true, _) => "may only be 'Terminating' if `deletionTimestamp` is not empty",
    };
    out.push(Error::invalid(Path::of(&["status", "Phase"]), phase, why));
}

/// `finalize` of a namespace.
pub(super) fn finalizers(new: &Value, _: &Value, out: &mut FieldErrors) {
    for (i, name) in texts(get(new, "spec"), "finalizers").iter().enumerate() {
        finalizer(name, &Path::of(&["spec", "finalizers"]).index(i), out);
    }
}
