//! CBOR, behind its feature gate: requests, answers, watches, and how custom resources are stored.

use bytes::Bytes;
use proto::cbor::{SELF_DESCRIBED, encode, to_json};
use proto::{json, schema};
use serde_json::{Value, json};

use crate::custom::{define, definition};
use crate::harness::{Answer, Client, Cluster, etcd_is_missing};

const CBOR: &str = "application/cbor";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn read(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), CBOR, "{}", answer.text());
    assert!(answer.bytes.starts_with(&SELF_DESCRIBED));
    json::decode_any(&to_json(&answer.bytes).expect("CBOR")).expect("JSON")
}

async fn send(c: &Client, method: &str, path: &str, kind: &str, body: Option<Vec<u8>>) -> Answer {
    c.call(method, path, &[("Accept", CBOR), ("Content-Type", kind)], body.map(Bytes::from)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_round_trip_in_cbor() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| vec!["--feature-gates=CBORServingAndStorage=true".to_owned()]).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}, "binaryData": {"b": "AAEC"}});
    let body = encode(schema::kind("", "v1", "ConfigMap"), &map);
    assert!(body.windows(5).any(|bytes| bytes == [0xd6, 0x43, 0, 1, 2]), "bytes are bare");
    let made = read(&send(&c, "POST", MAPS, CBOR, Some(body.clone())).await);
    assert_eq!((&made["data"]["k"], &made["binaryData"]["b"]), (&json!("1"), &json!("AAEC")));
    assert_eq!(c.get(&format!("{MAPS}/a")).await.ok()["binaryData"]["b"], "AAEC");
    let list = read(&send(&c, "GET", MAPS, CBOR, None).await);
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("ConfigMapList"), &json!("a")));
    let table = c.call("GET", MAPS, &[("Accept", "application/cbor;as=Table;g=meta.k8s.io;v=v1")], None).await;
    assert_eq!(read(&table)["rows"][0]["cells"][1], 2);

    // What is wrong is said in CBOR, too.
    let again = send(&c, "POST", MAPS, CBOR, Some(body.clone())).await;
    assert_eq!((again.code, read(&again)["reason"].clone()), (409, json!("AlreadyExists")));
    let twice = [&SELF_DESCRIBED[..], b"\xa2Aa\x01Aa\x02"].concat();
    let refused = read(&send(&c, "POST", MAPS, CBOR, Some(twice)).await);
    let message = "the object provided is unrecognized (must be of type ConfigMap): unable to determine group/version/kind: cbor: found duplicate map key \"a\" at map element index 1 (d9d9f7a2416101416102)";
    assert_eq!((&refused["code"], &refused["message"]), (&json!(400), &json!(message)));
    let unknown = c.send("POST", MAPS, "text/plain", Some(Bytes::from_static(b"x"))).await;
    let message = "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/cbor";
    assert_eq!((unknown.code, unknown.json()["message"].as_str()), (415, Some(message)));
    let refused = c.send("GET", MAPS, "text/html", None).await.json();
    assert!(refused["message"].as_str().is_some_and(|m| m.ends_with(", application/cbor-seq")), "{refused}");

    // Apply, and a watch.
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "2"}});
    let path = format!("{MAPS}/a?fieldManager=m");
    let applied = send(&c, "PATCH", &path, "application/apply-patch+cbor", Some(encode(None, &config))).await;
    assert_eq!((applied.code, read(&applied)["data"].clone()), (200, json!({"k": "1", "x": "2"})));
    let watch = send(&c, "GET", &format!("{MAPS}?watch=1&timeoutSeconds=1"), CBOR, None).await;
    assert_eq!(watch.header("content-type"), "application/cbor-seq");
    let event = json::decode_any(&to_json(&watch.bytes).expect("one event")).expect("JSON");
    assert_eq!((&event["type"], &event["object"]["data"]["x"]), (&json!("ADDED"), &json!("2")));

    let options = encode(None, &json!({"preconditions": {"uid": "nobody"}}));
    assert_eq!(send(&c, "DELETE", &format!("{MAPS}/a"), CBOR, Some(options)).await.code, 409);
    assert_eq!(read(&send(&c, "DELETE", &format!("{MAPS}/a"), CBOR, None).await)["status"], "Success");

    custom_objects_are_stored_in_it(&c).await;
}

