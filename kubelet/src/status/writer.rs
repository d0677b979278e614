//! Brings pod statuses to the API server, and takes pods from it that are stopped and shall go.
//! Answers for upstream's `pkg/kubelet/status/status_manager.go` (`syncBatch`, `canBeDeleted`) and for `PodIsFinished`.
//!
//! One entry a pod; a pod whose entry is newer than what the API server has is written as soon as there is a free
//! hand, retried with back-off. Statuses of static pods go to their mirror pods.

use super::patch::{List, diff};
use crate::calls::{ApiError, timely};
use crate::pods;
use crate::workers::context::StatusSink;
use crate::workers::manager::Manager;
use crate::workers::restart_all;
use crate::workers::status::conditions::TRANSIENT;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::workqueue::Queue;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Writers at work at the same time.
const HANDS: usize = 6;
/// Nothing waits longer for the API server.
const DEADLINE: Duration = Duration::from_secs(20);
/// Pause between two looks at what the API server has been told.
const TOLD_LOOK: Duration = Duration::from_millis(20);
/// Merge keys of the lists of a pod's status; the others are atomic.
const LISTS: [(&str, List); 3] =
    [("conditions", List::ByKey("type")), ("podIPs", List::Replace), ("hostIPs", List::Replace)];
/// Fields of the status that are not the kubelet's to remove.
const FOREIGN: [&str; 4] = ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus", "resize"];
/// Conditions that are the kubelet's.
const OWN_CONDITIONS: [&str; 9] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "DisruptionTarget",
    TRANSIENT[0],
    TRANSIENT[1],
    restart_all::CONDITION,
];

struct StatusEntry {
    pod: Arc<Pod>,
    status: PodStatus,
    /// Status that the API server has, as far as is known, and since which revision.
    base: Option<(u64, Value)>,
    reclaimed: bool,
    /// The status was computed from what an earlier one says of the pod's containers.
    continued: bool,
    /// Time of the first change that the API server has not been told of.
    changed: Option<Instant>,
}

/// The status room's door.
pub struct Writer {
    client: Option<kube::Client>,
    entries: Mutex<HashMap<String, StatusEntry>>,
    queue: Queue<String>,
    manager: OnceLock<Arc<Manager>>,
}

