//! Volumes of a CSI driver: a real one, beside the kubelet, whose calls are looked at.

use e2e::testing::{Cluster, OnNode, text};

const DRIVER: &str = "folders.test.ironclad";
const NODE: &str = "node-1";
/// Name of the volume in the node's status.
const IN_STATUS: &str = "kubernetes.io/csi/folders.test.ironclad^precious";

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: folders.test.ironclad}
spec:
  attachRequired: true
  podInfoOnMount: true
  fsGroupPolicy: File
  volumeLifecycleModes: [Persistent, Ephemeral]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: precious}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  storageClassName: by-hand
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: precious}
  csi: {driver: folders.test.ironclad, volumeHandle: precious}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: topology.test.ironclad/node, operator: In, values: [node-1]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: precious}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  volumeName: precious
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4711}
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'echo "$HOSTNAME" >>/precious/names; exec sleep 10000']
    volumeMounts:
    - {name: precious, mountPath: /precious}
    - {name: inline, mountPath: /inline, subPath: deep}
  volumes:
  - name: precious
    persistentVolumeClaim: {claimName: precious}
  - name: inline
    csi: {driver: folders.test.ironclad}
"#;

const BLOCK: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: device}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  capacity: {storage: 4Mi}
  storageClassName: by-hand
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: device}
  csi: {driver: folders.test.ironclad, volumeHandle: device}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: device}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: by-hand
  volumeName: device
  resources: {requests: {storage: 4Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: mapper}
spec:
  nodeSelector: {kubernetes.io/hostname: node-1}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '10000']
    volumeDevices: [{name: device, devicePath: /dev/own}]
  volumes: [{name: device, persistentVolumeClaim: {claimName: device}}]
"#;

/// Makes the volumes that the driver does not make.
fn make_by_hand(cluster: &Cluster) {
    for volume in ["precious", "device"] {
        cluster.on_node(NODE, &["mkdir", "-p", &format!("/var/lib/kubelet/plugins/{DRIVER}/volumes/{volume}")]);
    }
}

/// Starts the driver.
fn start(cluster: &Cluster) -> OnNode {
    cluster.start_on_node(NODE, "csi-driver", &["/var/lib/kubelet", DRIVER, NODE])
}

fn file(cluster: &Cluster, path: &str) -> String {
    cluster.try_on_node(NODE, &["cat", &format!("/var/lib/kubelet/plugins/{DRIVER}/{path}")]).out
}

