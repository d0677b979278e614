//! Keep exactly as many pods as asked for. The same rules serve ReplicaSets and ReplicationControllers. Answers for
//! upstream's `manageReplicas`, `getPodsToDelete`, `calculateStatus`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;

use crate::engine::action::Action;
use crate::engine::pod::{Labels, Pod};
use crate::engine::pods::DeletionCriteria;
use crate::engine::tally::Groups;
use crate::engine::{object, pods};

/// No more than this many creations or deletions in one go.
const BURST: usize = 500;

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The set, for events.
    pub parent: ObjectReference,
    /// The set, as owner of new pods.
    pub owner: OwnerReference,
    /// Namespace of its pods.
    pub namespace: String,
    /// The set itself is being deleted: then nothing is managed any more.
    pub deleting: bool,
    /// Desired number of pods.
    pub replicas: i32,
    /// Seconds that a pod must be ready before it counts as available.
    pub min_ready_seconds: i32,
    /// Template of new pods.
    pub template: PodTemplateSpec,
    /// The pods the set owns, terminating and finished ones included; none where they are counted.
    pub pods: Vec<Arc<Pod>>,
    /// Counts of its pods, where no look at each of them is needed.
    pub tallied: Option<Tallied>,
    /// Pods of sets with the same owner; nodes crowded by them lose surplus replicas first.
    pub related: Vec<Arc<Pod>>,
    /// Annotations make pods cheap or dear to delete.
    pub costs: bool,
}

/// Counts in a set's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Active pods.
    pub replicas: i32,
    /// Active pods that carry all labels of the template.
    pub fully_labeled: i32,
    /// Active pods that are ready.
    pub ready: i32,
    /// Ready long enough.
    pub available: i32,
    /// Being deleted.
    pub terminating: i32,
}

/// Counts of a set's pods that are all to be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// Counts for the status.
    pub counts: Counts,
    /// Time until the next pod is available by the clock alone.
    pub soonest: Option<Duration>,
}

/// Sums up the groups of a set's pods; none where there are active ones that the set does not select, since it releases
/// those.
#[must_use]
pub fn tallied(
    groups: &Groups,
    selects: impl Fn(Option<&Labels>) -> bool,
    template: &PodTemplateSpec,
    min_ready: i32,
    now: Timestamp,
) -> Option<Tallied> {
    let mut all = Tallied::default();
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    for (labels, group) in groups {
        let labels = labels.as_deref();
        if !selects(labels) {
            if group.active > 0 {
                return None;
            }
            continue;
        }
        let (available, soonest) = group.available(min_ready, now);
        let c = &mut all.counts;
        c.replicas += number(group.active);
        c.fully_labeled += if fully_labelled(template, labels) { number(group.active) } else { 0 };
        c.ready += number(group.ready);
        c.available += number(available);
        c.terminating += number(group.terminating);
        all.soonest = [all.soonest, soonest].into_iter().flatten().min();
    }
    Some(all)
}

fn fully_labelled(template: &PodTemplateSpec, labels: Option<&Labels>) -> bool {
    let wanted = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
    wanted.is_none_or(|w| w.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v)))
}

/// Create what is missing, delete what is too much, nearest to uselessness first.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Vec<Action> {
    let mut active: Vec<&Arc<Pod>> = s.pods.iter().filter(|p| pods::active(p)).collect();
    let want = usize::try_from(s.replicas).unwrap_or(0);
    let mut actions = Vec::new();
    if s.deleting {
        return actions;
    }
    let there = s.tallied.as_ref().map_or(active.len(), |t| usize::try_from(t.counts.replicas).unwrap_or(0));
    if there < want {
        let missing = (want - there).min(BURST);
        let pod = Arc::new(pods::from_template(&s.template, &s.namespace, &s.owner));
        actions.extend((0..missing).map(|_| Action::CreatePod { pod: Arc::clone(&pod), parent: s.parent.clone() }));
    } else if active.len() > want {
        let surplus = (active.len() - want).min(BURST);
        let crowding = pods::crowding(s.related.iter().map(AsRef::as_ref));
        let by = DeletionCriteria { on_node: &crowding, costs: s.costs, now };
        active.sort_by(|a, b| pods::deletion_order(a, b, by));
        actions.extend(active.iter().take(surplus).map(|p| Action::DeletePod {
            namespace: s.namespace.clone(),
            name: object::name(&p.metadata).to_owned(),
            uid: object::uid(&p.metadata).to_owned(),
            parent: s.parent.clone(),
        }));
    }
    // A ready pod becomes available by the clock alone, which no watch reports.
    let soonest =
        active.iter().filter_map(|p| pods::available_in(p, s.min_ready_seconds, now)).filter(|d| !d.is_zero());
    let soonest = soonest.chain(s.tallied.as_ref().and_then(|t| t.soonest)).min();
    actions.extend(soonest.map(Action::RequeueAfter));
    actions
}

