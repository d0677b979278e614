//! Which pods must leave a node because of its NoExecute taints, and when.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::engine::action::{Action, PatchKind};
use crate::engine::pod::Pod;
use crate::engine::{nodes, object, pods};

/// What becomes of a pod on a node with these taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It may stay for good.
    Stays,
    /// It must go after this time.
    Leaves(Duration),
}

/// Decide by the taints with effect NoExecute.
#[must_use]
pub fn fate(pod: &Pod, taints: &[Taint]) -> Fate {
    let no_execute: Vec<&Taint> = taints.iter().filter(|t| t.effect == "NoExecute").collect();
    if no_execute.is_empty() {
        return Fate::Stays;
    }
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_ref()).map_or(&[][..], |t| t.as_slice());
    let mut shortest: Option<Duration> = None;
    for taint in no_execute {
        let Some(t) = tolerations.iter().find(|t| nodes::tolerates(t, taint)) else {
            return Fate::Leaves(Duration::ZERO);
        };
        if let Some(seconds) = t.toleration_seconds {
            let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            shortest = Some(shortest.map_or(limit, |s| s.min(limit)));
        }
    }
    shortest.map_or(Fate::Stays, Fate::Leaves)
}

/// Send a pod away: say so, note why in its status, delete it.
#[must_use]
pub fn evict(pod: &Pod, now: Timestamp) -> Vec<Action> {
    let about = object::reference::<Pod>(&pod.metadata);
    let text = format!("Marking for deletion Pod {}", object::Key::of(&pod.metadata));
    vec![
        Action::normal(&about, "TaintManagerEviction", text),
        disruption(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", None, now),
        Action::delete::<Pod>(&pod.metadata),
    ]
}

/// The taint went away in time.
#[must_use]
pub fn cancel(pod: &Pod) -> Action {
    let about = object::reference::<Pod>(&pod.metadata);
    Action::normal(
        &about,
        "TaintManagerEviction",
        format!("Cancelling deletion of Pod {}", object::Key::of(&pod.metadata)),
    )
}

/// Note in a pod's status that the cluster, not the application, ended it.
#[must_use]
pub fn disruption(pod: &Pod, reason: &str, message: &str, phase: Option<&str>, now: Timestamp) -> Action {
    let mut status = json!({"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": object::seconds(now), "observedGeneration": pod.metadata.generation,
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
            (json!([]), secs(0)),
            (t(Some(300)), secs(300)),
            (t(Some(-1)), secs(0)),
            (t(None), Fate::Stays),
            (json!([{"operator": "Exists"}]), Fate::Stays),
        ] {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).expect("pod");
            assert_eq!(fate(&pod, &taints), want, "{tolerations}");
        }
        assert_eq!(fate(&Pod::default(), &[]), Fate::Stays);
    }
}
