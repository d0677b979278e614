//! Keeps volumes and claims that are in use from vanishing: a finalizer goes on, and comes off when nobody uses them.
//! Answers for upstream's `pkg/controller/volume/{pvcprotection`,pvprotection,vacprotection}.
//!
//! In: claims, volumes, pods. Out: finalizers and nothing else. That nobody uses a claim is asked of the server before
//! its finalizer comes off, for a cache may be behind.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;
use shared::informer::Cached as _;
use shared::informer::{Event, Object, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::assumed::Assumed;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::paged::Pages;
use crate::engine::pod::{Pod, Volume};
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::{JSON, Rest, RestError};
use crate::engine::worker::{self, Synced};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";

/// The write that puts a finalizer on, or takes it off when the object may go.
#[must_use]
pub fn plan<K>(object: &K, finalizer: &str, in_use: bool) -> Option<Action>
where
    K: Object + Serialize,
{
    let meta = object.meta();
    let has = meta.finalizers.iter().flatten().any(|f| f == finalizer);
    let change: fn(&mut ObjectMeta, &str) = match (object::deleting(meta), has) {
        (true, true) if !in_use => |m, f| {
            if let Some(list) = m.finalizers.as_mut() {
                list.retain(|x| x != f);
            }
        },
        (false, false) => |m, f| m.finalizers.get_or_insert_default().push(f.to_owned()),
        _ => return None,
    };
    let mut copy = object.clone();
    change(copy.meta_mut(), finalizer);
    Some(Action::update(&copy))
}

/// Reports whether a pod uses a claim: it was given a node and names the claim, even if it has ended; or the claim was
/// made for it, and the kubelet is not through with it.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let name = object::name(&claim.metadata);
    let named = |v: &Volume| v.persistent_volume_claim.as_ref().is_some_and(|c| c.claim_name == name);
    let made_for = || {
        let owner = object::controller_of(&claim.metadata);
        !shut_down(pod) && owner.is_some_and(|o| o.uid == object::uid(&pod.metadata))
    };
    !pods::node(pod).is_empty()
        && (pods::volumes(pod).any(named) || (pods::claims_of(pod).any(|c| c == name) && made_for()))
}

/// Reports whether only finalizers keep the pod.
fn shut_down(pod: &Pod) -> bool {
    object::deleting(&pod.metadata) && pod.metadata.deletion_grace_period_seconds == Some(0)
}

struct Claims {
    executor: Executor,
    /// With what was written of them, which the cache may not show yet.
    claims: Arc<Assumed<PersistentVolumeClaim>>,
    pods: Store<Pod>,
}

/// Users of the claims of one namespace, as the server has them.
#[derive(Default)]
struct LivePods {
    pods: Vec<Pod>,
    /// Pods that cannot be read: what their volumes name counts as used.
    unreadable: Vec<Value>,
}

impl LivePods {
    async fn of(rest: &Rest, namespace: &str) -> Result<Self, RestError> {
        let path = Pod::collection_path(Some(namespace));
        let (mut live, mut pages) = (Self::default(), Pages::of(rest, &path, JSON));
        while let Some(page) = pages.next::<Value>().await? {
            for item in page.items {
                match from_tree(&item) {
                    Ok(pod) => live.pods.push(pod),
                    Err(_) => live.unreadable.push(item),
                }
            }
        }
        Ok(live)
    }

    fn use_claim(&self, claim: &PersistentVolumeClaim) -> bool {
        let name = object::name(&claim.metadata);
        let names = |pod: &Value| {
            let prefix = pod["metadata"]["name"].as_str().unwrap_or_default();
            pod["spec"]["volumes"].as_array().into_iter().flatten().any(|volume| {
                let made = volume["name"].as_str().is_some_and(|volume| format!("{prefix}-{volume}") == name);
                volume["persistentVolumeClaim"]["claimName"] == name || made && volume["ephemeral"].is_object()
            })
        };
        self.pods.iter().any(|pod| uses(pod, claim)) || self.unreadable.iter().any(names)
    }
}

