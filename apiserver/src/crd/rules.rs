//! CEL rules of a schema (`x-kubernetes-validations`), run over an object. Answers for upstream's
//! `apiextensions-apiserver/pkg/apiserver/schema/cel` (`Validator.Validate`).
//!
//! A rule sees the value it stands at as `self`; one that mentions `oldSelf` speaks about changes and is run only where
//! there was a value before. Where nothing changed nothing is judged again.

use proto::Value;
use shared::cel::{self, Budget, Program, Scope, Text};
use shared::status::field::{Error, ErrorKind, Path};

use super::check::{counterpart, same};
use super::meters::timed;
use super::rule::{Rule, RuleCompileError};
use super::rule_check::variables;
use super::schema::{Additional, Schema};
use super::types::Decl;
use crate::expressions::EXHAUSTED;

/// Error of computing the message of a rule, after which no further rule is run.
#[derive(Debug, thiserror::Error)]
enum MessageError {
    /// An exhausted cost budget of the object's rules.
    #[error(
        "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
    )]
    Exhausted,
    /// This expression alone costs too much.
    #[error(
        "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
        shared::status::go_quote(.0)
    )]
    CallCost(String),
}

impl Rule {
    fn compile(&self, source: &str, schema: &Schema, root: bool) -> Result<Program, RuleCompileError> {
        let decl = Decl::of(schema, root).ok_or(RuleCompileError::NoTypes)?;
        Ok(Program::compile(source, &variables(&decl.of, self.optional_old))?)
    }

    fn program(&self, schema: &Schema, root: bool) -> Result<&Program, &RuleCompileError> {
        self.program.get_or_init(|| self.compile(&self.text, schema, root)).as_ref()
    }

    /// Text of the rule in error messages.
    fn shown(&self) -> &str {
        if self.message.is_empty() { self.text.trim() } else { self.message.trim() }
    }

    /// The text for a value that does not fit; the error ends it all.
    fn words(
        &self,
        scope: &Scope<'_>,
        schema: &Schema,
        root: bool,
        budget: &mut Budget,
    ) -> Result<String, MessageError> {
        let plain = || {
            if self.message.is_empty() {
                format!("failed rule: {}", self.text.trim())
            } else {
                self.message.trim().to_owned()
            }
        };
        let made = &self.message_expression;
        if made.is_empty() {
            return Ok(plain());
        }
        let program = self.message_program.get_or_init(|| self.compile(made, schema, root).ok());
        let Some(program) = program else { return Ok(plain()) };
        let answer = program.evaluate(scope, budget);
        if budget.is_exhausted() {
            return Err(MessageError::Exhausted);
        }
        match answer {
            Err(cel::Error::Cancelled) => Err(MessageError::CallCost(made.clone())),
            Ok(cel::Value::String(text)) => {
                let text = text.trim();
                let fits = !text.is_empty() && !text.contains('\n') && text.len() <= cel::MAX_MESSAGE;
                Ok(if fits { text.to_owned() } else { plain() })
            }
            _ => Ok(plain()),
        }
    }
}

