//! Pods with stable names and storage.
//!
//! In: sets, their pods, claims and template revisions. Out: pods and claims made, pods updated and deleted, one after
//! the other or at once, the status, events. [`plan`] decides; [`retention`] says whose claims are; [`identity`] gives
//! names.

mod doing;
pub mod identity;
pub mod plan;
pub mod retention;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use shared::informer::Store;
use shared::workqueue::Queue;

use self::doing::Doing;
use self::plan::Snapshot;
use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::expect::Expectations;
use crate::engine::history::{self, Historied, Made};
use crate::engine::object::{self, Key};
use crate::engine::owned::{self, Paced, PodWatch};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct StatefulSets {
    executor: Executor,
    /// Whether several pods may be replaced at once.
    several_at_once: bool,
    sets: Store<StatefulSet>,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    revisions: Store<ControllerRevision>,
}

type Labels = std::collections::BTreeMap<String, String>;

fn selects(set: &StatefulSet, labels: Option<&Labels>) -> bool {
    set.spec
        .as_ref()
        .is_some_and(|s| !object::selector_is_empty(&s.selector) && object::matches_selector(&s.selector, labels))
}

fn selects_pod(set: &StatefulSet, pod: &Pod) -> bool {
    identity::ordinal(set, pod).is_some() && selects(set, pod.metadata.labels.as_deref())
}

/// Wire the StatefulSet controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (sets, pods) = (cx.informer::<StatefulSet>(), cx.pods());
        let (claims, revisions) = (cx.informer::<PersistentVolumeClaim>(), cx.owned::<ControllerRevision>());
        let queue: Queue<Key> = Queue::new("statefulset");
        let this = Arc::new(StatefulSets {
            executor: cx.executor("statefulset-controller", "statefulset-controller"),
            several_at_once: cx.gate("MaxUnavailableStatefulSet"),
            sets: sets.store(),
            pods: pods.store(),
            claims: claims.store(),
            revisions: revisions.store(),
        });
        owned::watch(&sets, &queue);
        owned::watch_revisions(&revisions, cx.selectors(), queue.clone(), |s: &StatefulSet, r: &ControllerRevision| {
            selects(s, r.metadata.labels.as_ref())
        });
        // Names are fixed, so that a stale cache cannot make a pod twice: no expectations are needed.
        let expectations = Arc::new(Expectations::default());
        PodWatch { sets: cx.selectors(), paced: Paced::new(&queue), expectations, selects: selects_pod }.listen(&pods);
        worker::run(cx, "statefulset", cx.settings().workers.statefulset, &queue, &this, |s, key| async move {
            s.sync(&key).await
        });
        Ok(Started::Yes)
    })
}

impl Historied for StatefulSet {
    fn collisions(&mut self) -> &mut Option<i32> {
        &mut self.status.get_or_insert_default().collision_count
    }
}

impl StatefulSets {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(set) = self.sets.get(&key.namespace, &key.name) else { return Ok(None) };
        let (uid, rest) = (object::uid(&set.metadata), &self.executor.rest);
        let revisions = owned::candidates(&self.revisions, &key.namespace, uid);
        let revisions =
            owned::settle(rest, &*set, |r: &ControllerRevision| selects(&set, r.metadata.labels.as_ref()), revisions)
                .await?;
        let pods = owned::candidates(&self.pods, &key.namespace, uid);
        let pods = owned::settle(rest, &*set, |p: &Pod| selects_pod(&set, p), pods).await?;
        let has_claims =
            set.spec.as_ref().and_then(|s| s.volume_claim_templates.as_ref()).is_some_and(|t| !t.is_empty());
        let claims = if has_claims { self.claims.list_namespace(&key.namespace) } else { Vec::new() };
        let several_at_once = self.several_at_once;
        let snapshot = Snapshot { set, pods, revisions: history::sorted(revisions), claims, several_at_once };
        let actions = plan::plan(&snapshot, clock::now());
        self.carry_out(&snapshot.set, actions).await
    }

    /// In order, as the plan means it: a failed write ends the round, but the status is written all the same.
    async fn carry_out(&self, set: &StatefulSet, actions: Vec<Action>) -> Synced {
        let (mut requeue, mut failure) = (None, None);
        for action in actions {
            if let Action::RequeueAfter(d) = action {
                requeue = Some(d);
                continue;
            }
            if failure.is_some() && !action.is_status() {
                continue;
            }
            let doing = Doing::of(&action);
            let done = match &action {
                Action::Create { path, body } if body["kind"] == "ControllerRevision" => {
                    match history::make(&self.executor, path, body).await? {
                        Made::There => Ok(()),
                        Made::Taken => return history::another_name(&self.executor, set).await,
                    }
                }
                _ => self.executor.one(action).await,
            };
            let Err(error) = done else { continue };
            if !error.already_exists() && !error.namespace_terminating() {
                let about = object::reference::<StatefulSet>(&set.metadata);
                for (reason, text) in doing.failed(object::name(&set.metadata), &error.to_string()) {
                    self.executor.events.say(&about, true, reason, text);
                }
            }
            failure = failure.or(Some(error));
        }
        match failure {
            // The cache will show it.
            Some(e) if e.already_exists() || e.namespace_terminating() => Ok(requeue),
            Some(e) => Err(e),
            None => Ok(requeue),
        }
    }
}
