//! Values against a schema: types, limits, patterns, formats, combinations.
//!
//! Answers for `kube-openapi/pkg/validation` as custom resources use it, with its paths (`spec.list[0].x`) and texts.
//! Pure; recursion follows the schema, whose depth is bounded.

use std::collections::HashSet;

use proto::Value;
use proto::json;
use proto::scalar::float;
use serde_json::{Map, Number};
use shared::status::field::{Error, Path};

use super::formats;
use super::meters::timed;
use super::schema::{Additional, Checks, ListKind, Schema};

/// Most errors of one object; more help nobody.
const MAX_ERRORS: usize = 1_000;

/// Validates a value against a schema. Parts that are unchanged since `old` are not validated again (ratcheting).
pub(super) fn check(value: &Value, old: Option<&Value>, schema: &Schema) -> Vec<Error> {
    let mut out = Vec::new();
    at(value, old, schema, "", &mut out);
    out.truncate(MAX_ERRORS);
    // What several alternatives find wrong is said once.
    let mut said = HashSet::new();
    out.retain(|error| said.insert(error.to_string()));
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

/// Reports whether a number is an integer: a float must be exactly representable by JSON readers.
fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.as_f64().and_then(json::whole).is_some()
}

fn right_type(value: &Value, schema: &Schema) -> bool {
    if schema.int_or_string {
        return value.is_string() || (value.is_number() && is_whole(value));
    }
    // Upstream leaves texts and lists to the format, where there is one.
    let is_numeric = matches!(&*schema.kind, "integer" | "number");
    if !is_numeric && format_of(schema).is_some() && (value.is_string() || value.is_array()) {
        return true;
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
    if path.is_empty() { "in body".to_owned() } else { format!("{} in body", path.strip_prefix('.').unwrap_or(path)) }
}

/// Says what is wrong. Returns how many checks were made and passed, as upstream counts them: of alternatives that do
/// not hold, the errors of the one with most are told.
fn at(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Vec<Error>) -> usize {
    if old.is_some_and(|old| timed(|| same(old, value))) {
        return 1;
    }
    let typed = schema.int_or_string || !schema.kind.is_empty();
    if value.is_null() {
        let wrong = !schema.nullable && typed;
        if wrong {
            wrong_type(value, schema, path, out);
        }
        if let Some(checks) = &schema.checks
            && !schema.nullable
        {
            enums(value, checks, path, out);
        }
        return usize::from(!wrong);
    }
    let right = right_type(value, schema);
    if !right {
        wrong_type(value, schema, path, out);
    }
    let mut passed = usize::from(right);
    if let Some(checks) = &schema.checks {
        passed += combinations(value, checks, path, out);
        limits(value, checks, path, out);
        enums(value, checks, path, out);
    }
    let formatted = format_of(schema).is_some();
    passed + applied(value, typed, formatted) + children(value, old, schema, path, out)
}

/// Upstream's count of the validators that have a value to look at, and of those that count themselves once more.
fn applied(value: &Value, typed: bool, formatted: bool) -> usize {
    // The schema itself; combinations, which count twice; values. A type counts once more where it is right.
    const ALWAYS: usize = 4;
    let by_type = if typed || formatted { 1 } else { 0 };
    ALWAYS
        + by_type
        + match value {
            Value::String(_) => 1 + usize::from(formatted),
            Value::Number(_) | Value::Array(_) => 2,
            Value::Object(_) => 1,
            Value::Null | Value::Bool(_) => 0,
        }
}

/// A format that values are held to.
fn format_of(schema: &Schema) -> Option<&str> {
    schema
        .checks
        .as_ref()
        .map(|checks| &*checks.format)
        .filter(|format| !format.is_empty() && formats::is_known(format))
}

/// Format of a Go number where another one was expected.
fn format_there(value: &Value) -> &'static str {
    match value {
        Value::Number(n) if n.is_f64() => "double",
        Value::Number(_) => "int64",
        _ => "",
    }
}

fn wrong_type(value: &Value, schema: &Schema, path: &str, out: &mut Vec<Error>) {
    let (want, there) = match format_of(schema) {
        Some(format) if !matches!(value, Value::Null | Value::String(_) | Value::Array(_)) => {
            (format, format_there(value))
        }
        _ if schema.int_or_string => ("integer,string", type_of(value)),
        _ => (&*schema.kind, type_of(value)),
    };
    let text = format!("{} must be of type {want}: \"{there}\"", named(path));
    out.push(Error::type_invalid(path_of(path), there, &text));
}

