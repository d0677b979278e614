//! The loops over a cloud, against one that writes down what it is asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, Service};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::faults::Fault;
use super::http::{Server, rows};
use super::manager::Manager;
use super::store::{Name, key};
use super::verbs;
use crate::cloud::{CloudError, Machine, Provider, Route};
use crate::controllers::TABLE;
use crate::engine::object;
use crate::engine::registry::Started;

/// Longer than any loop rests.
const LOOK: Duration = Duration::from_secs(15);

#[derive(Default)]
struct Cloud {
    asked: Mutex<Vec<String>>,
    routes: Mutex<Vec<Route>>,
    /// Machines that do not run.
    machines: Mutex<BTreeMap<String, Machine>>,
    refuses: Mutex<bool>,
}

impl Cloud {
    fn ask(&self, what: String) -> Result<(), CloudError> {
        self.asked.lock().push(what);
        if *self.refuses.lock() { Err(CloudError("no".into())) } else { Ok(()) }
    }

    /// Returns the calls since the last look.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }
}

fn names(nodes: &[Arc<Node>]) -> String {
    nodes.iter().map(|n| object::name(&n.metadata)).collect::<Vec<_>>().join(" ")
}

#[async_trait]
impl Provider for Cloud {
    fn name(&self) -> &str {
        "fake"
    }

    fn has_routes(&self) -> bool {
        true
    }

    fn has_load_balancers(&self) -> bool {
        true
    }

    async fn routes(&self, _: &str) -> Result<Vec<Route>, CloudError> {
        Ok(self.routes.lock().clone())
    }

    async fn create_route(&self, _: &str, hint: &str, route: &Route) -> Result<(), CloudError> {
        self.ask(format!("create {} {}", route.node, route.destination))?;
        self.routes.lock().push(Route { name: hint.into(), ..route.clone() });
        Ok(())
    }

    async fn delete_route(&self, _: &str, route: &Route) -> Result<(), CloudError> {
        self.ask(format!("delete {} {}", route.node, route.destination))?;
        self.routes.lock().retain(|r| r != route);
        Ok(())
    }

    async fn ensure_load_balancer(
        &self,
        _: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<LoadBalancerStatus, CloudError> {
        self.ask(format!("ensure {}: {}", object::name(&service.metadata), names(nodes)))?;
        Ok(serde_json::from_value(json!({"ingress": [{"ip": "192.0.2.1"}]})).expect("a status"))
    }

    async fn update_load_balancer(&self, _: &str, service: &Service, nodes: &[Arc<Node>]) -> Result<(), CloudError> {
        self.ask(format!("update {}: {}", object::name(&service.metadata), names(nodes)))
    }

    async fn delete_load_balancer(&self, _: &str, service: &Service) -> Result<(), CloudError> {
        self.ask(format!("delete {}", object::name(&service.metadata)))
    }

    async fn machine(&self, node: &Node) -> Result<Machine, CloudError> {
        let name = object::name(&node.metadata);
        self.ask(format!("machine {name}"))?;
        Ok(self.machines.lock().get(name).copied().unwrap_or(Machine::Running))
    }
}

/// A server, a cloud, and one loop between them.
struct Scene {
    server: Arc<Server>,
    cloud: Arc<Cloud>,
    _term: shared::run::Shutdown,
}

impl Scene {
    async fn new(controller: &str, given: &[Value], flags: &[&str]) -> Self {
        let (server, cloud) = (Server::new(Fault::None), Arc::new(Cloud::default()));
        let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
        let (cx, term) = Manager::context(&server, &flags, Some(cloud.clone()));
        let scene = Self { server, cloud, _term: term };
        let space = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        [space("default"), space("ns")].iter().chain(given).for_each(|object| scene.create(object));
        let controller = TABLE.iter().find(|c| c.name == controller).expect("a controller");
        assert_eq!((controller.start)(&cx).await.expect("no error"), Started::Yes);
        cx.factory().start();
        tokio::time::sleep(LOOK).await;
        scene
    }

    fn at(kind: &str, name: &str) -> (&'static proto::resources::Resource, Name) {
        let row = rows().find(|r| r.kind == kind && r.group.is_empty()).expect("a kind");
        (row, (if row.namespaced { "ns".to_owned() } else { String::new() }, name.to_owned()))
    }

    fn create(&self, object: &Value) {
        let (row, (namespace, _)) = Self::at(object["kind"].as_str().expect("a kind"), "");
        let mut store = self.server.store.lock();
        let mut made = verbs::create(&mut store, row, &namespace, object.clone()).expect("created");
        made["status"] = object["status"].clone();
        store.put(&key(row), made);
    }

    async fn patch(&self, (kind, name): (&str, &str), sub: &str, with: Value) {
        let (row, name) = Self::at(kind, name);
        let merge = "application/merge-patch+json";
        verbs::patch(&mut self.server.store.lock(), row, &name, sub, merge, with).expect("patched");
        tokio::time::sleep(LOOK).await;
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        let (row, name) = Self::at(kind, name);
        self.server.store.lock().get(&key(row), &name).cloned().unwrap_or_default()
    }

