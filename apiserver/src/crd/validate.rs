//! Whether a definition's schemas can be served: structure, lists, defaults, patterns and rules.
//!
//! Answers for what upstream's `apiextensions/validation` and `schema` packages say beyond names and versions. Pure; the
//! path of a schema is that of the version, or of the whole definition where all versions have the same.

use proto::Value;
use shared::cel::{Declared, Program, Type};
use shared::status::field::{Error, Path};

use super::schema::{MAX_DEPTH, Schema};
use super::structure::structure;
use super::types::{Decl, cardinality, factor};
use super::{check, jsonpath, prune};

/// Longest message of a rule.
const MAX_MESSAGE: usize = 2048;
/// What one rule may cost on any object at most.
const RULE_COST: u64 = 10_000_000;
/// What all rules of a version may cost together.
const TOTAL_COST: u64 = 100_000_000;
/// Rules named when the total is too high.
const MOST_EXPENSIVE: usize = 4;

/// What is wrong with the schema of a version.
pub fn schema(text: &Value, path: &Path, out: &mut Vec<Error>) {
    if !text.is_object() {
        return;
    }
    let before = out.len();
    structure(text, path, 0, false, out);
    // Rules and defaults speak about places that make sense.
    if out.len() > before {
        return;
    }
    let compiled = Schema::compile(text);
    defaults(text, &compiled, path, 0, out);
    let mut costs = Costs::default();
    let top = Spot { root: true, correlatable: true, bounded: Some(1), depth: 0 };
    rules(text, &compiled, path, top, &mut costs, out);
    costs.judge(path, out);
}

/// Defaults fit the places they are for.
fn defaults(text: &Value, schema: &Schema, path: &Path, depth: usize, out: &mut Vec<Error>) {
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(default) = &schema.default {
        let at = path.child("default");
        let mut pruned = default.clone();
        if !prune::prune(&mut pruned, schema).is_empty() {
            out.push(Error::invalid(&at, default.clone(), "must not have unknown fields"));
        } else {
            for mut error in check::check(default, None, schema) {
                let below = if error.field == "<nil>" { String::new() } else { format!(".{}", error.field) };
                error.field = format!("{at}{below}");
                out.push(error);
            }
        }
    }
    for (key, inner) in &schema.properties {
        defaults(&text["properties"][&**key], inner, &path.child("properties").key(key), depth + 1, out);
    }
    if let super::schema::Additional::Schema(inner) = &schema.additional {
        defaults(&text["additionalProperties"], inner, &path.child("additionalProperties"), depth + 1, out);
    }
    if let Some(inner) = &schema.items {
        defaults(&text["items"], inner, &path.child("items"), depth + 1, out);
    }
}

/// What the rules of a version may cost.
#[derive(Default)]
struct Costs {
    total: u64,
    /// Those that matter, the most expensive first.
    most: Vec<(Path, u64)>,
}

impl Costs {
    fn add(&mut self, path: Path, cost: u64) {
        self.total = self.total.saturating_add(cost);
        if cost < TOTAL_COST / 100 {
            return;
        }
        self.most.push((path, cost));
        self.most.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        self.most.truncate(MOST_EXPENSIVE);
    }

    fn judge(self, path: &Path, out: &mut Vec<Error>) {
        if self.total <= TOTAL_COST {
            return;
        }
        for (at, _) in self.most {
            let message = "contributed to estimated rule & messageExpression cost total exceeding cost limit for entire OpenAPIv3 schema";
            out.push(Error::forbidden(at, message));
        }
        let what = "x-kubernetes-validations estimated rule & messageExpression cost total for entire OpenAPIv3 schema";
        out.push(Error::forbidden(path, &too_expensive(what, self.total, TOTAL_COST)));
    }
}

