//! Validation of a definition's schemas: structure, lists, defaults, patterns and rules.
//!
//! Answers for what upstream's `apiextensions/validation` and `schema` packages say beyond names and versions. Pure;
//! the path of a schema is that of the version, or of the whole definition where all versions have the same.

use proto::Value;
use shared::status::field::{Error, Path};

use super::costs::Costs;
use super::schema::Schema;
use super::schema_options::SchemaOptions;
use super::structure::{At, structure};
use super::{defaults, rule_check, structural};

/// Validates the schema of a version.
pub fn schema(text: &Value, path: &Path, options: SchemaOptions, out: &mut Vec<Error>) {
    if !text.is_object() {
        return;
    }
    let before = out.len();
    let unreadable = if options.structure { None } else { structural::unreadable(text, 0) };
    let mut sound = !options.structure && unreadable.is_none();
    let compiled = Schema::compile(text);
    // Defaults and rules speak about places that make sense.
    if sound {
        let mut wrong = structural::invariants(text, path);
        if wrong.is_empty() {
            wrong = defaults::validate_defaults(text, &compiled, path, options);
        }
        sound = wrong.is_empty();
        out.extend(wrong);
    }
    let mut said = Vec::new();
    structure(text, path, At::default(), options, &mut said);
    let mut costs = Costs::default();
    rule_check::rules(text, &compiled, path, (sound, options), &mut costs, &mut said);
    out.extend(said);
    if let Some(why) = unreadable.filter(|_| out.len() == before) {
        out.push(Error::invalid(path, "", &why));
    }
    costs.judge(path, out);
}

/// A rule as upstream prints it in messages.
pub fn rule_shown(rule: &Value) -> String {
    rule_check::shown(rule)
}

/// Reports whether a schema is structural.
pub fn is_structural(text: &Value) -> bool {
    structural::unreadable(text, 0).is_none() && structural::invariants(text, &Path::default()).is_empty()
}

#[cfg(test)]
mod tests {
    use super::super::costs::{RULE_COST, too_expensive};
    use super::*;
    use serde_json::json;

    fn run(text: Value) -> Vec<String> {
        let mut out = Vec::new();
        schema(&text, &Path::new("s"), SchemaOptions::default(), &mut out);
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
                with(
                    json!({"type": "object", "additionalProperties": {"type": "string"}, "properties": {"x": {"type": "string"}}}),
                ),
                "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ),
            (
                with(json!({"type": "string", "default": 1})),
                "s.properties[a].default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
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
                "s.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
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
                    "{at}: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
                ),
                format!(
                    "s: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x {advice}"
                ),
            ]
        );
        for (cost, want) in [(10_500_000, "1.050000x"), (25_000_000, "2.5x"), (u64::MAX, "more than 100x")] {
            assert_eq!(too_expensive("c", cost, RULE_COST), format!("c exceeds budget by factor of {want} {advice}"));
        }
    }
}
