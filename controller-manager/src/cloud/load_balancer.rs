//! Keeps a load balancer in the cloud for every service that asks for one. Answers for `service-lb-controller`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, Service};
use parking_lot::Mutex;
use serde_json::json;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use super::Provider;
use crate::engine::action::{Action, PatchKind};
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::nodes;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

/// Keeps a service until its load balancer is gone.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// On nodes that no load balancer shall send to.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

/// What a service needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing, and it has nothing.
    Nothing,
    /// A load balancer.
    Ensure,
    /// To be rid of the one it has.
    Cleanup,
}

/// Decide by type, class and deletion.
#[must_use]
pub fn need(service: &Service) -> Need {
    let spec = service.spec.as_ref();
    // A class means that somebody else is in charge.
    let wants = spec.is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer") && s.load_balancer_class.is_none());
    let has = service.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
    match (wants && !object::deleting(&service.metadata), has) {
        (true, _) => Need::Ensure,
        (false, true) => Need::Cleanup,
        (false, false) => Need::Nothing,
    }
}

/// Whether a load balancer may send to a node.
#[must_use]
pub fn eligible(node: &Node) -> bool {
    let provided = node.spec.as_ref().and_then(|s| s.provider_id.as_deref()).is_some_and(|p| !p.is_empty());
    provided
        && object::label(&node.metadata, EXCLUDED).is_none()
        && !object::deleting(&node.metadata)
        && !nodes::taints(node).iter().any(|t| t.key == LEAVING)
}

/// The write that puts the finalizer on or takes it off; None when it is so already.
#[must_use]
pub fn finalizer(service: &Service, on: bool) -> Option<Action> {
    let old = service.metadata.finalizers.clone().unwrap_or_default();
    if old.iter().any(|f| f == FINALIZER) == on {
        return None;
    }
    let mut new = old;
    if on {
        new.push(FINALIZER.into());
    } else {
        new.retain(|f| f != FINALIZER);
    }
    let body = json!({"metadata": {"resourceVersion": service.metadata.resource_version, "finalizers": new}});
    Some(Action::patch_status::<Service>(&service.metadata, PatchKind::Merge, body))
}

/// The write that notes what the load balancer has come to.
#[must_use]
pub fn status(service: &Service, new: &LoadBalancerStatus) -> Option<Action> {
    let old = service.status.as_ref().and_then(|s| s.load_balancer.clone()).unwrap_or_default();
    (old != *new).then(|| {
        let body = json!({"status": {"loadBalancer": {"ingress": new.ingress}}});
        Action::patch_status::<Service>(&service.metadata, PatchKind::Merge, body)
    })
}

const NO_NODES: &str = "There are no available nodes for LoadBalancer";

/// Tells of a service: whether it is a warning, the reason, the message.
type Say<'a> = dyn Fn(bool, &'static str, &str) + Send + Sync + 'a;

/// What a load balancer was made for.
struct Made {
    service: Arc<Service>,
    /// The nodes that it sends to.
    nodes: Vec<String>,
}

/// What there is to do about a load balancer that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    /// It sends to other nodes.
    Nodes,
    /// It is another one.
    Whole,
}

impl Made {
    fn change(&self, service: &Service, nodes: &[String]) -> Change {
        let (old, new) = (&self.service, service);
        let meta = |s: &Service| (s.metadata.uid.clone(), s.metadata.annotations.clone());
        if old.spec != new.spec || meta(old) != meta(new) {
            Change::Whole
        } else if self.nodes == nodes {
            Change::Nothing
        } else {
            Change::Nodes
        }
    }
}

struct Balancers {
    executor: Executor,
    services: Store<Service>,
    nodes: Store<Node>,
    cloud: Arc<dyn Provider>,
    cluster: String,
    /// What each load balancer was last made for: status changes alone ask nothing of the cloud.
    made: Mutex<HashMap<Key, Made>>,
}