/// Calls for one volume, in order.
fn calls(cluster: &Cluster, handle: &str) -> Vec<String> {
    let log = file(cluster, "calls.log");
    let of_volume = log.lines().filter(|line| line.split(' ').nth(1) == Some(handle));
    of_volume.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// Does an attacher's work: says of every attachment that is wanted that it is there, and lets go of those that end.
fn attach(cluster: &Cluster) {
    for attachment in cluster.json("get volumeattachments")["items"].as_array().into_iter().flatten() {
        let name = text(attachment, "/metadata/name");
        if attachment["status"]["attached"] != true {
            let patch = r#"{"status":{"attached":true,"attachmentMetadata":{"lun":"7"}}}"#;
            let line = ["patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", patch];
            cluster.try_kubectl(&line, None);
        }
    }
}

fn until_ready(cluster: &Cluster, pod: &str) {
    cluster.until(&format!("{pod} is ready"), 90, || {
        attach(cluster);
        let found = cluster.json(&format!("get pod {pod}"));
        if e2e::testing::is_ready(&found) { Ok(()) } else { Err(found["status"].to_string()) }
    });
}

fn in_use(cluster: &Cluster) -> String {
    cluster.kubectl("get node node-1 -o jsonpath={.status.volumesInUse}")
}

/// Volumes live through the deaths of everything around them, and no byte of them is lost.
pub fn of_drivers(cluster: &Cluster) {
    make_by_hand(cluster);
    let driver = start(cluster);
    cluster.until("the driver is known", 30, || {
        let found = cluster.json("get csinode node-1");
        let entry = &found["spec"]["drivers"][0];
        let is_known = text(entry, "/nodeID") == NODE && entry["allocatable"]["count"] == 3;
        if is_known { Ok(()) } else { Err(found.to_string()) }
    });
    let label = cluster.kubectl("get node node-1 -o jsonpath={.metadata.labels.topology\\.test\\.ironclad/node}");
    assert_eq!(label, NODE);

    cluster.feed("create -f -", OBJECTS);
    until_ready(cluster, "writer");
    assert_eq!(in_use(cluster), format!("[\"{IN_STATUS}\"]"));
    assert_eq!(calls(cluster, "precious"), ["stage", "publish"]);
    assert!(file(cluster, "calls.log").contains("stage precious {\"lun\": \"7\"}"), "the attacher's words arrive");
    assert_eq!(cluster.kubectl("exec writer -- stat -c %g /precious/names").trim(), "4711");
    cluster.kubectl("exec writer -- touch /inline/file");
    assert_eq!(calls(cluster, "expand"), Vec::<String>::new());

    growth(cluster);
    block_device(cluster);
    numbers(cluster);

    // The kubelet dies: the pod runs on, and the next one takes it down.
    cluster.kill(NODE, "kubelet");
    drop(driver);
    cluster.kubectl("delete pod writer --wait=false");
    cluster.until("the kubelet asks for the driver", 30, || {
        // A pod stays as long as its driver cannot take its volumes down.
        let found = cluster.json("get pod writer");
        let log = cluster.log(NODE, "kubelet");
        if log.contains("UnmountVolume.TearDown failed for volume \\\"precious\\\"") {
            Ok(())
        } else {
            Err(found["status"].to_string())
        }
    });
    cluster.kubectl("get pod writer");
    let driver = start(cluster);
    cluster.kubectl("wait --for=delete pod/writer --timeout=90s");
    let ended = cluster.until("the volume is unstaged", 30, || {
        let calls = calls(cluster, "precious");
        if calls.last().is_some_and(|call| call == "unstage") { Ok(calls) } else { Err(format!("{calls:?}")) }
    });
    assert_eq!(ended.iter().filter(|call| *call == "unpublish").count(), 1, "{ended:?}");
    cluster.until("the volume is detached", 60, || {
        let left = cluster.json("get volumeattachments")["items"].as_array().map_or(0, Vec::len);
        let in_use = in_use(cluster);
        if left == 0 && in_use.is_empty() { Ok(()) } else { Err(format!("{left} attachments, in use: {in_use}")) }
    });
    assert_eq!(file(cluster, "volumes/precious/names"), "writer\n", "no byte is lost");
    let mounts = cluster.on_node(NODE, &["cat", "/proc/mounts"]);
    assert!(!mounts.contains("kubernetes.io~csi") && !mounts.contains("globalmount"), "{mounts}");
    let inline = cluster.on_node(NODE, &["ls", &format!("/var/lib/kubelet/plugins/{DRIVER}/volumes")]);
    assert!(!inline.contains("csi-"), "an inline volume goes with its pod: {inline}");

    drop(driver);
    let socket = format!("/var/lib/kubelet/plugins_registry/{DRIVER}-reg.sock");
    cluster.on_node(NODE, &["rm", &socket]);
    cluster.until("the driver is forgotten", 30, || {
        let found = cluster.json("get csinode node-1");
        if found["spec"]["drivers"].as_array().is_none_or(Vec::is_empty) { Ok(()) } else { Err(found.to_string()) }
    });
}

/// A volume that became larger is grown, and the claim says so.
fn growth(cluster: &Cluster) {
    cluster.kubectl_args(&["patch", "pv", "precious", "-p", r#"{"spec":{"capacity":{"storage":"2Mi"}}}"#]);
    cluster.until("the claim has grown", 150, || {
        let size = cluster.kubectl("get pvc precious -o jsonpath={.status.capacity.storage}");
        if size == "2Mi" { Ok(()) } else { Err(size) }
    });
    assert!(file(cluster, "calls.log").contains("expand precious 2097152"));
}

const DISK: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  storageClassName: by-hand
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: disk}
  local: {path: /var/lib/kubelet/disk}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-1]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  volumeName: disk
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: grouped}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4712}
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '10000']
    volumeMounts: [{name: disk, mountPath: /disk}]
  volumes: [{name: disk, persistentVolumeClaim: {claimName: disk}}]
