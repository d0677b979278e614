//! Pods with stable names and storage. Answers for upstream's `pkg/controller/statefulset`.
//!
//! In: sets, their pods, claims and template revisions. Out: pods and claims made, pods updated and deleted, one after
//! the other or at once, the status, events. [`plan`] decides; [`retention`] says whose claims are; [`identity`] gives
//! names.

pub mod doing;
pub mod identity;
pub mod plan;
pub mod retention;

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use shared::informer::Store;
use shared::status::field::aggregate;
use shared::workqueue::Queue;

use self::doing::{Step, Task, Verb, name_of};
use self::plan::{Plan, Snapshot};
use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::expect::Expectations;
use crate::engine::history::{self, Historied, MadeRevision};
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::owned::{self, Paced, PodWatch};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct StatefulSets {
    executor: Executor,
    /// Several pods may be replaced at once.
    several_at_once: bool,
    sets: Store<StatefulSet>,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    revisions: Store<ControllerRevision>,
}

type Labels = std::collections::BTreeMap<String, String>;

/// Reasons why a round ends early.
enum RoundEnd {
    /// Nothing went wrong: it is looked at again when the time has come, or when a cache shows more.
    Wait,
    Failed(RestError),
}

impl From<RestError> for RoundEnd {
    fn from(e: RestError) -> Self {
        if e.namespace_terminating() { Self::Wait } else { Self::Failed(e) }
    }
}

