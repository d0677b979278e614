//! The scheduling cycle, one pod at a time, and the binding cycles that follow it side by side. Answers for upstream's
//! `ScheduleOne`, `schedulingCycle`, `bindingCycle`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use rand::Rng as _;
use serde_json::json;
use shared::events::EventKind;
use shared::flags::format_duration;
use shared::run::{TaskGroup, contained, contained_async};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::failure::{Nomination, Reporter};
use crate::framework::extender;
use crate::framework::plugin::{Permission, Rescue};
use crate::framework::{Code, Context, Cursor, CycleState, Diagnosis, Failure, Placement, Profile, QueuedPod, Status};
use crate::metrics::{self, Attempt, Point, Running};
use crate::model::{PodInfo, Snapshot};

/// Longest interval between two looks at the clock.
const TICK: Duration = Duration::from_secs(1);
/// Bindings under way at once. With more the server gets no faster, and whoever comes in between with a higher priority
/// would find the room given away. Those that wait for volumes or permission do not count.
pub(super) const BINDINGS: usize = 128;
/// In so many of a hundred cycles plugins are timed one by one, as upstream has it.
const SAMPLED: u32 = 10;
/// Victims of one pod that are evicted at a time, as upstream has it.
const EVICTIONS: usize = 16;

/// The one task that decides.
pub(super) struct Cycle {
    pub(super) core: Arc<Core>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) tasks: TaskGroup,
    pub(super) cursor: Cursor,
    pub(super) snapshot: Snapshot,
}

/// A binding on its way.
struct Binding {
    core: Arc<Core>,
    reporter: Arc<Reporter>,
    profile: Arc<Profile>,
    state: CycleState,
    queued: QueuedPod,
    /// The pod with its node.
    assumed: Arc<PodInfo>,
    node: Arc<str>,
    started: Instant,
    /// One of [`BINDINGS`], while it has to wait for nothing but the server.
    turn: Option<OwnedSemaphorePermit>,
}

/// Waiting for permission.
struct Waits {
    told: oneshot::Receiver<Status>,
    patience: Duration,
    /// The plugin that asked for it.
    plugin: &'static str,
}

