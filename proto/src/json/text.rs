//! Values in special JSON forms (quantities, times, ...) and the canonical form of trees.

use serde_json::{Map, Value};

use super::tree::MAX_TREE_DEPTH;
use crate::schema::zero;
use crate::schema::{Card, Field, Message, ValueKind};
use crate::{quantity, scalar};

const SCHEMA: &str = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Table of `JSONSchemaProps`, which some special forms contain.
pub(crate) fn schema_props() -> &'static Message {
    static EMPTY: Message = Message {
        name: std::borrow::Cow::Borrowed(SCHEMA),
        fields: std::borrow::Cow::Borrowed(&[]),
        wire: std::borrow::Cow::Borrowed(&[]),
        gvk: None,
        atomic: false,
        preserve_unknown: true,
        embedded_resource: false,
        has_protobuf: false,
        unions: "",
        go_package: "",
        derived: crate::schema::Derived::new(),
    };
    crate::schema::message(SCHEMA).unwrap_or(&EMPTY)
}

/// Go's zero time in JSON.
const ZERO_TIME: i64 = -62_135_596_800;

/// Canonical text of a time, null for the zero time.
pub(crate) fn time(text: &str, micro: bool) -> Result<Value, scalar::TimeError> {
    let (seconds, nanos) = scalar::parse_time(text, micro)?;
    Ok(time_value(seconds, nanos, micro))
}

/// Tree form of an instant.
pub(crate) fn time_value(seconds: i64, nanos: i32, micro: bool) -> Value {
    if seconds == ZERO_TIME && nanos == 0 {
        return Value::Null;
    }
    scalar::format_time((seconds, nanos), micro).map_or(Value::Null, Value::String)
}

/// Brings a tree that was built or changed by hand to canonical form: zero values that Go prints are added, those that
/// Go leaves out are removed, scalars get their canonical text. Values of a wrong type stay as they are.
pub fn canonicalize(schema: &Message, value: &mut Value) {
    if let Value::Object(map) = value {
        object(schema, map, 0);
    }
}

fn object(schema: &Message, map: &mut Map<String, Value>, depth: usize) {
    if depth >= MAX_TREE_DEPTH {
        return;
    }
    for field in schema.fields.iter() {
        if let Some(value) = map.get_mut(field.json.as_ref()) {
            field_value(field, value, depth + 1);
        }
    }
    zero::fill(schema, map);
}

fn field_value(field: &Field, value: &mut Value, depth: usize) {
    match (field.card, &mut *value) {
        (Card::Repeated, Value::Array(list)) => {
            for item in list {
                element(&field.kind, item, depth);
            }
        }
        (Card::Map, Value::Object(map)) => {
            for (_, item) in map.iter_mut() {
                element(&field.kind, item, depth);
            }
        }
        (Card::Single, _) => one(&field.kind, value, depth),
        _ => {}
    }
}

fn element(kind: &ValueKind, value: &mut Value, depth: usize) {
    if value.is_null() && !matches!(kind, ValueKind::Any | ValueKind::Nested(_)) {
        *value = zero::element(kind);
    } else {
        one(kind, value, depth);
    }
}

fn one(kind: &ValueKind, value: &mut Value, depth: usize) {
    match (kind, &mut *value) {
        (ValueKind::Message(message), Value::Object(map)) => object(message, map, depth),
        (ValueKind::SchemaOrBool | ValueKind::SchemaOrArray | ValueKind::SchemaOrStrings, Value::Object(map)) => {
            object(schema_props(), map, depth);
        }
        (ValueKind::SchemaOrArray, Value::Array(list)) => {
            for item in list {
                if let Value::Object(map) = item {
                    object(schema_props(), map, depth + 1);
                }
            }
        }
        _ => canonicalize_value(kind, value),
    }
}

/// Canonical form of a scalar in a special form.
fn canonicalize_value(kind: &ValueKind, value: &mut Value) {
    let text = match &*value {
        Value::String(text) => text,
        Value::Number(n) if matches!(kind, ValueKind::Quantity) => {
            let text = n.to_string();
            if let Ok(text) = quantity::canonicalize(&text) {
                *value = Value::String(text.into_owned());
            }
            return;
        }
        _ => return,
    };
    let canonical = match kind {
        ValueKind::Quantity => quantity::canonicalize(text).ok().map(|t| Value::String(t.into_owned())),
        ValueKind::Time => time(text, false).ok(),
        ValueKind::MicroTime => time(text, true).ok(),
        _ => None,
    };
    if let Some(canonical) = canonical {
        *value = canonical;
    }
}
