//! Target of a write as a request names it.

use std::sync::Arc;

use proto::resources::Row;
use serde_json::{Value, json};

use super::engine::WriteTarget;
use super::{VerbRequest, namespace_of};
use crate::machinery::query::WriteOptions;
use crate::registry::behavior;

/// The target of a write.
pub fn target<'a>(
    r: &'a VerbRequest,
    row: &'a Row,
    subresource: &'a str,
    options: &'a WriteOptions,
    kind: &str,
) -> WriteTarget<'a> {
    let mut object = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if options.dry_run {
        object["dryRun"] = json!(["All"]);
    }
    if let Some(m) = r.query.get("fieldManager").filter(|m| !m.is_empty()) {
        object["fieldManager"] = Value::from(m);
    }
    if let Some(v) = r.query.get("fieldValidation").filter(|v| !v.is_empty()) {
        object["fieldValidation"] = Value::from(v);
    }
    let name = if r.info.names_object() { &r.info.name } else { "" };
    let target = WriteTarget::new(row, (namespace_of(&r.info, row), name), &r.user, options);
    let conversions = behavior(row).converts_by_webhook().then(Arc::default);
    WriteTarget { subresource, options_object: object, recorder: r.recorder.clone(), conversions, ..target }
}
