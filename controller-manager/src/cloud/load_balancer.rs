//! Keeps a load balancer in the cloud for every service that asks for one. Answers for `service-lb-controller`.
//!
//! A service that changed in what its load balancer depends on has it made anew; when nodes come or go, the load balancers
//! that are there are told which to send to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, Service};
use parking_lot::Mutex;
use serde_json::json;
use shared::flags::parse_bool;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use super::Provider;
use crate::engine::action::{Action, PatchKind};
use crate::engine::clock;
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
/// So many nodes are named in a message.
const NAMED: usize = 20;
const SYNCS: &str = "service_controller_loadbalancer_sync_total";
const NODE_ERRORS: &str = "service_controller_nodesync_error_total";
const NODE_LATENCY: &str = "service_controller_nodesync_latency_seconds";
const HOST_LATENCY: &str = "service_controller_update_loadbalancer_host_latency_seconds";

/// Needs of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing, or it is somebody else's affair.
    Nothing,
    /// A load balancer.
    Ensure,
    /// To be rid of the one it has.
    Cleanup,
}

fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer"))
}

/// Reports whether the service is to have a load balancer of this cloud: a class means that somebody else is in charge.
fn wants(service: &Service) -> bool {
    is_balanced(service) && service.spec.as_ref().is_some_and(|s| s.load_balancer_class.is_none())
}

/// Decide by type, class and deletion.
#[must_use]
pub fn need(service: &Service) -> Need {
    let leaves = object::deleting(&service.metadata);
    let has = service.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
    if has && (leaves || !is_balanced(service)) {
        Need::Cleanup
    } else if wants(service) && !leaves {
        Need::Ensure
    } else {
        Need::Nothing
    }
}

/// Reports whether a service changed in what its load balancer depends on.
#[must_use]
pub fn changed(old: &Service, new: &Service) -> bool {
    if !wants(old) && !wants(new) {
        return false;
    }
    let (Some(a), Some(b)) = (&old.spec, &new.spec) else { return old.spec != new.spec };
    let families = |f: &Option<Vec<String>>| f.as_ref().map_or(0, Vec::len);
    wants(old) != wants(new)
        || old.metadata.uid != new.metadata.uid
        || old.metadata.annotations != new.metadata.annotations
        || a.ports != b.ports
        || a.load_balancer_source_ranges != b.load_balancer_source_ranges
        || a.session_affinity != b.session_affinity
        || a.session_affinity_config != b.session_affinity_config
        || a.load_balancer_ip != b.load_balancer_ip
        || a.external_ips != b.external_ips
        || a.external_traffic_policy != b.external_traffic_policy
        || a.health_check_node_port != b.health_check_node_port
        || families(&a.ip_families) != families(&b.ip_families)
}

/// Reports whether a node's labels let load balancers send to it.
fn included(node: &Node) -> bool {
    object::label(&node.metadata, EXCLUDED).is_none_or(|v| parse_bool(v) == Ok(false))
}

/// Reports whether a load balancer may send to a node.
#[must_use]
pub fn eligible(node: &Node) -> bool {
    included(node) && !object::deleting(&node.metadata) && !nodes::taints(node).iter().any(|t| t.key == LEAVING)
}

/// Reports whether load balancers have to be looked at because of a node. A taint alone does not cut connections.
fn concerns(event: &Event<Node>) -> bool {
    match event {
        Event::Added(_) | Event::Deleted(_) => true,
        Event::Updated { old, new } => included(old) != included(new) || provider_id(old) != provider_id(new),
    }
}

fn provider_id(node: &Node) -> &str {
    node.spec.as_ref().and_then(|s| s.provider_id.as_deref()).unwrap_or_default()
}

/// The write that puts the finalizer on or takes it off; None when it is so already.
#[must_use]
pub fn finalizer(service: &Service, on: bool) -> Option<Action> {
    if service.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER) == on {
        return None;
    }
    let key = if on { "finalizers" } else { "$deleteFromPrimitiveList/finalizers" };
    let body = json!({"metadata": {key: [FINALIZER]}});
    Some(Action::patch_status::<Service>(&service.metadata, PatchKind::Strategic, body))
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

/// The names of nodes as events show them.
fn shown(targets: &[Arc<Node>]) -> String {
    let mut names: Vec<String> = targets.iter().take(NAMED).map(|n| object::name(&n.metadata).to_owned()).collect();
    if targets.len() > NAMED {
        names.push(format!("<{} more>", targets.len() - NAMED));
    }
    format!("[{}]", names.join(" "))
}

