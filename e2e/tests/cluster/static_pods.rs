//! The control plane as static pods of a kubelet, from the images and manifests that users take.

use std::process::Command;

use e2e::testing::{Cluster, is_ready, text};

/// Not what `make up` takes by itself.
pub const SERVICES: &str = "169.169.0.0/16";
const PARTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Mirror pods tell of all four, and a pod that needs all four runs.
pub fn come_up(cluster: &Cluster) {
    for part in PARTS {
        mirror(cluster, part, |pod| is_ready(pod).then_some(()).ok_or_else(|| pod["status"].to_string()));
    }
    let service = cluster.kubectl("get service kubernetes -o jsonpath={.spec.clusterIP}");
    assert_eq!(service, "169.169.0.1");
    let status = e2e::status::status(&cluster.layout()).expect("a status");
    for told in [
        "control-plane  kubelet                    running",
        "node-1         kube-proxy                 running",
        SERVICES,
    ] {
        assert!(status.contains(told), "{told}: {status}");
    }
    let taints = cluster.kubectl("get node control-plane -o jsonpath={.spec.taints[*].key}");
    assert_eq!(taints, "node-role.kubernetes.io/control-plane");
    cluster.kubectl("run probe --image=busybox:1.36 --restart=Never -- true");
    cluster.kubectl("wait pod/probe --for=jsonpath={.status.phase}=Succeeded --timeout=60s");
}

/// Killing a process restarts its container, and deleting a mirror pod does nothing but bring a new one.
pub fn cannot_be_got_rid_of(cluster: &Cluster) {
    let pids = Command::new("pgrep").args(["-f", "^kube-apiserver --advertise"]).output().expect("pgrep runs").stdout;
    let pids = String::from_utf8_lossy(&pids);
    let pid = pids.lines().next().unwrap_or_else(|| panic!("an API server runs"));
    assert!(Command::new("kill").args(["-9", pid]).status().expect("kill runs").success());
    mirror(cluster, "kube-apiserver", |pod| {
        let restarted = pod.pointer("/status/containerStatuses/0/restartCount").and_then(serde_json::Value::as_i64);
        (restarted >= Some(1) && is_ready(pod)).then_some(()).ok_or_else(|| pod["status"].to_string())
    });
    let before = cluster.json("get pod -n kube-system kube-scheduler-control-plane");
    // The next one may be there before kubectl looks whether this one is gone; it would wait for that one then.
    cluster.kubectl("delete pod -n kube-system kube-scheduler-control-plane --wait=false");
    mirror(cluster, "kube-scheduler", |pod| {
        let same_container = text(pod, "/status/containerStatuses/0/containerID")
            == text(&before, "/status/containerStatuses/0/containerID");
        let new_pod = text(pod, "/metadata/uid") != text(&before, "/metadata/uid");
        (same_container && new_pod).then_some(()).ok_or_else(|| pod.to_string())
    });
}

/// Waits until the mirror pod of a part is as it should be.
fn mirror(cluster: &Cluster, part: &str, right: impl Fn(&serde_json::Value) -> Result<(), String>) {
    let name = format!("{part}-control-plane");
    cluster.until(&format!("{name} is as it should be"), 90, || {
        let said = cluster.try_kubectl(&["get", "pod", "-n", "kube-system", &name, "-o", "json"], None);
        if !said.ok {
            return Err(said.err);
        }
        right(&serde_json::from_str(&said.out).map_err(|error| error.to_string())?)
    });
}
