//! One probe of one container: the pure state of its thresholds, and the loop around it.
//! Answers for `doProbe` of upstream's `pkg/kubelet/prober/worker.go`.

use super::check::{ProbeOutcome, ProbeTarget, attempt};
use super::metrics::Counted;
use super::{ProbeKind, ProbeResult, ProbeUpdate, RunningContainer};
use crate::cri::Exec;
use crate::events::{EventSink, EventType, field_path};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Attempts within one period when the attempt itself cannot be made.
const ATTEMPTS: usize = 3;

/// Counts results in a row until a threshold is met.
#[derive(Debug)]
pub(super) struct Thresholds {
    success: i32,
    failure: i32,
    last: Option<bool>,
    run: i32,
}

impl Thresholds {
    pub(super) fn new(probe: &Probe) -> Self {
        let success = probe.success_threshold.unwrap_or(1).max(1);
        let failure = probe.failure_threshold.unwrap_or(3).max(1);
        Self { success, failure, last: None, run: 0 }
    }

    /// The result that an attempt settles, if its threshold is met.
    pub(super) fn record(&mut self, passed: bool) -> Option<ProbeResult> {
        if self.last == Some(passed) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(passed);
            self.run = 1;
        }
        match passed {
            true if self.run >= self.success => Some(ProbeResult::Success),
            false if self.run >= self.failure => Some(ProbeResult::Failure),
            _ => None,
        }
    }
}

/// Returns the result before the first threshold is met.
pub(super) fn initial(kind: ProbeKind) -> ProbeResult {
    match kind {
        ProbeKind::Startup => ProbeResult::Unknown,
        ProbeKind::Liveness => ProbeResult::Success,
        ProbeKind::Readiness => ProbeResult::Failure,
    }
}

/// State that a worker shares with the manager.
#[derive(Debug)]
pub(super) struct Shared {
    result: Mutex<ProbeResult>,
    /// The result is one of this kubelet's probes.
    settled: AtomicBool,
}

impl Shared {
    /// Before the first threshold is met.
    pub(super) fn new(first: ProbeResult) -> Self {
        Self { result: Mutex::new(first), settled: AtomicBool::new(false) }
    }

    pub(super) fn result(&self) -> ProbeResult {
        *self.result.lock()
    }

    /// Goes on from a success that an earlier kubelet found, as long as no probe has said anything since; true when that is
    /// news.
    pub(super) fn continues(&self, first: ProbeResult) -> bool {
        let mut result = self.result.lock();
        let news = first == ProbeResult::Success && *result != first && !self.settled.load(Ordering::Relaxed);
        if news {
            *result = first;
        }
        news
    }

    /// Keeps what a probe found; returns what was before.
    fn settle(&self, found: ProbeResult) -> ProbeResult {
        let mut result = self.result.lock();
        self.settled.store(true, Ordering::Relaxed);
        std::mem::replace(&mut *result, found)
    }
}

/// One probe of one container, with everything its loop needs.
pub(super) struct Worker {
    pub(super) kind: ProbeKind,
    pub(super) pod: Arc<Pod>,
    pub(super) pod_ip: String,
    pub(super) container: Container,
    pub(super) probe: Probe,
    pub(super) running: RunningContainer,
    pub(super) shared: Arc<Shared>,
    pub(super) exec: Arc<dyn Exec>,
    pub(super) events: Arc<dyn EventSink>,
    pub(super) updates: mpsc::Sender<ProbeUpdate>,
    /// True once the container counts as started.
    pub(super) started: watch::Receiver<bool>,
}

