//! The task of one pod: observes, plans, executes, reports; stops the pod when it has to go.
//! Answers for upstream's `pod_workers.go` (`podWorkerLoop`), `SyncPod` and the active deadline handler
//! (`pastActiveDeadline`).

use super::context::WorkerContext;
use super::kill::{self, HooksRun};
use super::mailbox::{KnownPod, Lifecycle, Mailbox};
use super::observed::{Observed, Observer, State};
use super::plan::{self, ContainerKind, ProbeResults, Step};
use super::resizing::Resources;
use super::start::{self, Start};
use super::status::generate::rejected;
use super::volumes::{Mounted, NO_VOLUMES, Volumes};
use crate::backoff::Backoff;
use crate::events::EventType;
use crate::images::Wait;
use crate::metrics;
use crate::pods;
use crate::probes::{ProbeKind, ProbeResult};
use crate::topology::{HintProvider, Refusal};
use crate::volumes::VolumeError;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use shared::types::{is_pod_terminal, part_of_tree};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Most plans in a row before the worker gives others a turn.
const MAX_ROUNDS: usize = 32;
/// Most that is added to the period in which pods are synced, as a share of it.
const RESYNC_JITTER: f64 = 0.5;
/// Reason of pods that need one more volume than the node can have.
const ATTACH_LIMIT: &str = "VolumeAttachmentLimitExceeded";
/// First and longest wait after a failed round.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(20));

struct Results<'a> {
    cx: &'a WorkerContext,
    uid: &'a str,
}

impl ProbeResults for Results<'_> {
    fn liveness(&self, name: &str, id: &str) -> Option<ProbeResult> {
        self.cx.probes.result(self.uid, name, ProbeKind::Liveness, id)
    }
    fn startup(&self, name: &str, id: &str) -> Option<ProbeResult> {
        self.cx.probes.result(self.uid, name, ProbeKind::Startup, id)
    }
}

/// Results of a round.
enum RoundResults {
    /// Nothing to do for so long.
    Idle(Option<Duration>),
    /// Something failed and is to be retried.
    Retry,
    /// All containers have ended for good.
    Finished,
}

/// Results of a container's start.
enum StartOutcome {
    /// The container runs.
    Runs,
    /// The container was made, and is to be looked at.
    Ended,
    /// The container has to wait.
    Waits,
    /// The pod is another by now.
    GivenUp,
}

/// The worker of one pod.
pub struct Worker {
    pub(super) cx: Arc<WorkerContext>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) uid: String,
    observer: Observer,
    pub(super) crash: Backoff,
    pub(super) waiting: HashMap<String, Wait>,
    pub(super) hooks_run: Arc<HooksRun>,
    pub(super) published: Option<PodStatus>,
    /// Status that a static pod's mirror pod had when this kubelet first saw it.
    pub(super) told: Option<PodStatus>,
    mounted: Mounted,
    pub(super) seen: Timestamp,
    failures: u32,
    pub(super) resources: Resources,
}

impl Worker {
    /// A worker for the pod in the mailbox.
    pub fn new(cx: Arc<WorkerContext>, mailbox: Arc<Mailbox>) -> Self {
        let uid = pods::uid(&mailbox.pod()).to_owned();
        let crash = cx.settings.crash_backoff.clone();
        Self {
            cx,
            mailbox,
            uid,
            crash,
            seen: Timestamp::now(),
            observer: Observer::default(),
            waiting: HashMap::new(),
            hooks_run: Arc::default(),
            published: None,
            told: None,
            mounted: Mounted::default(),
            failures: 0,
            resources: Resources::default(),
        }
    }