const NO_NODES: &str = "There are no available nodes for LoadBalancer";

/// The nodes that a load balancer sends to: what the cloud calls each.
type Hosts = BTreeMap<String, String>;

/// A load balancer, as far as it is known.
struct KnownLoadBalancer {
    service: Arc<Service>,
    hosts: Hosts,
}

struct Balancers {
    executor: Executor,
    services: Store<Service>,
    nodes: Store<Node>,
    cloud: Arc<dyn Provider>,
    cluster: String,
    made: Mutex<HashMap<Key, KnownLoadBalancer>>,
    /// Load balancers that are told of nodes at a time.
    workers: usize,
}

/// Wire the load balancers over a cloud.
pub(super) fn start(cx: &Context, cloud: Arc<dyn Provider>) -> Result<Started, RestError> {
    let (services, nodes) = (cx.informer::<Service>(), cx.informer::<Node>());
    let (base, most) = (Duration::from_secs(5), Duration::from_mins(5));
    let queue: Queue<Key> = Queue::with_backoff("service", base, most);
    let node_queue: Queue<String> = Queue::with_backoff("node", base, most);
    let workers = cx.settings().workers.service;
    [SYNCS, NODE_ERRORS].iter().for_each(|name| metrics::show_zero(name, &[]));
    let this = Arc::new(Balancers {
        executor: cx.executor("service-controller", "service-controller"),
        services: services.store(),
        nodes: nodes.store(),
        cloud,
        cluster: cx.settings().cloud.cluster_name.clone(),
        made: Mutex::default(),
        workers: workers.max(1),
    });
    let wake = queue.clone();
    services.add_handler(move |event: &Event<Service>| {
        let matters = match event {
            Event::Added(service) => need(service) != Need::Nothing,
            Event::Updated { old, new } => need(new) == Need::Cleanup || changed(old, new),
            // Its finalizer held it until everything was done.
            Event::Deleted(_) => false,
        };
        if matters {
            wake.add(Key::of(&event.object().metadata));
        }
    });
    let wake = node_queue.clone();
    nodes.add_handler(move |event: &Event<Node>| {
        if concerns(event) {
            wake.add(object::name(&event.object().metadata).to_owned());
        }
    });
    worker::run(cx, "service-lb", workers, &queue, &this, |s, key| async move { s.sync(&key).await });
    let following = Arc::new((Arc::clone(&this), queue));
    worker::run(
        cx,
        "service-lb",
        1,
        &node_queue,
        &following,
        |both, _| async move { both.0.sync_nodes(&both.1).await },
    );
    Ok(Started::Yes)
}

impl Balancers {
    /// Tells of a service: whether it is a warning, the reason, the message.
    fn say(&self, service: &Service, warning: bool, reason: &'static str, text: &str) {
        let about = object::reference::<Service>(&service.metadata);
        self.executor.events.say(&about, warning, reason, text.to_owned());
    }

    fn targets(&self) -> (Vec<Arc<Node>>, Hosts) {
        let mut targets: Vec<Arc<Node>> = self.nodes.list().into_iter().filter(|n| eligible(n)).collect();
        targets.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let hosts = targets.iter().map(|n| (object::name(&n.metadata).to_owned(), provider_id(n).to_owned())).collect();
        (targets, hosts)
    }

    async fn sync(&self, key: &Key) -> Synced {
        let service = self.services.get(&key.namespace, &key.name);
        let before = self.made.lock().get(key).map(|made| Arc::clone(&made.service));
        if let Some(old) = before.filter(|old| service.as_ref().is_none_or(|s| s.metadata.uid != old.metadata.uid)) {
            self.left(key, &old).await?;
        }
        let Some(service) = service else { return Ok(None) };
        let result = match need(&service) {
            Need::Nothing => return Ok(None),
            Need::Ensure => self.ensure(key, &service).await,
            Need::Cleanup => self.cleanup(key, &service).await,
        };
        if let Err(e) = &result {
            self.say(&service, true, "SyncLoadBalancerFailed", &format!("Error syncing load balancer: {e}"));
        }
        result.map(|()| None)
    }

