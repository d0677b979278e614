//! Dynamic resources: the scheduler allocates a device to a claim, and a real driver beside the kubelet prepares it: ours,
//! and one over upstream's library for drivers, where that was built.

use e2e::testing::{Cluster, is_ready, run, text};

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

/// Calls that a driver has seen, each kind once.
fn calls(cluster: &Cluster, driver: &str) -> Vec<String> {
    let log = cluster.try_on_node(NODE, &["cat", &format!("{ROOT}/plugins/{driver}/calls.log")]).out;
    let mut kinds: Vec<String> = log.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    kinds.dedup();
    kinds
}

/// Waits for an event of a pod with these words.
fn until_told(cluster: &Cluster, pod: &str, words: &str) {
    cluster.until(&format!("{pod} is told why"), 60, || {
        let selector = format!("--field-selector=involvedObject.name={pod}");
        let events = cluster.kubectl_args(&["get", "events", &selector, "-o", "jsonpath={.items[*].message}"]);
        if events.contains(words) { Ok(()) } else { Err(events) }
    });
}

/// A pod waits for its device, gets it, keeps it while the kubelet dies, and gives it back.
pub fn of_drivers(cluster: &Cluster) {
    cluster.feed("create -f -", OBJECTS);
    until_told(cluster, "claimant", &format!("DRA driver {DRIVER} is not registered"));
    assert!(!is_ready(&cluster.json("get pod claimant")), "it does not start without its device");
    let refuse = format!("{ROOT}/plugins/{DRIVER}/refuse");
    cluster.on_node(NODE, &["mkdir", "-p", &format!("{ROOT}/plugins/{DRIVER}")]);
    cluster.on_node(NODE, &["touch", &refuse]);
    let driver = cluster.start_on_node(NODE, "dra-driver", &[ROOT, DRIVER]);
    until_told(cluster, "claimant", "the device is busy");
    cluster.on_node(NODE, &["rm", &refuse]);
    cluster.kubectl("wait --for=condition=Ready pod/claimant --timeout=60s");
    assert_eq!(text(&cluster.json("get pod claimant"), "/spec/nodeName"), NODE);
    assert_eq!(calls(cluster, DRIVER), ["registered", "prepare"]);

    cluster.kill(NODE, "kubelet");
    cluster.kubectl("delete pod claimant");
    assert_eq!(calls(cluster, DRIVER).last().map(String::as_str), Some("unprepare"), "before the pod is gone");
    cluster.until("the claim is gone", 60, || {
        let left = cluster.kubectl("get resourceclaims -o name");
        if left.is_empty() { Ok(()) } else { Err(left) }
    });

    drop(driver);
    until_forgotten(cluster, DRIVER);
}

/// Waits until the devices of a driver that stays away are not offered any more.
fn until_forgotten(cluster: &Cluster, driver: &str) {
    cluster.on_node(NODE, &["rm", &format!("{ROOT}/plugins_registry/{driver}-reg.sock")]);
    cluster.until("the slices are gone", 90, || {
        let left = cluster.kubectl("get resourceslices -o name");
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

/// A driver over upstream's library.
const UPPER: &str = "upper.test.ironclad";

const UPPER_CLASS: &str = r#"
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: uppers}
spec:
  selectors: [{cel: {expression: 'device.driver == "upper.test.ironclad"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-upper}
spec:
  spec:
    devices:
      requests: [{name: upper, exactly: {deviceClassName: uppers}}]
"#;

fn upper_pod(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{{name: upper, resourceClaimTemplateName: one-upper}}]
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '10000']
    resources: {{claims: [{{name: upper}}]}}
"
    )
}

/// The CDI device of the only claim that is allocated, as driver and kubelet have written it down.
fn cdi_device(cluster: &Cluster) -> String {
    let claims = cluster.json("get resourceclaims");
    let all = claims["items"].as_array().cloned().unwrap_or_default();
    let claim = all.iter().find(|claim| claim["status"]["allocation"].is_object()).expect("an allocated claim");
    let uid = text(claim, "/metadata/uid");
    let spec = cluster.on_node(NODE, &["cat", &format!("/var/run/cdi/{UPPER}-{uid}.json")]);
    let device = format!("ironclad.test/device={uid}");
    assert!(spec.contains(uid), "{spec}");
    let checkpoint = cluster.on_node(NODE, &["cat", &format!("{ROOT}/dra_manager_state")]);
    assert!(checkpoint.contains(&device), "the kubelet hands the device on: {checkpoint}");
    device
}

/// The one device of a driver is published by upstream's library, given to a pod, kept while the kubelet dies, and given on.
pub fn of_upstreams_library(cluster: &Cluster) {
    let Some(program) = cluster.go_program("dra-driver") else {
        println!("skipped: the driver over upstream's library was not built: e2e/images/module.sh CACHE dra-driver");
        return;
    };
    cluster.feed("create -f -", UPPER_CLASS);
    cluster.feed("create -f -", &upper_pod("one"));
    until_told(cluster, "one", "cannot allocate all claims");
    let refuse = format!("{ROOT}/plugins/{UPPER}/refuse");
    cluster.on_node(NODE, &["mkdir", "-p", &format!("{ROOT}/plugins/{UPPER}")]);
    cluster.on_node(NODE, &["touch", &refuse]);
    let config = format!("--kubeconfig={}", cluster.layout().root.join("admin.conf").display());
    let arguments = [&config, "--driver-name", UPPER, "--node-name", NODE];
    let driver = cluster.start_program_on_node(NODE, &program, &arguments);
    until_told(cluster, "one", "the device is busy");
    cluster.on_node(NODE, &["rm", &refuse]);
    cluster.kubectl("wait --for=condition=Ready pod/one --timeout=60s");
    let device = cdi_device(cluster);
    if run("containerd", &["--version"], None).out.contains(" 1.") {
        println!("this containerd does not know CDI: {device} ends in the call that makes the container");
    } else {
        assert_eq!(cluster.kubectl("exec one -- printenv DEVICES").trim(), "zero");
    }
    cluster.feed("create -f -", &upper_pod("two"));
    until_told(cluster, "two", "cannot allocate all claims");

    cluster.kill(NODE, "kubelet");
    cluster.kubectl("delete pod one");
    // The other pod may have been given the device by now.
    assert!(calls(cluster, UPPER).starts_with(&["prepare", "unprepare"].map(str::to_owned)), "before the pod is gone");
    cluster.kubectl("wait --for=condition=Ready pod/two --timeout=90s");
    assert_ne!(cdi_device(cluster), device, "a claim has a device of its own");
    cluster.kubectl("delete pod two");
    let left = cluster.on_node(NODE, &["find", "/var/run/cdi", "-name", &format!("{UPPER}-*")]);
    assert_eq!(left, "", "the driver has cleaned up");
    drop(driver);
    until_forgotten(cluster, UPPER);
}
