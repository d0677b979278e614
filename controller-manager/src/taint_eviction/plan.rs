//! Eviction of pods from a node because of its NoExecute taints. Answers for upstream's `processPodOnNode`.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ObjectReference, Taint};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use shared::placement;

use crate::engine::action::{Action, PatchKind};
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::pods;

/// The effect that is acted upon here.
pub const NO_EXECUTE: &str = "NoExecute";

/// Fates of a pod on a node with these taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The pod may stay for good.
    Stays,
    /// The pod must go after this time.
    Leaves(Duration),
    /// The pod must go at once.
    Goes,
}

/// Decide by the taints with effect NoExecute; `compares` lets tolerations compare numbers.
#[must_use]
pub fn fate(pod: &Pod, taints: &[Taint], compares: bool) -> Fate {
    let no_execute = taints.iter().filter(|t| t.effect == NO_EXECUTE);
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_ref()).map_or(&[][..], |t| t.as_slice());
    let mut shortest: Option<Duration> = None;
    for taint in no_execute {
        let Some(t) = tolerations.iter().find(|t| placement::tolerates(t, taint, compares)) else {
            return Fate::Goes;
        };
        // The largest number means for ever, as in upstream's `getMinTolerationTime`.
        if let Some(seconds) = t.toleration_seconds.filter(|seconds| *seconds != i64::MAX) {
            let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            shortest = Some(shortest.map_or(limit, |s| s.min(limit)));
        }
    }
    shortest.map_or(Fate::Stays, Fate::Leaves)
}

/// An eviction to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Of which pod.
    pub uid: String,
    /// Time of the eviction.
    pub due: Instant,
    /// The eviction has begun.
    pub begun: bool,
}

/// Returns the plan for a pod from now on, and whether an eviction that was planned is called off. A plan stays as it
/// is: another toleration makes it neither sooner nor later.
#[must_use]
pub fn next(before: Option<Planned>, uid: &str, fate: Fate, now: Instant) -> (Option<Planned>, bool) {
    let due_at = |due| Some(Planned { uid: uid.to_owned(), due, begun: false });
    // A time beyond the clock's end never comes.
    let later = |after| now.checked_add(after).and_then(due_at);
    match (before, fate) {
        (Some(before), _) if before.begun && before.uid == uid && fate != Fate::Stays => (Some(before), false),
        (before, Fate::Stays) => (None, before.is_some()),
        (before, Fate::Goes) => (due_at(now), before.is_some()),
        (Some(before), Fate::Leaves(_)) if before.uid == uid => (Some(before), false),
        (before, Fate::Leaves(after)) => (later(after), before.is_some()),
    }
}

/// Returns the event about an eviction: about the name, whichever pod has it.
fn say(pod: &Key, what: &str) -> Action {
    let about = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some(pod.name.clone()),
        namespace: Some(pod.namespace.clone()),
        ..ObjectReference::default()
    };
    Action::normal(&about, "TaintManagerEviction", format!("{what} Pod {pod}"))
}

/// Returns the event of an eviction that begins.
#[must_use]
pub fn announce(pod: &Key) -> Action {
    say(pod, "Marking for deletion")
}

/// Returns the event of an eviction that is called off: the taint went away in time, or the pod did.
#[must_use]
pub fn cancel(pod: &Key) -> Action {
    say(pod, "Cancelling deletion of")
}

