//! The edge: seats, queues, time-outs and what is counted, with a server of few seats.

use super::*;
use serde_json::{Value, json};

fn empty() -> Arc<dyn Reader> {
    Arc::new(crate::admission::testing::Fixed::default())
}

fn user(name: &str) -> UserInfo {
    UserInfo { name: name.into(), groups: vec!["system:authenticated".into()], ..UserInfo::default() }
}

fn get() -> RequestInfo {
    RequestInfo {
        is_resource: true,
        verb: "get".into(),
        resource: "pods".into(),
        namespace: "e".into(),
        ..RequestInfo::default()
    }
}

fn level(name: &str, limited: Value) -> Value {
    json!({"metadata": {"name": name, "uid": format!("{name}-uid")}, "spec": {"type": "Limited", "limited": limited}})
}

/// One level for everybody, with so many seats of the server's ten.
fn flow(queuing: Value) -> Arc<FlowControl> {
    let flow = FlowControl::new(10, Duration::from_secs(60), empty(), true);
    let response =
        if queuing.is_null() { json!({"type": "Reject"}) } else { json!({"type": "Queue", "queuing": queuing}) };
    let mine = level(
        "mine",
        json!({"nominalConcurrencyShares": 10, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": response}),
    );
    let rest = level(
        "catch-all",
        json!({"nominalConcurrencyShares": 40, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}),
    );
    let schema = json!({"metadata": {"name": "s", "uid": "s-uid"}, "spec": {"matchingPrecedence": 10, "distinguisherMethod": {"type": "ByUser"},
        "priorityLevelConfiguration": {"name": "mine"}, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "system:authenticated"}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]}]}});
    flow.reconfigure(Config::digest([&mine, &rest], [&schema]));
    flow
}

async fn enter(flow: &Arc<FlowControl>, name: &str) -> Result<Seat, Rejected> {
    flow.enter(&get(), &user(name), "").await
}

#[tokio::test]
async fn overload_is_rejected() {
    let flow = flow(Value::Null);
    let first = enter(&flow, "a").await.expect("a seat");
    assert_eq!(first.classified(), Classified { schema_uid: "s-uid".into(), level_uid: "mine-uid".into() });
    let _second = enter(&flow, "b").await.expect("a seat");
    let refused = enter(&flow, "c").await.expect_err("two seats");
    assert_eq!((refused.retry_after, refused.classified.level_uid.as_str()), (1, "mine-uid"));
    drop(first);
    assert!(enter(&flow, "c").await.is_ok());
}

#[tokio::test]
async fn a_queue_is_left_in_turn() {
    let flow = flow(json!({"queues": 4, "handSize": 1, "queueLengthLimit": 10}));
    let seats = (enter(&flow, "a").await.expect("a seat"), enter(&flow, "a").await.expect("a seat"));
    let waits = enter(&flow, "b");
    tokio::pin!(waits);
    assert!(futures::poll!(waits.as_mut()).is_pending());
    let page = flow.dump("dump_priority_levels", false).expect("a page");
    assert!(page.contains("mine,"), "{page}");
    assert!(flow.dump("dump_requests", true).expect("a page").lines().count() == 4);
    drop(seats.0);
    assert!(waits.await.is_ok());
}

/// Flows are told apart only where there are several queues; every request that was queued is counted.
#[tokio::test]
async fn queue_metrics_by_flow() {
    for (queues, told) in [(4, true), (1, false)] {
        let flow = flow(json!({"queues": queues, "handSize": 1, "queueLengthLimit": 10}));
        let state = flow.state.read().clone();
        let schema = state.schemas.iter().find(|schema| schema.spec.name == "s").expect("a schema");
        let counted = || schema.meters.queue_length.get_sample_count();
        let before = counted();
        let _seat = enter(&flow, "jane").await.expect("a seat");
        assert!(counted() > before, "it was in its queue for a moment");
        let page = flow.dump("dump_requests", false).expect("a page");
        assert_eq!(page.contains("jane"), told, "{queues}: {page}");
    }
}

#[tokio::test]
async fn queue_wait_is_limited_to_a_quarter_of_the_timeout() {
    let flow = flow(json!({"queues": 4, "handSize": 1, "queueLengthLimit": 10}));
    let _seats = (enter(&flow, "a").await.expect("a seat"), enter(&flow, "a").await.expect("a seat"));
    let begin = Instant::now();
    assert!(flow.enter(&get(), &user("b"), "timeout=200ms").await.is_err());
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(flow.patience(""), Duration::from_secs(15));
    assert_eq!(flow.patience("timeout=8s"), Duration::from_secs(2));
    assert_eq!(flow.patience("timeout=1h"), Duration::from_secs(15));
}

#[tokio::test]
async fn cancelled_request_leaves_the_queue() {
    let flow = flow(json!({"queues": 4, "handSize": 1, "queueLengthLimit": 10}));
    let seats = (enter(&flow, "a").await.expect("a seat"), enter(&flow, "a").await.expect("a seat"));
    {
        let waits = enter(&flow, "b");
        tokio::pin!(waits);
        assert!(futures::poll!(waits.as_mut()).is_pending());
        // Its turn comes, and it goes without taking it.
        drop(seats.0);
    }
    assert!(enter(&flow, "c").await.is_ok(), "the seat came back");
}

#[tokio::test]
async fn masters_never_wait() {
    let flow = flow(Value::Null);
    let master = UserInfo { name: "root".into(), groups: vec!["system:masters".into()], ..UserInfo::default() };
    let mut seats = Vec::new();
    for _ in 0..50 {
        seats.push(flow.enter(&get(), &master, "").await.expect("always"));
    }
}

#[tokio::test]
async fn requests_stay_in_a_deleted_level() {
    let flow = flow(json!({"queues": 4, "handSize": 1, "queueLengthLimit": 10}));
    let seats = (enter(&flow, "a").await.expect("a seat"), enter(&flow, "a").await.expect("a seat"));
    let waits = enter(&flow, "b");
    tokio::pin!(waits);
    assert!(futures::poll!(waits.as_mut()).is_pending());
    flow.reconfigure(Config::digest(&[], &[]));
    assert!(flow.dump("dump_priority_levels", false).is_some_and(|p| p.contains("mine,")), "it is emptied first");
    drop(seats);
    assert!(waits.await.is_ok());
    flow.reconfigure(Config::digest(&[], &[]));
    assert!(flow.dump("dump_priority_levels", false).is_some_and(|p| !p.contains("mine,")));
}

/// Cost of the filter: a few microseconds per request (printed; the limit is loose for slow machines).
#[tokio::test]
async fn a_request_costs_little() {
    let flow = FlowControl::new(600, Duration::from_secs(60), empty(), true);
    let all = crate::bootstrap::flow_control();
    flow.reconfigure(Config::digest(&all["prioritylevelconfigurations"], &all["flowschemas"]));
    let (info, user) = (get(), user("alice"));
    let rounds = 20_000;
    let begin = Instant::now();
    for _ in 0..rounds {
        drop(flow.enter(&info, &user, "").await.expect("a seat"));
    }
    let each = begin.elapsed() / rounds;
    println!("a pass through flow control: {each:?}");
    assert!(each < Duration::from_micros(200), "{each:?}");
}
