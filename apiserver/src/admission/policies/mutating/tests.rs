//! Mutating policies over a cluster in memory.

use super::*;
use crate::admission::testing::{Fixed, Write};
use serde_json::json;

const GROUP: &str = "admissionregistration.k8s.io";

/// A plugin over policies by name, each bound once; what a policy or binding says beside the usual is merged in.
fn cluster(policies: &[(&str, Value, Value)]) -> MutatingPolicies {
    let cluster = Arc::new(Fixed::default());
    for (name, spec, binding) in policies {
        let rule =
            json!({"operations": ["CREATE"], "apiGroups": ["", "apps"], "apiVersions": ["v1"], "resources": ["*"]});
        let mut policy = json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never"}});
        let mut bound = json!({"metadata": {"name": format!("{name}-b")}, "spec": {"policyName": name}});
        for (target, more) in [(&mut policy, spec), (&mut bound, binding)] {
            for (key, value) in more.as_object().into_iter().flatten() {
                target["spec"][key] = value.clone();
            }
        }
        cluster.put(GROUP, "mutatingadmissionpolicies", policy);
        cluster.put(GROUP, "mutatingadmissionpolicybindings", bound);
    }
    cluster.put("", "namespaces", json!({"metadata": {"name": "e", "labels": {"team": "a"}}}));
    for (name, tier, value) in [("one", "x", "1"), ("two", "x", "2")] {
        let map = json!({"metadata": {"name": name, "namespace": "e", "labels": {"tier": tier}}, "data": {"v": value}});
        cluster.put("", "configmaps", map);
    }
    MutatingPolicies::new(cluster.means())
}

fn merge(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn map() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "e"}, "data": {"a": "1"}})
}

async fn create(spec: Value, binding: Value) -> Result<Value, Status> {
    let plugin = cluster(&[("p", spec, binding)]);
    Write::create("", "configmaps", "e", map()).admit(&plugin).await
}

#[tokio::test]
async fn mutations_are_applied() {
    for (mutations, want) in [
        (json!([merge("Object{data: {'b': object.data.a + '2'}}")]), json!({"a": "1", "b": "12"})),
        (json!([merge("Object{}")]), json!({"a": "1"})),
        (json!([merge("Object{data: {?'b': optional.none()}}")]), json!({"a": "1"})),
        (
            json!([merge("Object{data: {'b': '2'}}"), merge("Object{data: {'c': object.data.b + '!'}}")]),
            json!({"a": "1", "b": "2", "c": "2!"}),
        ),
        (json!([patch("[JSONPatch{op: 'add', path: '/data/b', value: '2'}]")]), json!({"a": "1", "b": "2"})),
        (
            json!([patch("[JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('x/y'), value: '2'}]")]),
            json!({"a": "1", "x/y": "2"}),
        ),
        (
            json!([patch(
                "[JSONPatch{op: 'test', path: '/data/a', value: 'other'}, JSONPatch{op: 'remove', path: '/data/a'}]"
            )]),
            json!({"a": "1"}),
        ),
        (
            json!([patch(
                "[JSONPatch{op: 'copy', from: '/data/a', path: '/data/b'}, JSONPatch{op: 'remove', path: '/data/a'}]"
            )]),
            json!({"b": "1"}),
        ),
    ] {
        let made = create(json!({"mutations": mutations}), json!({})).await.expect("let through");
        assert_eq!(made["data"], want, "{mutations}");
    }
}

#[tokio::test]
async fn apply_configuration_is_defaulted_and_merges_lists_by_key() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "e"},
        "spec": {"containers": [{"name": "main", "image": "a"}]}});
    for mutation in [
        merge(
            "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'side', image: 'b', ports: [Object.spec.containers.ports{containerPort: 80}]}]}}",
        ),
        patch(
            "[JSONPatch{op: 'add', path: '/spec/containers/-', value: Object.spec.containers{name: 'side', image: 'b', ports: [Object.spec.containers.ports{containerPort: 80}]}}]",
        ),
    ] {
        let plugin = cluster(&[("p", json!({"mutations": [mutation]}), json!({}))]);
        let made = Write::create("", "pods", "e", pod.clone()).admit(&plugin).await.expect("let through");
        let containers = made["spec"]["containers"].as_array().expect("containers");
        assert_eq!(containers.len(), 2, "{made}");
        assert_eq!((&containers[0]["name"], &containers[1]["name"]), (&json!("main"), &json!("side")));
        assert_eq!(
            containers[1]["ports"][0],
            json!({"containerPort": 80, "protocol": "TCP"}),
            "defaults are filled in"
        );
    }
}

