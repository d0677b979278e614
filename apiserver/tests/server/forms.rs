//! Lists in all their forms: each says the same, however it was put together.

use std::io::Read as _;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Answer, Client};
use crate::{cluster, workspace};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn unpacked(answer: &Answer) -> Vec<u8> {
    assert_eq!((answer.header("content-encoding"), answer.header("vary")), ("gzip", "Accept-Encoding"));
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(&answer.bytes[..]).read_to_end(&mut out).expect("one stream");
    out
}

async fn packed(c: &Client, path: &str, accept: &str) -> Answer {
    c.call("GET", path, &[("Accept", accept), ("Accept-Encoding", "gzip")], None).await
}

/// A JSON list without its metadata: others write meanwhile.
fn rest(list: &[u8]) -> &[u8] {
    let mark = br#""items":["#;
    let at = list.windows(mark.len()).position(|w| w == mark).expect("a list");
    &list[at..]
}

/// A list in protobuf as a tree.
fn decoded(bytes: &[u8]) -> Value {
    proto::protobuf::decode_envelope(bytes).expect("an enveloped list")
}

#[tokio::test(flavor = "multi_thread")]
async fn all_forms_say_the_same() {
    let Some((c, ns)) = workspace("forms").await else { return };
    let maps = format!("{ns}/configmaps");
    let filler: String = "a <b> & \u{2028} é ".repeat(60);
    join_all((0..300).map(|i| {
        let (c, maps, filler) = (&c, &maps, &filler);
        async move {
            let labels = json!({"third": (i % 3).to_string(), "own": i.to_string()});
            let map = json!({"metadata": {"name": format!("m{i:03}"), "labels": labels}, "data": {"k": filler}});
            c.post(maps, map).await.ok();
        }
    }))
    .await;
    let whole = c.get(&maps).await.ok();
    let items = whole["items"].as_array().expect("items").clone();
    assert_eq!(items.len(), 300);
    // Twice: made for the first, kept for the second. And once more when one of them has changed.
    for round in 0..3 {
        if round == 2 {
            c.patch(&format!("{maps}/m150"), "merge-patch+json", json!({"data": {"new": "1"}})).await.ok();
        }
        let plain = c.get(&maps).await;
        let whole = plain.ok();
        let items = whole["items"].as_array().expect("items").clone();
        let zipped = packed(&c, &maps, "application/json").await;
        assert!(rest(&unpacked(&zipped)) == rest(&plain.bytes), "round {round}");
        assert!(zipped.bytes.len() < plain.bytes.len() / 4);

        let protobuf = c.send("GET", &maps, PROTOBUF, None).await;
        let tree = decoded(&protobuf.bytes);
        for (a, b) in tree["items"].as_array().expect("items").iter().zip(&items) {
            assert_eq!((&a["metadata"], &a["data"]), (&b["metadata"], &b["data"]));
        }
        assert_eq!(decoded(&unpacked(&packed(&c, &maps, PROTOBUF).await))["items"], tree["items"]);

        let table = c.send("GET", &maps, TABLE, None).await.ok();
        let rows = table["rows"].as_array().expect("rows");
        assert_eq!((rows.len(), &table["kind"]), (300, &json!("Table")));
        assert_eq!(table["columnDefinitions"].as_array().map(Vec::len), Some(3));
        for (row, item) in rows.iter().zip(&items) {
            assert_eq!(
                (&row["cells"][0], &row["cells"][1]),
                (&item["metadata"]["name"], &json!(item["data"].as_object().map_or(0, serde_json::Map::len)))
            );
            assert!(row["cells"][2].as_str().is_some_and(|age| age.ends_with('s') || age.ends_with('m')), "{row}");
            assert_eq!(
                (&row["object"]["kind"], &row["object"]["metadata"]),
                (&json!("PartialObjectMetadata"), &item["metadata"])
            );
        }
        let objects = c.send("GET", &format!("{maps}?includeObject=Object"), TABLE, None).await.ok();
        assert_eq!(objects["rows"][150]["object"]["data"], items[150]["data"]);
        let none = c.send("GET", &format!("{maps}?includeObject=None"), TABLE, None).await.ok();
        assert_eq!(none["rows"][150]["object"], Value::Null);

        let metadata = c.send("GET", &maps, METADATA, None).await.ok();
        assert_eq!(metadata["kind"], "PartialObjectMetadataList");
        let short = decoded(&c.send("GET", &maps, &METADATA.replace("application/json", PROTOBUF), None).await.bytes);
        for (i, item) in items.iter().enumerate() {
            assert_eq!(metadata["items"][i]["metadata"], item["metadata"]);
            assert_eq!(short["items"][i]["metadata"], item["metadata"]);
        }
    }
    // Selective lists, through an index from the second on, are the whole list filtered.
    for _ in 0..4 {
        for (selector, wanted) in
            [("third%3D1", 100), ("third+in+(0,2)", 200), ("own%3D77", 1), ("own%3Dnone", 0), ("third%3D1,own%3D76", 1)]
        {
            let found = c.get(&format!("{maps}?labelSelector={selector}")).await.ok();
            assert_eq!(found["items"].as_array().map(Vec::len), Some(wanted), "{selector}");
        }
    }
    c.patch(&format!("{maps}/m076"), "merge-patch+json", json!({"metadata": {"labels": {"third": "0"}}})).await.ok();
    c.delete(&format!("{maps}/m079")).await.ok();
    let found = c.get(&format!("{maps}?labelSelector=third%3D1")).await.ok();
    assert_eq!(found["items"].as_array().map(Vec::len), Some(98));
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_metadata_has_the_negotiated_form() {
    let Some((c, ns)) = workspace("metadata-forms").await else { return };
    let maps = format!("{ns}/configmaps");
    c.post(&maps, json!({"metadata": {"name": "a"}})).await.ok();
    let (one, lease) = (METADATA.replace("List", ""), json!({"metadata": {"name": "a"}}));
    let not_a_list = |found: &str| {
        format!("you requested PartialObjectMetadataList, but the requested object is not a list (*{found})")
    };
    let a_list =
        |found: &str| format!("you requested PartialObjectMetadata, but the requested object is a list (*{found})");
    let leases = maps.replace("/api/v1", "/apis/coordination.k8s.io/v1").replace("configmaps", "leases");
    for (method, path, accept, body, want) in [
        ("GET", format!("{maps}/a"), METADATA, None, not_a_list("core.ConfigMap")),
        ("GET", maps.clone(), &*one, None, a_list("core.ConfigMapList")),
        ("GET", "/apis/events.k8s.io/v1/events".to_owned(), &*one, None, a_list("core.EventList")),
        ("GET", "/api/v1/componentstatuses".to_owned(), &*one, None, a_list("core.ComponentStatusList")),
        ("POST", leases.clone(), METADATA, Some(lease), not_a_list("coordination.Lease")),
        ("GET", leases.clone(), &*one, None, a_list("coordination.LeaseList")),
    ] {
        let body = body.map(|b| Bytes::from(b.to_string()));
        let headers = [("Accept", accept), ("Content-Type", "application/json")];
        let answer = c.call(method, &path, &headers, body).await;
        let status = answer.json();
        assert_eq!(
            (answer.code, status["reason"].as_str(), status["message"].as_str()),
            (406, Some("NotAcceptable"), Some(&*want)),
            "{method} {path}"
        );
    }
    // What could not be shown was written all the same, and a change comes as it is.
    c.get(&format!("{leases}/a")).await.ok();
    let frames = c.send("GET", &format!("{maps}?watch=1&timeoutSeconds=1"), METADATA, None).await;
    let first = frames.bytes.split(|b| *b == b'\n').next().unwrap_or_default();
    let first: Value = serde_json::from_slice(first).expect("a frame");
    assert_eq!(first["object"]["kind"], "ConfigMap");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_share_one_revision() {
    let Some((c, ns)) = workspace("pages").await else { return };
    let maps = format!("{ns}/configmaps");
    for i in 0..20 {
        c.post(&maps, json!({"metadata": {"name": format!("m{i:02}")}, "data": {"at": "first"}})).await.ok();
    }
    let whole = c.get(&maps).await.ok();
    let first = c.get(&format!("{maps}?limit=5")).await.ok();
    assert_eq!(first["metadata"]["remainingItemCount"], 15);
    // What happens meanwhile is not seen on later pages.
    c.delete(&format!("{maps}/m12")).await.ok();
    c.post(&maps, json!({"metadata": {"name": "m12x"}})).await.ok();
    c.patch(&format!("{maps}/m17"), "merge-patch+json", json!({"data": {"at": "later"}})).await.ok();
    c.patch(&format!("{maps}/m17"), "merge-patch+json", json!({"data": {"at": "last"}})).await.ok();
    let mut pages = first["items"].as_array().expect("items").clone();
    let mut token = first["metadata"]["continue"].as_str().expect("more").to_owned();
    loop {
        let page = c.get(&format!("{maps}?limit=5&continue={token}")).await.ok();
        assert_eq!(page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        pages.extend(page["items"].as_array().expect("items").iter().cloned());
        match page["metadata"]["continue"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    assert_eq!(Value::from(pages), whole["items"]);
    let exact = format!(
        "{maps}?resourceVersionMatch=Exact&resourceVersion={}",
        whole["metadata"]["resourceVersion"].as_str().expect("one")
    );
    assert_eq!(c.get(&exact).await.ok()["items"], whole["items"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_protobuf_bodies_are_accepted() {
    let Some((c, ns)) = workspace("bodies").await else { return };
    let schema = proto::schema::kind("", "v1", "ConfigMap").expect("schema");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": {"k": "x".repeat(700_000)}});
    let body = Bytes::from(proto::protobuf::encode_envelope(schema, &map));
    let headers = [("Content-Type", PROTOBUF), ("Accept", PROTOBUF)];
    let made = c.call("POST", &format!("{ns}/configmaps"), &headers, Some(body)).await;
    assert_eq!(made.code, 201);
    assert_eq!(decoded(&made.bytes)["data"], map["data"]);
    let read = packed(&c, &format!("{ns}/configmaps/large"), "application/json").await;
    assert_eq!(serde_json::from_slice::<Value>(&unpacked(&read)).expect("JSON")["data"], map["data"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_over_websocket_sends_an_event_per_message() {
    let Some((c, ns)) = workspace("sockets").await else { return };
    let Some(server) = cluster().await else { return };
    let maps = format!("{ns}/configmaps");
    for name in ["a", "b"] {
        c.post(&maps, json!({"metadata": {"name": name}})).await.ok();
    }
    let url = format!("wss://localhost{maps}?watch=1&timeoutSeconds=20");
    let refused = tokio_tungstenite::client_async(url.as_str(), server.connection().await).await;
    let code = |error| if let tungstenite::Error::Http(answer) = error { answer.status().as_u16() } else { 0 };
    assert_eq!(refused.err().map(code), Some(403), "upstream's library wants to know which page asks");
    let mut asked = tungstenite::client::IntoClientRequest::into_client_request(url).expect("a request");
    asked.headers_mut().insert("Origin", http::HeaderValue::from_static("https://web.example"));
    let (mut socket, answer) =
        tokio_tungstenite::client_async(asked, server.connection().await).await.expect("a handshake");
    assert_eq!(answer.status(), 101);
    c.delete(&format!("{maps}/a")).await.ok();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let Some(Ok(tungstenite::Message::Text(text))) = socket.next().await else { break };
        let event: Value = serde_json::from_str(&text).expect("one event");
        seen.push(format!("{} {}", event["type"], event["object"]["metadata"]["name"]).replace('"', ""));
    }
    assert_eq!(seen, ["ADDED a", "ADDED b", "DELETED a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_have_no_table() {
    let Some((c, ns)) = workspace("no-table").await else { return };
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    for (path, body) in [
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(), review),
        (format!("{ns}/serviceaccounts/default/token"), json!({})),
    ] {
        let ask = async |accept: &str| {
            let headers = [("Accept", accept), ("Content-Type", "application/json")];
            c.call("POST", &path, &headers, Some(Bytes::from(body.to_string()))).await
        };
        let offered = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        ask(TABLE).await.fails(
            406,
            "NotAcceptable",
            &format!("only the following media types are accepted: {offered}"),
        );
        assert!(ask(&format!("{TABLE},application/json")).await.ok()["kind"].is_string());
    }
}

/// Strings are quoted as upstream's emitter quotes them; the table is in the crate that writes them.
#[tokio::test(flavor = "multi_thread")]
async fn yaml_output_matches_upstream() {
    let Some((c, ns)) = workspace("yaml").await else { return };
    let data = json!({"a10": "yes", "a2": "x: y", "lines": "a\nb\n", "number": "0644", "plain": "a:b", "blank": ""});
    c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "m"}, "data": data})).await.ok();
    let text = c.send("GET", &format!("{ns}/configmaps/m"), "application/yaml", None).await.text();
    let want = "apiVersion: v1\ndata:\n  a2: 'x: y'\n  a10: \"yes\"\n  blank: \"\"\n  lines: |\n    a\n    b\n  number: \"0644\"\n  \
                plain: a:b\nkind: ConfigMap\nmetadata:\n  creationTimestamp: \"";
    assert!(text.starts_with(want), "{text}");
    assert!(text.contains("      f:data:\n        .: {}\n        f:a2: {}\n        f:a10: {}\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_get_indented_json() {
    let Some((c, ns)) = workspace("people").await else { return };
    let missing = format!("{ns}/configmaps/missing");
    for path in [missing.as_str(), "/apis/apps/v1", "/api", &ns] {
        for (query, agent, indented) in [
            ("", "curl/8.0", true),
            ("?pretty=false", "curl/8.0", false),
            ("?pretty=1", "kubectl", true),
            ("", "kubectl", false),
        ] {
            let answer = c.call("GET", &format!("{path}{query}"), &[("User-Agent", agent)], None).await;
            assert_eq!(
                answer.text().starts_with("{\n  \"kind\""),
                indented,
                "{path} {query} {agent}: {}",
                answer.text()
            );
        }
    }
}

/// NEL ends a line of YAML, and characters that are none of YAML's are not written at all.
#[tokio::test(flavor = "multi_thread")]
async fn yaml_write_errors_are_reported() {
    let Some((c, ns)) = workspace("odd-yaml").await else { return };
    let maps = format!("{ns}/configmaps");
    let map = |name: &str, text: &str| json!({"metadata": {"name": name}, "data": {"k": text}});
    c.post(&maps, map("nel", "a\u{85}b")).await.ok();
    let text = c.send("GET", &format!("{maps}/nel"), "application/yaml", None).await.text();
    assert!(text.starts_with("apiVersion: v1\ndata:\n  k: a b\nkind: ConfigMap\n"), "{text}");
    c.post(&maps, map("control", "a\u{80}b")).await.ok();
    for path in [format!("{maps}/control"), maps.clone()] {
        let refused = c.send("GET", &path, "application/yaml", None).await;
        let text = refused.text();
        assert_eq!(refused.code, 500, "{text}");
        assert!(text.contains("message: 'yaml: control characters are not allowed'\n"), "{text}");
        assert_eq!(c.get(&path).await.code, 200);
    }
}
