//! Tests of field ownership through HTTP: between versions of a kind, and through subresources.

use serde_json::{Value, json};

use crate::custom::{define, definition};
use crate::harness::eventually;
use crate::workspace;

fn managers(object: &Value, path: &[&str]) -> Vec<String> {
    let owns = |entry: &&Value| path.iter().try_fold(&entry["fieldsV1"], |fields, name| fields.get(name)).is_some();
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .filter(owns)
        .map(|e| format!("{} {}", e["manager"].as_str().unwrap_or(""), e["apiVersion"].as_str().unwrap_or("")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_speak_in_their_version() {
    let Some((c, _)) = workspace("own-versions").await else { return };
    let path =
        |version: &str| format!("/apis/autoscaling/{version}/namespaces/own-versions/horizontalpodautoscalers/a");
    let scaler = |version: &str, extra: Value| {
        let mut o = json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
        o["spec"].as_object_mut().expect("a map").extend(extra.as_object().cloned().unwrap_or_default());
        o
    };
    let percent = |n: i64| json!({"targetCPUUtilizationPercentage": n});
    let old = format!("{}?fieldManager=old", path("v1"));
    assert_eq!(c.patch(&old, "apply-patch+yaml", scaler("v1", percent(50))).await.code, 201);

    // Another version's owner asks for the same field by another name.
    let metrics = json!({"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}]});
    let new = format!("{}?fieldManager=new", path("v2"));
    let refused = c.patch(&new, "apply-patch+yaml", scaler("v2", metrics.clone())).await;
    let message = "Apply failed with 1 conflict: conflict with \"old\": .spec.targetCPUUtilizationPercentage";
    refused.fails(409, "Conflict", message);
    let taken = c.patch(&format!("{new}&force=true"), "apply-patch+yaml", scaler("v2", metrics)).await.ok();
    assert_eq!(managers(&taken, &["f:spec", "f:metrics"]), ["new autoscaling/v2"]);
    assert!(managers(&taken, &["f:spec", "f:targetCPUUtilizationPercentage"]).is_empty());
    assert_eq!(c.get(&path("v1")).await.ok()["spec"]["targetCPUUtilizationPercentage"], 70);

    // What its applier gives up in another version goes: what is there then is the default.
    let given_up = c.patch(&new.replace("/v2/", "/v1/"), "apply-patch+yaml", scaler("v1", json!({}))).await.ok();
    assert_eq!(given_up["spec"]["targetCPUUtilizationPercentage"], 80);
    assert!(managers(&given_up, &["f:spec", "f:targetCPUUtilizationPercentage"]).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_of_a_version_that_is_gone_stand_in_the_way() {
    let Some((c, _)) = workspace("own-gone").await else { return };
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let defined =
        definition("gone.example.com", "nuts", "Nut", json!([version("v1", true), version("v1beta1", false)]));
    define(&c, defined).await;
    let path = |version: &str| format!("/apis/gone.example.com/{version}/namespaces/own-gone/nuts/n");
    let nut = |version: &str, spec: Value| json!({"apiVersion": format!("gone.example.com/{version}"), "kind": "Nut", "metadata": {"name": "n"}, "spec": spec});
    let apply = async |version: &str, manager: &str, spec: Value| {
        let path = format!("{}?fieldManager={manager}", path(version));
        c.patch(&path, "apply-patch+yaml", nut(version, spec)).await
    };
    apply("v1beta1", "old", json!({"a": 1})).await.ok();
    apply("v1", "new", json!({"a": 2})).await.fails(
        409,
        "Conflict",
        "Apply failed with 1 conflict: conflict with \"old\": .spec.a",
    );
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nuts.gone.example.com";
    // A version that is no longer served still counts.
    let mut unserved = version("v1beta1", false);
    unserved["served"] = json!(false);
    let patch = json!({"spec": {"versions": [version("v1", true), unserved]}});
    c.patch(definitions, "merge-patch+json", patch).await.ok();
    crate::harness::eventually("the version is not served", async || {
        (c.get(&path("v1beta1")).await.code == 404).then_some(())
    })
    .await;
    apply("v1", "new", json!({"a": 2})).await.fails(
        409,
        "Conflict",
        "Apply failed with 1 conflict: conflict with \"old\": .spec.a",
    );
    let patch = json!({"spec": {"versions": [version("v1", true)]}});
    c.patch(definitions, "merge-patch+json", patch).await.ok();
    crate::harness::eventually("the version is gone", async || {
        (apply("v1", "new", json!({"a": 2})).await.code == 500).then_some(())
    })
    .await;
    // Whose version is gone cannot be told what changes: who applies is told so, who writes otherwise makes an end of
    // it.
    let why = "request to convert CR to an invalid group/version: gone.example.com/v1beta1";
    apply("v1", "new", json!({"a": 2})).await.fails(500, "", why);
    let own = format!("{}?fieldManager=new", path("v1"));
    let written = c.patch(&own, "merge-patch+json", json!({"spec": {"a": 3}})).await.ok();
    assert!(written["metadata"].get("managedFields").is_none(), "{written}");
    let object = apply("v1", "new", json!({"a": 3})).await.ok();
    assert_eq!(
        managers(&object, &["f:spec", "f:a"]),
        ["new gone.example.com/v1", "before-first-apply gone.example.com/v1"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_applied_through_their_scale() {
    let Some((c, _)) = workspace("own-scale").await else { return };
    let path = "/apis/apps/v1/namespaces/own-scale/deployments/d";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = |replicas: Value| {
        let mut o = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
        o["spec"].as_object_mut().expect("a map").extend(replicas.as_object().cloned().unwrap_or_default());
        o
    };
    let own = format!("{path}?fieldManager=owner");
    c.patch(&own, "apply-patch+yaml", deployment(json!({"replicas": 1}))).await.ok();
    let scale = |n: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": n}});
    let scaler = format!("{path}/scale?fieldManager=scaler");
    let refused = c.patch(&scaler, "apply-patch+yaml", scale(3)).await;
    refused.fails(409, "Conflict", "Apply failed with 1 conflict: conflict with \"owner\": .spec.replicas");
    let scaled = c.patch(&format!("{scaler}&force=true"), "apply-patch+yaml", scale(3)).await.ok();
    assert_eq!((&scaled["kind"], &scaled["spec"]["replicas"]), (&json!("Scale"), &json!(3)));
    let replicas = ["f:spec", "f:replicas"];
    let now = c.get(path).await.ok();
    assert_eq!((managers(&now, &replicas), &now["spec"]["replicas"]), (vec!["scaler apps/v1".to_owned()], &json!(3)));
    let entries = now["metadata"]["managedFields"].as_array().expect("entries");
    assert!(
        entries.iter().any(|e| e["manager"] == "scaler" && e["subresource"] == "scale" && e["operation"] == "Apply")
    );

    // Who no longer says how many leaves that to the scaler.
    let left = c.patch(&own, "apply-patch+yaml", deployment(json!({}))).await.ok();
    assert_eq!((managers(&left, &replicas), &left["spec"]["replicas"]), (vec!["scaler apps/v1".to_owned()], &json!(3)));
    let wrong = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
    c.patch(&scaler, "apply-patch+yaml", wrong).await.fails(
        400,
        "BadRequest",
        "invalid object type: apps/v1, Kind=Deployment",
    );
    let misnamed =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 2}});
    let message = "the name of the object (x) does not match the name on the URL (d)";
    c.put(&format!("{path}/scale"), &misnamed).await.fails(400, "BadRequest", message);

    // A new owner of replicas has no time, nor does one that has them already get another.
    let times = |object: &Value| -> Vec<Value> {
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        entries.into_iter().filter(|e| e["subresource"] == "scale").map(|e| json!([e["manager"], e["time"]])).collect()
    };
    for n in [5, 6] {
        c.put(&format!("{path}/scale?fieldManager=hand"), &scale(n)).await.ok();
        let now = c.get(path).await.ok();
        assert_eq!(
            (times(&now), managers(&now, &replicas)),
            (vec![json!(["hand", null])], vec!["hand apps/v1".to_owned()])
        );
    }
    // The status of a Scale is not written.
    let status = json!({"status": {"replicas": 42}});
    c.patch(&format!("{path}/scale?fieldManager=other"), "merge-patch+json", status).await.ok();
    assert_eq!(managers(&c.get(path).await.ok(), &replicas), ["hand apps/v1"]);
    let mut other = scale(7);
    other["metadata"]["uid"] = json!("1");
    let uid = c.get(path).await.ok()["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let failed = format!("Precondition failed: UID in precondition: 1, UID in object meta: {uid}");
    let stored = "StorageError: invalid object, Code: 4, Key: /registry/deployments/own-scale/d, ResourceVersion: 0, AdditionalErrorMsg: ";
    let why = format!("Operation cannot be fulfilled on deployments.apps \"d\": {stored}{failed}");
    c.put(&format!("{path}/scale"), &other).await.fails(409, "Conflict", &why);
    let why = format!("Operation cannot be fulfilled on deployments/scale.apps \"d\": {failed}");
    c.patch(&format!("{path}/scale"), "merge-patch+json", other).await.fails(409, "Conflict", &why);
}

/// Replicas that nobody owns are nobody's after they were scaled.
#[tokio::test(flavor = "multi_thread")]
async fn unowned_replicas_stay_unowned() {
    let Some((c, _)) = workspace("own-nothing").await else { return };
    let path = "/apis/apps/v1/namespaces/own-nothing/deployments/d";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let applied = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    c.patch(&format!("{path}?fieldManager=owner"), "apply-patch+yaml", applied).await.ok();
    c.patch(&format!("{path}/scale"), "merge-patch+json", json!({"spec": {"replicas": 3}})).await.ok();
    let now = c.get(path).await.ok();
    assert_eq!(
        (&now["spec"]["replicas"], now["metadata"]["managedFields"].as_array().map(Vec::len)),
        (&json!(3), Some(1))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_with_uid_does_not_recreate() {
    let Some((c, ns)) = workspace("own-uid").await else { return };
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "old"}});
    c.patch(&format!("{ns}/configmaps/a?fieldManager=m"), "apply-patch+yaml", map).await.fails(
        409,
        "Conflict",
        "Operation cannot be fulfilled on configmaps \"a\": uid mismatch: the provided object specified uid old, and no \
         existing object was found",
    );
    assert_eq!(c.get(&format!("{ns}/configmaps/a")).await.code, 404);
}

/// Fields that an applier owns through a subresource.
fn owned(object: &Value, manager: &str, subresource: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let sub = |entry: &Value| entry["subresource"].as_str().unwrap_or_default().to_owned();
    let mut own = entries.filter(|e| e["manager"] == manager && e["operation"] == "Apply" && sub(e) == subresource);
    own.next().map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn subresource_writes_own_only_their_fields() {
    let Some((c, _)) = workspace("own-narrow").await else { return };
    let pods = "/api/v1/namespaces/own-narrow/pods";
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": spec});
    let cpu = |n: &str| json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": n}}}]});
    c.post(&format!("{pods}?fieldManager=maker"), pod(cpu("1"))).await.ok();

    let apply = async |subresource: &str, spec: Value| {
        let path = format!("{pods}/p/{subresource}?fieldManager=other&force=true");
        c.patch(&path, "apply-patch+yaml", pod(spec)).await.ok()
    };
    let resized = apply("resize", cpu("2")).await;
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    let resources = json!({"f:resources": {"f:requests": {"f:cpu": {}}}, ".": {}});
    let narrow = json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": resources}}});
    assert_eq!(owned(&resized, "other", "resize"), narrow);

    let mut debugged = cpu("2");
    debugged["ephemeralContainers"] = json!([{"name": "d", "image": "i"}]);
    let debugged = apply("ephemeralcontainers", debugged).await;
    let narrow = json!({".": {}, "f:image": {}, "f:name": {}});
    let narrow = json!({"f:spec": {"f:ephemeralContainers": {"k:{\"name\":\"d\"}": narrow}}});
    assert_eq!(owned(&debugged, "other", "ephemeralcontainers"), narrow);
    let gone = json!({"spec": {"ephemeralContainers": null}});
    let refused = c.patch(&format!("{pods}/p"), "merge-patch+json", gone).await;
    let message = refused.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(refused.code == 422 && message.contains("pod updates may not change fields other than"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_that_is_no_subresource_has_owners_as_other_fields_have() {
    let Some((c, _)) = workspace("own-status").await else { return };
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    define(&c, definition("own.example.com", "bolts", "Bolt", json!([version]))).await;
    let path = "/apis/own.example.com/v1/namespaces/own-status/bolts/b?fieldManager=m";
    let bolt = |status: Value| json!({"apiVersion": "own.example.com/v1", "kind": "Bolt", "metadata": {"name": "b"}, "status": status});
    c.patch(path, "apply-patch+yaml", bolt(json!({"a": 1, "b": 1}))).await.ok();
    let left = c.patch(path, "apply-patch+yaml", bolt(json!({"a": 1}))).await.ok();
    assert_eq!(left["status"], json!({"a": 1}), "who no longer sets a field of his own gives it up");
}

/// An empty list in JSON is a list, and somebody's; in protobuf there is none.
#[tokio::test(flavor = "multi_thread")]
async fn empty_lists_are_owned_as_upstream_sees_them() {
    let Some((c, ns)) = workspace("empty-lists").await else { return };
    let slices = ns.replace("/api/v1", "/apis/discovery.k8s.io/v1") + "/endpointslices";
    let slice = |name: &str| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": name},
            "addressType": "IPv4", "endpoints": [], "ports": []})
    };
    let owned = |made: &Value| made["metadata"]["managedFields"][0]["fieldsV1"].clone();
    let made = c.post(&slices, slice("json")).await.ok();
    assert_eq!(owned(&made), json!({"f:addressType": {}, "f:endpoints": {}, "f:ports": {}}));
    let schema = proto::schema::kind("discovery.k8s.io", "v1", "EndpointSlice").expect("schema");
    let body = bytes::Bytes::from(proto::protobuf::encode_envelope(schema, &slice("protobuf")));
    let headers = [("Content-Type", "application/vnd.kubernetes.protobuf"), ("Accept", "application/json")];
    let made = c.call("POST", &slices, &headers, Some(body)).await.ok();
    assert_eq!(owned(&made), json!({"f:addressType": {}}));
}

/// Fields owned, by manager, as they are stored.
fn specs_owned(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let own = |e: &Value| (e["manager"].as_str().unwrap_or("").to_owned(), e["fieldsV1"]["f:spec"].clone());
    Value::Object(entries.map(own).collect())
}

/// After a definition makes a field atomic, owners of its parts own the whole, and conflict with appliers that remove
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_makes_wholes_of_parts_and_parts_of_wholes() {
    let Some((c, _)) = workspace("own-schemas").await else { return };
    let versions = |map: &str, list: &str, keys: Value| {
        let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}});
        let mut list = json!({"type": "array", "x-kubernetes-list-type": list, "items": item});
        if !keys.is_null() {
            list["x-kubernetes-list-map-keys"] = keys;
        }
        let map = json!({"type": "object", "x-kubernetes-map-type": map, "additionalProperties": {"type": "string"}});
        let spec = json!({"type": "object", "properties": {"m": map, "l": list}});
        json!([{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}])
    };
    let wholes = versions("atomic", "atomic", Value::Null);
    define(&c, definition("wholes.example.com", "wholes", "Whole", wholes.clone())).await;
    let change = async |versions: &Value| {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/wholes.wholes.example.com";
        c.patch(path, "merge-patch+json", json!({"spec": {"versions": versions}})).await.ok();
    };
    let path = "/apis/wholes.example.com/v1/namespaces/own-schemas/wholes/w";
    let apply = async |who: &str, spec: Value, more: &str| {
        let object =
            json!({"apiVersion": "wholes.example.com/v1", "kind": "Whole", "metadata": {"name": "w"}, "spec": spec});
        c.patch(&format!("{path}?fieldManager={who}{more}"), "apply-patch+yaml", object).await
    };
    let (one, two) = (json!({"m": {"a": "1"}, "l": [{"k": "x"}]}), json!({"m": {"b": "2"}, "l": [{"k": "y"}]}));
    assert_eq!(apply("one", one.clone(), "").await.code, 201);

    change(&versions("granular", "map", json!(["k"]))).await;
    eventually("parts can be owned", async || {
        (apply("two", two.clone(), "&dryRun=All").await.code == 200).then_some(())
    })
    .await;
    let both = apply("two", two.clone(), "").await.ok();
    let parts = |key: &str, item: &str| json!({"f:m": {key: {}}, "f:l": {item: {".": {}, "f:k": {}}}});
    let (x, y) = ("k:{\"k\":\"x\"}", "k:{\"k\":\"y\"}");
    assert_eq!(specs_owned(&both), json!({"one": {"f:m": {}, "f:l": {}}, "two": parts("f:b", y)}));
    assert_eq!(
        specs_owned(&apply("one", one.clone(), "").await.ok()),
        json!({"one": parts("f:a", x), "two": parts("f:b", y)})
    );
    let patch = json!({"spec": {"m": {"c": "3"}}});
    c.patch(&format!("{path}?fieldManager=three"), "merge-patch+json", patch).await.ok();

    change(&wholes).await;
    let refused = eventually("parts are no more", async || {
        let answer = apply("one", one.clone(), "&dryRun=All").await;
        (answer.code == 409).then_some(answer)
    });
    let refused = refused.await.json();
    let fields: Vec<&str> =
        refused["details"]["causes"].as_array().into_iter().flatten().filter_map(|c| c["field"].as_str()).collect();
    assert_eq!(fields, [".spec.m", ".spec.l", ".spec.m"], "{refused}");
    let forced = apply("one", one, "&force=true").await.ok();
    assert_eq!(
        (specs_owned(&forced), &forced["spec"]["m"]),
        (json!({"one": {"f:m": {}, "f:l": {}}}), &json!({"a": "1"}))
    );
}