fn selects(set: &StatefulSet, labels: Option<&Labels>) -> bool {
    set.spec.as_ref().is_some_and(|s| object::selects(&s.selector, labels))
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
        owned::watch_revisions(&revisions, cx.selectors(), queue.clone(), |s: &StatefulSet, r: &ControllerRevision| {
            selects(s, r.metadata.labels.as_ref())
        });
        // Names are fixed, so that a stale cache cannot make a pod twice: no expectations are needed.
        let expectations = Arc::new(Expectations::default());
        let all = sets.store();
        let paced = Paced::of_many(&queue, move |key| all.get(&key.namespace, &key.name).map_or(0, |set| size(&set)));
        owned::watch_paced(&sets, &paced);
        PodWatch { sets: cx.selectors(), paced, expectations, selects: selects_pod }.listen(&pods);
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

/// Pods by which a set's pace is set: one whose pods come one after another is looked at for each of them in time.
fn size(set: &StatefulSet) -> i32 {
    let parallel = set.spec.as_ref().filter(|spec| spec.pod_management_policy.as_deref() == Some("Parallel"));
    parallel.map_or(0, |spec| spec.replicas.unwrap_or(1))
}

impl StatefulSets {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(set) = self.sets.get(&key.namespace, &key.name) else { return Ok(None) };
        let (uid, rest) = (object::uid(&set.metadata), &self.executor.rest);
        let revisions = owned::candidates(&self.revisions, &key.namespace, uid);
        let revisions =
            owned::settle(rest, &*set, |r: &ControllerRevision| selects(&set, r.metadata.labels.as_ref()), revisions)
                .await?;
        let pods = owned::unordered_candidates(&self.pods, &key.namespace, uid);
        let pods = owned::settle(rest, &*set, |p: &Pod| selects_pod(&set, p), pods).await?;
        let (claims, several_at_once) = (self.claims.clone(), self.several_at_once);
        let snapshot = Snapshot { set, pods, revisions: history::sorted(revisions), claims, several_at_once };
        let plan = plan::plan(&snapshot, clock::now());
        self.show(&snapshot.set, &plan);
        self.carry_out(&snapshot.set, plan).await
    }

    /// Records how many pods may be down and how many are, where several may be replaced at once.
    fn show(&self, set: &StatefulSet, plan: &Plan) {
        let Some((limit, down)) = plan.down else { return };
        let policy = set.spec.as_ref().and_then(|s| s.pod_management_policy.as_deref()).unwrap_or_default();
        let labels = [object::namespace(&set.metadata), object::name(&set.metadata), policy];
        if let Some(limit) = limit {
            metrics::set("statefulset_controller_statefulset_max_unavailable", &labels, limit.into());
        }
        metrics::set("statefulset_controller_statefulset_unavailable_replicas", &labels, down.into());
    }

    /// In order, as the plan means it: after a failure no other batch of pods begins, but the rest is written all the same.
    async fn carry_out(&self, set: &StatefulSet, plan: Plan) -> Synced {
        for action in plan.revisions {
            match action {
                Action::Create { path, body } => match history::make(&self.executor, &path, &body).await? {
                    MadeRevision::There => {}
                    MadeRevision::Taken => return history::another_name(&self.executor, set).await,
                },
                other => self.executor.one(other).await?,
            }
        }
        let mut stop = None;
        let mut left = plan.tasks.into_iter().peekable();
        while let Some(batch) = left.peek().map(|t| t.batch).filter(|_| stop.is_none()) {
            let now = std::iter::from_fn(|| left.next_if(|t| t.batch == batch)).map(|task| self.work(set, task));
            stop = join_all(now).await.into_iter().find_map(Result::err);
        }
        for action in plan.status.into_iter().chain(plan.bygone) {
            if let Err(error) = self.executor.one(action).await {
                stop = stop.or(Some(error.into()));
            }
        }
        match stop {
            Some(RoundEnd::Failed(e)) => Err(e),
            Some(RoundEnd::Wait) | None => Ok(plan.again),
        }
    }

    /// The steps of one pod.
    async fn work(&self, set: &StatefulSet, task: Task) -> Result<(), RoundEnd> {
        let (pod, mut written) = (task.pod.as_str(), Ok(()));
        for step in task.steps {
            match step {
                Step::Claims { verb, missing, dying } => self.make_claims(set, pod, verb, missing, dying).await?,
                Step::Owners { told, actions } => {
                    for action in actions {
                        if let Err((error, text)) = self.own(action).await {
                            told.then(|| self.tell(set, Verb::Update, pod, Some(&text)));
                            return Err(error.into());
                        }
                    }
                }
                Step::Write(action) => {
                    written = self.executor.one(action).await;
                    // Somebody was faster; that is no news.
                    if written.as_ref().is_err_and(RestError::already_exists) {
                        return Err(RoundEnd::Wait);
                    }
                }
                Step::Tell(verb) => match &written {
                    Err(e) if e.namespace_terminating() => {}
                    Err(e) => self.tell(set, verb, pod, Some(&e.to_string())),
                    Ok(()) => self.tell(set, verb, pod, None),
                },
            }
        }
        written.map_err(RoundEnd::from)
    }

    /// Makes claims, each whatever becomes of the others.
    async fn make_claims(
        &self,
        set: &StatefulSet,
        pod: &str,
        verb: Option<Verb>,
        missing: Vec<PersistentVolumeClaim>,
        dying: Vec<String>,
    ) -> Result<(), RoundEnd> {
        let (mut errors, mut stop) = (Vec::new(), RoundEnd::Wait);
        for claim in missing {
            let made = self.executor.one(Action::create(&claim)).await;
            let error = made.as_ref().err().map(ToString::to_string);
            if !made.as_ref().is_err_and(|e| e.already_exists() || e.namespace_terminating()) {
                let said = doing::of_claim(name_of(&claim), pod, object::name(&set.metadata), error.as_deref());
                self.say(set, said, error.is_some());
            }
            errors.extend(error.map(|e| format!("failed to create PVC {}: {e}", name_of(&claim))));
            if let Err(e) = made {
                stop = e.into();
            }
        }
        errors.extend(dying.into_iter().map(|name| format!("pvc {name} is being deleted")));
        if errors.is_empty() {
            return Ok(());
        }
        if let Some(verb) = verb {
            self.tell(set, verb, pod, Some(&aggregate(&errors)));
        }
        Err(stop)
    }

    /// Writes the owner of a claim; what the user is told of a failure says which.
    async fn own(&self, action: Action) -> Result<(), (RestError, String)> {
        let claim = match &action {
            Action::Update { body, .. } => body["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        let done = self.executor.one(action).await;
        done.map_err(|e| (e.clone(), format!("could not update claim {claim} for delete policy ownerRefs: {e}")))
    }

    fn tell(&self, set: &StatefulSet, verb: Verb, pod: &str, error: Option<&str>) {
        self.say(set, verb.of_pod(pod, object::name(&set.metadata), error), error.is_some());
    }

    fn say(&self, set: &StatefulSet, (reason, text): (&'static str, String), warning: bool) {
        self.executor.events.say(&object::reference::<StatefulSet>(&set.metadata), warning, reason, text);
    }
}
