//! Changing objects: the four patch formats and field ownership.
//!
//! Everything works on trees and, where types matter, on the schema tables. Answers for upstream's `json-patch`,
//! `strategicpatch` and `structured-merge-diff`. Nothing here knows of requests or storage.

pub mod apply;
mod error;
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

use crate::scalar::float;
use crate::selector::format::quote;

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
        other => out.push_str(&go_number(other)),
    }
}

/// A value as Go's `%#v` prints a decoded one, whose maps have keys of a type: `map[string]interface {}{"a":1}`.
#[must_use]
pub fn go_syntax(value: &Value, keys: &str) -> String {
    let join = |parts: Vec<String>, open: &str| format!("{open}{{{}}}", parts.join(", "));
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(list) => join(list.iter().map(|v| go_syntax(v, keys)).collect(), "[]interface {}"),
        Value::Object(map) => {
            let parts = map.iter().map(|(k, v)| format!("{}:{}", quote(k), go_syntax(v, keys)));
            join(parts.collect(), &format!("map[{keys}]interface {{}}"))
        }
        Value::String(text) => quote(text),
        Value::Number(n) if !n.is_f64() && !n.is_i64() => format!("{:#x}", n.as_u64().unwrap_or_default()),
        other => go_number(other),
    }
}

/// A number (or anything else) as Go's `%v` prints what JSON decodes to: large fractions with an exponent.
#[must_use]
pub fn go_number(value: &Value) -> String {
    match value {
        Value::Number(n) if n.is_f64() => float(&n.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// JSON type of a value in the words of Go's decoder.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_as_go_prints_them() {
        for (n, want) in [
            (1.0, "1"),
            (2.5, "2.5"),
            (123_456.0, "123456"),
            (1e6, "1e+06"),
            (1_234_567.5, "1.2345675e+06"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1e100, "-1e+100"),
        ] {
            assert_eq!(float(&n), want);
        }
        let value = json!({"b": [1, 1e10, null], "a": "x"});
        assert_eq!(go_print(&value), "map[a:x b:[1 1e+10 <nil>]]");
        let syntax = r#"map[string]interface {}{"a":"x", "b":[]interface {}{1, 1e+10, interface {}(nil)}}"#;
        assert_eq!(go_syntax(&value, "string"), syntax);
    }
}
