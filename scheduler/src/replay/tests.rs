use serde_json::{Value, json};

use super::{Decision, list, replay};
use crate::explain::{Dump, profiles};

fn cluster(items: Value) -> Dump {
    let mut dump = Dump::default();
    dump.add(json!({"kind": "List", "items": items})).expect("dump");
    dump
}

fn node(name: &str, cpu: &str) -> Value {
    json!({"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}})
}

fn pod(name: &str, cpu: &str, priority: i32, on: Value) -> Value {
    json!({"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": on, "priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
}

fn decide(dump: &Dump, file: &str) -> Vec<Decision> {
    let path = std::env::temp_dir().join(format!("replay-{}-{}.yaml", std::process::id(), file.len()));
    std::fs::write(&path, file).expect("file");
    let pods = list(&path, "default", dump).expect("pods");
    std::fs::remove_file(&path).expect("clean");
    replay(dump, profiles(None).expect("profiles"), &pods, 7)
}

#[test]
fn waiting_pods_come_first_and_each_takes_its_room() {
    let dump = cluster(json!([node("a", "2"), node("b", "4"), pod("waits", "3", 0, Value::Null)]));
    let file = "kind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 3\n  template:\n    spec:\n      containers:\n      - {name: c, image: i, resources: {requests: {cpu: '1'}}}\n";
    let decisions = decide(&dump, file);
    assert_eq!(decisions[0].line(), "default/waits\tb\n");
    let nodes: Vec<_> = decisions[1..].iter().map(|d| d.node.as_deref().unwrap_or("-")).collect();
    assert_eq!(nodes.iter().filter(|n| **n == "a").count(), 2, "{decisions:?}");
    assert_eq!(nodes.iter().filter(|n| **n == "b").count(), 1, "{decisions:?}");
    assert_eq!(decisions, decide(&dump, file), "the same seed gives the same decisions");
}

#[test]
fn whoever_makes_room_gets_it_and_whoever_finds_none_is_told_why() {
    let dump = cluster(json!([node("a", "2"), pod("low", "2", 0, json!("a")), pod("high", "2", 10, Value::Null)]));
    let file = "kind: PodList\nitems:\n- metadata: {name: huge}\n  spec:\n    containers:\n    - {name: c, image: i, resources: {requests: {cpu: '99'}}}\n";
    let lines: String = decide(&dump, file).iter().map(Decision::line).collect();
    assert!(lines.contains("default/high\t-\tpreempts default/low on a\n"), "{lines}");
    assert!(lines.contains("default/high\ta\n"), "{lines}");
    assert!(lines.contains("default/huge\t-\t0/1 nodes are available: 1 Insufficient cpu."), "{lines}");
}

#[test]
fn only_the_subcommand_is_taken() {
    assert!(super::run(["explain".into()]).is_none());
    super::command().debug_assert();
}
