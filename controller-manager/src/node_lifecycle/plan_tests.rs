use super::*;
use serde_json::Value;

const CONFIG: Config = Config {
    grace: Duration::from_secs(50),
    startup_grace: Duration::from_secs(60),
    eviction_rate: 0.1,
    secondary_rate: 0.01,
    large_zone: 50,
    unhealthy_share: 0.55,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + seconds).expect("time")
}

fn node(name: &str, ready: Option<&str>, beat: i64, taints: Value) -> Arc<Node> {
    let mut v = json!({"metadata": {"name": name, "uid": name, "creationTimestamp": at(0).to_string()}, "spec": {"taints": taints}, "status": {}});
    if let Some(status) = ready {
        v["status"]["conditions"] =
            json!([{"type": "Ready", "status": status, "lastHeartbeatTime": at(beat).to_string()}]);
        for other in &REPORTED[1..] {
            let other = json!({"type": other, "status": if status == "Unknown" { "Unknown" } else { "False" }});
            v["status"]["conditions"].as_array_mut().expect("list").push(other);
        }
    }
    Arc::new(serde_json::from_value(v).expect("node"))
}

fn pod(node: &str) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p"}, "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}))
        .expect("pod"),
    )
}

fn tick(m: &mut Monitor, nodes: &[Arc<Node>], renewed: Option<i64>, now: i64) -> Vec<String> {
    let world = World { nodes, renewed: &|_| renewed.map(at), pods_on: &|n| vec![pod(n)] };
    m.tick(&world, at(now))
        .into_iter()
        .map(|a| match a {
            Action::Event { reason, message, .. } => format!("{reason}: {message}"),
            Action::Patch { path, body, .. } => {
                let what = path.trim_start_matches("/api/v1/");
                if let Some(t) = body.pointer("/spec/taints") {
                    let list: Vec<String> = t
                        .as_array()
                        .into_iter()
                        .flatten()
                        .map(|t| {
                            format!(
                                "{}:{}",
                                t["key"].as_str().unwrap_or("").trim_start_matches("node.kubernetes.io/"),
                                t["effect"].as_str().unwrap_or("")
                            )
                        })
                        .collect();
                    format!("{what} taints {}", list.join(" "))
                } else {
                    let c = &body["status"]["conditions"][0];
                    format!(
                        "{what} {}={} {}",
                        c["type"].as_str().unwrap_or(""),
                        c["status"].as_str().unwrap_or(""),
                        c["reason"].as_str().unwrap_or("")
                    )
                }
            }
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_silent_node_becomes_unknown_unreachable_and_is_emptied() {
    let mut m = Monitor::new(CONFIG);
    let healthy = node("b", Some("True"), 0, json!([]));
    let seen = |s: &str, taints: Value| [node("a", Some(s), 0, taints), healthy.clone()];
    let beating = |n: i64| node("b", Some("True"), n, json!([]));
    assert_eq!(
        tick(&mut m, &seen("True", json!([])), None, 0),
        [
            "RegisteredNode: Node a event: Registered Node a in Controller",
            "RegisteredNode: Node b event: Registered Node b in Controller"
        ]
    );
    assert!(
        tick(&mut m, &[node("a", Some("True"), 0, json!([])), beating(40)], None, 50).is_empty(),
        "within the grace period"
    );
    assert_eq!(
        tick(&mut m, &[node("a", Some("True"), 0, json!([])), beating(50)], None, 55),
        [
            "nodes/a/status Ready=Unknown NodeStatusUnknown",
            "NodeNotReady: Node a status is now: NodeNotReady",
            "namespaces/ns/pods/p/status Ready=False ",
            "NodeNotReady: Node is not ready"
        ]
    );
    m.mark_again("a");
    m.mark_again("b");
    assert_eq!(
        tick(&mut m, &[node("a", Some("Unknown"), 0, json!([])), beating(55)], None, 56),
        [
            "namespaces/ns/pods/p/status Ready=False ",
            "NodeNotReady: Node is not ready",
            "nodes/a taints unreachable:NoSchedule unreachable:NoExecute"
        ],
        "what could not be marked is marked again, if the node is not back"
    );
    let tainted = json!([{"key": UNREACHABLE, "effect": "NoSchedule"}, {"key": UNREACHABLE, "effect": "NoExecute"}]);
    assert!(tick(&mut m, &[node("a", Some("Unknown"), 0, tainted.clone()), beating(60)], None, 60).is_empty());
    assert_eq!(
        tick(&mut m, &[node("a", Some("True"), 61, tainted), beating(61)], None, 62),
        ["nodes/a taints "],
        "back again"
    );
}

#[test]
fn a_kubelet_that_says_it_is_not_ready_keeps_its_pods() {
    let mut m = Monitor::new(CONFIG);
    let up = node("up", Some("True"), 0, json!([]));
    tick(&mut m, &[node("a", Some("True"), 0, json!([])), up.clone()], None, 0);
    assert_eq!(
        tick(&mut m, &[node("a", Some("False"), 10, json!([])), up], None, 10),
        ["nodes/a taints not-ready:NoSchedule not-ready:NoExecute"]
    );
}

#[test]
fn lease_renewals_count_as_life_signs() {
    let mut m = Monitor::new(CONFIG);
    let nodes = [node("a", Some("True"), 0, json!([]))];
    tick(&mut m, &nodes, Some(0), 0);
    tick(&mut m, &nodes, Some(45), 45);
    assert!(tick(&mut m, &nodes, Some(45), 90).is_empty());
    assert!(!tick(&mut m, &nodes, Some(45), 96).is_empty());
}

#[test]
fn evictions_are_paced_and_stop_when_all_is_down() {
    let mut m = Monitor::new(CONFIG);
    let down = |n: &str, taints: Value| node(n, Some("False"), 0, taints);
    let up = || node("up", Some("True"), 0, json!([]));
    let none = || json!([]);
    let sched = || json!([{"key": NOT_READY, "effect": "NoSchedule"}]);
    let both = || json!([{"key": NOT_READY, "effect": "NoSchedule"}, {"key": NOT_READY, "effect": "NoExecute"}]);
    let first = tick(&mut m, &[down("a", none()), down("b", none()), up()], None, 0);
    assert_eq!(
        first[3..],
        ["nodes/b taints not-ready:NoSchedule", "nodes/a taints not-ready:NoSchedule not-ready:NoExecute"]
    );
    assert!(
        tick(&mut m, &[down("a", both()), down("b", sched()), up()], None, 5).is_empty(),
        "one node in ten seconds"
    );
    assert_eq!(
        tick(&mut m, &[down("a", both()), down("b", sched()), up()], None, 10),
        ["nodes/b taints not-ready:NoSchedule not-ready:NoExecute"]
    );
    let gone = tick(&mut m, &[down("a", both()), down("b", sched())], None, 20);
    assert_eq!(
        gone,
        ["RemovingNode: Node up event: Removing Node up from Controller", "nodes/a taints not-ready:NoSchedule"]
    );
}

#[test]
fn zone_health() {
    let m = Monitor::new(CONFIG);
    for (ready, not_ready, want) in [
        (1, 0, ZoneState::Normal),
        (1, 1, ZoneState::Normal),
        (1, 2, ZoneState::Normal),
        (2, 3, ZoneState::PartialDisruption),
        (10, 4, ZoneState::Normal),
        (0, 1, ZoneState::FullDisruption),
    ] {
        assert_eq!(m.zone_state(ready, not_ready), want, "{ready} ready, {not_ready} not");
    }
}

#[test]
fn conditions_and_cordon_become_taints() {
    let v = json!({"metadata": {"name": "a"}, "spec": {"unschedulable": true, "taints": [{"key": "mine", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}, {"type": "MemoryPressure", "status": "False"}]}});
    let n: Node = serde_json::from_value(v).expect("node");
    let keys: Vec<String> =
        desired_taints(&n, Some("True"), false, at(0)).expect("taints").into_iter().map(|t| t.key).collect();
    assert_eq!(keys, ["mine", "node.kubernetes.io/disk-pressure", "node.kubernetes.io/unschedulable"]);
}
