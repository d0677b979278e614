//! The driver in a cluster, with upstream's attacher, provisioner, resizer and snapshotter: what is written is found again,
//! whatever dies in between, and nothing is left once everything is deleted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use e2e::testing::{Cluster, is_ready, run, text};

const DRIVER: &str = "folders.test.ironclad";
const NODES: [&str; 2] = ["node-1", "node-2"];

const KEEPER: &str = r"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: keeper}
spec:
  serviceName: keeper
  selector: {matchLabels: {app: keeper}}
  template:
    metadata: {labels: {app: keeper}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node-1}
      terminationGracePeriodSeconds: 1
      securityContext: {fsGroup: 4711}
      containers:
      - name: main
        image: busybox:1.36
        command: [sleep, '10000']
        volumeMounts:
        - {name: data, mountPath: /data}
        - {name: inline, mountPath: /inline}
      volumes:
      - {name: inline, csi: {driver: folders.test.ironclad}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      storageClassName: folders
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 320Mi}}
";

const SNAPSHOT: &str = r"
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: of-keeper}
spec:
  volumeSnapshotClassName: folders
  source: {persistentVolumeClaimName: data-keeper-0}
";

/// A claim, and a pod that has it.
fn user(name: &str, node: &str, claim: &str, volume: &str) -> String {
    format!(
        r"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  storageClassName: folders
  resources: {{requests: {{storage: 640Mi}}}}
  {claim}
---
{}",
        pod(name, node, name, volume)
    )
}

fn pod(name: &str, node: &str, claim: &str, volume: &str) -> String {
    format!(
        r"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: user}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '10000']
    {volume}
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}]
"
    )
}

const MOUNTED: &str = "volumeMounts: [{name: v, mountPath: /data}]";
const AS_DEVICE: &str = "volumeDevices: [{name: v, devicePath: /dev/own}]";

/// The cluster, and where its volumes are.
struct Storage {
    cluster: Cluster,
    data: PathBuf,
}

/// Volumes live through everything that happens to them.
pub fn live() {
    let cluster = Cluster::start(&["--nodes", "2"]);
    let data = cluster.layout().root.join("storage");
    cluster.load("busybox");
    let storage = Storage { cluster, data };
    storage.bring_up();
    storage.write();
    storage.grow();
    storage.take_snapshot();
    storage.restore();
    storage.move_to_other_node();
    storage.use_device();
    storage.belong_to_one_pod();
    storage.leave_nothing();
    storage.go_with_the_cluster();
}

impl Storage {
    fn bring_up(&self) {
        let layout = self.cluster.layout();
        let home = std::env::var("HOME").unwrap_or("/root".into());
        let cache = std::env::var("CACHE").unwrap_or(format!("{home}/.cache/ironclad"));
        let program = layout.binaries.join("cluster").display().to_string();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/storage.sh").display().to_string();
        let driver = self.cluster.example("csi-driver");
        let said = run(&script, &[&cache, &program, &layout.root.display().to_string(), &driver], None);
        assert!(said.ok, "the storage comes up: {}{}", said.out, said.err);
        for node in NODES {
            self.cluster.until(&format!("the driver is known on {node}"), 30, || {
                let found = self.cluster.json(&format!("get csinode {node}"));
                if text(&found["spec"]["drivers"][0], "/name") == DRIVER { Ok(()) } else { Err(found.to_string()) }
            });
        }
    }

    fn until_ready(&self, pod: &str, node: &str) {
        self.cluster.until(&format!("{pod} is ready on {node}"), 120, || {
            let said = self.cluster.try_kubectl(&["get", "pod", pod, "-o", "json"], None);
            let found = serde_json::from_str(&said.out).unwrap_or_default();
            let is_there = is_ready(&found) && text(&found, "/spec/nodeName") == node;
            if is_there { Ok(()) } else { Err(format!("{}{}", said.err, found["status"])) }
        });
    }

    /// Runs a shell's line in a pod.
    fn shell(&self, pod: &str, line: &str) -> String {
        self.cluster.kubectl_args(&["exec", pod, "--", "sh", "-c", line]).trim().to_owned()
    }

    fn sum(&self, pod: &str) -> String {
        let said = self.shell(pod, "sha256sum </data/bytes");
        said.split_whitespace().next().unwrap_or_default().to_owned()
    }

