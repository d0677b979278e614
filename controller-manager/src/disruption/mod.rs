//! Keeps the status of pod disruption budgets. Answers for upstream's `pkg/controller/disruption`
//! (`DisruptionController`).
//!
//! In: budgets, pods, and the objects that say how many pods there are to be. Out: the status of budgets, and marks
//! that came to nothing taken off pods. [`plan`] counts; who evicts reads the status and nothing else of this.

pub mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use shared::client::path;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::{Scale, ScaleError, Snapshot};
use crate::engine::action::{Action, PatchKind, object_path};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::discovery::{Catalogue, discover};
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::pod::Pod;
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::{Rest, RestError};
use crate::engine::selectors::{self, Selecting as _};
use crate::engine::worker::{self, Synced};
use crate::horizontal_pod_autoscaler::selector_text;

/// A pod marked for disruption that is still there after this long was not disrupted.
const STALE: Duration = Duration::from_mins(2);

/// Of a mark that a kubelet made.
const BY_KUBELET: &str = "TerminationByKubelet";

struct Budgets {
    queue: Queue<Key>,
    /// Budgets that are looked at again when their time has come.
    recheck: Queue<Key>,
    executor: Executor,
    /// Reads; the role of the controller has only the writes.
    reads: Rest,
    budgets: Store<PodDisruptionBudget>,
    pods: Store<Pod>,
    sets: Store<ReplicaSet>,
    controllers: Store<ReplicationController>,
    deployments: Store<Deployment>,
    stateful: Store<StatefulSet>,
}

/// Wire the disruption controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (budgets, pods) = (cx.informer::<PodDisruptionBudget>(), cx.pods());
        let queue: Queue<Key> = Queue::new("disruption");
        let recheck: Queue<Key> = Queue::new("disruption_recheck");
        let stale: Queue<Key> = Queue::new("stale_pod_disruption");
        let this = Arc::new(Budgets {
            queue: queue.clone(),
            recheck: recheck.clone(),
            executor: cx.executor("disruption-controller", "controllermanager"),
            reads: cx.own_rest(),
            budgets: budgets.store(),
            pods: pods.store(),
            sets: cx.owned::<ReplicaSet>().store(),
            controllers: cx.owned::<ReplicationController>().store(),
            deployments: cx.informer::<Deployment>().store(),
            stateful: cx.informer::<StatefulSet>().store(),
        });
        owned::watch(&budgets, &queue);
        let (wake, all, look) = (queue.clone(), cx.selectors::<PodDisruptionBudget>(), stale.clone());
        let events = this.executor.events.clone();
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = event.object();
            let before = match event {
                Event::Updated { old, .. } if old.metadata.labels != pod.metadata.labels => Some(old),
                _ => None,
            };
            for pod in before.into_iter().chain([pod]) {
                let mut found = all.candidates(object::namespace(&pod.metadata), pod.metadata.labels.as_deref());
                found.retain(|b| plan::selects(b, pod));
                found.iter().for_each(|b| wake.add(Key::of(&b.metadata)));
                if let Some(text) = plan::several(pod, &found) {
                    let about = object::reference::<Pod>(&pod.metadata);
                    events.say(&about, true, "MultiplePodDisruptionBudgets", text);
                }
            }
            if marked(pod) && !matches!(event, Event::Deleted(_)) {
                look.add_after(Key::of(&pod.metadata), STALE);
            }
        });
        worker::run(cx, "disruption", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        worker::run(cx, "disruption", 1, &recheck, &this, |s, key| async move {
            s.queue.add(key);
            Ok(None)
        });
        worker::run(cx, "disruption", 1, &stale, &this, |s, key| async move { s.clear_mark(&key).await });
        Ok(Started::Yes)
    })
}

/// Reports whether the pod has the DisruptionTarget condition and is not being deleted.
fn marked(pod: &Pod) -> bool {
    let marked = pods::condition(pod, "DisruptionTarget").is_some_and(|c| c.status == "True");
    marked && !object::deleting(&pod.metadata) && !pods::finished(pod)
}

/// Kubelets take their time between the mark and the end.
fn marked_by_kubelet(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "DisruptionTarget" && c["reason"] == BY_KUBELET)
}

