//! Dynamic resources: the scheduler allocates a device to a claim, and a real driver beside the kubelet prepares it.

use e2e::testing::{Cluster, is_ready, text};

const DRIVER: &str = "zero.test.ironclad";
const NODE: &str = "node-1";
const ROOT: &str = "/var/lib/kubelet";

const OBJECTS: &str = r#"
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: zeros}
spec:
  selectors: [{cel: {expression: 'device.driver == "zero.test.ironclad"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-1-zeros}
spec:
  driver: zero.test.ironclad
  nodeName: node-1
  pool: {name: pool, generation: 1, resourceSliceCount: 1}
  devices: [{name: zero}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-zero}
spec:
  spec:
    devices:
      requests: [{name: zero, exactly: {deviceClassName: zeros}}]
---
apiVersion: v1
kind: Pod
metadata: {name: claimant}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: zero, resourceClaimTemplateName: one-zero}]
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '10000']
    resources: {claims: [{name: zero}]}
"#;

/// Calls that the driver has seen, each kind once.
fn calls(cluster: &Cluster) -> Vec<String> {
    let log = cluster.try_on_node(NODE, &["cat", &format!("{ROOT}/plugins/{DRIVER}/calls.log")]).out;
    let mut kinds: Vec<String> = log.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    kinds.dedup();
    kinds
}

/// Waits for an event of the pod with these words.
fn until_told(cluster: &Cluster, words: &str) {
    cluster.until("the kubelet says why", 60, || {
        let events =
            cluster.kubectl("get events --field-selector involvedObject.name=claimant -o jsonpath={.items[*].message}");
        if events.contains(words) { Ok(()) } else { Err(events) }
    });
}

/// A pod waits for its device, gets it, keeps it while the kubelet dies, and gives it back.
pub fn of_drivers(cluster: &Cluster) {
    cluster.feed("create -f -", OBJECTS);
    until_told(cluster, &format!("DRA driver {DRIVER} is not registered"));
    assert!(!is_ready(&cluster.json("get pod claimant")), "it does not start without its device");
    let refuse = format!("{ROOT}/plugins/{DRIVER}/refuse");
    cluster.on_node(NODE, &["mkdir", "-p", &format!("{ROOT}/plugins/{DRIVER}")]);
    cluster.on_node(NODE, &["touch", &refuse]);
    let driver = cluster.start_on_node(NODE, "dra-driver", &[ROOT, DRIVER]);
    until_told(cluster, "the device is busy");
    cluster.on_node(NODE, &["rm", &refuse]);
    cluster.kubectl("wait --for=condition=Ready pod/claimant --timeout=60s");
    assert_eq!(text(&cluster.json("get pod claimant"), "/spec/nodeName"), NODE);
    assert_eq!(calls(cluster), ["registered", "prepare"]);

    cluster.kill(NODE, "kubelet");
    cluster.kubectl("delete pod claimant");
    assert_eq!(calls(cluster).last().map(String::as_str), Some("unprepare"), "before the pod is gone");
    cluster.until("the claim is gone", 60, || {
        let left = cluster.kubectl("get resourceclaims -o name");
        if left.is_empty() { Ok(()) } else { Err(left) }
    });

    // The devices of a driver that stays away are not offered any more.
    drop(driver);
    cluster.on_node(NODE, &["rm", &format!("{ROOT}/plugins_registry/{DRIVER}-reg.sock")]);
    cluster.until("the slices are gone", 90, || {
        let left = cluster.kubectl("get resourceslices -o name");
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}
