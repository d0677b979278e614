//! Policies over a cluster in memory.

use super::*;
use crate::admission::testing::{Fixed, Write};
use serde_json::json;

fn cluster(spec: &Value, binding: &Value) -> ValidatingPolicies {
    let cluster = Arc::new(Fixed::default());
    let mut policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}}});
    let mut bound = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    for (target, more) in [(&mut policy, spec), (&mut bound, binding)] {
        for (key, value) in more.as_object().into_iter().flatten() {
            target["spec"][key] = value.clone();
        }
    }
    cluster.put(GROUP, "validatingadmissionpolicies", policy);
    cluster.put(GROUP, "validatingadmissionpolicybindings", bound);
    cluster.put("", "namespaces", json!({"metadata": {"name": "e", "labels": {"team": "a"}}}));
    cluster.put("", "configmaps", json!({"metadata": {"name": "limits", "namespace": "e"}, "data": {"max": "2"}}));
    ValidatingPolicies::new(cluster.means())
}

async fn create(spec: Value, binding: Value) -> Result<(), (u16, String)> {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1", "b": "2", "c": "3"}});
    let write = Write::create("", "configmaps", "e", object);
    write.validate(&cluster(&spec, &binding)).await.map(drop).map_err(|s| (s.code, s.message))
}

#[tokio::test]
async fn refusals() {
    let table = [
        (
            json!({"validations": [{"expression": "size(object.data) <= 2"}]}),
            422,
            "failed expression: size(object.data) <= 2",
        ),
        (
            json!({"validations": [{"expression": "size(object.data) <= 2", "message": "too much", "reason": "Forbidden"}]}),
            403,
            "too much",
        ),
        (
            json!({"variables": [{"name": "n", "expression": "size(object.data)"}],
                "validations": [{"expression": "variables.n <= 2", "messageExpression": "'has ' + string(variables.n)"}]}),
            422,
            "has 3",
        ),
    ];
    for (spec, code, text) in table {
        let text = format!(
            "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {text}"
        );
        assert_eq!(create(spec, json!({})).await, Err((code, text)));
    }
}

#[tokio::test]
async fn requests_pass_matching_validations() {
    let strict = json!([{"expression": "false"}]);
    for (spec, binding) in [
        (json!({"validations": [{"expression": "size(object.data) == 3"}]}), json!({})),
        (json!({"validations": strict}), json!({"validationActions": ["Warn", "Audit"]})),
        (
            json!({"validations": strict}),
            json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "b"}}}}),
        ),
        (
            json!({"validations": strict, "matchConditions": [{"name": "c", "expression": "request.userInfo.username != 'alice'"}]}),
            json!({}),
        ),
        (json!({"validations": [{"expression": "object.nope.nope"}], "failurePolicy": "Ignore"}), json!({})),
        (json!({"validations": strict}), json!({"policyName": "other"})),
    ] {
        assert_eq!(create(spec.clone(), binding.clone()).await, Ok(()), "{spec} {binding}");
    }
}

#[tokio::test]
async fn parameters() {
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": "size(object.data) <= int(params.data.max)", "messageExpression": "'more than ' + params.data.max"}]});
    let refused = create(spec.clone(), json!({"paramRef": {"name": "limits"}})).await.expect_err("refused");
    assert!(refused.1.ends_with("denied request: more than 2"), "{}", refused.1);
    let missing = create(spec.clone(), json!({"paramRef": {"name": "nope"}})).await.expect_err("refused");
    assert!(
        missing.1.contains("no params found for policy binding with `Deny` parameterNotFoundAction"),
        "{}",
        missing.1
    );
    let allowed = json!({"paramRef": {"name": "nope", "parameterNotFoundAction": "Allow"}});
    assert_eq!(create(spec, allowed).await, Ok(()));
}

#[tokio::test]
async fn failing_expression_follows_the_failure_policy() {
    let refused = create(json!({"validations": [{"expression": "object.nope.nope == 1"}]}), json!({}))
        .await
        .expect_err("refused");
    assert!(refused.1.contains("expression 'object.nope.nope == 1' resulted in error: "), "{}", refused.1);
}

#[tokio::test]
async fn warnings_and_notes() {
    let spec = json!({"validations": [{"expression": "true"}, {"expression": "false", "message": "no"}, {"expression": "1 > 2"}],
        "auditAnnotations": [{"key": "size", "valueExpression": "string(size(object.data))"}, {"key": "none", "valueExpression": "null"}]});
    let plugin = cluster(&spec, &json!({"validationActions": ["Warn", "Audit"]}));
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}});
    let (warnings, notes) = Write::create("", "configmaps", "e", object).judged(&plugin).await.expect("let through");
    let warned = ["no", "failed expression: 1 > 2"]
        .map(|why| format!("Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': {why}"));
    assert_eq!(warnings, warned);
    let failure: Value =
        serde_json::from_str(&notes["validation.policy.admission.k8s.io/validation_failure"]).expect("JSON");
    assert_eq!(
        failure,
        json!([{"message": "no", "policy": "p", "binding": "b", "expressionIndex": 1, "validationActions": ["Warn", "Audit"]}])
    );
    assert_eq!(notes.get("p/size").map(String::as_str), Some("1"));
    assert!(!notes.contains_key("p/none"));
}

#[tokio::test]
async fn expressions_can_use_the_authorizer() {
    for (expression, allowed) in [
        ("authorizer.group('apps').resource('deployments').namespace('e').check('create').allowed()", true),
        ("authorizer.requestResource.check('delete').allowed()", true),
        ("authorizer.serviceAccount('e', 'x').path('/healthz').check('get').allowed()", true),
        ("authorizer.path('/healthz').check('get').errored()", false),
        ("authorizer.path('/healthz').check('get').reason() == 'x'", false),
    ] {
        let outcome = create(json!({"validations": [{"expression": expression}]}), json!({})).await;
        assert_eq!(outcome.is_ok(), allowed, "{expression} {outcome:?}");
    }
}

mod upstream;
