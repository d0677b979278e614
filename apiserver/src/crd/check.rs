//! Values against a schema: types, limits, patterns, formats, combinations.
//!
//! Answers for `kube-openapi/pkg/validation` as custom resources use it, with its paths (`spec.list[0].x`) and texts.
//! Pure; recursion follows the schema, whose depth is bounded.

use proto::Value;
use shared::status::field::{Error, Path};

use super::formats;
use super::meters::timed;
use super::schema::{Additional, Checks, ListKind, Schema};

/// Most errors of one object; more help nobody.
const MAX_ERRORS: usize = 1_000;

/// What is wrong with a value. What is as it was in `old` is not judged again.
pub fn check(value: &Value, old: Option<&Value>, schema: &Schema) -> Vec<Error> {
    let mut out = Vec::new();
    at(value, old, schema, "", &mut out);
    out.truncate(MAX_ERRORS);
    out
}

/// The name of a value's type in messages.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(value: &Value) -> bool {
    value.as_f64().is_some_and(|n| n.fract() == 0.0)
}

fn right_type(value: &Value, schema: &Schema) -> bool {
    if schema.int_or_string {
        return value.is_string() || (value.is_number() && is_whole(value));
    }
    match &*schema.kind {
        "" => true,
        "integer" => value.is_number() && is_whole(value),
        "number" => value.is_number(),
        kind => type_of(value) == kind,
    }
}

fn path_of(path: &str) -> Path {
    Path::new(path.trim_start_matches('.'))
}

/// A path as sentences have it.
fn named(path: &str) -> String {
    if path.is_empty() { "in body".to_owned() } else { format!("{} in body", path.trim_start_matches('.')) }
}

fn at(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Vec<Error>) {
    if old.is_some_and(|old| timed(|| same(old, value))) {
        return;
    }
    if value.is_null() {
        if !schema.nullable && (schema.int_or_string || !schema.kind.is_empty()) {
            wrong_type(value, schema, path, out);
        }
        if let Some(checks) = &schema.checks
            && !schema.nullable
        {
            enums(value, checks, path, out);
        }
        return;
    }
    if !right_type(value, schema) {
        wrong_type(value, schema, path, out);
    }
    if let Some(checks) = &schema.checks {
        combinations(value, checks, path, out);
        limits(value, checks, path, out);
        enums(value, checks, path, out);
    }
    children(value, old, schema, path, out);
}

fn wrong_type(value: &Value, schema: &Schema, path: &str, out: &mut Vec<Error>) {
    let want = if schema.int_or_string { "integer,string" } else { &*schema.kind };
    let there = type_of(value);
    let text = format!("{} must be of type {want}: \"{there}\"", named(path));
    out.push(Error::type_invalid(path_of(path), there, &text));
}

fn enums(value: &Value, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    if checks.enums.is_empty() || checks.enums.iter().any(|e| same(e, value)) {
        return;
    }
    let supported: Vec<String> =
        checks.enums.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
    out.push(Error::not_supported(path_of(path), value.clone(), &supported));
}

/// Equality of JSON values, `1` and `1.0` being the same.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, x)| y.get(k).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

fn holds(value: &Value, schema: &Schema, path: &str) -> Vec<Error> {
    let mut out = Vec::new();
    at(value, None, schema, path, &mut out);
    out
}

/// `anyOf`, `oneOf`, `allOf` and `not`. Their errors are those of the alternative that fits best, and one that names
/// no field.
fn combinations(value: &Value, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    let quoted = format!("\"{}\"", path.trim_start_matches('.'));
    let complain = |out: &mut Vec<Error>, text: String| out.push(Error::invalid(Path::default(), "", &text));
    if !checks.any_of.is_empty() {
        let found: Vec<_> = checks.any_of.iter().map(|s| holds(value, s, path)).collect();
        if !found.iter().any(Vec::is_empty) {
            complain(out, format!("{quoted} must validate at least one schema (anyOf)"));
            out.extend(best(found));
        }
    }
    if !checks.one_of.is_empty() {
        let found: Vec<_> = checks.one_of.iter().map(|s| holds(value, s, path)).collect();
        let valid = found.iter().filter(|f| f.is_empty()).count();
        if valid != 1 {
            let why =
                if valid == 0 { "Found none valid".to_owned() } else { format!("Found {valid} valid alternatives") };
            complain(out, format!("{quoted} must validate one and only one schema (oneOf). {why}"));
            if valid == 0 {
                out.extend(best(found));
            }
        }
    }
    if !checks.all_of.is_empty() {
        let found: Vec<_> = checks.all_of.iter().map(|s| holds(value, s, path)).collect();
        let valid = found.iter().filter(|f| f.is_empty()).count();
        if valid < found.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            complain(out, format!("{quoted} must validate all the schemas (allOf){none}"));
            out.extend(found.into_iter().flatten());
        }
    }
    if let Some(not) = &checks.not
        && holds(value, not, path).is_empty()
    {
        complain(out, format!("{quoted} must not validate the schema (not)"));
    }
}

