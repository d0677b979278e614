//! State that all tasks of the scheduler share, and the event handlers that feed it. Answers for upstream's
//! `pkg/scheduler/eventhandlers.go` (`addAllEventHandlers`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use shared::informer::{Event, Informer, Object};
use tokio::sync::{Notify, oneshot};

use super::failure::{Nomination, Reporter};
use super::stores::{Informers, Stores};
use crate::framework::api::Api;
use crate::framework::{ClusterEvent, Delta, ExternalChange, Failure, Listers as _, QueuedPod, Status};
use crate::metrics;
use crate::model::{Cache, NodeBase, PodInfo};
use crate::queue::{Profiles, SchedulingQueue};

/// Finds a pod by namespace and name.
pub(super) type Lookup = Box<dyn Fn(&str, &str) -> Option<Arc<PodInfo>> + Send + Sync>;

/// See the module. Locks are taken one at a time and never held across an await.
pub(super) struct Core {
    pub(super) cache: Mutex<Cache>,
    pub(super) queue: Mutex<SchedulingQueue>,
    /// Somebody may be popped.
    pub(super) wake: Notify,
    pub(super) profiles: Arc<Profiles>,
    pub(super) stores: Arc<Stores>,
    /// The pod as the informer has it, by namespace and name.
    pub(super) pods: Lookup,
    pub(super) api: Arc<dyn Api>,
    /// Pods that wait for permission, and how to tell them.
    waiting: Mutex<HashMap<Arc<str>, oneshot::Sender<Status>>>,
}

impl Core {
    pub(super) fn new(
        profiles: Arc<Profiles>,
        queue: SchedulingQueue,
        stores: Arc<Stores>,
        pods: Lookup,
        api: Arc<dyn Api>,
    ) -> Self {
        Self {
            cache: Mutex::new(Cache::default()),
            queue: Mutex::new(queue),
            wake: Notify::new(),
            profiles,
            stores,
            pods,
            api,
            waiting: Mutex::new(HashMap::new()),
        }
    }

    /// Something happened that may help waiting pods.
    pub(super) fn happened(&self, event: &ClusterEvent) {
        metrics::handled(event.label(), || self.on_queue(|q, now| q.happened(event, now)));
    }

    /// Changes the queue and wakes the scheduling loop when that made a pod ready.
    pub(super) fn on_queue(&self, change: impl FnOnce(&mut SchedulingQueue, Instant) -> bool) {
        if change(&mut self.queue.lock(), Instant::now()) {
            self.wake.notify_one();
        }
    }

    /// Makes a pod wait for permission.
    pub(super) fn wait(&self, uid: &Arc<str>) -> oneshot::Receiver<Status> {
        let (tell, told) = oneshot::channel();
        self.waiting.lock().insert(Arc::clone(uid), tell);
        told
    }

    /// Ends a pod's wait; `false` when it does not wait.
    pub(super) fn answer(&self, uid: &str, status: Status) -> bool {
        self.waiting.lock().remove(uid).is_some_and(|tell| tell.send(status).is_ok())
    }

    /// Gives the room of an assumed pod back.
    pub(super) fn give_back(&self, uid: &Arc<str>) {
        let mut cache = self.cache.lock();
        if cache.is_assumed(uid) {
            cache.forget(uid);
        }
    }

    /// Ends an attempt that panicked as one that failed.
    pub(super) fn broken(&self, reporter: &Reporter, queued: QueuedPod, panic: &str) {
        match self.profiles.get(&queued.pod.scheduler_name) {
            Some(profile) => {
                let status = Status::error(format!("observed a panic: {panic}"));
                reporter.failed(profile, queued, Failure::Broken(status), Nomination::Revoke);
            }
            None => self.queue.lock().done(&queued.pod.uid),
        }
    }

    fn ours(&self, pod: &PodInfo) -> bool {
        self.profiles.contains_key(&pod.scheduler_name)
    }

    /// A pod is new, or has changed from `before`.
    pub(super) fn pod_seen(&self, before: Option<&Arc<PodInfo>>, new: &Arc<PodInfo>) {
        let (before, new) = (before.cloned(), Arc::clone(new));
        self.stores.gangs().seen(&new);
        if new.node_name.is_some() {
            let mut cache = self.cache.lock();
            // An assumed pod is news to nobody: the scheduler has counted it since it placed it.
            let old = cache.pod(&new.uid).filter(|_| !cache.is_assumed(&new.uid)).cloned();
            cache.add_pod(Arc::clone(&new));
            drop(cache);
            self.on_queue(|q, now| {
                q.delete(&new.uid);
                let event = ClusterEvent::AssignedPod { old, new: Some(new) };
                q.happened(&event, now)
            });
        } else if self.ours(&new) {
            let is_assumed = self.cache.lock().is_assumed(&new.uid);
            if is_assumed {
                if new.terminating && before.is_some_and(|before| !before.terminating) {
                    self.assumed_pod_leaves(&new.uid);
                }
                return;
            }
            let completes = (before.is_none() && new.group.is_some()).then(|| Arc::clone(&new));
            self.on_queue(|q, now| q.update(before, new, now));
            // Others may have waited for one more of their group.
            if let Some(new) = completes {
                self.happened(&ClusterEvent::WaitingPod(new));
            }
        }
    }

