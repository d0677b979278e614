//! Custom resources of several versions: what a conversion may do, what defaults are whose, and what clients are told
//! of a webhook that fails.

use serde_json::{Value, json};

use crate::cluster;
use crate::custom::{define, definition};
use crate::harness::{Answer, Client, Webhook};
use crate::workspace;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition of parrots, stored in v1, whose versions have a field and a default of their own.
fn parrots(group: &str, hook: Option<&Webhook>) -> Value {
    let version = |name: &str| {
        let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let mut properties = json!({"texts": texts, "defaults": {"type": "object", "properties": {
            "v1": {"type": "boolean"}, "v2": {"type": "boolean"}, "v3": {"type": "boolean"}}}});
        properties["defaults"]["properties"][name]["default"] = json!(true);
        properties[format!("of-{name}")] = json!({"type": "string"});
        properties["spec"] = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
        properties["status"] = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
        json!({"name": name, "served": true, "storage": name == "v1",
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}})
    };
    let versions = json!([version("v1"), version("v2"), version("v3")]);
    let mut defined = definition(group, "parrots", "Parrot", versions);
    if let Some(hook) = hook {
        defined["spec"]["conversion"] = json!({"strategy": "Webhook",
            "webhook": {"clientConfig": hook.config("/convert"), "conversionReviewVersions": ["v1"]}});
    }
    defined
}

