//! Changing objects: the four patch formats and field ownership.
//!
//! Everything works on trees and, where types matter, on the schema tables. Answers for upstream's `json-patch`,
//! `strategicpatch` and `structured-merge-diff`. Nothing here knows of requests or storage.

pub mod apply;
pub mod fieldset;
pub mod json_patch;
mod managed;
pub mod merge_patch;
mod reconcile;
mod shape;
pub mod strategic;
mod typed;
mod versions;

use std::fmt::Write as _;

use serde_json::Value;

/// A value as Go's `%v` prints a decoded JSON value: `map[a:1 b:[x y]]`.
#[must_use]
pub fn go_print(value: &Value) -> String {
    let mut out = String::new();
    print(value, &mut out);
    out
}

fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(s) => out.push_str(s),
        Value::Array(list) => {
            out.push('[');
            for (i, v) in list.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { " " });
                print(v, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push_str("map[");
            for (i, k) in keys.into_iter().enumerate() {
                let _ = write!(out, "{}{k}:", if i == 0 { "" } else { " " });
                print(&map[k], out);
            }
            out.push(']');
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// What JSON calls the type of a value, as Go's decoder words it.
#[must_use]
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Go's name for the type of a decoded JSON value.
#[must_use]
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