    /// The load balancer of a service that went without being asked.
    async fn left(&self, key: &Key, service: &Service) -> Result<(), RestError> {
        if wants(service) {
            self.say(service, false, "DeletingLoadBalancer", "Deleting load balancer");
            if let Err(e) = self.cloud.delete_load_balancer(&self.cluster, service).await {
                let text = format!("Error deleting load balancer: {e}");
                self.say(service, true, "DeleteLoadBalancerFailed", &text);
                return Err(RestError::other(e));
            }
            self.say(service, false, "DeletedLoadBalancer", "Deleted load balancer");
        }
        self.made.lock().remove(key);
        Ok(())
    }

    /// Nodes came or went.
    async fn sync_nodes(&self, again: &Queue<Key>) -> Synced {
        let started = clock::instant();
        let (targets, hosts) = self.targets();
        let behind = self.behind(&hosts);
        stream::iter(behind)
            .for_each_concurrent(self.workers, |(key, service)| {
                let targets = &targets;
                async move {
                    if !self.update(&service, targets).await {
                        metrics::count(NODE_ERRORS, &[]);
                        again.add(key);
                    }
                }
            })
            .await;
        metrics::observe(NODE_LATENCY, &[], took(started));
        Ok(None)
    }

    /// The load balancers that send to other nodes than these. From now on they count as told: one that cannot be is made
    /// anew.
    fn behind(&self, hosts: &Hosts) -> Vec<(Key, Arc<Service>)> {
        let mut made = self.made.lock();
        let behind = made.iter_mut().filter(|(_, made)| wants(&made.service) && made.hosts != *hosts);
        let told = behind.map(|(key, made)| {
            made.hosts.clone_from(hosts);
            (key.clone(), Arc::clone(&made.service))
        });
        told.collect()
    }

    /// Nothing but the nodes has changed. Whether it went well.
    async fn update(&self, service: &Service, targets: &[Arc<Node>]) -> bool {
        let started = clock::instant();
        metrics::count(SYNCS, &[]);
        let result = self.cloud.update_load_balancer(&self.cluster, service, targets).await;
        metrics::observe(HOST_LATENCY, &[], took(started));
        match &result {
            Ok(()) if targets.is_empty() => self.say(service, true, "UnAvailableLoadBalancer", NO_NODES),
            Ok(()) => self.say(service, false, "UpdatedLoadBalancer", "Updated load balancer with new hosts"),
            Err(error) => {
                let (names, total) = (shown(targets), targets.len());
                let text = format!(
                    "Error updating load balancer with new hosts {names} [node names limited, total number of nodes: {total}], error: {error}"
                );
                self.say(service, true, "UpdateLoadBalancerFailed", &text);
            }
        }
        result.is_ok()
    }

    async fn ensure(&self, key: &Key, service: &Arc<Service>) -> Result<(), RestError> {
        self.say(service, false, "EnsuringLoadBalancer", "Ensuring load balancer");
        if let Some(action) = finalizer(service, true) {
            self.executor.one(action).await?;
        }
        let (targets, hosts) = self.targets();
        if targets.is_empty() {
            self.say(service, true, "UnAvailableLoadBalancer", NO_NODES);
        }
        self.made.lock().insert(key.clone(), KnownLoadBalancer { service: Arc::clone(service), hosts });
        let new = self.cloud.ensure_load_balancer(&self.cluster, service, &targets).await;
        let new = new.map_err(|e| RestError::other(format!("failed to ensure load balancer: {e}")))?;
        self.say(service, false, "EnsuredLoadBalancer", "Ensured load balancer");
        self.note(service, &new).await
    }

    async fn cleanup(&self, key: &Key, service: &Service) -> Result<(), RestError> {
        self.say(service, false, "DeletingLoadBalancer", "Deleting load balancer");
        let gone = self.cloud.delete_load_balancer(&self.cluster, service).await;
        gone.map_err(|e| RestError::other(format!("failed to delete load balancer: {e}")))?;
        if let Some(action) = finalizer(service, false) {
            self.executor.one(action).await?;
        }
        self.say(service, false, "DeletedLoadBalancer", "Deleted load balancer");
        self.note(service, &LoadBalancerStatus::default()).await?;
        self.made.lock().remove(key);
        Ok(())
    }

    /// A service that is gone, as it may be without its finalizer, needs no status.
    async fn note(&self, service: &Service, new: &LoadBalancerStatus) -> Result<(), RestError> {
        let Some(action) = status(service, new) else { return Ok(()) };
        match self.executor.one(action).await {
            Err(e) if e.not_found() => Ok(()),
            other => other.map_err(|e| RestError::other(format!("failed to update load balancer status: {e}"))),
        }
    }
}

