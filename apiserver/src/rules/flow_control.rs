//! The flow schemas and priority levels that every server wants, without two of which no request would be let through.
//! Answers for upstream's `pkg/apis/flowcontrol/bootstrap`.

use proto::Value;
use serde::Deserialize;
use serde_json::{Map, json};

const TABLE: &str = include_str!("flow_control.json");
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Objects of flow control that are there by default.
#[derive(Default)]
pub(crate) struct FlowControlDefaults {
    /// FlowSchemas.
    pub(crate) schemas: Vec<Value>,
    /// PriorityLevelConfigurations.
    pub(crate) levels: Vec<Value>,
}

/// Names and specifications.
#[derive(Default, Deserialize)]
struct Table {
    schemas: Vec<Map<String, Value>>,
    levels: Vec<Map<String, Value>>,
}

impl FlowControlDefaults {
    /// Reads the table, which is part of the program; its tests hold that it can be read.
    pub(crate) fn read() -> Self {
        let table: Table = serde_json::from_str(TABLE).unwrap_or_default();
        let whole = |kind: &str, entries: Vec<Map<String, Value>>| -> Vec<Value> {
            entries.into_iter().map(|entry| object(kind, entry)).collect()
        };
        Self { schemas: whole("FlowSchema", table.schemas), levels: whole("PriorityLevelConfiguration", table.levels) }
    }
}

fn object(kind: &str, mut entry: Map<String, Value>) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind,
        "metadata": {"name": entry.remove("name"), "annotations": {AUTOUPDATE: "true"}},
        "spec": entry.remove("spec")})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_schemas_and_levels() {
        let defaults = FlowControlDefaults::read();
        assert!(!defaults.schemas.is_empty() && !defaults.levels.is_empty());
        assert!(defaults.schemas.iter().chain(&defaults.levels).all(|object| object["spec"].is_object()));
    }
}
