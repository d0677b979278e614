//! Makes the claims of pods' ephemeral volumes. They belong to their pod and go with it.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct Ephemeral {
    executor: Executor,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
}

/// Wire the ephemeral volume controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (pods, claims) = (cx.pods(), cx.informer::<PersistentVolumeClaim>());
        let queue: Queue<Key> = Queue::new("ephemeral_volume");
        let this = Arc::new(Ephemeral {
            executor: cx.executor("ephemeral-volume-controller", "ephemeral_volume"),
            pods: pods.store(),
            claims: claims.store(),
        });
        let wake = queue.clone();
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = event.object();
            if matches!(event, Event::Added(_)) && has_ephemeral(pod) {
                wake.add(Key::of(&pod.metadata));
            }
        });
        let wake = queue.clone();
        claims.add_handler(move |event: &Event<PersistentVolumeClaim>| {
            if let Event::Deleted(claim) = event
                && let Some(owner) = object::controller_of(&claim.metadata).filter(|o| o.kind == "Pod")
            {
                wake.add(Key::new(object::namespace(&claim.metadata), owner.name.clone()));
            }
        });
        let workers = cx.settings().workers.ephemeral_volume;
        worker::run(cx, "ephemeral-volume", workers, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

fn has_ephemeral(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|v| v.ephemeral.is_some())
}

/// The claims still to be made, and a complaint for each name that is taken by somebody else's.
#[must_use]
pub fn plan(pod: &Pod, there: &dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>) -> (Vec<Action>, Option<String>) {
    let mut actions = Vec::new();
    if object::deleting(&pod.metadata) {
        return (actions, None);
    }
    let owner = object::controller_ref::<Pod>(&pod.metadata);
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let Some(template) = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) else { continue };
        let name = format!("{}-{}", object::name(&pod.metadata), volume.name);
        if let Some(claim) = there(&name) {
            let ours = object::controller_of(&claim.metadata).is_some_and(|r| r.uid == owner.uid);
            if !ours {
                let key = Key::of(&claim.metadata);
                return (
                    actions,
                    Some(format!("PVC {key} was not created for pod {} (pod is not owner)", Key::of(&pod.metadata))),
                );
            }
            continue;
        }
        let meta = template.metadata.clone().unwrap_or_default();
        actions.push(Action::create(&PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: pod.metadata.namespace.as_deref().map(str::to_owned),
                labels: meta.labels,
                annotations: meta.annotations,
                owner_references: Some(vec![owner.clone()]),
                ..ObjectMeta::default()
            },
            spec: Some(template.spec.clone()),
            status: None,
        }));
    }
    (actions, None)
}

impl Ephemeral {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(None) };
        let (actions, complaint) = plan(&pod, &|name| self.claims.get(&key.namespace, name));
        let about = object::reference::<Pod>(&pod.metadata);
        for action in actions {
            metrics::count("ephemeral_volume_controller_create_total", &[]);
            match self.executor.one(action).await {
                Err(e) if e.already_exists() || e.namespace_terminating() => {}
                Err(e) => {
                    metrics::count("ephemeral_volume_controller_create_failures_total", &[]);
                    let text = format!("ephemeral volume controller: {e}");
                    self.executor.events.say(&about, true, "EphemeralVolume", text);
                    return Err(e);
                }
                Ok(()) => {}
            }
        }
        match complaint {
            Some(why) => Err(RestError::other(why)),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_of_a_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [], "volumes": [
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}}},
            {"name": "other", "emptyDir": {}}]}})).expect("pod");
        let (actions, complaint) = plan(&pod, &|_| None);
        let [Action::Create { body, .. }] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(body["metadata"]["name"], "p-scratch");
        assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(complaint, None);
        let made: Arc<PersistentVolumeClaim> = Arc::new(serde_json::from_value(body.clone()).expect("claim"));
        assert!(plan(&pod, &|_| Some(Arc::clone(&made))).0.is_empty());
        let foreign: Arc<PersistentVolumeClaim> = Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "p-scratch", "namespace": "ns"}})).expect("claim"),
        );
        assert_eq!(
            plan(&pod, &|_| Some(Arc::clone(&foreign))).1.as_deref(),
            Some("PVC ns/p-scratch was not created for pod ns/p (pod is not owner)")
        );
    }
}
