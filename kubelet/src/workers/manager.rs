//! The pod map: merges the sources, starts and informs workers, remembers mirror pods.
//! Answers for upstream's `pkg/kubelet/pod` manager, `HandlePodAdditions`, `HandlePodUpdates`, `HandlePodRemoves` and
//! `retryPendingResizes`.

use super::admission::{self, Measure, Refusal};
use super::app_armor;
use super::context::WorkerContext;
use super::mailbox::{Lifecycle, Mailbox};
use super::preemption;
use super::resize;
use super::restart_all;
use super::worker::{RETRY, Worker};
use crate::events::EventType;
use crate::metrics::resizes::{self, RetryTrigger};
use crate::pods;
use crate::reasons;
use crate::source_set::{Source, SourceSet};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use shared::run::contained_async;
use shared::types::is_pod_terminal;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longest pause before a worker that panicked is started again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// A worker that lived so long begins with the shortest pause again.
const PANIC_FREE: Duration = Duration::from_secs(10 * 60);

/// A resize that is not allocated.
pub(super) struct PendingResize {
    /// The pod as its source has it.
    pub(super) pod: Arc<Pod>,
    /// Time at which it began to wait.
    pub(super) since: Instant,
}

#[derive(Default)]
pub(super) struct PodWorkers {
    pub(super) workers: HashMap<String, Arc<Mailbox>>,
    /// Pods that ask for other resources than they have, as their source has them.
    pub(super) desired: HashMap<String, PendingResize>,
    statics: HashMap<Source, HashMap<String, Arc<Pod>>>,
    /// Pods that wait until one of the same name is gone, by full name: new versions of static pods, and pods that come back.
    queued: HashMap<String, Arc<Pod>>,
    /// Mirror pods by full name.
    mirrors: HashMap<String, Arc<Pod>>,
    statuses: HashMap<String, PodStatus>,
}

impl PodWorkers {
    /// The pods that have resources, as they are allocated, but one.
    pub(super) fn active(&self, except: Option<&str>) -> Vec<Arc<Pod>> {
        self.workers
            .iter()
            .filter(|(uid, _)| {
                let phase = self.statuses.get(*uid).and_then(|status| status.phase.as_deref());
                !matches!(phase, Some("Succeeded" | "Failed")) && except != Some(uid.as_str())
            })
            .map(|(_, mailbox)| mailbox.pod())
            .filter(|other| !is_pod_terminal(other))
            .collect()
    }
}

/// All pods of this node.
pub struct Manager {
    cx: Arc<WorkerContext>,
    pub(super) inner: Mutex<PodWorkers>,
    tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    /// Wakes the mirror pod task.
    pub mirror_changed: Notify,
    /// Wakes those who wait for pods to end.
    ended: Notify,
    /// The kernel holds containers to AppArmor profiles.
    app_armor: bool,
}