/// A webhook that changes each object, which has its new version already.
async fn converter(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Webhook {
    let pki = cluster().await.expect("cluster").pki();
    Webhook::start(pki, move |_, review| {
        let convert = |object: &Value| {
            let mut object = object.clone();
            object["apiVersion"] = review["desiredAPIVersion"].clone();
            change(&mut object);
            object
        };
        let converted: Vec<Value> = review["objects"].as_array()?.iter().map(convert).collect();
        Some(json!({"result": {"status": "Success"}, "convertedObjects": converted}))
    })
    .await
}

fn parrot(group: &str, version: &str, name: &str, defaults: bool) -> Value {
    let mut object = json!({"apiVersion": format!("{group}/{version}"), "kind": "Parrot", "metadata": {"name": name},
        "spec": {"replicas": 1}});
    object[format!("of-{version}")] = json!("x");
    if defaults {
        object["defaults"] = json!({});
    }
    object
}

async fn stored(group: &str, namespace: &str, name: &str) -> Value {
    let key = format!("/registry/{group}/parrots/{namespace}/{name}");
    let (bytes, _) = cluster().await.expect("cluster").stored(&key).await.expect("stored");
    serde_json::from_slice(&bytes).expect("json")
}

fn at(group: &str, version: &str, namespace: &str) -> String {
    format!("/apis/{group}/{version}/namespaces/{namespace}/parrots")
}

/// Defaults come from the version of a request when it is written, and from the version it is stored in when it is
/// read; only the former are kept.
async fn check_defaults(c: &Client, group: &str, ns: &str) {
    for (created, wanted) in
        [("v1", json!({"v1": true})), ("v2", json!({"v1": true, "v2": true})), ("v3", json!({"v1": true, "v3": true}))]
    {
        let name = format!("of-{created}");
        let made = c.post(&at(group, created, ns), parrot(group, created, &name, true)).await.ok();
        assert_eq!(made["defaults"], wanted, "{created}");
        assert_eq!(made["apiVersion"], format!("{group}/{created}"));
        let kept = stored(group, ns, &name).await;
        assert_eq!(kept["defaults"], json!({created: true}), "{created}");
        assert_eq!(kept["apiVersion"], format!("{group}/v1"));
        assert_eq!(
            kept.get(format!("of-{created}")).is_some(),
            created == "v1",
            "pruned by what it is stored as: {kept}"
        );
        for asked in ["v1", "v2", "v3"] {
            let got = c.get(&format!("{}/{name}", at(group, asked, ns))).await.ok();
            assert_eq!(got["defaults"], wanted, "{created} as {asked}");
            let list = c.get(&format!("{}?fieldSelector=metadata.name%3D{name}", at(group, asked, ns))).await.ok();
            assert_eq!(list["items"][0]["defaults"], wanted, "{created} as {asked}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_follow_the_storage_version() {
    let Some((c, _)) = workspace("conv-defaults").await else { return };
    define(&c, parrots("plain.conv.example.com", None)).await;
    check_defaults(&c, "plain.conv.example.com", "conv-defaults").await;
    let hook = converter(|_| {}).await;
    define(&c, parrots("hooked.conv.example.com", Some(&hook))).await;
    check_defaults(&c, "hooked.conv.example.com", "conv-defaults").await;
}

/// Of the metadata a conversion may change labels and annotations, and clients see at once what it made of what they
/// wrote.
#[tokio::test(flavor = "multi_thread")]
async fn labels_and_annotations_may_change() {
    let Some((c, _)) = workspace("conv-metadata").await else { return };
    let (group, ns) = ("metadata.conv.example.com", "conv-metadata");
    let hook = converter(|object| {
        let to = object["apiVersion"].as_str().unwrap_or("").replace('/', ".");
        object["metadata"]["labels"]["to"] = json!(to);
        object["metadata"]["annotations"]["to"] = json!(to);
        object["metadata"]["generation"] = json!(42);
        object["metadata"]["finalizers"] = json!(["foo"]);
        object["metadata"]["garbage"] = json!("x");
    })
    .await;
    define(&c, parrots(group, Some(&hook))).await;
    let made = c.post(&at(group, "v1", ns), parrot(group, "v1", "a", false)).await.ok();
    assert!(made["metadata"].get("labels").is_none(), "{made}");
    let changed = |object: &Value| {
        let to = json!({"to": format!("{group}.v2")});
        let meta = &object["metadata"];
        assert_eq!((&meta["labels"], &meta["annotations"], &meta["generation"]), (&to, &to, &json!(1)), "{object}");
        assert!(meta.get("finalizers").is_none() && meta.get("garbage").is_none(), "{object}");
    };
    changed(&c.get(&format!("{}/a", at(group, "v2", ns))).await.ok());
    changed(&c.post(&at(group, "v2", ns), parrot(group, "v2", "b", false)).await.ok());
    let list = c.get(&at(group, "v2", ns)).await.ok();
    list["items"].as_array().expect("items").iter().for_each(changed);
    let events = c.watch(&format!("{}?watch=1&timeoutSeconds=10", at(group, "v2", ns)), 2).await;
    events.iter().for_each(|e| changed(&e["object"]));
}

/// Every request for an object in a version that it cannot be brought into, with what it is answered.
async fn refusals(c: &Client, group: &str, ns: &str) -> Vec<(&'static str, Answer)> {
    let (one, two) = (at(group, "v1", ns), at(group, "v2", ns));
    let made = c.post(&one, parrot(group, "v1", "a", false)).await.ok();
    let mut update = parrot(group, "v2", "a", false);
    update["metadata"] = made["metadata"].clone();
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 42}});
    let patch = json!({"metadata": {"annotations": {"patch": "true"}}});
    let a = format!("{two}/a");
    let mut answers = vec![
        ("get", c.get(&a).await),
        ("list", c.get(&two).await),
        ("create", c.post(&two, parrot(group, "v2", "b", false)).await),
        ("update", c.put(&a, &update).await),
        ("patch", c.patch(&a, "merge-patch+json", patch.clone()).await),
        ("delete", c.delete(&a).await),
        ("deletecollection", c.delete(&two).await),
        ("get status", c.get(&format!("{a}/status")).await),
        ("update status", c.put(&format!("{a}/status"), &update).await),
        ("patch status", c.patch(&format!("{a}/status"), "merge-patch+json", patch.clone()).await),
        ("get scale", c.get(&format!("{a}/scale")).await),
        ("update scale", c.put(&format!("{a}/scale"), &scale).await),
    ];
    answers.push(("patch scale", c.patch(&format!("{a}/scale"), "merge-patch+json", patch).await));
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_conversions_are_reported() {
    let Some((c, _)) = workspace("conv-failing").await else { return };
    let pki = cluster().await.expect("cluster").pki();
    let renaming = converter(|object| object["metadata"]["name"] = json!("other")).await;
    let fixed = |response: Value| Webhook::start(pki, move |_, _| Some(response.clone()));
    let empty = fixed(json!({"result": {"status": "Success"}, "convertedObjects": []})).await;
    let refusing = fixed(json!({"result": {"status": "Failure", "message": "custom webhook conversion error"}})).await;
    for (i, (hook, why)) in [
        (&renaming, "returned invalid object: must have the same name: a != other"),
        (&empty, "returned 0 objects, expected 1"),
        (&refusing, "failed: custom webhook conversion error"),
    ]
    .into_iter()
    .enumerate()
    {
        let group = format!("failing{i}.conv.example.com");
        define(&c, parrots(&group, Some(hook))).await;
        for (verb, answer) in refusals(&c, &group, "conv-failing").await {
            let (code, reason, message) = answer.failure();
            let (from, name) = if verb == "create" { ("v2", "b") } else { ("v1", "a") };
            let why = why.replace(": a !=", &format!(": {name} !="));
            let wanted = format!("conversion webhook for {group}/{from}, Kind=Parrot {why}");
            assert_eq!((code, reason.as_str(), message), (500, "", wanted), "{verb}");
        }
        let watch = format!("{}?watch=1&timeoutSeconds=10", at(&group, "v2", "conv-failing"));
        let seen = c.watch(&watch, 1).await;
        assert_eq!(seen[0]["type"], "ERROR", "{seen:?}");
        c.delete(&format!("{DEFINITIONS}/parrots.{group}")).await.ok();
    }
}

/// Fields that version 1 of an autoscaler lacks are kept in annotations, in valid types, whoever wrote them.
#[tokio::test(flavor = "multi_thread")]
async fn autoscalers_of_version_1_say_everything() {
    let Some((c, _)) = crate::workspace("scalers").await else { return };
    let path = |version: &str| format!("/apis/autoscaling/{version}/namespaces/scalers/horizontalpodautoscalers");
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Mi"}}});
    let made = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "metrics": [memory],
        "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}},
        "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    c.post(&path("v2"), made).await.ok();
    let annotation = |object: &Value, of: &str| {
        object["metadata"]["annotations"][format!("autoscaling.alpha.kubernetes.io/{of}")].as_str().map(str::to_owned)
    };
    let seen = c.watch(&format!("{}?watch=1", path("v1")), 1).await;
    let mut old = seen[0]["object"].clone();
    let metrics = r#"[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Mi"}}]"#;
    assert_eq!(annotation(&old, "metrics").as_deref(), Some(metrics));
    let behavior = annotation(&old, "behavior").unwrap_or_default();
    let rules = r#"{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":"#;
    assert!(behavior.starts_with(rules), "{behavior}");

    // Written through version 1, with a metric more.
    let pods = r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"2"}}]"#;
    old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"] = json!(pods);
    old["spec"]["targetCPUUtilizationPercentage"] = json!(42);
    c.put(&format!("{}/a", path("v1")), &old).await.ok();
    let new = c.get(&format!("{}/a", path("v2"))).await.ok();
    let target = json!({"type": "AverageValue", "averageValue": "2"});
    let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 42}});
    let metrics = json!([{"type": "Pods", "pods": {"metric": {"name": "m"}, "target": target}}, {"type": "Resource", "resource": cpu}]);
    assert_eq!(new["spec"]["metrics"], metrics);
    assert_eq!(new["spec"]["behavior"]["scaleUp"]["policies"][0]["value"], 4);
    assert!(new["metadata"].get("annotations").is_none());
    // In version 2 such an annotation says nothing.
    let noted = json!({"metadata": {"annotations": {"autoscaling.alpha.kubernetes.io/metrics": "[]", "mine": "x"}}});
    let kept = c.patch(&format!("{}/a", path("v2")), "merge-patch+json", noted).await.ok();
    assert_eq!((&kept["metadata"]["annotations"], &kept["spec"]["metrics"]), (&json!({"mine": "x"}), &metrics));
}
