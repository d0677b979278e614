//! Readings of pods that more than one controller needs. Answers for upstream's `pkg/api/v1/pod` (`IsPodAvailable`),
//! `ActivePods`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod as NewPod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use shared::informer::Store;
use shared::types::ephemeral_claim;

use super::indices::BY_CLAIM;
use super::object::{annotation, created, deleting, name, namespace, uid};
use super::pod::{ContainerStatus, Pod, PodCondition, Volume};

/// The annotation that makes a replica cheaper or dearer to delete.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The phase, or the empty string.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Succeeded or Failed.
#[must_use]
pub fn finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Reports whether none of its containers will run again: it has ended, or it is being deleted and nothing in it runs.
#[must_use]
pub fn over(pod: &Pod) -> bool {
    let stopped = || {
        let states = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
        states.filter_map(|c| c.state.as_ref()).all(|s| s.terminated.is_some() || s.waiting.is_some())
    };
    finished(pod) || (deleting(&pod.metadata) && stopped())
}

/// Neither finished nor being deleted.
#[must_use]
pub fn active(pod: &Pod) -> bool {
    !finished(pod) && !deleting(&pod.metadata)
}

/// Being deleted but not finished yet.
#[must_use]
pub fn terminating(pod: &Pod) -> bool {
    !finished(pod) && deleting(&pod.metadata)
}

/// The volumes that controllers care for.
pub fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

/// The claim that a pod's volume names, or that is made for it.
#[must_use]
pub fn claim_of<'a>(pod: &Pod, volume: &'a Volume) -> Option<Cow<'a, str>> {
    let named = volume.persistent_volume_claim.as_ref().map(|claim| Cow::Borrowed(claim.claim_name.as_str()));
    let made = || volume.ephemeral.as_ref().map(|_| Cow::Owned(ephemeral_claim(name(&pod.metadata), &volume.name)));
    named.or_else(made)
}

/// The claims that a pod names, or that are made for it.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = Cow<'_, str>> {
    volumes(pod).filter_map(|volume| claim_of(pod, volume))
}

/// Index keys of the claims that a pod's volumes use or have made.
pub(super) fn claim_keys(pod: &Pod) -> Vec<String> {
    let mut keys: Vec<String> = claims_of(pod).map(|claim| claim_key(namespace(&pod.metadata), &claim)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn claim_key(namespace: &str, claim: &str) -> String {
    format!("{namespace}/{claim}")
}

/// Returns the pods whose volumes use a claim or have it made, from the shared informer of pods.
#[must_use]
pub fn users_of(pods: &Store<Pod>, namespace: &str, claim: &str) -> Vec<Arc<Pod>> {
    pods.by_index(BY_CLAIM, &claim_key(namespace, claim))
}

/// A condition by type.
#[must_use]
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// Reports whether the Ready condition is True.
#[must_use]
pub fn ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// Returns when the pod became ready, if it is.
#[must_use]
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let c = condition(pod, "Ready").filter(|c| c.status == "True")?;
    Some(c.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0))
}

/// Reports whether the pod has been ready for `min_ready` seconds.
#[must_use]
pub fn available(pod: &Pod, min_ready: i32, now: Timestamp) -> bool {
    available_in(pod, min_ready, now) == Some(Duration::ZERO)
}

/// Returns the time until a ready pod counts as available; zero when it does, None when it is not ready.
#[must_use]
pub fn available_in(pod: &Pod, min_ready: i32, now: Timestamp) -> Option<Duration> {
    let since = ready_since(pod)?;
    if min_ready <= 0 {
        return Some(Duration::ZERO);
    }
    let due = since.as_second() + i64::from(min_ready);
    Some(Duration::from_secs(u64::try_from(due - now.as_second()).unwrap_or(0)))
}

/// The node it is bound to, or the empty string.
#[must_use]
pub fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// The uid of the pod's controller.
#[must_use]
pub fn owner_uid(pod: &Pod) -> Option<&str> {
    super::object::controller_of(&pod.metadata).map(|r| r.uid.as_str())
}

fn deletion_cost(pod: &Pod) -> i32 {
    annotation(&pod.metadata, DELETION_COST).and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The most restarts of a container, and of a sidecar.
fn restarts(pod: &Pod) -> (i32, i32) {
    let most = |of: Option<&[ContainerStatus]>, counts: &dyn Fn(&str) -> bool| {
        let all = of.unwrap_or_default().iter().filter(|c| counts(&c.name));
        all.map(|c| c.restart_count).max().unwrap_or(0)
    };
    let Some(status) = pod.status.as_ref() else { return (0, 0) };
    let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let sidecar = |name: &str| init.iter().any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"));
    (most(status.container_statuses.as_deref(), &|_| true), most(status.init_container_statuses.as_deref(), &sidecar))
}

/// Counts related active pods by node: surplus replicas leave crowded nodes first.
#[must_use]
pub fn crowding<'a>(related: impl IntoIterator<Item = &'a Pod>) -> HashMap<String, usize> {
    let mut on_node = HashMap::new();
    for pod in related.into_iter().filter(|p| active(p)) {
        *on_node.entry(node(pod).to_owned()).or_insert(0) += 1;
    }
    on_node
}