impl Cycle {
    /// Schedules until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let turns = Arc::new(Semaphore::new(BINDINGS));
        let mut looked = Instant::now();
        while !stop.is_cancelled() {
            let turn = tokio::select! {
                () = stop.cancelled() => return,
                turn = Arc::clone(&turns).acquire_owned() => turn.ok(),
            };
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.tick();
            }
            let next = self.core.queue.lock().pop(Instant::now());
            if let Some(queued) = next {
                self.attempt_contained(queued, turn);
                // Bindings share these threads.
                tokio::task::yield_now().await;
                continue;
            }
            drop(turn);
            let due = self.core.queue.lock().next_due();
            let pause = due.map_or(TICK, |t| t.saturating_duration_since(Instant::now()).min(TICK));
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.core.wake.notified() => {}
                () = tokio::time::sleep(pause) => self.tick(),
            }
        }
    }

    fn tick(&self) {
        let mut queue = self.core.queue.lock();
        queue.tick(Instant::now());
        metrics::pending(queue.lengths());
        drop(queue);
        metrics::cache(self.core.cache.lock().sizes());
    }

    /// Attempts a pod. A panic is that pod's failure: it is tried again with back-off, as after any error, and what is
    /// kept from cycle to cycle is made anew.
    fn attempt_contained(&mut self, queued: QueuedPod, turn: Option<OwnedSemaphorePermit>) {
        let pod = Arc::clone(&queued.pod);
        let mut queued = Some(queued);
        let Err(panic) = contained(|| self.attempt(&mut queued, turn)) else { return };
        tracing::error!(%pod, %panic, "Observed a panic while scheduling a pod");
        (self.cursor, self.snapshot) = (Cursor::default(), Snapshot::default());
        // Without it the attempt had come to its end.
        if let Some(queued) = queued {
            self.core.give_back(&pod.uid);
            self.core.broken(&self.reporter, queued, &panic.to_string());
        }
    }

    /// Takes the pod out of `slot` when its fate is decided.
    fn attempt(&mut self, slot: &mut Option<QueuedPod>, turn: Option<OwnedSemaphorePermit>) {
        let started = Instant::now();
        let Some(pod) = slot.as_ref().map(|queued| Arc::clone(&queued.pod)) else { return };
        let Some(profile) = self.core.profiles.get(&pod.scheduler_name).cloned() else {
            self.core.queue.lock().done(&pod.uid);
            return;
        };
        if pod.terminating {
            let text = format!("skip schedule deleting pod: {pod}");
            self.reporter.event(&profile.name, &pod, EventKind::Warning, "FailedScheduling", "Scheduling", text);
            self.core.queue.lock().done(&pod.uid);
            return;
        }
        self.core.cache.lock().refresh(&mut self.snapshot);
        let nominated = self.core.queue.lock().nominated();
        let mut state = CycleState::new(rand::rng().random_range(0..100) < SAMPLED);
        let cx = Context {
            snapshot: &self.snapshot,
            listers: &*self.core.stores,
            nominated: &nominated,
            now: jiff::Timestamp::now(),
        };
        let decided = profile.schedule(cx, &mut state, &pod, &mut self.cursor, &mut rand::rng());
        metrics::algorithm(started.elapsed());
        match decided {
            Ok(placement) => {
                let assumed = Arc::new(pod.placed(placement.node.name()));
                let settled = self.settle(cx, &profile, &mut state, &placement, &assumed);
                let Some(queued) = slot.take() else { return };
                if let Err(status) = settled {
                    metrics::attempt(&profile.name, outcome(&status), started.elapsed());
                    self.reporter.failed(&profile, queued, Failure::Broken(status), Nomination::Revoke);
                    return;
                }
                let (core, reporter) = (Arc::clone(&self.core), Arc::clone(&self.reporter));
                let node = Arc::clone(placement.node.name());
                let binding = Binding { core, reporter, node, profile, state, queued, assumed, started, turn };
                self.bind(cx, &placement, binding);
            }
            Err(Failure::Unfit(mut diagnosis)) => {
                let rescue = self.rescue(cx, &profile, state, &pod, &mut diagnosis);
                // Whoever changes promises must not have to copy them for this cycle.
                drop(nominated);
                metrics::attempt(&profile.name, Attempt::Unschedulable, started.elapsed());
                self.make_room(&profile, &pod, rescue.as_ref());
                let Some(queued) = slot.take() else { return };
                self.reporter.failed(&profile, queued, Failure::Unfit(diagnosis), rescue.as_ref().into());
            }
            Err(failure) => {
                let how = if matches!(failure, Failure::NoNodes) { Attempt::Unschedulable } else { Attempt::Error };
                metrics::attempt(&profile.name, how, started.elapsed());
                let Some(queued) = slot.take() else { return };
                self.reporter.failed(&profile, queued, failure, Nomination::Revoke);
            }
        }
    }

    /// Asks Permit plugins, then binds in the background, once all of them agree.
    fn bind(&self, cx: Context<'_>, placement: &Placement, mut binding: Binding) {
        let pod = Arc::clone(&binding.queued.pod);
        let Permission { status, patience, allow, activate } =
            metrics::timed(Point::Permit, &binding.profile.name, || {
                binding.profile.permit(cx, &mut binding.state, &pod, &binding.node)
            });
        for uid in &allow {
            self.core.answer(uid, Status::SUCCESS);
        }
        for uid in &activate {
            self.core.on_queue(|q, now| q.activate_now(uid, now));
        }
        if !status.is_success() && status.code() != Code::Wait {
            binding.undo(status);
            return;
        }
        tracing::debug!(pod = %pod, node = %binding.node, evaluated = placement.evaluated, feasible = placement.feasible, "Attempting to bind pod to node");
        let waits = (status.code() == Code::Wait).then(|| Waits {
            told: self.core.wait(&pod.uid),
            patience,
            plugin: status.plugin,
        });
        let (core, reporter) = (Arc::clone(&self.core), Arc::clone(&self.reporter));
        let queued = binding.queued.clone();
        let work = binding.run(waits);
        self.tasks.spawn("binding", async move {
            let Err(panic) = contained_async(work).await else { return };
            tracing::error!(pod = %queued.pod, %panic, "Observed a panic while binding a pod");
            core.give_back(&queued.pod.uid);
            core.broken(&reporter, queued, &panic.to_string());
        });
    }

    /// Takes the room in the cache, then lets plugins take theirs.
    fn settle(
        &self,
        cx: Context<'_>,
        profile: &Profile,
        state: &mut CycleState,
        placement: &Placement,
        assumed: &Arc<PodInfo>,
    ) -> Result<(), Status> {
        if !self.core.cache.lock().assume(Arc::clone(assumed)) {
            return Err(Status::error(format!("pod {}({assumed}) is in the cache, so can't be assumed", assumed.uid)));
        }
        self.core.queue.lock().nominate(assumed, None);
        let status =
            metrics::timed(Point::Reserve, &profile.name, || profile.reserve(cx, state, assumed, &placement.node));
        if status.is_success() {
            return Ok(());
        }
        self.core.cache.lock().forget(&assumed.uid);
        Err(status)
    }

    /// Asks PostFilter plugins for a way out.
    fn rescue(
        &self,
        cx: Context<'_>,
        profile: &Profile,
        state: CycleState,
        pod: &Arc<PodInfo>,
        diagnosis: &mut Diagnosis,
    ) -> Option<Rescue> {
        if !profile.has_post_filter() {
            return None;
        }
        let (found, status) = metrics::timed(Point::PostFilter, &profile.name, || {
            profile.post_filter(cx, &state, pod, &diagnosis.rejected)
        });
        diagnosis.post_filter = status.to_string();
        self.act(profile, pod, state);
        metrics::preemption(found.as_ref().filter(|r| r.nominate.is_some()).map(|r| r.victims.len()));
        found
    }

    /// Lets PostFilter plugins carry out what they decided, in the background.
    fn act(&self, profile: &Profile, pod: &Arc<PodInfo>, state: CycleState) {
        let plugins = profile.post_filters_to_act(&state);
        if plugins.is_empty() {
            return;
        }
        let (core, pod) = (Arc::clone(&self.core), Arc::clone(pod));
        self.tasks.spawn("post-filter", async move {
            for plugin in plugins {
                plugin.act(&*core.api, &state, &pod).await;
            }
        });
    }

    /// Sends victims away, in the background.
    fn make_room(&self, profile: &Profile, pod: &Arc<PodInfo>, rescue: Option<&Rescue>) {
        let Some(rescue) = rescue else { return };
        let Some(node) = rescue.nominate.clone() else { return };
        for other in &rescue.demoted {
            self.core.queue.lock().nominate(other, None);
        }
        let (core, reporter) = (Arc::clone(&self.core), Arc::clone(&self.reporter));
        let (pod, profile, rescue) = (Arc::clone(pod), Arc::clone(&profile.name), rescue.clone());
        let held = Held::new(&core, &pod.uid);
        self.tasks.spawn("preemption", async move {
            let (begun, _running) = (Instant::now(), Running::one("preemption"));
            for other in &rescue.demoted {
                reporter.demote(other).await;
            }
            let evict = async |victim: &Arc<PodInfo>| {
                core.answer(&victim.uid, Status::unschedulable("preempted"))
                    || reporter.evict(&profile, &pod, victim, &node).await
            };
            let (last, others) = match rescue.victims.split_last() {
                Some((last, others)) => (Some(last), others),
                None => (None, &[][..]),
            };
            let evictions = others.iter().map(evict);
            let evictions = futures::stream::iter(evictions).buffer_unordered(EVICTIONS);
            let mut all = evictions.fold(true, async |all, done| all & done).await;
            // The end of the last victim is what the pod waits for. Where another one stays it would go for nothing.
            drop(held);
            if let Some(last) = last.filter(|_| all) {
                all = evict(last).await;
            }
            core.on_queue(|q, now| match all {
                true => q.preemption_is_over(&pod.uid, now),
                // Room is not made there after all: the preemptor may find it elsewhere.
                false => q.activate_now(&pod.uid, now),
            });
            metrics::evictions(all, begun.elapsed());
        });
    }
}

