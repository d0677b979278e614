//! API services: their condition `Available`, which those that are answered here have from the start.

use proto::Value;
use serde_json::json;

use super::strategy::StrategyCx;
use crate::machinery::meta;
use crate::machinery::tree;

/// The condition that counts.
pub(crate) const AVAILABLE: &str = "Available";

/// The condition `Available`: status, reason, message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) status: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Condition {
    pub(crate) fn no(reason: &'static str, message: String) -> Self {
        Self { status: "False", reason, message }
    }

    /// Answered by this server.
    pub(crate) fn local() -> Self {
        let message = "Local APIServices are always available".to_owned();
        Self { status: "True", reason: "Local", message }
    }

    pub(crate) fn passed() -> Self {
        Self { status: "True", reason: "Passed", message: "all checks passed".to_owned() }
    }
}

/// A new API service that is answered here can be used at once.
pub(super) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    if !tree::has(object, "/spec/service") {
        set(object, &Condition::local(), &meta::now());
    }
}

/// Puts a condition in place; false when it was there.
pub(crate) fn set(object: &mut Value, condition: &Condition, now: &str) -> bool {
    let Some(list) = tree::list_mut(object, &["status", "conditions"]) else { return false };
    let mut wanted = json!({"type": AVAILABLE, "status": condition.status, "lastTransitionTime": now,
        "reason": condition.reason, "message": condition.message});
    let Some(known) = list.iter_mut().find(|c| c["type"] == AVAILABLE) else {
        list.push(wanted);
        return true;
    };
    if known["status"] == wanted["status"] {
        wanted["lastTransitionTime"] = known["lastTransitionTime"].clone();
    }
    let changed = *known != wanted;
    *known = wanted;
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time() {
        let mut object = json!({"metadata": {"name": "v1.a.io"}});
        let no = |message: &str| Condition { status: "False", reason: "MissingEndpoints", message: message.to_owned() };
        assert!(set(&mut object, &no("a"), "t1") && !set(&mut object, &no("a"), "t2"));
        assert!(set(&mut object, &no("b"), "t2"));
        assert_eq!(object["status"]["conditions"][0]["lastTransitionTime"], "t1");
        assert!(set(&mut object, &Condition::local(), "t3"));
        assert_eq!(object["status"]["conditions"][0]["lastTransitionTime"], "t3");
        assert_eq!(object["status"]["conditions"].as_array().map(Vec::len), Some(1));
    }
}
