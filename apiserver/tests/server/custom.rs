//! Custom resources through HTTP: definitions, their objects, versions, subresources, rules, and their end.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Client, Cluster, Identity, Webhook, etcd_is_missing, eventually};
use crate::upstream::{DEFAULTS, ERRORS, records};
use crate::{cluster, workspace};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub fn definition(group: &str, plural: &str, kind: &str, versions: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": versions}})
}

/// Creates a definition and waits until it is served.
pub async fn define(c: &Client, definition: Value) {
    let name = definition["metadata"]["name"].as_str().expect("name").to_owned();
    let served = collections(&definition);
    c.post(DEFINITIONS, definition).await.ok();
    let path = format!("{DEFINITIONS}?watch=true&timeoutSeconds=10&fieldSelector=metadata.name%3D{name}");
    for enough in 1..10 {
        let seen = c.watch(&path, enough).await;
        let established = |e: &Value| {
            e["object"]["status"]["conditions"]
                .as_array()
                .is_some_and(|l| l.iter().any(|c| c["type"] == "Established" && c["status"] == "True"))
        };
        if seen.iter().any(established) {
            return are_served(c, &served).await;
        }
    }
    panic!("{name} is not established");
}

/// Paths of a definition's objects, in each served version.
fn collections(definition: &Value) -> Vec<String> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let served = spec["versions"].as_array().expect("versions").iter().filter(|v| v["served"] == true);
    served.map(|v| format!("/apis/{group}/{}/{plural}?limit=1", text(&v["name"]))).collect()
}

/// The condition is there a moment before the resource.
async fn are_served(c: &Client, collections: &[String]) {
    for path in collections {
        eventually("the resource is served", async || (c.get(path).await.code != 404).then_some(())).await;
    }
}

fn foos() -> Value {
    let found = records(DEFAULTS).into_iter().find(|r| r["sent"]["metadata"]["name"] == "foos.ex.com");
    found.expect("a definition")["sent"].take()
}

