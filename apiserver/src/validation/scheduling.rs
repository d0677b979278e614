//! Priority classes.

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::tree::{get, int, text};

/// Highest value users may define.
const HIGHEST: i64 = 1_000_000_000;
/// The classes the system defines: name and value.
const SYSTEM: [(&str, i64); 2] = [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// A priority class.
pub(super) fn class(object: &Value, out: &mut Vec<Error>) {
    let name = text(get(object, "metadata"), "name");
    let value = int(object, "value").unwrap_or_default();
    if name.starts_with("system-") {
        let wrong = match SYSTEM.iter().find(|(n, _)| *n == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, v)) if *v != value => Some(format!("value of {name} PriorityClass must be {v}")),
            Some(_) => None,
        };
        if let Some(wrong) = wrong {
            let message =
                format!("priority class names with 'system-' prefix are reserved for system use only. error: {wrong}");
            out.push(Error::forbidden(Path::of(&["metadata", "name"]), &message));
        }
    } else if value > HIGHEST {
        let message = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        out.push(Error::forbidden("value", &message));
    }
    let policy = text(object, "preemptionPolicy");
    if !matches!(policy, "" | "PreemptLowerPriority" | "Never") {
        out.push(Error::not_supported("preemptionPolicy", policy, &["PreemptLowerPriority", "Never"]));
    }
}

/// A priority class keeps its value.
pub(super) fn class_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    if int(new, "value") != int(old, "value") {
        out.push(Error::forbidden("value", "may not be changed in an update."));
    }
    immutable(get(new, "preemptionPolicy"), get(old, "preemptionPolicy"), &Path::new("preemptionPolicy"), out);
}
