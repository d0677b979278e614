//! Back-off before a failed pod is replaced: longer with every failure since the last success. Answers for upstream's
//! `pkg/controller/job/backoff_utils.go`.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::engine::pod::Pod;
use crate::engine::{object, pods};

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(10);

/// The failures of one job since its last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackoffRecord {
    failures: u32,
    last: Option<Timestamp>,
}

impl BackoffRecord {
    /// Take newly finished pods into account.
    #[must_use]
    pub fn with<'a>(mut self, finished: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut events: Vec<(Timestamp, bool)> =
            finished.into_iter().map(|p| (ended(p), pods::phase(p) == "Succeeded")).collect();
        events.sort();
        for (at, succeeded) in events {
            if succeeded {
                self = Self::default();
            } else {
                self.failures += 1;
                self.last = Some(at);
            }
        }
        self
    }

    /// Returns the time that the next pod still has to wait.
    #[must_use]
    pub fn remaining(&self, now: Timestamp) -> Duration {
        self.last.map_or(Duration::ZERO, |last| wait(self.failures, last, now))
    }
}

/// Returns the rest of the back-off after so many failures, the last of them at `last`.
#[must_use]
pub fn wait(failures: u32, last: Timestamp, now: Timestamp) -> Duration {
    let whole = FIRST.saturating_mul(1 << (failures.max(1) - 1).min(10)).min(LONGEST);
    whole.saturating_sub(now.duration_since(last).try_into().unwrap_or_default())
}

/// Returns when the pod ended: its last container's end, or when it ceased to be ready, or when it was told to stop.
#[must_use]
pub fn ended(pod: &Pod) -> Timestamp {
    let unready = pods::condition(pod, "Ready").filter(|c| c.status == "False");
    let unready = unready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    containers_ended(pod).or(unready).or_else(|| told_to_stop(pod)).unwrap_or_else(|| object::created(&pod.metadata))
}

/// Returns when the last container ended, if all of them have.
fn containers_ended(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    let ends = statuses.map(|c| Some(c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0));
    ends.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
}

/// The deletion timestamp says when the grace period ends, not when it began.
fn told_to_stop(pod: &Pod) -> Option<Timestamp> {
    let by = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    Timestamp::from_second(by.as_second().saturating_sub(grace)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn grows_until_a_success() {
        let pod = |phase: &str, at: &str| -> Pod {
            serde_json::from_value(
                json!({"status": {"phase": phase, "containerStatuses": [{"name": "c", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 1, "finishedAt": at}}}]}}),
            )
            .expect("pod")
        };
        let t = |s: &str| -> Timestamp { format!("2026-01-01T00:{s}Z").parse().expect("time") };
        let one = BackoffRecord::default().with([&pod("Failed", "2026-01-01T00:00:00Z")]);
        assert_eq!(one.remaining(t("00:04")), Duration::from_secs(6));
        assert_eq!(one.remaining(t("00:10")), Duration::ZERO);
        let two = one.with([&pod("Failed", "2026-01-01T00:00:30Z")]);
        assert_eq!(two.remaining(t("00:30")), Duration::from_secs(20));
        let many = (0..20).fold(two, |r, _| r.with([&pod("Failed", "2026-01-01T00:01:00Z")]));
        assert_eq!(many.remaining(t("01:00")), LONGEST);
        assert_eq!(many.with([&pod("Succeeded", "2026-01-01T00:02:00Z")]), BackoffRecord::default());
    }

    #[test]
    fn the_end_of_a_pod() {
        let done = |at: &str| {
            json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "finishedAt": at}}})
        };
        let mut running = done("2026-01-01T00:00:09Z");
        running["state"] = json!({"running": {}});
        let ready =
            |status: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:05Z"}]);
        let (early, late) = (done("2026-01-01T00:00:01Z"), done("2026-01-01T00:00:02Z"));
        for (name, containers, conditions, want) in [
            ("the last container", json!([early, late]), ready("False"), 2),
            ("one still runs", json!([early, running]), ready("False"), 5),
            ("told to stop half a minute before its time is up", json!([running]), ready("True"), 30),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30},
                "status": {"containerStatuses": containers, "conditions": conditions}}))
            .expect("pod");
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("time");
            assert_eq!(ended(&pod).as_second() - start.as_second(), want, "{name}");
        }
    }
}