    /// Runs until the pod is gone and everything of it was given back, or the kubelet stops (then the pod goes on
    /// running).
    pub async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.live() => {}
        }
    }

    async fn live(&mut self) {
        let state = self.mailbox.snapshot();
        if state.rejected {
            let (reason, message) = state.failure.unwrap_or_default();
            let status = rejected(&state.pod, &reason, &message);
            self.cx.statuses.set(&state.pod, &status);
            self.published = Some(status);
        } else {
            self.work().await;
            self.mailbox.enter(Lifecycle::Terminating);
            let (cx, pod) = (Arc::clone(&self.cx), self.mailbox.pod());
            let begun = Instant::now();
            cx.traced("syncTerminatingPod", &pod, None, Box::pin(self.terminate())).await;
            metrics::worker_round("terminating", begun);
        }
        self.mailbox.enter(Lifecycle::Terminated);
        let (cx, pod) = (Arc::clone(&self.cx), self.mailbox.pod());
        let begun = Instant::now();
        cx.traced("syncTerminatedPod", &pod, None, Box::pin(self.reclaim())).await;
        metrics::worker_round("terminated", begun);
        metrics::pod_gone(&self.uid);
        // A finished pod stays known (its logs can be read) until its source drops it.
        while !self.mailbox.is_removed() {
            self.mailbox.notify.notified().await;
            let pod = self.mailbox.pod();
            if pod.metadata.deletion_timestamp.is_some()
                && let Some(status) = self.published.clone()
            {
                self.cx.statuses.reclaimed(&pod, &status);
            }
        }
        Box::pin(self.erase()).await;
    }

    /// Keeps the pod running until it has to stop or has ended.
    async fn work(&mut self) {
        let cx = Arc::clone(&self.cx);
        let mut known: Option<Arc<Pod>> = None;
        loop {
            let state = self.mailbox.snapshot();
            if Self::must_stop(&state) {
                break;
            }
            let update = match known.replace(Arc::clone(&state.pod)) {
                None => "create",
                Some(before) if !Arc::ptr_eq(&before, &state.pod) => "update",
                Some(_) => "sync",
            };
            if update == "create" {
                metrics::worker_start(&state.pod, self.seen);
            }
            let begun = Instant::now();
            // A worker rests nearly always: what a round needs is not to be part of it then.
            let round = cx.traced("syncPod", &state.pod, Some(update), Box::pin(self.sync(&state.pod))).await;
            metrics::worker_round(update, begun);
            let wait = match round {
                RoundResults::Finished => break,
                RoundResults::Idle(wait) => {
                    self.failures = 0;
                    wait.unwrap_or(self.cx.settings.sync_frequency)
                }
                RoundResults::Retry => {
                    self.failures += 1;
                    (RETRY.0 * 2u32.saturating_pow((self.failures - 1).min(8))).min(RETRY.1)
                }
            };
            tokio::select! {
                () = self.mailbox.notify.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn must_stop(state: &KnownPod) -> bool {
        state.removed
            || state.failure.is_some()
            || state.pod.metadata.deletion_timestamp.is_some()
            || is_pod_terminal(&state.pod)
    }

    /// Observes; problems are logged and retried.
    pub(super) async fn observe(&mut self) -> Option<Observed> {
        match self.observer.observe(self.cx.runtime.as_ref(), &self.uid).await {
            Ok(mut observed) => {
                self.resources.tell(&self.mailbox.pod(), &self.cx.records, &mut observed);
                Some(observed)
            }
            Err(error) => {
                tracing::warn!(pod_uid = %self.uid, %error, "Could not ask the runtime about the pod");
                // A runtime that is away is the node's trouble, not that of each of its pods.
                if !error.is_away() {
                    let text = format!("error determining status: {error}");
                    self.cx.events.pod(&self.mailbox.pod(), "", EventType::Warning, "FailedSync", &text);
                }
                None
            }
        }
    }

    async fn sync(&mut self, pod: &Arc<Pod>) -> RoundResults {
        for _ in 0..MAX_ROUNDS {
            let Some(observed) = self.observe().await else { return RoundResults::Retry };
            self.size_cgroup(pod, &observed).await;
            let status = self.publish(pod, &observed, false, false);
            if let Some(left) = pods::deadline_left(pod, &status, Timestamp::now())
                && left <= SignedDuration::ZERO
            {
                let text = "Pod was active on the node longer than the specified deadline";
                self.cx.events.pod(pod, "", EventType::Normal, "DeadlineExceeded", text);
                self.mailbox.fail("DeadlineExceeded", text, None);
                return RoundResults::Finished;
            }
            if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
                return RoundResults::Finished;
            }
            let plan = plan::plan(pod, &observed, &Results { cx: &self.cx, uid: &self.uid });
            if plan.steps.is_empty() {
                self.refresh(pod, &observed).await;
                return RoundResults::Idle(self.next_wake(pod, &status));
            }
            match self.execute(pod, &observed, plan.steps).await {
                Ok(true) => {}
                Ok(false) => {
                    let status = self.publish(pod, &observed, false, false);
                    return RoundResults::Idle(self.next_wake(pod, &status));
                }
                Err(()) => {
                    self.publish(pod, &observed, false, false);
                    return RoundResults::Retry;
                }
            }
            if Self::must_stop(&self.mailbox.snapshot()) {
                return RoundResults::Idle(Some(Duration::ZERO));
            }
        }
        RoundResults::Idle(Some(Duration::ZERO))
    }

    fn next_wake(&self, pod: &Pod, status: &PodStatus) -> Option<Duration> {
        let now = Timestamp::now();
        let resync = resync_interval(self.cx.settings.sync_frequency, rand::random());
        let mut wake = SignedDuration::try_from(resync).unwrap_or(SignedDuration::from_secs(60));
        if let Some(left) = pods::deadline_left(pod, status, now) {
            wake = wake.min(left);
        }
        for (name, (reason, _)) in &self.waiting {
            let spec = kill::spec_of(pod, name);
            let left = match reason.as_str() {
                "CrashLoopBackOff" => finished_last(status, name).and_then(|at| self.crash.remaining(name, at, now)),
                "ErrImagePull" | "ImagePullBackOff" => {
                    let image = spec.and_then(|s| s.image.clone()).unwrap_or_default();
                    self.cx.images.retry_in(pod, &image, now)
                }
                // Configuration errors and the like: often gone soon.
                _ => Some(SignedDuration::from_secs(5)),
            };
            wake = wake.min(left.unwrap_or(SignedDuration::from_secs(1)));
        }
        let wake = Duration::try_from(wake.max(SignedDuration::from_millis(50))).ok()?;
        Some(self.mounted.retry_in(Instant::now()).map_or(wake, |retry| wake.min(retry)))
    }

    async fn refresh(&mut self, pod: &Arc<Pod>, observed: &Observed) {
        if !self.mounted.is_due(Instant::now()) {
            return;
        }
        let ips = observed.active_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
        let (cx, facts) = (Arc::clone(&self.cx), self.cx.facts(pod, &ips));
        let failed = self.watch_start(pod, cx.volumes.refresh(pod, &facts)).await.and_then(Result::err);
        if let Some(error) = &failed {
            tracing::warn!(pod = %pods::describe(pod), %error, "Could not refresh volumes");
        }
        self.mounted.refreshed(Instant::now(), failed.is_some());
    }

    /// Executes steps in order. `Ok(true)`: something happened, look again; `Ok(false)`: everything is in back-off.
    async fn execute(&mut self, pod: &Arc<Pod>, observed: &Observed, steps: Vec<Step>) -> Result<bool, ()> {
        let (mut progressed, mut volumes, mut started) = (false, None, false);
        // A kill is given up when the pod is to be stopped for good, perhaps in less time.
        let (cx, hooks_run) = (Arc::clone(&self.cx), Arc::clone(&self.hooks_run));
        for step in steps {
            if std::mem::take(&mut started)
                && let Some(observed) = self.observe().await
            {
                // What comes next may take its time: an image to pull, a hook.
                self.publish(pod, &observed, false, false);
            }
            match step {
                Step::KillPod { recreate } => {
                    if recreate {
                        let text = "Pod sandbox changed, it will be killed and re-created.";
                        self.cx.events.pod(pod, "", EventType::Normal, "SandboxChanged", text);
                    }
                    let grace = pods::grace(pod).max(kill::MINIMUM_GRACE);
                    let stop = kill::pod(&cx, pod, observed, grace, &hooks_run);
                    let Some(killed) = self.watch_start(pod, stop).await else { return Ok(true) };
                    killed.map_err(|error| tracing::warn!(pod = %pods::describe(pod), %error, "Could not stop pod"))?;
                    progressed = true;
                }
                Step::KillContainer { id, message, grace, .. } => {
                    let Some(found) = observed.containers.iter().find(|c| c.id == id) else { continue };
                    let ip = observed.active_sandbox().and_then(|s| s.ips.first()).cloned().unwrap_or_default();
                    let grace = grace.unwrap_or_else(|| pods::grace(pod)).max(kill::MINIMUM_GRACE);
                    let stop = kill::container(&cx, pod, found, &ip, grace, &message, &hooks_run);
                    let Some(stopped) = self.watch_start(pod, stop).await else { return Ok(true) };
                    stopped.map_err(drop)?;
                    progressed = true;
                }
                Step::RestartAll { cause, ended } => {
                    self.restart_all(pod, observed, &cause, ended).await?;
                    progressed |= !self.waiting.contains_key(&cause);
                }
                Step::Resize { names } => {
                    self.resize(pod, observed, &names).await?;
                    progressed = true;
                }
                Step::CreateSandbox { attempt } => {
                    self.create_sandbox(pod, attempt).await?;
                    progressed = true;
                }
                Step::StartContainer { name, kind, attempt, ended } => {
                    if self.backed_off(pod, &name, ended) {
                        continue;
                    }
                    if volumes.is_none() {
                        volumes = self.mount(pod, observed).await?;
                    }
                    if volumes.is_none() {
                        // The pod is to be stopped.
                        return Ok(true);
                    }
                    let volumes = volumes.as_ref().unwrap_or(&NO_VOLUMES);
                    match self.start_container(pod, observed, volumes, (name, kind, attempt)).await {
                        StartOutcome::Runs => (progressed, started) = (true, true),
                        StartOutcome::Ended => progressed = true,
                        StartOutcome::Waits => {}
                        StartOutcome::GivenUp => return Ok(true),
                    }
                }
            }
        }
        Ok(progressed)
    }

    async fn start_container(
        &mut self,
        pod: &Arc<Pod>,
        observed: &Observed,
        volumes: &Volumes,
        (name, kind, attempt): (String, ContainerKind, u32),
    ) -> StartOutcome {
        let Some(sandbox) = observed.active_sandbox() else { return StartOutcome::GivenUp };
        let Some((container, target)) = container_to_start(pod, &name, kind, observed) else {
            return StartOutcome::Waits;
        };
        self.resources.starting(&container);
        self.cx.records.actuate(&self.uid, &container.name, container.resources.clone().unwrap_or_default());
        let (cx, hooks_run) = (Arc::clone(&self.cx), Arc::clone(&self.hooks_run));
        let start = Start { cx: &cx, pod, sandbox, volumes, hooks_run: &hooks_run };
        match self.watch_start(pod, start.run(&container, attempt, target)).await {
            None => StartOutcome::GivenUp,
            Some(Ok(())) => {
                self.waiting.remove(&name);
                StartOutcome::Runs
            }
            Some(Err(wait)) => {
                tracing::debug!(pod = %pods::describe(pod), container = name, reason = wait.0, message = wait.1, "Container does not start");
                let made = matches!(wait.0.as_str(), "RunContainerError" | "PostStartHookError");
                self.waiting.insert(name, wait);
                if made { StartOutcome::Ended } else { StartOutcome::Waits }
            }
        }
    }

    /// Awaits the start of a container, which may pull an image or run a hook, or its stop, and keeps the pod's status
    /// true meanwhile; none when the pod has to stop: then it is given up.
    async fn watch_start<T>(&mut self, pod: &Arc<Pod>, start: impl Future<Output = T>) -> Option<T> {
        let mailbox = Arc::clone(&self.mailbox);
        let mut start = std::pin::pin!(start);
        let mut news = false;
        let outcome = loop {
            tokio::select! {
                biased;
                result = &mut start => break Some(result),
                () = mailbox.notify.notified() => {
                    news = true;
                    if Self::must_stop(&mailbox.snapshot()) {
                        break None;
                    }
                    if let Some(observed) = self.observe().await {
                        self.publish(pod, &observed, false, false);
                    }
                }
            }
        };
        if news {
            // The next round has to look at what came.
            mailbox.notify.notify_one();
        }
        outcome
    }

    async fn create_sandbox(&mut self, pod: &Arc<Pod>, attempt: u32) -> Result<(), ()> {
        let node = self.cx.node.load();
        if let Some(error) = &node.network_error
            && !pods::host_network(pod)
        {
            let text = format!("network is not ready: {error}");
            self.cx.events.pod(pod, "", EventType::Warning, "NetworkNotReady", &text);
            return Err(());
        }
        if let Err(error) = start::folders(&self.cx, pod).await {
            let text = format!("error making pod data directories: {error}");
            self.cx.events.pod(pod, "", EventType::Warning, "Failed", &text);
            return Err(());
        }
        let (cx, for_cgroup) = (Arc::clone(&self.cx), Arc::clone(pod));
        let made = tokio::task::spawn_blocking(move || cx.cgroups.ensure_pod(&for_cgroup)).await;
        if let Ok(Err(error)) = made {
            let text = format!(
                "unable to ensure pod container exists: failed to create container for {} : {error}",
                self.cx.cgroups.pod_parent(pod)
            );
            self.cx.events.pod(pod, "", EventType::Warning, "FailedCreatePodContainer", &text);
            return Err(());
        }
        if self.allocate_devices(pod).await.is_none() {
            return Ok(());
        }
        // Volumes come first: a pod whose volumes are missing has no sandbox.
        if self.mount(pod, &Observed::default()).await?.is_none() {
            return Ok(());
        }
        let cx = Arc::clone(&self.cx);
        match self.watch_start(pod, cx.claims.prepare(pod)).await {
            None => return Ok(()),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let text = format!("Failed to prepare dynamic resources: {error}");
                self.cx.events.pod(pod, "", EventType::Warning, "FailedPrepareDynamicResources", &text);
                return Err(());
            }
        }
        for (reason, text) in super::dns::warnings(pod, &self.cx.settings, &start::host_resolver(&self.cx).await) {
            if reason == "MissingClusterDNS" {
                self.cx.events.node(EventType::Warning, reason, super::dns::MISSING);
            }
            self.cx.events.pod(pod, "", EventType::Warning, reason, &text);
        }
        let made = start::sandbox(&self.cx, pod, attempt).await;
        metrics::pod_start(pod, made.is_err());
        match made {
            Ok(_) => Ok(()),
            Err(error) => {
                let text = format!("Failed to create pod sandbox: {error}");
                self.cx.events.pod(pod, "", EventType::Warning, "FailedCreatePodSandBox", &text);
                Err(())
            }
        }
    }

    /// Gets the pod its devices, processors and memory; none when it has to stop: also because there are not enough, for which it fails.
    async fn allocate_devices(&mut self, pod: &Arc<Pod>) -> Option<()> {
        let cx = Arc::clone(&self.cx);
        let providers: [&dyn HintProvider; 3] = [cx.devices.as_ref(), cx.cpus.as_ref(), cx.memory.as_ref()];
        let outcome = self.watch_start(pod, cx.topology.admit(pod, &providers)).await?;
        let Err(Refusal { reason, message: text }) = outcome else { return Some(()) };
        self.cx.events.pod(pod, "", EventType::Warning, reason, &text);
        self.mailbox.fail(reason, &format!("Pod was rejected: {text}"), None);
        None
    }

    /// Makes the pod's volumes ready; none when the pod has to stop meanwhile: a driver may take its time.
    async fn mount(&mut self, pod: &Arc<Pod>, observed: &Observed) -> Result<Option<Volumes>, ()> {
        let ips = observed.active_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
        let (cx, facts) = (Arc::clone(&self.cx), self.cx.facts(pod, &ips));
        let Some(result) = self.watch_start(pod, cx.volumes.mount(pod, &facts)).await else { return Ok(None) };
        if let Err(error) = &result {
            let text = error.to_string();
            if let VolumeError::Exhausted { .. } = error {
                // Another node may have room.
                metrics::refused(ATTACH_LIMIT);
                self.cx.events.pod(pod, "", EventType::Warning, ATTACH_LIMIT, &text);
                self.mailbox.fail(ATTACH_LIMIT, &text, None);
                return Err(());
            }
            self.cx.events.pod(pod, "", EventType::Warning, error.reason(), &text);
        }
        self.mounted.keep(Instant::now(), result).map(Some).ok_or(())
    }
}