async fn custom_objects_are_stored_in_it(c: &Cluster) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}}]);
    define(c, definition("cbor.example.com", "nuts", "Nut", version)).await;
    let nuts = "/apis/cbor.example.com/v1/namespaces/default/nuts";
    let nut = json!({"apiVersion": "cbor.example.com/v1", "kind": "Nut", "metadata": {"name": "n"}, "spec": {"weight": 0.30000000000000004, "of": [1, "x", null]}});
    let made = c.post(nuts, nut.clone()).await.ok();
    let key = "/registry/cbor.example.com/nuts/default/n";
    let (stored, _) = c.stored(key).await.expect("stored");
    assert!(stored.starts_with(&SELF_DESCRIBED), "{}", stored.escape_ascii());
    for read in [c.get(&format!("{nuts}/n")).await.ok(), c.get(nuts).await.ok()["items"][0].clone()] {
        assert_eq!(read["spec"], nut["spec"]);
    }
    let same = c.put(&format!("{nuts}/n"), &made).await.ok();
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"], "nothing has changed");
    assert_eq!(read(&send(c, "GET", &format!("{nuts}/n"), CBOR, None).await)["spec"], nut["spec"]);

    // What was stored before is read as well, and is stored in CBOR with the next write.
    let text = json::decode_any(&to_json(&stored).expect("CBOR")).expect("JSON").to_string();
    c.etcd_client().await.kv_client().put(key, text, None).await.expect("written");
    let touched = c.patch(&format!("{nuts}/n"), "merge-patch+json", json!({"spec": {"more": true}})).await.ok();
    assert_eq!((&touched["spec"]["weight"], &touched["spec"]["more"]), (&nut["spec"]["weight"], &json!(true)));
    assert!(c.stored(key).await.is_some_and(|(stored, _)| stored.starts_with(&SELF_DESCRIBED)));
}

/// A server without the gate reads what one with it has written, and speaks no CBOR.
#[tokio::test(flavor = "multi_thread")]
async fn cbor_is_only_decoded_from_etcd_without_its_gate() {
    let Some((c, _)) = crate::workspace("no-cbor").await else { return };
    let cluster = crate::cluster().await.expect("it is there");
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}}]);
    define(&c, definition("nocbor.example.com", "nuts", "Nut", version)).await;
    let nuts = "/apis/nocbor.example.com/v1/namespaces/no-cbor/nuts";
    let nut = json!({"apiVersion": "nocbor.example.com/v1", "kind": "Nut", "metadata": {"name": "n", "namespace": "no-cbor", "uid": "u"}, "spec": {"a": 1}});
    let key = "/registry/nocbor.example.com/nuts/no-cbor/n";
    cluster.etcd_client().await.kv_client().put(key, encode(None, &nut), None).await.expect("written");
    assert_eq!(c.get(&format!("{nuts}/n")).await.ok()["spec"], json!({"a": 1}));
    c.patch(&format!("{nuts}/n"), "merge-patch+json", json!({"spec": {"a": 2}})).await.ok();
    assert!(cluster.stored(key).await.is_some_and(|(stored, _)| stored.starts_with(b"{")));

    let body = || Some(encode(None, &json!({"metadata": {"name": "x"}})));
    assert_eq!(send(&c, "GET", MAPS, "", None).await.code, 406);
    let refused = c.send("POST", MAPS, CBOR, body().map(Bytes::from)).await;
    assert_eq!(refused.failure().1, "UnsupportedMediaType");
    let path = format!("{MAPS}/x?fieldManager=m");
    let apply = c.send("PATCH", &path, "application/apply-patch+cbor", body().map(Bytes::from)).await;
    assert_eq!(apply.code, 415);
}
