//! How long to wait before a failed pod is replaced: longer with every failure since the last success.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::engine::pod::Pod;
use crate::engine::{object, pods};

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(10);

/// The failures of one job since its last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    failures: u32,
    last: Option<Timestamp>,
}

impl Record {
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

    /// How long the next pod still has to wait.
    #[must_use]
    pub fn remaining(&self, now: Timestamp) -> Duration {
        self.last.map_or(Duration::ZERO, |last| wait(self.failures, last, now))
    }
}

/// How long is left of the back-off after so many failures, the last of them at `last`.
#[must_use]
pub fn wait(failures: u32, last: Timestamp, now: Timestamp) -> Duration {
    let whole = FIRST.saturating_mul(1 << (failures.max(1) - 1).min(10)).min(LONGEST);
    whole.saturating_sub(now.duration_since(last).try_into().unwrap_or_default())
}

/// When the pod ended: its last container's end, or when it was deleted, or now-ish.
#[must_use]
pub fn ended(pod: &Pod) -> Timestamp {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    let last = statuses.filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|t| t.0)).max();
    let ready = pods::condition(pod, "Ready").and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    let deleted = pod.metadata.deletion_timestamp.as_ref().map(|t| t.0);
    last.or(ready).or(deleted).unwrap_or_else(|| object::created(&pod.metadata))
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
        let one = Record::default().with([&pod("Failed", "2026-01-01T00:00:00Z")]);
        assert_eq!(one.remaining(t("00:04")), Duration::from_secs(6));
        assert_eq!(one.remaining(t("00:10")), Duration::ZERO);
        let two = one.with([&pod("Failed", "2026-01-01T00:00:30Z")]);
        assert_eq!(two.remaining(t("00:30")), Duration::from_secs(20));
        let many = (0..20).fold(two, |r, _| r.with([&pod("Failed", "2026-01-01T00:01:00Z")]));
        assert_eq!(many.remaining(t("01:00")), LONGEST);
        assert_eq!(many.with([&pod("Succeeded", "2026-01-01T00:02:00Z")]), Record::default());
    }
}
