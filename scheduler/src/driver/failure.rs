//! Tells the world how an attempt went: events, the pod's condition, the promised node; and puts pods back that failed.
//! Answers for upstream's `handleSchedulingFailure`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use shared::events::{EventKind, Recorder};
use shared::run::TaskGroup;

use super::core::Core;
use crate::framework::diagnosis::NO_NODES;
use crate::framework::plugin::Rescue;
use crate::framework::{Failure, Profile, QueuedPod};
use crate::model::PodInfo;

/// The longest note an event takes.
const NOTE_LIMIT: usize = 1024;

/// See the module.
pub(super) struct Reporter {
    pub(super) core: Arc<Core>,
    pub(super) tasks: TaskGroup,
    /// By profile.
    pub(super) recorders: HashMap<Arc<str>, Recorder>,
}

impl Reporter {
    /// Writes an event about a pod, in its profile's name.
    pub(super) fn event(
        &self,
        profile: &str,
        pod: &PodInfo,
        kind: EventKind,
        reason: &str,
        action: &str,
        note: String,
    ) {
        if let Some(recorder) = self.recorders.get(profile) {
            recorder.event_v1(&pod.reference(), None, kind, reason, action, truncated(note));
        }
    }

    /// An attempt has failed: back to the queue with the pod, and tell why.
    pub(super) fn failed(&self, profile: &Profile, mut queued: QueuedPod, failure: Failure, nomination: Nomination) {
        let message = failure.to_string();
        let rejected = match &failure {
            Failure::NoNodes | Failure::Unfit(_) => true,
            Failure::Broken(status) => status.is_rejected(),
        };
        queued.rejectors = match &failure {
            Failure::Unfit(d) => d.plugins.union(&d.pending).copied().collect(),
            Failure::Broken(status) if rejected && !status.plugin.is_empty() => [status.plugin].into(),
            Failure::NoNodes => [NO_NODES].into(),
            Failure::Broken(_) => Default::default(),
        };
        tracing::debug!(pod = %queued.pod, err = %message, "Unable to schedule pod; waiting");
        let uid = Arc::clone(&queued.pod.uid);
        let current = (self.core.pods)(&queued.pod.namespace, &queued.pod.name);
        let Some(current) = current.filter(|p| p.uid == uid && p.node_name.is_none()) else {
            self.core.queue.lock().done(&uid);
            return;
        };
        queued.pod = Arc::clone(&current);
        self.core.on_queue(|q, now| {
            match &nomination {
                Nomination::Keep => {
                    if let Some(node) = current.nominated.clone() {
                        q.nominate(&current, Some(node));
                    }
                }
                Nomination::Set(node) => q.nominate(&current, Some(Arc::clone(node))),
                Nomination::Revoke => q.nominate(&current, None),
            }
            q.failed(queued, now)
        });
        self.event(&profile.name, &current, EventKind::Warning, "FailedScheduling", "Scheduling", message.clone());
        let reason = if rejected { "Unschedulable" } else { "SchedulerError" };
        if let Some(patch) = status_patch(&current, reason, &message, &nomination) {
            let core = Arc::clone(&self.core);
            self.tasks.spawn("pod-status", async move {
                if let Err(error) = core.api.patch_status(&current, patch).await {
                    tracing::error!(pod = %current, %error, "Error updating pod");
                }
            });
        }
    }

    /// Takes the promise of a node back from a lesser pod.
    pub(super) async fn demote(&self, pod: &PodInfo) {
        if let Err(error) = self.core.api.patch_status(pod, json!({"status": {"nominatedNodeName": null}})).await {
            tracing::error!(pod = %pod, %error, "Error updating pod");
        }
    }