/// Wire the protection of claims.
pub fn start_claims(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (claims, pods) = (cx.informer::<PersistentVolumeClaim>(), cx.pods());
        let queue: Queue<Key> = Queue::new("pvcprotection");
        let this = Arc::new(Claims {
            executor: cx.executor("pvc-protection-controller", "persistentvolumeclaim-protection-controller"),
            claims: Assumed::follow(&claims),
            pods: pods.store(),
        });
        owned::watch(&claims, &queue);
        let wake = queue.clone();
        pods.add_handler(move |event: &Event<Pod>| {
            let free = |pod: &Pod| {
                for claim in pods::claims_of(pod) {
                    wake.add(Key::new(object::namespace(&pod.metadata), claim));
                }
            };
            let pod = event.object();
            let gone = matches!(event, Event::Deleted(_));
            if gone || pods::finished(pod) || pods::node(pod).is_empty() || shut_down(pod) {
                free(pod);
            }
            // One of the same name may have come before the other was seen to go.
            if let Event::Updated { old, .. } = event
                && old.metadata.uid != pod.metadata.uid
            {
                free(old);
            }
        });
        worker::run(cx, "pvc-protection", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Claims {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(None) };
        if !object::deleting(&claim.metadata) {
            return match plan(&*claim, CLAIM, false) {
                Some(action) => self.write(action).await.map(|()| None),
                None => Ok(None),
            };
        }
        if self.release(&claim).is_none() {
            return Ok(None);
        }
        // The last word before something is lost is the server's. One list serves all claims that are ready to go.
        let live = LivePods::of(&self.executor.rest, &key.namespace).await?;
        let mut going = self.claims.list_namespace(&key.namespace);
        going.retain(|c| object::deleting(&c.metadata));
        for action in going.iter().filter(|c| !live.use_claim(c)).filter_map(|c| self.release(c)) {
            self.write(action).await?;
        }
        Ok(None)
    }

    /// The write that lets a claim go which is being deleted, unless a pod of the cache uses it.
    fn release(&self, claim: &PersistentVolumeClaim) -> Option<Action> {
        let users = pods::users_of(&self.pods, object::namespace(&claim.metadata), object::name(&claim.metadata));
        let in_use = users.iter().any(|pod| uses(pod, claim));
        plan(claim, CLAIM, in_use)
    }

    async fn write(&self, action: Action) -> Result<(), RestError> {
        let Action::Update { path, body } = action else { return self.executor.one(action).await };
        match self.executor.rest.put_whole(&path, &body).await {
            Ok(stored) => self.claims.wrote(from_tree(&stored).map_err(RestError::other)?),
            Err(e) if e.not_found() => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

struct Volumes {
    executor: Executor,
    volumes: Store<PersistentVolume>,
}

/// Wire the protection of volumes.
pub fn start_volumes(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let volumes = cx.informer::<PersistentVolume>();
        let queue: Queue<Key> = Queue::new("pvprotection");
        let this = Arc::new(Volumes {
            executor: cx.executor("pv-protection-controller", "persistentvolume-protection-controller"),
            volumes: volumes.store(),
        });
        owned::watch(&volumes, &queue);
        worker::run(cx, "pv-protection", 1, &queue, &this, |s, key| async move {
            let Some(volume) = s.volumes.get("", &key.name) else { return Ok(None) };
            let bound = volume.status.as_ref().and_then(|x| x.phase.as_deref()) == Some("Bound");
            let Some(action) = plan(&*volume, VOLUME, bound) else { return Ok(None) };
            match s.executor.one(action).await {
                Err(e) if e.not_found() => Ok(None),
                other => other.map(|()| None),
            }
        });
        Ok(Started::Yes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finalizers_come_and_go() {
        let claim = |deleting: bool, finalizers: &[&str]| -> PersistentVolumeClaim {
            let at = deleting.then_some("2026-01-01T00:00:00Z");
            serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "deletionTimestamp": at, "finalizers": finalizers}})).expect("claim")
        };
        let after = |c: &PersistentVolumeClaim, used: bool| match plan(c, CLAIM, used) {
            Some(Action::Update { body, .. }) => Some(body["metadata"]["finalizers"].clone()),
            _ => None,
        };
        assert_eq!(after(&claim(false, &[]), false), Some(json!([CLAIM])));
        assert_eq!(after(&claim(false, &[CLAIM]), false), None);
        assert_eq!(after(&claim(true, &[CLAIM, "x"]), true), None);
        assert_eq!(after(&claim(true, &[CLAIM, "x"]), false), Some(json!(["x"])));
        assert_eq!(after(&claim(true, &["x"]), false), None);
    }

    #[test]
    fn who_uses_a_claim() {
        let pod = |node: &str, phase: &str, grace: Option<i64>| -> Pod {
            let going = grace.map(|_| "2026-01-01T00:00:00Z");
            serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u", "deletionTimestamp": going, "deletionGracePeriodSeconds": grace},
                "spec": {"nodeName": node, "containers": [], "volumes": [
                    {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}}]}, "status": {"phase": phase}}))
            .expect("pod")
        };
        let claim = |name: &str, owner: &str| -> PersistentVolumeClaim {
            let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
            serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": owner}})).expect("claim")
        };
        for (why, pod, claim, want) in [
            ("named", pod("n", "Running", None), claim("c", "x"), true),
            ("its end is not enough", pod("n", "Succeeded", None), claim("c", "x"), true),
            ("nor is its deletion", pod("n", "Failed", Some(0)), claim("c", "x"), true),
            ("not scheduled yet", pod("", "Pending", None), claim("c", "x"), false),
            ("another", pod("n", "Running", None), claim("d", "x"), false),
            ("made for it", pod("n", "Running", None), claim("p-e", "u"), true),
            ("made for one before it", pod("n", "Running", None), claim("p-e", "old"), false),
            ("being stopped", pod("n", "Running", Some(30)), claim("p-e", "u"), true),
            ("stopped", pod("n", "Failed", Some(0)), claim("p-e", "u"), false),
        ] {
            assert_eq!(uses(&pod, &claim), want, "{why}");
        }
    }
}
