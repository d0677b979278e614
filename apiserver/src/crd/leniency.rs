//! What a changed definition is let through with because it had it before: rules that came later do not make a
//! definition that is there impossible to change.

use proto::Value;
use shared::status::field::{Error, Path};

use super::prune;
use super::schema::{Additional, MAX_DEPTH, Schema};
use super::structure::{key_fields, set_items};

/// What is not asked of schemas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leniency {
    /// That they are structural.
    pub structure: bool,
    /// That types are known ones.
    pub types: bool,
    /// That defaults have nothing that would be pruned.
    pub defaults: bool,
    /// That elements of sets change as a whole.
    pub sets: bool,
    /// That keys of lists are always there.
    pub keys: bool,
    /// That a single rule is cheap.
    pub costs: bool,
}

impl Leniency {
    /// Beside the schemas there were.
    pub fn beside(old: &[&Value]) -> Self {
        let any = |holds: &dyn Fn(&Value) -> bool| old.iter().any(|schema| somewhere(schema, 0, holds));
        Self {
            structure: false,
            types: any(&|s| s["type"].as_str().is_some_and(|t| !t.is_empty() && !TYPES.contains(&t))),
            defaults: old.iter().any(|s| has_default(s) && unpruned(&Schema::compile(s), 0)),
            sets: any(&|s| says(s, set_items)),
            keys: any(&|s| says(s, key_fields)),
            costs: false,
        }
    }
}

/// The types there are.
pub const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Whether a schema has a default anywhere.
pub fn has_default(schema: &Value) -> bool {
    somewhere(schema, 0, &|s| !s["default"].is_null())
}

/// Whether a schema says anything that only Kubernetes understands.
pub fn is_extended(schema: &Value) -> bool {
    let keys = ["preserve-unknown-fields", "list-map-keys", "list-type", "validations"];
    let flags = ["embedded-resource", "int-or-string"];
    somewhere(schema, 0, &|s| {
        let said = |key: &str| s.get(format!("x-kubernetes-{key}"));
        keys.iter().any(|key| said(key).is_some_and(|v| !v.is_null() && *v != serde_json::json!([])))
            || flags.iter().any(|key| said(key) == Some(&Value::Bool(true)))
    })
}

fn says(schema: &Value, judge: fn(&Value, &Path, &mut Vec<Error>)) -> bool {
    let mut out = Vec::new();
    judge(schema, &Path::default(), &mut out);
    !out.is_empty()
}

/// Whether something holds of a schema or of one it is made of.
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

/// Whether a default has something that would be pruned.
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

/// Whether a default has fields that its place does not know; that of a `whole` object has those of any object.
pub(super) fn is_unpruned(default: &Value, schema: &Schema, whole: bool) -> bool {
    !prune::prune_at(&mut default.clone(), schema, whole).is_empty()
}
