//! Events.

use proto::Value;
use shared::status::field::{Error, Path};

use super::tree::{get, has, text};

/// An event: it lives beside what it is about.
pub(super) fn create(object: &Value, out: &mut Vec<Error>) {
    let namespace = text(get(object, "metadata"), "namespace");
    let about = text(get(object, "involvedObject"), "namespace");
    let path = Path::of(&["involvedObject", "namespace"]);
    let fits = if about.is_empty() { matches!(namespace, "" | "default") } else { about == namespace };
    if !fits {
        out.push(Error::invalid(path, about, "does not match event.namespace"));
    }
    // Events of the newer API carry an event time; their texts are bounded.
    if !has(object, "eventTime") {
        return;
    }
    let bounds = [
        ("reportingComponent", "reportingController", 253),
        ("reportingInstance", "reportingInstance", 128),
        ("action", "action", 128),
        ("reason", "reason", 128),
        ("message", "note", 1024),
    ];
    for (key, name, max) in bounds {
        if text(object, key).len() > max {
            out.push(Error::invalid(name, "", &format!("can have at most {max} characters")));
        }
    }
}