fn revision(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn document(status: Option<&PodStatus>) -> Value {
    status.and_then(|status| serde_json::to_value(status).ok()).unwrap_or_else(|| json!({}))
}

/// Results of a write.
enum StatusWriteOutcome {
    Done,
    Again,
}

impl Writer {
    /// A writer; without a client statuses are only remembered.
    pub fn new(client: Option<kube::Client>) -> Arc<Self> {
        let queue = Queue::with_backoff("pod_status", Duration::from_millis(200), Duration::from_secs(10));
        Arc::new(Self { client, entries: Mutex::default(), queue, manager: OnceLock::new() })
    }

    /// The pod map, which is made after the writer.
    pub fn connect(&self, manager: &Arc<Manager>) {
        let _ = self.manager.set(Arc::clone(manager));
    }

    /// A pod as the API server has it now.
    pub fn observed(&self, pod: &Pod) {
        let uid = match self.manager.get() {
            // A mirror pod stands for its static pod.
            Some(manager) if pods::is_mirror(pod) => manager.static_uid(pod).unwrap_or_default(),
            _ => pods::uid(pod).to_owned(),
        };
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&uid) else { return };
        let now = revision(pod);
        if entry.base.as_ref().is_some_and(|(known, _)| *known >= now) {
            return;
        }
        let base = document(pod.status.as_ref());
        if pods::is_static(&entry.pod) {
            keep_times(&base, &mut entry.status);
        }
        let differs = patch_of(&base, &entry.status).is_some();
        entry.base = Some((now, base));
        drop(entries);
        if differs {
            self.queue.add(uid);
        }
    }

    /// Writes until shutdown; what waits then is written by the next kubelet.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let hands = (0..HANDS).map(|_| self.work());
        tokio::select! {
            () = shutdown.cancelled() => self.queue.shut_down(),
            _ = futures::future::join_all(hands) => {}
        }
    }

    /// Waits until the API server has been told of these pods.
    pub async fn until_told(&self, pods: &[Arc<Pod>]) {
        while pods.iter().any(|pod| self.is_untold(pods::uid(pod))) {
            tokio::time::sleep(TOLD_LOOK).await;
        }
    }

    fn is_untold(&self, uid: &str) -> bool {
        let entries = self.entries.lock();
        let Some(entry) = entries.get(uid).filter(|_| self.client.is_some()) else { return false };
        let mut status = entry.status.clone();
        let base = match &entry.base {
            Some((_, base)) => base.clone(),
            // It is written when the mirror pod appears.
            None if pods::is_static(&entry.pod) => return false,
            None => document(entry.pod.status.as_ref()),
        };
        if pods::is_static(&entry.pod) {
            keep_times(&base, &mut status);
        }
        patch_of(&base, &status).is_some()
    }

    async fn work(&self) {
        while let Some(uid) = self.queue.get().await {
            match self.write(&uid).await {
                Ok(StatusWriteOutcome::Done) => self.queue.forget(&uid),
                Ok(StatusWriteOutcome::Again) => self.queue.add_rate_limited(uid.clone()),
                Err(error) => {
                    tracing::warn!(pod_uid = uid, %error, "Failed to update status for pod");
                    self.queue.add_rate_limited(uid.clone());
                }
            }
            self.queue.done(&uid);
        }
    }

    async fn write(&self, uid: &str) -> Result<StatusWriteOutcome, ApiError> {
        let Some(client) = &self.client else { return Ok(StatusWriteOutcome::Done) };
        let (pod, mut status, base, reclaimed, continued) = {
            let entries = self.entries.lock();
            let Some(entry) = entries.get(uid) else { return Ok(StatusWriteOutcome::Done) };
            (Arc::clone(&entry.pod), entry.status.clone(), entry.base.clone(), entry.reclaimed, entry.continued)
        };
        let (target, base) = if pods::is_static(&pod) {
            let Some(mirror) = self.manager.get().and_then(|manager| manager.mirror(&pod)) else {
                // It is written when the mirror pod appears.
                return Ok(StatusWriteOutcome::Done);
            };
            let base = base.filter(|(known, _)| *known >= revision(&mirror)).map(|(_, base)| base);
            if !continued && is_of_beginning(&status, mirror.status.as_ref()) {
                // The worker has been told of the mirror pod, and is about to say whether what was Ready still is.
                return Ok(StatusWriteOutcome::Done);
            }
            let base = base.unwrap_or_else(|| document(mirror.status.as_ref()));
            keep_times(&base, &mut status);
            (mirror, base)
        } else {
            let newest = base.filter(|(known, _)| *known >= revision(&pod)).map(|(_, base)| base);
            let base = newest.unwrap_or_else(|| document(pod.status.as_ref()));
            (pod, base)
        };
        let api: Api<Pod> = Api::namespaced(client.clone(), pods::namespace(&target));
        let name = pods::name(&target);
        if let Some(patch) = patch_of(&base, &status) {
            let body = json!({"metadata": {"uid": pods::uid(&target)}, "status": patch});
            let (params, patch) = (PatchParams::default(), Patch::Strategic(&body));
            let call = api.patch_status(name, &params, &patch);
            match timely(DEADLINE, call).await {
                Ok(answer) => {
                    if let Some(entry) = self.entries.lock().get_mut(uid) {
                        entry.base = Some((revision(&answer), document(answer.status.as_ref())));
                        if let Some(changed) = entry.changed.take() {
                            crate::metrics::status_told(changed.elapsed());
                        }
                    }
                }
                Err(ApiError::Refused(kube::Error::Api(answer))) if is_gone(&answer) => {
                    return Ok(StatusWriteOutcome::Done);
                }
                Err(error) => return Err(error),
            }
        }
        if reclaimed && target.metadata.deletion_timestamp.is_some() && !pods::is_mirror(&target) {
            return Ok(delete(&api, &target).await);
        }
        Ok(StatusWriteOutcome::Done)
    }

    fn put(&self, pod: &Arc<Pod>, status: &PodStatus, reclaimed: bool) {
        let uid = pods::uid(pod).to_owned();
        if let Some(manager) = self.manager.get() {
            manager.remember(&uid, status);
        }
        {
            let mut entries = self.entries.lock();
            let entry = entries.entry(uid.clone()).or_insert_with(|| StatusEntry {
                pod: Arc::clone(pod),
                status: status.clone(),
                base: None,
                reclaimed,
                continued: false,
                changed: None,
            });
            entry.pod = Arc::clone(pod);
            entry.changed.get_or_insert_with(Instant::now);
            entry.status = status.clone();
            entry.reclaimed |= reclaimed;
            entry.continued |= pod.status.as_ref().is_some_and(runs);
        }
        self.queue.add(uid);
    }
}

