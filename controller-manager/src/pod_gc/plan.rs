//! Pods that nobody else will remove: too many finished ones, those of vanished nodes, and dying ones never started.

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

/// What the decision rests on.
#[derive(Debug)]
pub struct Snapshot {
    /// Every pod that [`may_go`].
    pub pods: Vec<Arc<Pod>>,
    /// Every node by name.
    pub nodes: HashMap<String, Arc<Node>>,
    /// Nodes known for certain to be gone for the quarantine time.
    pub gone: HashSet<String>,
    /// How many finished pods may lie around; none or negative means any number.
    pub threshold: i32,
}

/// Whether there may be a reason to remove a pod; there is none for almost all of them.
#[must_use]
pub fn may_go(pod: &Pod, nodes: &HashMap<String, Arc<Node>>) -> bool {
    let node = pods::node(pod);
    pods::finished(pod) || object::deleting(&pod.metadata) || !(node.is_empty() || nodes.contains_key(node))
}

/// The deletions due now.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut done = HashSet::new();
    let mut give_up = |pod: &Arc<Pod>, note: Option<(&str, &str)>| {
        if done.insert(object::uid(&pod.metadata).to_owned()) {
            // Whoever waits for its end will not hear of it from a kubelet.
            match note {
                _ if pods::finished(pod) => {}
                Some((reason, message)) => actions.push(disruption(pod, reason, message, Some("Failed"), now)),
                None => actions.push(fail(pod)),
            }
            actions.push(force_delete(pod));
        }
    };
    if let Some(threshold) = usize::try_from(s.threshold).ok().filter(|t| *t > 0) {
        let mut finished: Vec<&Arc<Pod>> =
            s.pods.iter().filter(|p| pods::finished(p) && !object::deleting(&p.metadata)).collect();
        finished.sort_by_key(|p| (object::created(&p.metadata), object::name(&p.metadata).to_owned()));
        let excess = finished.len().saturating_sub(threshold);
        for pod in &finished[..excess] {
            give_up(pod, None);
        }
    }
    for pod in &s.pods {
        let node = pods::node(pod);
        let dying = object::deleting(&pod.metadata);
        if dying && node.is_empty() {
            give_up(pod, None);
        } else if s.gone.contains(node) {
            give_up(pod, Some(("DeletionByPodGC", "PodGC: node no longer exists")));
        } else if dying && s.nodes.get(node).is_some_and(|n| out_of_service(n)) {
            give_up(pod, None);
        }
    }
    actions
}

/// The namespace of a pod that is deleted, and the word for why, by the path of the deletion.
#[must_use]
pub fn reason(s: &Snapshot, path: &str) -> Option<(String, &'static str)> {
    let (rest, name) = path.rsplit_once('/')?;
    let namespace = rest.strip_suffix("/pods")?.rsplit('/').next()?;
    let is = |p: &&Arc<Pod>| object::name(&p.metadata) == name && object::namespace(&p.metadata) == namespace;
    let pod = s.pods.iter().find(is)?;
    let node = pods::node(pod);
    let reason = if s.gone.contains(node) {
        "orphaned"
    } else if !object::deleting(&pod.metadata) {
        "terminated"
    } else if node.is_empty() {
        "unscheduled"
    } else {
        "out-of-service"
    };
    Some((namespace.to_owned(), reason))
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
            plan(s, Timestamp::UNIX_EPOCH)
                .iter()
                .map(|a| match a {
                    Action::Delete { path, .. } => format!("delete {}", path.rsplit('/').next().unwrap_or("")),
                    Action::Patch { body, .. } => {
                        format!("{} {}", body["status"]["phase"], body["status"]["conditions"][0]["message"])
                    }
                    other => format!("{other:?}"),
                })
                .collect()
        };
        assert_eq!(
            log(&s),
            [
                "delete done-1",
                "\"Failed\" \"PodGC: node no longer exists\"",
                "delete lost",
                "delete ended",
                "\"Failed\" null",
                "delete never-started",
                "\"Failed\" null",
                "delete stuck"
            ]
        );
        let mut nodes = s.nodes.clone();
        nodes.insert("n".to_owned(), Arc::default());
        let left: Vec<&str> = s.pods.iter().filter(|p| !may_go(p, &nodes)).map(|p| object::name(&p.metadata)).collect();
        assert_eq!(left, ["fine"]);
        assert!(!log(&Snapshot { threshold: 0, ..s }).contains(&"delete done-1".to_owned()), "0 turns it off");
    }
}