    /// Gives the room of an assumed pod back as soon as it is being deleted: until its binding fails may be long. Answers
    /// for `handleAssumedPodDeletion`.
    fn assumed_pod_leaves(&self, uid: &Arc<str>) {
        let assumed = self.cache.lock().pod(uid).cloned();
        if !self.answer(uid, Status::unschedulable("pod was deleted")) {
            self.give_back(uid);
        }
        self.happened(&ClusterEvent::AssignedPod { old: assumed, new: None });
    }

    pub(super) fn pod_gone(&self, pod: &Arc<PodInfo>) {
        let gone = Arc::clone(pod);
        self.stores.gangs().gone(pod);
        if pod.node_name.is_none() {
            self.answer(&pod.uid, Status::unschedulable("pod was deleted"));
            // It may have been assumed, and have ended before anybody saw it bound.
            let assumed = self.cache.lock().remove_pod(&pod.uid);
            if let Some(removed) = assumed {
                self.queue.lock().delete(&pod.uid);
                self.happened(&ClusterEvent::AssignedPod { old: Some(removed), new: None });
                return;
            }
            let promised = self.queue.lock().nominated().node_of(&pod.uid).is_some();
            self.on_queue(|q, now| {
                q.delete(&pod.uid);
                promised && q.happened(&ClusterEvent::AssignedPod { old: Some(gone), new: None }, now)
            });
        } else {
            let removed = self.cache.lock().remove_pod(&pod.uid);
            self.happened(&ClusterEvent::AssignedPod { old: Some(removed.unwrap_or(gone)), new: None });
        }
    }

    pub(super) fn node_seen(&self, base: impl Into<Arc<NodeBase>>) {
        let base: Arc<NodeBase> = base.into();
        let mut cache = self.cache.lock();
        let old = cache.node(&base.name).map(|n| Arc::clone(&n.base));
        let Some(new) = cache.set_node(base).map(|n| Arc::clone(&n.base)) else { return };
        drop(cache);
        self.happened(&ClusterEvent::Node { old, new });
    }

    pub(super) fn node_gone(&self, name: &str) {
        self.cache.lock().remove_node(name);
        self.happened(&ClusterEvent::NodeGone);
    }

    fn follow<K: Object>(self: &Arc<Self>, informer: &Informer<K>)
    where
        ExternalChange: From<Delta<K>>,
    {
        let core = Arc::clone(self);
        informer.add_handler(move |event| {
            let (old, new) = match event {
                Event::Added(new) => (None, Some(Arc::clone(new))),
                Event::Updated { old, new } => (Some(Arc::clone(old)), Some(Arc::clone(new))),
                Event::Deleted(old) => (Some(Arc::clone(old)), None),
            };
            core.happened(&ClusterEvent::Object(Delta { old, new }.into()));
        });
    }

    /// Counts changes of objects that answers were derived from.
    fn count<K: Object>(
        self: &Arc<Self>,
        informer: &Informer<K>,
        version: fn(&Stores) -> &AtomicU64,
        same: impl Fn(&K, &K) -> bool + Send + Sync + 'static,
    ) {
        let core = Arc::clone(self);
        informer.add_handler(move |event| {
            if !matches!(event, Event::Updated { old, new } if same(old, new)) {
                version(&core.stores).fetch_add(1, Ordering::AcqRel);
            }
        });
    }

    /// Lets the informers feed the cache and the queue.
    pub(super) fn listen(self: &Arc<Self>, informers: &Informers) {
        let core = Arc::clone(self);
        informers.nodes.add_handler(move |event| match event {
            Event::Added(node) | Event::Updated { new: node, .. } => core.node_seen(Arc::clone(&node.base)),
            Event::Deleted(node) => core.node_gone(&node.base.name),
        });
        let core = Arc::clone(self);
        informers.pods.add_handler(move |event| match event {
            Event::Added(pod) => core.pod_seen(None, pod),
            Event::Updated { old, new } if old.uid == new.uid => core.pod_seen(Some(old), new),
            Event::Updated { old, new } => {
                core.pod_gone(old);
                core.pod_seen(None, new);
            }
            Event::Deleted(pod) => core.pod_gone(pod),
        });
        self.count(&informers.namespaces, |s| &s.version, |a, b| a.metadata.labels == b.metadata.labels);
        let selector = |s: &Service| s.spec.as_ref().and_then(|s| s.selector.clone());
        self.count(&informers.services, |s| &s.version, move |a, b| selector(a) == selector(b));
        self.count(&informers.controllers, |s| &s.version, |a, b| a.spec == b.spec);
        self.count(&informers.replica_sets, |s| &s.version, |a, b| a.spec == b.spec);
        self.count(&informers.stateful_sets, |s| &s.version, |a, b| a.spec == b.spec);
        self.count(&informers.budgets, |s| &s.budgets_version, |_, _| false);
        self.follow(&informers.volumes);
        self.follow(&informers.claims);
        self.follow(&informers.classes);
        self.follow(&informers.csi_nodes);
        self.follow(&informers.csi_drivers);
        self.follow(&informers.namespaces);
        self.follow(&informers.capacities);
        self.follow(&informers.attachments);
        self.follow(&informers.device_classes);
        self.follow(&informers.resource_claims);
        self.follow(&informers.slices);
        if let Some(rules) = &informers.rules {
            self.follow(rules);
        }
        if let Some(workloads) = &informers.workloads {
            self.follow(workloads);
        }
    }
}