#[tokio::test]
async fn refusals_name_the_policy() {
    for (mutation, why) in [
        (
            merge("Object{nope: '1'}"),
            "error applying patch: failed to convert patch object to typed object: .nope: field not declared in schema",
        ),
        (
            merge("Object{data: Object.other{a: '1'}}"),
            "type mismatch: unexpected type name \"Object.other\", expected \"Object.data\", which matches field name path from root Object type",
        ),
        (
            merge("Object{metadata: Object.metadata{name: object.data.nope}}"),
            "expression 'Object{metadata: Object.metadata{name: object.data.nope}}' resulted in error: no such key: nope",
        ),
        (patch("[JSONPatch{op: 'remove', path: '/data/nope'}]"), "JSON Patch: "),
    ] {
        let refused = create(json!({"mutations": [mutation]}), json!({})).await.expect_err("refused");
        let text = format!("policy 'p' with binding 'p-b' denied request: {why}");
        assert_eq!((refused.code, refused.reason.as_str()), (403, "Invalid"));
        assert!(refused.message.starts_with(&text), "{} is not {text}", refused.message);
        let ignored = json!({"mutations": [mutation, merge("Object{data: {'b': '2'}}")], "failurePolicy": "Ignore"});
        let made = create(ignored, json!({})).await.expect("let through");
        assert_eq!(made["data"], json!({"a": "1", "b": "2"}), "only what fails is left out");
    }
}

#[tokio::test]
async fn atomic_parts_cannot_be_set_by_configurations() {
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "e"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {"containers": []}}}});
    let expression = "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'c'}}, template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'c', args: ['x']}]}}}}";
    let plugin = cluster(&[("p", json!({"mutations": [merge(expression)]}), json!({}))]);
    let refused = Write::create("apps", "deployments", "e", deployment).admit(&plugin).await.expect_err("refused");
    assert_eq!(
        refused.message,
        "policy 'p' with binding 'p-b' denied request: error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector, .spec.template.spec.containers[0].args"
    );
}

#[tokio::test]
async fn atomic_lists_cannot_be_merged() {
    let twice = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "e"},
        "spec": {"containers": [{"name": "main", "image": "a", "env": twice}]}});
    let mutation = merge("Object{spec: Object.spec{hostname: 'h'}}");
    let plugin = cluster(&[("p", json!({"mutations": [mutation]}), json!({}))]);
    let refused = Write::create("", "pods", "e", pod).admit(&plugin).await.expect_err("refused");
    let why = "error applying patch: failed to convert original object to typed object: .spec.containers";
    assert!(refused.message.contains(why) && refused.message.contains("duplicate entries"), "{}", refused.message);
}

#[tokio::test]
async fn invalid_patched_object_fails_whatever_the_failure_policy() {
    let spec =
        json!({"mutations": [patch("[JSONPatch{op: 'add', path: '/nope', value: 1}]")], "failurePolicy": "Ignore"});
    let refused = create(spec, json!({})).await.expect_err("refused");
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (500, "Internal error occurred: strict decoding error: unknown field \"nope\"")
    );
}

