//! Notices what happens in the runtime: container events where it offers them, a relist every second otherwise (and
//! always, as events may be lost). Wakes the workers of pods that changed, and cleans up behind everybody: pods that
//! nobody wants, old containers and sandboxes, big logs.
//! Answers for upstream's `pkg/kubelet/pleg` (`GenericPLEG.Relist`, `EventedPLEG`).

pub mod gc;
pub mod logs;

use crate::cri::{CriError, Runtime, labels, v1};
use crate::metrics;
use crate::workers::manager::Manager;
use parking_lot::Mutex;
use shared::flags::format_duration;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Interval at which the runtime is listed.
pub const RELIST_PERIOD: Duration = Duration::from_secs(1);
/// Interval at which the runtime is listed for a while after a change: more is about to follow.
const RELIST_SOON: Duration = Duration::from_millis(200);
/// Number of relists for which that lasts.
const SOON: u32 = 10;
/// With events the relist is only a safety net, but must come well before [`THRESHOLD`].
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(60);
/// A relist older than this means that the runtime hangs.
pub const THRESHOLD: Duration = Duration::from_secs(180);

/// Time without a relist after which `/healthz` fails.
const STUCK: Duration = Duration::from_secs(120);

/// A relist is the state of the runtime for so long; whoever wants it fresher asks.
const CURRENT: Duration = Duration::from_secs(5);

/// A relist that succeeded, by a clock that nobody sets.
#[derive(Debug)]
struct Relist {
    at: Instant,
    /// Pods that have anything in the runtime, by uid.
    uids: HashSet<String>,
}

/// The last relist that succeeded; node readiness depends on it.
#[derive(Debug, Default)]
pub struct Health(Mutex<Option<Relist>>);

impl Health {
    fn beat(&self, uids: HashSet<String>) {
        *self.0.lock() = Some(Relist { at: Instant::now(), uids });
    }

    /// The health of a runtime that was last listed long ago.
    #[cfg(test)]
    pub(crate) fn stuck() -> Self {
        let at = Instant::now().checked_sub(STUCK + Duration::from_secs(1));
        Self(Mutex::new(at.map(|at| Relist { at, uids: HashSet::new() })))
    }

    fn age(&self) -> Option<Duration> {
        self.0.lock().as_ref().map(|last| last.at.elapsed())
    }

    /// Uids of the pods that have anything in the runtime, as they were listed a moment ago.
    pub fn listed(&self) -> Option<HashSet<String>> {
        let last = self.0.lock();
        last.as_ref().filter(|last| last.at.elapsed() < CURRENT).map(|last| last.uids.clone())
    }

    /// Reports whether relists succeeded once and have failed since for too long. Answers for upstream's
    /// `SyncLoopHealthCheck`: its loop does not go on while the runtime fails.
    pub fn is_stuck(&self) -> bool {
        self.age().is_some_and(|age| age > STUCK)
    }

    /// Returns why pods cannot be watched, if they cannot.
    pub fn error(&self) -> Option<String> {
        let Some(age) = self.age() else {
            return Some("PLEG is not healthy: pleg has yet to be successful".to_owned());
        };
        (age > THRESHOLD).then(|| {
            let (age, limit) = (format_duration(age), format_duration(THRESHOLD));
            format!("PLEG is not healthy: pleg was last seen active {age} ago; threshold is {limit}")
        })
    }
}

/// One pod's containers and sandboxes with their states.
type Print = Vec<(String, i32)>;

/// A short picture of everything in the runtime, by pod uid.
async fn picture(runtime: &dyn Runtime) -> Result<HashMap<String, Print>, CriError> {
    let (sandboxes, containers) = tokio::try_join!(runtime.list_sandboxes(None), runtime.list_containers(None))?;
    tell(&sandboxes, &containers);
    let mut all: HashMap<String, Print> = HashMap::new();
    for sandbox in sandboxes {
        if let Some(uid) = sandbox.labels.get(labels::POD_UID) {
            all.entry(uid.clone()).or_default().push((sandbox.id, sandbox.state));
        }
    }
    for container in containers {
        if let Some(uid) = container.labels.get(labels::POD_UID) {
            all.entry(uid.clone()).or_default().push((container.id, container.state));
        }
    }
    for print in all.values_mut() {
        print.sort();
    }
    Ok(all)
}

/// Tells what runs as metrics.
fn tell(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let ready = v1::PodSandboxState::SandboxReady as i32;
    let running: HashSet<_> =
        sandboxes.iter().filter(|s| s.state == ready).filter_map(|s| s.labels.get(labels::POD_UID)).collect();
    let help = "[ALPHA] Number of pods that have a running pod sandbox";
    metrics::set("kubelet_running_pods", help, &[], number(running.len()));
    for (state, name) in [
        (v1::ContainerState::ContainerCreated, "created"),
        (v1::ContainerState::ContainerRunning, "running"),
        (v1::ContainerState::ContainerExited, "exited"),
        (v1::ContainerState::ContainerUnknown, "unknown"),
    ] {
        let help = "[ALPHA] Number of containers, by state";
        let count = containers.iter().filter(|c| c.state == state as i32).count();
        metrics::set("kubelet_running_containers", help, &[("container_state", name)], number(count));
    }
}

