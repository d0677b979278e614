//! Devices of a plugin: a real one, beside the kubelet.

use e2e::testing::{Cluster, text};

const RESOURCE: &str = "vendor.test/zero";
const NODE: &str = "node-1";
const ROOT: &str = "/var/lib/kubelet";

fn pod(name: &str, number: u32) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{
            "terminationGracePeriodSeconds": 1,
            "containers": [{{"name": "main", "image": "busybox:1.36", "command": ["sleep", "10000"],
                "resources": {{"limits": {{"{RESOURCE}": "{number}"}}}}}}]}}}}"#
    )
}

/// Waits for the node to say how many there are, and how many pods can have.
fn until_counted(cluster: &Cluster, capacity: &str, allocatable: &str) {
    let pointer = |field: &str| format!("/status/{field}/vendor.test~1zero");
    cluster.until("the devices are counted", 60, || {
        let node = cluster.json(&format!("get node {NODE}"));
        let found = (text(&node, &pointer("capacity")), text(&node, &pointer("allocatable")));
        if found == (capacity, allocatable) { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// Pods get devices, each its own, and the node keeps count of them while plugin and kubelet die.
pub fn of_plugins(cluster: &Cluster) {
    let plugin = cluster.start_on_node(NODE, "device-plugin", &[ROOT, RESOURCE]);
    until_counted(cluster, "2", "2");
    cluster.feed("create -f -", &pod("owner", 1));
    cluster.kubectl("wait --for=condition=Ready pod/owner --timeout=60s");
    assert_eq!(text(&cluster.json("get pod owner"), "/spec/nodeName"), NODE, "the scheduler knows who has devices");
    let device = cluster.kubectl_args(&[
        "exec",
        "owner",
        "--",
        "sh",
        "-c",
        "echo $DEVICES; ls /dev/$DEVICES; head -c 2 /dev/$DEVICES | wc -c",
    ]);
    assert_eq!(device, "one\n/dev/one\n2\n");

    cluster.feed("create -f -", &pod("greedy", 2));
    let why = cluster.until("the scheduler says why", 30, || {
        let found = cluster.json("get pod greedy");
        let message = text(&found, "/status/conditions/0/message").to_owned();
        if message.is_empty() { Err(found["status"].to_string()) } else { Ok(message) }
    });
    assert!(why.contains(&format!("Insufficient {RESOURCE}")), "{why}");
    cluster.kubectl("delete pod greedy --now");

    let owners = || cluster.on_node(NODE, &[&cluster.example("device-plugin"), ROOT]);
    assert_eq!(owners(), "owner main one\n");
    cluster.kill(NODE, "kubelet");
    cluster.until("the kubelet answers", 30, || {
        let said = cluster.try_on_node(NODE, &[&cluster.example("device-plugin"), ROOT]);
        if said.out == "owner main one\n" { Ok(()) } else { Err(said.out + &said.err) }
    });
    until_counted(cluster, "2", "2");
    cluster.feed("create -f -", &pod("second", 1));
    cluster.kubectl("wait --for=condition=Ready pod/second --timeout=60s");
    assert_eq!(owners().lines().count(), 2);
    let other = cluster.kubectl_args(&["exec", "second", "--", "sh", "-c", "echo $DEVICES"]);
    assert_eq!(other, "two\n", "nobody has it yet");

    drop(plugin);
    until_counted(cluster, "2", "0");
    cluster.kubectl("delete pod owner second --now");
    assert_eq!(owners(), "");
}
