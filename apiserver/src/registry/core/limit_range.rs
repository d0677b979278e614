//! Limit ranges need no name: they are given one. Answers for upstream's `pkg/registry/core/limitrange`.

use proto::Value;

use crate::machinery::meta;
use crate::registry::strategy::StrategyCx;

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    if meta::text(object, "name").is_empty() {
        meta::set_text(object, "name", &uuid::Uuid::new_v4().to_string());
    }
}
