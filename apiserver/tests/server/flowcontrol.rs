//! Priority and fairness as clients meet it: headers, refusals, statuses, what is shown.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Cluster, Identity, etcd_is_missing};
use crate::{cluster, workspace};

const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const SCHEMA: &str = "X-Kubernetes-PF-FlowSchema-UID";
const LEVEL: &str = "X-Kubernetes-PF-PriorityLevel-UID";

fn level(name: &str, response: Value) -> Value {
    let limited = json!({"nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": response});
    json!({"metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}})
}

/// A schema for one user's requests below a namespace.
fn schema(name: &str, level: &str, user: &str, namespace: &str) -> Value {
    let rule = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": [namespace]});
    let subject = json!({"kind": "User", "user": {"name": user}});
    json!({"metadata": {"name": name}, "spec": {"matchingPrecedence": 50, "priorityLevelConfiguration": {"name": level},
        "distinguisherMethod": {"type": "ByUser"}, "rules": [{"subjects": [subject], "resourceRules": [rule]}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_name_flow_schema_and_priority_level() {
    let Some(server) = cluster().await else { return };
    let uid = async |kind: &str, name: &str| {
        let object = server.get(&format!("{GROUP}/{kind}/{name}")).await.ok();
        object["metadata"]["uid"].as_str().unwrap_or("").to_owned()
    };
    // Another test may have made the node.
    for (identity, path, name, level, codes) in [
        (Identity::Admin, "/api/v1/namespaces/default", "exempt", "exempt", [200, 200]),
        (Identity::Alice, "/readyz", "probes", "exempt", [200, 200]),
        (Identity::Alice, "/api/v1/namespaces/default/pods", "global-default", "global-default", [403, 403]),
        (Identity::Node, "/api/v1/nodes/n1", "system-node-high", "node-high", [200, 404]),
        (Identity::Anonymous, "/nope", "global-default", "global-default", [403, 403]),
    ] {
        let answer = server.client(identity.clone()).get(path).await;
        assert!(codes.contains(&answer.code), "{identity:?} {path} {} {}", answer.code, answer.text());
        let want = (uid("flowschemas", name).await, uid("prioritylevelconfigurations", level).await);
        assert_eq!((answer.header(SCHEMA), answer.header(LEVEL)), (want.0.as_str(), want.1.as_str()), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_say_whether_their_level_exists() {
    let Some((c, _)) = workspace("dangling").await else { return };
    c.post(&format!("{GROUP}/flowschemas"), schema("dangling", "nowhere", "nobody", "dangling")).await.ok();
    let path = format!("{GROUP}/flowschemas?watch=true&fieldSelector=metadata.name%3Ddangling&timeoutSeconds=10");
    let says = async |status: &str| {
        for _ in 0..100 {
            let seen = c.get(&format!("{GROUP}/flowschemas/dangling")).await.ok();
            let found = &seen["status"]["conditions"][0];
            if found["status"] == status {
                return found.clone();
            }
            // The next change.
            let from = seen["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
            c.watch(&format!("{path}&resourceVersion={from}"), 1).await;
        }
        panic!("the status stays");
    };
    let missing = says("True").await;
    assert_eq!(missing["type"], "Dangling");
    assert_eq!(missing["reason"], "NotFound");
    assert_eq!(
        missing["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"nowhere\" but there is no such object"
    );
    c.post(&format!("{GROUP}/prioritylevelconfigurations"), level("nowhere", json!({"type": "Reject"}))).await.ok();
    assert_eq!(says("False").await["reason"], "Found");
    c.delete(&format!("{GROUP}/flowschemas/dangling")).await.ok();
    c.delete(&format!("{GROUP}/prioritylevelconfigurations/nowhere")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_metrics_show_the_levels() {
    let Some(server) = cluster().await else { return };
    let page = async |name: &str| server.get(&format!("/debug/api_priority_and_fairness/{name}")).await;
    let levels = page("dump_priority_levels").await;
    assert_eq!(levels.code, 200);
    let text = levels.text();
    assert!(
        text.starts_with("PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests\n"),
        "{text}"
    );
    assert!(text.contains("\nworkload-low,      0,            "), "{text}");
    let queues = page("dump_queues").await.text();
    assert!(
        queues.contains("\nleader-election,   15,     0,               0,                 0,          "),
        "{queues}"
    );
    let requests = page("dump_requests?includeRequestDetails=1").await.text();
    assert!(requests.contains("\nexempt,"), "this request itself: {requests}");
    assert!(requests.contains("/debug/api_priority_and_fairness/dump_requests"), "{requests}");
    assert_eq!(page("nope").await.code, 404);
    assert_eq!(server.client(Identity::Alice).get("/debug/api_priority_and_fairness/dump_queues").await.code, 403);
    let metrics = server.get("/metrics").await.text();
    for line in [
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"workload-low\"} 245",
        "apiserver_flowcontrol_lower_limit_seats{priority_level=\"workload-low\"} 24",
        "apiserver_flowcontrol_upper_limit_seats{priority_level=\"workload-low\"} 845",
        "apiserver_flowcontrol_current_executing_requests{flow_schema=\"exempt\",priority_level=\"exempt\"} ",
        "apiserver_flowcontrol_priority_level_seat_utilization_bucket{phase=\"executing\",priority_level=\"system\",le=\"0.1\"} ",
        "apiserver_flowcontrol_read_vs_write_current_requests_count{phase=\"executing\",request_kind=\"mutating\"} ",
        "apiserver_current_inflight_requests{request_kind=\"readOnly\"} ",
        "apiserver_current_inqueue_requests{request_kind=\"mutating\"} ",
        "apiserver_flowcontrol_request_wait_duration_seconds_count{execute=\"true\",flow_schema=\"exempt\",priority_level=\"exempt\"} ",
    ] {
        assert!(metrics.contains(&format!("\n{line}")), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_level_without_room_sends_away() {
    let Some((c, _)) = workspace("flooded").await else { return };
    let Some(server) = cluster().await else { return };
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 1});
    let mut tiny = level("tiny", json!({"type": "Queue", "queuing": queuing}));
    tiny["spec"]["limited"]["nominalConcurrencyShares"] = json!(0);
    c.post(&format!("{GROUP}/prioritylevelconfigurations"), tiny).await.ok();
    c.post(&format!("{GROUP}/flowschemas"), schema("flooded", "tiny", "alice", "flooded")).await.ok();
    let alice = server.client(Identity::Alice);
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = alice.get("/api/v1/namespaces/flooded/pods?timeout=200ms").await;
        if answer.code == 429 {
            assert_eq!(answer.text(), "Too many requests, please try again later.\n");
            assert_eq!(answer.header("Content-Type"), "text/plain; charset=utf-8");
            assert_eq!(answer.header("Retry-After"), "1");
            assert!(!answer.header(SCHEMA).is_empty() && !answer.header(LEVEL).is_empty());
            break;
        }
        assert!(Instant::now() < give_up, "the configuration is never in force: {}", answer.text());
    }
    // Elsewhere she is as welcome as before.
    assert_eq!(alice.get("/api/v1/namespaces/default/pods").await.code, 403);
    let metrics = c.get("/metrics").await.text();
    assert!(metrics.contains("apiserver_flowcontrol_rejected_requests_total{flow_schema=\"flooded\",priority_level=\"tiny\",reason=\"time-out\"} "));
    c.delete(&format!("{GROUP}/flowschemas/flooded")).await.ok();
    c.delete(&format!("{GROUP}/prioritylevelconfigurations/tiny")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn mandatory_flow_control_objects_are_restored() {
    if etcd_is_missing() {
        return;
    }
    let mut server = Cluster::start_with(|_, _| {
        vec!["--max-requests-inflight=8".to_owned(), "--max-mutating-requests-inflight=2".to_owned()]
    })
    .await;
    let exempt = format!("{GROUP}/flowschemas/exempt");
    server.delete(&exempt).await.ok();
    // Masters are served all the same, and a new start writes the object again.
    server.get("/api/v1/namespaces/default").await.ok();
    server.stop_server();
    server.start_server().await;
    server.get(&exempt).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn max_in_flight_applies_without_fairness() {
    if etcd_is_missing() {
        return;
    }
    let server = Cluster::start_with(|_, _| vec!["--enable-priority-and-fairness=false".to_owned()]).await;
    let answer = server.get("/api/v1/namespaces/default").await;
    answer.ok();
    assert_eq!(answer.header(SCHEMA), "");
    assert_eq!(server.get("/debug/api_priority_and_fairness/dump_queues").await.code, 404);
}