/// Holds a pod back from its next attempt, until dropped.
struct Held {
    core: Arc<Core>,
    uid: Arc<str>,
}

impl Held {
    fn new(core: &Arc<Core>, uid: &Arc<str>) -> Self {
        core.queue.lock().preemption_begins(uid);
        Self { core: Arc::clone(core), uid: Arc::clone(uid) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.core.queue.lock().preemption_ends(&self.uid);
    }
}

fn outcome(status: &Status) -> Attempt {
    if status.is_rejected() { Attempt::Unschedulable } else { Attempt::Error }
}

impl Binding {
    async fn run(mut self, waits: Option<Waits>) {
        let _running = Running::one("binding");
        let prepares = self.prepares();
        if waits.is_some() || prepares {
            self.turn = None;
            if self.profile.announces {
                self.announce().await;
            }
        } else if extender::binds(&self.profile.extenders, &self.assumed) {
            self.turn = None;
        }
        if let Some(Waits { told, patience, plugin }) = waits {
            let since = Instant::now();
            let status = match tokio::time::timeout(patience, told).await {
                Ok(Ok(status)) => status,
                _ => {
                    let waited = format_duration(patience);
                    let why = format!("rejected due to timeout after waiting {waited} at plugin {plugin}");
                    Status::unschedulable(why).by(plugin)
                }
            };
            self.core.answer(&self.assumed.uid, Status::SUCCESS);
            metrics::permit_wait(status.code().name(), since.elapsed());
            if !status.is_success() {
                return self.undo(status);
            }
        }
        let status = self.bind().await;
        if !status.is_success() {
            self.take_back().await;
            return self.undo(status);
        }
        self.core.queue.lock().done(&self.assumed.uid);
        let name = Arc::clone(&self.profile.name);
        metrics::attempt(&name, Attempt::Scheduled, self.started.elapsed());
        metrics::bound(self.queued.attempts, self.queued.first.map(|t| t.elapsed()).unwrap_or_default());
        let text = format!("Successfully assigned {} to {}", self.assumed, self.node);
        tracing::debug!(pod = %self.assumed, node = %self.node, "Successfully bound pod to node");
        self.reporter.event(&name, &self.assumed, EventKind::Normal, "Scheduled", "Binding", text);
        self.profile.post_bind(&self.state, &self.assumed, &self.node);
        // Notes may hold what somebody else waits for.
        self.state = CycleState::default();
    }