fn too_expensive(what: &str, cost: u64, limit: u64) -> String {
    #[allow(clippy::cast_precision_loss)]
    let times = cost as f64 / limit as f64;
    let times = if times > 100.0 {
        "more than 100x".to_owned()
    } else if times < 1.5 {
        format!("{times:.6}x")
    } else {
        format!("{times:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {times} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Where a schema stands.
#[derive(Clone, Copy)]
struct Spot {
    /// It is that of a whole object.
    root: bool,
    /// Values can be compared with those before.
    correlatable: bool,
    /// How often it can be there, by the limits of what it is in; `None` for no limit.
    bounded: Option<u64>,
    depth: usize,
}

impl Spot {
    fn below(self, schema: &Schema) -> Self {
        let bounded = self.bounded.zip(factor(schema)).map(|(n, by)| n.saturating_mul(by));
        Self { root: false, bounded, depth: self.depth + 1, ..self }
    }
}

fn rules(text: &Value, schema: &Schema, path: &Path, spot: Spot, costs: &mut Costs, out: &mut Vec<Error>) {
    use super::schema::{Additional, ListKind};
    if spot.depth > MAX_DEPTH || !schema.has_rules() {
        return;
    }
    let own = text["x-kubernetes-validations"].as_array().map_or(&[][..], Vec::as_slice);
    if !own.is_empty() {
        match Decl::of(schema, spot.root || schema.embedded) {
            Some(decl) => {
                for (i, rule) in own.iter().enumerate() {
                    let at = path.child("x-kubernetes-validations").index(i);
                    one(rule, &decl, &at, spot, costs, out);
                }
            }
            None => {
                let message = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
                out.push(Error::internal(path.child("x-kubernetes-validations"), message));
            }
        }
    }
    let below = spot.below(schema);
    for (key, inner) in &schema.properties {
        rules(&text["properties"][&**key], inner, &path.child("properties").key(key), below, costs, out);
    }
    if let Additional::Schema(inner) = &schema.additional {
        rules(&text["additionalProperties"], inner, &path.child("additionalProperties"), below, costs, out);
    }
    if let Some(inner) = &schema.items {
        let correlatable = spot.correlatable && matches!(schema.list, ListKind::Map(_));
        rules(&text["items"], inner, &path.child("items"), Spot { correlatable, ..below }, costs, out);
    }
}

/// A rule as upstream prints it in messages.
fn shown(rule: &Value) -> String {
    let text = |key: &str| shared::status::go_quote(rule[key].as_str().unwrap_or(""));
    format!(
        "apiextensions.ValidationRule{{Rule:{}, Message:{}, MessageExpression:{}, Reason:(*apiextensions.FieldValueErrorReason)(nil), FieldPath:{}, OptionalOldSelf:(*bool)(nil)}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        text("fieldPath")
    )
}

fn one(rule: &Value, decl: &Decl, path: &Path, spot: Spot, costs: &mut Costs, out: &mut Vec<Error>) {
    let text = |key: &str| rule[key].as_str().unwrap_or("");
    let source = text("rule");
    if source.trim().is_empty() {
        out.push(Error::required(path.child("rule"), "rule is not specified"));
        return;
    }
    let message = text("message");
    let at = path.child("message");
    if message.is_empty() && source.contains('\n') && text("messageExpression").is_empty() {
        out.push(Error::required(at, "message must be specified if rule contains line breaks"));
    } else if !message.is_empty() && message.trim().is_empty() {
        out.push(Error::invalid(at, message, "message must be non-empty if specified"));
    } else if message.contains('\n') {
        out.push(Error::invalid(at, message, "message must not contain line breaks"));
    } else if message.len() > MAX_MESSAGE {
        out.push(Error::invalid(at, message, "message must have a maximum length of 2048 characters"));
    }
    let reason = text("reason");
    let reasons = ["FieldValueRequired", "FieldValueInvalid", "FieldValueForbidden", "FieldValueDuplicate"];
    if !reason.is_empty() && !reasons.contains(&reason) {
        out.push(Error::not_supported(path.child("reason"), reason, &reasons));
    }
    if !text("fieldPath").is_empty() && jsonpath::JsonPath::parse(text("fieldPath")).is_err() {
        out.push(Error::invalid(path.child("fieldPath"), text("fieldPath"), "fieldPath must be a valid path"));
    }
    let optional = rule["optionalOldSelf"] == true;
    let declared = variables(&decl.of, optional);
    let mut charge = |key: &str, what: &str, program: &Program, out: &mut Vec<Error>| {
        let times = cardinality(spot.bounded, decl.min_bytes);
        let cost = program.estimate(&|place| decl.size(place)).max.saturating_mul(times);
        if cost > RULE_COST {
            out.push(Error::forbidden(path.child(key), &too_expensive(what, cost, RULE_COST)));
        }
        costs.add(path.child(key), cost);
    };
    let programs = [
        compiled(source, &declared, &Type::Bool),
        match text("messageExpression") {
            "" => Err(String::new()),
            made => compiled(made, &declared, &Type::String),
        },
    ];
    if let Ok(program) = &programs[0] {
        charge("rule", "estimated rule cost", program, out);
    }
    let [rule_program, message_program] = programs;
    let mut complain = |key: &str, detail: &str| {
        let mut error = Error::invalid(path.child(key), Value::Null, detail);
        error.shown = Some(shown(rule));
        out.push(error);
    };
    match &rule_program {
        Ok(program) if program.mentions("oldSelf") && !spot.correlatable => {
            let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {path}");
            complain("rule", &detail);
        }
        Ok(program) if optional && !program.mentions("oldSelf") => {
            complain("optionalOldSelf", "may not be set if oldSelf is not used in rule");
        }
        Ok(_) => {}
        Err(why) => complain("rule", why),
    }
    match &message_program {
        Ok(program) => charge("messageExpression", "estimated messageExpression cost", program, out),
        Err(why) if !why.is_empty() => complain("messageExpression", &format!("messageExpression {why}")),
        Err(_) => {}
    }
}

/// What a rule may name.
pub(super) fn variables(of: &Type, optional: bool) -> Declared {
    let old = if optional { Type::optional(of.clone()) } else { of.clone() };
    Declared::from([("self".to_owned(), of.clone()), ("oldSelf".to_owned(), old)])
}

fn compiled(source: &str, declared: &Declared, wanted: &Type) -> Result<Program, String> {
    let program = Program::compile(source, declared).map_err(|e| format!("compilation failed: {e}"))?;
    if !program.result().is(wanted) {
        return Err(format!("cel expression must evaluate to a {wanted}"));
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(text: Value) -> Vec<String> {
        let mut out = Vec::new();
        schema(&text, &Path::new("s"), &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn schemas_that_are_refused() {
        let with = |inner: Value| json!({"type": "object", "properties": {"a": inner}});
        for (text, want) in [
            (with(json!({"type": "array"})), "s.properties[a].items: Required value: must be specified"),
            (
                with(json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true})),
                "s.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ),
            (
                with(json!({"type": "object", "additionalProperties": false})),
                "s.properties[a].additionalProperties: Forbidden: additionalProperties cannot be set to false",
            ),
            (
                with(
                    json!({"type": "object", "additionalProperties": {"type": "string"}, "properties": {"x": {"type": "string"}}}),
                ),
                "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ),
            (
                with(json!({"type": "string", "default": 1})),
                "s.properties[a].default: Invalid value: \"integer\": in body must be of type string: \"integer\"",
            ),
            (
                with(json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}})),
                "s.properties[a].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
            ),
            (
                with(json!({"type": "string", "x-kubernetes-list-type": "set"})),
                "s.properties[a].type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
            ),
            (
                with(json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}})),
                "s.properties[a].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ),
            (
                with(json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                    "items": {"type": "object", "properties": {"x": {"type": "string"}}}})),
                "s.properties[a].x-kubernetes-list-map-keys: Invalid value: [\"k\"]: entries must all be names of item properties",
            ),
            (
                with(
                    json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string", "nullable": true}}),
                ),
                "s.properties[a].items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
            ),
            (
                with(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false})),
                "s.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
            ),
            (
                with(json!({"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-map-type": "atomic"})),
                "s.properties[a].type: Required value: must be object if x-kubernetes-map-type is specified",
            ),
            (
                with(json!({"anyOf": [{"type": "string"}], "type": "string"})),
                "s.properties[a].anyOf[0].type: Forbidden: must be undefined to be structural",
            ),
        ] {
            assert_eq!(run(text.clone()), [want], "{text}");
        }
    }

    #[test]
    fn rules_that_do_not_compile() {
        let with = |rule: &str| json!({"type": "object", "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": rule}]});
        assert!(run(with("self.n > 0 && self.metadata.name != ''")).is_empty());
        for (rule, want) in [
            ("self.x > 0", "compilation failed: ERROR: <input>:1:5: undefined field 'x'"),
            ("self.n", "cel expression must evaluate to a bool"),
            ("self.n > 'a'", "found no matching overload for '_>_' applied to '(int, string)'"),
            ("self.n >", "compilation failed: ERROR: <input>:1:9: Syntax error"),
            ("", "s.x-kubernetes-validations[0].rule: Required value: rule is not specified"),
        ] {
            let got = run(with(rule));
            assert_eq!(got.len(), 1, "{rule}: {got:?}");
            assert!(got[0].contains(want), "{rule}: {got:?}");
        }
    }

    #[test]
    fn rules_that_cost_too_much() {
        let list = |limits: Value| {
            let mut list = json!({"type": "array", "items": {"type": "string", "maxLength": 10}});
            for (key, value) in limits.as_object().into_iter().flatten() {
                list[key] = value.clone();
            }
            json!({"type": "object", "properties": {"l": list}, "x-kubernetes-validations": [
                {"rule": "self.l.all(x, self.l.exists_one(y, x == y))"}]})
        };
        assert!(run(list(json!({"maxItems": 100}))).is_empty());
        let advice = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
        let at = "s.x-kubernetes-validations[0].rule: Forbidden";
        assert_eq!(
            run(list(Value::Null)),
            [
                format!("{at}: estimated rule cost exceeds budget by factor of more than 100x {advice}"),
                format!(
                    "{at}: contributed to estimated rule & messageExpression cost total exceeding cost limit for entire OpenAPIv3 schema"
                ),
                format!(
                    "s: Forbidden: x-kubernetes-validations estimated rule & messageExpression cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x {advice}"
                ),
            ]
        );
        for (cost, want) in [(10_500_000, "1.050000x"), (25_000_000, "2.5x"), (u64::MAX, "more than 100x")] {
            assert_eq!(too_expensive("c", cost, RULE_COST), format!("c exceeds budget by factor of {want} {advice}"));
        }
    }
}