/// Upstream walks over maps in no order: what it says is compared as a set.
fn sorted(status: &Value) -> (Value, Value, BTreeSet<String>) {
    let causes = status["details"]["causes"].as_array().map_or(&[][..], Vec::as_slice);
    (status["code"].clone(), status["reason"].clone(), causes.iter().map(Value::to_string).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_answers() {
    let Some((c, _)) = workspace("sample-custom").await else { return };
    for ns in ["sample", "e"] {
        c.post("/api/v1/namespaces", json!({"metadata": {"name": ns}})).await;
    }
    let sent = foos();
    define(&c, sent).await;
    c.post(
        "/apis/ex.com/v1/namespaces/sample/foos",
        json!({"apiVersion": "ex.com/v1", "kind": "Foo", "metadata": {"name": "f"}, "spec": {"a": "b"}}),
    )
    .await
    .ok();
    let mut wrong = Vec::new();
    for record in records(ERRORS) {
        let (request, path) = (&record["request"], record["request"]["path"].as_str().unwrap_or(""));
        if !path.starts_with("/apis/ex.com/") && !path.contains("foos.ex.com") {
            continue;
        }
        let headers: Vec<(&str, &str)> = request["headers"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)))
            .chain(request["headers"].get("Content-Type").is_none().then_some(("Content-Type", "application/json")))
            .collect();
        let body = request.get("body").map(|b| match b {
            Value::Object(_) if record["name"] == "custom resource: no apiVersion" => {
                bytes::Bytes::from_static(br#"{"metadata": {"name": "x"}}"#)
            }
            b => bytes::Bytes::from(b.to_string()),
        });
        let answer = c.call(request["method"].as_str().expect("method"), path, &headers, body).await;
        if record["code"] != answer.code {
            wrong.push(format!("{}: {} {}", record["name"], answer.code, answer.text()));
            continue;
        }
        if record["status"].is_null() {
            continue;
        }
        let (want, got) = (&record["status"], answer.json());
        let one = want["details"]["causes"].as_array().is_none_or(|l| l.len() < 2);
        if sorted(want) != sorted(&got) || (one && want["message"] != got["message"]) {
            wrong.push(format!("{}: want {want}\n  got {got}", record["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_live_as_others_do() {
    let Some((c, _)) = workspace("crd-life").await else { return };
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "default": 3, "minimum": 1}, "image": {"type": "string"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}}},
            "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "size cannot shrink"}]},
        "status": {"type": "object", "properties": {"ready": {"type": "integer"}, "selector": {"type": "string"}}}}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.ready", "labelSelectorPath": ".status.selector"}},
        "selectableFields": [{"jsonPath": ".spec.image"}],
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}, {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]})
    };
    let mut defined =
        definition("life.example.com", "boats", "Boat", json!([version("v1", true), version("v1beta1", false)]));
    defined["spec"]["names"]["shortNames"] = json!(["bt"]);
    defined["spec"]["names"]["categories"] = json!(["all"]);
    define(&c, defined).await;
    let path = "/apis/life.example.com/v1/namespaces/crd-life/boats";
    let boat = |name: &str| json!({"apiVersion": "life.example.com/v1", "kind": "Boat", "metadata": {"name": name}, "spec": {"image": "a", "unknown": 1}, "status": {"ready": 9}});
    let answer = c.post(path, boat("one")).await;
    assert!(
        answer.warnings().iter().any(|w| w.contains("unknown field") && w.contains("spec.unknown")),
        "{:?}",
        answer.warnings()
    );
    let made = answer.ok();
    assert_eq!((&made["spec"], &made["metadata"]["generation"]), (&json!({"image": "a", "size": 3}), &json!(1)));
    assert!(made.get("status").is_none(), "status is written on its own");

    // Stored as JSON under upstream's key.
    let cluster = cluster().await.expect("cluster");
    let (stored, _) = cluster.stored("/registry/life.example.com/boats/crd-life/one").await.expect("stored");
    let stored: Value = serde_json::from_slice(&stored).expect("json");
    assert_eq!((&stored["apiVersion"], &stored["kind"]), (&json!("life.example.com/v1"), &json!("Boat")));

    // The other version, lists, tables, selectors.
    let beta = "/apis/life.example.com/v1beta1/namespaces/crd-life/boats";
    assert_eq!(c.get(&format!("{beta}/one")).await.ok()["apiVersion"], "life.example.com/v1beta1");
    let list = c.get(beta).await.ok();
    assert_eq!(
        (&list["kind"], &list["items"][0]["apiVersion"]),
        (&json!("BoatList"), &json!("life.example.com/v1beta1"))
    );
    let table = c.call("GET", path, &[("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], None).await.ok();
    assert_eq!(table["columnDefinitions"].as_array().map(Vec::len), Some(3));
    assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["cells"][1]), (&json!("one"), &json!(3)));
    c.post(path, json!({"apiVersion": "life.example.com/v1", "kind": "Boat", "metadata": {"name": "two"}, "spec": {"image": "b"}})).await.ok();
    let found = c.get(&format!("{path}?fieldSelector=spec.image%3Db")).await.ok();
    assert_eq!(
        found["items"].as_array().map(|l| l.iter().map(|o| o["metadata"]["name"].clone()).collect::<Vec<_>>()),
        Some(vec![json!("two")])
    );

    // Patches, apply, rules about changes.
    let merged = c.patch(&format!("{path}/one"), "merge-patch+json", json!({"spec": {"size": 5}})).await.ok();
    assert_eq!((&merged["spec"]["size"], &merged["metadata"]["generation"]), (&json!(5), &json!(2)));
    let shrunk = c.patch(&format!("{path}/one"), "merge-patch+json", json!({"spec": {"size": 4}})).await;
    assert!(shrunk.text().contains("size cannot shrink") && shrunk.code == 422, "{}", shrunk.text());
    let apply = |port: i64| json!({"apiVersion": "life.example.com/v1", "kind": "Boat", "metadata": {"name": "three"}, "spec": {"ports": [{"name": format!("p{port}"), "port": port}]}});
    for (manager, port) in [("a", 1), ("b", 2)] {
        c.patch(&format!("{path}/three?fieldManager={manager}"), "apply-patch+yaml", apply(port)).await.ok();
    }
    let three = c.get(&format!("{path}/three")).await.ok();
    assert_eq!(three["spec"]["ports"].as_array().map(Vec::len), Some(2), "lists merge by their keys: {three}");

    // Subresources.
    let status = c
        .patch(
            &format!("{path}/one/status"),
            "merge-patch+json",
            json!({"status": {"ready": 2, "selector": "a=b"}, "spec": {"size": 99}}),
        )
        .await
        .ok();
    assert_eq!(
        (&status["status"]["ready"], &status["spec"]["size"], &status["metadata"]["generation"]),
        (&json!(2), &json!(5), &json!(2))
    );
    let scale = c.get(&format!("{path}/one/scale")).await.ok();
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]), (&json!(5), &json!({"replicas": 2, "selector": "a=b"})));
    c.patch(&format!("{path}/one/scale"), "merge-patch+json", json!({"spec": {"replicas": 7}})).await.ok();
    assert_eq!(c.get(&format!("{path}/one")).await.ok()["spec"]["size"], 7);

    // Discovery.
    let group = c.get("/apis/life.example.com").await.ok();
    assert_eq!(
        (&group["preferredVersion"]["version"], &group["versions"][1]["version"]),
        (&json!("v1"), &json!("v1beta1"))
    );
    let resources = c.get("/apis/life.example.com/v1").await.ok();
    let names: Vec<_> = resources["resources"].as_array().into_iter().flatten().map(|r| r["name"].clone()).collect();
    assert_eq!(names, [json!("boats"), json!("boats/status"), json!("boats/scale")]);
    assert_eq!(
        (&resources["resources"][0]["shortNames"], &resources["resources"][0]["categories"]),
        (&json!(["bt"]), &json!(["all"]))
    );

    // A watch sees changes, in the version asked for.
    let seen = c.watch(&format!("{beta}?watch=true&timeoutSeconds=5"), 3).await;
    assert!(
        seen.len() == 3 && seen.iter().all(|e| e["object"]["apiVersion"] == "life.example.com/v1beta1"),
        "{seen:?}"
    );

    // The end: objects go with their definition.
    c.delete(&format!("{DEFINITIONS}/boats.life.example.com")).await.ok();
    let gone = format!(
        "{DEFINITIONS}?watch=true&timeoutSeconds=10&resourceVersion=0&fieldSelector=metadata.name%3Dboats.life.example.com"
    );
    for enough in 1..12 {
        if c.get(&format!("{DEFINITIONS}/boats.life.example.com")).await.code == 404 {
            break;
        }
        c.watch(&gone, enough).await;
    }
    c.get(&format!("{DEFINITIONS}/boats.life.example.com")).await.fails(
        404,
        "NotFound",
        "customresourcedefinitions.apiextensions.k8s.io \"boats.life.example.com\" not found",
    );
    assert!(cluster.stored("/registry/life.example.com/boats/crd-life/one").await.is_none(), "objects are deleted");
}

