//! Requests of controllers, and how often they look at what does not concern them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::faults::Fault;
use super::http::{Server, rows};
use super::manager::Manager;
use super::store::{Name, key};
use super::verbs;

/// Time for controllers to come to rest.
pub(super) const SETTLED: Duration = Duration::from_secs(30);

/// A server with some controllers, or none yet.
pub(super) struct Scene {
    pub(super) server: Arc<Server>,
    manager: Option<Manager>,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::over(Server::new(Fault::None))
    }

    fn over(server: Arc<Server>) -> Self {
        let scene = Self { server, manager: None };
        for name in ["default", "kube-system", "ns"] {
            scene.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        }
        scene
    }

    pub(super) async fn start(&mut self, controllers: &str) {
        self.start_with(controllers, &[]).await;
    }

    async fn start_with(&mut self, controllers: &str, flags: &[&str]) {
        let mut all = vec![format!("--controllers={controllers}")];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.manager = Some(Manager::start(&self.server, &all).await);
    }

    pub(super) fn create(&self, object: &Value) -> Value {
        let (api, kind) = (object["apiVersion"].as_str().expect("a version"), object["kind"].as_str().expect("a kind"));
        let row = rows().find(|r| r.kind == kind && r.api_version() == api).expect("a served kind");
        let namespace = if row.namespaced { "ns" } else { "" };
        let mut store = self.server.store.lock();
        let mut made = verbs::create(&mut store, row, namespace, object.clone()).expect("created");
        if object["status"].is_object() {
            made["status"] = object["status"].clone();
        }
        if object["metadata"]["uid"].is_string() {
            made["metadata"]["uid"] = object["metadata"]["uid"].clone();
        }
        store.put(&key(row), made)
    }

    pub(super) fn delete(&self, plural: &str, name: &str, options: &Value) {
        let row = rows().find(|r| r.plural == plural && r.is_stored()).expect("a served resource");
        let name: Name = (if row.namespaced { "ns".to_owned() } else { String::new() }, name.to_owned());
        verbs::delete(&mut self.server.store.lock(), row, &name, options).expect("deleted");
    }

    pub(super) fn names(&self, group: &str, plural: &str) -> Vec<String> {
        let all = self.server.store.lock().list(&(group.to_owned(), plural.to_owned()), "");
        all.iter().filter_map(|o| o["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    /// Reads since the last look whose path begins so.
    fn reads(&self, prefix: &str) -> Vec<String> {
        let mut all = std::mem::take(&mut *self.server.reads.lock());
        all.retain(|path| path.starts_with(prefix));
        all
    }

    /// Events of a reason, each as often as it was repeated.
    pub(super) fn events(&self, reason: &str) -> u64 {
        let all = self.server.store.lock().list(&(String::new(), "events".into()), "");
        all.iter().filter(|e| e["reason"] == reason).map(|e| e["count"].as_u64().unwrap_or(1)).sum()
    }
}

fn claim(name: &str, class: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}})
}

fn volume(name: &str, class: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"storageClassName": class, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/tmp/v"}}})
}

fn owned_by(name: &str, owner: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "ownerReferences": [owner]}})
}

#[tokio::test(start_paused = true)]
async fn new_volumes_wake_no_claims_that_they_cannot_serve() {
    let mut scene = Scene::new();
    scene.create(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "late"},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}));
    scene.create(&claim("waits", "late"));
    scene.start("persistentvolume-binder-controller").await;
    sleep(SETTLED).await;
    let before = scene.events("WaitForFirstConsumer");
    assert!(before > 0, "it waits");
    for n in 0..100 {
        scene.create(&volume(&format!("v{n}"), if n % 2 == 0 { "late" } else { "other" }));
        sleep(Duration::from_millis(50)).await;
    }
    let woken = scene.events("WaitForFirstConsumer") - before;
    assert!(woken <= 1, "besides the look every 15 s: {woken}");
}

