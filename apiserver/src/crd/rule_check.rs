//! Validation of CEL rules in a schema: compilation, types, estimated cost. Answers for upstream's
//! `ValidateCustomResourceDefinitionOpenAPISchema`, `cel.Compile`.

use proto::Value;
use shared::cel::{Declared, Program, Type};
use shared::status::field::{Error, Path};

use super::costs::{Costs, RULE_COST, too_expensive};
use super::field_path;
use super::rule::RuleCompileError;
use super::schema::{Additional, ListKind, MAX_DEPTH, Schema};
use super::schema_options::SchemaOptions;
use super::types::{Decl, cardinality, factor};

/// Rules and the places they stand at.
const RULES: &str = "x-kubernetes-validations";
/// Reasons a rule may give.
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Judges all rules of a schema; expressions only where the schema is `sound`, nothing that is `out` already is about
/// the place or one below, and so is what the rules say otherwise.
pub(super) fn rules(
    text: &Value,
    schema: &Schema,
    path: &Path,
    (sound, options): (bool, SchemaOptions),
    costs: &mut Costs,
    out: &mut Vec<Error>,
) {
    let mut check = RuleCheck { options, sound, costs, wrong: out, said: Vec::new(), expressions: Vec::new() };
    check.at(text, schema, path, SchemaPosition { root: true, bounded: Some(1), depth: 0 }, None);
    let RuleCheck { said, expressions, .. } = check;
    out.extend(said);
    out.extend(expressions);
}

/// Position of a schema.
#[derive(Clone, Copy)]
struct SchemaPosition {
    /// The schema is that of a whole object.
    root: bool,
    /// Maximum number of values at this position, by the limits around it; `None` when unlimited.
    bounded: Option<u64>,
    depth: usize,
}

struct RuleCheck<'c> {
    options: SchemaOptions,
    sound: bool,
    costs: &'c mut Costs,
    /// Errors of the schema.
    wrong: &'c [Error],
    /// Errors of rules outside their expressions.
    said: Vec<Error>,
    expressions: Vec<Error>,
}

impl RuleCheck<'_> {
    /// Checks a schema, nested ones first. `apart` is the path of the list or set around it whose elements cannot be
    /// correlated with old ones.
    fn at(&mut self, text: &Value, schema: &Schema, path: &Path, spot: SchemaPosition, apart: Option<&Path>) {
        if spot.depth > MAX_DEPTH || !schema.has_rules() {
            return;
        }
        let before = self.said.len();
        let bounded = spot.bounded.zip(factor(schema)).map(|(n, by)| n.saturating_mul(by));
        let below = SchemaPosition { root: false, bounded, depth: spot.depth + 1 };
        if let Additional::Schema(inner) = &schema.additional {
            self.at(&text["additionalProperties"], inner, &path.child("additionalProperties"), below, apart);
        }
        for (key, inner) in &schema.properties {
            self.at(&text["properties"][&**key], inner, &path.child("properties").key(key), below, apart);
        }
        if let Some(inner) = &schema.items {
            let apart = apart.or((!matches!(schema.list, ListKind::Map(_))).then_some(path));
            self.at(&text["items"], inner, &path.child("items"), below, apart);
        }
        let own = text[RULES].as_array().map_or(&[][..], Vec::as_slice);
        for (i, rule) in own.iter().enumerate() {
            words(rule, text, &path.child(RULES).index(i), &mut self.said);
        }
        let about = |error: &Error| {
            let below = error.field.strip_prefix(path.as_str());
            below.is_some_and(|below| below.is_empty() || below.starts_with(['.', '[']))
        };
        if own.is_empty() || !self.sound || self.said.len() > before || self.wrong.iter().any(about) {
            return;
        }
        let Some(decl) = Decl::of(schema, spot.root || schema.embedded) else {
            let message = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            self.expressions.push(Error::internal(path.child(RULES), message));
            return;
        };
        let times = cardinality(spot.bounded, decl.min_bytes);
        for (i, rule) in own.iter().enumerate() {
            self.one(rule, &decl, &path.child(RULES).index(i), times, apart);
        }
    }

    fn one(&mut self, rule: &Value, decl: &Decl, path: &Path, times: u64, apart: Option<&Path>) {
        let text = |key: &str| rule[key].as_str().unwrap_or("");
        let declared = variables(&decl.of, rule["optionalOldSelf"] == true);
        let program = compiled(text("rule"), &declared, &Type::Bool, RuleCompileError::NotBool);
        match &program {
            Ok(program) => self.charge(path.child("rule"), "estimated rule cost", cost(program, decl, times)),
            Err(why) => self.complain(path.child("rule"), rule, &why.to_string()),
        }
        // The message of a rule that cannot be run does not matter.
        if program.is_ok() && !text("messageExpression").trim().is_empty() {
            let at = path.child("messageExpression");
            match compiled(text("messageExpression"), &declared, &Type::String, RuleCompileError::NotText) {
                Ok(message) => self.charge(at, "estimated messageExpression cost", cost(&message, decl, times)),
                Err(why) => self.complain(at, rule, &format!("messageExpression {why}")),
            }
        }
        if program.is_ok_and(|p| p.mentions("oldSelf")) {
            if let Some(apart) = apart {
                let detail =
                    format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {apart}");
                self.expressions.push(Error::invalid(path.child("rule"), text("rule"), &detail));
            }
        } else if !rule["optionalOldSelf"].is_null() {
            let (at, value) = (path.child("optionalOldSelf"), rule["optionalOldSelf"].clone());
            self.expressions.push(Error::invalid(at, value, "may not be set if oldSelf is not used in rule"));
        }
    }

    fn charge(&mut self, path: Path, what: &str, cost: u64) {
        if cost > RULE_COST && !self.options.costs {
            self.expressions.push(Error::forbidden(&path, &too_expensive(what, cost, RULE_COST)));
        }
        self.costs.add(path, cost);
    }

    fn complain(&mut self, path: Path, rule: &Value, detail: &str) {
        let mut error = Error::invalid(path, Value::Null, detail);
        error.shown = Some(shown(rule));
        self.expressions.push(error);
    }
}

