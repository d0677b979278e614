//! Go's zero values: what stands in JSON for a field that was never set.

use serde_json::{Map, Value};

use super::{Card, Field, Message, ValueKind};

/// JSON form of an unset field.
pub(crate) enum Zero<'a> {
    /// The field is omitted.
    Omitted,
    /// `null`.
    Null,
    /// `""`.
    Text,
    /// `0`.
    Number,
    /// `false`.
    False,
    /// A quantity, `"0"`.
    Quantity,
    /// A struct with its own zero fields.
    Struct(&'a Message),
}

/// Zero value of one element, disregarding omission.
fn bare(kind: &ValueKind) -> Zero<'_> {
    match kind {
        ValueKind::Bool => Zero::False,
        ValueKind::Int32 | ValueKind::Int64 | ValueKind::Double | ValueKind::IntOrString => Zero::Number,
        ValueKind::String => Zero::Text,
        ValueKind::Message(m) => Zero::Struct(m),
        ValueKind::Quantity => Zero::Quantity,
        _ => Zero::Null,
    }
}

/// Zero value of a field.
pub(crate) fn of(field: &Field) -> Zero<'_> {
    if field.pointer || field.card != Card::Single {
        return if field.omit_empty { Zero::Omitted } else { Zero::Null };
    }
    if field.omit_zero {
        return Zero::Omitted;
    }
    match &field.kind {
        ValueKind::Bool
        | ValueKind::Int32
        | ValueKind::Int64
        | ValueKind::Double
        | ValueKind::String
        | ValueKind::Bytes
        | ValueKind::StringList
            if field.omit_empty =>
        {
            Zero::Omitted
        }
        kind => bare(kind),
    }
}

/// Zero value of a list element or map value.
pub(crate) fn element(kind: &ValueKind) -> Value {
    if matches!(kind, ValueKind::Bytes) { Value::String(String::new()) } else { value(&bare(kind)).unwrap_or_default() }
}

/// The tree of a zero value; None when it is left out.
pub(crate) fn value(zero: &Zero<'_>) -> Option<Value> {
    Some(match zero {
        Zero::Omitted => return None,
        Zero::Null => Value::Null,
        Zero::Text => Value::String(String::new()),
        Zero::Number => Value::from(0),
        Zero::False => Value::Bool(false),
        Zero::Quantity => Value::from("0"),
        Zero::Struct(message) => {
            let mut map = Map::new();
            fill(message, &mut map);
            Value::Object(map)
        }
    })
}

/// A present value that Go would leave out (`omitempty`).
pub(crate) fn is_omitted(field: &Field, value: &Value) -> bool {
    if value.is_null() {
        return matches!(of(field), Zero::Omitted);
    }
    if !field.omit_empty {
        return false;
    }
    match (field.card, value) {
        (Card::Repeated, Value::Array(list)) => list.is_empty(),
        (Card::Map, Value::Object(map)) => map.is_empty(),
        (Card::Single, _) if field.pointer => false,
        (Card::Single, value) => match (&field.kind, value) {
            (ValueKind::Bool, Value::Bool(b)) => !b,
            (ValueKind::Int32 | ValueKind::Int64 | ValueKind::Double, Value::Number(n)) => n.as_f64() == Some(0.0),
            (ValueKind::String | ValueKind::Bytes, Value::String(s)) => s.is_empty(),
            (ValueKind::StringList, Value::Array(list)) => list.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

/// Brings one object (not its children) to canonical form: unset fields that Go writes are added, set fields that
/// Go leaves out are removed.
pub(crate) fn fill(message: &Message, map: &mut Map<String, Value>) {
    let omitted = |name: &str, value: &Value| {
        looks_unset(value) && message.field(name).is_some_and(|field| is_omitted(field, value))
    };
    if map.iter().any(|(name, value)| omitted(name, value)) {
        map.retain(|name, value| !omitted(name, value));
    }
    for field in message.shown_unset().iter().filter_map(|i| message.fields.get(usize::from(*i))) {
        if map.get(field.json.as_ref()).is_some_and(|v| !v.is_null()) {
            continue;
        }
        if let Some(zero) = value(&of(field)) {
            map.insert(field.json.to_string(), zero);
        }
    }
}

/// Reports whether a value may be one that Go omits, whatever its field: most are not, and that is decided at once.
pub(crate) fn looks_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}