#[tokio::test(start_paused = true)]
async fn collector_waits_half_a_minute_for_what_cannot_be_listed() {
    let mut scene = Scene::new();
    let owner = scene.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}));
    scene.create(&owned_by(
        "dependent",
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true}),
    ));
    scene.delete("configmaps", "owner", &json!({"propagationPolicy": "Foreground"}));
    *scene.server.unlistable.lock() = "secrets".to_owned();
    scene.start("garbage-collector-controller").await;
    sleep(Duration::from_secs(15)).await;
    assert_eq!(scene.names("", "configmaps"), ["owner"], "its dependents are not known yet");
    scene.server.unlistable.lock().clear();
    sleep(Duration::from_mins(2)).await;
    let store = scene.server.store.lock();
    let gone: Vec<&str> = store.changes.iter().filter(|c| c.kind == "DELETED").map(|c| &*c.resource.1).collect();
    assert_eq!(gone, ["secrets", "configmaps"], "in the foreground");
}

#[tokio::test(start_paused = true)]
async fn claims_that_go_together_are_judged_by_one_list_of_pods() {
    let mut scene = Scene::new();
    for n in 0..20 {
        let mut claim = claim(&format!("c{n}"), "");
        claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
        scene.create(&claim);
        scene.delete("persistentvolumeclaims", &format!("c{n}"), &json!({}));
    }
    let pod =
        |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    for n in 0..600 {
        scene.create(&pod(&format!("p{n}"), json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]})));
    }
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c7"}}]);
    let unreadable = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd", "namespace": "ns", "uid": "odd"},
        "spec": {"nodeName": "n", "containers": "none", "volumes": volumes}});
    scene.server.store.lock().put(&(String::new(), "pods".into()), unreadable);
    scene.start("persistentvolumeclaim-protection-controller").await;
    sleep(SETTLED).await;
    assert_eq!(scene.names("", "persistentvolumeclaims"), ["c7"], "a pod that cannot be read keeps what it names");
    let reads = scene.reads("/api/v1/namespaces/ns/pods?");
    assert!(reads.iter().all(|path| path.contains("limit=500")), "page by page: {reads:?}");
    assert!(reads.iter().any(|path| path.contains("continue=")), "both pages: {reads:?}");
    // Two pages for all that go, and two for the one that stays.
    assert!(reads.len() <= 4, "{} pages for 20 claims", reads.len());
}

#[tokio::test(start_paused = true)]
async fn budget_asks_for_scales_only_where_it_needs_them() {
    for (amount, asks) in [
        (json!({"minAvailable": 1}), false),
        (json!({"maxUnavailable": 1}), true),
        (json!({"minAvailable": "50%"}), true),
    ] {
        let mut scene = Scene::new();
        let labels = json!({"app": "web"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let owner = scene.create(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}}));
        for n in 0..3 {
            let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": owner["metadata"]["uid"], "controller": true});
            scene.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{n}"), "labels": labels, "ownerReferences": [owner]},
                "spec": template["spec"], "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}));
        }
        let mut spec = amount.clone();
        spec["selector"] = json!({"matchLabels": labels});
        scene.create(
            &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}),
        );
        scene.start("disruption-controller").await;
        sleep(SETTLED).await;
        let budget = scene.server.store.lock().list(&("policy".into(), "poddisruptionbudgets".into()), "").remove(0);
        assert_eq!(budget["status"]["currentHealthy"], 3, "{amount}: {budget}");
        let reads = scene.reads("/api");
        assert_eq!(reads.iter().any(|path| path.ends_with("/scale")), asks, "{amount}: {reads:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn owners_of_unknown_kinds_call_for_discovery_twice_a_minute() {
    let mut scene = Scene::new();
    for n in 0..30 {
        let owner = json!({"apiVersion": "example.com/v1", "kind": "Kafka", "name": "k", "uid": "k"});
        scene.create(&owned_by(&format!("s{n}"), owner));
    }
    scene.start("garbage-collector-controller").await;
    sleep(SETTLED).await;
    scene.reads("/");
    sleep(Duration::from_mins(2)).await;
    let asked = scene.reads("/").iter().filter(|path| *path == "/apis").count();
    assert!((2..=5).contains(&asked), "{asked} discoveries in two minutes");
}

