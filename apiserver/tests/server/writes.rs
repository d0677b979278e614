//! Tests of writes that store nothing or race: refusals, and writes of objects created a moment ago.

use bytes::Bytes;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, eventually};
use crate::workspace;

const JSON: &str = "application/json";

/// A request in the name of `user`.
async fn by(c: &Client, user: &str, method: &str, path: &str, kind: &str, body: &Value) -> Answer {
    let headers = [("Impersonate-User", user), ("Content-Type", kind)];
    c.call(method, path, &headers, Some(Bytes::from(body.to_string()))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unacceptable_requests_write_nothing() {
    let Some((c, ns)) = workspace("unanswerable").await else { return };
    let maps = format!("{ns}/configmaps");
    let html = async |method: &str, path: &str, kind: &str, body: &str| {
        let headers = [("Accept", "text/html"), ("Content-Type", kind)];
        c.call(method, path, &headers, Some(Bytes::from(body.to_owned()))).await
    };
    let offered = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    html("POST", &maps, JSON, r#"{"metadata": {"name": "a"}}"#).await.fails(406, "NotAcceptable", offered);
    assert_eq!(c.get(&format!("{maps}/a")).await.code, 404);
    c.post(&maps, json!({"metadata": {"name": "b"}})).await.ok();
    let b = format!("{maps}/b");
    for (method, kind, body) in [
        ("PUT", JSON, r#"{"metadata": {"name": "b"}, "data": {"k": "v"}}"#),
        ("PATCH", "application/merge-patch+json", r#"{"data": {"k": "v"}}"#),
        ("DELETE", JSON, ""),
    ] {
        html(method, &b, kind, body).await.fails(406, "NotAcceptable", offered);
    }
    html("DELETE", &maps, JSON, "").await.fails(406, "NotAcceptable", offered);
    assert!(c.get(&b).await.ok()["data"].is_null());
    // The type of a patch is looked at before.
    html("PATCH", &b, JSON, "{}").await.fails(415, "UnsupportedMediaType", "415: Unsupported Media Type");
}

#[tokio::test(flavor = "multi_thread")]
async fn changing_is_not_creating() {
    let Some((c, ns)) = workspace("changing").await else { return };
    let rbac = ns.replace("/api/v1", "/apis/rbac.authorization.k8s.io/v1");
    let rule = json!({"apiGroups": ["", "coordination.k8s.io"], "resources": ["configmaps", "leases"], "verbs": ["update", "patch"]});
    c.post(&format!("{rbac}/roles"), json!({"metadata": {"name": "r"}, "rules": [rule]})).await.ok();
    let group = "rbac.authorization.k8s.io";
    let bound = json!({"metadata": {"name": "r"}, "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "bob"}]});
    c.post(&format!("{rbac}/rolebindings"), bound).await.ok();
    let maps = format!("{ns}/configmaps");
    c.post(&maps, json!({"metadata": {"name": "there"}})).await.ok();
    let (merge, apply) = ("application/merge-patch+json", "application/apply-patch+yaml");
    let change = json!({"data": {"k": "v"}});
    eventually("the role counts", async || {
        (by(&c, "bob", "PATCH", &format!("{maps}/there"), merge, &change).await.code == 200).then_some(())
    })
    .await;
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let applied =
        async |name: &str| by(&c, "bob", "PATCH", &format!("{maps}/{name}?fieldManager=bob"), apply, &map(name)).await;
    applied("there").await.ok();
    applied("new").await.fails(403, "Forbidden", r#"configmaps "new" is forbidden: "#);
    by(&c, "bob", "PATCH", &format!("{maps}/new"), merge, &change).await.fails(
        404,
        "NotFound",
        r#"configmaps "new" not found"#,
    );
    let leases = ns.replace("/api/v1", "/apis/coordination.k8s.io/v1") + "/leases";
    let lease = json!({"metadata": {"name": "new"}});
    by(&c, "bob", "PUT", &format!("{leases}/new"), JSON, &lease).await.fails(
        403,
        "Forbidden",
        r#"leases.coordination.k8s.io "new" is forbidden: "#,
    );
    // What is wrong with the object is said first.
    let wrong = json!({"metadata": {"name": "new"}, "spec": {"leaseDurationSeconds": -1}});
    let said = by(&c, "bob", "PUT", &format!("{leases}/new"), JSON, &wrong).await.failure();
    assert_eq!((said.0, said.1.as_str()), (422, "Invalid"));
    assert_eq!(c.get(&format!("{leases}/new")).await.code, 404);
}

/// All who apply an object that is not there yet have their way, whoever is first.
#[tokio::test(flavor = "multi_thread")]
async fn apply_retries_conflicts() {
    let Some((c, ns)) = workspace("applied-at-once").await else { return };
    let maps = format!("{ns}/configmaps");
    for name in ["a", "b", "c", "d", "e", "f"] {
        let part = |n: usize| {
            let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {format!("k{n}"): "v"}});
            let path = format!("{maps}/{name}?fieldManager=m{n}");
            let c = &c;
            async move { c.patch(&path, "apply-patch+yaml", applied).await }
        };
        let codes: Vec<u16> = join_all((0..6).map(part)).await.iter().map(|answer| answer.code).collect();
        assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "{codes:?}");
        assert!(codes.iter().all(|code| matches!(code, 200 | 201)), "{codes:?}");
        assert_eq!(c.get(&format!("{maps}/{name}")).await.ok()["data"].as_object().map(serde_json::Map::len), Some(6));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_is_parsed_after_the_object_is_found() {
    let Some((c, ns)) = workspace("unreadable").await else { return };
    let maps = format!("{ns}/configmaps");
    c.post(&maps, json!({"metadata": {"name": "there"}})).await.ok();
    for (kind, missing) in [
        ("json-patch+json", 404),
        ("merge-patch+json", 404),
        ("strategic-merge-patch+json", 404),
        ("apply-patch+yaml", 400),
    ] {
        for (name, code) in [("there", 400), ("missing", missing)] {
            let path = format!("{maps}/{name}?fieldManager=m");
            let answer = c.send("PATCH", &path, &format!("application/{kind}"), Some(Bytes::from_static(b"{"))).await;
            assert_eq!(answer.code, code, "{kind} {name}: {}", answer.text());
        }
    }
}

/// An object that is too large only for the record of who owns its fields goes without.
#[tokio::test(flavor = "multi_thread")]
async fn owners_make_room() {
    let Some((c, ns)) = workspace("owners-room").await else { return };
    let maps = format!("{ns}/configmaps");
    let data = |value: &str| Value::Object((0..3500).map(|n| (format!("{n:0>250}"), Value::from(value))).collect());
    let mut large = json!({"metadata": {"name": "large"}, "data": data("")});
    let made = c.post(&maps, large.clone()).await.ok();
    assert!(made["metadata"]["managedFields"].is_null() && made["metadata"]["uid"].is_string());
    large["data"] = data("x");
    let path = format!("{maps}/large");
    let changed = c.put(&path, &large).await.ok();
    assert!(changed["metadata"]["managedFields"].is_null());
    let patched = c.patch(&path, "merge-patch+json", json!({"data": data("y")})).await.ok();
    assert!(patched["metadata"]["managedFields"].is_null());
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": data("")});
    c.patch(&format!("{maps}/other?fieldManager=m"), "apply-patch+yaml", applied).await.fails(
        500,
        "",
        "etcdserver: request is too large",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_of_a_missing_object_is_not_found() {
    let Some((c, ns)) = workspace("preconditions").await else { return };
    let made = c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "a"}})).await.ok();
    let space = c.get(&ns).await.ok();
    let text = |object: &Value, key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    let (uid, revision) = (text(&space, "uid"), text(&space, "resourceVersion"));
    let refused = async |path: &str, preconditions: Value, message: &str| {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
        c.delete_with(path, options).await.fails(409, "Conflict", message);
    };
    let object = format!("{ns}/configmaps/a");
    let why = format!(
        "the UID in the precondition (1) does not match the UID in record ({}). The object might have been deleted and then recreated",
        text(&made, "uid")
    );
    let cannot = r#"Operation cannot be fulfilled on ConfigMap "a""#;
    refused(&object, json!({"uid": "1"}), &format!("{cannot}: {why}")).await;
    let why = format!(
        "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ({}). The object might have been modified",
        text(&made, "resourceVersion")
    );
    refused(&object, json!({"resourceVersion": "1"}), &format!("{cannot}: {why}")).await;
    let cannot = r#"Operation cannot be fulfilled on namespaces "preconditions": Precondition failed"#;
    let why = format!("{cannot}: UID in precondition: 1, UID in object meta: {uid}");
    refused(&ns, json!({"uid": "1"}), &why).await;
    let why = format!("{cannot}: ResourceVersion in precondition: 1, ResourceVersion in object meta: {revision}");
    refused(&ns, json!({"uid": uid, "resourceVersion": "1"}), &why).await;
}