    fn events(&self) -> Vec<String> {
        let all = self.server.store.lock().list(&(String::new(), "events".into()), "");
        let mut reasons: Vec<String> =
            all.iter().map(|e| e["reason"].as_str().unwrap_or_default().to_owned()).collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }
}

fn node(name: &str, ready: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"providerID": format!("fake://{name}")}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

#[tokio::test(start_paused = true)]
async fn load_balancers_follow_services_and_nodes() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "ns"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    let scene = Scene::new("service-lb-controller", &[node("a", "True"), service], &[]).await;
    assert_eq!(scene.cloud.asked(), ["ensure s: a"]);
    let shown = scene.get("Service", "s");
    assert_eq!(shown["metadata"]["finalizers"], json!(["service.kubernetes.io/load-balancer-cleanup"]));
    assert_eq!(shown["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    scene.create(&node("b", "True"));
    tokio::time::sleep(LOOK).await;
    assert_eq!(scene.cloud.asked(), ["update s: a b"]);
    scene.patch(("Service", "s"), "", json!({"metadata": {"annotations": {"fake/internal": "true"}}})).await;
    assert_eq!(scene.cloud.asked(), ["ensure s: a b"], "annotations tell the cloud what to do");
    scene.patch(("Service", "s"), "", json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert!(scene.cloud.asked().is_empty(), "labels do not");
    let leaving = json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}});
    scene.patch(("Node", "b"), "", leaving).await;
    assert!(scene.cloud.asked().is_empty(), "a taint alone cuts no connections");
    *scene.cloud.refuses.lock() = true;
    scene.create(&node("c", "True"));
    tokio::time::sleep(LOOK).await;
    let asked = scene.cloud.asked();
    assert_eq!(asked[..2], ["update s: a c", "ensure s: a c"], "what cannot be told is made anew");
    assert!(asked[2..].iter().all(|asked| asked == "ensure s: a c"), "{asked:?}");
    *scene.cloud.refuses.lock() = false;
    tokio::time::sleep(Duration::from_mins(5)).await;
    scene.cloud.asked();
    scene.patch(("Service", "s"), "", json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!(scene.cloud.asked(), ["delete s"]);
    let shown = scene.get("Service", "s");
    assert!(shown["metadata"]["finalizers"].is_null() || shown["metadata"]["finalizers"] == json!([]), "{shown}");
    assert!(shown["status"]["loadBalancer"]["ingress"].is_null(), "{shown}");
    let told = [
        "DeletedLoadBalancer",
        "DeletingLoadBalancer",
        "EnsuredLoadBalancer",
        "EnsuringLoadBalancer",
        "SyncLoadBalancerFailed",
        "UpdateLoadBalancerFailed",
        "UpdatedLoadBalancer",
    ];
    assert_eq!(scene.events(), told);
}

#[tokio::test(start_paused = true)]
async fn nodes_are_routed_to() {
    let ranged = |name: &str, range: &str| {
        let mut node = node(name, "True");
        node["spec"]["podCIDRs"] = json!([range]);
        node
    };
    let flags = ["--allocate-node-cidrs=true", "--cluster-cidr=10.0.0.0/8"];
    let scene = Scene::new("node-route-controller", &[ranged("a", "10.0.1.0/24")], &flags).await;
    assert_eq!(scene.cloud.asked(), ["create a 10.0.1.0/24"]);
    let condition = |name: &str| {
        let node = scene.get("Node", name);
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = all.iter().find(|c| c["type"] == "NetworkUnavailable").cloned().unwrap_or_default();
        format!("{} {}", found["status"].as_str().unwrap_or_default(), found["reason"].as_str().unwrap_or_default())
    };
    assert_eq!(condition("a"), "False RouteCreated");
    *scene.cloud.refuses.lock() = true;
    scene.create(&ranged("b", "10.0.2.0/24"));
    tokio::time::sleep(LOOK).await;
    assert_eq!(condition("b"), "True NoRouteCreated");
    assert_eq!(scene.events(), ["FailedToCreateRoute"]);
    *scene.cloud.refuses.lock() = false;
    tokio::time::sleep(LOOK).await;
    assert_eq!(condition("b"), "False RouteCreated");
    scene.cloud.asked();
    let (row, name) = Scene::at("Node", "a");
    verbs::delete(&mut scene.server.store.lock(), row, &name, &json!({})).expect("deleted");
    tokio::time::sleep(LOOK).await;
    assert_eq!(scene.cloud.asked(), ["delete a 10.0.1.0/24"]);
}

#[tokio::test(start_paused = true)]
async fn nodes_go_with_their_machines() {
    let scene =
        Scene::new("cloud-node-lifecycle-controller", &[node("ready", "True"), node("lost", "Unknown")], &[]).await;
    let asked = scene.cloud.asked();
    assert!(!asked.is_empty() && asked.iter().all(|a| a == "machine lost"), "who is ready is there: {asked:?}");
    let machine = |state| scene.cloud.machines.lock().insert("lost".to_owned(), state);
    machine(Machine::Shutdown);
    tokio::time::sleep(LOOK).await;
    assert_eq!(scene.get("Node", "lost")["spec"]["taints"][0]["key"], "node.cloudprovider.kubernetes.io/shutdown");
    machine(Machine::Running);
    tokio::time::sleep(LOOK).await;
    assert!(scene.get("Node", "lost")["spec"]["taints"].is_array(), "it has not said yet that it is up");
    scene
        .patch(("Node", "lost"), "status", json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        .await;
    assert_eq!(scene.get("Node", "lost")["spec"]["taints"].as_array().map_or(0, Vec::len), 0);
    machine(Machine::Gone);
    scene
        .patch(("Node", "lost"), "status", json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}))
        .await;
    assert!(scene.get("Node", "lost").is_null());
    assert!(scene.get("Node", "ready").is_object());
    assert_eq!(scene.events(), ["DeletingNode"]);
}
