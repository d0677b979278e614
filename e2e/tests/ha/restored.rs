//! A backup, changes after it, and the way back: whoever watched at a revision that is no more lists anew.

use e2e::testing::Cluster;

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: restored}
spec:
  replicas: 1
  selector: {matchLabels: {app: restored}}
  template:
    metadata: {labels: {app: restored}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: main, image: "busybox:1.36", command: [sleep, infinity]}
"#;

/// The kubelet, which kept running, ends pods that the backup does not know and keeps the one that it knows.
pub fn informers_notice(cluster: &Cluster) {
    cluster.feed("apply -f -", DEPLOYMENT);
    cluster.kubectl("rollout status deployment/restored --timeout=60s");
    let kept = cluster.pods("app=restored")[0]["metadata"]["uid"].clone();
    let folder = std::env::temp_dir().join(format!("ironclad-backup-{}", std::process::id()));
    let folder = folder.display().to_string();
    cluster.must(&["backup", &folder]);

    cluster.kubectl("scale deployment/restored --replicas=3");
    cluster.kubectl("rollout status deployment/restored --timeout=60s");
    cluster.kubectl("create configmap later");
    assert_eq!(running(cluster), 3);
    let kubelet = cluster.pid("node-1", "kubelet");
    cluster.must(&["restore", &folder]);

    let said = cluster.refused("get configmap later");
    assert!(said.contains("NotFound"), "{said}");
    cluster.until("the node runs what the backup knows", 60, || match running(cluster) {
        1 => Ok(()),
        more => Err(more.to_string()),
    });
    assert_eq!(cluster.pid("node-1", "kubelet"), kubelet, "the kubelet was not restarted");
    let pods = cluster.pods("app=restored");
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0]["metadata"]["uid"], kept);
    // And all goes on.
    cluster.kubectl("scale deployment/restored --replicas=2");
    cluster.kubectl("rollout status deployment/restored --timeout=60s");
    cluster.kubectl("delete deployment restored");
    std::fs::remove_dir_all(&folder).expect("the backup goes");
}

/// Containers of the Deployment on the node, as its runtime knows them.
fn running(cluster: &Cluster) -> usize {
    let socket = ["ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "containers", "list"];
    let listed = cluster.on_node("node-1", &socket);
    listed.lines().filter(|line| line.contains("busybox:1.36")).count()
}