impl Manager {
    /// An empty map.
    pub fn new(cx: Arc<WorkerContext>, tasks: TaskTracker, shutdown: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            cx,
            inner: Mutex::default(),
            tasks,
            shutdown,
            mirror_changed: Notify::new(),
            ended: Notify::new(),
            app_armor: app_armor::is_enabled(Path::new("/")),
        })
    }

    /// The doors that workers use.
    pub fn context(&self) -> &Arc<WorkerContext> {
        &self.cx
    }

    /// A pod of the API server appeared or changed.
    pub fn upsert(self: &Arc<Self>, pod: Arc<Pod>) {
        if pods::is_mirror(&pod) {
            let full_name = pods::full_name(&pod);
            let uid = pod.metadata.uid.clone();
            let before = self.inner.lock().mirrors.insert(full_name, Arc::clone(&pod));
            if before.is_none_or(|before| before.metadata.uid != uid)
                && let Some(uid) = self.static_uid(&pod)
            {
                // It tells what was before this kubelet.
                self.poke(&uid);
            }
            self.mirror_changed.notify_one();
            return;
        }
        self.give(pod);
    }

    /// A pod of the API server is gone.
    pub fn delete(self: &Arc<Self>, pod: &Pod) {
        if pods::is_mirror(pod) {
            let mut inner = self.inner.lock();
            let full_name = pods::full_name(pod);
            if inner.mirrors.get(&full_name).is_some_and(|m| m.metadata.uid == pod.metadata.uid) {
                inner.mirrors.remove(&full_name);
            }
            self.mirror_changed.notify_one();
            return;
        }
        let mut inner = self.inner.lock();
        inner.queued.retain(|_, queued| pods::uid(queued) != pods::uid(pod));
        if let Some(mailbox) = inner.workers.get(pods::uid(pod)) {
            mailbox.remove();
        }
    }

    /// Pods of a source, but for those whose name one before them has. Upstream's `filterInvalidPods`.
    fn unlike_in_name(&self, set: SourceSet) -> Vec<Pod> {
        let mut names = HashSet::new();
        let source = if set.source == Source::File { "file" } else { "http" };
        let (first, again): (Vec<Pod>, Vec<Pod>) =
            set.pods.into_iter().partition(|pod| names.insert(pods::full_name(pod)));
        for pod in again {
            let (about, name) = (pods::describe(&pod), pods::name(&pod));
            let text =
                format!("Error validating pod {about} from {source} due to duplicate pod name {name:?}, ignoring");
            self.cx.events.pod(&pod, "", EventType::Warning, "FailedValidation", &text);
        }
        first
    }

    /// The whole current set of a source of static pods.
    pub fn set_static(self: &Arc<Self>, set: SourceSet) {
        let source = set.source;
        let new: HashMap<String, Arc<Pod>> =
            self.unlike_in_name(set).into_iter().map(|p| (pods::uid(&p).to_owned(), Arc::new(p))).collect();
        let (gone, come): (Vec<String>, Vec<Arc<Pod>>) = {
            let mut inner = self.inner.lock();
            let old = inner.statics.insert(source, new.clone()).unwrap_or_default();
            let gone = old.keys().filter(|uid| !new.contains_key(*uid)).cloned().collect();
            let come = new.iter().filter(|(uid, _)| !old.contains_key(*uid)).map(|(_, p)| Arc::clone(p)).collect();
            (gone, come)
        };
        for uid in gone {
            let mut inner = self.inner.lock();
            inner.queued.retain(|_, pod| pods::uid(pod) != uid);
            if let Some(mailbox) = inner.workers.get(&uid) {
                mailbox.remove();
            }
        }
        for pod in come {
            let mut inner = self.inner.lock();
            let full_name = pods::full_name(&pod);
            let busy = inner.workers.values().any(|m| {
                let other = m.pod();
                pods::is_static(&other) && pods::full_name(&other) == full_name && pods::uid(&other) != pods::uid(&pod)
            });
            if busy {
                inner.queued.insert(full_name, pod);
            } else {
                drop(inner);
                self.give(pod);
            }
        }
        self.mirror_changed.notify_one();
    }

    fn give(self: &Arc<Self>, pod: Arc<Pod>) {
        let uid = pods::uid(&pod).to_owned();
        let mut inner = self.inner.lock();
        if let Some(mailbox) = inner.workers.get(&uid) {
            if mailbox.is_removed() {
                // It was taken away and comes back before its containers have ended.
                inner.queued.insert(pods::full_name(&pod), pod);
            } else {
                let before = inner.desired.get(&uid).map_or_else(|| mailbox.pod(), |pending| Arc::clone(&pending.pod));
                for [resource, requirement, operation] in resize::changes(&before, &pod) {
                    resizes::requested(resource, requirement, operation);
                }
                self.renew(&mut inner, pod, RetryTrigger::PodUpdated);
            }
            return;
        }
        if self.shutdown.is_cancelled() {
            return;
        }
        let new = is_new(&pod);
        // A pod that an earlier kubelet took has what is recorded or what its status says, whatever it asks for meanwhile.
        let held = match self.cx.records.allocated(&uid) {
            Some(record) => resize::as_recorded(&pod, &record),
            None if new => Arc::clone(&pod),
            None => resize::as_reported(&pod),
        };
        let admitted = if new { self.admit(&held, &inner) } else { Ok(Vec::new()) };
        let is_resized = !new || resize::differs(&pod, &held);
        let mailbox = Arc::new(Mailbox::new(restart_all::honoured(held, &self.cx.settings.gates)));
        if admitted.is_ok() {
            self.cx.records.admitted(&uid, &mailbox.pod());
        }
        if let Err((reason, message)) = &admitted {
            let cause = message.strip_prefix("Pod was rejected: ").unwrap_or(message);
            self.cx.events.pod(&mailbox.pod(), "", EventType::Warning, reason, cause);
            crate::metrics::refused(reason);
            mailbox.reject(reason, message);
        }
        inner.workers.insert(uid.clone(), Arc::clone(&mailbox));
        if is_resized && admitted.is_ok() {
            self.renew(&mut inner, pod, RetryTrigger::PodUpdated);
        }
        self.retry_resizes(&mut inner, RetryTrigger::PodsAdded);
        drop(inner);
        let (manager, cx, shutdown) = (Arc::clone(self), Arc::clone(&self.cx), self.shutdown.clone());
        let victims = admitted.unwrap_or_default();
        self.tasks.spawn(async move {
            manager.until_preempted(&victims).await;
            let about = pods::describe(&mailbox.pod());
            let work = || Worker::new(Arc::clone(&cx), Arc::clone(&mailbox)).run(shutdown.clone());
            until_done(&about, &shutdown, work).await;
            manager.ended(&uid);
        });
    }

    /// Admits a pod, which may have to wait for others that go for it, or refuses what this node cannot take besides those
    /// that it has.
    fn admit(&self, pod: &Pod, inner: &PodWorkers) -> Result<Vec<Arc<Pod>>, Refusal> {
        let node = self.cx.node.load();
        let others = inner.active(None);
        let measure = Measure {
            node: node.object.as_deref(),
            allocatable: &node.facts.allocatable,
            others: &others,
            pressure: node.pressure,
            sysctls: &self.cx.settings.allowed_unsafe_sysctls,
            tolerations_compare: self.cx.settings.gates.enabled(shared::placement::COMPARES),
            going_down: node.going_down,
            app_armor: self.app_armor,
            declared_features: self.cx.settings.declared_features.as_deref(),
        };
        if let Some(refusal) = admission::refuse(pod, &measure) {
            return Err(refusal);
        }
        let shortages = admission::shortages(pod, &measure);
        if let Some(refusal) = admission::refuse_features(pod, &measure).filter(|_| shortages.is_empty()) {
            return Err(refusal);
        }
        let Some(first) = shortages.first() else { return Ok(Vec::new()) };
        if !pods::is_critical(pod) {
            return Err(first.refusal());
        }
        match preemption::victims(pod, &others, &shortages) {
            Ok(victims) => {
                self.preempt(pod, &victims, &first.resource, inner);
                Ok(victims)
            }
            Err(error) => {
                let text = format!("Unexpected error while attempting to recover from admission failure: {error}");
                Err(("UnexpectedAdmissionError".to_owned(), format!("Pod was rejected: {text}")))
            }
        }
    }

    /// Ends pods so that a critical one fits.
    fn preempt(&self, pod: &Pod, victims: &[Arc<Pod>], resource: &str, inner: &PodWorkers) {
        let names: Vec<String> = victims.iter().map(|victim| pods::describe(victim)).collect();
        tracing::info!(pod = %pods::describe(pod), victims = names.join(", "), "Attempting to evict pods in order to free up resources");
        for victim in victims {
            self.cx.events.pod(victim, "", EventType::Warning, reasons::PREEMPTED, preemption::MESSAGE);
            if let Some(mailbox) = inner.workers.get(pods::uid(victim)) {
                mailbox.fail(reasons::PREEMPTED, preemption::MESSAGE, None);
            }
            crate::metrics::preempted(resource);
        }
    }

    /// Waits until the pods that go for another have given back what they had, as long as each has to end.
    async fn until_preempted(&self, victims: &[Arc<Pod>]) {
        let waiting = preemption::wait(victims, |victim| async move { self.until_ended(&[victim]).await });
        let late = tokio::select! {
            () = self.shutdown.cancelled() => return,
            late = waiting => late,
        };
        for pod in late {
            let (reason, message) = preemption::EXCEEDED;
            self.cx.events.pod(&pod, "", EventType::Warning, reason, message);
            tracing::error!(pod = %pods::describe(&pod), err = "timeout waiting to kill pod", "Failed to evict pod");
        }
    }

    fn ended(self: &Arc<Self>, uid: &str) {
        if self.shutdown.is_cancelled() {
            return;
        }
        let next = {
            let mut inner = self.inner.lock();
            inner.statuses.remove(uid);
            inner.desired.remove(uid);
            self.cx.records.forget(uid);
            let mailbox = inner.workers.remove(uid);
            self.retry_resizes(&mut inner, RetryTrigger::PodsRemoved);
            mailbox.and_then(|m| inner.queued.remove(&pods::full_name(&m.pod())))
        };
        if let Some(pod) = next {
            if pods::uid(&pod) == uid {
                crate::metrics::restarted(pods::is_static(&pod));
            }
            self.give(pod);
        }
        self.mirror_changed.notify_one();
        self.ended.notify_waiters();
    }

    /// Pods that have not ended.
    pub fn active(&self) -> Vec<Arc<Pod>> {
        self.inner.lock().active(None)
    }

    /// Waits until these pods have ended.
    pub async fn until_ended(&self, pods: &[Arc<Pod>]) {
        loop {
            let mut changed = std::pin::pin!(self.ended.notified());
            changed.as_mut().enable();
            let active: HashSet<String> = self.active().iter().map(|pod| pods::uid(pod).to_owned()).collect();
            if !pods.iter().any(|pod| active.contains(pods::uid(pod))) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the volumes of these pods have been given back.
    pub async fn until_given_back(&self, pods: &[Arc<Pod>]) {
        let mailboxes: Vec<Arc<Mailbox>> = {
            let inner = self.inner.lock();
            pods.iter().filter_map(|pod| inner.workers.get(pods::uid(pod)).cloned()).collect()
        };
        for mailbox in mailboxes {
            mailbox.given_back.cancelled().await;
        }
    }

    /// Something happened to a pod in the runtime. False when no worker knows the pod.
    pub fn poke(&self, uid: &str) -> bool {
        let inner = self.inner.lock();
        let mailbox = inner.workers.get(uid);
        if let Some(mailbox) = mailbox {
            mailbox.poke();
        }
        mailbox.is_some()
    }

    /// Something happened that all pods may have waited for.
    pub fn poke_all(&self) {
        self.inner.lock().workers.values().for_each(|mailbox| mailbox.poke());
    }

    /// The kubelet itself ends a pod, within `grace` seconds if given.
    pub fn fail(&self, uid: &str, reason: &str, message: &str, grace: Option<i64>) {
        if let Some(mailbox) = self.inner.lock().workers.get(uid) {
            mailbox.fail(reason, message, grace);
        }
    }

    /// Remembers a pod's newest status, for the server's answers.
    pub fn remember(&self, uid: &str, status: &PodStatus) {
        let mut inner = self.inner.lock();
        inner.statuses.insert(uid.to_owned(), status.clone());
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            inner.desired.remove(uid);
            self.retry_resizes(&mut inner, RetryTrigger::PodsRemoved);
            self.ended.notify_waiters();
        }
    }

    /// Pods as their sources have them, without mirror pods.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.inner.lock().workers.values().map(|m| m.pod()).collect()
    }

    /// Pods with their newest status.
    pub fn pods_with_status(&self) -> Vec<Pod> {
        let inner = self.inner.lock();
        let mut all: Vec<Pod> = inner
            .workers
            .iter()
            .map(|(uid, mailbox)| {
                let mut pod = Pod::clone(&mailbox.pod());
                if let Some(status) = inner.statuses.get(uid) {
                    pod.status = Some(status.clone());
                }
                pod
            })
            .collect();
        all.sort_by(|a, b| (pods::namespace(a), pods::name(a)).cmp(&(pods::namespace(b), pods::name(b))));
        all
    }

    /// The pod with this name, its newest status included; by uid when given (a mirror pod's uid counts as well).
    pub fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Pod> {
        self.pods_with_status()
            .into_iter()
            .filter(|p| pods::namespace(p) == namespace && pods::name(p) == name)
            .find(|p| uid.is_none_or(|uid| pods::uid(p) == uid || self.mirror(p).is_some_and(|m| pods::uid(&m) == uid)))
    }

    /// Numbers of pods by the stage of their worker, by whether their source has them still, and by whether they are static.
    pub fn lifecycles(&self) -> BTreeMap<(Lifecycle, bool, bool), usize> {
        let mut found = BTreeMap::new();
        for mailbox in self.inner.lock().workers.values() {
            let key = (mailbox.lifecycle(), !mailbox.is_removed(), pods::is_static(&mailbox.pod()));
            *found.entry(key).or_default() += 1;
        }
        found
    }

    /// Uids that workers own.
    pub fn uids(&self) -> HashSet<String> {
        self.inner.lock().workers.keys().cloned().collect()
    }

    /// Uids of pods that have ended and are known yet. Answers for upstream's `ShouldPodContentBeRemoved`.
    pub fn ended_uids(&self) -> HashSet<String> {
        let inner = self.inner.lock();
        let phase = |status: &PodStatus| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        inner.statuses.iter().filter(|(_, status)| phase(status)).map(|(uid, _)| uid.clone()).collect()
    }

    /// The mirror pod of a static pod.
    pub fn mirror(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.inner.lock().mirrors.get(&pods::full_name(pod)).cloned()
    }

    /// The uid of the static pod that a mirror pod stands for.
    pub fn static_uid(&self, mirror: &Pod) -> Option<String> {
        let full_name = pods::full_name(mirror);
        let inner = self.inner.lock();
        let found = inner.workers.iter().find(|(_, mailbox)| {
            let pod = mailbox.pod();
            pods::is_static(&pod) && pods::full_name(&pod) == full_name
        });
        found.map(|(uid, _)| uid.clone())
    }

    /// Static pods that shall run, and all mirror pods.
    pub fn mirrors(&self) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
        let inner = self.inner.lock();
        let statics = inner
            .statics
            .values()
            .flat_map(|s| s.values())
            .filter(|p| inner.workers.contains_key(pods::uid(p)))
            .cloned()
            .collect();
        (statics, inner.mirrors.values().cloned().collect())
    }
}