impl Worker {
    /// Probes until the task is aborted. A startup probe ends with its success, and any
    /// probe but readiness with its failure: the container is about to be replaced.
    pub(super) async fn run(mut self) {
        let period = seconds(self.probe.period_seconds.unwrap_or(10)).max(Duration::from_secs(1));
        tokio::time::sleep(self.delay()).await;
        if self.kind != ProbeKind::Startup && self.started.wait_for(|started| *started).await.is_err() {
            return;
        }
        let mut thresholds = Thresholds::new(&self.probe);
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let counted = Counted::new(self.kind, &self.pod, &self.container.name);
        loop {
            ticks.tick().await;
            let begun = Instant::now();
            let outcome = self.attempt().await;
            counted.attempt(&outcome, begun.elapsed());
            let passed = self.report(&outcome);
            let Some(result) = passed.and_then(|passed| thresholds.record(passed)) else { continue };
            if self.settle(result).await && self.kind != ProbeKind::Readiness {
                match (self.kind, result) {
                    (ProbeKind::Startup, ProbeResult::Success) | (_, ProbeResult::Failure) => return,
                    _ => {}
                }
            }
        }
    }

    /// Returns the rest of the initial delay since the container started.
    fn delay(&self) -> Duration {
        let initial = seconds(self.probe.initial_delay_seconds.unwrap_or(0));
        let age = Timestamp::now().duration_since(self.running.started_at);
        initial.saturating_sub(Duration::try_from(age).unwrap_or_default())
    }

    async fn attempt(&self) -> ProbeOutcome {
        let target =
            ProbeTarget { container: &self.container, container_id: &self.running.container_id, pod_ip: &self.pod_ip };
        let mut outcome = attempt(&self.probe, &target, &*self.exec).await;
        for _ in 1..ATTEMPTS {
            if !matches!(outcome, ProbeOutcome::Error(_)) {
                break;
            }
            outcome = attempt(&self.probe, &target, &*self.exec).await;
        }
        outcome
    }

    /// Reports what a person should know; `None` when the attempt says nothing about the container.
    fn report(&self, outcome: &ProbeOutcome) -> Option<bool> {
        let name = self.kind.name();
        let field = field_path(&self.pod, &self.container.name);
        let warn = |reason: &str, message: String| {
            self.events.pod(&self.pod, &field, EventType::Warning, reason, &message);
        };
        match outcome {
            ProbeOutcome::Success => Some(true),
            ProbeOutcome::Warning(text) => {
                warn("ProbeWarning", format!("{name} probe warning: {text}"));
                Some(true)
            }
            ProbeOutcome::Failure(text) => {
                warn("Unhealthy", format!("{name} probe failed: {text}"));
                Some(false)
            }
            ProbeOutcome::Error(text) => {
                warn("Unhealthy", format!("{name} probe errored and resulted in unknown state: {text}"));
                None
            }
        }
    }

    /// Keeps the result and tells of it; false when it is the one that was known.
    async fn settle(&self, result: ProbeResult) -> bool {
        let before = self.shared.settle(result);
        let restarts = self.kind != ProbeKind::Readiness && result == ProbeResult::Failure;
        if before == result && !restarts {
            return false;
        }
        let update = ProbeUpdate {
            kind: self.kind,
            pod_uid: self.pod.metadata.uid.clone().unwrap_or_default(),
            container: self.running.name.clone(),
            container_id: self.running.container_id.clone(),
            result,
        };
        self.updates.send(update).await.is_ok()
    }
}

fn seconds(value: i32) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_before_counts_until_a_probe_says_otherwise() {
        use ProbeResult::{Failure, Success};
        let shared = Shared::new(Failure);
        assert_eq!((shared.continues(Failure), shared.result()), (false, Failure), "nothing is told");
        assert_eq!((shared.continues(Success), shared.result()), (true, Success));
        assert_eq!((shared.continues(Success), shared.result()), (false, Success), "it is known");
        assert_eq!((shared.settle(Failure), shared.result()), (Success, Failure));
        assert_eq!((shared.continues(Success), shared.result()), (false, Failure), "a probe knows better");
    }

    #[test]
    fn results_settle_after_their_thresholds_in_a_row() {
        let probe = Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Probe::default() };
        let mut thresholds = Thresholds::new(&probe);
        let (success, failure) = (Some(ProbeResult::Success), Some(ProbeResult::Failure));
        let attempts = [true, true, false, false, true, false, false, false, false];
        let settled: Vec<_> = attempts.into_iter().map(|passed| thresholds.record(passed)).collect();
        assert_eq!(settled, [None, success, None, None, None, None, None, failure, failure]);
    }
}