/// Returns the ages of the pods that are deleted in proportion to the youngest ready one.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "a ratio of seconds")]
pub fn age_ratios(s: &Snapshot, actions: &[Action], now: Timestamp) -> Vec<f64> {
    let age = |p: &Arc<Pod>| pods::ready_since(p).map(|t| (now.as_second() - t.as_second()).max(1));
    let Some(youngest) = s.pods.iter().filter(|p| pods::active(p)).filter_map(age).min() else { return Vec::new() };
    let gone =
        actions.iter().filter_map(|a| if let Action::DeletePod { uid, .. } = a { Some(uid.as_str()) } else { None });
    let gone: HashSet<&str> = gone.collect();
    let deleted = s.pods.iter().filter(|p| gone.contains(object::uid(&p.metadata)));
    deleted.filter_map(|p| Some(age(p)? as f64 / youngest as f64)).collect()
}

/// Count the pods for the status.
#[must_use]
pub fn counts(s: &Snapshot, now: Timestamp) -> Counts {
    if let Some(tallied) = &s.tallied {
        return tallied.counts.clone();
    }
    let mut c = Counts::default();
    for pod in &s.pods {
        if pods::terminating(pod) {
            c.terminating += 1;
        }
        if !pods::active(pod) {
            continue;
        }
        c.replicas += 1;
        c.fully_labeled += i32::from(fully_labelled(&s.template, pod.metadata.labels.as_deref()));
        c.ready += i32::from(pods::ready(pod));
        c.available += i32::from(pods::available(pod, s.min_ready_seconds, now));
    }
    c
}