#[tokio::test(start_paused = true)]
async fn objects_wait_for_caches_without_being_looked_at_all_the_time() {
    let mut scene = Scene::new();
    for n in 0..1000 {
        let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "gone"});
        scene.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{n}"), "ownerReferences": [owner]}}));
    }
    *scene.server.unlistable.lock() = "secrets".to_owned();
    scene.start("garbage-collector-controller").await;
    sleep(Duration::from_secs(5)).await;
    shared::run::measure_polls();
    sleep(Duration::from_secs(20)).await;
    let polls = shared::run::measured_polls();
    assert!((1..10_000).contains(&polls.count), "{polls:?}");
    assert_eq!(scene.names("", "configmaps").len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_namespace_is_read_page_by_page() {
    let mut scene = Scene::new();
    for n in 0..1200 {
        scene.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{n}")}}));
    }
    let row = rows().find(|r| r.plural == "namespaces").expect("namespaces are served");
    let with = json!({"spec": {"finalizers": ["kubernetes"]}});
    let name: Name = (String::new(), "ns".to_owned());
    verbs::patch(&mut scene.server.store.lock(), row, &name, "", "application/merge-patch+json", with)
        .expect("patched");
    scene.delete("namespaces", "ns", &json!({}));
    scene.start("namespace-controller").await;
    sleep(SETTLED).await;
    let reads = scene.reads("/api/v1/namespaces/ns/configmaps");
    assert!(reads.iter().all(|path| path.contains("limit=500")), "{reads:?}");
    assert!(reads.iter().any(|path| path.contains("continue=1000")), "all three pages: {reads:?}");
    assert!(!scene.names("", "namespaces").contains(&"ns".to_owned()), "it is gone");
}

#[tokio::test(start_paused = true)]
async fn periods_of_nothing_never_come() {
    let mut scene = Scene::new();
    scene.create(&json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/configmaps": "10"}}}));
    let never = ["--resource-quota-sync-period=0", "--namespace-sync-period=0"];
    scene.start_with("resourcequota-controller,namespace-controller", &never).await;
    sleep(SETTLED).await;
    scene.reads("/");
    shared::run::measure_polls();
    sleep(Duration::from_mins(1)).await;
    let polls = shared::run::measured_polls();
    assert!(polls.count < 1_000, "{polls:?}");
    assert_eq!(scene.reads("/api/v1/namespaces/ns/configmaps"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_cannot_be_asked_to_go_keep_nothing_else_of_a_namespace() {
    let mut scene = Scene::new();
    scene.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}}));
    scene.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}));
    let row = rows().find(|r| r.plural == "namespaces").expect("namespaces are served");
    let with = json!({"spec": {"finalizers": ["kubernetes"]}});
    let name: Name = (String::new(), "ns".to_owned());
    verbs::patch(&mut scene.server.store.lock(), row, &name, "", "application/merge-patch+json", with)
        .expect("patched");
    *scene.server.refusing.lock() = Some(("DELETE pods".to_owned(), "a webhook says no".to_owned()));
    scene.delete("namespaces", "ns", &json!({}));
    scene.start("namespace-controller").await;
    sleep(SETTLED).await;
    assert_eq!((scene.names("", "pods"), scene.names("", "configmaps")), (vec!["pod".to_owned()], Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn crowded_nodes_matter_only_to_sets_that_somebody_controls() {
    for (controlled, goes) in [(false, "recent"), (true, "crowded-b")] {
        let mut scene = Scene::new();
        let (labels, spec) = (json!({"app": "web"}), json!({"containers": [{"name": "c", "image": "i"}]}));
        let mut set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {"replicas": 3,
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}});
        if controlled {
            set["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Rollout", "name": "r", "uid": "r", "controller": true}]);
        }
        let set = scene.create(&set);
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": set["metadata"]["uid"],
            "controller": true});
        for (name, node, since) in [
            ("crowded-a", "n1", "2015-01-01T00:00:00Z"),
            ("crowded-b", "n1", "2025-06-01T00:00:00Z"),
            ("recent", "n2", "2025-12-31T23:00:00Z"),
        ] {
            let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
            scene.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels,
                "ownerReferences": [owner]}, "spec": {"nodeName": node, "containers": spec["containers"]},
                "status": {"phase": "Running", "conditions": ready}}));
        }
        scene.start("replicaset-controller").await;
        sleep(SETTLED).await;
        let row = rows().find(|r| r.plural == "replicasets").expect("sets are served");
        let (name, two): (Name, _) = (("ns".to_owned(), "web".to_owned()), json!({"spec": {"replicas": 2}}));
        verbs::patch(&mut scene.server.store.lock(), row, &name, "", "application/merge-patch+json", two)
            .expect("patched");
        sleep(SETTLED).await;
        let left: Vec<String> = ["crowded-a", "crowded-b", "recent"].map(str::to_owned).into();
        let left: Vec<String> = left.into_iter().filter(|name| name != goes).collect();
        let store = scene.server.store.lock();
        let pods = store.list(&(String::new(), "pods".into()), "");
        let live = pods.iter().filter(|p| p["metadata"]["deletionTimestamp"].is_null());
        let live: Vec<&str> = live.filter_map(|p| p["metadata"]["name"].as_str()).collect();
        assert_eq!(live, left, "controlled: {controlled}");
    }
}