/// Uids whose picture differs.
fn changed(old: &HashMap<String, Print>, new: &HashMap<String, Print>) -> Vec<String> {
    let mut uids: Vec<String> =
        new.iter().filter(|(uid, p)| old.get(*uid) != Some(p)).map(|(u, _)| u.clone()).collect();
    uids.extend(old.keys().filter(|uid| !new.contains_key(*uid)).cloned());
    uids
}

/// Runs until shutdown.
pub async fn run(manager: Arc<Manager>, health: Arc<Health>, shutdown: CancellationToken) {
    let runtime = Arc::clone(&manager.context().runtime);
    let mut last = HashMap::new();
    let mut events = None;
    let mut ticks = 0u64;
    let mut soon = 0u32;
    let took = shared::metrics::histogram(
        "kubelet_pleg_relist_duration_seconds",
        "[ALPHA] Duration in seconds for relisting pods in PLEG.",
        &[],
        shared::metrics::default_buckets(),
    );
    let interval = shared::metrics::histogram(
        "kubelet_pleg_relist_interval_seconds",
        "[ALPHA] Interval in seconds between relisting in PLEG.",
        &[],
        shared::metrics::default_buckets(),
    );
    let mut before: Option<std::time::Instant> = None;
    loop {
        let started = std::time::Instant::now();
        if let Some(before) = before.replace(started) {
            interval.with_label_values::<&str>(&[]).observe((started - before).as_secs_f64());
        }
        let new = picture(runtime.as_ref()).await;
        took.with_label_values::<&str>(&[]).observe(started.elapsed().as_secs_f64());
        match new {
            Ok(new) => {
                health.beat(new.keys().cloned().collect());
                #[allow(clippy::cast_precision_loss, reason = "seconds")]
                let now = jiff::Timestamp::now().as_second() as f64;
                let help = "[ALPHA] Time of the last successful relist in seconds since 1970";
                metrics::set("kubelet_pleg_last_seen_seconds", help, &[], now);
                let changed = changed(&last, &new);
                soon = if changed.is_empty() { soon.saturating_sub(1) } else { SOON };
                for uid in changed {
                    manager.poke(&uid);
                }
                last = new;
            }
            Err(error) => tracing::warn!(%error, "GenericPLEG: Unable to retrieve pods"),
        }
        // A runtime may be replaced by one that offers events.
        if events.is_none() && ticks.is_multiple_of(60) {
            events = runtime.events().await.ok();
            metrics::events_opened(events.is_some());
        }
        ticks += 1;
        let period = match (events.is_some(), soon) {
            (true, _) => RELIST_WITH_EVENTS,
            (false, 0) => RELIST_PERIOD,
            (false, _) => RELIST_SOON,
        };
        let mut deadline = std::pin::pin!(tokio::time::sleep(period));
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = &mut deadline => break,
                event = next(&mut events) => match event {
                    Some(event) => {
                        metrics::event_seen(event.created_at);
                        if let Some(uid) = uid_of(&event) {
                            manager.poke(&uid);
                        }
                    }
                    None => {
                        events = None;
                        break;
                    }
                },
            }
        }
    }
}

async fn next(
    events: &mut Option<tokio::sync::mpsc::Receiver<v1::ContainerEventResponse>>,
) -> Option<v1::ContainerEventResponse> {
    match events {
        Some(events) => events.recv().await,
        None => std::future::pending().await,
    }
}

fn uid_of(event: &v1::ContainerEventResponse) -> Option<String> {
    let sandbox = event.pod_sandbox_status.as_ref()?;
    sandbox.metadata.as_ref().map(|m| m.uid.clone()).filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node's clock stands still here: a clock that is set says nothing about relists.
    #[tokio::test(start_paused = true)]
    async fn a_runtime_hangs_by_the_time_that_passes() {
        let health = Health::default();
        assert_eq!(health.error().as_deref(), Some("PLEG is not healthy: pleg has yet to be successful"));
        health.beat(HashSet::new());
        for (seconds, stuck, error) in [
            (119, false, None),
            (2, true, None),
            (60, true, Some("PLEG is not healthy: pleg was last seen active 3m1s ago; threshold is 3m0s")),
        ] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!((health.is_stuck(), health.error().as_deref()), (stuck, error), "{seconds} s on");
        }
        health.beat(HashSet::new());
        assert_eq!((health.is_stuck(), health.error()), (false, None));
    }

    #[test]
    fn only_pods_that_changed_are_woken() {
        let print = |state| vec![("a".to_owned(), state)];
        let old = HashMap::from([
            ("same".to_owned(), print(1)),
            ("gone".to_owned(), print(1)),
            ("died".to_owned(), print(1)),
        ]);
        let new =
            HashMap::from([("same".to_owned(), print(1)), ("died".to_owned(), print(2)), ("new".to_owned(), print(0))]);
        let mut uids = changed(&old, &new);
        uids.sort();
        assert_eq!(uids, ["died", "gone", "new"]);
    }
}