/// The `ReplicaFailure` condition after a round: `Some(reason, message)` when a write failed.
/// Returns the conditions to store, generic over the two kinds' condition types through plain JSON.
#[must_use]
pub fn failure_condition(
    existing: Option<serde_json::Value>,
    failure: Option<&(String, String)>,
    now: Timestamp,
) -> Option<serde_json::Value> {
    let mut conditions = match existing {
        Some(serde_json::Value::Array(v)) => v,
        _ => Vec::new(),
    };
    let present = conditions.iter().any(|c| c["type"] == "ReplicaFailure");
    match failure {
        Some((reason, message)) if !present => conditions.push(serde_json::json!({
            "type": "ReplicaFailure", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": object::seconds(now),
        })),
        None if present => conditions.retain(|c| c["type"] != "ReplicaFailure"),
        _ => {}
    }
    (!conditions.is_empty()).then_some(serde_json::Value::Array(conditions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().expect("time")
    }

    fn pod(name: &str, phase: &str, ready_at: Option<&str>, deleting: bool) -> Arc<Pod> {
        let mut v = json!({
            "metadata": {"name": name, "uid": name, "labels": {"app": "web"}},
            "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": phase},
        });
        if let Some(t) = ready_at {
            v["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastTransitionTime": t}]);
        }
        if deleting {
            v["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(v).expect("pod"))
    }

    fn set(replicas: i32, pods: Vec<Arc<Pod>>) -> Snapshot {
        Snapshot {
            parent: ObjectReference::default(),
            owner: OwnerReference { name: "web".into(), uid: "rs".into(), ..OwnerReference::default() },
            namespace: "ns".into(),
            deleting: false,
            replicas,
            min_ready_seconds: 0,
            template: serde_json::from_value(json!({"metadata": {"labels": {"app": "web"}}})).expect("template"),
            related: pods.clone(),
            pods,
            tallied: None,
            costs: true,
        }
    }

    fn shape(actions: &[Action]) -> Vec<String> {
        actions
            .iter()
            .map(|a| match a {
                Action::CreatePod { pod, .. } => {
                    format!("create {}", pod.metadata.generate_name.clone().unwrap_or_default())
                }
                Action::DeletePod { name, .. } => format!("delete {name}"),
                Action::RequeueAfter(d) => format!("again in {}s", d.as_secs()),
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn replica_count() {
        let running = |n: &str| pod(n, "Running", Some("2026-01-01T00:00:00Z"), false);
        let cases: Vec<(&str, Snapshot, Vec<&str>)> = vec![
            ("nothing yet", set(2, vec![]), vec!["create web-", "create web-"]),
            ("as asked", set(1, vec![running("a")]), vec![]),
            ("finished pods are replaced", set(1, vec![pod("a", "Failed", None, false)]), vec!["create web-"]),
            (
                "terminating pods are replaced at once",
                set(1, vec![pod("a", "Running", None, true)]),
                vec!["create web-"],
            ),
            (
                "surplus: the pending one goes",
                set(1, vec![running("a"), pod("b", "Pending", None, false)]),
                vec!["delete b"],
            ),
            ("a dying set does nothing", Snapshot { deleting: true, ..set(3, vec![]) }, vec![]),
            (
                "becoming available is awaited",
                Snapshot { min_ready_seconds: 900, ..set(1, vec![running("a")]) },
                vec!["again in 300s"],
            ),
        ];
        for (name, snapshot, want) in cases {
            assert_eq!(shape(&plan(&snapshot, now())), want, "{name}");
        }
        assert_eq!(plan(&set(2000, vec![]), now()).len(), BURST);
    }

    #[test]
    fn cheap_pods_go_first_where_costs_count() {
        let costing = |name: &str, cost: &str| {
            let mut pod = pod(name, "Running", Some("2026-01-01T00:00:00Z"), false);
            let costs = std::collections::BTreeMap::from([(
                "controller.kubernetes.io/pod-deletion-cost".to_owned(),
                cost.to_owned(),
            )]);
            let given: Pod = serde_json::from_value(json!({"metadata": {"annotations": costs}})).expect("metadata");
            Arc::make_mut(&mut pod).metadata.annotations = given.metadata.annotations;
            pod
        };
        // Without costs uids decide.
        for (costs, goes) in [(true, "delete b"), (false, "delete a")] {
            let set = Snapshot { costs, ..set(1, vec![costing("a", "9"), costing("b", "-1")]) };
            assert_eq!(shape(&plan(&set, now())), [goes], "{costs}");
        }
    }

    #[test]
    fn status_counts() {
        let mut s = set(
            3,
            vec![
                pod("old", "Running", Some("2026-01-01T00:00:00Z"), false),
                pod("fresh", "Running", Some("2026-01-01T00:09:59Z"), false),
                pod("starting", "Pending", None, false),
                pod("dying", "Running", Some("2026-01-01T00:00:00Z"), true),
                pod("done", "Succeeded", None, false),
            ],
        );
        s.min_ready_seconds = 60;
        assert_eq!(counts(&s, now()), Counts { replicas: 3, fully_labeled: 3, ready: 2, available: 1, terminating: 1 });
    }

    #[test]
    fn a_tally_says_what_a_look_at_every_pod_says() {
        let owned = |mut pod: Arc<Pod>, app: &str| {
            let owner = json!({"metadata": {"labels": {"app": app, "extra": "x"}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}]}});
            let given: Pod = serde_json::from_value(owner).expect("metadata");
            let meta = &mut Arc::make_mut(&mut pod).metadata;
            (meta.labels, meta.owner_references) = (given.metadata.labels, given.metadata.owner_references);
            pod
        };
        let pods = vec![
            owned(pod("old", "Running", Some("2026-01-01T00:00:00Z"), false), "web"),
            owned(pod("fresh", "Running", Some("2026-01-01T00:09:50Z"), false), "web"),
            owned(pod("fresher", "Running", Some("2026-01-01T00:09:55Z"), false), "web"),
            owned(pod("starting", "Pending", None, false), "web"),
            owned(pod("dying", "Running", Some("2026-01-01T00:00:00Z"), true), "web"),
            owned(pod("done", "Succeeded", None, false), "web"),
        ];
        let gone = owned(pod("gone", "Failed", None, false), "other");
        let stray = owned(pod("stray", "Running", None, false), "other");
        let tallies = crate::engine::tally::Tallies::of_kind("ReplicaSet".into());
        pods.iter().chain([&gone]).for_each(|p| tallies.change(None, Some(p)));
        let selects = |labels: Option<&Labels>| labels.is_some_and(|l| l.get("app").is_some_and(|app| app == "web"));
        for (replicas, min_ready) in [(4, 0), (4, 60), (6, 10), (900, 15)] {
            let listed = Snapshot { min_ready_seconds: min_ready, ..set(replicas, pods.clone()) };
            let count = || tallies.of("rs", |groups| tallied(groups, selects, &listed.template, min_ready, now()));
            let tallied = count();
            assert!(tallied.is_some());
            let counted = Snapshot { pods: Vec::new(), related: Vec::new(), tallied, ..set(replicas, Vec::new()) };
            let counted = Snapshot { min_ready_seconds: min_ready, ..counted };
            assert_eq!(counts(&counted, now()), counts(&listed, now()), "{replicas} {min_ready}");
            assert_eq!(plan(&counted, now()), plan(&listed, now()), "{replicas} {min_ready}");
            tallies.change(None, Some(&stray));
            assert_eq!(count(), None, "one is to be released");
            tallies.change(Some(&stray), None);
        }
    }

    #[test]
    fn replica_failure_appears_and_goes() {
        let failure = ("FailedCreate".to_owned(), "quota".to_owned());
        let set = failure_condition(None, Some(&failure), now()).expect("conditions");
        assert_eq!(set[0]["reason"], "FailedCreate");
        assert_eq!(failure_condition(Some(set.clone()), Some(&failure), now()), Some(set.clone()), "not renewed");
        assert_eq!(failure_condition(Some(set), None, now()), None);
    }
}