/// Criteria of the order in which surplus replicas go.
#[derive(Clone, Copy, Debug)]
pub struct DeletionCriteria<'a> {
    /// Counts of related pods by node.
    pub on_node: &'a HashMap<String, usize>,
    /// Annotations make pods cheap or dear (PodDeletionCost).
    pub costs: bool,
    /// The current time.
    pub now: Timestamp,
}

/// Order in which surplus replicas go: unassigned, pending, unready, cheap, crowded, recently ready, often restarted,
/// recently created.
#[must_use]
pub fn deletion_order(a: &Pod, b: &Pod, by: DeletionCriteria<'_>) -> Ordering {
    let DeletionCriteria { on_node, costs, now } = by;
    let cost = |p: &Pod| if costs { deletion_cost(p) } else { 0 };
    let rank = |p: &Pod| on_node.get(node(p)).copied().unwrap_or(0);
    let since = |p: &Pod| ready_since(p).unwrap_or(Timestamp::UNIX_EPOCH);
    standing(a)
        .cmp(&standing(b))
        .then_with(|| cost(a).cmp(&cost(b)))
        .then_with(|| rank(b).cmp(&rank(a)))
        .then_with(|| if ready(a) && ready(b) { later_first(since(a), since(b), now) } else { Ordering::Equal })
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| later_first(created(&a.metadata), created(&b.metadata), now))
        .then_with(|| uid(&a.metadata).cmp(uid(&b.metadata)))
}

/// Order in which surplus pods of a Job go: unassigned, pending, unready, recently ready, often restarted, recently created.
///
/// Answers for upstream's `ActivePods`; where that finds two pods alike, their uids decide.
#[must_use]
pub fn activity_order(a: &Pod, b: &Pod) -> Ordering {
    let newest_first = |a: Timestamp, b: Timestamp| match (a == Timestamp::UNIX_EPOCH, b == Timestamp::UNIX_EPOCH) {
        (false, false) => b.cmp(&a),
        (unknown_a, unknown_b) => unknown_b.cmp(&unknown_a),
    };
    let since = |p: &Pod| ready_since(p).unwrap_or(Timestamp::UNIX_EPOCH);
    standing(a)
        .cmp(&standing(b))
        .then_with(|| if ready(a) { newest_first(since(a), since(b)) } else { Ordering::Equal })
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| newest_first(created(&a.metadata), created(&b.metadata)))
        .then_with(|| uid(&a.metadata).cmp(uid(&b.metadata)))
}

/// Progress of a pod: whether it has a node, the rank of its phase, whether it is ready.
fn standing(pod: &Pod) -> (bool, u8, bool) {
    let phase = match phase(pod) {
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    };
    (!node(pod).is_empty(), phase, ready(pod))
}

/// Orders unknown times first, then the most recent. Ages count in powers of two; between times that hardly differ a hash
/// decides, where upstream takes the pods' uids: with those the order of three pods may be a circle.
fn later_first(a: Timestamp, b: Timestamp, now: Timestamp) -> Ordering {
    let key = |t: Timestamp| {
        let known = t != Timestamp::UNIX_EPOCH;
        let age = u128::try_from(now.duration_since(t).as_nanos()).ok().and_then(u128::checked_ilog2);
        (known, age.filter(|_| known), foldhash::fast::FixedState::default().hash_one(t))
    };
    key(a).cmp(&key(b))
}

