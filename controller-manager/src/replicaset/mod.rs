//! Keeps the right number of pods for ReplicaSets and ReplicationControllers. Answers for upstream's
//! `pkg/controller/replicaset`.
//!
//! In: sets, their pods, namespaces. Out: pods made and deleted, in batches, and the status. [`plan`] decides for both
//! kinds; [`kinds`] says where these differ.

pub mod kinds;
pub mod plan;

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Namespace, PodTemplateSpec, ReplicationController};
use k8s_openapi::jiff::Timestamp;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::kinds::{Set, Status, UNTOLD};
use self::plan::{Snapshot, Tallied};
use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::expect::Expectations;
use crate::engine::indices::{BY_CONTROLLER, orphans};
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::owned::{self, Paced, PodWatch};
use crate::engine::pod::{Labels, Pod};
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::tally::Tallies;
use crate::engine::worker::{self, Synced};

struct Replicas<K: Set> {
    executor: Executor,
    /// Terminating pods are reported.
    terminating: bool,
    /// Annotations make pods cheap or dear to delete.
    costs: bool,
    sets: Store<K>,
    pods: Store<Pod>,
    namespaces: Store<Namespace>,
    tallies: Arc<Tallies>,
    expectations: Arc<Expectations>,
}

/// Wire the ReplicaSet controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        wire::<ReplicaSet>(cx, "replicaset", cx.settings().workers.replicaset);
        Ok(Started::Yes)
    })
}

/// Wire the ReplicationController controller.
pub fn start_replication_controllers(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        wire::<ReplicationController>(cx, "replicationmanager", cx.settings().workers.replicationcontroller);
        Ok(Started::Yes)
    })
}

fn wire<K: Set>(cx: &Context, name: &'static str, workers: usize) {
    let (sets, pods) = (cx.owned::<K>(), cx.pods());
    let queue: Queue<Key> = Queue::new(name);
    let expectations = Arc::new(Expectations::default());
    let this = Arc::new(Replicas::<K> {
        executor: cx.executor(K::ACCOUNT, K::COMPONENT),
        terminating: cx.gate("DeploymentReplicaSetTerminatingReplicas"),
        costs: cx.gate("PodDeletionCost"),
        sets: sets.store(),
        pods: pods.store(),
        namespaces: cx.informer::<Namespace>().store(),
        tallies: Tallies::follow(&pods, K::kind(&())),
        expectations: Arc::clone(&expectations),
    });
    let all = sets.store();
    let size = move |key: &Key| all.get(&key.namespace, &key.name).map_or(0, |set| set.replicas());
    let paced = Paced::of_many(&queue, size);
    let (wake, pace, watcher) = (queue.clone(), Arc::clone(&paced), Arc::clone(&this));
    sets.add_handler(move |event: &Event<K>| {
        let set = event.object();
        let key = Key::of(set.meta());
        // While all pods go, each status that is written here would bring the next one, as fast as the server takes them.
        match event {
            Event::Updated { old, new }
                if watcher.ends(&key.namespace) && object::asks_the_same(old.meta(), new.meta()) =>
            {
                pace.wake(key);
            }
            _ => wake.add(key),
        }
    });
    PodWatch { sets: cx.selectors(), paced, expectations, selects: K::selects_pod }.listen(&pods);
    worker::run(cx, name, workers, &queue, &this, |s, key| async move { s.sync(&key).await });
}

