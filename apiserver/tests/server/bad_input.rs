//! Invalid input: the response is upstream's, and nothing of it is stored.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::harness::Client;
use crate::workspace;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(crate) async fn names(c: &Client, path: &str) -> Vec<String> {
    let list = c.get(path).await.ok();
    list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|o| o["metadata"]["name"].as_str().unwrap_or("").to_owned())
        .collect()
}

fn nested(open: &str, close: &str, levels: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x"}},"data":{{"a":{}{}}}}}"#,
        open.repeat(levels),
        close.repeat(levels)
    )
}

/// `message` is what the answer's message starts with.
struct Case {
    what: &'static str,
    content_type: &'static str,
    body: Vec<u8>,
    code: u16,
    reason: &'static str,
    message: &'static str,
}

fn case(
    what: &'static str,
    content_type: &'static str,
    body: impl Into<Vec<u8>>,
    code: u16,
    reason: &'static str,
    message: &'static str,
) -> Case {
    Case { what, content_type, body: body.into(), code, reason, message }
}

const UNRECOGNIZED: &str = "the object provided is unrecognized (must be of type ConfigMap): ";
const UNHANDLED: &str = r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: "#;

const UNNAMED: &str = r#"ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required"#;

fn bodies(valid: &[u8]) -> Vec<Case> {
    let json = "application/json";
    let yaml = "application/yaml";
    let mut list = vec![
        case("not JSON", json, "nope", 400, "BadRequest", UNRECOGNIZED),
        case(
            "half an object",
            json,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x""#,
            400,
            "BadRequest",
            UNRECOGNIZED,
        ),
        case(
            "something after the object",
            json,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}} {"#,
            400,
            "BadRequest",
            UNRECOGNIZED,
        ),
        case("nothing", json, "", 400, "BadRequest", UNRECOGNIZED),
        case(
            "null",
            json,
            "null",
            422,
            "Invalid",
            r#"ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required"#,
        ),
        case("a number", json, "5", 400, "BadRequest", UNRECOGNIZED),
        case("deep objects", json, nested(r#"{"a":"#, "}", 100_000), 400, "BadRequest", ""),
        case("deep lists", json, nested("[", "]", 100_000), 400, "BadRequest", ""),
        case("deep and never closed", json, "[".repeat(1_000_000), 400, "BadRequest", UNRECOGNIZED),
        case("YAML with a tab", yaml, "a:\n\t- b", 400, "BadRequest", UNRECOGNIZED),
        case("deep YAML", yaml, "[".repeat(100_000), 400, "BadRequest", ""),
        case(
            "bytes that are no text, as YAML",
            yaml,
            b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"\xff\xfe\"}".as_slice(),
            400,
            "BadRequest",
            "",
        ),
        case(
            "no protobuf envelope",
            PROTOBUF,
            "nope",
            400,
            "BadRequest",
            "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (6e6f7065)",
        ),
        case(
            "JSON that says protobuf",
            PROTOBUF,
            r#"{"apiVersion":"v1","kind":"ConfigMap"}"#,
            400,
            "BadRequest",
            UNRECOGNIZED,
        ),
        case("only the prefix", PROTOBUF, b"k8s\0".as_slice(), 422, "Invalid", UNNAMED),
        case(
            "an unknown media type",
            "text/plain",
            "x",
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: ",
        ),
        case(
            "3 MiB and a byte",
            json,
            vec![b' '; (3 << 20) + 1],
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        ),
        case(
            "a number for a text",
            json,
            r#"{"metadata":{"name":5}}"#,
            400,
            "BadRequest",
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string",
        ),
        case("a list for a map", json, r#"{"metadata":{"name":"x"},"data":[]}"#, 400, "BadRequest", UNHANDLED),
        case(
            "another kind",
            json,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}"#,
            400,
            "BadRequest",
            r#"Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"#,
        ),
        case(
            "an unknown kind",
            json,
            r#"{"apiVersion":"v1","kind":"Nope","metadata":{"name":"x"}}"#,
            400,
            "BadRequest",
            r#"Nope in version "v1" cannot be handled as a ConfigMap: no kind "Nope" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111""#,
        ),
        case(
            "an unknown version",
            json,
            r#"{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"x"}}"#,
            400,
            "BadRequest",
            r#"ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v2" in scheme "pkg/runtime/scheme.go:111""#,
        ),
        case(
            "another namespace",
            json,
            r#"{"metadata":{"name":"x","namespace":"other"}}"#,
            400,
            "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ];
    // Parts of a valid message; the one that ends after the type is an object without anything.
    let typed = 6 + usize::from(valid[5]);
    for end in (5..valid.len() - 4).step_by(7).filter(|end| *end != typed) {
        list.push(case("a part of a protobuf message", PROTOBUF, &valid[..end], 400, "BadRequest", ""));
    }
    list.push(case("only the type", PROTOBUF, &valid[..typed], 422, "Invalid", UNNAMED));
    // Lengths that point beyond the end, or beyond any end.
    for tail in [
        b"\x12\xff\xff\xff\xff\x0f".as_slice(),
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\x7f\x00",
        b"\x0b\x0c\x0d",
    ] {
        list.push(case(
            "a length that is not there",
            PROTOBUF,
            [b"k8s\0".as_slice(), tail].concat(),
            400,
            "BadRequest",
            "",
        ));
    }
    list
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_objects() {
    let Some((c, ns)) = workspace("bad-bodies").await else { return };
    let maps = format!("{ns}/configmaps");
    let object = json!({"metadata": {"name": "model"}, "data": {"key": "value"}});
    c.post(&maps, object).await.ok();
    let valid = c.send("GET", &format!("{maps}/model"), PROTOBUF, None).await.bytes;
    let before = c.get(&maps).await.ok()["items"].clone();
    for t in bodies(&valid) {
        let answer = c.send("POST", &maps, t.content_type, Some(Bytes::from(t.body))).await;
        let (code, reason, message) = answer.failure();
        assert_eq!((code, reason.as_str()), (t.code, t.reason), "{}: {}", t.what, answer.text());
        assert!(message.starts_with(t.message), "{}: {message}", t.what);
    }
    assert_eq!(c.get(&maps).await.ok()["items"], before, "nothing stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_text() {
    let Some((c, ns)) = workspace("bad-text").await else { return };
    let maps = format!("{ns}/configmaps");
    // Upstream's decoder puts U+FFFD in their place, as Go's does.
    let body = b"{\"metadata\":{\"name\":\"x\"},\"data\":{\"a\":\"\xff\xfe\"}}".as_slice();
    let made = c.send("POST", &maps, "application/json", Some(Bytes::from_static(body))).await.ok();
    assert_eq!(made["data"]["a"], "\u{fffd}\u{fffd}");
    let name = b"{\"metadata\":{\"name\":\"x\xff\"}}".as_slice();
    let refused = c.send("POST", &maps, "application/json", Some(Bytes::from_static(name))).await;
    assert_eq!((refused.code, refused.failure().1.as_str()), (422, "Invalid"));
    assert_eq!(names(&c, &maps).await, ["x"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_duplicate_fields() {
    let Some((c, ns)) = workspace("bad-fields").await else { return };
    let maps = format!("{ns}/configmaps");
    let body = || {
        Some(Bytes::from_static(br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"f","name":"f","bar":2},"foo":1,"data":{"a":"1","a":"2"}}"#))
    };
    let path = |mode: &str| format!("{maps}?dryRun=All&fieldValidation={mode}");
    let strict = c.send("POST", &path("Strict"), "application/json", body()).await;
    let said = r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: "#;
    let (code, reason, message) = strict.failure();
    assert_eq!((code, reason.as_str()), (400, "BadRequest"));
    let parts: std::collections::BTreeSet<&str> =
        message.strip_prefix(said).expect("a strict decoding error").split(", ").collect();
    let want = [
        r#"duplicate field "data.a""#,
        r#"duplicate field "metadata.name""#,
        r#"unknown field "foo""#,
        r#"unknown field "metadata.bar""#,
    ];
    assert_eq!(parts, want.into());

    for mode in ["Warn", ""] {
        let warned = c.send("POST", &path(mode), "application/json", body()).await;
        warned.ok();
        let mut got: Vec<String> = warned.warnings().iter().map(|w| (*w).to_owned()).collect();
        got.sort();
        assert_eq!(got, want.map(|w| format!("299 - \"{}\"", w.replace('"', "\\\""))), "{mode}");
    }
    let ignored = c.send("POST", &path("Ignore"), "application/json", body()).await;
    assert_eq!(ignored.ok()["data"], json!({"a": "2"}), "the last one counts");
    assert!(ignored.warnings().is_empty());

    // YAML says the same.
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: w}\nfoo: 1\n";
    let strict = c.send("POST", &path("Strict"), "application/yaml", Some(Bytes::from(yaml))).await;
    strict.fails(400, "BadRequest", &format!("{said}unknown field \"foo\""));
    assert!(names(&c, &maps).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_name_something_else() {
    let Some((c, ns)) = workspace("bad-names").await else { return };
    let path = format!("{ns}/configmaps/a");
    let a = c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "a"}, "data": {"x": "1"}})).await.ok();
    let with = |pointer: &str, value: Value| {
        let mut o = a.clone();
        *o.pointer_mut(pointer).expect("a field") = value;
        o
    };
    c.put(&path, &with("/metadata/name", json!("b"))).await.fails(
        400,
        "BadRequest",
        "the name of the object (b) does not match the name on the URL (a)",
    );
    c.put(&path, &with("/metadata/namespace", json!("b"))).await.fails(
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    );
    let modified = r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#;
    c.put(&path, &with("/metadata/resourceVersion", json!("1"))).await.fails(409, "Conflict", modified);
    c.put(&path, &with("/metadata/resourceVersion", json!("abc"))).await.fails(
        500,
        "",
        r#"strconv.ParseUint: parsing "abc": invalid syntax"#,
    );
    c.patch(&path, "merge-patch+json", json!({"metadata": {"resourceVersion": "1"}}))
        .await
        .fails(409, "Conflict", modified);
    assert_eq!(c.get(&path).await.ok(), a);
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_that_are_none() {
    let Some((c, ns)) = workspace("bad-patches").await else { return };
    let path = format!("{ns}/configmaps/a");
    let a = c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "a"}, "data": {"x": "1"}})).await.ok();
    let rejected = "the server rejected our request due to an error in our request";
    for (what, kind, body, code, reason, message) in [
        (
            "a path that is not there",
            "json-patch+json",
            r#"[{"op":"remove","path":"/data/nope"}]"#,
            422,
            "Invalid",
            rejected,
        ),
        (
            "a path without a slash",
            "json-patch+json",
            r#"[{"op":"add","path":"data","value":1}]"#,
            422,
            "Invalid",
            rejected,
        ),
        (
            "a test that fails",
            "json-patch+json",
            r#"[{"op":"test","path":"/data/x","value":"2"}]"#,
            422,
            "Invalid",
            rejected,
        ),
        ("an unknown operation", "json-patch+json", r#"[{"op":"zap","path":"/data"}]"#, 422, "Invalid", rejected),
        (
            "half done, then failing",
            "json-patch+json",
            r#"[{"op":"add","path":"/data/y","value":"1"},{"op":"remove","path":"/nope"}]"#,
            422,
            "Invalid",
            rejected,
        ),
        (
            "no list",
            "json-patch+json",
            r#"{"op":"x"}"#,
            400,
            "BadRequest",
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        (
            "half a merge patch",
            "merge-patch+json",
            "{",
            400,
            "BadRequest",
            "error decoding patch: unexpected end of JSON input",
        ),
        (
            "half a strategic patch",
            "strategic-merge-patch+json",
            "{",
            400,
            "BadRequest",
            "unexpected end of JSON input",
        ),
        (
            "an unknown directive",
            "strategic-merge-patch+json",
            r#"{"data":{"$patch":"zap"}}"#,
            500,
            "",
            "unknown patch type: zap in map: map[$patch:zap]",
        ),
        ("an unknown kind of patch", "json", "{}", 415, "UnsupportedMediaType", "415: Unsupported Media Type"),
        (
            "another uid",
            "merge-patch+json",
            r#"{"metadata":{"uid":"x"}}"#,
            422,
            "Invalid",
            r#"ConfigMap "a" is invalid: metadata.uid: Invalid value: "x": field is immutable"#,
        ),
        (
            "another name",
            "merge-patch+json",
            r#"{"metadata":{"name":"b"}}"#,
            400,
            "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)",
        ),
    ] {
        let answer = c.send("PATCH", &path, &format!("application/{kind}"), Some(Bytes::from(body))).await;
        let (c, r, m) = answer.failure();
        assert_eq!((c, r.as_str(), m.as_str()), (code, reason, message), "{what}");
    }
    let deep = format!(r#"{{"data":{}1{}}}"#, r#"{"a":"#.repeat(50_000), "}".repeat(50_000));
    for kind in ["merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"] {
        let answer = c
            .send(
                "PATCH",
                &format!("{path}?fieldManager=m"),
                &format!("application/{kind}"),
                Some(Bytes::from(deep.clone())),
            )
            .await;
        assert!(
            (400..500).contains(&answer.code),
            "{kind}: {} {}",
            answer.code,
            answer.text().chars().take(300).collect::<String>()
        );
    }
    assert_eq!(c.get(&path).await.ok(), a, "nothing stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_etcd_does_not_take() {
    let Some((c, _)) = workspace("bad-large").await else { return };
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let kind = crate::custom::definition("large.example.com", "slabs", "Slab", json!([version]));
    crate::custom::define(&c, kind).await;
    let slabs = "/apis/large.example.com/v1/namespaces/bad-large/slabs";
    for (size, why) in [
        (1_600_000, "etcdserver: request is too large"),
        (2_500_000, "rpc error: code = ResourceExhausted desc = trying to send message larger than max ("),
    ] {
        let slab = json!({"apiVersion": "large.example.com/v1", "kind": "Slab", "metadata": {"name": "s"}, "spec": "x".repeat(size)});
        let refused = c.post(slabs, slab).await;
        let said = refused.json();
        let message = said["message"].as_str().unwrap_or_default();
        assert!(refused.code == 500 && said["reason"].is_null() && message.starts_with(why), "{said}");
    }
    assert!(names(&c, slabs).await.is_empty());
}