/// Runs a pod's work to its end. Work that panics is that of this pod alone: it begins anew after a pause, as if the kubelet
/// had been restarted, and the pause doubles while it keeps panicking.
async fn until_done<F: Future<Output = ()>>(about: &str, shutdown: &CancellationToken, work: impl Fn() -> F) {
    let mut pause = RETRY.0;
    loop {
        let began = tokio::time::Instant::now();
        let Err(panic) = contained_async(work()).await else { return };
        if began.elapsed() > PANIC_FREE {
            pause = RETRY.0;
        }
        tracing::error!(pod = about, %panic, retry_in = ?pause, "The worker of a pod panicked and is started again");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Not yet run anywhere: a pod that already runs here stays, whatever has changed.
pub(crate) fn is_new(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let begun =
        status.is_some_and(|status| status.container_statuses.is_some() || status.init_container_statuses.is_some());
    !begun && !is_pod_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_panics_is_started_again_after_longer_and_longer_pauses() {
        let (tries, began) = (AtomicU64::new(0), tokio::time::Instant::now());
        let work = || async {
            let tried = tries.fetch_add(1, Ordering::Relaxed);
            assert!(tried >= 3, "a pod that cannot be digested");
        };
        until_done("p_ns(uid)", &CancellationToken::new(), work).await;
        assert_eq!((tries.into_inner(), began.elapsed().as_secs()), (4, 1 + 2 + 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_panicked_does_not_hold_up_the_end() {
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        until_done("p_ns(uid)", &shutdown, || async { panic!("always") }).await;
    }
}
