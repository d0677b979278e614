//! Pods, nodes and victims that go, or stay, while a pod is being placed.

use std::sync::Arc;

use serde_json::json;

use super::World;
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
