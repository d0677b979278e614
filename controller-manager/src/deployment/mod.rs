//! Rolls templates out through ReplicaSets. Answers for upstream's `pkg/controller/deployment`
//! (`DeploymentController`).
//!
//! In: deployments, their replica sets, and pods as far as Recreate waits for the last. Out: replica sets made, scaled
//! and deleted, the status, events. [`plan`] decides; pods are the replica sets' and are never touched here.

pub mod annotations;
pub mod plan;
pub mod rollback;
pub mod status;
pub mod strategy;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use shared::informer::{Event, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::plan::Snapshot;
use crate::engine::action::{Action, join};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::indices::BY_CONTROLLER;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct Deployments {
    executor: Executor,
    deployments: Store<Deployment>,
    sets: Store<ReplicaSet>,
    pods: Store<Pod>,
    /// Terminating pods are told in the status.
    terminating: bool,
}

fn selects(d: &Deployment, set: &ReplicaSet) -> bool {
    d.spec.as_ref().is_some_and(|s| object::selects(&s.selector, set.metadata.labels.as_ref()))
}

/// Wire the Deployment controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (deployments, sets, pods) = (cx.informer::<Deployment>(), cx.owned::<ReplicaSet>(), cx.pods());
        let queue: Queue<Key> = Queue::new("deployment");
        let this = Arc::new(Deployments {
            executor: cx.executor("deployment-controller", "deployment-controller"),
            deployments: deployments.store(),
            sets: sets.store(),
            pods: pods.store(),
            terminating: cx.gate("DeploymentReplicaSetTerminatingReplicas"),
        });
        owned::watch(&deployments, &queue);
        owned::watch_children(&sets, cx.selectors(), queue.clone(), selects);
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        pods.add_handler(move |event: &Event<Pod>| {
            // Recreate waits for the last old pod to be gone.
            if let Event::Deleted(pod) = event
                && let Some(d) = watcher.deployment_of(pod)
                && !strategy::is_rolling(&d)
            {
                wake.add(Key::of(&d.metadata));
            }
        });
        worker::run(cx, "deployment", cx.settings().workers.deployment, &queue, &this, |s, key| async move {
            s.sync(&key).await
        });
        Ok(Started::Yes)
    })
}

impl Deployments {
    fn deployment_of(&self, pod: &Pod) -> Option<Arc<Deployment>> {
        let namespace = object::namespace(&pod.metadata);
        let set = owned::resolve(&self.sets, namespace, object::controller_of(&pod.metadata)?)?;
        owned::resolve(&self.deployments, namespace, object::controller_of(&set.metadata)?)
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(deployment) = self.deployments.get(&key.namespace, &key.name) else { return Ok(None) };
        let empty = deployment.spec.as_ref().is_none_or(|s| object::selector_is_empty(&s.selector));
        let mut sets = Vec::new();
        let mut pods = Vec::new();
        if !empty {
            let candidates = owned::candidates(&self.sets, &key.namespace, object::uid(&deployment.metadata));
            sets =
                owned::settle(&self.executor.rest, &*deployment, |r: &ReplicaSet| selects(&deployment, r), candidates)
                    .await?;
            if !strategy::is_rolling(&deployment) {
                pods = sets.iter().flat_map(|s| self.pods.by_index(BY_CONTROLLER, object::uid(&s.metadata))).collect();
            }
        }
        let snapshot = Snapshot { deployment, sets, pods, terminating: self.terminating };
        let now = clock::now();
        let actions = plan::plan(&snapshot, now);
        let created = actions.iter().find_map(|a| match a {
            Action::Create { body, .. } => body["metadata"]["name"].as_str().map(str::to_owned),
            _ => None,
        });
        let outcome = self.executor.run(key, None, actions).await;
        let failure = outcome.failure.as_ref().filter(|failure| failure.reason == "FailedCreate");
        if let (Some(failure), Some(name)) = (failure, created) {
            self.creation_failed(&snapshot.deployment, &name, &failure.error, now).await?;
        }
        outcome.into()
    }

    /// A new set could not be made: its name is another set's, or the server refused it.
    async fn creation_failed(
        &self,
        d: &Deployment,
        name: &str,
        error: &RestError,
        now: Timestamp,
    ) -> Result<(), RestError> {
        if error.namespace_terminating() || error.conflict() {
            return Ok(());
        }
        let mut copy = d.clone();
        if error.already_exists() {
            let path = join(&ReplicaSet::url_path(&(), d.metadata.namespace.as_deref()), name);
            let there: ReplicaSet = from_tree(&self.executor.rest.get(&path).await?).map_err(RestError::other)?;
            let ours = object::controller_of(&there.metadata).is_some_and(|r| r.uid == object::uid(&d.metadata));
            let template = d.spec.as_ref().map(|s| &s.template);
            let same = there
                .spec
                .as_ref()
                .and_then(|s| s.template.as_ref())
                .zip(template)
                .is_some_and(|(a, b)| plan::same_template(a, b));
            if ours && same {
                // The cache has not shown it yet.
                return Ok(());
            }
            let status = copy.status.get_or_insert_default();
            status.collision_count = Some(status.collision_count.unwrap_or(0).wrapping_add(1));
            return self.executor.one(Action::update_status(&copy)).await;
        }
        let message = format!("Failed to create new replica set \"{name}\": {error}");
        if status::deadline(d).is_some() {
            let c = status::new_condition(status::PROGRESSING, "False", "ReplicaSetCreateError", message.clone(), now);
            status::set_condition(copy.status.get_or_insert_default(), c);
            if copy.status != d.status {
                self.executor.one(Action::update_status(&copy)).await?;
            }
        }
        let about = object::reference::<Deployment>(&d.metadata);
        self.executor.one(Action::warning(&about, "ReplicaSetCreateError", message)).await
    }
}