---
apiVersion: v1
kind: Pod
metadata: {name: waiting}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '10000']
    volumeMounts: [{name: share, mountPath: /share}]
  volumes: [{name: share, nfs: {server: 127.0.0.1, path: /nothing}}]
"#;

/// A local volume is the group's and outlives its pod; an export that cannot be mounted is told with the helper's words.
pub fn of_mounts(cluster: &Cluster) {
    cluster.on_node(NODE, &["mkdir", "/var/lib/kubelet/disk"]);
    cluster.on_node(NODE, &["touch", "/var/lib/kubelet/disk/old"]);
    cluster.feed("create -f -", DISK);
    cluster.kubectl("wait --for=condition=Ready pod/grouped --timeout=60s");
    assert_eq!(cluster.kubectl("exec grouped -- stat -c %g /disk/old").trim(), "4712");
    cluster.until("the mount's failure is told", 60, || {
        let line = "get events --field-selector involvedObject.name=waiting,reason=FailedMount -o jsonpath={.items[*].message}";
        let told = cluster.kubectl(line);
        let is_told = told.contains("MountVolume.SetUp failed for volume \"share\" : mount failed: exit status");
        if is_told && told.contains("-t nfs 127.0.0.1:/nothing") { Ok(()) } else { Err(told) }
    });
    cluster.kubectl("delete pod grouped waiting");
    cluster.on_node(NODE, &["ls", "/var/lib/kubelet/disk/old"]);
    let mounts = cluster.on_node(NODE, &["cat", "/proc/mounts"]);
    assert!(!mounts.contains("local-volume"), "{mounts}");
}

/// The node tells how full volumes are.
fn numbers(cluster: &Cluster) {
    let answer = cluster.kubectl("get --raw /api/v1/nodes/node-1/proxy/stats/summary");
    let summary: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let pods = summary["pods"].as_array().into_iter().flatten();
    let volumes = pods.filter(|pod| text(pod, "/podRef/name") == "writer").flat_map(|pod| pod["volume"].as_array());
    let of_claim = volumes.flatten().find(|volume| text(volume, "/pvcRef/name") == "precious");
    let of_claim = of_claim.unwrap_or_else(|| panic!("no numbers of the claim: {summary}"));
    assert_eq!((of_claim["capacityBytes"].as_u64(), text(of_claim, "/name")), (Some(1 << 20), "precious"));
    let metrics = cluster.kubectl("get --raw /api/v1/nodes/node-1/proxy/metrics");
    let used = "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"precious\"} 1024";
    assert!(metrics.contains(used), "{metrics}");
}

/// A device is written through, and given back.
fn block_device(cluster: &Cluster) {
    cluster.feed("create -f -", BLOCK);
    until_ready(cluster, "mapper");
    let kind = cluster.kubectl("exec mapper -- stat -c %F /dev/own");
    assert_eq!(kind.trim(), "block special file");
    cluster.kubectl_args(&["exec", "mapper", "--", "sh", "-c", "echo written | dd of=/dev/own bs=512 conv=sync,fsync"]);
    cluster.kubectl("delete pod mapper");
    cluster.until("the device is unstaged", 30, || {
        let calls = calls(cluster, "device");
        if calls == ["stage", "publish", "unpublish", "unstage"] { Ok(()) } else { Err(format!("{calls:?}")) }
    });
    let image =
        cluster.on_node(NODE, &["head", "-c", "8", &format!("/var/lib/kubelet/plugins/{DRIVER}/volumes/device/image")]);
    assert_eq!(image, "written\n");
    let left =
        cluster.try_on_node(NODE, &["ls", "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish"]).out;
    assert_eq!(left.trim(), "", "nothing is left of it");
}