    async fn bind(&self) -> Status {
        let (api, pod, node) = (&*self.core.api, &*self.assumed, &*self.node);
        let begun = Instant::now();
        for (name, plugin) in self.profile.pre_binders() {
            if plugin.applies(&self.state, pod) {
                let began = Instant::now();
                let status = plugin.pre_bind(api, &self.state, pod, node).await;
                metrics::plugin_took(self.state.sampled, Point::PreBind, name, &status, began.elapsed());
                if !status.is_success() {
                    metrics::observe_point(Point::PreBind, &self.profile.name, status.code().name(), begun.elapsed());
                    return status.failed_in("PreBind", name);
                }
            }
        }
        metrics::observe_point(Point::PreBind, &self.profile.name, "Success", begun.elapsed());
        let begun = Instant::now();
        if let Some(done) = extender::bind(&self.profile.extenders, pod, node).await {
            let status = done.map_or_else(|error| Status::error(error.to_string()), |()| Status::SUCCESS);
            metrics::observe_point(Point::Bind, &self.profile.name, status.code().name(), begun.elapsed());
            return status;
        }
        if self.queued.attempts == 1 {
            metrics::binding(self.queued.queued.elapsed());
        }
        let mut status = Status::SKIP;
        for (name, plugin) in self.profile.binders() {
            let began = Instant::now();
            status = plugin.bind(api, &self.state, pod, node).await;
            metrics::plugin_took(self.state.sampled, Point::Bind, name, &status, began.elapsed());
            if status.is_skip() {
                continue;
            }
            if !status.is_success() {
                status = status.failed_in("Bind", name);
            }
            break;
        }
        metrics::observe_point(Point::Bind, &self.profile.name, status.code().name(), begun.elapsed());
        status
    }

    /// Reports whether a PreBind plugin has something to do, so that the binding takes its time.
    fn prepares(&self) -> bool {
        let begun = Instant::now();
        let any = self.profile.pre_binders().iter().any(|(_, p)| p.applies(&self.state, &self.assumed));
        let status = if any { "Success" } else { "Skip" };
        metrics::observe_point(Point::PreBindPreFlight, &self.profile.name, status, begun.elapsed());
        any
    }

    /// Tells others, a cluster autoscaler above all, where the pod is about to go.
    async fn announce(&self) {
        let promise = json!({"status": {"nominatedNodeName": &*self.node}});
        if let Err(error) = self.core.api.patch_status(&self.assumed, promise).await {
            tracing::error!(pod = %self.assumed, %error, "Failed to update the nominated node name in the binding cycle");
        }
    }

    /// Undoes what PreBind plugins did.
    async fn take_back(&self) {
        for (_, plugin) in self.profile.pre_binders() {
            if plugin.applies(&self.state, &self.assumed) {
                plugin.undo(&*self.core.api, &self.state, &self.assumed).await;
            }
        }
    }

    /// The pod does not get the node after all.
    fn undo(mut self, status: Status) {
        self.profile.unreserve(&mut self.state, &self.assumed, &self.node);
        self.core.cache.lock().forget(&self.assumed.uid);
        let freed = crate::framework::ClusterEvent::AssignedPod { old: Some(Arc::clone(&self.assumed)), new: None };
        let rejected = status.is_rejected();
        if !rejected {
            self.core.happened(&freed);
        }
        metrics::attempt(&self.profile.name, outcome(&status), self.started.elapsed());
        self.reporter.failed(&self.profile, self.queued, Failure::Broken(status), Nomination::Revoke);
        if rejected {
            // What frees the room is no reason to try this very pod again.
            self.core.on_queue(|q, now| q.happened_to_others(&freed, &self.assumed.uid, now));
        }
    }
}