impl Budgets {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(budget) = self.budgets.get(&key.namespace, &key.name) else { return Ok(None) };
        let mut found = match budget.required() {
            Some(required) => selectors::candidates(&self.pods, &key.namespace, required),
            None => Vec::new(),
        };
        found.retain(|p| plan::selects(&budget, p));
        let about = object::reference::<PodDisruptionBudget>(&budget.metadata);
        if found.is_empty() {
            self.executor.events.say(&about, false, "NoPods", "No matching pods found".into());
        }
        let scales = match plan::needs_scales(&budget) {
            true => self.scales(&found).await,
            false => Ok(HashMap::new()),
        };
        let decision = plan::plan(&Snapshot { budget: Arc::clone(&budget), pods: found, scales }, clock::now());
        if let Some(why) = decision.failure {
            let text = format!("Failed to calculate the number of expected pods: {why}");
            self.executor.events.say(&about, true, "CalculateExpectedPodCountFailed", text);
        }
        if decision.unmanaged {
            let selector = selector_text(budget.spec.as_ref().and_then(|s| s.selector.as_ref()));
            let text = format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
            );
            self.executor.events.say(&about, true, "UnmanagedPods", text);
        }
        for pod in &decision.not_deleted {
            let text = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
            self.executor.events.say(&object::reference::<Pod>(&pod.metadata), true, "NotDeleted", text);
        }
        if let Some(status) = decision.status {
            match self.report(&budget, status).await {
                Ok(()) => {}
                // Gone, or evictions wrote to the same status: everything is counted anew.
                Err(e) if e.conflict() || e.not_found() => return Err(e),
                Err(e) => {
                    tracing::warn!(budget = %key, error = %e, "Failed to sync PDB");
                    if let Some(status) = plan::fail_safe(&budget, &e.to_string(), clock::now()) {
                        self.report(&budget, status).await?;
                    }
                }
            }
        }
        if let Some(after) = decision.again {
            self.recheck.add_after(key.clone(), after);
        }
        Ok(None)
    }

    async fn report(&self, budget: &PodDisruptionBudget, status: PodDisruptionBudgetStatus) -> Result<(), RestError> {
        let copy = PodDisruptionBudget { status: Some(status), ..budget.clone() };
        let Action::Update { path, body } = Action::update_status(&copy) else { return Ok(()) };
        self.executor.rest.put(&path, &body).await.map(drop)
    }

    /// The controllers of the pods and the replicas they are asked for.
    async fn scales(&self, found: &[Arc<Pod>]) -> Result<HashMap<String, Scale>, ScaleError> {
        let mut out = HashMap::new();
        let mut catalogue: Option<Catalogue> = None;
        for pod in found {
            let Some(owner) = object::controller_of(&pod.metadata) else { continue };
            if out.contains_key(&owner.uid) {
                continue;
            }
            let namespace = object::namespace(&pod.metadata);
            let mut scale = self.known_scale(namespace, owner);
            if scale.is_none() {
                let known = match catalogue.take() {
                    Some(known) => known,
                    None => discover(&self.executor.rest).await?,
                };
                scale = self.served_scale(catalogue.insert(known), namespace, owner).await?;
            }
            let name = object::name(&pod.metadata);
            let scale = scale.ok_or_else(|| ScaleError::NoController(name.to_owned()))?;
            out.insert(owner.uid.clone(), scale);
        }
        Ok(out)
    }

    /// The scale of a controller that is watched anyway.
    fn known_scale(&self, namespace: &str, owner: &OwnerReference) -> Option<Scale> {
        if let Some(set) = owned::resolve(&self.sets, namespace, owner) {
            let deployment =
                object::controller_of(&set.metadata).and_then(|r| owned::resolve(&self.deployments, namespace, r));
            return Some(match deployment {
                Some(d) => scale_of(object::uid(&d.metadata), d.spec.as_ref().and_then(|s| s.replicas)),
                None => scale_of(object::uid(&set.metadata), set.spec.as_ref().and_then(|s| s.replicas)),
            });
        }
        if let Some(rc) = owned::resolve(&self.controllers, namespace, owner) {
            return Some(scale_of(object::uid(&rc.metadata), rc.spec.as_ref().and_then(|s| s.replicas)));
        }
        let set = owned::resolve(&self.stateful, namespace, owner)?;
        Some(scale_of(object::uid(&set.metadata), set.spec.as_ref().and_then(|s| s.replicas)))
    }

    /// The scale of any other controller; none if it is not there any more.
    async fn served_scale(
        &self,
        catalogue: &Catalogue,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<Scale>, ScaleError> {
        let Some(served) = catalogue.kind(&owner.api_version, &owner.kind) else {
            let (kind, version) = (owner.kind.clone(), owner.api_version.clone());
            return Err(ScaleError::NoMatch { kind, version });
        };
        let (rest, path) = (&self.executor.rest, path::object(&served.path(Some(namespace)), &owner.name)?);
        match rest.get(&format!("{path}/scale")).await {
            Ok(v) if v["metadata"]["uid"] != owner.uid.as_str() => Ok(None),
            Ok(v) => Ok(v["spec"]["replicas"].as_i64().map(|n| scale_of(&owner.uid, i32::try_from(n).ok()))),
            Err(e) if !e.not_found() => Err(e.into()),
            Err(_) => match rest.get(&path).await {
                Ok(_) => Err(ScaleError::NoScale(served.group_resource())),
                Err(e) if e.not_found() => Ok(None),
                Err(e) => Err(e.into()),
            },
        }
    }

    async fn clear_mark(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name).filter(|p| marked(p)) else { return Ok(None) };
        let since = pods::condition(&pod, "DisruptionTarget")
            .and_then(|c| c.last_transition_time.as_ref())
            .map_or(Timestamp::UNIX_EPOCH, |t| t.0);
        let age = Duration::try_from(clock::now().duration_since(since)).unwrap_or_default();
        if age < STALE {
            return Ok(Some(STALE - age));
        }
        // Why it is marked is not held of pods.
        let live = match self.reads.get(&object_path::<Pod>(&pod.metadata)).await {
            Err(e) if e.not_found() => return Ok(None),
            other => other?,
        };
        if marked_by_kubelet(&live) {
            return Ok(None);
        }
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [
            {"type": "DisruptionTarget", "status": "False", "lastTransitionTime": object::seconds(clock::now()),
                "observedGeneration": pod.metadata.generation, "reason": null, "message": null}]}});
        self.executor.one(Action::patch_status::<Pod>(&pod.metadata, PatchKind::Strategic, patch)).await.map(|()| None)
    }
}

fn scale_of(uid: &str, replicas: Option<i32>) -> Scale {
    Scale { uid: uid.to_owned(), replicas: replicas.unwrap_or(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kubelet_marked_stays_marked() {
        for (reason, want) in [("TerminationByKubelet", true), ("EvictionByEvictionAPI", false)] {
            let pod = json!({"status": {"conditions": [
                {"type": "Ready", "status": "False"}, {"type": "DisruptionTarget", "status": "True", "reason": reason}]}});
            assert_eq!(marked_by_kubelet(&pod), want, "{reason}");
        }
        assert!(!marked_by_kubelet(&json!({})));
    }
}
