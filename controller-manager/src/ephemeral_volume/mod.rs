//! Makes the claims of pods' ephemeral volumes. They belong to their pod and go with it. Answers for upstream's
//! `pkg/controller/volume/ephemeral`.
//!
//! In: pods and claims. Out: the claims that pods' volumes describe, owned by the pod. A claim of that name that is
//! somebody else's is never taken.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::informer::{Event, Store};
use shared::types::ephemeral_claim;
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::pod::{Pod, Volume};
use crate::engine::pods;
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
            if matches!(event, Event::Added(_)) && ephemeral(pod).next().is_some() {
                wake.add(Key::of(&pod.metadata));
            }
        });
        let (wake, all) = (queue.clone(), pods.store());
        claims.add_handler(move |event: &Event<PersistentVolumeClaim>| {
            // Also one that was somebody else's, and in the way.
            let Event::Deleted(claim) = event else { return };
            for pod in pods::users_of(&all, object::namespace(&claim.metadata), object::name(&claim.metadata)) {
                if ephemeral(&pod).any(|v| claim_name(&pod, v) == object::name(&claim.metadata)) {
                    wake.add(Key::of(&pod.metadata));
                }
            }
        });
        let workers = cx.settings().workers.ephemeral_volume;
        worker::run(cx, "ephemeral-volume", workers, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

fn ephemeral(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pods::volumes(pod).filter(|v| v.ephemeral.is_some())
}

fn claim_name(pod: &Pod, volume: &Volume) -> String {
    ephemeral_claim(object::name(&pod.metadata), &volume.name)
}

/// Errors of making the claim of a volume, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    Foreign { claim: Key, pod: Key },
    #[error("create PVC {name}: {source}")]
    Create { name: String, source: RestError },
}

/// The claim of one volume, if it has still to be made; why it cannot be, if its name is taken.
fn missing(
    pod: &Pod,
    volume: &Volume,
    there: Option<&PersistentVolumeClaim>,
) -> Result<Option<PersistentVolumeClaim>, ClaimError> {
    let owner = object::controller_ref::<Pod>(&pod.metadata);
    if let Some(claim) = there {
        let ours = object::controller_of(&claim.metadata).is_some_and(|r| r.uid == owner.uid);
        let (claim, pod) = (Key::of(&claim.metadata), Key::of(&pod.metadata));
        return if ours { Ok(None) } else { Err(ClaimError::Foreign { claim, pod }) };
    }
    let template = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref());
    Ok(template.map(|template| {
        let meta = template.metadata.clone().unwrap_or_default();
        PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(claim_name(pod, volume)),
                namespace: pod.metadata.namespace.as_deref().map(str::to_owned),
                labels: meta.labels,
                annotations: meta.annotations,
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(template.spec.clone()),
            status: None,
        }
    }))
}

impl Ephemeral {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(None) };
        if object::deleting(&pod.metadata) {
            return Ok(None);
        }
        for volume in ephemeral(&pod) {
            if let Err(why) = self.make(&pod, volume).await {
                let text = format!("ephemeral volume {}: {why}", volume.name);
                self.executor.events.say(&object::reference::<Pod>(&pod.metadata), true, "FailedBinding", text.clone());
                return Err(RestError::other(format!("pod {key}, {text}")));
            }
        }
        Ok(None)
    }

    async fn make(&self, pod: &Pod, volume: &Volume) -> Result<(), ClaimError> {
        let name = claim_name(pod, volume);
        let there = self.claims.get(object::namespace(&pod.metadata), &name);
        let Some(claim) = missing(pod, volume, there.as_deref())? else { return Ok(()) };
        metrics::count("ephemeral_volume_controller_create_total", &[]);
        self.executor.one(Action::create(&claim)).await.map_err(|e| {
            metrics::count("ephemeral_volume_controller_create_failures_total", &[]);
            ClaimError::Create { name, source: e }
        })
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
        let volumes: Vec<&Volume> = ephemeral(&pod).collect();
        let [scratch] = volumes.as_slice() else { panic!("{volumes:?}") };
        let made = missing(&pod, scratch, None).expect("free").expect("claim");
        let json = serde_json::to_value(&made).expect("json");
        assert_eq!(json["metadata"]["name"], "p-scratch");
        assert_eq!(json["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(json["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(missing(&pod, scratch, Some(&made)).expect("ours"), None);
        let foreign: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "p-scratch", "namespace": "ns"}})).expect("claim");
        assert_eq!(
            missing(&pod, scratch, Some(&foreign)).expect_err("foreign").to_string(),
            "PVC ns/p-scratch was not created for pod ns/p (pod is not owner)"
        );
    }
}
