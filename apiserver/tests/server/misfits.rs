//! Patches, applied objects and queries that do not fit, in the words of upstream: each was asked of upstream's own
//! server.

use serde_json::{Value, json};

use crate::custom::{define, definition};
use crate::harness::Client;
use crate::workspace;

const MERGE: &str = "merge-patch+json";
const OPERATIONS: &str = "json-patch+json";
const APPLY: &str = "apply-patch+yaml";

/// A definition with scale and a few types, and one object of it.
async fn foos(c: &Client, ns: &str, group: &str) -> String {
    let spec = json!({"type": "object", "properties": {
        "replicas": {"type": "integer"}, "color": {"type": "string"}, "on": {"type": "boolean"},
        "size": {"type": "number"}, "names": {"type": "array", "items": {"type": "string"}},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}});
    let schema = json!({"type": "object", "properties": {"spec": spec,
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": scale}}]);
    define(c, definition(group, "foos", "Foo", versions)).await;
    let path = ns.replace("/api/v1", &format!("/apis/{group}/v1")) + "/foos";
    c.post(&path, foo(group, json!({}), json!({"replicas": 1, "color": "red"}))).await.ok();
    path
}

fn foo(group: &str, metadata: Value, spec: Value) -> Value {
    let mut object =
        json!({"apiVersion": format!("{group}/v1"), "kind": "Foo", "metadata": {"name": "a"}, "spec": spec});
    if let (Some(to), Some(more)) = (object["metadata"].as_object_mut(), metadata.as_object()) {
        to.extend(more.clone());
    }
    object
}

/// Patches that change the kind of a custom object are refused.
#[tokio::test(flavor = "multi_thread")]
async fn custom_objects_keep_their_kind() {
    let Some((c, ns)) = workspace("misfit-kinds").await else { return };
    let group = "misfits.example.com";
    let path = foos(&c, &ns, group).await + "/a";
    for (kind, patch, message) in [
        (
            MERGE,
            json!({"kind": "Bar"}),
            r#"Bar.misfits.example.com "a" is invalid: kind: Invalid value: "Bar": must be Foo"#,
        ),
        (
            OPERATIONS,
            json!([{"op": "replace", "path": "/apiVersion", "value": "v9"}]),
            r#"Foo "a" is invalid: apiVersion: Invalid value: "v9": must be misfits.example.com/v1"#,
        ),
        (
            MERGE,
            json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}),
            r#"Foo.misfits.example.com "a" is invalid: metadata.deletionTimestamp: Invalid value: "2020-01-01T00:00:00Z": field is immutable"#,
        ),
        (
            OPERATIONS,
            json!([{"op": "replace", "path": "", "value": {}}]),
            r#" "" is invalid: patch: Invalid value: "{}": Object 'Kind' is missing in '{}'"#,
        ),
        (
            MERGE,
            json!({"spec": {"replicas": "v9"}}),
            r#"Foo.misfits.example.com "a" is invalid: [spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string", .spec.replicas: Invalid value: 0: .spec.replicas accessor error: v9 is of the type string, expected int64]"#,
        ),
        (
            MERGE,
            json!({"spec": 5}),
            r#"Foo.misfits.example.com "a" is invalid: [spec: Invalid value: "integer": spec in body must be of type object: "integer", .spec.replicas: Invalid value: 0: .spec.replicas accessor error: 5 is of the type int64, expected map[string]interface{}]"#,
        ),
    ] {
        c.patch(&path, kind, patch).await.fails(422, "Invalid", message);
    }
    let nameless = c.patch(&path, MERGE, json!({"kind": null})).await;
    assert_eq!(nameless.code, 422);
    assert!(nameless.failure().2.contains(
        r#"Object 'Kind' is missing in '{"apiVersion":"misfits.example.com/v1","metadata":{"creationTimestamp":"#
    ));
    // Upstream judges metadata twice.
    let uid = c.patch(&path, MERGE, json!({"metadata": {"uid": "1"}})).await.json();
    assert_eq!(uid["details"]["causes"].as_array().map(Vec::len), Some(2), "{uid}");
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": -1}});
    c.put(&format!("{path}/scale"), &scale).await.fails(
        422,
        "Invalid",
        r#"Foo.misfits.example.com "a" is invalid: .spec.replicas: Invalid value: -1: should be a non-negative integer"#,
    );
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 2}});
    assert_eq!(c.put(&format!("{path}/scale"), &scale).await.ok()["spec"]["replicas"], 2);
    // What is null in the objects of a list goes, as it goes everywhere else.
    let merged = c.patch(&path, MERGE, json!({"spec": {"any": [{"x": null, "y": 1}, null]}})).await.ok();
    assert_eq!(merged["spec"]["any"], json!([{"y": 1}, null]));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_custom_objects() {
    let Some((c, ns)) = workspace("misfit-bodies").await else { return };
    let group = "misfitbodies.example.com";
    let path = foos(&c, &ns, group).await;
    let refused =
        |why: &str| format!(r#"Foo in version "v1" cannot be handled as a Foo: json: cannot unmarshal {why}"#);
    for (metadata, why) in [
        (json!(5), "number into Go value of type v1.ObjectMeta"),
        (json!({"name": 5}), "number into Go struct field ObjectMeta.name of type string"),
        (json!({"labels": {"a": 5}}), "number into Go struct field ObjectMeta.labels of type string"),
        (
            json!({"ownerReferences": {}}),
            "object into Go struct field ObjectMeta.ownerReferences of type []v1.OwnerReference",
        ),
    ] {
        let mut object = foo(group, json!({}), json!({}));
        object["metadata"] = metadata;
        c.post(&path, object).await.fails(400, "BadRequest", &refused(why));
    }
    let owner = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true});
    let owned = foo(group, json!({"name": "b", "ownerReferences": [owner("x", "1"), owner("y", "2")]}), json!({}));
    c.post(&path, owned).await.fails(
        422,
        "Invalid",
        r#"Foo.misfitbodies.example.com "b" is invalid: metadata.ownerReferences: Invalid value: [{"apiVersion":"v1","kind":"Pod","name":"x","uid":"1","controller":true},{"apiVersion":"v1","kind":"Pod","name":"y","uid":"2","controller":true}]: Only one reference can have Controller set to true. Found "true" in references for Pod/x and Pod/y"#,
    );
    let kindless = c.post(&path, json!({"apiVersion": "misfitbodies.example.com/v1", "kind": 5})).await;
    assert!(kindless.failure().2.ends_with(r#"({"apiVersion":"misfitbodies.ex ...)"#), "{}", kindless.text());

    let failed = |what: &str| format!("failed to create typed patch object (/a; {group}/v1, Kind=Foo): {what}");
    for (spec, why) in [
        (json!({"color": 5}), ".spec.color: expected string, got &value.valueUnstructured{Value:5}"),
        (
            json!({"color": {"a": ["b"]}}),
            r#".spec.color: expected string, got &value.valueUnstructured{Value:map[string]interface {}{"a":[]interface {}{"b"}}}"#,
        ),
        (json!({"on": "x"}), ".spec.on: expected boolean, got &{x}"),
        (json!({"names": {"a": 1}}), ".spec.names: expected list, got &{map[a:1]}"),
        (json!({"size": "x"}), ".spec.size: expected numeric (int or float), got string"),
        (
            json!({"parts": [{"v": 1}]}),
            r#".spec.parts: element 0: associative list with keys has an element that omits all key fields ["k"] (and doesn't have default values for any key fields)"#,
        ),
        (json!({"parts": [null]}), ".spec.parts: element 0: associative list with keys may not have a null element"),
    ] {
        let answer = c.patch(&format!("{path}/a?fieldManager=m"), APPLY, foo(group, json!({}), spec)).await;
        let (code, _, message) = answer.failure();
        assert_eq!((code, message), (500, failed(why)));
    }
}

/// A list of custom objects is written with its keys sorted, and says that it does not go on.
#[tokio::test(flavor = "multi_thread")]
async fn lists_of_custom_objects() {
    let Some((c, ns)) = workspace("misfit-lists").await else { return };
    let path = foos(&c, &ns, "misfitlists.example.com").await;
    let text = c.get(&path).await.text();
    assert!(text.starts_with(r#"{"apiVersion":"misfitlists.example.com/v1","items":[{"apiVersion""#), "{text}");
    assert!(text.contains(r#"}],"kind":"FooList","metadata":{"continue":"","resourceVersion":""#), "{text}");
    let none = c.get(&format!("{path}?pretty=true&labelSelector=no")).await.text();
    assert!(none.starts_with("{\n  \"apiVersion\": \"misfitlists.example.com/v1\",\n  \"items\": [],\n"), "{none}");
    let gone = c.delete(&format!("{path}?labelSelector=no&pretty=true")).await.json();
    assert_eq!((&gone["items"], &gone["metadata"]["continue"]), (&json!([]), &json!("")));
    let streams = r"only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    let yaml = c.send("GET", &format!("{path}?watch=true"), "application/yaml,application/json;q=0.1", None).await;
    assert_eq!(yaml.code, 406);
    assert!(yaml.text().replace("\n ", "").contains(streams), "{}", yaml.text());
}

/// Objects of a kind that is built in.
#[tokio::test(flavor = "multi_thread")]
async fn patches_that_are_none() {
    let Some((c, ns)) = workspace("misfit-patches").await else { return };
    let path = format!("{ns}/configmaps/a");
    c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "a"}})).await.ok();
    let no_map = |what: &str| format!("json: cannot unmarshal {what} into Go value of type map[string]interface {{}}");
    let lenient = format!("{path}?fieldValidation=Ignore");
    for (path, kind, body, message) in [
        (&path, MERGE, json!([]), format!("error decoding patch: {}", no_map("array"))),
        (&path, MERGE, json!("x"), format!("error decoding patch: {}", no_map("string"))),
        (&path, MERGE, json!(null), "Invalid JSON Patch".to_owned()),
        (&lenient, MERGE, json!(5), "Invalid JSON Patch".to_owned()),
        (
            &format!("{path}?fieldManager=m"),
            APPLY,
            json!(5),
            format!("error decoding YAML: error unmarshaling JSON: while decoding JSON: {}", no_map("number")),
        ),
    ] {
        c.patch(path, kind, body).await.fails(400, "BadRequest", &message);
    }
    let hidden = "the server rejected our request due to an error in our request";
    for operations in [json!([null]), json!([{"op": "add", "path": "", "value": {}}])] {
        c.patch(&path, OPERATIONS, operations).await.fails(422, "Invalid", hidden);
    }
    for (key, value) in [("deletionTimestamp", json!("2020-01-01T00:00:00Z")), ("deletionGracePeriodSeconds", json!(5))]
    {
        let message =
            format!(r#"ConfigMap "a" is invalid: metadata.{key}: Invalid value: {value}: field is immutable"#);
        c.patch(&path, MERGE, json!({"metadata": {key: value}})).await.fails(422, "Invalid", &message);
    }
}

/// Rules show the value that does not fit, unless it is an object or a list; one that is there twice is not explained.
#[tokio::test(flavor = "multi_thread")]
async fn rule_errors_show_the_value() {
    let Some((c, ns)) = workspace("misfit-rules").await else { return };
    let ruled = |kind: &str, rule: &str| json!({"type": kind, "x-kubernetes-validations": [{"rule": rule}]});
    let list =
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self == ['a']"}]});
    let twice =
        json!({"type": "boolean", "x-kubernetes-validations": [{"rule": "self", "reason": "FieldValueDuplicate"}]});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "text": ruled("string", "self == 'z'"), "number": ruled("number", "self == 1.5"), "list": list, "twice": twice}}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    define(&c, definition("misfitrules.example.com", "rules", "Rule", versions)).await;
    let path = ns.replace("/api/v1", "/apis/misfitrules.example.com/v1") + "/rules";
    for (spec, why) in [
        (json!({"text": "q"}), r#"spec.text: Invalid value: "q": failed rule: self == 'z'"#),
        (json!({"number": 2.5}), "spec.number: Invalid value: 2.5: failed rule: self == 1.5"),
        (json!({"list": ["q"]}), "spec.list: Invalid value: failed rule: self == ['a']"),
        (json!({"twice": false}), "spec.twice: Duplicate value: false"),
    ] {
        let mut object = foo("misfitrules.example.com", json!({}), spec);
        object["kind"] = json!("Rule");
        let message = format!(r#"Rule.misfitrules.example.com "a" is invalid: {why}"#);
        c.post(&path, object).await.fails(422, "Invalid", &message);
    }
}

/// Versions that are stored, of definitions that do not say which.
#[tokio::test(flavor = "multi_thread")]
async fn definitions_with_odd_versions() {
    let Some((c, _)) = workspace("misfit-versions").await else { return };
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let one = "must have exactly one version marked as storage version";
    for (versions, ends) in [
        (
            json!(null),
            format!(
                "spec.versions: Invalid value: null: {one}, status.storedVersions: Invalid value: null: must have at least one stored version]"
            ),
        ),
        (
            json!([version("v1", false)]),
            format!("{one}, status.storedVersions: Invalid value: null: must have at least one stored version]"),
        ),
        (
            json!([version("v1", true), version("v2", true)]),
            format!(r#"{one}, status.storedVersions: Invalid value: ["v1"]: must have the storage version v2]"#),
        ),
        (
            json!([version("v1", true), version("v1", true)]),
            format!(r#"{one}, status.storedVersions: Invalid value: ["v1"]: must have the storage version v1]"#),
        ),
    ] {
        let refused = c
            .post(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                definition("misfitversions.example.com", "odds", "Odd", versions),
            )
            .await;
        let (code, _, message) = refused.failure();
        assert_eq!(code, 422);
        assert!(message.ends_with(&ends), "{message}");
    }
}
