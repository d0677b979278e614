//! Secrets: a PUT without a type keeps the type. Answers for upstream's `pkg/registry/core/secret`.

use proto::Value;

use crate::registry::strategy::restore;

/// See the module.
pub(in crate::registry) fn prepare_update(new: &mut Value, old: &Value) {
    if new.get("type").and_then(Value::as_str).unwrap_or("").is_empty() {
        restore(new, old, "type");
    }
}
