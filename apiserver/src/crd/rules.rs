//! CEL rules of a schema (`x-kubernetes-validations`), run over an object.
//!
//! A rule sees the value it stands at as `self`; one that mentions `oldSelf` speaks about changes and is run only where
//! there was a value before. Where nothing changed nothing is judged again.

use std::sync::OnceLock;

use proto::Value;
use serde_json::Map;
use shared::status::field::{Error, ErrorKind, Path};

use super::check::{counterpart, same};
use super::schema::{Additional, Schema};
use crate::cel::{self, Program, Scope};

/// Longest message an expression may make.
const MESSAGE_BYTES: usize = 5 * 1024;
/// Most rules run over one object.
const MAX_RUNS: usize = 100_000;

/// One rule.
#[derive(Debug)]
pub struct Rule {
    text: String,
    message: String,
    message_expression: String,
    reason: ErrorKind,
    field_path: Option<String>,
    optional_old: bool,
    program: OnceLock<Result<Program, String>>,
    message_program: OnceLock<Option<Program>>,
}

/// Reads the rules of a place.
pub fn compile(list: Option<&Value>) -> Box<[Rule]> {
    let text = |v: &Value, key: &str| v[key].as_str().unwrap_or("").to_owned();
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|v| Rule {
            text: text(v, "rule"),
            message: text(v, "message"),
            message_expression: text(v, "messageExpression"),
            reason: match text(v, "reason").as_str() {
                "FieldValueForbidden" => ErrorKind::Forbidden,
                "FieldValueRequired" => ErrorKind::Required,
                "FieldValueDuplicate" => ErrorKind::Duplicate,
                _ => ErrorKind::Invalid,
            },
            field_path: Some(text(v, "fieldPath")).filter(|p| !p.is_empty()),
            optional_old: v["optionalOldSelf"] == true,
            program: OnceLock::new(),
            message_program: OnceLock::new(),
        })
        .collect()
}

impl Rule {
    fn program(&self) -> Result<&Program, String> {
        self.program.get_or_init(|| Program::compile(&self.text)).as_ref().map_err(Clone::clone)
    }

    fn words(&self, scope: &Scope) -> String {
        if !self.message_expression.is_empty()
            && let Some(program) = self.message_program.get_or_init(|| Program::compile(&self.message_expression).ok())
            && let Ok(Some(text)) = scope.text(program)
            && !text.trim().is_empty()
            && !text.contains('\n')
            && text.len() <= MESSAGE_BYTES
        {
            return text.trim().to_owned();
        }
        if self.message.is_empty() {
            format!("failed rule: {}", self.text.trim())
        } else {
            self.message.trim().to_owned()
        }
    }
}

/// What the rules find wrong with an object.
pub fn check(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<Error> {
    let mut run = Run { out: Vec::new(), left: MAX_RUNS };
    run.at(schema, object, old, true, &Path::default());
    run.out
}

struct Run {
    out: Vec<Error>,
    left: usize,
}

impl Run {
    fn at(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, root: bool, path: &Path) {
        if value.is_null() || !schema.has_rules() || old.is_some_and(|o| same(o, value)) {
            return;
        }
        if !schema.rules.is_empty() {
            self.here(schema, value, old, root, path);
        }
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    let before = old.and_then(|o| o.get(key));
                    match (schema.property(key), &schema.additional) {
                        (Some(p), _) => self.at(p, inner, before, false, &path.child(key)),
                        (None, Additional::Schema(p)) => self.at(p, inner, before, false, &path.key(key)),
                        _ => {}
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &schema.items else { return };
                for (i, inner) in list.iter().enumerate() {
                    self.at(items, inner, counterpart(inner, old, schema), false, &path.index(i));
                }
            }
            _ => {}
        }
    }

    fn here(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, root: bool, path: &Path) {
        let old = old.filter(|o| !o.is_null());
        let mut scope = Scope::bare();
        scope.set("self", typed(value, Some(schema), root));
        let mut before: Option<cel::Value> = None;
        for rule in &schema.rules {
            let Some(left) = self.left.checked_sub(1) else { return };
            self.left = left;
            let program = match rule.program() {
                Ok(p) => p,
                Err(why) => {
                    let text = format!("rule compile error: compilation failed: {why}");
                    self.out.push(Error::invalid(path, type_name(schema), &text));
                    continue;
                }
            };
            if program.mentions("oldSelf") {
                match (old, rule.optional_old) {
                    (None, false) => continue,
                    (None, true) => scope.set("oldSelf", cel::none()),
                    (Some(old), optional) => {
                        let old = before.get_or_insert_with(|| typed(old, Some(schema), root)).clone();
                        scope.set("oldSelf", if optional { cel::some(old) } else { old });
                    }
                }
            }
            match scope.truth(program) {
                Ok(true) => {}
                Ok(false) => {
                    let words = rule.words(&scope);
                    let at = rule.field_path.as_ref().map_or_else(|| path.clone(), |p| below(path, p));
                    self.out.push(error(rule.reason, &at, &words, value));
                }
                Err(why) => {
                    let text = if why.starts_with("no such overload") || why.starts_with("No such overload") {
                        format!(
                            "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                            rule.text
                        )
                    } else {
                        format!("{why} evaluating rule: {}", rule.text)
                    };
                    self.out.push(Error::invalid(path, type_name(schema), &text));
                }
            }
        }
    }
}

fn type_name(schema: &Schema) -> &str {
    &schema.kind
}