fn took(started: std::time::Instant) -> f64 {
    clock::instant().saturating_duration_since(started).as_secs_f64()
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
            (class.clone(), none.clone(), false, Need::Nothing),
            (json!({"type": "ClusterIP"}), none, false, Need::Nothing),
            (json!({"type": "ClusterIP"}), has.clone(), false, Need::Cleanup),
            (class.clone(), has.clone(), false, Need::Nothing),
            (class, has.clone(), true, Need::Cleanup),
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
        assert_eq!(body, json!({"metadata": {"finalizers": [FINALIZER]}}), "others stay");
        assert_eq!(finalizer(&s, false), None);
        let s = service(json!({"type": "LoadBalancer"}), json!(["other", FINALIZER]), false);
        assert_eq!(finalizer(&s, true), None);
        let Some(Action::Patch { body, .. }) = finalizer(&s, false) else { panic!("no patch") };
        assert_eq!(body, json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}));
        assert_eq!(status(&s, &LoadBalancerStatus::default()), None);
        let up: LoadBalancerStatus = serde_json::from_value(json!({"ingress": [{"ip": "192.0.2.1"}]})).expect("status");
        let Some(Action::Patch { body, .. }) = status(&s, &up) else { panic!("no patch") };
        assert_eq!(body["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    }

    #[test]
    fn what_a_load_balancer_depends_on() {
        let of = |spec: Value| {
            let mut whole = json!({"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30000}]});
            whole.as_object_mut().expect("map").extend(spec.as_object().expect("map").clone());
            service(whole, json!([]), false)
        };
        for (spec, matters) in [
            (json!({}), false),
            (json!({"selector": {"a": "b"}}), false),
            (json!({"internalTrafficPolicy": "Local"}), false),
            (json!({"ports": [{"port": 80, "nodePort": 30001}]}), true),
            (json!({"externalTrafficPolicy": "Local"}), true),
            (json!({"loadBalancerSourceRanges": ["192.0.2.0/24"]}), true),
            (json!({"ipFamilies": ["IPv4"]}), true),
            (json!({"type": "ClusterIP"}), true),
        ] {
            assert_eq!(changed(&of(json!({})), &of(spec.clone())), matters, "{spec}");
        }
        assert!(!changed(&of(json!({"type": "ClusterIP"})), &of(json!({"type": "NodePort"}))));
    }

    fn node(v: Value) -> Arc<Node> {
        Arc::new(serde_json::from_value(v).expect("node"))
    }

    fn labelled(value: &str) -> Arc<Node> {
        node(json!({"metadata": {"labels": {EXCLUDED: value}}, "spec": {"providerID": "x://1"}}))
    }

    fn leaving() -> Arc<Node> {
        node(json!({"spec": {"providerID": "x://1", "taints": [{"key": LEAVING, "effect": "NoSchedule"}]}}))
    }

    #[test]
    fn nodes_that_can_be_sent_to() {
        for (node, may) in [
            (node(json!({"spec": {"providerID": "x://1"}})), true),
            (node(json!({"spec": {}})), true),
            (node(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})), false),
            (labelled(""), false),
            (labelled("true"), false),
            (labelled("no"), false),
            (labelled("false"), true),
            (leaving(), false),
        ] {
            assert_eq!(eligible(&node), may, "{node:?}");
        }
    }

    #[test]
    fn changes_of_nodes() {
        let (there, unnamed) = (node(json!({"spec": {"providerID": "x://1"}})), node(json!({"spec": {}})));
        let updated = |old: &Arc<Node>, new: &Arc<Node>| Event::Updated { old: Arc::clone(old), new: Arc::clone(new) };
        for (event, matters) in [
            (Event::Added(Arc::clone(&unnamed)), true),
            (Event::Deleted(Arc::clone(&unnamed)), true),
            (updated(&unnamed, &there), true),
            (updated(&there, &labelled("")), true),
            (updated(&there, &labelled("false")), false),
            (updated(&there, &leaving()), false),
        ] {
            assert_eq!(concerns(&event), matters, "{event:?}");
        }
    }

    #[test]
    fn names_of_many_nodes() {
        let all: Vec<_> = (0..22).map(|n| node(json!({"metadata": {"name": format!("n{n:02}")}}))).collect();
        assert_eq!(shown(&all[..2]), "[n00 n01]");
        assert!(shown(&all).ends_with(" n19 <2 more>]"), "{}", shown(&all));
    }
}