#[tokio::test(start_paused = true)]
async fn quota_counts_page_by_page_what_no_informer_counts() {
    let mut scene = Scene::new();
    for n in 0..700 {
        scene.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{n}")}}));
    }
    scene.create(&json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/configmaps": "1k", "pods": "10", "count/pods": "10", "count/services": "5"}}}));
    scene.start("resourcequota-controller,garbage-collector-controller").await;
    sleep(SETTLED).await;
    let quota = scene.server.store.lock().list(&(String::new(), "resourcequotas".into()), "").remove(0);
    assert_eq!(
        quota["status"]["used"],
        json!({"count/configmaps": "700", "pods": "0", "count/pods": "0", "count/services": "0"})
    );
    let reads = scene.reads("/api/v1/namespaces/ns/");
    assert!(reads.iter().all(|path| path.starts_with("/api/v1/namespaces/ns/configmaps?limit=500")), "{reads:?}");
    // The first page says how many follow.
    assert!(!reads.is_empty() && reads.iter().all(|path| !path.contains("continue=")), "{reads:?}");
}

#[tokio::test(start_paused = true)]
async fn daemon_set_that_adopts_makes_no_pod_twice() {
    for seed in 0..8 {
        let mut scene = Scene::over(Server::seeded(Fault::Lag, seed));
        for n in 0..5 {
            scene.create(&super::scenario::node(&format!("n{n}")));
        }
        let labels = json!({"app": "agent"});
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        scene.start("daemonset-controller").await;
        sleep(SETTLED).await;
        scene.create(&json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}}));
        // Adoption takes longer than the pods that were made take to be seen.
        *scene.server.delay.lock() = Duration::from_millis(1500);
        for n in 0..40 {
            scene.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("orphan-{n}"), "labels": labels},
                "spec": {"nodeName": "n0", "containers": spec["containers"]}, "status": {"phase": "Succeeded"}}));
            sleep(Duration::from_millis(300)).await;
        }
        sleep(Duration::from_mins(2)).await;
        let store = scene.server.store.lock();
        let made =
            store.changes.iter().filter(|c| c.kind == "ADDED" && c.object["metadata"]["ownerReferences"].is_array());
        let made: Vec<_> =
            made.filter(|c| c.resource.1 == "pods").map(|c| c.object["metadata"]["name"].clone()).collect();
        assert_eq!(made.len(), 5, "seed {seed}: {made:?}");
    }
}