impl<K: Set> Replicas<K> {
    /// Reports whether the namespace is terminating.
    fn ends(&self, namespace: &str) -> bool {
        self.namespaces.get("", namespace).is_some_and(|n| object::deleting(&n.metadata))
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(set) = self.sets.get(&key.namespace, &key.name) else {
            self.expectations.forget(key);
            return Ok(None);
        };
        let uid = object::uid(set.meta());
        let unmet = self.expectations.of(key, uid).unmet(clock::instant());
        let (now, template) = (clock::now(), set.template());
        let tallied = self.tallied(&set, &template, now);
        let pods = if tallied.is_some() { Vec::new() } else { self.settle(&set).await? };
        let snapshot = Snapshot {
            parent: object::reference::<K>(set.meta()),
            owner: object::controller_ref::<K>(set.meta()),
            namespace: key.namespace.clone(),
            deleting: object::deleting(set.meta()),
            replicas: set.replicas(),
            min_ready_seconds: set.min_ready_seconds(),
            template,
            related: self.related(&set, &pods),
            pods,
            tallied,
            costs: self.costs,
        };
        // Each pod that goes with its namespace would otherwise bring a try that is bound to fail.
        let actions =
            if unmet.is_none() && !self.ends(&key.namespace) { plan::plan(&snapshot, now) } else { Vec::new() };
        for ratio in plan::age_ratios(&snapshot, &actions, now) {
            metrics::observe("replicaset_controller_sorting_deletion_age_ratio", &[], ratio);
        }
        let outcome = self.executor.run(key, Some(&self.expectations), actions).await;
        self.report(&set, &snapshot, outcome.failure.as_ref().map(|f| (f.reason.to_owned(), f.error.to_string())), now)
            .await?;
        Synced::from(outcome).map(|requeue| [requeue, unmet].into_iter().flatten().min())
    }

    /// Counts of its pods, where none is to be adopted, released or chosen to go: that takes a look at all of them.
    fn tallied(&self, set: &K, template: &PodTemplateSpec, now: Timestamp) -> Option<Tallied> {
        if object::deleting(set.meta()) {
            return None;
        }
        // Before the tally is read, which has whoever is no orphan any more.
        let orphans = self.pods.by_index(BY_CONTROLLER, &orphans(object::namespace(set.meta())));
        if orphans.iter().any(|p| pods::active(p) && set.selects_pod(p)) {
            return None;
        }
        let selects = |labels: Option<&Labels>| set.selects_labels(labels);
        let tallied = self.tallies.of(object::uid(set.meta()), |groups| {
            plan::tallied(groups, selects, template, set.min_ready_seconds(), now)
        });
        tallied.filter(|t| t.counts.replicas <= set.replicas())
    }

    /// Adopts and releases; the pods that the set owns after that.
    async fn settle(&self, set: &K) -> Result<Vec<Arc<Pod>>, RestError> {
        let uid = object::uid(set.meta());
        let mut candidates = owned::unordered_candidates(&self.pods, object::namespace(set.meta()), uid);
        // What has ended or is about to is not worth adopting, nor giving up.
        candidates.retain(|p| pods::active(p) || (pods::owner_uid(p) == Some(uid) && set.selects_pod(p)));
        owned::settle(&self.executor.rest, set, |p: &Pod| set.selects_pod(p), candidates).await
    }

    /// The active pods of all sets with the same owner, when there are too many pods and crowding decides who goes.
    fn related(&self, set: &Arc<K>, own: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let active = own.iter().filter(|p| pods::active(p)).count();
        if i64::try_from(active).unwrap_or(i64::MAX) <= i64::from(set.replicas()) {
            return Vec::new();
        }
        // Of a set that nobody controls no pod is related to another.
        let Some(owner) = object::controller_of(set.meta()) else { return Vec::new() };
        let siblings = self.sets.by_index(BY_CONTROLLER, &owner.uid);
        let mut seen = HashSet::new();
        siblings
            .iter()
            .flat_map(|s| self.pods.by_index(BY_CONTROLLER, object::uid(s.meta())))
            .filter(|p| seen.insert(object::uid(&p.metadata).to_owned()))
            .collect()
    }

    async fn report(
        &self,
        set: &Arc<K>,
        s: &Snapshot,
        failure: Option<(String, String)>,
        now: Timestamp,
    ) -> Result<(), RestError> {
        let before = set.status();
        let failure = failure.filter(|f| !f.0.is_empty());
        let mut after = Status {
            counts: plan::counts(s, now),
            conditions: plan::failure_condition(before.conditions.clone(), failure.as_ref(), now),
            observed_generation: set.meta().generation,
        };
        if !self.terminating {
            after.counts.terminating = UNTOLD;
        }
        K::normalise(&mut after);
        if before == after {
            return Ok(());
        }
        self.executor.one(Action::report(&set.with_status(after))).await
    }
}
