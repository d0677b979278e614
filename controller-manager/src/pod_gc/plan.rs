//! Pods that nobody else will remove: too many finished ones, those of vanished nodes, and dying ones never started.
//! Answers for upstream's `gcTerminated`, `gcOrphaned`, `gcUnscheduledTerminating`, `gcTerminating`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::engine::action::{Action, PatchKind};
use crate::engine::pod::Pod;
use crate::engine::{nodes, object, pods};
use crate::taint_eviction::plan::disruption;

/// A node must be missing this long before its pods are given up.
pub const QUARANTINE: Duration = Duration::from_secs(40);

const ORPHANED: &str = "orphaned";

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// Every pod that [`may_go`].
    pub pods: Vec<Arc<Pod>>,
    /// Every node by name.
    pub nodes: HashMap<String, Arc<Node>>,
    /// Nodes known for certain to be gone for the quarantine time.
    pub gone: HashSet<String>,
    /// Number of finished pods that may stay; none or negative means any number.
    pub threshold: i32,
}

/// Reports whether there may be a reason to remove a pod; there is none for almost all of them.
#[must_use]
pub fn may_go(pod: &Pod, nodes: &HashMap<String, Arc<Node>>) -> bool {
    let node = pods::node(pod);
    pods::finished(pod) || object::deleting(&pod.metadata) || !(node.is_empty() || nodes.contains_key(node))
}

/// A pod that goes: why, in the word of the metrics, and how.
#[derive(Debug)]
pub struct Removal {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Reason of the removal.
    pub reason: &'static str,
    /// Actions, in order, until something fails.
    pub actions: Vec<Action>,
}

/// The removals due now.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Vec<Removal> {
    let mut removals = Vec::new();
    let mut done = HashSet::new();
    let mut give_up = |pod: &Arc<Pod>, reason: &'static str| {
        if done.insert(object::uid(&pod.metadata).to_owned()) {
            let mut actions = Vec::new();
            if !pods::finished(pod) {
                // Whoever waits for its end will not hear of it from a kubelet.
                actions.push(match reason {
                    ORPHANED => disruption(pod, "DeletionByPodGC", "PodGC: node no longer exists", Some("Failed"), now),
                    _ => fail(pod),
                });
            }
            actions.push(force_delete(pod));
            removals.push(Removal { pod: Arc::clone(pod), reason, actions });
        }
    };
    if let Some(threshold) = usize::try_from(s.threshold).ok().filter(|t| *t > 0) {
        let mut finished: Vec<&Arc<Pod>> = s.pods.iter().filter(|p| pods::finished(p)).collect();
        // Evicted ones say least of what their controllers did.
        finished.sort_by_key(|p| (!evicted(p), object::created(&p.metadata), object::name(&p.metadata).to_owned()));
        let excess = finished.len().saturating_sub(threshold);
        finished[..excess].iter().for_each(|pod| give_up(pod, "terminated"));
    }
    for pod in &s.pods {
        let (node, dying) = (pods::node(pod), object::deleting(&pod.metadata));
        if dying && s.nodes.get(node).is_some_and(|n| out_of_service(n)) {
            give_up(pod, "out-of-service");
        } else if s.gone.contains(node) {
            give_up(pod, ORPHANED);
        } else if dying && node.is_empty() {
            give_up(pod, "unscheduled");
        }
    }
    removals
}

fn evicted(pod: &Pod) -> bool {
    let reason = pod.status.as_ref().and_then(|s| s.reason.as_deref());
    pods::phase(pod) == "Failed" && reason == Some("Evicted")
}

fn out_of_service(node: &Node) -> bool {
    !nodes::ready(node) && nodes::taints(node).iter().any(|t| t.key == "node.kubernetes.io/out-of-service")
}

fn fail(pod: &Pod) -> Action {
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Failed"}});
    Action::patch_status::<Pod>(&pod.metadata, PatchKind::Strategic, patch)
}

fn force_delete(pod: &Pod) -> Action {
    Action::delete_with::<Pod>(
        &pod.metadata,
        json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, phase: &str, dying: bool) -> Arc<Pod> {
        let mut v = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"containers": [], "nodeName": node}, "status": {"phase": phase}});
        if dying {
            v["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(v).expect("pod"))
    }

    #[test]
    fn what_goes() {
        let bad: Node = serde_json::from_value(json!({"metadata": {"name": "bad"}, "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}})).expect("node");
        let s = Snapshot {
            pods: vec![
                pod("done-1", "n", "Succeeded", false),
                pod("done-2", "n", "Failed", false),
                pod("lost", "gone", "Running", false),
                pod("ended", "gone", "Succeeded", true),
                pod("never-started", "", "Pending", true),
                pod("stuck", "bad", "Running", true),
                pod("fine", "n", "Running", false),
            ],
            nodes: HashMap::from([("bad".to_owned(), Arc::new(bad))]),
            gone: HashSet::from(["gone".to_owned()]),
            threshold: 1,
        };
        let log = |s: &Snapshot| -> Vec<String> {
            let shape = |a: &Action| match a {
                Action::Delete { .. } => "deleted".to_owned(),
                Action::Patch { body, .. } => {
                    format!("{} {}", body["status"]["phase"], body["status"]["conditions"][0]["message"])
                }
                other => format!("{other:?}"),
            };
            plan(s, Timestamp::UNIX_EPOCH)
                .iter()
                .map(|r| {
                    let actions: Vec<String> = r.actions.iter().map(shape).collect();
                    format!("{} ({}): {}", object::name(&r.pod.metadata), r.reason, actions.join(", "))
                })
                .collect()
        };
        assert_eq!(
            log(&s),
            [
                "done-1 (terminated): deleted",
                "done-2 (terminated): deleted",
                r#"lost (orphaned): "Failed" "PodGC: node no longer exists", deleted"#,
                "ended (orphaned): deleted",
                r#"never-started (unscheduled): "Failed" null, deleted"#,
                r#"stuck (out-of-service): "Failed" null, deleted"#,
            ]
        );
        let mut nodes = s.nodes.clone();
        nodes.insert("n".to_owned(), Arc::default());
        let left: Vec<&str> = s.pods.iter().filter(|p| !may_go(p, &nodes)).map(|p| object::name(&p.metadata)).collect();
        assert_eq!(left, ["fine"]);
        assert!(!log(&Snapshot { threshold: 0, ..s }).iter().any(|line| line.contains("terminated")), "0 turns it off");
    }

    #[test]
    fn evicted_pods_go_first() {
        let finished = |name: &str, phase: &str, reason: &str, created: u8| -> Arc<Pod> {
            let created = format!("2026-01-0{created}T00:00:00Z");
            let meta = json!({"name": name, "uid": name, "namespace": "ns", "creationTimestamp": created});
            let status = json!({"phase": phase, "reason": reason});
            Arc::new(serde_json::from_value(json!({"metadata": meta, "status": status})).expect("pod"))
        };
        let pods = vec![
            finished("oldest", "Failed", "", 1),
            finished("younger", "Succeeded", "Evicted", 2),
            finished("b-evicted", "Failed", "Evicted", 4),
            finished("a-evicted", "Failed", "Evicted", 4),
            finished("evicted", "Failed", "Evicted", 3),
        ];
        let snapshot = Snapshot { pods, nodes: HashMap::new(), gone: HashSet::new(), threshold: 1 };
        let removals = plan(&snapshot, Timestamp::UNIX_EPOCH);
        let names: Vec<&str> = removals.iter().map(|r| object::name(&r.pod.metadata)).collect();
        assert_eq!(names, ["evicted", "a-evicted", "b-evicted", "oldest"]);
    }
}
