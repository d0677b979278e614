//! Resources without a watch cache: `--watch-cache=false` and sizes of 0 in `--watch-cache-sizes`.

use serde_json::{Value, json};

use crate::harness::{Client, Cluster, etcd_is_missing, eventually};

const TEMPLATES: &str = "/api/v1/namespaces/default/podtemplates";

fn template(name: &str, color: &str) -> Value {
    let containers = json!([{"name": "c", "image": "i"}]);
    json!({"metadata": {"name": name, "labels": {"color": color}}, "template": {"spec": {"containers": containers}}})
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).expect("a revision")
}

fn seen(frames: &[Value]) -> Vec<(&str, &str)> {
    frames
        .iter()
        .map(|f| (f["type"].as_str().unwrap_or(""), f["object"]["metadata"]["name"].as_str().unwrap_or("")))
        .collect()
}

/// The names on the pages of a list, and how many pages there are.
async fn pages(c: &Client, path: &str) -> (Vec<String>, usize) {
    let (mut names, mut token, mut count) = (Vec::new(), String::new(), 0);
    loop {
        let page = c.get(&format!("{path}&continue={token}")).await.ok();
        names.extend(
            page["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|o| Some(o["metadata"]["name"].as_str()?.to_owned())),
        );
        count += 1;
        match page["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.clone_into(&mut token),
            _ => return (names, count),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uncached_lists_read_etcd() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| vec!["--watch-cache-sizes=podtemplates#0".to_owned()]).await;
    let mut last = Value::Null;
    for (i, color) in ["red", "blue", "red", "red", "blue"].into_iter().enumerate() {
        last = c.post(TEMPLATES, template(&format!("t{i}"), color)).await.ok();
    }
    let all = ["t0", "t1", "t2", "t3", "t4"].map(str::to_owned).to_vec();
    let first = c.get(&format!("{TEMPLATES}?limit=2")).await.ok();
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    assert!(revision(&first) >= revision(&last));
    // A cache gives all it has to whoever takes anything; etcd gives a page.
    for (query, count) in [("limit=2", 3), ("limit=2&resourceVersion=0", 3), ("limit=5", 1), ("resourceVersion=0", 1)] {
        assert_eq!(pages(&c, &format!("{TEMPLATES}?{query}")).await, (all.clone(), count), "{query}");
    }
    assert_eq!(pages(&c, &format!("{TEMPLATES}?limit=2&labelSelector=color%3Dred")).await.0, ["t0", "t2", "t3"]);
    let one = c.get(&format!("{TEMPLATES}?limit=1&fieldSelector=metadata.name%3Dt1")).await.ok();
    assert_eq!((one["items"].as_array().map(Vec::len), &one["metadata"]["continue"]), (Some(1), &Value::Null));

    let at = revision(&last);
    c.delete(&format!("{TEMPLATES}/t4")).await.ok();
    let then = c.get(&format!("{TEMPLATES}?resourceVersion={at}&resourceVersionMatch=Exact")).await.ok();
    assert_eq!((then["items"].as_array().map(Vec::len), revision(&then)), (Some(5), at));
    let future = at + 1_000_000;
    for path in [
        format!("{TEMPLATES}?resourceVersion={future}"),
        format!("{TEMPLATES}?resourceVersion={future}&limit=2"),
        format!("{TEMPLATES}?resourceVersion={future}&resourceVersionMatch=Exact"),
        format!("{TEMPLATES}/t1?resourceVersion={future}"),
    ] {
        let (code, reason, message) = c.get(&path).await.failure();
        assert_eq!((code, reason.as_str()), (504, "Timeout"), "{path}");
        assert!(message.starts_with(&format!("Timeout: Too large resource version: {future}, current: ")), "{message}");
    }
    assert_eq!(c.get(&format!("{TEMPLATES}/t1?resourceVersion={at}")).await.code, 200);
    assert_eq!(c.get(&format!("{TEMPLATES}/t4")).await.code, 404);

    // There is no cache that could count, and the objects are counted all the same.
    let counted = async || {
        let text = c.get("/metrics").await.text();
        assert!(!text.contains("apiserver_watch_cache_events_received_total{group=\"\",resource=\"podtemplates\"}"));
        text.contains("apiserver_resource_objects{group=\"\",resource=\"podtemplates\"}").then_some(())
    };
    eventually("counted", counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uncached_watches_read_etcd() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| vec!["--watch-cache=false".to_owned()]).await;
    let a = c.post(TEMPLATES, template("a", "red")).await.ok();
    c.post("/api/v1/namespaces/kube-system/podtemplates", template("elsewhere", "red")).await.ok();
    c.post(TEMPLATES, template("b", "blue")).await.ok();
    c.patch(&format!("{TEMPLATES}/b"), "merge-patch+json", json!({"metadata": {"labels": {"color": "red"}}}))
        .await
        .ok();
    c.patch(&format!("{TEMPLATES}/a"), "merge-patch+json", json!({"metadata": {"labels": {"color": "blue"}}}))
        .await
        .ok();
    let gone = c.delete(&format!("{TEMPLATES}/b")).await;
    assert_eq!(gone.code, 200);
    let from = format!("{TEMPLATES}?watch=1&timeoutSeconds=20&resourceVersion={}", revision(&a));
    let all = c.watch(&from, 4).await;
    assert_eq!(seen(&all), [("ADDED", "b"), ("MODIFIED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]);
    assert!(revision(&all[3]["object"]) > revision(&all[2]["object"]), "what is gone has the revision of its end");
    let red = c.watch(&format!("{from}&labelSelector=color%3Dred"), 3).await;
    assert_eq!(seen(&red), [("ADDED", "b"), ("DELETED", "a"), ("DELETED", "b")]);

    let start = format!("{TEMPLATES}?watch=1&timeoutSeconds=4");
    assert_eq!(seen(&c.watch(&format!("{start}&resourceVersion=0"), 1).await), [("ADDED", "a")]);
    let lists = format!("{start}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let frames = c.watch(&lists, 9).await;
    assert_eq!(seen(&frames), [("ADDED", "a"), ("BOOKMARK", "")], "etcd alone tells nobody how far it got");
    assert_eq!(frames[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");

    let now = revision(&c.get(TEMPLATES).await.ok());
    let old = c.post(TEMPLATES, template("c", "red")).await.ok();
    c.etcd_client()
        .await
        .kv_client()
        .compact(i64::try_from(revision(&old)).expect("small"), None)
        .await
        .expect("compacted");
    let frames = c.watch(&format!("{start}&resourceVersion={}", now - 1), 1).await;
    assert_eq!((&frames[0]["type"], &frames[0]["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(frames[0]["object"]["message"], "The resourceVersion for the provided watch is too old.");
}

/// Custom resources have no sizes, but no cache either where there is none at all.
#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_do_without_as_well() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| vec!["--watch-cache=false".to_owned()]).await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version =
        |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version("v1", true), version("v2", false)]}});
    c.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.ok();
    let things = "/apis/example.com/v1/things";
    eventually("served", async || (c.get(things).await.code == 200).then_some(())).await;
    for name in ["a", "b"] {
        c.post(things, json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}, "n": 1}))
            .await
            .ok();
    }
    assert_eq!(
        pages(&c, "/apis/example.com/v2/things?limit=1&resourceVersion=0").await,
        (vec!["a".to_owned(), "b".to_owned()], 2)
    );
    let frames = c.watch("/apis/example.com/v2/things?watch=1&timeoutSeconds=20", 2).await;
    assert_eq!(seen(&frames), [("ADDED", "a"), ("ADDED", "b")]);
    assert_eq!(frames[0]["object"]["apiVersion"], "example.com/v2");
}
