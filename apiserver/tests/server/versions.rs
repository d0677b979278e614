//! Webhooks and policies that know another version of a custom resource than the one that is written: the definition's
//! conversion stands between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::custom::{define, hosts};
use crate::harness::{Client, Cluster, Webhook, etcd_is_missing};

const GROUP: &str = "seen.example.com";
const REGISTRATION: &str = "/apis/admissionregistration.k8s.io";

/// Calls `host` of v1 `address` in v2; what is called `bad` cannot be converted.
fn convert(review: &Value) -> Option<Value> {
    let wanted = review["desiredAPIVersion"].as_str()?;
    let (from, to) = if wanted.ends_with("/v1") { ("address", "host") } else { ("host", "address") };
    let mut objects = review["objects"].as_array()?.clone();
    for object in &mut objects {
        object["apiVersion"] = wanted.into();
        let Some(spec) = object["spec"].as_object_mut() else { continue };
        match spec.remove(from) {
            Some(bad) if bad == "bad" => return Some(json!({"result": {"status": "Failed", "message": "no way"}})),
            Some(value) => spec.insert(to.to_owned(), value),
            None => None,
        };
    }
    Some(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

struct Scene {
    c: Cluster,
    webhook: Webhook,
    asked: Arc<Mutex<Vec<Value>>>,
    conversions: Arc<AtomicUsize>,
}

async fn start() -> Option<Scene> {
    if etcd_is_missing() {
        return None;
    }
    let flags =
        ["--feature-gates=MutatingAdmissionPolicy=true", "--runtime-config=admissionregistration.k8s.io/v1beta1=true"];
    let c = Cluster::start_with(|_, _| flags.map(str::to_owned).into()).await;
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let conversions: Arc<AtomicUsize> = Arc::default();
    let (seen, counted) = (asked.clone(), conversions.clone());
    let webhook = Webhook::start(c.pki(), move |path, request| {
        if path == "/convert" {
            counted.fetch_add(1, Ordering::Relaxed);
            return convert(request);
        }
        seen.lock().push(request.clone());
        let replace = |to: &str| {
            let patch = json!([{"op": "replace", "path": "/spec/address", "value": to}]);
            let patch = base64::engine::general_purpose::STANDARD.encode(patch.to_string());
            json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
        };
        Some(match path {
            "/longer" => replace(&format!("{}!", request["object"]["spec"]["address"].as_str()?)),
            "/spoil" => replace("bad"),
            _ => json!({"allowed": true}),
        })
    })
    .await;
    define(&c, hosts(GROUP, &webhook)).await;
    Some(Scene { c, webhook, asked, conversions })
}

/// However many want to see it in one.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_converted_once_for_each_version() {
    let Some(Scene { c, webhook, asked, conversions }) = start().await else { return };
    let named = |i: usize| {
        let mut hook = hook(&webhook, "/judge");
        hook["name"] = json!(format!("hook{i}.test.io"));
        hook
    };
    let three = json!({"webhooks": [named(1), named(2), named(3)]});
    for (plural, name, want) in [("validatingwebhookconfigurations", "a", 1), ("mutatingwebhookconfigurations", "b", 2)]
    {
        set(&c, "v1", plural, three.clone()).await;
        conversions.store(0, Ordering::Relaxed);
        asked.lock().clear();
        c.post(&path("v1"), host(name, "x")).await.ok();
        assert_eq!((asked.lock().len(), conversions.load(Ordering::Relaxed)), (3 * want, want), "{plural}");
    }
}

fn rule() -> Value {
    json!({"apiGroups": [GROUP], "apiVersions": ["v2"], "operations": ["CREATE", "UPDATE"], "resources": ["hosts"]})
}

fn hook(webhook: &Webhook, path: &str) -> Value {
    json!({"name": "hook.test.io", "clientConfig": webhook.config(path), "rules": [rule()], "failurePolicy": "Fail",
        "matchPolicy": "Equivalent", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5})
}

/// Puts an object in the place of the one before; nothing takes it away. Returns when admission knows it.
async fn set(c: &Client, version: &str, plural: &str, more: Value) {
    let path = format!("{REGISTRATION}/{version}/{plural}");
    c.delete(&format!("{path}/only")).await;
    if let Value::Object(mut object) = more {
        object.insert("metadata".to_owned(), json!({"name": "only"}));
        c.post(&path, Value::Object(object)).await.ok();
    }
    // Waits until the cache that admission reads is as new.
    c.get(&path).await.ok();
}

fn path(version: &str) -> String {
    format!("/apis/{GROUP}/{version}/namespaces/default/hosts")
}

fn host(name: &str, host: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Host", "metadata": {"name": name}, "spec": {"host": host}})
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_shown_the_version_they_know() {
    let Some(Scene { c, webhook, asked, .. }) = start().await else { return };
    set(&c, "v1", "mutatingwebhookconfigurations", json!({"webhooks": [hook(&webhook, "/longer")]})).await;
    set(&c, "v1", "validatingwebhookconfigurations", json!({"webhooks": [hook(&webhook, "/judge")]})).await;
    let made = c.post(&path("v1"), host("a", "x")).await.ok();
    assert_eq!((&made["apiVersion"], &made["spec"]), (&json!(format!("{GROUP}/v1")), &json!({"host": "x!"})));
    let seen = std::mem::take(&mut *asked.lock());
    for (review, address) in seen.iter().zip(["x", "x!"]) {
        assert_eq!((&review["kind"]["version"], &review["requestKind"]["version"]), (&json!("v2"), &json!("v1")));
        assert_eq!(review["object"]["apiVersion"], format!("{GROUP}/v2"));
        assert_eq!(review["object"]["spec"], json!({"address": address}), "{review}");
    }
    assert_eq!(seen.len(), 2);

    let patch = json!({"spec": {"host": "y"}});
    let patched = c.patch(&format!("{}/a", path("v1")), "merge-patch+json", patch).await.ok();
    assert_eq!(patched["spec"], json!({"host": "y!"}));
    let seen = std::mem::take(&mut *asked.lock());
    assert_eq!(seen[1]["oldObject"]["spec"], json!({"address": "x!"}));
    // Who writes in the version that is known needs no conversion for it.
    let put = c.patch(&format!("{}/a", path("v2")), "merge-patch+json", json!({"spec": {"address": "z"}})).await.ok();
    assert_eq!(put["spec"], json!({"address": "z!"}));

    // What cannot be shown is not asked about, and what does not come back is not stored.
    asked.lock().clear();
    let why = format!("conversion webhook for {GROUP}/v1, Kind=Host failed: no way");
    let internal = format!("Internal error occurred: {why}");
    let refused = c.post(&path("v1"), host("b", "bad")).await;
    refused.fails(500, "InternalError", &format!("Internal error occurred: {internal}"));
    set(&c, "v1", "mutatingwebhookconfigurations", Value::Null).await;
    c.post(&path("v1"), host("b", "bad")).await.fails(500, "InternalError", &internal);
    assert!(asked.lock().is_empty());
    set(&c, "v1", "mutatingwebhookconfigurations", json!({"webhooks": [hook(&webhook, "/spoil")]})).await;
    c.post(&path("v1"), host("b", "x")).await.fails(500, "", &why.replace("/v1", "/v2"));
    assert_eq!(c.get(&format!("{}/b", path("v1"))).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_shown_the_version_they_know() {
    let Some(Scene { c, .. }) = start().await else { return };
    let constraints = json!({"matchPolicy": "Equivalent", "resourceRules": [rule()]});
    let expression = "Object{spec: Object.spec{address: object.spec.address + '!'}}";
    let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    let mutating = json!({"matchConstraints": constraints, "mutations": [mutation], "reinvocationPolicy": "Never"});
    set(&c, "v1beta1", "mutatingadmissionpolicies", json!({"spec": mutating})).await;
    set(&c, "v1beta1", "mutatingadmissionpolicybindings", json!({"spec": {"policyName": "only"}})).await;
    let validation = json!({"expression": "object.spec.address != 'no!'"});
    let validating = json!({"matchConstraints": constraints, "validations": [validation]});
    set(&c, "v1", "validatingadmissionpolicies", json!({"spec": validating})).await;
    let binding = json!({"policyName": "only", "validationActions": ["Deny"]});
    set(&c, "v1", "validatingadmissionpolicybindings", json!({"spec": binding})).await;

    assert_eq!(c.post(&path("v1"), host("a", "x")).await.ok()["spec"], json!({"host": "x!"}));
    let refused = c.post(&path("v1"), host("b", "no")).await.failure();
    assert_eq!(
        (refused.0, refused.2.as_str()),
        (
            422,
            "hosts.seen.example.com \"b\" is forbidden: ValidatingAdmissionPolicy 'only' with binding 'only' denied request: failed expression: object.spec.address != 'no!'"
        )
    );
    let why = format!("conversion webhook for {GROUP}/v1, Kind=Host failed: no way");
    let refused = c.post(&path("v1"), host("b", "bad")).await.failure();
    let told = format!("policy \"only\" denied request: failed to configure policy: {why}");
    assert_eq!((refused.0, refused.1.as_str(), refused.2), (403, "Forbidden", told));
    set(&c, "v1beta1", "mutatingadmissionpolicybindings", Value::Null).await;
    let refused = c.post(&path("v1"), host("b", "bad")).await.failure();
    let told = format!(
        "hosts.seen.example.com \"b\" is forbidden: ValidatingAdmissionPolicy 'only' with binding 'only' denied request: failed to configure binding: failed to convert object version: {why}"
    );
    assert_eq!((refused.0, refused.2), (422, told));
}