/// A pod from a template, owned by `owner`, named by the server from the owner's name.
#[must_use]
pub fn from_template(template: &PodTemplateSpec, namespace: &str, owner: &OwnerReference) -> NewPod {
    let meta = template.metadata.clone().unwrap_or_default();
    NewPod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            generate_name: Some(name_prefix(&owner.name)),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// `x-`, unless that could not start a pod's name.
#[must_use]
pub fn name_prefix(owner: &str) -> String {
    let dashed = format!("{owner}-");
    if dashed.len() <= 253 { dashed } else { owner.to_owned() }
}

/// Pods sorted by name: plans must not depend on cache order.
pub fn sort_by_name<T: AsRef<Pod>>(pods: &mut [T]) {
    pods.sort_by(|a, b| name(&a.as_ref().metadata).cmp(name(&b.as_ref().metadata)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(v: Value) -> Pod {
        serde_json::from_value(v).expect("pod")
    }

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let p = pod(json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}));
        let t0: Timestamp = "2026-01-01T00:00:00Z".parse().expect("time");
        let at = |s: i64| Timestamp::from_second(t0.as_second() + s).expect("time");
        assert!(available(&p, 0, t0));
        assert_eq!(available_in(&p, 10, at(4)), Some(Duration::from_secs(6)));
        assert!(available(&p, 10, at(10)));
        assert_eq!(available_in(&pod(json!({})), 10, t0), None);
    }

    #[test]
    fn what_happened_later_goes_first() {
        let at = |text: &str| text.parse::<Timestamp>().expect("time");
        let (now, never) = (at("2026-01-02T00:00:00Z"), Timestamp::UNIX_EPOCH);
        for (a, b, want) in [
            (at("2026-01-01T23:59:00Z"), at("2026-01-01T00:00:00Z"), Ordering::Less),
            (at("2026-01-01T00:00:00Z"), at("2026-01-01T23:59:00Z"), Ordering::Greater),
            (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"), Ordering::Equal),
            (never, at("2026-01-01T00:00:00Z"), Ordering::Less),
            (at("2026-01-01T00:00:00Z"), never, Ordering::Greater),
            (at("2026-01-03T00:00:00Z"), at("2026-01-01T23:59:59Z"), Ordering::Less),
        ] {
            assert_eq!(later_first(a, b, now), want, "{a} {b}");
        }
        let (a, b) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:05Z"));
        assert!(later_first(a, b, now).is_ne(), "between those that hardly differ chance decides");
        assert_eq!(later_first(a, b, now), later_first(b, a, now).reverse());
    }

    proptest::proptest! {
        /// Of any three replicas, sorting needs an order without circles.
        #[test]
        fn deletion_order_is_total(seeds in proptest::array::uniform3((0..3_u8, 0..4_i64, 0..4_i64, 0..3_i32, 0..3_u8))) {
            let replica = |(uid, ready, created, restarts, node): (u8, i64, i64, i32, u8)| {
                let time = |seconds: i64| format!("2026-01-01T00:00:0{seconds}Z");
                pod(json!({
                    "metadata": {"name": "p", "uid": uid.to_string(), "creationTimestamp": time(created)},
                    "spec": {"containers": [], "nodeName": node.to_string()},
                    "status": {"phase": "Running",
                        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(ready)}],
                        "containerStatuses":
                            [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": restarts}]}}))
            };
            let [a, b, c] = seeds.map(replica);
            let now = "2026-01-02T00:00:00Z".parse().expect("time");
            let on_node = HashMap::new();
            let by = DeletionCriteria { on_node: &on_node, costs: true, now };
            let by_deletion = |a: &Pod, b: &Pod| deletion_order(a, b, by);
            let orders: [&dyn Fn(&Pod, &Pod) -> Ordering; 2] = [&by_deletion, &activity_order];
            for order in orders {
                proptest::prop_assert_eq!(order(&a, &b), order(&b, &a).reverse());
                if order(&a, &b).is_le() && order(&b, &c).is_le() {
                    proptest::prop_assert!(order(&a, &c).is_le());
                }
            }
        }
    }

    #[test]
    fn restarts_of_containers_and_of_sidecars() {
        let status =
            |name: &str, n: i32| json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": n});
        let p = pod(json!({
            "spec": {"containers": [], "initContainers": [{"name": "setup"}, {"name": "side", "restartPolicy": "Always"}]},
            "status": {"containerStatuses": [status("a", 1), status("b", 2)],
                "initContainerStatuses": [status("setup", 9), status("side", 3)]}}));
        assert_eq!(restarts(&p), (2, 3));
        assert_eq!(restarts(&pod(json!({}))), (0, 0));
    }

    #[test]
    fn surplus_order() {
        let running = |n: &str, node: &str, ready: &str, extra: Value| {
            let mut v = json!({"metadata": {"name": n, "uid": n}, "spec": {"containers": [], "nodeName": node},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            if let (Some(m), Value::Object(e)) = (v["metadata"].as_object_mut(), extra) {
                m.extend(e);
            }
            pod(v)
        };
        let mut pods = [
            running("plain", "n1", "True", json!({})),
            running("dear", "n1", "True", json!({"annotations": {DELETION_COST: "5"}})),
            running("unready", "n1", "False", json!({})),
            pod(json!({"metadata": {"name": "unassigned", "uid": "u"}, "status": {"phase": "Pending"}})),
            running("crowded-a", "n2", "True", json!({})),
            running("crowded-b", "n2", "True", json!({})),
        ];
        let crowd = HashMap::from([("n1".to_owned(), 1), ("n2".to_owned(), 2)]);
        let now = "2026-01-02T00:00:00Z".parse().expect("time");
        for (costs, want) in [
            (true, ["unassigned", "unready", "crowded-a", "crowded-b", "plain", "dear"]),
            (false, ["unassigned", "unready", "crowded-a", "crowded-b", "dear", "plain"]),
        ] {
            pods.sort_by(|a, b| deletion_order(a, b, DeletionCriteria { on_node: &crowd, costs, now }));
            let names: Vec<_> = pods.iter().map(|p| name(&p.metadata)).collect();
            assert_eq!(names, want, "costs count: {costs}");
        }
    }
}
