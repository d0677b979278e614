//! Metrics of in-place resizes. Answers for upstream's `recordContainerResizeOperations` and for what its status and
//! allocation managers count.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;

use super::{count, number, set};
use shared::metrics::{gauge, histogram};

/// Buckets of the time that a resize takes, in milliseconds.
const DURATIONS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0,
    600_000.0,
];

/// Events that make deferred resizes be looked at again, by upstream's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryTrigger {
    /// Another pod got other resources.
    PodResized,
    /// A source has a newer version of the pod.
    PodUpdated,
    /// A pod came.
    PodsAdded,
    /// A pod ended.
    PodsRemoved,
    /// Nothing happened for a while.
    Periodic,
}

impl RetryTrigger {
    fn name(self) -> &'static str {
        match self {
            Self::PodResized => "pod_resized",
            Self::PodUpdated => "pod_updated",
            Self::PodsAdded => "pods_added",
            Self::PodsRemoved => "pods_removed",
            Self::Periodic => "periodic_retry",
        }
    }
}

/// Counts a change that a newer version of a pod asks for: of a resource's request or limit.
pub(crate) fn requested(resource: &str, requirement: &str, operation: &str) {
    let help = "[ALPHA] Number of changes that resizes asked for, by resource, requirement and operation";
    let labels = [("resource", resource), ("requirement", requirement), ("operation", operation)];
    count("kubelet_container_requested_resizes_total", help, &labels);
}

/// Counts a resize that the node will never allow.
pub(crate) fn infeasible(detail: &str) {
    let help = "[ALPHA] Number of resizes that cannot be, by what is in the way";
    count("kubelet_pod_infeasible_resizes_total", help, &[("reason_detail", detail)]);
}

/// Counts a resize that had been deferred and was accepted.
pub(crate) fn accepted_late(trigger: RetryTrigger) {
    let help = "[ALPHA] Number of deferred resizes that were accepted, by what made them be looked at again";
    count("kubelet_pod_deferred_accepted_resizes_total", help, &[("retry_trigger", trigger.name())]);
}

/// Counts the work of a resize on a pod's containers.
pub(crate) fn worked(took: Duration, succeeded: bool) {
    let help = "[ALPHA] Duration of resizes of a pod's containers in milliseconds, by success";
    let durations = histogram("kubelet_pod_resize_duration_milliseconds", help, &["success"], DURATIONS.to_vec());
    durations.with_label_values(&[if succeeded { "true" } else { "false" }]).observe(took.as_secs_f64() * 1e3);
}

/// Reason why a pod's resize waits, in lower case, and whether it is under way.
type ResizeState = (Option<String>, bool);

/// Resizes that wait or are under way, by the pods' uids.
static STATES: LazyLock<Mutex<HashMap<String, ResizeState>>> = LazyLock::new(Mutex::default);

/// Notes the progress of a pod's resize: why it waits, and whether some container does not have yet what is allocated.
pub(crate) fn progress(uid: &str, pending: Option<&str>, running: bool) {
    let state = (pending.map(str::to_lowercase), running);
    let mut states = STATES.lock();
    if states.get(uid).unwrap_or(&(None, false)) == &state {
        return;
    }
    match state {
        (None, false) => states.remove(uid),
        state => states.insert(uid.to_owned(), state),
    };
    tell(&states);
}

/// Forgets a pod.
pub(crate) fn gone(uid: &str) {
    progress(uid, None, false);
}

/// Shows that nothing is under way yet.
pub(super) fn show() {
    tell(&STATES.lock());
}

fn tell(states: &HashMap<String, ResizeState>) {
    let running = states.values().filter(|(_, running)| *running).count();
    set("kubelet_pod_in_progress_resizes", "[ALPHA] Number of resizes that are under way", &[], number(running));
    let pending = gauge("kubelet_pod_pending_resizes", "[ALPHA] Number of resizes that wait, by reason", &["reason"]);
    pending.reset();
    for reason in states.values().filter_map(|(reason, _)| reason.as_deref()) {
        pending.with_label_values(&[reason]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resizes_are_counted_while_they_last() {
        let line = "kubelet_pod_pending_resizes{reason=\"deferred\"} 1\n";
        progress("resizes-u", Some("Deferred"), false);
        assert!(shared::metrics::gather().contains(line));
        progress("resizes-u", None, true);
        let text = shared::metrics::gather();
        assert!(text.contains("kubelet_pod_in_progress_resizes 1\n") && !text.contains(line));
        gone("resizes-u");
        assert!(shared::metrics::gather().contains("kubelet_pod_in_progress_resizes 0\n"));
    }
}