fn enums(value: &Value, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    if checks.enums.is_empty() || checks.enums.iter().any(|e| is_listed(e, value)) {
        return;
    }
    let supported: Vec<String> =
        checks.enums.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
    out.push(Error::not_supported(path_of(path), value.clone(), &supported));
}

/// Reports whether a value equals one of an enumeration: upstream first converts the value to the other's numeric type.
fn is_listed(listed: &Value, value: &Value) -> bool {
    match (listed, value) {
        (Value::Number(a), Value::Number(b)) if !a.is_f64() && b.is_f64() => a.as_i64() == b.as_f64().map(whole),
        _ => same(listed, value),
    }
}

/// A number without its fraction.
#[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
fn whole(n: f64) -> i64 {
    n as i64
}

/// Equality of JSON values, `1` and `1.0` being the same.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, x)| y.get(k).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

/// Result of one alternative of `anyOf` or `oneOf`: its errors, and how much of it was valid.
struct AlternativeResult {
    errors: Vec<Error>,
    passed: usize,
}

fn tried(value: &Value, schema: &Schema, path: &str) -> AlternativeResult {
    let mut errors = Vec::new();
    let passed = at(value, None, schema, path, &mut errors);
    AlternativeResult { errors, passed }
}

/// `anyOf`, `oneOf`, `allOf` and `not`. Their errors are those of the alternative that fits best, and one that names
/// no field. Returns how much was right in the alternatives that count.
fn combinations(value: &Value, checks: &Checks, path: &str, out: &mut Vec<Error>) -> usize {
    let quoted = format!("\"{}\"", path.trim_start_matches('.'));
    let complain = |out: &mut Vec<Error>, text: String| out.push(Error::invalid(Path::default(), "", &text));
    let mut passed = 0;
    if !checks.any_of.is_empty() {
        let mut found: Vec<AlternativeResult> = checks.any_of.iter().map(|s| tried(value, s, path)).collect();
        match found.iter().position(|t| t.errors.is_empty()) {
            Some(first) => passed += found[first].passed,
            None => {
                complain(out, format!("{quoted} must validate at least one schema (anyOf)"));
                passed += tell(best(&mut found), out);
            }
        }
    }
    if !checks.one_of.is_empty() {
        let mut found: Vec<AlternativeResult> = checks.one_of.iter().map(|s| tried(value, s, path)).collect();
        let mut valid = found.iter().filter(|t| t.errors.is_empty());
        match (valid.next(), valid.count()) {
            (Some(only), 0) => passed += only.passed,
            (None, _) => {
                complain(out, format!("{quoted} must validate one and only one schema (oneOf). Found none valid"));
                passed += tell(best(&mut found), out);
            }
            (Some(_), more) => {
                let why = format!("Found {} valid alternatives", more + 1);
                complain(out, format!("{quoted} must validate one and only one schema (oneOf). {why}"));
            }
        }
    }
    if !checks.all_of.is_empty() {
        let found: Vec<AlternativeResult> = checks.all_of.iter().map(|s| tried(value, s, path)).collect();
        let valid = found.iter().filter(|t| t.errors.is_empty()).count();
        if valid < found.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            complain(out, format!("{quoted} must validate all the schemas (allOf){none}"));
        }
        passed += found.into_iter().map(|t| tell(Some(t), out)).sum::<usize>();
    }
    if let Some(not) = &checks.not
        && tried(value, not, path).errors.is_empty()
    {
        complain(out, format!("{quoted} must not validate the schema (not)"));
    }
    passed
}

fn tell(tried: Option<AlternativeResult>, out: &mut Vec<Error>) -> usize {
    tried.map_or(0, |tried| {
        out.extend(tried.errors);
        tried.passed
    })
}

/// The first of those with most passed.
fn best(found: &mut Vec<AlternativeResult>) -> Option<AlternativeResult> {
    let most = found.iter().map(|t| t.passed).max()?;
    found.iter().position(|t| t.passed == most).map(|at| found.swap_remove(at))
}

fn limits(value: &Value, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    match value {
        Value::String(text) => text_limits(text, checks, path, out),
        Value::Number(number) => number_limits(number, checks, path, out),
        Value::Array(list) => list_limits(list, checks, path, out),
        Value::Object(map) => map_limits(map, checks, path, out),
        Value::Null | Value::Bool(_) => {}
    }
}

