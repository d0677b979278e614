use super::*;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("time")
}

fn node(name: &str, extra: Value) -> Arc<Node> {
    let mut v = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}});
    if let (Some(spec), Value::Object(e)) = (v["spec"].as_object_mut(), extra) {
        spec.extend(e);
    }
    Arc::new(serde_json::from_value(v).expect("node"))
}

fn set(image: &str, strategy: Value) -> Arc<DaemonSet> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": "ds", "namespace": "ns", "uid": "ds", "generation": 1, "annotations": {GENERATION: "1"}},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "updateStrategy": strategy,
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}}},
        }))
        .expect("set"),
    )
}

fn pod(name: &str, node: &str, hash: &str, ready: bool, phase: &str) -> Arc<Pod> {
    labelled(name, node, json!({history::HASH_LABEL: hash}), ready, phase)
}

fn labelled(name: &str, node: &str, labels: Value, ready: bool, phase: &str) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels},
            "spec": {"containers": [], "nodeName": node},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .expect("pod"),
    )
}

fn current_hash(ds: &DaemonSet) -> String {
    crate::engine::hash::of(&history::data(&ds.spec.as_ref().expect("spec").template), None)
}

fn shape(s: &Snapshot) -> Vec<String> {
    plan(s, now())
        .iter()
        .filter_map(|a| match a {
            Action::CreatePod { pod, .. } => {
                let seen: Pod = serde_json::from_value(serde_json::to_value(pod).expect("json")).expect("pod");
                Some(format!("create on {}", target_node(&seen).unwrap_or_default()))
            }
            Action::DeletePod { name, .. } => Some(format!("delete {name}")),
            Action::Event { message, .. } => Some(message.clone()),
            _ => None,
        })
        .collect()
}

#[test]
fn placement() {
    let taint = |effect: &str, key: &str| json!({"taints": [{"key": key, "effect": effect}]});
    let nodes = vec![
        node("plain", json!({})),
        node("cordoned", taint("NoSchedule", "node.kubernetes.io/unschedulable")),
        node("dedicated", taint("NoSchedule", "gpu")),
        node("expelling", taint("NoExecute", "gpu")),
        node("not-ready", taint("NoExecute", "node.kubernetes.io/not-ready")),
    ];
    let ds = set("v1", json!({"type": "RollingUpdate"}));
    let mut s = Snapshot {
        set: ds,
        nodes,
        pods: vec![],
        revisions: vec![],
        settled: true,
        held: HashSet::new(),
        compares: false,
    };
    assert_eq!(shape(&s), ["create on plain", "create on cordoned", "create on not-ready"]);
    s.settled = false;
    assert!(shape(&s).is_empty(), "earlier creations are not seen yet");
    s.settled = true;
    let hash = current_hash(&s.set);
    s.pods = vec![
        pod("a", "plain", &hash, true, "Running"),
        pod("b", "cordoned", &hash, true, "Failed"),
        pod("c", "dedicated", &hash, true, "Running"),
        pod("d", "expelling", &hash, true, "Running"),
        pod("e", "not-ready", &hash, true, "Running"),
        pod("f", "not-ready", &hash, true, "Running"),
    ];
    assert_eq!(
        shape(&s),
        ["Found failed daemon pod ns/b on node cordoned, will try to kill it", "delete b", "delete d", "delete f"],
        "a pod stays on a node tainted NoSchedule, leaves one tainted NoExecute"
    );
}

#[test]
fn daemon_pods_carry_hash_affinity_and_tolerations() {
    let s = Snapshot {
        set: set("v1", json!({})),
        nodes: vec![node("n", json!({}))],
        pods: vec![],
        revisions: vec![],
        settled: true,
        held: HashSet::new(),
        compares: false,
    };
    let pod = plan(&s, now())
        .into_iter()
        .find_map(|a| if let Action::CreatePod { pod, .. } = a { Some(pod) } else { None })
        .expect("pod");
    let labels = pod.metadata.labels.clone().expect("labels");
    assert_eq!(labels.get(history::HASH_LABEL), Some(&current_hash(&s.set)));
    assert_eq!(labels.get("pod-template-generation").map(String::as_str), Some("1"));
    assert_eq!(pod.metadata.generate_name.as_deref(), Some("ds-"));
    assert_eq!(pod.spec.as_ref().and_then(|s| s.tolerations.as_ref()).map(Vec::len), Some(6));
}

