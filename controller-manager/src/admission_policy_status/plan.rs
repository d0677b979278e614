//! The status of a policy: which of its expressions cannot work on the kinds it matches.
//!
//! In: the policy and the types of these kinds. Out: warnings, expression by expression. No I/O here.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicySpec,
};

use shared::cel::{Declared, Program, Type, admission};

/// A policy that matches more kinds is checked against so many.
pub const KINDS_MAX: usize = 10;

/// A resource that a policy names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Matched {
    /// API group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural.
    pub resource: String,
}

/// A kind and what is known of it.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Type as warnings name it: `apps/v1, Kind=Deployment`.
    pub name: String,
    /// Its type.
    pub object: Type,
}

/// The resources whose types can be known: wildcards and subresources say nothing of types.
#[must_use]
pub fn matched(spec: &ValidatingAdmissionPolicySpec) -> BTreeSet<Matched> {
    let rules = spec.match_constraints.as_ref().and_then(|m| m.resource_rules.as_deref()).unwrap_or_default();
    rules.iter().flat_map(of_rule).collect()
}

fn of_rule(rule: &NamedRuleWithOperations) -> Vec<Matched> {
    let plain = |list: &Option<Vec<String>>| -> Vec<String> {
        let list = list.as_deref().unwrap_or_default();
        if list.iter().any(|v| v == "*") { Vec::new() } else { list.to_vec() }
    };
    let resources = rule.resources.iter().flatten().filter(|r| !r.contains('*') && !r.contains('/'));
    let mut out = Vec::new();
    for resource in resources {
        for group in plain(&rule.api_groups) {
            for version in plain(&rule.api_versions) {
                out.push(Matched { group: group.clone(), version, resource: resource.clone() });
            }
        }
    }
    out
}

/// The warnings, in the order of the expressions.
#[must_use]
pub fn warnings(spec: &ValidatingAdmissionPolicySpec, kinds: &[Kind], params: Option<&Type>) -> Vec<ExpressionWarning> {
    let scenes: Vec<(&str, Declared)> =
        kinds.iter().map(|k| (k.name.as_str(), variables(spec, &k.object, params))).collect();
    let mut out = Vec::new();
    let mut look = |field_ref: String, expression: &str| {
        let found: Vec<String> = scenes
            .iter()
            .filter_map(|(kind, variables)| complaint(expression, variables).map(|e| format!("{kind}: {e}\n")))
            .collect();
        if !found.is_empty() {
            out.push(ExpressionWarning { field_ref, warning: found.join("\n") });
        }
    };
    for (i, validation) in spec.validations.iter().flatten().enumerate() {
        look(format!("spec.validations[{i}].expression"), &validation.expression);
        if let Some(message) = validation.message_expression.as_deref().filter(|m| !m.is_empty()) {
            look(format!("spec.validations[{i}].messageExpression"), message);
        }
    }
    out
}

fn complaint(expression: &str, variables: &Declared) -> Option<String> {
    Program::check(expression, variables).err()
}

/// Returns the variables of an expression that is about an object of this type. Parameters of an unknown type are not
/// declared.
fn variables(spec: &ValidatingAdmissionPolicySpec, object: &Type, params: Option<&Type>) -> Declared {
    let mut out = admission::variables(object, params);
    admission::declare_none(&mut out);
    // Each variable may name those before it.
    for variable in spec.variables.iter().flatten() {
        let of = Program::check(&variable.expression, &out).unwrap_or(Type::Dyn);
        admission::declare(&mut out, &variable.name, &of);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::types::Document;
    use super::*;
    use serde_json::{Value, json};

    fn spec(v: Value) -> ValidatingAdmissionPolicySpec {
        serde_json::from_value(v).expect("spec")
    }

    fn deployment() -> Kind {
        let document = proto::openapi::v3_group_version("apps", "v1").expect("a document");
        let document = Document::new(serde_json::from_slice(&document).expect("JSON"));
        let object = document.kind("apps", "v1", "Deployment").expect("kind");
        Kind { name: "apps/v1, Kind=Deployment".into(), object }
    }

    #[test]
    fn resources_of_rules() {
        let rule = |g: Value, v: Value, r: Value| json!({"apiGroups": g, "apiVersions": v, "resources": r});
        let s = spec(json!({"matchConstraints": {"resourceRules": [
            rule(json!(["apps"]), json!(["v1"]), json!(["deployments", "deployments/scale", "*"])),
            rule(json!(["*"]), json!(["v1"]), json!(["pods"])),
            rule(json!([""]), json!(["*"]), json!(["pods"]))]}}));
        let found: Vec<String> = matched(&s).into_iter().map(|m| m.resource).collect();
        assert_eq!(found, ["deployments"]);
    }

    #[test]
    fn warnings_of_a_policy() {
        let s = spec(json!({"validations": [
            {"expression": "object.spec.replicas > 1"},
            {"expression": "object.spec.replicas > '1'", "messageExpression": "object.nope"}]}));
        let found = warnings(&s, &[deployment()], None);
        let fields: Vec<&str> = found.iter().map(|w| w.field_ref.as_str()).collect();
        assert_eq!(fields, ["spec.validations[1].expression", "spec.validations[1].messageExpression"]);
        assert!(
            found[0].warning.starts_with("apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload")
        );
        assert!(warnings(&s, &[], None).is_empty(), "nothing is known");
    }

    #[test]
    fn declared_variables_have_types() {
        let s = spec(json!({"variables": [
                {"name": "n", "expression": "object.spec.replicas"}, {"name": "m", "expression": "variables.n + 1"}],
            "validations": [{"expression": "variables.m > 1"}, {"expression": "variables.m == 'x'"},
                {"expression": "variables.o"}, {"expression": "params.x"}]}));
        let fields: Vec<String> = warnings(&s, &[deployment()], None).into_iter().map(|w| w.field_ref).collect();
        assert_eq!(
            fields,
            ["spec.validations[1].expression", "spec.validations[2].expression", "spec.validations[3].expression"]
        );
    }

    #[test]
    fn parameters_are_there_when_their_type_is_known() {
        let s = spec(
            json!({"paramKind": {"apiVersion": "v1", "kind": "X"}, "validations": [{"expression": "params.x > 1"}]}),
        );
        for (params, want) in [(Some(Type::Dyn), 0), (None, 1)] {
            assert_eq!(warnings(&s, &[deployment()], params.as_ref()).len(), want, "{params:?}");
        }
    }
}