/// Time until a pod is synced again when nothing happens: up to half as much more as the period, so that pods do not all
/// wake at once. Answers for upstream's `workerResyncIntervalJitterFactor`.
fn resync_interval(period: Duration, random: f64) -> Duration {
    period.mul_f64(1.0 + random * RESYNC_JITTER)
}

/// Returns the time at which a container ended last.
fn finished_last(status: &PodStatus, name: &str) -> Option<Timestamp> {
    let mut all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let last = all.find(|s| s.name == name)?.last_state.as_ref()?;
    Some(last.terminated.as_ref()?.finished_at.as_ref()?.0)
}

/// The spec of the container to start; ephemeral ones are brought into the ordinary form.
fn container_to_start<'a>(
    pod: &Pod,
    name: &str,
    kind: ContainerKind,
    observed: &'a Observed,
) -> Option<(Container, Option<&'a super::observed::Container>)> {
    if kind != ContainerKind::Ephemeral {
        return kill::spec_of(pod, name).cloned().map(|c| (c, None));
    }
    let ephemeral = pod.spec.as_ref()?.ephemeral_containers.iter().flatten().find(|c| c.name == name)?;
    let mut value = serde_json::to_value(ephemeral).ok()?;
    let target = value.as_object_mut()?.remove("targetContainerName");
    let target = target.as_ref().and_then(|t| t.as_str()).and_then(|t| observed.latest(t));
    let container = part_of_tree(&value).ok()?;
    Some((container, target.filter(|t| t.state == State::Running)))
}
