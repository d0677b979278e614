//! Lists and watches while others write.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Client, Identity};
use crate::{cluster, workspace};

fn name(o: &Value) -> &str {
    o["metadata"]["name"].as_str().unwrap_or("")
}

fn revision(o: &Value) -> u64 {
    o["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).expect("a revision")
}

async fn names(c: &Client, path: &str) -> Vec<String> {
    c.get(path).await.ok()["items"].as_array().expect("items").iter().map(|o| name(o).to_owned()).collect()
}

/// A cache of what is not stored would be one of all of etcd.
#[tokio::test(flavor = "multi_thread")]
async fn virtual_resources_are_not_cached() {
    let Some((c, path)) = workspace("not-cached").await else { return };
    c.get("/api/v1/componentstatuses").await.ok();
    assert_eq!(c.get(&format!("{path}/bindings")).await.code, 405);
    assert_eq!(c.get("/apis/authentication.k8s.io/v1/tokenreviews").await.code, 405);
    let metrics = c.get("/metrics").await.text();
    for resource in ["componentstatuses", "bindings", "tokenreviews.authentication.k8s.io"] {
        assert!(!metrics.contains(&format!("apiserver_storage_objects{{resource=\"{resource}\"}}")), "{resource}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_observe_writes() {
    let Some((c, ns)) = workspace("reads").await else { return };
    let maps = format!("{ns}/configmaps");
    for i in 0..30 {
        let made = c.post(&maps, json!({"metadata": {"name": format!("m{i:02}")}})).await.ok();
        let list = c.get(&maps).await.ok();
        assert!(revision(&list) >= revision(&made), "a list is no older than what was written before it");
        assert_eq!(list["items"].as_array().map(Vec::len), Some(i + 1));
        let later = c.get(&format!("{maps}/m{i:02}?resourceVersion={}", revision(&made))).await.ok();
        assert_eq!(later, made);
    }
    // Not older than is enough for the cache; exact is what it was.
    let (first, all) = (c.get(&format!("{maps}/m09")).await.ok(), names(&c, &maps).await);
    let at = revision(&first);
    assert_eq!(names(&c, &format!("{maps}?resourceVersion={at}&resourceVersionMatch=Exact")).await, all[..10]);
    assert_eq!(names(&c, &format!("{maps}?resourceVersion={at}&resourceVersionMatch=NotOlderThan")).await, all);
    assert_eq!(names(&c, &format!("{maps}?resourceVersion=0")).await, all);
    // Pages, with and without a selector, are the list.
    for selector in ["", "&fieldSelector=metadata.name!%3Dm03"] {
        let whole = names(&c, &format!("{maps}?x=y{selector}")).await;
        let (mut pages, mut token, mut rounds) = (Vec::new(), String::new(), 0);
        loop {
            let page = c.get(&format!("{maps}?limit=7{selector}&continue={token}")).await.ok();
            pages.extend(page["items"].as_array().expect("items").iter().map(|o| name(o).to_owned()));
            rounds += 1;
            match page["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() && rounds < 20 => next.clone_into(&mut token),
                _ => break,
            }
        }
        assert_eq!((pages, rounds), (whole, 5));
    }
    assert_eq!(names(&c, &format!("{maps}?fieldSelector=metadata.name%3Dm07")).await, ["m07"]);
}

/// A watch that says nothing begins with the state, and says where that ends to whoever asks for bookmarks.
#[tokio::test(flavor = "multi_thread")]
async fn initial_events_end_with_a_bookmark() {
    let Some((c, ns)) = workspace("state-ends").await else { return };
    let maps = format!("{ns}/configmaps");
    c.post(&maps, json!({"metadata": {"name": "a"}})).await.ok();
    for from in ["", "&resourceVersion=0"] {
        let watch = format!("{maps}?watch=1&timeoutSeconds=5{from}");
        let seen = c.watch(&format!("{watch}&allowWatchBookmarks=true"), 2).await;
        assert_eq!((&seen[0]["type"], &seen[1]["type"]), (&json!("ADDED"), &json!("BOOKMARK")), "{from}");
        assert_eq!(seen[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        assert_eq!(c.watch(&watch, 1).await[0]["type"], "ADDED");
    }
}

/// Before it ends, a watch says how far it got.
#[tokio::test(flavor = "multi_thread")]
async fn ending_watch_sends_a_bookmark() {
    let Some((c, ns)) = workspace("watch-ends").await else { return };
    let (maps, elsewhere) = (format!("{ns}/configmaps"), "/api/v1/namespaces/default/configmaps");
    let from = revision(&c.get(&maps).await.ok());
    let made = c.post(elsewhere, json!({"metadata": {"generateName": "seen-"}})).await.ok();
    let path = format!("{maps}?watch=1&timeoutSeconds=4&resourceVersion={from}&allowWatchBookmarks=true");
    let seen = c.watch(&path, 1).await;
    assert_eq!(seen[0]["type"], "BOOKMARK");
    assert!(revision(&seen[0]["object"]) >= revision(&made), "{seen:?}");
}

/// A collection is deleted as far as its list goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_collection_is_deleted() {
    let Some((c, ns)) = workspace("delete-page").await else { return };
    let maps = format!("{ns}/configmaps");
    for name in ["a", "b", "c", "d"] {
        c.post(&maps, json!({"metadata": {"name": name}})).await.ok();
    }
    let of = |list: &Value| -> Vec<String> {
        list["items"].as_array().into_iter().flatten().map(|o| name(o).to_owned()).collect()
    };
    let page = c.delete(&format!("{maps}?limit=2")).await.ok();
    assert_eq!(
        (of(&page), names(&c, &maps).await),
        (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned(), "d".to_owned()])
    );
    assert!(page["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty()));
    let refused = c.delete(&format!("{maps}?sendInitialEvents=true")).await;
    assert_eq!(refused.failure().1, "Invalid");
    assert_eq!(of(&c.delete(&maps).await.ok()), ["c", "d"]);

    // Whoever asks in the old way for dependents to go is told that it takes a while.
    let held = json!({"metadata": {"name": "held", "finalizers": ["test/x"]}});
    c.post(&maps, held).await.ok();
    let path = format!("{maps}/held");
    assert_eq!(c.delete(&format!("{path}?orphanDependents=false")).await.code, 202);
    assert_eq!(c.delete(&format!("{path}?propagationPolicy=Background")).await.code, 200);
    c.patch(&path, "merge-patch+json", json!({"metadata": {"finalizers": null}})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_updates_conflict() {
    let Some((c, ns)) = workspace("writers").await else { return };
    let path = format!("{ns}/configmaps/a");
    let a = c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "a"}})).await.ok();
    let bodies: Vec<Value> = (0..10)
        .map(|i| {
            let mut o = a.clone();
            o["data"] = json!({"winner": i.to_string()});
            o
        })
        .collect();
    let codes: Vec<u16> = join_all(bodies.iter().map(|b| c.put(&path, b))).await.iter().map(|x| x.code).collect();
    assert_eq!(
        (codes.iter().filter(|c| **c == 200).count(), codes.iter().filter(|c| **c == 409).count()),
        (1, 9),
        "{codes:?}"
    );
    // Of creations as well.
    let maps = format!("{ns}/configmaps");
    let made = join_all((0..10).map(|_| c.post(&maps, json!({"metadata": {"name": "b"}})))).await;
    assert_eq!(made.iter().filter(|x| x.code == 201).count(), 1);
    // Patches say nothing about what they were made for: those that were accepted are all there.
    let patched =
        join_all((0..10).map(|i| c.patch(&path, "merge-patch+json", json!({"data": {format!("k{i}"): "v"}})))).await;
    let last = c.get(&path).await.ok();
    for (i, answer) in patched.iter().enumerate() {
        assert_eq!(last["data"][format!("k{i}")].is_string(), answer.code == 200, "{i}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_miss_no_events_under_load() {
    let Some((c, ns)) = workspace("watched").await else { return };
    let Some(server) = cluster().await else { return };
    let maps = format!("{ns}/configmaps");
    let from = revision(&c.get(&maps).await.ok());
    let live = server.client(Identity::Admin);
    let path = format!("{maps}?watch=1&timeoutSeconds=20&resourceVersion={from}");
    let watching = tokio::spawn({
        let path = path.clone();
        async move { live.watch(&path, 200).await }
    });
    join_all((0..100).map(|i| {
        let (c, maps) = (&c, &maps);
        async move {
            c.post(maps, json!({"metadata": {"name": format!("m{i}")}})).await.ok();
            c.patch(&format!("{maps}/m{i}"), "merge-patch+json", json!({"data": {"a": "b"}})).await.ok();
        }
    }))
    .await;
    let live = watching.await.expect("no panic");
    let late = c.watch(&path, 200).await;
    assert_eq!(live, late, "who watched and who comes later see the same");
    let revisions: Vec<u64> = live.iter().map(|f| revision(&f["object"])).collect();
    assert!(revisions.is_sorted_by(|a, b| a < b));
    for kind in ["ADDED", "MODIFIED"] {
        let names: BTreeSet<&str> = live.iter().filter(|f| f["type"] == kind).map(|f| name(&f["object"])).collect();
        assert_eq!(names.len(), 100, "{kind}");
    }
    // A watch of one object, by the name in its path and by field.
    let from = revision(&c.get(&maps).await.ok());
    c.delete(&format!("{maps}/m1")).await.ok();
    c.delete(&format!("{maps}/m2")).await.ok();
    let one = c
        .watch(&format!("{maps}?watch=1&timeoutSeconds=1&resourceVersion={from}&fieldSelector=metadata.name%3Dm2"), 9)
        .await;
    assert_eq!(one.len(), 1);
    assert_eq!((&one[0]["type"], name(&one[0]["object"])), (&json!("DELETED"), "m2"));
    let path = format!("/api/v1/watch/namespaces/watched/configmaps/m2?timeoutSeconds=1&resourceVersion={from}");
    assert_eq!(c.watch(&path, 9).await, one);
    // Tables and bare metadata are streamed as well.
    let path = format!("{maps}?watch=1&timeoutSeconds=1&resourceVersion={from}");
    for (accept, kind) in [("Table", "Table"), ("PartialObjectMetadata", "PartialObjectMetadata")] {
        let answer = c.send("GET", &path, &format!("application/json;as={accept};v=v1;g=meta.k8s.io"), None).await;
        let first: Value =
            serde_json::from_slice(answer.bytes.split(|b| *b == b'\n').next().unwrap_or(b"")).expect("a frame");
        assert_eq!((&first["type"], &first["object"]["kind"]), (&json!("DELETED"), &json!(kind)));
    }
}

/// Pages end where upstream's do, and some lists are not paginated.
#[tokio::test(flavor = "multi_thread")]
async fn page_boundaries_match_upstream() {
    let Some((c, ns)) = crate::workspace("pages-end").await else { return };
    let maps = format!("{ns}/configmaps");
    for name in ["a", "b", "c"] {
        let labels = if name == "c" { json!({}) } else { json!({"x": name}) };
        c.post(&maps, json!({"metadata": {"name": name, "labels": labels}})).await.ok();
    }
    let shown = async |query: &str| {
        let page = c.get(query).await.ok();
        let names = page["items"].as_array().into_iter().flatten().filter_map(|o| o["metadata"]["name"].as_str());
        let meta = &page["metadata"];
        (names.collect::<String>(), meta["continue"].as_str().map(str::to_owned), meta["remainingItemCount"].as_i64())
    };
    let (names, token, left) = shown(&format!("{maps}?limit=1&labelSelector=x%3Db")).await;
    assert_eq!((names.as_str(), token.is_some(), left), ("b", true, None), "there is more to look at");
    let rest = format!("{maps}?limit=1&labelSelector=x%3Db&continue={}", token.unwrap_or_default());
    assert_eq!(shown(&rest).await, (String::new(), None, None));
    let all = "/api/v1/configmaps";
    let revision = c.get(&maps).await.ok()["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
    for (query, want) in [
        (format!("{maps}?limit=1&fieldSelector=metadata.name%3Da"), "a"),
        (
            format!(
                "{maps}?limit=1&fieldSelector=metadata.name%3Da&resourceVersionMatch=Exact&resourceVersion={revision}"
            ),
            "a",
        ),
        (format!("{maps}?limit=1&resourceVersion=0"), "abc"),
        (format!("{maps}?limit=3"), "abc"),
        (format!("{all}?limit=3&fieldSelector=metadata.namespace%3Dpages-end"), "abc"),
        (format!("{all}?limit=1&fieldSelector=metadata.namespace%3Dpages-end,metadata.name%3Db"), "b"),
    ] {
        assert_eq!(shown(&query).await, (want.to_owned(), None, None), "{query}");
    }
    let (names, token, left) = shown(&format!("{all}?limit=2&fieldSelector=metadata.namespace%3Dpages-end")).await;
    assert_eq!((names.as_str(), token.is_some(), left), ("ab", true, None));
    let rest = format!("{all}?fieldSelector=metadata.namespace%3Dpages-end&continue={}", token.unwrap_or_default());
    assert_eq!(shown(&rest).await.0, "c");
}
