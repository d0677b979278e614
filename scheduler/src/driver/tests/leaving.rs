//! Pods, nodes and victims that go, or stay, while a pod is being placed.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;
use shared::informer::Store;

use super::{World, kube_api, limited, serve_paths};
use crate::driver::KubeApi;
use crate::framework::api::{Api as _, AwaitedClaim};
use crate::testing::{node, pod};

#[tokio::test]
async fn assumed_pod_that_is_being_deleted_gives_its_room_back() {
    let world = World::start(0);
    world.core.node_seen(node("n").base());
    let slow = pod("slow").cpu("3");
    let before = Arc::new(slow.info());
    let leaves = slow.set("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    assert!(world.core.cache.lock().assume(Arc::new(before.placed(&"n".into()))));
    world.core.pod_seen(Some(&before), &before);
    assert!(world.core.cache.lock().is_assumed(&before.uid));
    world.core.pod_seen(Some(&before), &Arc::new(leaves.info()));
    assert!(world.core.cache.lock().pod(&before.uid).is_none());
}

#[tokio::test]
async fn pod_that_waits_for_permission_is_refused_when_it_is_being_deleted() {
    let world = World::start(0);
    world.core.node_seen(node("n").base());
    let waits = pod("waits").cpu("3");
    let before = Arc::new(waits.info());
    let told = world.core.wait(&before.uid);
    assert!(world.core.cache.lock().assume(Arc::new(before.placed(&"n".into()))));
    let leaves = waits.set("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    world.core.pod_seen(Some(&before), &Arc::new(leaves.info()));
    assert!(told.await.is_ok_and(|status| status.is_rejected()));
    assert!(world.core.cache.lock().is_assumed(&before.uid), "its binding takes it back");
}

#[tokio::test]
async fn victim_that_cannot_be_deleted_wakes_the_preemptor_alone() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    world.add(&pod("stubborn").cpu("3").priority(2).on("n"));
    world.add(&pod("other").cpu("9").priority(1));
    let mut calls = vec![world.next().await];
    assert_eq!(calls, ["patch other Unschedulable -"]);
    world.add(&pod("p").cpu("4").priority(100));
    while calls.iter().filter(|call| *call == "delete stubborn").count() < 3 {
        calls.push(world.next().await);
        assert!(calls.len() < 50, "{calls:?}");
    }
    let [active, backoff, parked, _] = world.core.queue.lock().lengths();
    assert!(active + backoff <= 1 && parked >= 1, "the other one is not tried again");
}

#[tokio::test]
async fn binding_of_volumes_ends_when_it_cannot_succeed() {
    let (address, _paths) = serve_paths().await;
    let clients = limited(address, (100.0, 100), None).await;
    let p = pod("p").info();
    let claim = |version: u64| -> PersistentVolumeClaim {
        let meta = json!({"name": "c", "namespace": "default", "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": meta, "spec": {}})).expect("claim")
    };
    let awaited = |since: u64| [AwaitedClaim { name: "c".into(), volume: None, since }];
    let seen_node = || serde_json::from_value(serde_json::to_value(node("n").api()).expect("node")).expect("node");
    let api = |nodes: bool, pods: bool, version: u64| KubeApi {
        claims: Store::of([claim(version)]),
        nodes: if nodes { Store::of([seen_node()]) } else { Store::default() },
        pods: if pods { Store::of([pod("p").info()]) } else { Store::default() },
        ..kube_api(clients.bindings.clone())
    };
    let timeout = Duration::from_millis(1);
    for (what, api, since, want) in [
        ("the pod is gone", api(true, false, 5), 0, "pod does not exist any more: pod default/p not found"),
        ("the node is gone", api(false, true, 5), 0, "failed to get node \"n\": node \"n\" not found"),
        ("nothing was written yet", api(true, true, 5), 0, "timed out waiting for the condition on PVC default/c"),
        ("its node was there before and is taken back", api(true, true, 6), 5, "provisioning failed for PVC \"c\""),
        ("an older form is seen", api(true, true, 4), 5, "timed out waiting for the condition on PVC default/c"),
    ] {
        let ended = api.claims_bound(&p, &awaited(since), "n", timeout).await;
        assert_eq!(ended.map_err(|e| e.message), Err(want.to_owned()), "{what}");
    }
}