/// Evaluates the rules on an object; returns the errors.
pub(super) fn check(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<Error> {
    let mut run = Run { out: Vec::new(), budget: Budget::new(cel::RUNTIME_BUDGET), ended: false };
    run.at(schema, object, old, true, &Path::default());
    run.out
}

/// Evaluates the rules on a value at a path, as on a new one. `whole`: the value is an object itself.
pub(super) fn check_at(schema: &Schema, value: &Value, whole: bool, path: &Path) -> Vec<Error> {
    let mut run = Run { out: Vec::new(), budget: Budget::new(cel::RUNTIME_BUDGET), ended: false };
    run.at(schema, value, None, whole, path);
    run.out
}

struct Run {
    out: Vec<Error>,
    budget: Budget,
    /// Evaluation has stopped.
    ended: bool,
}

impl Run {
    fn at(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, root: bool, path: &Path) {
        if self.ended || value.is_null() || !schema.has_rules() || old.is_some_and(|o| timed(|| same(o, value))) {
            return;
        }
        if !schema.rules.is_empty() {
            self.here(schema, value, old, root || schema.embedded, path);
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
                    let before = old.and_then(|old| timed(|| counterpart(inner, old, schema)));
                    self.at(items, inner, before, false, &path.index(i));
                }
            }
            _ => {}
        }
    }

    fn refuse(&mut self, path: &Path, schema: &Schema, why: &str) {
        self.out.push(Error::invalid(path, type_name(schema), why));
    }

    fn end(&mut self, path: &Path, schema: &Schema, why: &str) {
        self.refuse(path, schema, why);
        self.ended = true;
    }

    fn here(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, root: bool, path: &Path) {
        if self.budget.left() == 0 {
            return self.end(path, schema, EXHAUSTED);
        }
        let old = old.filter(|o| !o.is_null());
        let mut scope = Scope::default();
        scope.set("self", typed(value, Some(schema), root));
        let mut before: Option<cel::Value<'_>> = None;
        for rule in &schema.rules {
            let program = match rule.program(schema, root) {
                Ok(p) => p,
                Err(why) => {
                    self.refuse(path, schema, &format!("rule compile error: {why}"));
                    continue;
                }
            };
            if program.mentions("oldSelf") {
                match (old, rule.optional_old) {
                    (None, false) => continue,
                    (None, true) => scope.set("oldSelf", cel::Value::Optional(None)),
                    (Some(old), optional) => {
                        let old = before.get_or_insert_with(|| typed(old, Some(schema), root)).clone();
                        scope.set("oldSelf", if optional { cel::Value::some(old) } else { old });
                    }
                }
            }
            let answer = program.evaluate(&scope, &mut self.budget);
            if self.budget.is_exhausted() {
                return self.end(path, schema, EXHAUSTED);
            }
            match answer {
                Ok(cel::Value::Bool(true)) => {}
                Ok(_) => match rule.words(&scope, schema, root, &mut self.budget) {
                    Ok(words) => {
                        let at = rule.field_path.as_ref().map_or_else(|| path.clone(), |p| below(path, p));
                        self.out.push(error(rule.reason, &at, &words, value, &schema.kind));
                    }
                    Err(why) => return self.end(path, schema, &why.to_string()),
                },
                Err(why @ cel::Error::Cancelled) => {
                    let shown = rule.shown();
                    let why = format!(
                        "'{why}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
                    );
                    return self.end(path, schema, &why);
                }
                Err(why @ cel::Error::NoOverload(_)) => {
                    let shown = rule.shown();
                    let text = format!(
                        "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
                    );
                    self.refuse(path, schema, &text);
                }
                Err(cel::Error::Failed(why)) => {
                    self.refuse(path, schema, &format!("{why} evaluating rule: {}", rule.shown()));
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

fn error(reason: ErrorKind, path: &Path, words: &str, value: &Value, kind: &str) -> Error {
    // Objects and lists are not shown.
    let shown = matches!(kind, "object" | "array").then(String::new);
    match reason {
        ErrorKind::Required => Error::required(path, words),
        ErrorKind::Forbidden => Error::forbidden(path, words),
        ErrorKind::Duplicate => Error { shown, ..Error::duplicate(path, value.clone()) },
        _ => Error { shown, ..Error::invalid(path, value.clone(), words) },
    }
}

/// A value as rules see it: with the types of its schema, field names that are no identifiers escaped, fields the
/// schema does not know left out.
fn typed<'v>(value: &'v Value, schema: Option<&Schema>, root: bool) -> cel::Value<'v> {
    let plain = || cel::Value::of(value);
    let Some(schema) = schema else { return plain() };
    match value {
        Value::Object(map) => cel::Value::map(map.iter().filter_map(|(key, inner)| {
            if (root || schema.embedded) && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                return Some((Text::Borrowed(key), identity(key, inner)));
            }
            match (schema.property(key), &schema.additional) {
                (Some(p), _) => Some((name(key), typed(inner, Some(p), false))),
                (None, Additional::Schema(p)) => Some((Text::Borrowed(key), typed(inner, Some(p), false))),
                (None, Additional::Any) => Some((Text::Borrowed(key), cel::Value::of(inner))),
                (None, _) => None,
            }
        })),
        Value::Array(list) => cel::Value::list(list.iter().map(|v| typed(v, schema.items.as_deref(), false))),
        Value::Number(n) if &*schema.kind == "number" => cel::Value::Double(n.as_f64().unwrap_or(f64::NAN)),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a schema's integer may be written as a float; casts of floats saturate"
        )]
        Value::Number(n) if &*schema.kind == "integer" && !n.is_i64() => {
            cel::Value::Int(n.as_f64().unwrap_or(0.0) as i64)
        }
        Value::String(text) => match schema.checks.as_ref().map_or("", |c| &*c.format) {
            "date" => cel::timestamp(&format!("{text}T00:00:00Z")).map_or_else(plain, cel::Value::Timestamp),
            "date-time" | "datetime" => cel::timestamp(text).map_or_else(plain, cel::Value::Timestamp),
            "duration" => cel::duration(text).map_or_else(plain, cel::Value::Duration),
            "byte" => {
                use base64::Engine as _;
                let bytes = base64::engine::general_purpose::STANDARD.decode(text);
                bytes.map_or_else(|_| plain(), |b| cel::Value::Bytes(b.into()))
            }
            _ => plain(),
        },
        _ => plain(),
    }
}

/// The name of a field in rules.
fn name(key: &str) -> Text<'_> {
    let escaped = cel::escape(key);
    if escaped == key { Text::Borrowed(key) } else { Text::Shared(escaped.into()) }
}

/// Rules see no more of an object's metadata than its name.
fn identity<'v>(key: &str, value: &'v Value) -> cel::Value<'v> {
    if key != "metadata" {
        return cel::Value::of(value);
    }
    let known = ["name", "generateName"];
    cel::Value::map(known.iter().filter_map(|k| value.get(*k).map(|v| (Text::Borrowed(k), cel::Value::of(v)))))
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
            [r#"spec.fixed: Invalid value: "b": is immutable"#]
        );
        assert_eq!(
            run(schema.clone(), object(json!({"min": 3, "max": 2})), Some(object(json!({"min": 3, "max": 2})))),
            none
        );
        assert_eq!(run(schema, json!({"metadata": {"name": "bad"}}), None).len(), 1);
    }

    #[test]
    fn rules_run_within_a_budget() {
        let rule = "self.all(a, self.all(b, a + b >= 0))";
        let list = |n: usize| json!({"l": (0..n).collect::<Vec<_>>()});
        let schema = |rules: usize| {
            let rules: Vec<Value> = (0..rules).map(|_| json!({"rule": rule})).collect();
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"},
                "x-kubernetes-validations": rules}}})
        };
        assert!(run(schema(1), list(100), None).is_empty());
        assert_eq!(
            run(schema(3), list(1_000), None),
            [format!(
                "l: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
            )]
        );
        assert_eq!(
            run(schema(20), list(340), None),
            [
                "l: Invalid value: \"array\": validation failed due to running out of cost budget, no further validation rules will be run"
            ]
        );
    }
}
