//! The status of a policy: which of its expressions cannot work on the kinds it matches.
//!
//! In: the policy and the types of these kinds. Out: warnings, expression by expression. No I/O here.

use std::collections::BTreeMap;

use foldhash::HashMap;
use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicySpec,
};

use shared::cel::{Declared, Program, Type, admission};

use crate::engine::discovery::Served;

/// A policy that matches more kinds is checked against so many.
pub const KINDS_MAX: usize = 10;

/// A kind and what is known of it.
#[derive(Clone, Debug)]
pub struct KnownKind {
    /// Type as warnings name it: `apps/v1, Kind=Deployment`.
    pub name: String,
    /// Type of its objects in expressions.
    pub object: Type,
}

/// The served resources whose types can be known, by group, version and kind: wildcards and subresources say nothing of
/// types. At most [`KINDS_MAX`], in the order in which the rules name them. What a rule names is looked up in what is
/// served, as there may be very many groups, versions and resources in one.
#[must_use]
pub fn matched<'a>(spec: &ValidatingAdmissionPolicySpec, served: &'a [Served]) -> Vec<&'a Served> {
    let rules = spec.match_constraints.as_ref().and_then(|m| m.resource_rules.as_deref()).unwrap_or_default();
    let mut out: BTreeMap<(&str, &str, &str), &Served> = BTreeMap::new();
    'rules: for rule in rules {
        for served in of_rule(rule, served) {
            if out.len() == KINDS_MAX {
                break 'rules;
            }
            out.insert((&served.group, &served.version, &served.kind), served);
        }
    }
    out.into_values().collect()
}

fn of_rule<'a>(rule: &NamedRuleWithOperations, served: &'a [Served]) -> Vec<&'a Served> {
    let plain = |list: &Option<Vec<String>>| list.iter().flatten().all(|v| v != "*");
    if !plain(&rule.api_groups) || !plain(&rule.api_versions) {
        return Vec::new();
    }
    let (groups, versions, resources) =
        (positions(&rule.api_groups), positions(&rule.api_versions), positions(&rule.resources));
    let position = |served: &Served| {
        let (group, version) = (groups.get(served.group.as_str())?, versions.get(served.version.as_str())?);
        Some((*group, *version, *resources.get(served.plural.as_str())?))
    };
    let mut found: Vec<_> = served.iter().filter_map(|served| Some((position(served)?, served))).collect();
    found.sort_unstable_by_key(|(position, _)| *position);
    found.into_iter().map(|(_, served)| served).collect()
}

/// Positions at which each text of a list comes first.
fn positions(list: &Option<Vec<String>>) -> HashMap<&str, usize> {
    let mut out = HashMap::default();
    for (at, text) in list.iter().flatten().enumerate() {
        out.entry(text.as_str()).or_insert(at);
    }
    out
}

/// The warnings, in the order of the expressions.
#[must_use]
pub fn warnings(
    spec: &ValidatingAdmissionPolicySpec,
    kinds: &[KnownKind],
    params: Option<&Type>,
) -> Vec<ExpressionWarning> {
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
    Program::check(expression, variables).err().map(|e| e.to_string())
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

    fn deployment() -> KnownKind {
        let document = proto::openapi::v3_group_version("apps", "v1").expect("a document");
        let document = Document::new(serde_json::from_slice(&document).expect("JSON"));
        let object = document.kind("apps", "v1", "Deployment").expect("kind");
        KnownKind { name: "apps/v1, Kind=Deployment".into(), object }
    }

    #[test]
    fn resources_of_rules() {
        let rule = |g: Value, v: Value, r: Value| json!({"apiGroups": g, "apiVersions": v, "resources": r});
        let s = spec(json!({"matchConstraints": {"resourceRules": [
            rule(json!(["apps"]), json!(["v1"]), json!(["deployments", "deployments/scale", "*"])),
            rule(json!(["*"]), json!(["v1"]), json!(["pods"])),
            rule(json!([""]), json!(["*"]), json!(["pods"]))]}}));
        let apps = ["deployments", "statefulsets"].map(|plural| served("apps", "v1", plural));
        let found: Vec<&str> = matched(&s, &apps).into_iter().map(|s| s.plural.as_str()).collect();
        assert_eq!(found, ["deployments"]);
        let all: Vec<Served> = (0..30).map(|n| served("g", "v1", &format!("r{n}"))).collect();
        let names: Vec<String> = (0..30).rev().map(|n| format!("r{n}")).collect();
        let s = spec(json!({"matchConstraints": {"resourceRules": [rule(json!(["g"]), json!(["v1"]), json!(names))]}}));
        let found: Vec<&str> = matched(&s, &all).into_iter().map(|s| s.plural.as_str()).collect();
        assert_eq!(found, (20..30).map(|n| format!("r{n}")).collect::<Vec<_>>(), "the first that are named");
    }

    fn served(group: &str, version: &str, plural: &str) -> Served {
        let [group, version, plural] = [group, version, plural].map(str::to_owned);
        Served { group, version, kind: plural.clone(), plural, ..Served::default() }
    }

    /// A policy of a megabyte may name 10^13 resources.
    #[test]
    fn very_many_names_in_one_rule_are_no_product() {
        let names = |prefix: &str| (0..20_000).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
        let rule = json!({"apiGroups": names("g"), "apiVersions": names("v"), "resources": names("r")});
        let s = spec(json!({"matchConstraints": {"resourceRules": [rule]}}));
        let all = [served("g7", "v19999", "r3"), served("g7", "v20000", "r3")];
        assert_eq!(matched(&s, &all), [&all[0]]);
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
