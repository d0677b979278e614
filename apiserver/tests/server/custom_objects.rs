//! Custom objects: what they may embed, their scale, and the tables they are shown in.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::custom::{define, definition};
use crate::harness::{Answer, Client, eventually};
use crate::{cluster, workspace};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

async fn table(c: &Client, path: &str) -> Value {
    c.call("GET", path, &[("Accept", TABLE)], None).await.ok()
}

fn headers(table: &Value) -> Vec<&str> {
    table["columnDefinitions"].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect()
}

fn messages(answer: &Answer) -> Vec<String> {
    let status = answer.json();
    let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
    causes.iter().map(|c| format!("{}: {}", c["field"], c["message"]).replace('"', "")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_resources_are_validated() {
    let Some((c, ns)) = workspace("crd-embedded").await else { return };
    let embedded = |properties: Value| {
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
            "properties": properties})
    };
    let schema = json!({"type": "object", "properties": {
        "embedded": embedded(json!({})), "nested": embedded(json!({"embedded": embedded(json!({}))})),
        "other": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    define(&c, definition("embedded.example.com", "shells", "Shell", versions)).await;
    let path = ns.replace("/api/v1", "/apis/embedded.example.com/v1") + "/shells";
    let shell = |name: &str, mut parts: Value| {
        parts["apiVersion"] = json!("embedded.example.com/v1");
        parts["kind"] = json!("Shell");
        parts["metadata"] = json!({"name": name});
        parts
    };
    let foo = |metadata: Value| json!({"apiVersion": "foo/v1", "kind": "Foo", "metadata": metadata});
    let odd = json!({"name": "foo", "unspecified": "bar", "creationTimestamp": null});
    let mut nested = foo(odd.clone());
    nested["embedded"] = foo(odd.clone());
    let parts = json!({"embedded": foo(odd.clone()), "nested": nested, "other": foo(odd.clone())});
    let answer = c.post(&path, shell("a", parts.clone())).await;
    assert!(answer.warnings().iter().any(|w| w.contains(r#"unknown field \"embedded.metadata.unspecified\""#)));
    let made = answer.ok();
    let named = json!({"name": "foo"});
    assert_eq!((&made["embedded"]["metadata"], &made["nested"]["metadata"]), (&named, &named));
    assert_eq!((&made["nested"]["embedded"]["metadata"], &made["other"]["metadata"]), (&named, &odd));
    let strict = c.post(&format!("{path}?fieldValidation=Strict"), shell("b", parts)).await;
    assert_eq!(strict.code, 400, "{}", strict.text());

    let typed = shell("c", json!({"embedded": foo(json!({"name": "n", "namespace": 42}))}));
    let message = r#"Shell in version "v1" cannot be handled as a Shell: embedded.metadata: Invalid value: {"name":"n","namespace":42}: json: cannot unmarshal number into Go struct field ObjectMeta.namespace of type string"#;
    c.post(&path, typed.clone()).await.fails(400, "BadRequest", message);
    let patched = c.patch(&format!("{path}/a"), "merge-patch+json", json!({"embedded": typed["embedded"]})).await;
    assert_eq!(patched.code, 422, "{}", patched.text());
    assert!(
        patched.text().contains("cannot unmarshal number into Go struct field ObjectMeta.namespace of type string")
    );

    let bad = json!({"apiVersion": "foo/v1", "kind": "%", "metadata": {"name": ".."}});
    let refused = c.post(&path, shell("d", json!({"embedded": bad, "nested": {}}))).await;
    assert_eq!(refused.code, 422, "{}", refused.text());
    let found = messages(&refused);
    for wanted in [
        "embedded.kind: Invalid value: %: may have mixed case, but should otherwise match:",
        "embedded.metadata.name: Invalid value: ..:",
        "nested.apiVersion: Required value",
        "nested.kind: Required value",
    ] {
        let wanted = wanted.replace('"', "");
        assert!(found.iter().any(|m| m.replace('\\', "").starts_with(&wanted)), "{wanted}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_has_replicas_and_a_table() {
    let Some((c, ns)) = workspace("crd-scale").await else { return };
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}}]);
    define(&c, definition("scale.example.com", "kites", "Kite", versions)).await;
    let path = ns.replace("/api/v1", "/apis/scale.example.com/v1") + "/kites";
    let kite = json!({"apiVersion": "scale.example.com/v1", "kind": "Kite", "metadata": {"name": "a"}});
    c.post(&path, kite).await.ok();
    let scale = format!("{path}/a/scale");
    let none = "Internal error occurred: the spec replicas field \".spec.replicas\" does not exist";
    c.get(&scale).await.fails(500, "InternalError", none);
    let empty = "the spec replicas field \".spec.replicas\" cannot be empty";
    let named = json!({"metadata": {"annotations": {"a": "b"}}});
    c.patch(&scale, "merge-patch+json", named).await.fails(400, "BadRequest", empty);
    c.patch(&scale, "merge-patch+json", json!({"spec": {"replicas": 2}})).await.ok();
    assert_eq!(c.get(&scale).await.ok()["spec"]["replicas"], 2);
    let strategic = c.patch(&scale, "strategic-merge-patch+json", json!({"spec": {"replicas": 3}})).await;
    assert_eq!(strategic.code, 415, "{}", strategic.text());
    let shown = table(&c, &scale).await;
    assert_eq!((shown["kind"].as_str(), headers(&shown)), (Some("Table"), vec!["Name", "Age"]));

    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let path = ns.replace("/api/v1", "/apis/apps/v1") + "/deployments";
    c.post(&path, deployment).await.ok();
    let shown = table(&c, &format!("{path}/d/scale")).await;
    assert_eq!(headers(&shown), ["Name", "Desired", "Available", "Age"]);
    let cells = shown["rows"][0]["cells"].as_array().expect("cells");
    assert_eq!(cells[..3], [json!("d"), json!(3), json!(0)]);
    assert_eq!(shown["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let body =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 4}});
    let json_and_table = [("Content-Type", "application/json"), ("Accept", TABLE)];
    let put = c.call("PUT", &format!("{path}/d/scale"), &json_and_table, Some(Bytes::from(body.to_string()))).await;
    assert_eq!(put.ok()["rows"][0]["cells"][1], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_are_of_their_columns_types() {
    let Some((c, ns)) = workspace("crd-cells").await else { return };
    let column = |name: &str, kind: &str| json!({"name": name, "type": kind, "jsonPath": format!(".spec.{name}")});
    let columns = [("date", "date"), ("int", "integer"), ("num", "number"), ("text", "string"), ("flag", "boolean")];
    let versions = json!([{"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        "additionalPrinterColumns": columns.map(|(name, kind)| column(name, kind))}]);
    define(&c, definition("cells.example.com", "cages", "Cage", versions)).await;
    let path = ns.replace("/api/v1", "/apis/cells.example.com/v1") + "/cages";
    for (name, spec, wanted) in [
        (
            "fit",
            json!({"date": "", "int": 10, "num": 1.5, "text": "t", "flag": true}),
            json!(["fit", "<unknown>", 10, 1.5, "t", true]),
        ),
        (
            "other",
            json!({"date": "x", "int": 1.7, "num": 3, "text": [1, "a", {"b": 2}], "flag": "true"}),
            json!(["other", "<invalid>", 1, 3, "[1,\"a\",{\"b\":2}]", null]),
        ),
        ("wrong", json!({"date": 1, "int": "1", "num": "x"}), json!(["wrong", null, null, null, null, null])),
    ] {
        let cage =
            json!({"apiVersion": "cells.example.com/v1", "kind": "Cage", "metadata": {"name": name}, "spec": spec});
        c.post(&path, cage).await.ok();
        assert_eq!(table(&c, &format!("{path}/{name}")).await["rows"][0]["cells"], wanted);
    }
}

/// Elements that were there twice before they had to be unique do not keep anybody from writing the object.
#[tokio::test(flavor = "multi_thread")]
async fn stored_duplicates_are_kept() {
    let Some((c, ns)) = workspace("crd-twice").await else { return };
    let schema = |list: Value| {
        json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
        {"type": "object", "properties": {"list": list}}}}])
    };
    let list = json!({"type": "array", "items": {"type": "string"}});
    define(&c, definition("twice.example.com", "twos", "Two", schema(list.clone()))).await;
    let path = ns.replace("/api/v1", "/apis/twice.example.com/v1") + "/twos";
    let two = |name: &str| json!({"apiVersion": "twice.example.com/v1", "kind": "Two", "metadata": {"name": name}, "list": ["a", "a"]});
    c.post(&path, two("old")).await.ok();
    let mut unique = list;
    unique["x-kubernetes-list-type"] = json!("set");
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let change = json!({"spec": {"versions": schema(unique)}});
    c.patch(&format!("{definitions}/twos.twice.example.com"), "merge-patch+json", change).await.ok();
    let message = "Two.twice.example.com \"new\" is invalid: list[1]: Duplicate value: \"a\"";
    eventually("the new schema is served", async || {
        (c.post(&format!("{path}?dryRun=All"), two("new")).await.code == 422).then_some(())
    })
    .await;
    c.post(&path, two("new")).await.fails(422, "Invalid", message);
    let patch = |list: Value| json!({"metadata": {"labels": {"a": "b"}}, "list": list});
    let old = format!("{path}/old");
    c.patch(&old, "merge-patch+json", patch(json!(["a", "a", "b"]))).await.ok();
    c.patch(&old, "merge-patch+json", patch(json!(["a"]))).await.ok();
    let again = c.patch(&old, "merge-patch+json", patch(json!(["a", "a"]))).await;
    assert!(again.code == 422 && again.text().contains("Duplicate value"), "{}", again.text());
}

/// Errors of custom resources' paths are upstream's, which differ from those of built-in resources.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_of_custom_resources() {
    let Some((c, ns)) = workspace("crd-addresses").await else { return };
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    define(&c, definition("addresses.example.com", "doors", "Door", versions)).await;
    let all = "/apis/addresses.example.com/v1/doors";
    let path = ns.replace("/api/v1", "/apis/addresses.example.com/v1") + "/doors";
    let door = |kind: &str| json!({"apiVersion": "addresses.example.com/v1", "kind": kind, "metadata": {"name": "a"}});
    c.post(&path, door("Door")).await.ok();
    let head = async |path: &str| c.call("HEAD", path, &[], None).await;
    assert_eq!((head(&format!("{path}/a")).await.code, head(&format!("{path}/b")).await.code), (200, 404));
    assert_eq!(head(&path).await.bytes.len(), 0);
    let nobodys = |answer: Answer| assert_eq!((answer.code, answer.text().as_str()), (404, "404 page not found\n"));
    nobodys(c.post(all, door("Door")).await);
    nobodys(c.get(&format!("{all}/a")).await);
    nobodys(c.get("/apis/addresses.example.com/v2/doors").await);
    nobodys(c.get("/apis/addresses.example.com/v1/windows").await);
    nobodys(c.get("/apis/addresses.example.com/v2").await);
    c.get(&format!("{path}/a/lock")).await.fails(404, "NotFound", r#"doors.addresses.example.com "a" not found"#);
    c.put(&path, &door("Door")).await.fails(400, "BadRequest", "name must be provided");
    let other = c.post(&path, door("Window")).await;
    assert!(
        other.text().contains(r#"Window.addresses.example.com \"a\" is invalid: kind: Invalid value"#),
        "{}",
        other.text()
    );
    let table = [("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let missing = c.call("GET", &format!("{path}/b"), &table, None).await;
    assert!(missing.text().starts_with("{\n  \"kind\": \"Status\""), "an error has no table: {}", missing.text());
    c.get(&format!("{path}?timeout=soon")).await.fails(
        400,
        "BadRequest",
        "invalid timeout specified in the request URL - time: invalid duration \"soon\"",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_objects_are_applied_as_yaml() {
    let Some((c, ns)) = workspace("crd-raw").await else { return };
    let schema = json!({"type": "object", "properties": {
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "nu": {"type": "object", "nullable": true, "additionalProperties": {"type": "integer"}},
        "i": {"type": "integer"},
        "any": {"x-kubernetes-preserve-unknown-fields": true}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    define(&c, definition("raw.example.com", "raws", "Raw", versions)).await;
    let path = ns.replace("/api/v1", "/apis/raw.example.com/v1") + "/raws";
    let head = "apiVersion: raw.example.com/v1\nkind: Raw\n";
    let yaml = |name: &str, rest: &str| Bytes::from(format!("{head}metadata: {{name: {name}}}\n{rest}"));
    let typed = [("Content-Type", "application/yaml")];

    // Words are what YAML 1.1 takes them for, unless they are quoted.
    let words = "any: {a: [yes, 'yes', 010, 1_000, 0x1F, ~, 1:30, 1.0], <<: {b: on}}\n";
    let made = c.call("POST", &path, &typed, Some(yaml("words", words))).await.ok();
    assert_eq!(made["any"], json!({"a": [true, "yes", 8, 1000, 31, null, "1:30", 1], "b": true}));
    let twice =
        c.call("POST", &format!("{path}?fieldValidation=Strict"), &typed, Some(yaml("x", "i: 1\ni: 2\n"))).await;
    let strict = r#"Raw in version "v1" cannot be handled as a Raw: strict decoding error: yaml: unmarshal errors:
  line 5: key "i" already set in map"#;
    twice.fails(400, "BadRequest", strict);

    // What is more than an integer is a number.
    let big = c.call("POST", &path, &typed, Some(yaml("big", "i: 9223372036854775808\n"))).await;
    assert_eq!(messages(&big), [r#"i: Invalid value: \number\: i in body must be of type integer: \number\"#]);

    // What is emptied is null, where that is a value.
    let apply = async |rest: &str| {
        let header = [("Content-Type", "application/apply-patch+yaml")];
        c.call("PATCH", &format!("{path}/applied?fieldManager=m"), &header, Some(yaml("applied", rest))).await
    };
    apply("m: {a: 1}\nnu: {a: 1}\n").await.ok();
    assert_eq!(apply("m: {a: 1}\nnu: {}\n").await.ok()["nu"], Value::Null);
    let emptied = apply("m: {}\nnu: {}\n").await;
    assert_eq!(messages(&emptied), [r#"m: Invalid value: \null\: m in body must be of type object: \null\"#]);

    // The names of deep fields are deeper than the fields.
    let deep = format!("any: {}1{}\n", "{a: ".repeat(250), "}".repeat(250));
    c.call("POST", &path, &typed, Some(yaml("deep", &deep))).await.ok();
    c.delete(&format!("{path}/deep")).await.ok();

    // A name in the address is not looked at.
    let other = json!({"apiVersion": "raw.example.com/v1", "kind": "Raw", "metadata": {"name": "named"}});
    assert_eq!(c.post(&format!("{path}/another"), other).await.ok()["metadata"]["name"], "named");
    let list = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let accept = |accept: &'static str| [("Accept", accept)];
    c.call("GET", &format!("{path}/named"), &accept(list), None).await.fails(500, "", "content is not a list");
    let shown = c.call("GET", &format!("{path}/named"), &accept(TABLE), None).await.text();
    assert!(
        shown.contains(r#""object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"#)
    );
    let over = c.get(&format!("{path}?watch=1&timeoutSeconds=-1")).await;
    assert_eq!(over.code, 200, "it has ended: {}", over.text());
}

/// Checks run in upstream's order, with upstream's errors.
#[tokio::test(flavor = "multi_thread")]
async fn writes_are_judged_in_upstreams_order() {
    let Some((c, ns)) = workspace("crd-order").await else { return };
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}},
        "status": {"type": "object", "properties": {"p": {"type": "string"}}}}}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "deprecated": true, "schema": schema, "subresources": {"status": {}}}]);
    define(&c, definition("order.example.com", "turns", "Turn", versions)).await;
    let path = ns.replace("/api/v1", "/apis/order.example.com/v1") + "/turns";
    let turn = |name: &str| json!({"apiVersion": "order.example.com/v1", "kind": "Turn", "metadata": {"name": name}, "spec": {"a": "x"}});

    let mut sent = turn("a");
    sent["extra"] = json!(1);
    let made = c.post(&path, sent.clone()).await;
    let deprecated = "299 - \"order.example.com/v1 Turn is deprecated\"";
    assert_eq!(made.warnings(), [deprecated, "299 - \"unknown field \\\"extra\\\"\""]);
    let misnamed = c.put(&format!("{path}/b"), &sent).await;
    assert_eq!((misnamed.code, misnamed.warnings().len()), (400, 2), "{}", misnamed.text());
    assert_eq!(c.patch(&format!("{path}/a"), "strategic-merge-patch+json", json!({})).await.warnings(), [deprecated]);

    let unknown = json!({"apiVersion": "order.example.com/v1", "kind": "Turn", "metadata": {"name": "none"}, "status": {"zz": 1}});
    let apply = |path: String, object: Value| {
        let (c, body) = (&c, Bytes::from(object.to_string()));
        async move { c.send("PATCH", &format!("{path}?fieldManager=m"), "application/apply-patch+yaml", Some(body)).await }
    };
    apply(format!("{path}/none/status"), unknown).await.fails(
        404,
        "NotFound",
        "turns.order.example.com \"none\" not found",
    );
    let mut nameless = turn("b");
    nameless["metadata"] = json!({});
    let why = "the name of the object (b based on URL) was undeterminable: name must be provided";
    apply(format!("{path}/b"), nameless).await.fails(400, "BadRequest", why);

    let both = json!({"metadata": {"finalizers": ["orphan", "foregroundDeletion"]}});
    let refused = c.patch(&format!("{path}/a"), "merge-patch+json", both).await;
    assert_eq!(messages(&refused).len(), 1, "{}", refused.text());
    let wrong = c.patch(&format!("{path}/a/status"), "merge-patch+json", json!({"status": {"p": 1}})).await;
    assert_eq!(
        messages(&wrong),
        ["status.p: Invalid value: \\integer\\: p in body must be of type string: \\integer\\"]
    );
    // Who owns what cannot be told of what is not of its type: nobody owns anything.
    let mut typeless = turn("c");
    typeless["status"] = json!({"p": 1});
    assert!(c.post(&path, typeless).await.ok()["metadata"]["managedFields"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_and_clients_get_the_bytes_that_gos_encoder_writes() {
    let Some((c, ns)) = workspace("crd-bytes").await else { return };
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    define(&c, definition("bytes.example.com", "notes", "Note", versions)).await;
    let path = ns.replace("/api/v1", "/apis/bytes.example.com/v1") + "/notes";
    let (given, written) = ("<a> & \u{2028}", r#"{"big":1e+21,"text":"\u003ca\u003e \u0026 \u2028"}"#);
    let note = json!({"apiVersion": "bytes.example.com/v1", "kind": "Note", "metadata": {"name": "a"},
        "spec": {"text": given, "big": 1e21}});
    let made = c.post(&path, note).await;
    let (stored, _) = cluster()
        .await
        .expect("cluster")
        .stored("/registry/bytes.example.com/notes/crd-bytes/a")
        .await
        .expect("stored");
    let stored = String::from_utf8(stored).expect("text");
    assert!(stored.ends_with("}\n"), "{stored}");
    let read = c.get(&format!("{path}/a")).await;
    let listed = c.get(&path).await;
    for text in [made.text(), stored, read.text(), listed.text()] {
        assert!(text.contains(written), "{text}");
    }
    assert_eq!(read.json()["spec"]["text"], given);
    let same = c.put(&format!("{path}/a"), &read.json()).await.ok();
    assert_eq!(same["metadata"]["resourceVersion"], read.json()["metadata"]["resourceVersion"]);
}
