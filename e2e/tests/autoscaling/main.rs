//! The horizontal pod autoscaler against a metrics API behind kube-apiserver: both components as processes of their own,
//! the metrics server is the test. Nobody runs the pods; the test says that they are ready.

#![allow(clippy::panic, clippy::expect_used, reason = "a test panics to say what is wrong")]

mod metrics;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use metrics::{Measured, Metrics};
use testkit::http2::Client;
use testkit::manager::Manager;
use testkit::objects::{patch, post};
use testkit::world::World;

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/web";
const AUTOSCALER: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/web";
const GIVE_UP: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);

async fn get(client: &mut Client, path: &str) -> Value {
    let bytes = client.get(path, "application/json").await.expect("an answer");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// Has every pod be ready, and the metrics server know them; how many there are.
async fn run_pods(client: &mut Client, metrics: &Metrics) -> usize {
    let list = get(client, PODS).await;
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    let alive = pods.iter().filter(|p| p["metadata"]["deletionTimestamp"].is_null());
    let names: Vec<String> = alive.filter_map(|p| p["metadata"]["name"].as_str().map(str::to_owned)).collect();
    for pod in pods.iter().filter(|p| p["status"]["phase"] != "Running") {
        let at = "2026-01-01T00:00:00Z";
        let status = json!({"phase": "Running", "startTime": at,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at}]});
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        // It may have gone meanwhile.
        patch(client, &format!("{PODS}/{name}/status"), &json!({"status": status})).await.ok();
    }
    let count = names.len();
    metrics.measured.lock().pods = names;
    count
}

/// Runs the pods until something is as it shall be.
async fn until(client: &mut Client, metrics: &Metrics, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        run_pods(client, metrics).await;
        let object = get(client, path).await;
        if is(&object) {
            return object;
        }
        assert!(began.elapsed() < GIVE_UP, "{what} never came about: {object:#}");
        tokio::time::sleep(POLL).await;
    }
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|c| c["type"] == kind)).unwrap_or(&Value::Null)
}

fn deployment() -> Value {
    let labels = json!({"app": "web"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "web", "image": "web", "resources": {"requests": {"cpu": "100m"}}}]}}}})
}

fn autoscaler() -> Value {
    let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}});
    json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Resource", "resource": cpu}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}})
}

async fn serve_metrics(client: &mut Client, ca: &str, metrics: &Metrics) {
    let named = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    post(client, "/api/v1/namespaces/default/services", &named).await.expect("a service");
    let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": false, "caBundle": STANDARD.encode(ca),
            "service": {"namespace": "default", "name": "metrics", "port": metrics.port}}});
    post(client, "/apis/apiregistration.k8s.io/v1/apiservices", &service).await.expect("an API service");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_follow_what_pods_use() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let binaries = std::env::var("BINARIES").expect("BINARIES names the folder of the binaries; make sets it");
    let world = World::start_behind_a_proxy(&format!("{binaries}/kube-apiserver")).await.expect("a server");
    let metrics = Metrics::start(&world.pki().server).await.expect("a metrics server");
    let mut client = world.client().await.expect("a connection");
    serve_metrics(&mut client, &world.pki().ca, &metrics).await;
    *metrics.measured.lock() = Measured { pods: Vec::new(), cpu: Some("50m") };
    let flags = ["--horizontal-pod-autoscaler-sync-period=1s"];
    let _manager =
        Manager::start_with(&world, &format!("{binaries}/kube-controller-manager"), &flags).expect("a manager");
    post(&mut client, "/apis/apps/v1/namespaces/default/deployments", &deployment()).await.expect("a deployment");
    post(&mut client, AUTOSCALER.trim_end_matches("/web"), &autoscaler()).await.expect("an autoscaler");

    // As much as is wanted: nothing to do.
    let active = |o: &Value| condition(o, "ScalingActive")["status"] == "True";
    let steady = until(&mut client, &metrics, AUTOSCALER, "a measurement", active).await;
    assert_eq!(condition(&steady, "ScalingActive")["reason"], "ValidMetricFound");
    assert_eq!(steady["status"]["currentMetrics"][0]["resource"]["current"]["averageUtilization"], 50);

    // Three times as much, then more than the most replicas could take.
    metrics.measured.lock().cpu = Some("150m");
    let of = |n: i64| move |o: &Value| o["spec"]["replicas"] == n;
    until(&mut client, &metrics, DEPLOYMENT, "three replicas or more", |o| o["spec"]["replicas"].as_i64() >= Some(3))
        .await;
    metrics.measured.lock().cpu = Some("500m");
    until(&mut client, &metrics, DEPLOYMENT, "the most replicas", of(4)).await;
    let limited = |o: &Value| condition(o, "ScalingLimited")["reason"] == "TooManyReplicas";
    until(&mut client, &metrics, AUTOSCALER, "the limit", limited).await;

    // What cannot be measured changes nothing.
    metrics.measured.lock().cpu = None;
    let failed = |o: &Value| condition(o, "ScalingActive")["reason"] == "FailedGetResourceMetric";
    let blind = until(&mut client, &metrics, AUTOSCALER, "a failed measurement", failed).await;
    assert_eq!(condition(&blind, "ScalingActive")["status"], "False");
    assert_eq!(get(&mut client, DEPLOYMENT).await["spec"]["replicas"], 4);

    metrics.measured.lock().cpu = Some("1m");
    until(&mut client, &metrics, DEPLOYMENT, "the fewest replicas", of(1)).await;
    let rescaled = |o: &Value| {
        let about = |e: &&Value| e["involvedObject"]["kind"] == "HorizontalPodAutoscaler";
        let all = o["items"].as_array().into_iter().flatten().filter(about);
        all.filter(|e| e["reason"] == "SuccessfulRescale").count() >= 2
    };
    until(&mut client, &metrics, "/api/v1/namespaces/default/events", "events", rescaled).await;
}
