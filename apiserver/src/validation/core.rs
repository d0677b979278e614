//! Small kinds: namespaces, service accounts, leases.

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::finalizer;
use super::tree::{get, has, int, text, texts};

/// No rules beyond metadata.
pub(super) fn any(_: &Value, _: &mut Vec<Error>) {}

/// A namespace.
pub(super) fn namespace(object: &Value, out: &mut Vec<Error>) {
    for (i, name) in texts(get(object, "spec"), "finalizers").iter().enumerate() {
        finalizer(name, &Path::of(&["spec", "finalizers"]).index(i), out);
    }
}

/// An address: named by itself.
pub(super) fn address(object: &Value, out: &mut Vec<Error>) {
    let name = text(get(object, "metadata"), "name");
    if name.parse::<std::net::IpAddr>().map(|ip| ip.to_string()).ok().as_deref() != Some(name) {
        let message = "must be a valid IP address in canonical format";
        out.push(Error::invalid(Path::of(&["metadata", "name"]), name, message));
    }
    if !has(get(object, "spec"), "parentRef") {
        out.push(Error::required(Path::of(&["spec", "parentRef"]), ""));
    }
}

/// A lease.
pub(super) fn lease(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if let Some(seconds) = int(spec, "leaseDurationSeconds").filter(|s| *s <= 0) {
        out.push(Error::invalid(path.child("leaseDurationSeconds"), seconds, "must be greater than 0"));
    }
    if let Some(count) = int(spec, "leaseTransitions").filter(|c| *c < 0) {
        out.push(Error::invalid(path.child("leaseTransitions"), count, "must be greater than or equal to 0"));
    }
    if has(spec, "preferredHolder") && text(spec, "strategy").is_empty() {
        let message = "may only be specified if `strategy` is defined";
        out.push(Error::forbidden(path.child("preferredHolder"), message));
    }
}