fn text_limits(text: &str, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    let here = named(path);
    let length = text.chars().count() as u64;
    // The first of these is said alone.
    if let Some(max) = checks.max_length.filter(|m| length > *m) {
        out.push(Error::too_long(path_of(path), usize::try_from(max).unwrap_or(usize::MAX)));
    } else if let Some(min) = checks.min_length.filter(|m| length < *m) {
        out.push(Error::invalid(path_of(path), text, &format!("{here} should be at least {min} chars long")));
    } else if let Some(pattern) = checks.pattern.as_ref().filter(|p| !p.is_match(text)) {
        out.push(Error::invalid(path_of(path), text, &format!("{here} should match '{}'", pattern.text)));
    }
    if !formats::is_valid(&checks.format, text) {
        let why = format!("{here} must be of type {}: {}", checks.format, shared::status::go_quote(text));
        out.push(Error::type_invalid(path_of(path), text, &why));
    }
}

fn number_limits(number: &Number, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    let here = named(path);
    // An integer is compared with what the limits are without their fractions.
    let cut = |limit: f64| {
        if number.is_f64() { (limit, float(&limit)) } else { (limit.trunc(), whole(limit).to_string()) }
    };
    let limit = |v: &Option<Value>| v.as_ref().and_then(Value::as_f64).map(cut);
    let there = number.as_f64().unwrap_or(f64::NAN);
    match limit(&checks.multiple_of) {
        Some((by, text)) if by <= 0.0 => {
            let place = path_of(path);
            let why = format!("factor MultipleOf declared for {} must be positive: {text}", place.as_str());
            out.push(Error::invalid(place, whole(by), &why));
        }
        Some((by, text)) if (there / by).fract() != 0.0 => out.push(Error::invalid(
            path_of(path),
            Value::Number(number.clone()),
            &format!("{here} should be a multiple of {text}"),
        )),
        _ => {}
    }
    let mut should_be = |what: String| {
        let why = format!("{here} should be {what}");
        out.push(Error::invalid(path_of(path), Value::Number(number.clone()), &why));
    };
    if let Some((max, text)) = limit(&checks.maximum) {
        match checks.exclusive_maximum {
            true if there >= max => should_be(format!("less than {text}")),
            false if there > max => should_be(format!("less than or equal to {text}")),
            _ => {}
        }
    }
    if let Some((min, text)) = limit(&checks.minimum) {
        match checks.exclusive_minimum {
            true if there <= min => should_be(format!("greater than {text}")),
            false if there < min => should_be(format!("greater than or equal to {text}")),
            _ => {}
        }
    }
}

fn list_limits(list: &[Value], checks: &Checks, path: &str, out: &mut Vec<Error>) {
    let here = named(path);
    let length = list.len() as u64;
    if let Some(min) = checks.min_items.filter(|m| length < *m) {
        out.push(Error::invalid(path_of(path), length, &format!("{here} should have at least {min} items")));
    }
    if let Some(max) = checks.max_items.filter(|m| length > *m) {
        out.push(Error::too_many(path_of(path), list.len(), usize::try_from(max).unwrap_or(usize::MAX)));
    }
    if checks.unique_items && list.iter().enumerate().any(|(i, a)| list[..i].iter().any(|b| same(a, b))) {
        out.push(Error::invalid(path_of(path), "", &format!("{here} shouldn't contain duplicates")));
    }
}

fn map_limits(map: &Map<String, Value>, checks: &Checks, path: &str, out: &mut Vec<Error>) {
    let here = named(path);
    let length = map.len() as u64;
    if let Some(min) = checks.min_properties.filter(|m| length < *m) {
        out.push(Error::invalid(path_of(path), length, &format!("{here} should have at least {min} properties")));
    }
    if let Some(max) = checks.max_properties.filter(|m| length > *m) {
        out.push(Error::too_many(path_of(path), map.len(), usize::try_from(max).unwrap_or(usize::MAX)));
    }
    for name in checks.required.iter().filter(|n| !map.contains_key(&***n)) {
        out.push(Error::required(path_of(&format!("{path}.{name}")), ""));
    }
}