/// Reports whether a static pod's status is that of a kubelet that has not yet seen the mirror pod, which says what was before:
/// what was Ready is not Ready there. A pod that has ended or begins is told of at once.
fn is_of_beginning(status: &PodStatus, mirror: Option<&PodStatus>) -> bool {
    runs(status) && mirror.is_some_and(runs)
}

fn runs(status: &PodStatus) -> bool {
    status.phase.as_deref() == Some("Running")
}

/// Keeps the start time, and the times of conditions that have not changed, of a static pod's status as its mirror has it: the
/// manifest, which is all that a kubelet begins with, says nothing of them.
fn keep_times(base: &Value, status: &mut PodStatus) {
    let Ok(before) = serde_json::from_value::<PodStatus>(base.clone()) else { return };
    if before.start_time.is_some() {
        status.start_time = before.start_time;
    }
    let known = before.conditions.unwrap_or_default();
    for condition in status.conditions.iter_mut().flatten() {
        let same = known.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status);
        if let Some(time) = same.and_then(|c| c.last_transition_time.clone()) {
            condition.last_transition_time = Some(time);
        }
    }
}

/// The patch for a status; conditions of others are left alone.
fn patch_of(base: &Value, status: &PodStatus) -> Option<Value> {
    let mut wanted = document(Some(status));
    if let Some(conditions) = wanted.get_mut("conditions").and_then(Value::as_array_mut) {
        let kind = |c: &Value| c.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        conditions.retain(|c| OWN_CONDITIONS.contains(&kind(c).as_str()));
        let old = base.get("conditions").and_then(Value::as_array).into_iter().flatten().map(kind);
        let gone = old.filter(|kind| TRANSIENT.contains(&kind.as_str()));
        let gone: Vec<String> = gone.filter(|old| !conditions.iter().any(|c| kind(c) == *old)).collect();
        conditions.extend(gone.into_iter().map(|kind| json!({"type": kind, "$patch": "delete"})));
    }
    diff(base, &wanted, &LISTS, |field| !FOREIGN.contains(&field))
}

/// Reports whether the API server has no such pod any more: none of the name, or another one. Its text alone tells a conflict of
/// uids from one of revisions.
fn is_gone(answer: &kube::core::Status) -> bool {
    answer.code == 404 || answer.code == 409 && answer.message.contains("uid")
}

/// Removes a stopped pod at once.
async fn delete(api: &Api<Pod>, pod: &Pod) -> StatusWriteOutcome {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    match tokio::time::timeout(DEADLINE, api.delete(pods::name(pod), &params)).await {
        Ok(Ok(_)) => StatusWriteOutcome::Done,
        Ok(Err(kube::Error::Api(answer))) if matches!(answer.code, 404 | 409) => StatusWriteOutcome::Done,
        Ok(Err(error)) => {
            tracing::warn!(pod = %pods::describe(pod), %error, "Failed to delete status for pod");
            StatusWriteOutcome::Again
        }
        Err(_) => StatusWriteOutcome::Again,
    }
}

