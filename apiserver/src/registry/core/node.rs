//! Nodes: what ranges their pods have.

use proto::Value;

use super::addresses::RANGES;
use crate::registry::strategy::StrategyCx;

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    settle(object);
}

/// The same of a change.
pub(in crate::registry) fn prepare_update(new: &mut Value, _: &Value) {
    settle(new);
}

fn settle(node: &mut Value) {
    if let Some(spec) = node.get_mut("spec") {
        RANGES.settle(spec);
    }
}