/// Wire the load balancers over a cloud.
pub(super) fn start(cx: &Context, cloud: Arc<dyn Provider>) -> Result<Started, RestError> {
    let (services, nodes) = (cx.informer::<Service>(), cx.informer::<Node>());
    let (base, most) = (Duration::from_secs(5), Duration::from_mins(5));
    let queue: Queue<Key> = Queue::with_backoff("service", base, most);
    let this = Arc::new(Balancers {
        executor: cx.executor("service-controller", "service-controller"),
        services: services.store(),
        nodes: nodes.store(),
        cloud,
        cluster: cx.settings().cloud.cluster_name.clone(),
        made: Mutex::default(),
    });
    let wake = queue.clone();
    services.add_handler(move |event: &Event<Service>| {
        if need(event.object()) != Need::Nothing {
            wake.add(Key::of(&event.object().metadata));
        }
    });
    let (wake, all) = (queue.clone(), services.store());
    nodes.add_handler(move |event: &Event<Node>| {
        let changed = match event {
            Event::Added(node) | Event::Deleted(node) => eligible(node),
            Event::Updated { old, new } => eligible(old) != eligible(new) || nodes::ready(old) != nodes::ready(new),
        };
        if changed {
            all.list().iter().filter(|s| need(s) == Need::Ensure).for_each(|s| wake.add(Key::of(&s.metadata)));
        }
    });
    let workers = cx.settings().workers.service;
    worker::run(cx, "service-lb", workers, &queue, &this, |s, key| async move { s.sync(&key).await });
    Ok(Started::Yes)
}

impl Balancers {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            self.made.lock().remove(key);
            return Ok(None);
        };
        let about = object::reference::<Service>(&service.metadata);
        let say = |warning, reason, text: &str| self.executor.events.say(&about, warning, reason, text.to_owned());
        let result = match need(&service) {
            Need::Nothing => return Ok(None),
            Need::Ensure => {
                let mut targets: Vec<Arc<Node>> = self.nodes.list().into_iter().filter(|n| eligible(n)).collect();
                targets.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
                let nodes: Vec<String> = targets.iter().map(|n| object::name(&n.metadata).to_owned()).collect();
                let change = self.made.lock().get(key).map_or(Change::Whole, |made| made.change(&service, &nodes));
                let done = match change {
                    Change::Nothing => return Ok(None),
                    Change::Nodes => return self.update(key, &service, &targets, &say).await,
                    Change::Whole => self.ensure(&service, &targets, &say).await,
                };
                if done.is_ok() {
                    self.made.lock().insert(key.clone(), Made { service: Arc::clone(&service), nodes });
                }
                done
            }
            Need::Cleanup => self.cleanup(key, &service, &say).await,
        };
        if let Err(e) = &result {
            say(true, "SyncLoadBalancerFailed", &format!("Error syncing load balancer: {e}"));
        }
        result.map(|()| None)
    }

    /// Nothing but the nodes has changed.
    async fn update(&self, key: &Key, service: &Arc<Service>, targets: &[Arc<Node>], say: &Say<'_>) -> Synced {
        let nodes: Vec<String> = targets.iter().map(|n| object::name(&n.metadata).to_owned()).collect();
        if let Err(error) = self.cloud.update_load_balancer(&self.cluster, service, targets).await {
            let (names, total) = (nodes.join(","), nodes.len());
            let text = format!(
                "Error updating load balancer with new hosts [{names}] [node names limited, total number of nodes: {total}], error: {error}"
            );
            say(true, "UpdateLoadBalancerFailed", &text);
            return Err(RestError::other(text));
        }
        if nodes.is_empty() {
            say(true, "UnAvailableLoadBalancer", NO_NODES);
        } else {
            say(false, "UpdatedLoadBalancer", "Updated load balancer with new hosts");
        }
        self.made.lock().insert(key.clone(), Made { service: Arc::clone(service), nodes });
        Ok(None)
    }

    async fn ensure(&self, service: &Service, targets: &[Arc<Node>], say: &Say<'_>) -> Result<(), RestError> {
        say(false, "EnsuringLoadBalancer", "Ensuring load balancer");
        if let Some(action) = finalizer(service, true) {
            self.executor.one(action).await?;
        }
        if targets.is_empty() {
            say(true, "UnAvailableLoadBalancer", NO_NODES);
        }
        metrics::count("service_controller_loadbalancer_sync_total", &[]);
        let new = self.cloud.ensure_load_balancer(&self.cluster, service, targets).await;
        let new = new.map_err(|e| RestError::other(format!("failed to ensure load balancer: {e}")))?;
        if let Some(action) = status(service, &new) {
            self.executor.one(action).await?;
        }
        say(false, "EnsuredLoadBalancer", "Ensured load balancer");
        Ok(())
    }

    async fn cleanup(&self, key: &Key, service: &Service, say: &Say<'_>) -> Result<(), RestError> {
        say(false, "DeletingLoadBalancer", "Deleting load balancer");
        let gone = self.cloud.delete_load_balancer(&self.cluster, service).await;
        gone.map_err(|e| RestError::other(format!("failed to delete load balancer: {e}")))?;
        self.made.lock().remove(key);
        if let Some(action) = status(service, &LoadBalancerStatus::default()) {
            self.executor.one(action).await?;
        }
        let live: Option<Action> =
            finalizer(&Service { metadata: without_version(service), ..Service::clone(service) }, false);
        if let Some(action) = live {
            self.executor.one(action).await?;
        }
        say(false, "DeletedLoadBalancer", "Deleted load balancer");
        Ok(())
    }
}