fn children(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Vec<Error>) -> usize {
    match value {
        Value::Object(map) => {
            // Sentences about what the whole thing may have more of begin with a dot.
            let more = if path.is_empty() { "." } else { path };
            let mut field = |(key, inner): (&String, &Value)| {
                let before = old.and_then(|o| o.get(key));
                match (schema.property(key), &schema.additional) {
                    (Some(p), _) => at(inner, before, p, &format!("{path}.{key}"), out),
                    (None, Additional::Schema(p)) => at(inner, before, p, &format!("{more}.{key}"), out),
                    (None, Additional::None) => {
                        let why = format!("{} is a forbidden property", named(&format!("{more}.{key}")));
                        out.push(Error::invalid(path_of(path), key.as_str(), &why));
                        0
                    }
                    (None, Additional::Any | Additional::Unset) => 0,
                }
            };
            map.iter().map(&mut field).sum()
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return 0 };
            let mut element = |(i, inner): (usize, &Value)| {
                let before = old.and_then(|old| timed(|| counterpart(inner, old, schema)));
                at(inner, before, items, &format!("{path}[{i}]"), out)
            };
            list.iter().enumerate().map(&mut element).sum()
        }
        _ => 0,
    }
}

/// The element of an old list that is the same one: only lists with keys tell.
pub(super) fn counterpart<'v>(item: &Value, old: &'v Value, list: &Schema) -> Option<&'v Value> {
    let ListKind::Map(keys) = &list.list else { return None };
    let alike = |other: &&Value| keys.iter().all(|k| other.get(&**k) == item.get(&**k));
    old.as_array()?.iter().find(alike)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Numbers and formats follow Go's types, as upstream's validator answered.
    #[test]
    fn numbers_and_formats_follow_gos_types() {
        let schema = Schema::compile(&json!({"type": "object", "properties": {
            "e": {"type": "number", "enum": [1, 2]},
            "h": {"type": "number", "maximum": 1.5, "minimum": -1.5},
            "m": {"type": "number", "multipleOf": 0.5},
            "d": {"type": "string", "format": "date"},
            "o": {"type": "object", "required": ["x"], "oneOf": [{"required": ["x"]}, {"required": ["x", "y"]}]},
        }}));
        for (value, want) in [
            (json!({"e": 2.5, "h": -1, "m": 1.5, "d": ["x"]}), &[][..]),
            (json!({"e": 3.5}), &[r#"e: Unsupported value: 3.5: supported values: "1", "2""#]),
            (json!({"h": 2}), &["h: Invalid value: 2: h in body should be less than or equal to 1"]),
            (json!({"h": 1e10}), &["h: Invalid value: 1e+10: h in body should be less than or equal to 1.5"]),
            (json!({"m": 3}), &["m: Invalid value: 0: factor MultipleOf declared for m must be positive: 0"]),
        ] {
            let got: Vec<String> = check(&value, None, &schema).iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{value}");
        }
        let said = check(&json!({"o": {}}), None, &schema);
        assert_eq!(said.iter().filter(|e| e.to_string() == "o.x: Required value").count(), 1, "{said:?}");
    }

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
            "i": {"type": "object", "properties": {"t": {"type": "string"}, "v": {"type": "string"}}, "oneOf": [
                {"properties": {"t": {"enum": ["IP"]}, "v": {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}}},
                {"properties": {"t": {"not": {"enum": ["IP"]}}}},
            ]},
        }}));
        for (value, want) in [
            (
                json!({"a": "aaa", "e": "x", "n": 4, "l": [{}], "m": {"k": 1}, "p": "50%", "o": {"x": 1}, "z": null}),
                &[][..],
            ),
            (json!({}), &["a: Required value"]),
            (json!({"a": "aaaa"}), &["a: Too long: may not be more than 3 bytes"]),
            (json!({"a": ""}), &["a: Invalid value: \"\": a in body should be at least 1 chars long"]),
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
                json!({"a": "a", "d": 1}),
                &["d: Invalid value: \"int64\": d in body must be of type date-time: \"int64\""],
            ),
            (
                json!({"a": "a", "i": {"t": "IP", "v": "1.2.3.4:80"}}),
                &[
                    "<nil>: Invalid value: \"\": \"i\" must validate one and only one schema (oneOf). Found none valid",
                    "<nil>: Invalid value: \"\": \"i.v\" must validate at least one schema (anyOf)",
                    "i.v: Invalid value: \"1.2.3.4:80\": i.v in body must be of type ipv4: \"1.2.3.4:80\"",
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