    /// Sends a victim away; `false` when that failed and the victim is still there.
    pub(super) async fn evict(&self, profile: &str, pod: &PodInfo, victim: &PodInfo, node: &str) -> bool {
        // It goes for a reason of its own, and is not told of another.
        if victim.terminating {
            return true;
        }
        let condition = json!({"status": {"conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", pod.scheduler_name),
            "lastTransitionTime": shared::types::now(),
            "observedGeneration": victim.generation,
        }]}});
        let mut done = Ok(());
        if !victim.preempted {
            done = self.core.api.patch_status(victim, condition).await;
        }
        if done.is_ok() {
            done = self.core.api.delete(victim).await;
        }
        match done {
            Err(error) if error.code != 404 => {
                tracing::error!(pod = %victim, preemptor = %pod, %error, "Could not delete victim");
                return false;
            }
            _ => {}
        }
        if let Some(recorder) = self.recorders.get(profile) {
            let note = format!("Preempted by pod {} on node {node}", pod.uid);
            recorder.event_v1(
                &victim.reference(),
                Some(&pod.reference()),
                EventKind::Normal,
                "Preempted",
                "Preempting",
                note,
            );
        }
        true
    }
}

fn truncated(mut note: String) -> String {
    if note.len() > NOTE_LIMIT {
        let mut end = NOTE_LIMIT - 4;
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push_str(" ...");
    }
    note
}

/// Fate of the node that a pod was promised (upstream's `NominatingInfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nomination {
    /// No change.
    Keep,
    /// This node from now on.
    Set(Arc<str>),
    /// No node: the attempt failed for another reason than that it waits for room there.
    Revoke,
}

impl From<Option<&Rescue>> for Nomination {
    fn from(rescue: Option<&Rescue>) -> Self {
        match rescue.map(|rescue| rescue.nominate.clone()) {
            None => Self::Keep,
            Some(Some(node)) => Self::Set(node),
            Some(None) => Self::Revoke,
        }
    }
}

/// Builds the patch of the pod's status; none when it says so already. A promise that is taken back is written with
/// whatever else is: the pod may have been promised a node that nobody has seen yet.
fn status_patch(pod: &PodInfo, reason: &str, message: &str, nomination: &Nomination) -> Option<Value> {
    let told = pod.unscheduled.as_deref().is_some_and(|(r, m)| r == reason && m == message);
    let (promised, is_news) = match nomination {
        Nomination::Keep => (None, false),
        Nomination::Set(node) => (Some(Value::from(&**node)), pod.nominated.as_ref() != Some(node)),
        Nomination::Revoke => (Some(Value::Null), pod.nominated.is_some()),
    };
    if told && !is_news {
        return None;
    }
    let mut condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastProbeTime": null,
        "observedGeneration": pod.generation,
    });
    if pod.unscheduled.is_none() {
        condition["lastTransitionTime"] = json!(shared::types::now());
    }
    let mut status = json!({"conditions": [condition]});
    if let Some(node) = promised.filter(|node| is_news || node.is_null()) {
        status["nominatedNodeName"] = node;
    }
    Some(json!({"status": status}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn notes_are_cut_between_characters() {
        assert_eq!(truncated("x".repeat(1024)).len(), 1024);
        let cut = truncated("é".repeat(600));
        assert!(cut.len() <= 1024 && cut.ends_with(" ..."));
    }

    #[test]
    fn patches() {
        let fresh = pod("p").info();
        let patch = status_patch(&fresh, "Unschedulable", "why", &Nomination::Keep).expect("patch");
        assert_eq!(patch["status"]["conditions"][0]["message"], "why");
        assert!(patch["status"]["conditions"][0].get("lastTransitionTime").is_some());
        assert!(patch["status"].get("nominatedNodeName").is_none());

        let told = pod("p")
            .set(
                "/status",
                "conditions",
                json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "why"}]),
            )
            .info();
        assert!(status_patch(&told, "Unschedulable", "why", &Nomination::Keep).is_none());
        assert!(status_patch(&told, "Unschedulable", "why", &Nomination::Revoke).is_none());
        let patch = status_patch(&told, "Unschedulable", "other", &Nomination::Set("n".into())).expect("patch");
        assert_eq!(patch["status"]["nominatedNodeName"], "n");
        assert!(patch["status"]["conditions"][0].get("lastTransitionTime").is_none(), "the status did not change");
        let patch = status_patch(&told, "SchedulerError", "why", &Nomination::Revoke).expect("patch");
        assert_eq!(patch["status"].get("nominatedNodeName"), Some(&Value::Null), "a promise nobody has seen yet");
    }
}