/// Send a pod away: note why in its status, delete it.
#[must_use]
pub fn evict(pod: &Pod, now: Timestamp) -> Vec<Action> {
    vec![
        disruption(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", None, now),
        Action::delete::<Pod>(&pod.metadata),
    ]
}

/// Note in a pod's status that the cluster, not the application, ended it.
#[must_use]
pub fn disruption(pod: &Pod, reason: &str, message: &str, phase: Option<&str>, now: Timestamp) -> Action {
    let already = pods::condition(pod, "DisruptionTarget").filter(|c| c.status == "True");
    let since = already.and_then(|c| c.last_transition_time.clone()).unwrap_or_else(|| object::seconds(now));
    let mut status = json!({"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": since, "observedGeneration": pod.metadata.generation,
    }]});
    if let Some(phase) = phase.filter(|_| !pods::finished(pod)) {
        status["phase"] = json!(phase);
    }
    Action::patch_status::<Pod>(
        &pod.metadata,
        PatchKind::Strategic,
        json!({"metadata": {"uid": pod.metadata.uid}, "status": status}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_for_longer_than_clocks_run_never_end() {
        let taints = [Taint { key: "k".into(), effect: NO_EXECUTE.into(), ..Taint::default() }];
        for (seconds, stays) in [(i64::MAX, true), (i64::MAX - 1, true), (60, false), (0, false), (i64::MIN, false)] {
            let toleration = json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
            let spec = json!({"containers": [], "tolerations": [toleration]});
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("pod");
            let (planned, _) = next(None, "u", fate(&pod, &taints, false), Instant::now());
            assert_eq!(planned.is_none(), stays, "{seconds}");
        }
    }

    #[test]
    fn tolerations_decide() {
        let taints: Vec<Taint> = serde_json::from_value(json!([
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}, {"key": "x", "effect": "NoSchedule"}]))
        .expect("taints");
        let secs = |n| Fate::Leaves(Duration::from_secs(n));
        let t = |s: Option<i64>| match s {
            Some(s) => {
                json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": s}])
            }
            None => json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]),
        };
        for (tolerations, want) in [
            (json!([]), Fate::Goes),
            (t(Some(300)), secs(300)),
            (t(Some(-1)), secs(0)),
            (t(None), Fate::Stays),
            (json!([{"operator": "Exists"}]), Fate::Stays),
        ] {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).expect("pod");
            assert_eq!(fate(&pod, &taints, false), want, "{tolerations}");
        }
        assert_eq!(fate(&Pod::default(), &[], false), Fate::Stays);
    }

    #[test]
    fn tolerations_compare_numbers_by_their_gate() {
        let taint =
            Taint { key: "level".into(), value: Some("7".into()), effect: NO_EXECUTE.into(), ..Taint::default() };
        let tolerations = json!([{"key": "level", "operator": "Gt", "value": "5", "effect": NO_EXECUTE}]);
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).expect("pod");
        assert_eq!(fate(&pod, std::slice::from_ref(&taint), true), Fate::Stays);
        assert_eq!(fate(&pod, &[taint], false), Fate::Goes);
    }

    #[test]
    fn what_is_planned_stays_as_it_is() {
        let now = Instant::now();
        let after = |s| now + Duration::from_secs(s);
        let of = |uid: &str, due, begun| Planned { uid: uid.into(), due, begun };
        let due = |s| of("u", after(s), false);
        let leaves = |s| Fate::Leaves(Duration::from_secs(s));
        for (name, before, fate, want) in [
            ("nothing to do", None, Fate::Stays, (None, false)),
            ("at once", None, Fate::Goes, (Some(due(0)), false)),
            ("later", None, leaves(60), (Some(due(60)), false)),
            ("called off", Some(due(5)), Fate::Stays, (None, true)),
            ("a longer toleration", Some(due(5)), leaves(60), (Some(due(5)), false)),
            ("a shorter toleration", Some(due(60)), leaves(5), (Some(due(60)), false)),
            ("no toleration any more", Some(due(60)), Fate::Goes, (Some(due(0)), true)),
            ("begun", Some(of("u", after(0), true)), Fate::Goes, (Some(of("u", after(0), true)), false)),
            ("another pod of that name", Some(of("old", after(5), false)), leaves(60), (Some(due(60)), true)),
        ] {
            assert_eq!(next(before, "u", fate, now), want, "{name}");
        }
    }

    #[test]
    fn events_name_a_pod_and_no_uid() {
        for (action, text) in [
            (announce(&Key::new("ns", "p")), "Marking for deletion Pod ns/p"),
            (cancel(&Key::new("ns", "p")), "Cancelling deletion of Pod ns/p"),
        ] {
            let Action::Event { about, warning, reason, message } = action else { panic!("no event") };
            assert_eq!((about.uid, warning, reason, message.as_str()), (None, false, "TaintManagerEviction", text));
        }
    }

    #[test]
    fn a_mark_keeps_its_time() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().expect("time");
        for (status, want) in [("True", "2026-01-01T00:00:00Z"), ("False", "2026-01-02T00:00:00Z")] {
            let condition =
                json!({"type": "DisruptionTarget", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let pod = json!({"metadata": {"name": "p"}, "status": {"conditions": [condition]}});
            let Action::Patch { body, .. } =
                disruption(&serde_json::from_value(pod).expect("pod"), "r", "m", None, now)
            else {
                panic!("no patch")
            };
            assert_eq!(body["status"]["conditions"][0]["lastTransitionTime"], want, "{status}");
        }
    }
}
