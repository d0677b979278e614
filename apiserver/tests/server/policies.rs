//! ValidatingAdmissionPolicies as clients meet them.

use serde_json::{Value, json};

use crate::workspace;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

fn policy(name: &str, spec: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]});
    let mut object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]}}});
    if let (Some(own), Value::Object(more)) = (object["spec"].as_object_mut(), spec) {
        own.extend(more);
    }
    object
}

fn binding(name: &str, namespace: &str, actions: &[&str], more: Value) -> Value {
    let selector = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
    let mut object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": actions, "matchResources": selector}});
    if let (Some(own), Value::Object(more)) = (object["spec"].as_object_mut(), more) {
        own.extend(more);
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_refuse_warn_and_take_parameters() {
    let Some((c, ns)) = workspace("ruled").await else { return };
    let (policies, bindings) =
        (format!("{GROUP}/validatingadmissionpolicies"), format!("{GROUP}/validatingadmissionpolicybindings"));
    let maps = format!("{ns}/configmaps");
    c.post(&maps, json!({"metadata": {"name": "limits"}, "data": {"most": "2"}})).await.ok();
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "not-free", "expression": "!object.metadata.name.startsWith('free')"}],
        "variables": [{"name": "size", "expression": "has(object.data) ? size(object.data) : 0"}],
        "validations": [
            {"expression": "variables.size <= int(params.data.most)", "reason": "Forbidden",
             "messageExpression": "'at most ' + params.data.most + ' entries, not ' + string(variables.size)"},
            {"expression": "namespaceObject.metadata.name == request.namespace && authorizer.requestResource.check('delete').allowed()"}]});
    c.post(&policies, policy("ruled", spec)).await.ok();
    let param = json!({"paramRef": {"name": "limits", "namespace": "ruled", "parameterNotFoundAction": "Deny"}});
    c.post(&bindings, binding("ruled", "ruled", &["Deny"], param)).await.ok();
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"a": "1", "b": "2", "c": "3"}});
    // What was written a moment ago counts once the cache has it.
    let refused = 'found: {
        for i in 0..200 {
            let answer = c.post(&maps, map(&format!("x{i}"))).await;
            if answer.code != 201 {
                break 'found answer;
            }
        }
        panic!("the policy never counts");
    };
    let (code, reason, message) = refused.failure();
    assert_eq!((code, reason.as_str()), (403, "Forbidden"));
    assert!(
        message.ends_with("is forbidden: ValidatingAdmissionPolicy 'ruled' with binding 'ruled' denied request: at most 2 entries, not 3"),
        "{message}"
    );
    c.post(&maps, map("free")).await.ok();
    c.post(&maps, json!({"metadata": {"name": "small"}, "data": {"a": "1"}})).await.ok();
    // A no is counted as upstream counts it, and a yes is not.
    let metrics = c.get("/metrics").await.text();
    let count = |action: &str, fault: &str| {
        let labels = format!("enforcement_action=\"{action}\",error_type=\"{fault}\",policy=\"ruled\"");
        metrics.contains(&format!("apiserver_validating_admission_policy_check_total{{{labels}"))
    };
    assert!(count("deny", "invalid_error") && !count("allow", "no_error"), "{metrics}");
    // Elsewhere it is not bound.
    c.post("/api/v1/namespaces/default/configmaps", map("ruled-elsewhere")).await.ok();
    c.delete("/api/v1/namespaces/default/configmaps/ruled-elsewhere").await.ok();

    let warn = json!({"spec": {"validationActions": ["Warn", "Audit"]}});
    c.patch(&format!("{bindings}/ruled"), "merge-patch+json", warn).await.ok();
    let warned = 'found: {
        for i in 0..200 {
            let answer = c.post(&maps, map(&format!("w{i}"))).await;
            if answer.code == 201 {
                break 'found answer;
            }
        }
        panic!("the binding never changes");
    };
    assert_eq!(
        warned.warnings(),
        [
            "299 - \"Validation failed for ValidatingAdmissionPolicy 'ruled' with binding 'ruled': at most 2 entries, not 3\""
        ]
    );
    c.delete(&format!("{bindings}/ruled")).await.ok();
    c.delete(&format!("{policies}/ruled")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_type_checked_on_write() {
    let Some((c, _)) = workspace("unruled").await else { return };
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    let invalid =
        |why: &str| format!("ValidatingAdmissionPolicy.admissionregistration.k8s.io \"bad\" is invalid: {why}");
    for (spec, why) in [
        (
            json!({"validations": [{"expression": "object."}]}),
            "spec.validations[0].expression: Invalid value: \"object.\": compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'\n | object.\n | .......^",
        ),
        (
            json!({"validations": [{"expression": "params.x == 1"}]}),
            "spec.validations[0].expression: Invalid value: \"params.x == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.x == 1\n | ^",
        ),
        (
            json!({"validations": [{"expression": "request.operation"}]}),
            "spec.validations[0].expression: Invalid value: \"request.operation\": must evaluate to bool but got string",
        ),
        (
            json!({"validations": [{"expression": "request.nope == ''"}]}),
            "spec.validations[0].expression: Invalid value: \"request.nope == ''\": compilation failed: ERROR: <input>:1:8: undefined field 'nope'\n | request.nope == ''\n | .......^",
        ),
        (
            json!({"validations": [{"expression": " "}]}),
            "spec.validations[0].expression: Required value: expression is not specified",
        ),
        (
            json!({"validations": [{"expression": "true", "reason": "Nope"}]}),
            "spec.validations[0].reason: Unsupported value: \"Nope\": supported values: \"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\"",
        ),
        (
            json!({"validations": [{"expression": "true"}], "variables": [{"name": "a-b", "expression": "1"}]}),
            "spec.variables[0].name: Invalid value: \"a-b\": name is not a valid CEL identifier",
        ),
    ] {
        c.post(&policies, policy("bad", spec)).await.fails(422, "Invalid", &invalid(why));
    }
    c.post(&format!("{GROUP}/validatingadmissionpolicybindings"), binding("bad", "unruled", &["Deny", "Warn"], json!({})))
        .await
        .fails(
            422,
            "Invalid",
            "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io \"bad\" is invalid: spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
        );
}
