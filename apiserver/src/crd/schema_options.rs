//! Leniency for definitions that exist: rules added in later releases do not make a stored definition impossible to
//! update.

use proto::Value;
use shared::status::field::{Error, Path};

use super::prune;
use super::schema::{Additional, MAX_DEPTH, Schema};
use super::structure::{key_fields, set_items};

/// Rules that are waived for schemas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchemaOptions {
    /// Schemas must be structural.
    pub structure: bool,
    /// Types must be known.
    pub types: bool,
    /// Defaults must not contain fields that would be pruned.
    pub defaults: bool,
    /// Items of sets must be atomic.
    pub sets: bool,
    /// List map keys must be required or have defaults.
    pub keys: bool,
    /// The cost of a single rule is limited.
    pub costs: bool,
}

impl SchemaOptions {
    /// Beside the schemas there were.
    pub fn beside(old: &[&Value]) -> Self {
        let any = |holds: &dyn Fn(&Value) -> bool| old.iter().any(|schema| somewhere(schema, 0, holds));
        Self {
            structure: false,
            types: any(&|s| s["type"].as_str().is_some_and(|t| !t.is_empty() && !TYPES.contains(&t))),
            defaults: old.iter().any(|s| has_default(s) && unpruned(&Schema::compile(s), 0)),
            sets: any(&|s| has_extension(s, set_items)),
            keys: any(&|s| has_extension(s, key_fields)),
            costs: false,
        }
    }
}

/// The types there are.
pub const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Reports whether a schema has a default anywhere.
pub fn has_default(schema: &Value) -> bool {
    somewhere(schema, 0, &|s| !s["default"].is_null())
}

/// Reports whether a schema uses an `x-kubernetes-` extension.
pub fn is_extended(schema: &Value) -> bool {
    let keys = ["preserve-unknown-fields", "list-map-keys", "list-type", "validations"];
    let flags = ["embedded-resource", "int-or-string"];
    somewhere(schema, 0, &|s| {
        let said = |key: &str| s.get(format!("x-kubernetes-{key}"));
        keys.iter().any(|key| said(key).is_some_and(|v| !v.is_null() && *v != serde_json::json!([])))
            || flags.iter().any(|key| said(key) == Some(&Value::Bool(true)))
    })
}

fn has_extension(schema: &Value, judge: fn(&Value, &Path, &mut Vec<Error>)) -> bool {
    let mut out = Vec::new();
    judge(schema, &Path::default(), &mut out);
    !out.is_empty()
}

/// Reports whether a predicate holds for a schema or for one nested in it.
fn somewhere(schema: &Value, depth: usize, holds: &dyn Fn(&Value) -> bool) -> bool {
    if depth > MAX_DEPTH || !schema.is_object() {
        return false;
    }
    let below = |inner: &Value| somewhere(inner, depth + 1, holds);
    let lists = ["items", "allOf", "anyOf", "oneOf"].iter().filter_map(|key| schema[key].as_array()).flatten();
    let maps = ["properties", "patternProperties", "definitions", "dependencies"];
    let maps = maps.iter().filter_map(|key| schema[key].as_object()).flat_map(|map| map.values());
    let single = ["items", "not", "additionalProperties", "additionalItems"].iter().map(|key| &schema[key]);
    holds(schema) || lists.chain(maps).chain(single).any(below)
}

/// Reports whether a default has fields that would be pruned.
fn unpruned(schema: &Schema, depth: usize) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    let own = schema.default.as_ref().is_some_and(|default| is_unpruned(default, schema, schema.embedded));
    let additional = match &schema.additional {
        Additional::Schema(inner) => unpruned(inner, depth + 1),
        _ => false,
    };
    own || additional
        || schema.properties.iter().any(|(_, inner)| unpruned(inner, depth + 1))
        || schema.items.as_deref().is_some_and(|inner| unpruned(inner, depth + 1))
}

/// Reports whether a default has fields that would be pruned; those of every object are known in that of a `whole`
/// object.
pub(super) fn is_unpruned(default: &Value, schema: &Schema, whole: bool) -> bool {
    !prune::prune_at(&mut default.clone(), schema, whole).is_empty()
}