/// `.a['b.c'].d` below a path.
fn below(path: &Path, relative: &str) -> Path {
    match super::jsonpath::JsonPath::parse(relative)
        .ok()
        .and_then(|p| p.fields().map(|f| f.into_iter().map(str::to_owned).collect::<Vec<_>>()))
    {
        Some(steps) => steps.iter().fold(path.clone(), |p, step| p.child(step)),
        None => Path::new(&format!("{}{relative}", path.as_str())),
    }
}

fn error(kind: ErrorKind, path: &Path, words: &str, value: &Value) -> Error {
    match kind {
        ErrorKind::Required => Error::required(path, words),
        ErrorKind::Forbidden => Error::forbidden(path, words),
        ErrorKind::Duplicate => {
            let mut e = Error::duplicate(path, value.clone());
            e.detail = words.to_owned();
            e
        }
        // The value itself is left out of the sentence.
        _ => {
            let mut e = Error::invalid(path, Value::Null, "");
            e.shown = Some(words.to_owned());
            e
        }
    }
}

/// A value as rules see it: with the types of its schema, field names that are no identifiers escaped, fields the schema
/// does not know left out.
fn typed(value: &Value, schema: Option<&Schema>, root: bool) -> cel::Value {
    let Some(schema) = schema else { return cel::convert(value) };
    match value {
        Value::Object(map) => {
            let entries = map.iter().filter_map(|(key, inner)| {
                if (root || schema.embedded) && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                    return Some((key.clone(), identity(key, inner)));
                }
                match (schema.property(key), &schema.additional) {
                    (Some(p), _) => Some((cel::escape(key), typed(inner, Some(p), false))),
                    (None, Additional::Schema(p)) => Some((key.clone(), typed(inner, Some(p), false))),
                    (None, Additional::Any) => Some((key.clone(), cel::convert(inner))),
                    (None, _) => None,
                }
            });
            cel::map(entries)
        }
        Value::Array(list) => cel::list(list.iter().map(|inner| {
            schema.items.as_deref().map_or_else(|| cel::convert(inner), |s| typed(inner, Some(s), false))
        })),
        Value::Number(n) if &*schema.kind == "number" => cel::double(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) if &*schema.kind == "integer" && !n.is_i64() => cel::int(n.as_f64().unwrap_or(0.0)),
        Value::String(text) => match schema.checks.as_ref().map_or("", |c| &*c.format) {
            "date" | "date-time" | "datetime" => cel::timestamp(text).unwrap_or_else(|| cel::convert(value)),
            "duration" => cel::duration(text).unwrap_or_else(|| cel::convert(value)),
            "byte" => cel::bytes(text).unwrap_or_else(|| cel::convert(value)),
            _ => cel::convert(value),
        },
        _ => cel::convert(value),
    }
}

/// Rules see no more of an object's metadata than its name.
fn identity(key: &str, value: &Value) -> cel::Value {
    if key != "metadata" {
        return cel::convert(value);
    }
    let known: Map<String, Value> =
        ["name", "generateName"].iter().filter_map(|k| value.get(*k).map(|v| ((*k).to_owned(), v.clone()))).collect();
    cel::convert(&Value::Object(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(schema: Value, object: Value, old: Option<Value>) -> Vec<String> {
        check(&Schema::compile(&schema), &object, old.as_ref()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_of_all_sorts() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"}, "kind-of": {"type": "string"},
            "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is immutable"}]},
            "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}, "x-kubernetes-validations": [{"rule": "self.n.startsWith('a')"}]}},
            "when": {"type": "string", "format": "date-time"},
        }, "x-kubernetes-validations": [
            {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "messageExpression": "'min ' + string(self.min) + ' is above max'", "fieldPath": ".min", "reason": "FieldValueForbidden"},
            {"rule": "!has(self.kind__dash__of) || self.kind__dash__of.matches('^[a-z]+$')"},
            {"rule": "!has(self.when) || self.when < timestamp('2027-01-01T00:00:00Z')"},
        ]}}, "x-kubernetes-validations": [{"rule": "self.metadata.name != 'bad'"}]});
        let object = |spec: Value| json!({"metadata": {"name": "n", "labels": {}}, "spec": spec});
        let none: [&str; 0] = [];
        assert_eq!(
            run(
                schema.clone(),
                object(json!({"min": 1, "max": 2, "fixed": "a", "when": "2026-01-01T00:00:00Z"})),
                None
            ),
            none
        );
        assert_eq!(
            run(schema.clone(), object(json!({"min": 3, "max": 2})), None),
            ["spec.min: Forbidden: min 3 is above max"]
        );
        assert_eq!(
            run(schema.clone(), object(json!({"kind-of": "A"})), None),
            ["spec: Invalid value: failed rule: !has(self.kind__dash__of) || self.kind__dash__of.matches('^[a-z]+$')"]
        );
        assert_eq!(
            run(schema.clone(), object(json!({"list": [{"n": "a"}, {"n": "b"}]})), None),
            ["spec.list[1]: Invalid value: failed rule: self.n.startsWith('a')"]
        );
        assert_eq!(
            run(schema.clone(), object(json!({"fixed": "b"})), Some(object(json!({"fixed": "a"})))),
            ["spec.fixed: Invalid value: is immutable"]
        );
        assert_eq!(
            run(schema.clone(), object(json!({"min": 3, "max": 2})), Some(object(json!({"min": 3, "max": 2})))),
            none
        );
        assert_eq!(run(schema, json!({"metadata": {"name": "bad"}}), None).len(), 1);
    }
}