/// The status was just written, so that the version is an old one.
fn without_version(service: &Service) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    let mut meta = service.metadata.clone();
    meta.resource_version = None;
    meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn service(spec: Value, finalizers: Value, deleted: bool) -> Service {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(
            json!({"metadata": {"name": "s", "namespace": "ns", "finalizers": finalizers, "deletionTimestamp": deleted},
            "spec": spec}),
        )
        .expect("service")
    }

    #[test]
    fn what_services_need() {
        let (wants, class) =
            (json!({"type": "LoadBalancer"}), json!({"type": "LoadBalancer", "loadBalancerClass": "x/y"}));
        let (has, none) = (json!([FINALIZER]), json!([]));
        for (spec, finalizers, deleted, want) in [
            (wants.clone(), none.clone(), false, Need::Ensure),
            (class, none.clone(), false, Need::Nothing),
            (json!({"type": "ClusterIP"}), none, false, Need::Nothing),
            (json!({"type": "ClusterIP"}), has.clone(), false, Need::Cleanup),
            (wants, has, true, Need::Cleanup),
        ] {
            assert_eq!(need(&service(spec.clone(), finalizers, deleted)), want, "{spec} {deleted}");
        }
    }

    #[test]
    fn writes() {
        let s = service(json!({"type": "LoadBalancer"}), json!(["other"]), false);
        let Some(Action::Patch { path, body, .. }) = finalizer(&s, true) else { panic!("no patch") };
        assert!(path.ends_with("/services/s/status"));
        assert_eq!(body["metadata"]["finalizers"], json!(["other", FINALIZER]));
        assert_eq!(finalizer(&s, false), None);
        assert_eq!(status(&s, &LoadBalancerStatus::default()), None);
        let up: LoadBalancerStatus = serde_json::from_value(json!({"ingress": [{"ip": "192.0.2.1"}]})).expect("status");
        let Some(Action::Patch { body, .. }) = status(&s, &up) else { panic!("no patch") };
        assert_eq!(body["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    }

    #[test]
    fn nodes_that_can_be_sent_to() {
        let node = |v: Value| serde_json::from_value::<Node>(v).expect("node");
        assert!(eligible(&node(json!({"spec": {"providerID": "x://1"}}))));
        assert!(!eligible(&node(json!({"spec": {}}))));
        assert!(!eligible(&node(json!({"metadata": {"labels": {EXCLUDED: ""}}, "spec": {"providerID": "x://1"}}))));
        assert!(!eligible(&node(
            json!({"spec": {"providerID": "x://1", "taints": [{"key": LEAVING, "effect": "NoSchedule"}]}})
        )));
    }
}