    /// Kills the driver of a node hard, and waits until another one serves its socket.
    fn kill_driver(&self, node: &str) {
        let of_node = format!("{DRIVER} {node} --data={}", self.data.display());
        let find = || {
            let processes = std::fs::read_dir("/proc").expect("processes").flatten();
            let pids = processes.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
            let is_driver = |pid: &i32| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).replace('\0', " ").contains(&of_node)
            };
            pids.into_iter().find(is_driver)
        };
        let pid = find().expect("the driver runs");
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs");
        assert!(killed.success());
        self.cluster.until(&format!("the driver of {node} is back"), 60, || match find() {
            Some(other) if other != pid => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    fn write(&self) {
        self.cluster.feed("create -f -", KEEPER);
        self.until_ready("keeper-0", NODES[0]);
        assert_eq!(self.shell("keeper-0", "stat -c %g /data"), "4711");
        self.shell("keeper-0", "dd if=/dev/urandom of=/data/bytes bs=65536 count=128 && sync && echo x >/inline/file");
        assert_eq!(self.shell("keeper-0", "stat -c %g /data/bytes"), "4711");
        let sum = self.sum("keeper-0");
        std::fs::write(self.data.join("sum"), sum).expect("kept");
        self.cluster.kill(NODES[0], "kubelet");
        self.kill_driver(NODES[0]);
        self.assert_same("keeper-0");
    }

    fn assert_same(&self, pod: &str) {
        let sum = std::fs::read_to_string(self.data.join("sum")).expect("the sum");
        assert_eq!(self.sum(pod), sum, "every byte is found again by {pod}");
    }

    /// The file system grows under the pod, though driver and kubelet die meanwhile.
    fn grow(&self) {
        let patch = r#"{"spec":{"resources":{"requests":{"storage":"640Mi"}}}}"#;
        self.cluster.kubectl_args(&["patch", "pvc", "data-keeper-0", "-p", patch]);
        self.kill_driver(NODES[0]);
        self.cluster.kill(NODES[0], "kubelet");
        self.cluster.until("the node has to grow it", 180, || {
            let found = self.cluster.json("get pvc data-keeper-0");
            let state = text(&found, "/status/allocatedResourceStatuses/storage");
            let is_its_turn = state.starts_with("Node") || text(&found, "/status/capacity/storage") == "640Mi";
            if is_its_turn { Ok(()) } else { Err(found["status"].to_string()) }
        });
        let begun = Instant::now();
        self.cluster.until("the claim has grown", 120, || {
            let found = self.cluster.json("get pvc data-keeper-0");
            if text(&found, "/status/capacity/storage") == "640Mi" { Ok(()) } else { Err(found["status"].to_string()) }
        });
        eprintln!("the node has grown the volume after {:.1} s", begun.elapsed().as_secs_f64());
        let blocks = self.shell("keeper-0", "df -k /data | tail -1 | awk '{print $2}'");
        assert!(blocks.parse::<u64>().is_ok_and(|blocks| blocks > 500 << 10), "{blocks} KiB");
        self.assert_same("keeper-0");
    }

    fn take_snapshot(&self) {
        self.cluster.feed("create -f -", SNAPSHOT);
        self.cluster.until("the snapshot is ready", 60, || {
            let found = self.cluster.json("get volumesnapshot of-keeper");
            if found["status"]["readyToUse"] == true { Ok(()) } else { Err(found.to_string()) }
        });
    }

    /// Restores a snapshot, and copies a claim, on another node.
    fn restore(&self) {
        let of_snapshot = "accessModes: [ReadWriteOnce]\n  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: of-keeper}";
        let of_claim = "accessModes: [ReadWriteOnce]\n  dataSource: {kind: PersistentVolumeClaim, name: data-keeper-0}";
        self.cluster.feed("create -f -", &user("restored", NODES[1], of_snapshot, MOUNTED));
        self.cluster.feed("create -f -", &user("cloned", NODES[1], of_claim, MOUNTED));
        for name in ["restored", "cloned"] {
            self.until_ready(name, NODES[1]);
            self.assert_same(name);
        }
    }

    /// The volume follows its pod: detached here, attached there.
    fn move_to_other_node(&self) {
        let patch = r#"{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"node-2"}}}}}"#;
        self.cluster.kubectl_args(&["patch", "statefulset", "keeper", "-p", patch]);
        self.kill_driver(NODES[0]);
        self.until_ready("keeper-0", NODES[1]);
        self.assert_same("keeper-0");
        assert_eq!(self.shell("keeper-0", "ls /inline"), "", "an inline volume goes with its pod");
    }

    fn use_device(&self) {
        let claim = "accessModes: [ReadWriteOnce]\n  volumeMode: Block";
        self.cluster.feed("create -f -", &user("device", NODES[0], claim, AS_DEVICE));
        self.until_ready("device", NODES[0]);
        assert_eq!(self.shell("device", "stat -c %F /dev/own"), "block special file");
        self.shell("device", "echo written | dd of=/dev/own bs=512 conv=sync,fsync");
        self.kill_driver(NODES[0]);
        self.cluster.kubectl("delete pod device");
        self.cluster.feed("create -f -", &pod("device", NODES[1], "device", AS_DEVICE));
        self.until_ready("device", NODES[1]);
        assert_eq!(self.shell("device", "dd if=/dev/own bs=8 count=1 2>/dev/null"), "written");
    }

    /// A volume for one pod is not given to a second one before the first has gone.
    fn belong_to_one_pod(&self) {
        let claim = "accessModes: [ReadWriteOncePod]";
        self.cluster.feed("create -f -", &user("first", NODES[0], claim, MOUNTED));
        self.until_ready("first", NODES[0]);
        self.shell("first", "echo first >/data/name && sync");
        self.cluster.feed("create -f -", &pod("second", NODES[0], "first", MOUNTED));
        self.cluster.until("the second pod has to wait", 30, || {
            let found = self.cluster.json("get pod second");
            let told = text(&found, "/status/conditions/0/message").to_owned();
            if told.contains("ReadWriteOncePod") { Ok(()) } else { Err(found["status"].to_string()) }
        });
        self.cluster.kill(NODES[0], "kubelet");
        self.cluster.kubectl("delete pod first");
        self.until_ready("second", NODES[0]);
        assert_eq!(self.shell("second", "cat /data/name"), "first");
    }

    fn leave_nothing(&self) {
        self.cluster.kubectl("delete statefulset keeper");
        self.cluster.kubectl("delete pods -l app=user --wait=false");
        self.cluster.kubectl("wait --for=delete pod -l app=user --timeout=90s");
        self.cluster.kubectl("wait --for=delete pod/keeper-0 --timeout=90s");
        self.cluster.kubectl("delete volumesnapshot of-keeper --timeout=60s");
        self.cluster.kubectl("delete pvc --all --timeout=60s");
        self.cluster.until("volumes, attachments and snapshots are gone", 120, || {
            let left = self.cluster.kubectl("get pv,volumeattachments,volumesnapshotcontents -o name");
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        self.cluster.until("no folder is left", 60, || {
            let count = |folder: &str| std::fs::read_dir(self.data.join(folder)).expect("a folder").count();
            let left = (count("volumes"), count("snapshots"));
            if left == (0, 0) { Ok(()) } else { Err(format!("{left:?}")) }
        });
        let loops = run("losetup", &["--noheadings", "--list", "--output", "BACK-FILE"], None).out;
        assert!(!loops.contains("storage/volumes"), "no device is left: {loops}");
        for node in NODES {
            let mounts = self.cluster.on_node(node, &["cat", "/proc/mounts"]);
            assert!(!mounts.contains("kubernetes.io~csi") && !mounts.contains("globalmount"), "{node}: {mounts}");
            let folder = "/var/lib/kubelet/plugins/kubernetes.io/csi";
            // The folders of all devices stay, as upstream's do.
            let find = ["find", folder, "-mindepth", "2", "-not", "-name", "publish", "-not", "-name", "staging"];
            let left = self.cluster.try_on_node(node, &find).out;
            assert_eq!(left.trim(), "", "nothing is left on {node}");
            let in_use = self.cluster.kubectl(&format!("get node {node} -o jsonpath={{.status.volumesInUse}}"));
            assert_eq!(in_use, "", "{node}");
        }
    }
    /// A cluster that is taken down takes the devices of its volumes along, mounted or not.
    fn go_with_the_cluster(&self) {
        let (mode, block) = ("accessModes: [ReadWriteOnce]", "accessModes: [ReadWriteOnce]\n  volumeMode: Block");
        self.cluster.feed("create -f -", &user("left", NODES[0], mode, MOUNTED));
        self.cluster.feed("create -f -", &user("left-device", NODES[1], block, AS_DEVICE));
        self.until_ready("left", NODES[0]);
        self.until_ready("left-device", NODES[1]);
        let devices = || run("losetup", &["--noheadings", "--list", "--output", "NAME"], None).out.lines().count();
        let before = devices();
        self.cluster.stop();
        // Those of the two volumes, and the one by which the kubelet kept the pod's device open.
        assert_eq!(devices() + 3, before, "no device is left");
    }
}
