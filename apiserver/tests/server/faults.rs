//! etcd dies, stops, is full; the server goes down. Nothing wrong is said while it lasts, and all is well afterwards.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use testkit::histories;

use crate::harness::{Client, Cluster, Identity, etcd_is_missing};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Until a server that has its etcd again serves writes.
const BACK: Duration = Duration::from_secs(30);

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn names(frames: &[Value]) -> Vec<String> {
    let text = |f: &Value, pointer: &str| f.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
    frames.iter().map(|f| format!("{} {}", text(f, "/type"), text(f, "/object/metadata/name"))).collect()
}

/// Creates an object as soon as that is possible again.
async fn created(c: &Cluster, name: &str) {
    let started = Instant::now();
    loop {
        let answer = c.post(MAPS, map(name)).await;
        match answer.code {
            // A write that was not acknowledged may have been done.
            201 | 409 => return,
            500 | 503 | 504 | 429 if started.elapsed() < BACK => {}
            code => panic!("{code} {}", answer.text()),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_survives_an_etcd_restart() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    c.post(MAPS, map("a")).await.ok();
    let list = c.get(MAPS).await.ok();
    let since = list["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
    let watcher = c.client(Identity::Admin);
    let path = format!("{MAPS}?watch=1&timeoutSeconds=60&resourceVersion={since}");
    let watch = tokio::spawn(async move { watcher.watch(&path, 2).await });
    c.post(MAPS, map("b")).await.ok();

    c.kill_etcd();
    let refused = c.post(MAPS, map("lost")).await;
    assert!(matches!(refused.code, 500..=504 | 429), "{} {}", refused.code, refused.text());
    assert_eq!(refused.json()["kind"], "Status");
    // What needs nothing of etcd is answered.
    let cached = c.get(&format!("{MAPS}?resourceVersion=0")).await.ok();
    assert_eq!(cached["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(c.get("/readyz").await.code, 500);

    c.start_etcd();
    created(&c, "c").await;
    // The watch that was open all the time goes on where it was.
    let seen = watch.await.expect("a watch");
    assert_eq!(names(&seen), ["ADDED b", "ADDED c"]);
    assert_eq!(c.get("/readyz").await.code, 200);
    // And one from before all this is resumed.
    let again = c.watch(&format!("{MAPS}?watch=1&timeoutSeconds=10&resourceVersion={since}"), 2).await;
    assert_eq!(names(&again), ["ADDED b", "ADDED c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_stops_for_a_while() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    c.post(MAPS, map("a")).await.ok();
    let since = c.get(MAPS).await.ok()["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
    c.signal_etcd("STOP");
    let started = Instant::now();
    let (write, read) = tokio::join!(c.post(MAPS, map("b")), c.get(MAPS));
    for answer in [write, read] {
        assert!(matches!(answer.code, 500..=504 | 429), "{} {}", answer.code, answer.text());
    }
    assert!(started.elapsed() < Duration::from_secs(20), "a client is not kept waiting: {:?}", started.elapsed());
    assert_eq!(c.get(&format!("{MAPS}/a?resourceVersion=0")).await.code, 200);
    c.signal_etcd("CONT");
    created(&c, "c").await;
    // The write that was not acknowledged was done or not, but nothing is seen twice.
    let seen = c.watch(&format!("{MAPS}?watch=1&timeoutSeconds=3&resourceVersion={since}"), 10).await;
    let mut seen = names(&seen);
    seen.sort();
    assert!(seen == ["ADDED c"] || seen == ["ADDED b", "ADDED c"], "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_is_full() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_on(vec!["--quota-backend-bytes=6000000".to_owned()], |_, _| Vec::new()).await;
    let big = |n: usize| json!({"metadata": {"name": format!("big-{n}")}, "data": {"k": "x".repeat(400_000)}});
    let mut kept = 0;
    let refused = loop {
        let answer = c.post(MAPS, big(kept)).await;
        if answer.code != 201 {
            break answer;
        }
        kept += 1;
        assert!(kept < 100, "the quota holds");
    };
    assert_eq!(
        (refused.code, refused.json()["message"].clone()),
        (500, json!("etcdserver: mvcc: database space exceeded"))
    );
    // Reading goes on.
    assert_eq!(
        c.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dbig-0")).await.ok()["items"].as_array().map(Vec::len),
        Some(1)
    );
    // So does deleting, and with the alarm off all is well.
    let etcd = c.etcd_client().await;
    let (mut kv, mut maintenance) = (etcd.kv_client(), etcd.maintenance_client());
    // The refused one as well: etcd says no before it writes or, when the size is seen only then, after.
    for n in 0..=kept {
        kv.delete(format!("/registry/configmaps/default/big-{n}"), None).await.expect("deleted");
    }
    let found = kv.get("x", None).await.expect("etcd answers");
    let (now, member) = found.header().map(|h| (h.revision(), h.member_id())).expect("a header");
    kv.compact(now, Some(etcd_client::CompactionOptions::new().with_physical())).await.expect("compacted");
    maintenance.defragment().await.expect("smaller");
    let alarm = etcd_client::AlarmType::Nospace;
    let mut of = etcd_client::AlarmOptions::new();
    of.with_member(member);
    maintenance.alarm(etcd_client::AlarmAction::Deactivate, alarm, Some(of)).await.expect("the alarm is off");
    created(&c, "small").await;
    let list = c.get(MAPS).await.ok();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "what was deleted behind our back is gone");
}

/// A short run of what `e2e/examples/histories` does at length.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_show_one_history() {
    if etcd_is_missing() {
        return;
    }
    const SEED: u64 = 20;
    let mut c = Cluster::start().await;
    let (second, _beside) = c.start_beside().await;
    let ports = [c.port(), second];
    let client = {
        let clients: Vec<_> = ports.iter().map(|port| Client::new(*port, c.pki(), Identity::Admin)).collect();
        move |n: usize| clients[n].clone()
    };
    let breaking = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        c.kill_etcd();
        tokio::time::sleep(Duration::from_millis(300)).await;
        c.start_etcd();
        created(&c, "back").await;
        c.stop_server();
        c.start_server().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    };
    let history = histories::run(SEED, 6, 2, client, breaking).await;
    let summary = histories::summary(&history);
    assert!(summary["acknowledged"] > 20 && summary["lists"] > 5, "{summary:?}");
    let wrong = histories::check::violations(&history);
    assert!(wrong.is_empty(), "seed {SEED}, {summary:?}:\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn going_down_in_order() {
    if etcd_is_missing() {
        return;
    }
    let flags = ["--shutdown-delay-duration=1500ms", "--request-timeout=3s"];
    let mut c = Cluster::start_with(|_, _| flags.map(str::to_owned).into()).await;
    let watcher = c.client(Identity::Admin);
    let watch = tokio::spawn(async move { watcher.watch(&format!("{MAPS}?watch=1&timeoutSeconds=60"), 100).await });
    c.post(MAPS, map("a")).await.ok();
    c.tell_to_stop();
    // Those who balance load learn of it first; requests are still taken.
    let started = Instant::now();
    while c.get("/readyz").await.code == 200 {
        assert!(started.elapsed() < Duration::from_secs(1), "readyz does not fail");
    }
    assert_eq!(c.get("/livez").await.code, 200);
    assert!(c.get("/readyz?verbose").await.text().contains("[-]shutdown failed"));
    c.post(MAPS, map("b")).await.ok();
    // The watch has its events and ends, without an error among them.
    let seen = names(&watch.await.expect("a clean end"));
    assert!(seen.ends_with(&["ADDED a".to_owned(), "ADDED b".to_owned()]), "{seen:?}");
    assert!(started.elapsed() > Duration::from_millis(1000), "watches live through the delay");
    c.stop_server();
    assert!(c.try_get("/readyz").await.is_err(), "nobody listens");
}
