use std::sync::Arc;

use serde_json::json;

use crate::framework::lister::Fixed;
use crate::framework::plugin::Rescue;
use crate::framework::{Context, Cursor, CycleState, Failure, Nominated, Profile, ProfileConfig, Status};
use crate::model::{NodeInfo, PodInfo, Snapshot};
use crate::testing::{PodBuilder, node, pod};

struct Cluster {
    nodes: Vec<Arc<NodeInfo>>,
    listers: Fixed,
    nominated: Nominated,
}

impl Cluster {
    fn of(nodes: Vec<Arc<NodeInfo>>) -> Self {
        Self { nodes, listers: Fixed::default(), nominated: Nominated::default() }
    }

    fn preempt(&self, pod: &PodInfo) -> (Option<Rescue>, Status) {
        let profile = Profile::build(&ProfileConfig::default()).expect("profile");
        let snapshot = Snapshot::of(self.nodes.clone());
        let cx = Context {
            snapshot: &snapshot,
            listers: &self.listers,
            nominated: &self.nominated,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        let mut state = CycleState::default();
        match profile.schedule(cx, &mut state, pod, &mut Cursor::default(), &mut rand::rng()) {
            Err(Failure::Unfit(d)) => profile.post_filter(cx, &state, pod, &d.rejected),
            other => (None, Status::error(format!("expected no fit, got {other:?}"))),
        }
    }
}

fn small(name: &str, cpu: &str, priority: i32) -> PodInfo {
    pod(name).cpu(cpu).priority(priority).label("app", name).info()
}

fn started(p: PodBuilder, at: &str) -> PodInfo {
    p.set("/status", "startTime", json!(at)).info()
}

fn names(rescue: &Rescue) -> Vec<&str> {
    rescue.victims.iter().map(|p| &*p.name).collect()
}

#[test]
fn takes_as_few_and_as_unimportant_as_will_do() {
    let cluster = Cluster::of(vec![
        node("important").with(&[small("a", "3", 50)]),
        node("many").with(&[small("b", "2", 1), small("c", "2", 1)]),
        node("few").with(&[small("d", "1", 1), small("e", "3", 1)]),
        node("untouchable").with(&[small("f", "4", 500)]),
    ]);
    let (rescue, status) = cluster.preempt(&small("p", "3", 100));
    assert!(status.is_success(), "{status}");
    let rescue = rescue.expect("rescue");
    assert_eq!((rescue.nominate.as_deref(), names(&rescue)), (Some("few"), vec!["e"]));
}

#[test]
fn youngest_first_among_equals() {
    let cluster = Cluster::of(vec![
        node("old").with(&[started(pod("o").cpu("3"), "2020-01-01T00:00:00Z")]),
        node("young").with(&[started(pod("y").cpu("3"), "2024-01-01T00:00:00Z")]),
    ]);
    let (rescue, _) = cluster.preempt(&small("p", "3", 100));
    assert_eq!(rescue.and_then(|r| r.nominate).as_deref(), Some("young"));
}

#[test]
fn budgets_are_respected_where_possible() {
    let mut cluster =
        Cluster::of(vec![node("a").with(&[small("guarded", "3", 1)]), node("b").with(&[small("free", "3", 2)])]);
    cluster.listers.budgets.push(Arc::new(
        serde_json::from_value(json!({"metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "guarded"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}}))
        .expect("budget"),
    ));
    let (rescue, _) = cluster.preempt(&small("p", "3", 100));
    assert_eq!(names(&rescue.expect("rescue")), ["free"]);
}

#[test]
fn words() {
    let never = || pod("p").cpu("3").priority(100).set("/spec", "preemptionPolicy", json!("Never")).info();
    let full =
        |priority| vec![node("a").with(&[small("x", "3", priority)]), node("b").taint("t", "", "NoSchedule").with(&[])];
    for (what, pod, nodes, want) in [
        (
            "never",
            never(),
            full(1),
            "no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.",
        ),
        (
            "no victims",
            small("p", "3", 100),
            full(100),
            "no new claims to deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, \
             1 Preemption is not helpful for scheduling.",
        ),
        (
            "hopeless",
            small("p", "30", 100),
            full(1),
            "no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        ),
    ] {
        let (_, status) = Cluster::of(nodes).preempt(&pod);
        assert_eq!(status.to_string(), want, "{what}");
    }
}

#[test]
fn waits_for_victims_that_are_leaving() {
    let leaving =
        pod("v").cpu("3").priority(1).set("/metadata", "deletionTimestamp", json!("2024-01-01T00:00:00Z")).set(
            "/status",
            "conditions",
            json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]),
        );
    let cluster = Cluster::of(vec![node("a").with(&[leaving.info()])]);
    let p = pod("p").cpu("3").priority(100).set("/status", "nominatedNodeName", json!("a")).info();
    let (_, status) = cluster.preempt(&p);
    assert_eq!(
        status.to_string(),
        "no new claims to deallocate, preemption: not eligible due to a terminating pod on the nominated node."
    );
}

#[test]
fn lesser_promises_are_taken_back() {
    let mut cluster = Cluster::of(vec![node("a").with(&[small("v", "3", 1)])]);
    cluster.nominated.set(Arc::new(small("hopeful", "3", 10)), "a".into());
    let (rescue, _) = cluster.preempt(&small("p", "3", 100));
    assert_eq!(rescue.expect("rescue").demoted.len(), 1);
}

#[test]
fn promised_node_that_was_not_asked_does_not_hold_a_pod_back() {
    let leaving = |p: PodBuilder| {
        let condition = json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
        p.set("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z")).set("/status", "conditions", condition)
    };
    let lesser = |name: &str| pod(name).cpu("3").priority(1);
    let nodes = vec![
        node("promised").with(&[leaving(lesser("goes")).info()]),
        node("other").label("disk", "ssd").with(&[lesser("stays").info()]),
    ];
    let p = || pod("p").cpu("3").priority(100).set("/status", "nominatedNodeName", json!("promised"));
    let only_other = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}]}}});
    let (rescue, status) = Cluster::of(nodes.clone()).preempt(&p().set("/spec", "affinity", only_other).info());
    assert!(status.is_success(), "{status}");
    assert_eq!(names(&rescue.expect("rescue")), ["stays"]);
    // One that filters have turned down for want of room is waited for.
    let (rescue, status) = Cluster::of(nodes).preempt(&p().info());
    assert!(rescue.is_none());
    assert!(status.to_string().contains("not eligible due to a terminating pod on the nominated node."), "{status}");
}
