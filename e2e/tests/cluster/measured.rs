//! Metrics that a kubelet serves of its own work.

use e2e::testing::Cluster;

const NODE: &str = "node-1";
const PAGE: &str = "get --raw /api/v1/nodes/node-1/proxy/metrics";

const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "measured"}, "spec": {
    "terminationGracePeriodSeconds": 1, "nodeSelector": {"kubernetes.io/hostname": "node-1"}, "containers": [
    {"name": "main", "image": "busybox:1.36", "command": ["sleep", "10000"], "readinessProbe": {"exec": {"command": ["true"]},
        "periodSeconds": 1}}]}}"#;

/// Families that any node has samples of once it has run a pod.
const SAMPLES: [&str; 19] = [
    "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}",
    "kubelet_runtime_operations_duration_seconds_count{operation_type=\"start_container\"}",
    "kubelet_running_pods ",
    "kubelet_running_containers{container_state=\"running\"}",
    "kubelet_desired_pods{static=\"\"}",
    "kubelet_active_pods{static=\"\"}",
    "kubelet_started_pods_total ",
    "kubelet_started_containers_total{container_type=\"container\"}",
    "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"}",
    "kubelet_pod_start_duration_seconds_count ",
    "kubelet_pod_start_sli_duration_seconds_count ",
    "kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"}",
    "kubelet_pod_worker_start_duration_seconds_count ",
    "kubelet_pod_status_sync_duration_seconds_count ",
    "kubelet_pleg_relist_interval_seconds_count ",
    "kubelet_pleg_last_seen_seconds ",
    "kubelet_http_requests_total{long_running=\"false\",method=\"GET\",path=\"metrics\",server_type=\"readwrite\"}",
    "kubelet_cgroup_version ",
    "kubelet_node_name{node=\"node-1\"}",
];

/// A pod that starts, is probed and goes is counted.
pub fn by_the_kubelet(cluster: &Cluster) {
    cluster.feed("create -f -", POD);
    cluster.kubectl("wait --for=condition=Ready pod/measured --timeout=60s");
    cluster.until("a pod's start is counted", 30, || {
        let page = cluster.kubectl(PAGE);
        let missing: Vec<_> = SAMPLES.iter().filter(|sample| !page.contains(**sample)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} on {NODE}")) }
    });
    let probed = || cluster.kubectl(&format!("{PAGE}/probes")).contains("pod=\"measured\"");
    assert!(probed(), "the probe is counted");
    cluster.kubectl("delete pod measured");
    cluster.until("the probe goes from the page", 30, || if probed() { Err("it is there".to_owned()) } else { Ok(()) });
}