impl StatusSink for Writer {
    fn set(&self, pod: &Arc<Pod>, status: &PodStatus) {
        self.put(pod, status, false);
    }

    fn reclaimed(&self, pod: &Arc<Pod>, status: &PodStatus) {
        self.put(pod, status, true);
    }

    fn mirror(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.manager.get()?.mirror(pod)
    }

    fn forget(&self, uid: &str) {
        self.entries.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_that_starts_anew_keeps_the_times_of_static_pods() {
        let of = |start: &str, ready: &str, at: &str| {
            json!({"startTime": start, "conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": at},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]})
        };
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
        for (ready, expected) in [("True", [first, first]), ("False", [second, first])] {
            let mut status: PodStatus = serde_json::from_value(of(second, ready, second)).expect("status");
            keep_times(&of(first, "True", first), &mut status);
            let kept = document(Some(&status));
            assert_eq!(kept["startTime"], first);
            let times = [0, 1].map(|place| kept["conditions"][place]["lastTransitionTime"].clone());
            assert_eq!(times, expected.map(Value::from), "{ready}");
        }
        let mut status: PodStatus = serde_json::from_value(of(second, "True", second)).expect("status");
        keep_times(&json!({}), &mut status);
        assert_eq!(document(Some(&status)), of(second, "True", second));
    }

    #[test]
    fn a_static_pod_that_goes_on_is_told_of_once_its_mirror_was_seen() {
        let of = |phase: &str| PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
        for (now, before, waits) in [
            ("Running", Some("Running"), true),
            ("Running", Some("Pending"), false),
            ("Running", None, false),
            ("Succeeded", Some("Running"), false),
            ("Failed", Some("Running"), false),
            ("Pending", Some("Running"), false),
        ] {
            let before = before.map(of);
            assert_eq!(is_of_beginning(&of(now), before.as_ref()), waits, "{now} after {before:?}");
        }
    }

    #[test]
    fn conditions_of_a_resize_go_and_those_of_others_stay() {
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let base = json!({"conditions": [condition("Ready"), condition("Gate"), condition("PodResizeInProgress")]});
        let status = |kinds: &[&str]| -> PodStatus {
            let all: Vec<Value> = kinds.iter().map(|kind| condition(kind)).collect();
            serde_json::from_value(json!({"conditions": all})).expect("status")
        };
        let patch = patch_of(&base, &status(&["Ready", "Gate"])).expect("patch");
        let conditions = patch["conditions"].as_array().expect("list");
        assert!(conditions.contains(&json!({"type": "PodResizeInProgress", "$patch": "delete"})), "{patch}");
        assert!(!conditions.iter().any(|c| c["type"] == "Gate"), "{patch}");
        assert_eq!(patch_of(&base, &status(&["Ready", "Gate", "PodResizeInProgress"])), None);
    }

    #[tokio::test]
    async fn a_pod_is_told_of_once_the_api_server_has_its_status() {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
        });
        let writer = Writer::new(Some(kube::Client::new(silent, "default")));
        let pod = |revision: &str, phase: &str| -> Arc<Pod> {
            let metadata = json!({"name": "web", "namespace": "default", "uid": "u", "resourceVersion": revision});
            Arc::new(serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).expect("pod"))
        };
        let failed = PodStatus { phase: Some("Failed".to_owned()), ..PodStatus::default() };
        assert!(!writer.is_untold("u"), "nothing is known of it");
        writer.put(&pod("1", "Running"), &failed, false);
        assert!(writer.is_untold("u"));
        writer.observed(&pod("2", "Failed"));
        assert!(!writer.is_untold("u"));
        writer.until_told(&[pod("2", "Failed")]).await;
    }
}
