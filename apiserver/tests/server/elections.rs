//! Components that are led to lead: candidates, the one that gets the lease, and who has to make room for it.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::harness::{Client, Cluster, Identity, etcd_is_missing, eventually};

const GROUP: &str = "/apis/coordination.k8s.io";
const HOOK: &str = "poststarthook/start-kube-apiserver-coordinated-leader-election-controller";

fn ago(seconds: i64) -> String {
    let at = Timestamp::now() - SignedDuration::from_secs(seconds);
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn candidate(name: &str, version: &str, silent: i64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"leaseName": "led", "strategy": "OldestEmulationVersion",
        "binaryVersion": version, "emulationVersion": version, "renewTime": ago(silent)}})
}

/// The lease, once it looks like that.
async fn lease(c: &Client, wanted: impl Fn(&Value) -> bool) -> Value {
    let path =
        format!("{GROUP}/v1/namespaces/default/leases?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3Dled");
    c.watch_until(&path, |lease| wanted(&lease["spec"])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_candidate_leads_and_others_make_room() {
    if etcd_is_missing() {
        return;
    }
    let flags = ["--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true"];
    let cluster = Cluster::start_with(|_, _| flags.map(str::to_owned).into()).await;
    let c = cluster.client(Identity::Admin);
    assert!(c.get("/readyz?verbose").await.text().contains(&format!("[+]{HOOK} ok\n")));
    let ours = format!(
        "{GROUP}/v1/namespaces/kube-system/leases?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3Dleader-election-controller"
    );
    c.watch_until(&ours, |lease| lease["spec"]["leaseDurationSeconds"] == 15).await;

    let candidates = format!("{GROUP}/v1beta1/namespaces/default/leasecandidates");
    c.post(&candidates, candidate("newer", "1.20.0", 0)).await.ok();
    let first = lease(&c, |spec| spec["holderIdentity"] == "newer").await;
    assert_eq!(first["spec"]["strategy"], "OldestEmulationVersion");
    assert_eq!(first["spec"]["leaseDurationSeconds"], 5);
    // It holds its lease, and learns that another suits better.
    let path = format!("{GROUP}/v1/namespaces/default/leases/led");
    let mut held = first;
    held["spec"]["leaseDurationSeconds"] = json!(600);
    c.put(&path, &held).await.ok();
    c.post(&candidates, candidate("older", "1.19.0", 0)).await.ok();
    let mut told = lease(&c, |spec| spec["preferredHolder"] == "older").await;
    assert_eq!(told["spec"]["holderIdentity"], "newer");
    // It makes room.
    told["spec"]["holderIdentity"] = json!("");
    told["spec"].as_object_mut().expect("a spec").remove("preferredHolder");
    c.put(&path, &told).await.ok();
    lease(&c, |spec| spec["holderIdentity"] == "older").await;

    // One that was silent is asked; when it is heard again it may lead.
    c.post(&candidates, candidate("oldest", "1.18.0", 60)).await.ok();
    let asked = format!("{candidates}?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3Doldest");
    let mut asked = c.watch_until(&asked, |one| one["spec"]["pingTime"].is_string()).await;
    asked["spec"]["renewTime"] = json!(ago(0));
    c.put(&format!("{candidates}/oldest"), &asked).await.ok();
    lease(&c, |spec| spec["holderIdentity"] == "oldest" || spec["preferredHolder"] == "oldest").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn candidates_that_are_gone_are_removed_by_the_next_server() {
    if etcd_is_missing() {
        return;
    }
    let served = "--runtime-config=coordination.k8s.io/v1beta1=true";
    let gate = "--feature-gates=CoordinatedLeaderElection=true";
    let flags = vec![served.to_owned(), gate.to_owned()];
    let mut cluster = Cluster::start_with(|_, _| flags.clone()).await;
    let c = cluster.client(Identity::Admin);
    let candidates = format!("{GROUP}/v1beta1/namespaces/default/leasecandidates");
    c.post(&candidates, candidate("gone", "1.20.0", 2 * 3600)).await.ok();
    c.post(&candidates, candidate("here", "1.20.0", 0)).await.ok();
    cluster.restart_with(flags).await;
    let c = cluster.client(Identity::Admin);
    eventually("the removal", async || {
        let left = c.get(&candidates).await.ok();
        let names: Vec<&str> =
            left["items"].as_array()?.iter().filter_map(|o| o["metadata"]["name"].as_str()).collect();
        (names == ["here"]).then_some(())
    })
    .await;
}