/// Definitions that are called like kinds of our own do not change what is said of these.
#[tokio::test(flavor = "multi_thread")]
async fn our_own_kinds_are_described_as_ever() {
    if etcd_is_missing() {
        return;
    }
    let cluster = Cluster::start().await;
    let c = cluster.client(Identity::Admin);
    const KIND: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
    let path = format!("{DEFINITIONS}/{{name}}");
    let before = c.get("/openapi/v2").await.ok();
    let index = async || c.get("/openapi/v3").await.ok()["paths"]["apis/apiextensions.k8s.io/v1"].clone();
    let place = index().await;
    let probe = json!({"type": "object", "properties": {"probe": {"type": "boolean"}}});
    for (group, plural, kind) in [
        ("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition"),
        (
            "apiextensions.apis.pkg.apiextensions-apiserver.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
        ),
        ("coordination.k8s.io", "leases", "Lease"),
        ("last.example.com", "probes", "Probe"),
    ] {
        let versions =
            json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": probe.clone()}}]);
        let mut definition = definition(group, plural, kind, versions);
        definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, test-only"});
        definition["spec"]["scope"] = json!("Cluster");
        c.post(DEFINITIONS, definition).await.ok();
    }
    let after = eventually("the last one is described", async || {
        let answer = c.get("/openapi/v2").await;
        answer.text().contains("com.example.last.v1.Probe\"").then(|| answer.ok())
    })
    .await;
    assert_eq!(after["paths"][&path], before["paths"][&path]);
    assert_eq!(after["definitions"][KIND], before["definitions"][KIND]);
    assert_eq!(after["definitions"][format!("{KIND}_v2")]["properties"]["probe"]["type"], "boolean");
    assert!(
        after["definitions"].get("io.k8s.apiextensions.v1.CustomResourceDefinition").is_none(),
        "nobody speaks of it"
    );
    assert_eq!(index().await, place);

    // Of another scope it has other paths, and these nobody has described.
    let leases = "/apis/coordination.k8s.io/v1/leases";
    assert_eq!(after["paths"][leases], before["paths"][leases]);
    let one = &after["paths"][format!("{leases}/{{name}}")];
    assert_eq!(one["get"]["responses"]["200"]["schema"]["$ref"], "#/definitions/io.k8s.coordination.v1.Lease");
    assert_eq!(after["definitions"]["io.k8s.coordination.v1.Lease"]["properties"]["probe"]["type"], "boolean");
    assert!(after["definitions"].get("io.k8s.coordination.v1.LeaseList").is_none(), "nobody speaks of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn version_2_of_openapi_follows() {
    let Some((c, _)) = workspace("crd-openapi").await else { return };
    let known = |answer: &crate::harness::Answer| answer.header("etag").to_owned();
    // Other tests define things, too.
    let before = eventually("the document stays the same", async || {
        let before = c.get("/openapi/v2").await;
        let again = c.call("GET", "/openapi/v2", &[("If-None-Match", &known(&before))], None).await;
        (again.code == 304 && again.bytes.is_empty()).then_some(before)
    })
    .await;
    let schema = json!({"type": "object", "description": "A kite.", "properties": {"spec": {"type": "object", "required": ["tail", "colour"],
        "properties": {"colour": {"type": "string", "description": "What it looks like.", "pattern": "^[a-z]+$"},
            "tail": {"type": "integer", "nullable": true}, "port": {"x-kubernetes-int-or-string": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
        {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]);
    define(&c, definition("openapi.example.com", "kites", "Kite", versions)).await;
    let started = std::time::Instant::now();
    let changed = loop {
        let answer = c.call("GET", "/openapi/v2", &[("If-None-Match", &known(&before))], None).await;
        if answer.code == 200 && answer.text().contains("com.example.openapi.v1.Kite\"") {
            break answer;
        }
        assert!(started.elapsed().as_secs() < 10, "the document does not follow");
    };
    let document = changed.ok();
    let kite = &document["definitions"]["com.example.openapi.v1.Kite"];
    assert_eq!((&kite["description"], &kite["type"]), (&json!("A kite."), &json!("object")));
    assert_eq!(kite["properties"]["metadata"]["$ref"], "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    assert_eq!(
        kite["properties"]["spec"],
        json!({"type": "object", "required": ["colour"], "properties": {
            "colour": {"type": "string", "description": "What it looks like.", "pattern": "^[a-z]+$"},
            "tail": {}, "port": {"x-kubernetes-int-or-string": true},
            "free": {"x-kubernetes-preserve-unknown-fields": true}}})
    );
    let gvk = |version: &str| json!([{"group": "openapi.example.com", "version": version, "kind": "Kite"}]);
    assert_eq!(
        document["definitions"]["com.example.openapi.v2.Kite"],
        json!({"type": "object", "x-kubernetes-group-version-kind": gvk("v2")})
    );
    let list = &document["definitions"]["com.example.openapi.v1.KiteList"];
    assert_eq!(list["properties"]["items"]["items"]["$ref"], "#/definitions/com.example.openapi.v1.Kite");
    let one = &document["paths"]["/apis/openapi.example.com/v1/namespaces/{namespace}/kites/{name}"];
    assert_eq!(one["patch"]["x-kubernetes-group-version-kind"], gvk("v1")[0]);
    let names =
        |of: &Value| of["parameters"].as_array().into_iter().flatten().map(|p| p["name"].clone()).collect::<Vec<_>>();
    assert!(names(&one["patch"]).contains(&json!("dryRun")) && names(&one["patch"])[0] == "body", "{one}");
    assert_eq!(one["get"]["responses"]["200"]["schema"]["$ref"], "#/definitions/com.example.openapi.v1.Kite");
    // Protobuf says the same: the definitions are in it by name.
    let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let protobuf = c.call("GET", "/openapi/v2", &[("Accept", accept)], None).await;
    assert!(protobuf.code == 200 && protobuf.text().contains("com.example.openapi.v1.Kite"));
    assert_ne!(known(&protobuf), known(&changed));

    // And it goes.
    c.delete(&format!("{DEFINITIONS}/kites.openapi.example.com")).await.ok();
    while c.get("/openapi/v2").await.text().contains("com.example.openapi.v1.Kite\"") {
        assert!(started.elapsed().as_secs() < 20, "the document keeps what is gone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_changes_are_pruned_and_defaulted() {
    let Some((c, ns)) = workspace("crd-mutated").await else { return };
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": 3}}}}}}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    define(&c, definition("mutated.example.com", "things", "Thing", versions)).await;
    let hook = Webhook::start(cluster().await.expect("cluster").pki(), |_, _| {
        let patch = json!([{"op": "add", "path": "/spec/parts", "value": [{"name": "a", "colour": "red"}]}, {"op": "add", "path": "/other", "value": 1}]);
        let patch = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, patch.to_string());
        Some(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
    })
    .await;
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let webhook = json!({"name": "parts.mutated.example.com", "clientConfig": hook.config("/"), "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "rules": [{"apiGroups": ["mutated.example.com"], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["things"]}]});
    c.post(path, json!({"metadata": {"name": "crd-mutated"}, "webhooks": [webhook]})).await.ok();
    let things = format!("{}/things", ns.replace("/api/v1", "/apis/mutated.example.com/v1"));
    let thing = json!({"apiVersion": "mutated.example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {}});
    let made = c.post(&things, thing).await.ok();
    assert_eq!((&made["spec"], made.get("other")), (&json!({"parts": [{"name": "a", "size": 3}]}), None));
    c.delete(&format!("{path}/crd-mutated")).await.ok();
}

/// Starts a conversion webhook: `host` in version 1 is `address` in version 2.
async fn host_converter(cluster: &Cluster) -> Webhook {
    Webhook::start(cluster.pki(), |_, review| {
        let wanted = review["desiredAPIVersion"].as_str()?;
        let convert = |o: &Value| {
            let mut o = o.clone();
            o["apiVersion"] = json!(wanted);
            if let Some(spec) = o["spec"].as_object_mut() {
                let (from, to) = if wanted.ends_with("v2") { ("host", "address") } else { ("address", "host") };
                if let Some(v) = spec.remove(from) {
                    spec.insert(to.to_owned(), v);
                }
            }
            o
        };
        let converted: Vec<Value> = review["objects"].as_array()?.iter().map(convert).collect();
        Some(json!({"result": {"status": "Success"}, "convertedObjects": converted}))
    })
    .await
}

pub fn hosts(group: &str, hook: &Webhook) -> Value {
    let version = |name: &str, field: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "selectableFields": [{"jsonPath": format!(".spec.{field}")}],
            "schema": {"openAPIV3Schema":
        {"type": "object", "properties": {"spec": {"type": "object", "properties": {field: {"type": "string"}, "note": {"type": "string"}}}}}}})
    };
    let mut defined =
        definition(group, "hosts", "Host", json!([version("v1", "host", true), version("v2", "address", false)]));
    defined["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"clientConfig": hook.config("/convert"), "conversionReviewVersions": ["v1"]}});
    defined
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_converts() {
    let Some((c, _)) = workspace("crd-convert").await else { return };
    let cluster = cluster().await.expect("cluster");
    let hook = host_converter(cluster).await;
    define(&c, hosts("conv.example.com", &hook)).await;
    let (one, two) = (
        "/apis/conv.example.com/v1/namespaces/crd-convert/hosts",
        "/apis/conv.example.com/v2/namespaces/crd-convert/hosts",
    );
    c.post(
        one,
        json!({"apiVersion": "conv.example.com/v1", "kind": "Host", "metadata": {"name": "a"}, "spec": {"host": "x"}}),
    )
    .await
    .ok();
    assert_eq!(c.get(&format!("{two}/a")).await.ok()["spec"], json!({"address": "x"}));
    let made = c.post(two, json!({"apiVersion": "conv.example.com/v2", "kind": "Host", "metadata": {"name": "b"}, "spec": {"address": "y"}})).await.ok();
    assert_eq!((&made["apiVersion"], &made["spec"]), (&json!("conv.example.com/v2"), &json!({"address": "y"})));
    assert_eq!(c.get(&format!("{one}/b")).await.ok()["spec"], json!({"host": "y"}));
    let list = c.get(two).await.ok();
    assert!(list["items"].as_array().expect("items").iter().all(|o| o["spec"].get("address").is_some()), "{list}");
    let seen = c.watch(&format!("{two}?watch=true&timeoutSeconds=5"), 2).await;
    assert!(seen.iter().all(|e| e["object"]["spec"].get("address").is_some()), "{seen:?}");

    // Fields are selected by in the version that is asked for, whatever is stored.
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().into_iter().flatten();
        items.map(|o| o["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect()
    };
    for (path, field) in [(one, "host"), (two, "address")] {
        let found = c.get(&format!("{path}?fieldSelector=spec.{field}%3Dy")).await.ok();
        assert_eq!(names(&found), ["b"], "{path}");
        let others = c.get(&format!("{path}?fieldSelector=spec.{field}!%3Dy")).await.ok();
        assert_eq!(names(&others), ["a"], "{path}");
    }
    let page = c.get(&format!("{two}?fieldSelector=spec.address!%3Dz&limit=1")).await.ok();
    let rest = page["metadata"]["continue"].as_str().expect("there is more");
    let next = c.get(&format!("{two}?fieldSelector=spec.address!%3Dz&limit=1&continue={rest}")).await.ok();
    assert_eq!((names(&page), names(&next)), (vec!["a".to_owned()], vec!["b".to_owned()]));
    let revision = made["metadata"]["resourceVersion"].as_str().expect("a revision");
    for value in ["z", "y"] {
        c.patch(&format!("{one}/b"), "merge-patch+json", json!({"spec": {"host": value}})).await.ok();
    }
    for from in ["", revision] {
        let path = format!("{two}?watch=true&timeoutSeconds=5&fieldSelector=spec.address%3Dy&resourceVersion={from}");
        let seen = c.watch(&path, if from.is_empty() { 1 } else { 2 }).await;
        let types: Vec<&str> = seen.iter().filter_map(|e| e["type"].as_str()).collect();
        assert_eq!(types, if from.is_empty() { vec!["ADDED"] } else { vec!["DELETED", "ADDED"] }, "{seen:?}");
        assert!(seen.iter().all(|e| e["object"]["spec"]["address"] == "y"), "{seen:?}");
    }
    let gone = c.delete(&format!("{two}?fieldSelector=spec.address%3Dy")).await.ok();
    assert_eq!((names(&gone), &gone["items"][0]["apiVersion"]), (vec!["b".to_owned()], &json!("conv.example.com/v2")));
    assert_eq!(names(&c.get(one).await.ok()), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_that_are_refused() {
    let Some((c, _)) = workspace("crd-refused").await else { return };
    let with = |schema: Value| {
        definition(
            "bad.example.com",
            "bads",
            "Bad",
            json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]),
        )
    };
    for (schema, want) in [
        (
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            "spec.validation.openAPIV3Schema.properties[a].items: Required value: must be specified",
        ),
        (json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.nope == 1"}]}), "undefined field 'nope'"),
        (
            json!({"type": "object", "properties": {"s": {"type": "string", "default": 5}}}),
            "properties[s].default: Invalid value",
        ),
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}},
                "x-kubernetes-validations": [{"rule": "self.l.all(x, self.l.exists_one(y, x == y))"}]}),
            "x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
        ),
    ] {
        let answer = c.post(DEFINITIONS, with(schema)).await;
        assert_eq!(answer.code, 422, "{}", answer.text());
        assert!(answer.text().contains(want), "{want}: {}", answer.text());
    }
}

/// Ownership of a field in one version is ownership of its converted field in the other.
#[tokio::test(flavor = "multi_thread")]
async fn owners_are_compared_in_their_own_version() {
    let Some((c, ns)) = workspace("crd-owners").await else { return };
    let cluster = cluster().await.expect("cluster");
    let hook = host_converter(cluster).await;
    let group = "owned.example.com";
    define(&c, hosts(group, &hook)).await;
    let path = |version: &str| ns.replace("/api/v1", &format!("/apis/{group}/{version}")) + "/hosts/a";
    let apply = async |version: &str, manager: &str, spec: Value| {
        let object = json!({"apiVersion": format!("{group}/{version}"), "kind": "Host", "metadata": {"name": "a"}, "spec": spec});
        c.patch(&format!("{}?fieldManager={manager}", path(version)), "apply-patch+yaml", object).await
    };
    let owners = |object: &Value| -> Vec<(Value, Value, Value)> {
        let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        entries.map(|e| (e["manager"].clone(), e["apiVersion"].clone(), e["fieldsV1"]["f:spec"].clone())).collect()
    };
    apply("v1", "first", json!({"host": "x"})).await.ok();
    // The same value is shared, another one is a conflict about the owner's field.
    let shared = apply("v2", "second", json!({"address": "x"})).await.ok();
    assert_eq!(shared["spec"], json!({"address": "x"}));
    let (first, second) = (
        (json!("first"), json!("owned.example.com/v1"), json!({"f:host": {}})),
        (json!("second"), json!("owned.example.com/v2"), json!({"f:address": {}})),
    );
    // An apply that changed nothing has no time, and stands first.
    assert_eq!(owners(&shared), [second, first]);
    let (code, reason, message) = apply("v2", "second", json!({"address": "y"})).await.failure();
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"first\": .spec.host");
    // A write through the other version takes the field from both.
    let body = json!({"spec": {"host": "z"}});
    let taken = c.patch(&format!("{}?fieldManager=third", path("v1")), "merge-patch+json", body).await.ok();
    let third = (json!("third"), json!("owned.example.com/v1"), json!({"f:host": {}}));
    assert_eq!(owners(&taken).into_iter().filter(|(_, _, fields)| !fields.is_null()).collect::<Vec<_>>(), [third]);
    // What its applier no longer names goes, in whatever version it was named.
    apply("v1", "fourth&force=true", json!({"host": "w", "note": "n"})).await.ok();
    let gone = apply("v2", "fourth&force=true", json!({"note": "n"})).await.ok();
    assert_eq!(gone["spec"], json!({"note": "n"}));
    // Where nothing is left, upstream leaves null, which this schema does not take.
    let (code, _, message) = apply("v2", "fourth&force=true", json!({})).await.failure();
    assert_eq!(code, 422);
    assert!(message.ends_with("spec in body must be of type object: \"null\""), "{message}");
}