fn best(found: Vec<Vec<Error>>) -> Vec<Error> {
    found.into_iter().min_by_key(Vec::len).unwrap_or_default()
}

fn limits(value: &Value, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    let here = named(path);
    let invalid = |out: &mut Vec<Error>, shown: Value, text: String| {
        out.push(Error::invalid(path_of(path), shown, &text));
    };
    match value {
        Value::String(text) => {
            let length = text.chars().count() as u64;
            if let Some(max) = checks.max_length.filter(|m| length > *m) {
                let max = usize::try_from(max).unwrap_or(usize::MAX);
                out.push(Error::too_long(path_of(path), max));
            }
            if let Some(min) = checks.min_length.filter(|m| length < *m) {
                invalid(out, value.clone(), format!("{here} should be at least {min} chars long"));
            }
            if let Some(pattern) = checks.pattern.as_ref().filter(|p| !p.is_match(text)) {
                invalid(out, value.clone(), format!("{here} should match '{}'", pattern.text));
            }
            if !formats::fits(&checks.format, text) {
                let text = format!("{here} must be of type {}: {}", checks.format, shared::status::go_quote(text));
                out.push(Error::type_invalid(path_of(path), value.clone(), &text));
            }
        }
        Value::Number(_) => {
            let number = value.as_f64().unwrap_or(f64::NAN);
            let limit = |v: &Option<Value>| v.as_ref().and_then(|v| v.as_f64().map(|n| (n, v.to_string())));
            if let Some((by, text)) = limit(&checks.multiple_of)
                && !(number / by).fract().eq(&0.0)
            {
                invalid(out, value.clone(), format!("{here} should be a multiple of {text}"));
            }
            if let Some((max, text)) = limit(&checks.maximum) {
                match checks.exclusive_maximum {
                    true if number >= max => invalid(out, value.clone(), format!("{here} should be less than {text}")),
                    false if number > max => {
                        invalid(out, value.clone(), format!("{here} should be less than or equal to {text}"));
                    }
                    _ => {}
                }
            }
            if let Some((min, text)) = limit(&checks.minimum) {
                match checks.exclusive_minimum {
                    true if number <= min => {
                        invalid(out, value.clone(), format!("{here} should be greater than {text}"))
                    }
                    false if number < min => {
                        invalid(out, value.clone(), format!("{here} should be greater than or equal to {text}"));
                    }
                    _ => {}
                }
            }
        }
        Value::Array(list) => {
            let length = list.len() as u64;
            if let Some(min) = checks.min_items.filter(|m| length < *m) {
                invalid(out, Value::from(length), format!("{here} should have at least {min} items"));
            }
            if let Some(max) = checks.max_items.filter(|m| length > *m) {
                out.push(Error::too_many(path_of(path), list.len(), usize::try_from(max).unwrap_or(usize::MAX)));
            }
            if checks.unique_items && list.iter().enumerate().any(|(i, a)| list[..i].iter().any(|b| same(a, b))) {
                out.push(Error::invalid(path_of(path), "", &format!("{here} shouldn't contain duplicates")));
            }
        }
        Value::Object(map) => {
            let length = map.len() as u64;
            if let Some(min) = checks.min_properties.filter(|m| length < *m) {
                invalid(out, Value::from(length), format!("{here} should have at least {min} properties"));
            }
            if let Some(max) = checks.max_properties.filter(|m| length > *m) {
                out.push(Error::too_many(path_of(path), map.len(), usize::try_from(max).unwrap_or(usize::MAX)));
            }
            for name in checks.required.iter().filter(|n| !map.contains_key(&***n)) {
                out.push(Error::required(path_of(&format!("{path}.{name}")), ""));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn children(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Vec<Error>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let before = old.and_then(|o| o.get(key));
                match (schema.property(key), &schema.additional) {
                    (Some(p), _) => at(inner, before, p, &format!("{path}.{key}"), out),
                    (None, Additional::Schema(p)) => at(inner, before, p, &format!("{path}.{key}"), out),
                    (None, Additional::None) => {
                        let text = format!("{path}.{key} in body is a forbidden property");
                        out.push(Error::invalid(path_of(path), "", text.trim_start_matches('.')));
                    }
                    (None, Additional::Any | Additional::Unset) => {}
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (i, inner) in list.iter().enumerate() {
                let before = old.and_then(|old| timed(|| counterpart(inner, old, schema)));
                at(inner, before, items, &format!("{path}[{i}]"), out);
            }
        }
        _ => {}
    }
}

/// The element of an old list that is the same one: only lists with keys tell.
pub fn counterpart<'v>(item: &Value, old: &'v Value, list: &Schema) -> Option<&'v Value> {
    let ListKind::Map(keys) = &list.list else { return None };
    let alike = |other: &&Value| keys.iter().all(|k| other.get(&**k) == item.get(&**k));
    old.as_array()?.iter().find(alike)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn upstreams_words() {
        let schema = Schema::compile(&json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "maxLength": 3, "minLength": 1, "pattern": "^a+$"},
            "e": {"type": "string", "enum": ["x", "y"]},
            "n": {"type": "integer", "minimum": 0, "maximum": 10, "exclusiveMaximum": true, "multipleOf": 2},
            "l": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "object", "properties": {"v": {"type": "boolean"}}}},
            "m": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
            "p": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "o": {"type": "object", "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
            "d": {"type": "string", "format": "date-time"},
            "z": {"type": "string", "nullable": true},
        }}));
        for (value, want) in [
            (
                json!({"a": "aaa", "e": "x", "n": 4, "l": [{}], "m": {"k": 1}, "p": "50%", "o": {"x": 1}, "z": null}),
                &[][..],
            ),
            (json!({}), &["a: Required value"]),
            (json!({"a": "aaaa"}), &["a: Too long: may not be more than 3 bytes"]),
            (json!({"a": "b"}), &["a: Invalid value: \"b\": a in body should match '^a+$'"]),
            (json!({"a": null}), &["a: Invalid value: \"null\": a in body must be of type string: \"null\""]),
            (json!({"a": "a", "e": "z"}), &["e: Unsupported value: \"z\": supported values: \"x\", \"y\""]),
            (json!({"a": "a", "n": -2}), &["n: Invalid value: -2: n in body should be greater than or equal to 0"]),
            (json!({"a": "a", "n": 10}), &["n: Invalid value: 10: n in body should be less than 10"]),
            (json!({"a": "a", "n": 3}), &["n: Invalid value: 3: n in body should be a multiple of 2"]),
            (
                json!({"a": "a", "n": 1.5}),
                &[
                    "n: Invalid value: \"number\": n in body must be of type integer: \"number\"",
                    "n: Invalid value: 1.5: n in body should be a multiple of 2",
                ],
            ),
            (json!({"a": "a", "l": []}), &["l: Invalid value: 0: l in body should have at least 1 items"]),
            (
                json!({"a": "a", "l": [{}, {}, {"v": 1}]}),
                &[
                    "l: Too many: 3: must have at most 2 items",
                    "l[2].v: Invalid value: \"integer\": l[2].v in body must be of type boolean: \"integer\"",
                ],
            ),
            (
                json!({"a": "a", "m": {"k": "v"}}),
                &["m.k: Invalid value: \"string\": m.k in body must be of type integer: \"string\""],
            ),
            (
                json!({"a": "a", "p": true}),
                &[
                    "p: Invalid value: \"boolean\": p in body must be of type integer,string: \"boolean\"",
                    "<nil>: Invalid value: \"\": \"p\" must validate at least one schema (anyOf)",
                    "p: Invalid value: \"boolean\": p in body must be of type integer: \"boolean\"",
                ],
            ),
            (
                json!({"a": "a", "o": {"x": 1, "y": 1}}),
                &[
                    "<nil>: Invalid value: \"\": \"o\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
                ],
            ),
            (
                json!({"a": "a", "d": "yesterday"}),
                &["d: Invalid value: \"yesterday\": d in body must be of type date-time: \"yesterday\""],
            ),
        ] {
            let got: Vec<String> = check(&value, None, &schema).iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{value}");
        }
        let (old, new) = (json!({"a": "bbbb", "n": 3}), json!({"a": "bbbb", "n": 5}));
        let got = check(&new, Some(&old), &schema);
        assert_eq!(got.len(), 1, "what was wrong before may stay: {got:?}");
    }
}
