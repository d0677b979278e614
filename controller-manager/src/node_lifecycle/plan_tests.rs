use super::*;
use serde_json::Value;

impl Monitor {
    /// A look whose writes all succeed.
    fn tick(&mut self, world: &World<'_, '_>, moment: Moment) -> Vec<Action> {
        let (findings, mut actions) = self.observe(world, moment);
        actions.extend(self.follow(world, &findings, &Outcomes::new(), moment));
        actions
    }
}

const CONFIG: NodeLifecycle = NodeLifecycle {
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
    tick_with(m, nodes, &[], renewed, now)
}

/// After pods have come to nodes.
fn tick_with(m: &mut Monitor, nodes: &[Arc<Node>], placed: &[Arc<Pod>], renewed: Option<i64>, now: i64) -> Vec<String> {
    let world = World { nodes, renewed: &|_| renewed.map(at), pods_on: &|n| vec![pod(n)], placed };
    tick_at(m, &world, now, now)
}

/// Runs the monitor with a wall clock that differs from the monotonic one.
fn tick_at(m: &mut Monitor, world: &World<'_, '_>, wall: i64, steady: i64) -> Vec<String> {
    m.tick(world, Moment { wall: at(wall), steady: SignedDuration::from_secs(steady) })
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
    let late = [pod("a"), pod("b"), pod("gone")];
    assert_eq!(
        tick_with(&mut m, &[node("a", Some("Unknown"), 0, json!([])), beating(55)], &late, None, 56),
        [
            "namespaces/ns/pods/p/status Ready=False ",
            "NodeNotReady: Node is not ready",
            "nodes/a taints unreachable:NoSchedule unreachable:NoExecute"
        ],
        "a pod that comes late, or that could not be marked, is marked if its node is not back"
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
        tick(&mut m, &[node("a", Some("False"), 10, json!([])), up.clone()], None, 10),
        ["nodes/a taints not-ready:NoSchedule not-ready:NoExecute"]
    );
    let tainted = json!([{"key": NOT_READY, "effect": "NoSchedule"}, {"key": NOT_READY, "effect": "NoExecute"}]);
    let seen = [node("a", Some("False"), 11, tainted), up];
    assert_eq!(
        tick_with(&mut m, &seen, &[pod("a"), pod("up")], None, 11),
        ["namespaces/ns/pods/p/status Ready=False ", "NodeNotReady: Node is not ready"],
        "one that comes to it all the same is marked"
    );
    let silent = Pod { status: None, ..Pod::clone(&pod("a")) };
    assert!(tick_with(&mut m, &seen, &[Arc::new(silent)], None, 12).is_empty(), "unless it has said nothing yet");
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

/// A machine that has slept for an hour, or whose clock was wrong, has not missed anybody's sign of life.
#[test]
fn a_clock_that_is_set_makes_nobody_silent() {
    let nodes = [node("a", Some("True"), 0, json!([]))];
    let world = World { nodes: &nodes, renewed: &|_| None, pods_on: &|n| vec![pod(n)], placed: &[] };
    for leap in [3600, -3600] {
        let mut m = Monitor::new(CONFIG);
        tick_at(&mut m, &world, 0, 0);
        assert_eq!(tick_at(&mut m, &world, 5 + leap, 5), Vec::<String>::new(), "{leap}");
        assert!(!tick_at(&mut m, &world, 51 + leap, 51).is_empty(), "{leap}: silence counts all the same");
    }
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
fn a_node_that_never_reports_is_known_since_it_was_made() {
    let never = || [node("a", None, 0, json!([])), node("b", Some("True"), 0, json!([]))];
    let unknown = |told: &[String]| told.iter().any(|t| t == "nodes/a/status Ready=Unknown NodeStatusNeverUpdated");
    let mut m = Monitor::new(CONFIG);
    assert!(unknown(&tick(&mut m, &never(), None, 61)), "by a controller that has just come");
    let mut m = Monitor::new(CONFIG);
    assert!(!unknown(&tick(&mut m, &never(), Some(60), 61)), "its lease shows that it lives");
    let mut m = Monitor::new(CONFIG);
    tick(&mut m, &never(), None, 20);
    let first = [node("a", Some("False"), 0, json!([])), node("b", Some("True"), 0, json!([]))];
    tick(&mut m, &first, None, 55);
    assert!(!unknown(&tick(&mut m, &first, None, 62)), "its first report is a sign of life, whatever its clock says");
}

#[test]
fn time_to_be_heard_of_after_all_were_down() {
    let mut m = Monitor::new(CONFIG);
    let a = |ready: &str| node("a", Some(ready), 0, json!([]));
    let b = |ready: &str, beat: i64| node("b", Some(ready), beat, json!([]));
    tick(&mut m, &[a("False"), b("False", 0)], None, 0);
    tick(&mut m, &[a("False"), b("True", 40)], None, 40);
    let told = tick(&mut m, &[a("False"), b("True", 60)], None, 60);
    assert!(!told.iter().any(|t| t.contains("Ready=Unknown")), "{told:?}");
    let told = tick(&mut m, &[a("False"), b("True", 91)], None, 91);
    assert!(told.iter().any(|t| t.contains("nodes/a/status Ready=Unknown")), "{told:?}");
}

#[test]
fn who_waits_is_looked_at_in_time() {
    for (rate, seconds) in [(0.1, Some(10.0)), (2.0, Some(0.5)), (100.0, Some(0.1)), (0.0, None)] {
        let mut m = Monitor::new(NodeLifecycle { eviction_rate: rate, ..CONFIG });
        let nodes: Vec<Arc<Node>> = [("a", "False"), ("b", "False"), ("c", "True")]
            .map(|(name, ready)| node(name, Some(ready), 0, json!([])))
            .into();
        tick(&mut m, &nodes, None, 0);
        assert_eq!(m.due().map(|d| d.as_secs_f64()), seconds, "{rate}");
    }
}

#[test]
fn zones_and_who_counts_in_them() {
    let labelled = |name: &str, ready: &str, labels: Value| -> Arc<Node> {
        let mut n = Node::clone(&node(name, Some(ready), 0, json!([])));
        n.metadata.labels = serde_json::from_value(labels).expect("labels");
        Arc::new(n)
    };
    let place = |zone: &str, region: &str| json!({"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region});
    for (labels, want) in [
        (json!({}), ""),
        (place("z", "r"), "r:\0:z"),
        (place("z", ""), ":\0:z"),
        (json!({"topology.kubernetes.io/zone": "z", "failure-domain.beta.kubernetes.io/zone": "old"}), ":\0:old"),
    ] {
        assert_eq!(zone_of(&labelled("n", "True", labels.clone())), want, "{labels}");
    }
    let mut m = Monitor::new(CONFIG);
    let up = labelled("up", "True", json!({UNCOUNTED: ""}));
    let down = labelled("down", "False", json!({}));
    let census = m.census(&[up.clone(), down.clone()]);
    assert_eq!(census.into_iter().collect::<Vec<_>>(), [(String::new(), (1, 0))]);
    let told = tick(&mut m, &[up, down], None, 0);
    assert_eq!(
        told.last().map(String::as_str),
        Some("nodes/down taints not-ready:NoSchedule"),
        "all that count are down"
    );
    for want in [vec![(String::new(), (0, 0))], vec![]] {
        assert_eq!(m.census(&[]).into_iter().collect::<Vec<_>>(), want, "an empty zone is told of once");
    }
}

#[test]
fn how_fast_zones_are_emptied() {
    let placed = |i: usize, (zone, ready): &(&str, bool)| -> Arc<Node> {
        let ready = if *ready { "True" } else { "False" };
        let mut n = Node::clone(&node(&format!("n{i}"), Some(ready), 0, json!([])));
        n.metadata.labels = serde_json::from_value(json!({"topology.kubernetes.io/zone": zone})).expect("labels");
        Arc::new(n)
    };
    let many = [("a", false), ("a", false), ("a", false), ("a", true), ("a", true)];
    for (why, nodes, large_zone, emptied, next) in [
        ("all is well but one", vec![("a", false), ("a", true)], 50, 1, None),
        ("two of a healthy zone", vec![("a", false), ("a", false), ("a", true)], 50, 1, Some(10.0)),
        ("one zone is lost, the other is not", vec![("a", false), ("a", false), ("b", true)], 50, 1, Some(10.0)),
        ("each zone by itself", vec![("a", false), ("a", true), ("b", false), ("b", true)], 50, 2, None),
        ("both zones are lost", vec![("a", false), ("b", false)], 50, 0, None),
        ("a small zone is partly lost", many.to_vec(), 50, 0, None),
        ("a zone of just that size is small", many.to_vec(), 5, 0, None),
        ("a large zone is partly lost", many.to_vec(), 4, 1, Some(100.0)),
    ] {
        let mut m = Monitor::new(NodeLifecycle { large_zone, ..CONFIG });
        let nodes: Vec<Arc<Node>> = nodes.iter().enumerate().map(|(i, n)| placed(i, n)).collect();
        let told = tick(&mut m, &nodes, None, 0);
        assert_eq!(told.iter().filter(|t| t.contains("NoExecute")).count(), emptied, "{why}: {told:?}");
        assert_eq!(m.due().map(|d| d.as_secs_f64()), next, "{why}");
    }
}

#[test]
fn nodes_whose_status_was_not_written_are_not_counted() {
    let reported = |status: &str| FailedWrite::Reported(Some(status.to_owned()));
    for (why, outcome, emptied) in [
        ("four of six are lost: a small zone is not emptied", None, 0),
        ("one of three is lost, three are not known", Some(FailedWrite::Failed), 1),
        ("three are back", Some(reported("True")), 1),
        ("three say themselves that they are not ready", Some(reported("False")), 0),
    ] {
        let mut m = Monitor::new(CONFIG);
        let silent = ["s1", "s2", "s3"];
        let at_first: Vec<Arc<Node>> = silent.map(|name| node(name, Some("True"), 0, json!([]))).to_vec();
        tick(&mut m, &at_first, None, 0);
        let others = [("down", "False"), ("up1", "True"), ("up2", "True")];
        let nodes: Vec<Arc<Node>> =
            at_first.into_iter().chain(others.map(|(name, ready)| node(name, Some(ready), 51, json!([])))).collect();
        let world = World { nodes: &nodes, renewed: &|_| None, pods_on: &|_| Vec::new(), placed: &[] };
        let moment = Moment { wall: at(51), steady: SignedDuration::from_secs(51) };
        let (findings, actions) = m.observe(&world, moment);
        assert_eq!(actions.iter().filter(|a| matches!(a, Action::Patch { .. })).count(), 3, "{why}");
        let outcomes = outcome.iter().flat_map(|o| silent.map(|name| (name.to_owned(), o.clone()))).collect();
        let followed = m.follow(&world, &findings, &outcomes, moment);
        let text: Vec<String> = followed.iter().map(|a| format!("{a:?}")).collect();
        assert_eq!(text.iter().filter(|t| t.contains("NoExecute")).count(), emptied, "{why}: {text:?}");
        assert!(!text.iter().any(|t| t.contains("nodes/s")), "{why}: taints wait for the status: {text:?}");
    }
}

#[test]
fn nothing_is_emptied_when_no_status_could_be_written() {
    let mut m = Monitor::new(CONFIG);
    let nodes = [node("a", Some("True"), 0, json!([]))];
    tick(&mut m, &nodes, None, 0);
    let world = World { nodes: &nodes, renewed: &|_| None, pods_on: &|_| Vec::new(), placed: &[] };
    let moment = Moment { wall: at(51), steady: SignedDuration::from_secs(51) };
    let (findings, _) = m.observe(&world, moment);
    assert!(m.follow(&world, &findings, &Outcomes::from([("a".to_owned(), FailedWrite::Failed)]), moment).is_empty());
    assert!(m.all_down);
}

#[test]
fn failed_write_is_decided_again_about_the_live_node() {
    let mut m = Monitor::new(CONFIG);
    tick(&mut m, &[node("a", Some("True"), 0, json!([]))], None, 0);
    for (why, live, again) in [
        ("somebody else wrote to it", node("a", Some("True"), 0, json!([])), true),
        ("its kubelet did", node("a", Some("True"), 51, json!([])), false),
        ("it is marked already", node("a", Some("Unknown"), 0, json!([])), false),
        ("nobody knows it", node("b", Some("True"), 0, json!([])), false),
    ] {
        assert_eq!(m.decide_again(&live, at(51)).is_some(), again, "{why}");
    }
}
