//! Processors that containers have to themselves, on a node with the static policy.

use std::path::PathBuf;

use serde_json::{Value, json};

use e2e::testing::Cluster;

const NODE: &str = "node-1";
const STATE: &str = "/var/lib/kubelet/cpu_manager_state";

/// A pod with these limits.
fn pod(name: &str, limits: &Value) -> String {
    let container = json!({"name": "main", "image": "busybox:1.36", "command": ["sleep", "10000"],
        "resources": {"limits": limits}});
    let spec = json!({"terminationGracePeriodSeconds": 1, "nodeSelector": {"kubernetes.io/hostname": NODE},
        "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// Processors that a pod's container may run on, as the kernel has them.
fn allowed(cluster: &Cluster, pod: &str) -> String {
    let line = "exec POD -- grep Cpus_allowed_list /proc/self/status".replace("POD", pod);
    cluster.kubectl(&line).split_whitespace().last().unwrap_or_default().to_owned()
}

/// Reports whether a list such as `0-3,8` has a processor.
fn has(list: &str, number: u32) -> bool {
    list.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse().is_ok_and(|first| number >= first) && last.parse().is_ok_and(|last| number <= last)
    })
}

/// Starts the node's kubelet anew with a configuration, and without the state of another policy.
fn restart(cluster: &Cluster, path: &PathBuf, config: &Value) {
    std::fs::write(path, config.to_string()).expect("the configuration is written");
    cluster.on_node(NODE, &["rm", "-f", STATE]);
    cluster.kill(NODE, "kubelet");
    cluster.until("the kubelet has its policy", 30, || {
        let said = cluster.try_on_node(NODE, &["cat", STATE]);
        if said.ok { Ok(()) } else { Err(said.err) }
    });
}

/// A guaranteed pod gets a processor, which the others leave to it.
pub fn are_exclusive(cluster: &Cluster) {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("SKIPPED: processors of containers' own, because this machine has one");
        return;
    }
    let path = cluster.layout().disk(NODE).join("config/kubelet.yaml");
    let text = std::fs::read_to_string(&path).expect("the configuration is there");
    let before: Value = serde_json::from_str(&text).expect("JSON");
    let mut config = before.clone();
    config["cpuManagerPolicy"] = json!("static");
    config["cpuManagerReconcilePeriod"] = json!("1s");
    // One processor for the policy, and a tenth of one for the scheduler: the node may have two, and pods of its own.
    config["kubeReserved"] = json!({"cpu": "100m"});
    restart(cluster, &path, &config);

    cluster.feed("create -f -", &pod("shares", &json!({})));
    cluster.kubectl("wait --for=condition=Ready pod/shares --timeout=60s");
    let all = allowed(cluster, "shares");
    cluster.feed("create -f -", &pod("owns", &json!({"cpu": "1", "memory": "20Mi"})));
    cluster.kubectl("wait --for=condition=Ready pod/owns --timeout=60s");
    let own = allowed(cluster, "owns");
    let number: u32 = own.parse().unwrap_or_else(|_| panic!("one processor, not {own}"));
    assert_ne!(number, 0, "it is reserved");
    let state = cluster.on_node(NODE, &["cat", STATE]);
    assert!(state.contains(&format!("{{\"main\":\"{own}\"}}")), "{state}");
    cluster.until("the others leave it", 30, || {
        let now = allowed(cluster, "shares");
        if has(&all, number) && !has(&now, number) { Ok(()) } else { Err(now) }
    });
    cluster.kubectl("delete pod owns --now");
    cluster.until("the others have it again", 30, || {
        let now = allowed(cluster, "shares");
        if now == all { Ok(()) } else { Err(now) }
    });
    cluster.kubectl("delete pod shares --now");
    restart(cluster, &path, &before);
}