fn cost(program: &Program, decl: &Decl, times: u64) -> u64 {
    program.estimate(&|place| decl.size(place)).max.saturating_mul(times)
}

/// Validates the fields of a rule beside its expressions.
fn words(rule: &Value, schema: &Value, path: &Path, out: &mut Vec<Error>) {
    let text = |key: &str| rule[key].as_str().unwrap_or("");
    let blank = |key: &str| !text(key).is_empty() && text(key).trim().is_empty();
    let lines = |text: &str| text.trim().contains(['\n', '\r']);
    let (message, at) = (text("message"), path.child("message"));
    if text("rule").trim().is_empty() {
        out.push(Error::required(path.child("rule"), "rule is not specified"));
    } else if blank("message") {
        out.push(Error::invalid(at, message, "must be non-empty if specified"));
    } else if lines(message) {
        out.push(Error::invalid(at, message, "must not contain line breaks"));
    } else if lines(text("rule")) && message.is_empty() {
        out.push(Error::required(at, "message must be specified if rule contains line breaks"));
    }
    if blank("messageExpression") {
        out.push(Error::required(path.child("messageExpression"), "messageExpression must be non-empty if specified"));
    }
    let reason = text("reason");
    if !rule["reason"].is_null() && !REASONS.contains(&reason) {
        out.push(Error::not_supported(path.child("reason"), reason, &REASONS));
    }
    let (field, at) = (text("fieldPath"), path.child("fieldPath"));
    if blank("fieldPath") {
        out.push(Error::invalid(&at, field, "must be non-empty if specified"));
    }
    if field.contains(['\n', '\r']) {
        out.push(Error::invalid(&at, field, "must not contain line breaks"));
    }
    if !field.is_empty() && field_path::follow(field, schema, true).is_err() {
        out.push(Error::invalid(&at, field, "must be a valid path"));
    }
}

/// A rule as upstream prints it in messages.
pub(super) fn shown(rule: &Value) -> String {
    let fields = ["rule", "message", "messageExpression", "reason", "fieldPath", "optionalOldSelf"];
    let shown = fields.map(|key| {
        let empty = if matches!(key, "reason" | "optionalOldSelf") { Value::Null } else { Value::from("") };
        let mut text = Vec::new();
        proto::json::encode_any(rule.get(key).unwrap_or(&empty), &mut text);
        format!("\"{}{}\":{}", key[..1].to_uppercase(), &key[1..], String::from_utf8_lossy(&text))
    });
    format!("{{{}}}", shown.join(","))
}

/// Variables of a rule.
pub(super) fn variables(of: &Type, optional: bool) -> Declared {
    let old = if optional { Type::optional(of.clone()) } else { of.clone() };
    Declared::from([("self".to_owned(), of.clone()), ("oldSelf".to_owned(), old)])
}

/// Compiles an expression; `unlike` is the error for one of another type than `wanted`.
fn compiled(
    source: &str,
    declared: &Declared,
    wanted: &Type,
    unlike: RuleCompileError,
) -> Result<Program, RuleCompileError> {
    let program = Program::compile(source, declared)?;
    if program.result().is(wanted) { Ok(program) } else { Err(unlike) }
}
