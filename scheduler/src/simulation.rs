//! A scheduler without an API server: queue, cache and decisions as in the driver, with bindings and evictions that
//! succeed at once. For benches, replays and tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::framework::diagnosis::NO_NODES;
use crate::framework::lister::Fixed;
use crate::framework::plugin::Rescue;
use crate::framework::{ClusterEvent, Context, Cursor, CycleState, Failure, Profile, QueuedPod};
use crate::model::demand::Interner;
use crate::model::{Cache, NodeBase, PodInfo, Snapshot};
use crate::queue::{Profiles, SchedulingQueue, Timing};

/// See the module.
pub struct Simulation {
    /// Objects that plugins look up.
    pub listers: Fixed,
    /// Demands that pods share.
    pub interner: Interner,
    profiles: Arc<Profiles>,
    cache: Cache,
    queue: SchedulingQueue,
    snapshot: Snapshot,
    cursor: Cursor,
    rng: StdRng,
    /// Time by which the clock was put forward to end back-offs.
    ahead: Duration,
}

/// Result of one attempt.
#[derive(Debug)]
pub enum Attempt {
    /// The pod is on this node now.
    Bound(Arc<PodInfo>),
    /// The pod waits; with the reason, and what was done for it.
    Waits(Arc<PodInfo>, String, Rescue),
}

impl Simulation {
    /// An empty cluster with a scheduler of one profile.
    pub fn new(profile: Profile, seed: u64) -> Self {
        Self::of(vec![profile], seed)
    }

    /// An empty cluster.
    pub fn of(profiles: Vec<Profile>, seed: u64) -> Self {
        let by_name = |profile: Profile| (Arc::clone(&profile.name), Arc::new(profile));
        let profiles: Arc<Profiles> = Arc::new(profiles.into_iter().map(by_name).collect());
        Self {
            listers: Fixed::default(),
            interner: Interner::default(),
            cache: Cache::default(),
            queue: SchedulingQueue::new(Arc::clone(&profiles), Timing::default()),
            profiles,
            snapshot: Snapshot::default(),
            cursor: Cursor::default(),
            rng: StdRng::seed_from_u64(seed),
            ahead: Duration::ZERO,
        }
    }

    /// The clock.
    pub fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }

    /// A node comes or changes.
    pub fn set_node(&mut self, base: NodeBase) {
        let old = self.cache.node(&base.name).map(|n| Arc::clone(&n.base));
        if let Some(new) = self.cache.set_node(base).map(|n| Arc::clone(&n.base)) {
            let now = self.now();
            self.queue.happened(&ClusterEvent::Node { old, new }, now);
        }
    }

    /// A node goes; its pods stay where they are until they are removed.
    pub fn remove_node(&mut self, name: &str) {
        self.cache.remove_node(name);
        let now = self.now();
        self.queue.happened(&ClusterEvent::NodeGone, now);
    }

    /// A pod comes: bound, or to be placed. Pods of other schedulers are not placed.
    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        let now = self.now();
        if pod.node_name.is_some() {
            self.queue.delete(&pod.uid);
            self.cache.add_pod(Arc::clone(&pod));
            self.queue.happened(&ClusterEvent::AssignedPod { old: None, new: Some(pod) }, now);
        } else if self.profiles.contains_key(&pod.scheduler_name) {
            self.queue.add(pod, now);
        }
    }

    /// A pod goes.
    pub fn remove_pod(&mut self, uid: &str) {
        let now = self.now();
        self.queue.delete(uid);
        if let Some(old) = self.cache.remove_pod(uid) {
            self.queue.happened(&ClusterEvent::AssignedPod { old: Some(old), new: None }, now);
        }
    }

    /// Waiting pods: active, back-off, unschedulable, gated.
    pub fn waiting(&self) -> [usize; 4] {
        self.queue.lengths()
    }

    /// The cluster as of now.
    pub fn snapshot(&mut self) -> &Snapshot {
        self.cache.refresh(&mut self.snapshot);
        &self.snapshot
    }

    /// Puts the clock forward to when the next back-off ends; `false` when there is none.
    pub fn skip_backoff(&mut self) -> bool {
        let Some(due) = self.queue.next_due() else { return false };
        self.ahead += due.saturating_duration_since(self.now());
        let now = self.now();
        self.queue.tick(now);
        true
    }

    /// Tries the next pod, if one is ready.
    pub fn step(&mut self) -> Option<Attempt> {
        let now = self.now();
        let mut queued = self.queue.pop(now)?;
        let pod = Arc::clone(&queued.pod);
        let profile = Arc::clone(self.profiles.get(&pod.scheduler_name)?);
        self.cache.refresh(&mut self.snapshot);
        let nominated = self.queue.nominated();
        let mut state = CycleState::default();
        let cx = Context {
            snapshot: &self.snapshot,
            listers: &self.listers,
            nominated: &nominated,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        match profile.schedule(cx, &mut state, &pod, &mut self.cursor, &mut self.rng) {
            Ok(placement) => {
                let placed = Arc::new(pod.placed(placement.node.name()));
                let status = profile.reserve(cx, &mut state, &placed, &placement.node);
                drop(nominated);
                if !status.is_success() {
                    queued.rejectors = status.is_rejected().then_some(status.plugin).into_iter().collect();
                    return Some(self.failed(queued, status.to_string(), None));
                }
                self.cache.assume(Arc::clone(&placed));
                self.queue.nominate(&pod, None);
                self.queue.done(&pod.uid);
                self.add_pod(Arc::clone(&placed));
                Some(Attempt::Bound(placed))
            }
            Err(Failure::Unfit(mut diagnosis)) => {
                let (rescue, status) = profile.post_filter(cx, &state, &pod, &diagnosis.rejected);
                drop(nominated);
                diagnosis.post_filter = status.to_string();
                queued.rejectors = diagnosis.plugins.union(&diagnosis.pending).copied().collect();
                Some(self.failed(queued, diagnosis.to_string(), rescue))
            }
            Err(failure) => {
                drop(nominated);
                queued.rejectors = matches!(failure, Failure::NoNodes).then_some(NO_NODES).into_iter().collect();
                Some(self.failed(queued, failure.to_string(), None))
            }
        }
    }

    fn failed(&mut self, queued: QueuedPod, why: String, rescue: Option<Rescue>) -> Attempt {
        let (pod, now) = (Arc::clone(&queued.pod), self.now());
        let rescue = rescue.unwrap_or_default();
        if let Some(node) = &rescue.nominate {
            self.queue.nominate(&pod, Some(Arc::clone(node)));
        }
        rescue.demoted.iter().for_each(|other| self.queue.nominate(other, None));
        self.queue.failed(queued, now);
        for victim in &rescue.victims {
            self.remove_pod(&victim.uid);
        }
        Attempt::Waits(pod, why, rescue)
    }
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("queue", &self.queue).finish_non_exhaustive()
    }
}