#[tokio::test]
async fn parameters_conditions_and_variables() {
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "c", "expression": "params == null || params.data.v != '3'"}],
        "variables": [{"name": "v", "expression": "params.data.v"}, {"name": "twice", "expression": "variables.v + variables.v"}],
        "mutations": [merge("Object{data: {'b': variables.twice + (has(object.data.b) ? object.data.b : '')}}")]});
    let one = json!({"paramRef": {"name": "one", "parameterNotFoundAction": "Deny"}});
    assert_eq!(create(spec.clone(), one).await.expect("let through")["data"]["b"], "11");
    let both = json!({"paramRef": {"selector": {"matchLabels": {"tier": "x"}}, "parameterNotFoundAction": "Deny"}});
    assert_eq!(create(spec.clone(), both).await.expect("let through")["data"]["b"], "2211", "one after the other");
    let missing = |action: &str| json!({"paramRef": {"name": "nope", "parameterNotFoundAction": action}});
    assert_eq!(create(spec.clone(), missing("Allow")).await.expect("let through"), map());
    let refused = create(spec.clone(), missing("Deny")).await.expect_err("refused");
    assert_eq!(
        (refused.reason.as_str(), refused.message.as_str()),
        (
            "Forbidden",
            "policy 'p' with binding 'p-b' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
        )
    );
    let mut unknown = spec;
    unknown["paramKind"]["kind"] = json!("Nope");
    let refused = create(unknown, missing("Deny")).await.expect_err("refused");
    assert_eq!(
        refused.message,
        "policy \"p\" denied request: failed to configure policy: failed to find resource referenced by paramKind: '/v1, Kind=Nope'"
    );
    let unasked = json!({"matchConditions": [{"name": "c", "expression": "request.userInfo.username != 'alice'"}],
        "mutations": [merge("Object{data: {'b': '2'}}")]});
    assert_eq!(create(unasked, json!({})).await.expect("let through"), map());
    let elsewhere = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "b"}}}});
    assert_eq!(create(json!({"mutations": [merge("Object{nope: 1}")]}), elsewhere).await.expect("let through"), map());
}

#[tokio::test]
async fn policies_run_in_name_order_and_are_reinvoked() {
    let copy = |to: &str, from: &str| {
        patch(&format!(
            "has(object.data.{from}) ? [JSONPatch{{op: 'add', path: '/data/{to}', value: object.data.{from}}}] : []"
        ))
    };
    for (again, want) in [("Never", json!({"a": "1", "b": "1"})), ("IfNeeded", json!({"a": "1", "b": "1", "c": "1"}))] {
        let plugin = cluster(&[
            ("z", json!({"mutations": [copy("b", "a")]}), json!({})),
            ("m", json!({"mutations": [copy("c", "b")], "reinvocationPolicy": again}), json!({})),
        ]);
        let made = Write::create("", "configmaps", "e", map()).admit_twice(&plugin).await.expect("let through");
        assert_eq!(made["data"], want, "{again}");
    }
}

#[tokio::test]
async fn a_single_policy_is_reinvoked_if_needed() {
    for (again, want) in [("Never", "1!"), ("IfNeeded", "1!!")] {
        let spec =
            json!({"mutations": [merge("Object{data: {'a': object.data.a + '!'}}")], "reinvocationPolicy": again});
        let plugin = cluster(&[("p", spec, json!({}))]);
        let made = Write::create("", "configmaps", "e", map()).admit_twice(&plugin).await.expect("let through");
        assert_eq!(made["data"]["a"], want, "{again}");
    }
}

#[tokio::test]
async fn every_mutation_is_bounded() {
    let long: Vec<u32> = (0..1500).collect();
    let expression = format!("{long:?}.all(a, {long:?}.all(b, a + b >= 0)) ? Object{{}} : Object{{}}");
    let refused = create(json!({"mutations": [merge(&expression)]}), json!({})).await.expect_err("refused");
    assert!(refused.message.ends_with("operation cancelled: actual cost limit exceeded"), "{}", refused.message);
}

#[tokio::test]
async fn dry_runs_are_changed_too() {
    let plugin =
        cluster(&[("p", json!({"mutations": [merge("Object{data: {'dry': string(request.dryRun)}}")]}), json!({}))]);
    let made = Write::create("", "configmaps", "e", map()).dry().admit(&plugin).await.expect("let through");
    assert_eq!(made["data"]["dry"], "true");
}