#[test]
fn rolling_update() {
    let nodes: Vec<_> = ["n1", "n2", "n3"].iter().map(|n| node(n, json!({}))).collect();
    let hash = current_hash(&set("v2", json!({})));
    let world = |strategy: Value, pods: Vec<Arc<Pod>>| Snapshot {
        set: set("v2", strategy),
        nodes: nodes.clone(),
        pods,
        revisions: vec![],
        settled: true,
        held: HashSet::new(),
        compares: false,
    };
    let rolling =
        |u: Value, s: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": u, "maxSurge": s}});
    let old = |n: &str, ready| pod(&format!("old-{n}"), n, "old", ready, "Running");
    let new = |n: &str, ready| pod(&format!("new-{n}"), n, &hash, ready, "Running");
    let numbered = |number: &str| labelled("x", "n1", json!({POD_GENERATION: number}), true, "Running");
    let stopping = |p: Arc<Pod>| {
        let mut p = Pod::clone(&p);
        p.metadata.deletion_timestamp = Some(object::seconds(now()));
        Arc::new(p)
    };
    let cases: Vec<(&str, Snapshot, Vec<&str>)> = vec![
        (
            "one at a time",
            world(rolling(json!(1), json!(0)), vec![old("n1", true), old("n2", true), old("n3", true)]),
            vec!["delete old-n1"],
        ),
        (
            "waits for the new one",
            world(rolling(json!(1), json!(0)), vec![new("n1", false), old("n2", true), old("n3", true)]),
            vec![],
        ),
        (
            "broken old ones go anyway",
            world(rolling(json!(1), json!(0)), vec![new("n1", false), old("n2", false), old("n3", true)]),
            vec!["delete old-n2"],
        ),
        (
            "a share",
            world(rolling(json!("50%"), json!(0)), vec![old("n1", true), old("n2", true), old("n3", true)]),
            vec!["delete old-n1", "delete old-n2"],
        ),
        (
            "surge starts the new beside the old",
            world(rolling(json!(0), json!(1)), vec![old("n1", true), old("n2", true), old("n3", true)]),
            vec!["create on n1"],
        ),
        (
            "surge removes the old when the new is up",
            world(
                rolling(json!(0), json!(1)),
                vec![old("n1", true), new("n1", true), old("n2", true), new("n3", true)],
            ),
            vec!["delete old-n1"],
        ),
        (
            "a pod of the same template number is not outdated",
            world(rolling(json!(1), json!(0)), vec![numbered("1"), new("n2", true), new("n3", true)]),
            vec![],
        ),
        (
            "one of an earlier number is",
            world(rolling(json!(1), json!(0)), vec![numbered("0"), new("n2", true), new("n3", true)]),
            vec!["delete x"],
        ),
        (
            "surge does not wait for those that are stopping",
            world(rolling(json!(0), json!(1)), vec![stopping(old("n1", true)), new("n2", true), new("n3", true)]),
            vec!["create on n1"],
        ),
        (
            "without surge they are waited for",
            world(rolling(json!(1), json!(0)), vec![stopping(old("n1", true)), old("n2", true), old("n3", true)]),
            vec![],
        ),
        (
            "but not those that ended",
            world(
                rolling(json!(1), json!(0)),
                vec![stopping(pod("x", "n1", "old", false, "Failed")), new("n2", true), new("n3", true)],
            ),
            vec!["create on n1"],
        ),
        (
            "on delete only by hand",
            world(json!({"type": "OnDelete"}), vec![old("n1", true), old("n2", true), old("n3", true)]),
            vec![],
        ),
    ];
    for (name, s, want) in cases {
        assert_eq!(shape(&s), want, "{name}");
    }
}

#[test]
fn nodes_that_are_no_longer_wanted() {
    let taint = json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]});
    let hash = current_hash(&set("v2", json!({})));
    let world = |unavailable: i32, surge: i32, pods: Vec<Arc<Pod>>| Snapshot {
        set: set(
            "v2",
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}),
        ),
        nodes: vec![node("left", taint.clone()), node("right", json!({}))],
        pods,
        revisions: vec![],
        settled: true,
        held: HashSet::new(),
        compares: false,
    };
    let old = |ready| pod("old", "left", "old", ready, "Running");
    let new = |ready| pod("new", "right", &hash, ready, "Running");
    let cases: Vec<(&str, Snapshot, Vec<&str>)> = vec![
        ("an outdated pod leaves", world(1, 0, vec![old(true), new(true)]), vec!["delete old"]),
        ("within the limit", world(1, 0, vec![old(true), new(false)]), vec![]),
        ("with surge when another took over", world(0, 1, vec![old(true), new(true)]), vec!["delete old"]),
        ("not before", world(0, 1, vec![old(true), new(false)]), vec![]),
        ("unless it is of no use", world(0, 1, vec![old(false), new(false)]), vec!["delete old"]),
    ];
    for (name, s, want) in cases {
        assert_eq!(shape(&s), want, "{name}");
    }
}

#[test]
fn status_counts_nodes() {
    let nodes = vec![
        node("n1", json!({})),
        node("n2", json!({})),
        node("n3", json!({"taints": [{"key": "x", "effect": "NoSchedule"}]})),
    ];
    let ds = set("v1", json!({}));
    let hash = current_hash(&ds);
    let pods = vec![pod("a", "n1", &hash, true, "Running"), pod("b", "n3", "old", true, "Running")];
    let s = Snapshot { set: ds, nodes, pods, revisions: vec![], settled: false, held: HashSet::new(), compares: false };
    let status = plan(&s, now()).into_iter().find_map(|a| match a {
        Action::Report { body, .. } => Some(body["status"].clone()),
        _ => None,
    });
    assert_eq!(
        status.expect("status"),
        json!({"currentNumberScheduled": 1, "desiredNumberScheduled": 2, "numberAvailable": 1, "numberMisscheduled": 1, "numberReady": 1,
            "numberUnavailable": 1, "updatedNumberScheduled": 1}),
        "the generation is not observed while earlier writes are not seen"
    );
}
