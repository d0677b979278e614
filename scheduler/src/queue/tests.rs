use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Profiles, QueuedPod, SchedulingQueue, Timing};
use crate::framework::{ClusterEvent, Profile, ProfileConfig};
use crate::model::PodInfo;
use crate::testing::{PodBuilder, node, pod};

fn queue() -> (SchedulingQueue, Instant) {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let profiles: Profiles = [(Arc::clone(&profile.name), Arc::new(profile))].into();
    (SchedulingQueue::new(Arc::new(profiles), Timing::default()), Instant::now())
}

fn arc(p: &PodBuilder) -> Arc<PodInfo> {
    Arc::new(p.info())
}

fn name(q: Option<&QueuedPod>) -> Option<&str> {
    q.map(|q| &*q.pod.name)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn new_node() -> ClusterEvent {
    ClusterEvent::Node { old: None, new: Arc::new(node("n").base()) }
}

fn fail(q: &mut SchedulingQueue, mut pod: QueuedPod, rejector: Option<&'static str>, now: Instant) -> bool {
    pod.rejectors = rejector.into_iter().collect();
    q.failed(pod, now)
}

#[test]
fn priority_first_then_first_come() {
    let (mut q, t) = queue();
    for (i, (name, priority)) in [("low", 1), ("high", 9), ("high-later", 9), ("lowest", 0)].iter().enumerate() {
        q.add(arc(&pod(name).priority(*priority)), t + secs(i as u64));
    }
    let order: Vec<String> = std::iter::from_fn(|| q.pop(t).map(|p| p.pod.name.to_string())).collect();
    assert_eq!(order, ["high", "high-later", "low", "lowest"]);
}

#[test]
fn only_helpful_events_bring_a_pod_back() {
    let (mut q, t) = queue();
    q.add(arc(&pod("p").cpu("1")), t);
    let p = q.pop(t).expect("p");
    assert!(!fail(&mut q, p, Some("NodeResourcesFit"), t));
    assert_eq!(q.lengths(), [0, 0, 1, 0]);
    let small = ClusterEvent::Node { old: None, new: Arc::new(node("n").has("cpu", "500m").base()) };
    assert!(!q.happened(&small, t), "the node is too small");
    assert!(!q.happened(&ClusterEvent::NodeGone, t));
    assert!(q.happened(&new_node(), t + secs(1)));
    assert_eq!(name(q.pop(t + secs(1)).as_ref()), Some("p"));
}

#[test]
fn events_during_an_attempt_are_not_missed() {
    let (mut q, t) = queue();
    q.add(arc(&pod("p").cpu("1")), t);
    let p = q.pop(t).expect("p");
    q.happened(&new_node(), t);
    assert!(fail(&mut q, p, Some("NodeResourcesFit"), t), "back to the back-off, from where it can be taken early");
    assert_eq!(q.lengths(), [0, 1, 0, 0]);
    assert!(q.events.is_empty(), "nobody needs them any more");
}

#[test]
fn backoff_grows_and_ends() {
    let (mut q, t) = queue();
    q.add(arc(&pod("p")), t);
    let mut now = t;
    for want in [1, 2, 4, 8, 10, 10] {
        let p = q.pop(now).expect("p");
        fail(&mut q, p, None, now);
        assert_eq!(q.next_due(), Some(now + secs(want)));
        assert!(q.pop(now).is_none(), "broken attempts wait their back-off out");
        assert!(!q.tick(now + secs(want) - Duration::from_millis(1)));
        now += secs(want);
        assert!(q.tick(now));
    }
}

#[test]
fn stale_pods_are_tried_again() {
    let (mut q, t) = queue();
    q.add(arc(&pod("p")), t);
    let p = q.pop(t).expect("p");
    fail(&mut q, p, Some("NodeAffinity"), t);
    assert!(!q.tick(t + secs(300)));
    assert!(q.tick(t + secs(330)));
}

#[test]
fn gated_pods_wait_for_their_gates() {
    let (mut q, t) = queue();
    let gated = pod("p").set("/spec", "schedulingGates", json!([{"name": "g"}]));
    assert!(!q.add(arc(&gated), t));
    assert_eq!(q.lengths(), [0, 0, 0, 1]);
    assert!(!q.happened(&new_node(), t));
    assert!(!q.tick(t + secs(999)));
    assert!(q.update(None, arc(&pod("p")), t));
    assert_eq!(name(q.pop(t).as_ref()), Some("p"));
}

#[test]
fn pod_waits_while_its_victims_are_evicted() {
    let (mut q, t) = queue();
    let preemptor = arc(&pod("p").cpu("1"));
    q.add(Arc::clone(&preemptor), t);
    let p = q.pop(t).expect("p");
    q.preemption_begins(&preemptor.uid);
    fail(&mut q, p, Some("NodeResourcesFit"), t);
    assert!(!q.happened(&new_node(), t + secs(9)));
    assert_eq!(q.lengths(), [0, 0, 0, 1]);
    q.preemption_ends(&preemptor.uid);
    assert!(q.pop(t + secs(9)).is_none());
    assert!(q.preemption_is_over(&preemptor.uid, t + secs(9)));
    assert_eq!(name(q.pop(t + secs(9)).as_ref()), Some("p"));
    assert!(!q.preemption_is_over(&preemptor.uid, t + secs(9)));
}

#[test]
fn refused_pod_is_not_brought_back_by_what_it_gives_up() {
    let (mut q, t) = queue();
    for name in ["p", "other"] {
        q.add(arc(&pod(name).cpu("1")), t);
        let popped = q.pop(t).expect("a pod");
        fail(&mut q, popped, Some("NodeResourcesFit"), t);
    }
    assert!(q.happened_to_others(&new_node(), "uid-p", t + secs(9)));
    assert_eq!(name(q.pop(t + secs(9)).as_ref()), Some("other"));
    assert!(q.pop(t + secs(9)).is_none());
}

#[test]
fn a_status_update_is_no_reason_to_try_again() {
    let (mut q, t) = queue();
    q.add(arc(&pod("p")), t);
    let p = q.pop(t).expect("p");
    fail(&mut q, p, Some("TaintToleration"), t);
    let condition = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    assert!(!q.update(None, arc(&pod("p").set("/status", "conditions", condition)), t));
    assert!(q.update(None, arc(&pod("p").set("/spec", "tolerations", json!([{"operator": "Exists"}]))), t));
}

#[test]
fn deleted_pods_are_forgotten() {
    let (mut q, t) = queue();
    let p = arc(&pod("p").set("/status", "nominatedNodeName", json!("n")));
    q.add(Arc::clone(&p), t);
    assert_eq!(q.nominated().on("n").len(), 1);
    q.delete(&p.uid);
    assert!(q.pop(t).is_none() && q.nominated().is_empty());
}

#[test]
fn promises_follow_the_pod() {
    let (mut q, t) = queue();
    let p = arc(&pod("p"));
    q.add(Arc::clone(&p), t);
    q.nominate(&p, Some("n".into()));
    assert_eq!(q.nominated().node_of(&p.uid).map(|n| &**n), Some("n"));
    q.nominate(&p, Some("m".into()));
    assert!(q.nominated().on("n").is_empty());
    q.nominate(&p, None);
    assert!(q.nominated().is_empty());
}

#[test]
fn back_offs_end_however_busy_the_queue_is() {
    let (mut q, t) = queue();
    q.add(arc(&pod("broken").priority(9)), t);
    let broken = q.pop(t).expect("broken");
    fail(&mut q, broken, None, t);
    let mut tried = Vec::new();
    for n in 0..2_000_u64 {
        let now = t + Duration::from_millis(n);
        q.add(arc(&pod(&format!("p{n}"))), now);
        let next = q.pop(now).expect("a pod");
        tried.push(next.pod.name.to_string());
        q.done(&next.pod.uid);
    }
    assert!(tried.contains(&"broken".to_owned()), "its back-off ended after a second");
}

#[test]
fn pods_that_were_kept_from_a_promised_room_hear_that_it_is_free() {
    let (mut q, t) = queue();
    let promised = |node: Option<&str>| {
        let high = pod("high").priority(5).cpu("3");
        arc(&match node {
            Some(node) => high.set("/status", "nominatedNodeName", json!(node)),
            None => high,
        })
    };
    q.add(promised(Some("n1")), t);
    let high = q.pop(t).expect("high");
    fail(&mut q, high, Some("NodeResourcesFit"), t);
    for (name, priority) in [("low", 1), ("higher", 9)] {
        q.add(arc(&pod(name).priority(priority).cpu("1")), t);
        let waits = q.pop(t).expect("a pod");
        fail(&mut q, waits, Some("NodeResourcesFit"), t);
    }
    assert_eq!(q.lengths(), [0, 0, 3, 0]);
    assert!(q.update(Some(promised(Some("n1"))), promised(None), t + secs(1)));
    let [active, backoff, parked, _] = q.lengths();
    assert_eq!((active + backoff, parked), (1, 2), "the higher one was never kept from it");
    assert_eq!(name(q.pop(t + secs(20)).as_ref()), Some("low"));
}

#[test]
fn a_pod_that_changes_while_it_is_tried_is_tried_again() {
    let (mut q, t) = queue();
    let before = arc(&pod("p"));
    q.add(Arc::clone(&before), t);
    let tried = q.pop(t).expect("p");
    let tolerant = arc(&pod("p").set("/spec", "tolerations", json!([{"operator": "Exists"}])));
    assert!(!q.update(Some(before), tolerant, t));
    fail(&mut q, tried, Some("TaintToleration"), t);
    assert_eq!(q.lengths(), [0, 1, 0, 0], "not parked for what was mended meanwhile");
}

#[test]
fn what_changes_about_one_pod_brings_no_other_back() {
    let (mut q, t) = queue();
    let other = arc(&pod("other"));
    for p in [Arc::clone(&other), arc(&pod("p"))] {
        q.add(p, t);
    }
    let (first, second) = (q.pop(t).expect("a pod"), q.pop(t).expect("a pod"));
    q.update(
        Some(Arc::clone(&other)),
        arc(&pod("other").set("/spec", "tolerations", json!([{"operator": "Exists"}]))),
        t,
    );
    for tried in [first, second] {
        let is_other = *tried.pod.name == *"other";
        let before = q.lengths();
        fail(&mut q, tried, Some("TaintToleration"), t);
        let parked = q.lengths()[2] - before[2];
        assert_eq!(parked, usize::from(!is_other));
    }
}

#[test]
fn errors_and_rejections_lengthen_back_offs_apart() {
    let (mut q, t) = queue();
    q.add(arc(&pod("p").cpu("1")), t);
    let mut now = t;
    for _ in 0..5 {
        now += secs(60);
        let p = q.pop(now).expect("p");
        fail(&mut q, p, None, now);
    }
    now += secs(60);
    let p = q.pop(now).expect("p");
    fail(&mut q, p, Some("NodeResourcesFit"), now);
    assert!(!q.happened(&new_node(), now) || q.lengths()[0] == 0);
    assert_eq!(q.next_due(), Some(now + secs(1)), "its first rejection");
}

#[test]
fn a_pod_is_taken_out_of_its_waiting_on_demand() {
    let (mut q, t) = queue();
    q.add(arc(&pod("p")), t);
    let p = q.pop(t).expect("p");
    fail(&mut q, p, Some("NodeResourcesFit"), t);
    let uid = arc(&pod("p")).uid.to_string();
    assert!(q.activate_now(&uid, t));
    assert_eq!(q.lengths(), [1, 0, 0, 0]);
    assert!(!q.activate_now("nobody", t));
}

#[test]
fn time_of_scheduling_begins_when_a_pod_may_be_tried() {
    let (mut q, t) = queue();
    let gated = pod("gated").set("/spec", "schedulingGates", json!([{"name": "g"}]));
    q.add(arc(&pod("plain")), t);
    q.add(arc(&gated), t);
    q.update(None, arc(&pod("gated")), t + secs(3));
    for (name, since) in [("plain", t), ("gated", t + secs(3))] {
        let popped = q.pop(t + secs(9)).expect("pod");
        assert_eq!((&*popped.pod.name, popped.first), (name, Some(since)));
        // Further attempts do not begin anew.
        fail(&mut q, popped, None, t + secs(9));
    }
    q.tick(t + secs(20));
    assert_eq!(q.pop(t + secs(20)).and_then(|p| p.first), Some(t));
}

/// Two pods whose back-offs end within a second, the lesser one's first, in a queue with this gate.
fn backing_off(pops_from_backoff: bool) -> (SchedulingQueue, Instant) {
    let timing = Timing { pops_from_backoff, ..Timing::default() };
    let mut q = SchedulingQueue::new(Arc::clone(&queue().0.profiles), timing);
    let t = Instant::now();
    for (name, priority, after) in [("later", 9, 1_500), ("low", 1, 0), ("high", 9, 100)] {
        let now = t + Duration::from_millis(after);
        q.add(arc(&pod(name).priority(priority).cpu("1")), now);
        let p = q.pop(now).expect(name);
        q.happened(&new_node(), now);
        assert_eq!(fail(&mut q, p, Some("NodeResourcesFit"), now), pops_from_backoff);
    }
    (q, t)
}

#[test]
fn pods_whose_back_offs_end_in_one_second_come_out_by_priority() {
    let (mut q, t) = backing_off(true);
    let order: Vec<String> = std::iter::from_fn(|| q.pop(t).map(|p| p.pod.name.to_string())).collect();
    assert_eq!(order, ["high", "low", "later"]);
}

#[test]
fn without_the_gate_back_offs_are_waited_out() {
    let (mut q, t) = backing_off(false);
    assert!(q.pop(t + Duration::from_millis(999)).is_none());
    assert_eq!(name(q.pop(t + secs(1)).as_ref()), Some("low"));
    assert!(q.pop(t + secs(1)).is_none());
    assert_eq!(name(q.pop(t + Duration::from_millis(1_100)).as_ref()), Some("high"));
}

#[test]
fn pod_that_is_held_back_is_not_taken_out_of_its_back_off_early() {
    let (mut q, t) = queue();
    let preemptor = arc(&pod("p").cpu("1"));
    q.add(Arc::clone(&preemptor), t);
    let p = q.pop(t).expect("p");
    q.preemption_begins(&preemptor.uid);
    q.happened(&new_node(), t);
    assert!(!fail(&mut q, p, Some("NodeResourcesFit"), t));
    assert_eq!(q.lengths(), [0, 0, 0, 1]);
    assert!(q.pop(t).is_none(), "its victims are still there");
}

#[test]
fn gates_are_looked_at_again_after_five_minutes() {
    let (mut q, t) = queue();
    let preemptor = arc(&pod("p").cpu("1"));
    q.add(Arc::clone(&preemptor), t);
    let p = q.pop(t).expect("p");
    q.preemption_begins(&preemptor.uid);
    q.happened(&new_node(), t);
    fail(&mut q, p, Some("NodeResourcesFit"), t);
    // Nobody says that it is over.
    q.preemption_ends(&preemptor.uid);
    assert!(!q.tick(t + secs(299)));
    assert!(q.tick(t + secs(330)));
    assert_eq!(name(q.pop(t + secs(330)).as_ref()), Some("p"));
}
