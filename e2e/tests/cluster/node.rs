//! Behaviour that only a node shows: resources that change while containers run, volumes that pods claim, runtime
//! classes.

use e2e::testing::Cluster;

const PODS: &str = r#"
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: named-otherwise}
handler: runc
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: claimed}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  storageClassName: by-hand
  hostPath: {path: /var/lib/kubelet/claimed, type: DirectoryOrCreate}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper}
spec:
  terminationGracePeriodSeconds: 1
  runtimeClassName: named-otherwise
  securityContext: {fsGroup: 1000}
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'echo kept >/volume/file; touch /scratch/file; exec sleep 10000']
    resources: {requests: {cpu: 20m, memory: 20Mi}, limits: {cpu: 50m, memory: 40Mi}}
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    volumeMounts:
    - {name: claimed, mountPath: /volume}
    - {name: scratch, mountPath: /scratch, subPathExpr: $(NAME)/$(NAME)}
  volumes:
  - name: claimed
    persistentVolumeClaim: {claimName: claim}
  - name: scratch
    emptyDir: {}
"#;

/// A pod that uses all of it.
pub fn keeps_and_resizes(cluster: &Cluster) {
    cluster.feed("create -f -", PODS);
    cluster.kubectl("wait --for=condition=Ready pod/keeper --timeout=60s");
    assert_eq!(cluster.kubectl("exec keeper -- cat /volume/file"), "kept\n");

    assert_eq!(limits(cluster), "5000 41943040", "as it was made");
    let patch = r#"{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"30m"},"limits":{"cpu":"80m","memory":"60Mi"}}}]}}"#;
    cluster.kubectl_args(&["patch", "pod", "keeper", "--subresource=resize", "-p", patch]);
    cluster.until("the resize", 30, || {
        let pod = cluster.json("get pod keeper");
        let status = &pod["status"]["containerStatuses"][0];
        let done = status["resources"]["limits"]["cpu"] == "80m" && status["resources"]["requests"]["cpu"] == "30m";
        let conditions = pod["status"]["conditions"].to_string();
        if done && !conditions.contains("PodResize") { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    assert_eq!(limits(cluster), "8000 62914560", "in place");
    assert_eq!(cluster.kubectl("get pod keeper -o jsonpath={.status.containerStatuses[0].restartCount}"), "0");
    let huge =
        r#"{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"5k"},"limits":{"cpu":"5k"}}}]}}"#;
    cluster.kubectl_args(&["patch", "pod", "keeper", "--subresource=resize", "-p", huge]);
    cluster.kubectl("wait --for=jsonpath={.status.conditions[?(@.type==\"PodResizePending\")].reason}=Infeasible pod/keeper --timeout=30s");
    assert_eq!(limits(cluster), "8000 62914560", "what does not fit changes nothing");

    cluster.kubectl("delete pod keeper --now");
    cluster.kubectl("delete pvc claim --timeout=30s");
    cluster.kubectl("delete pv claimed --timeout=30s");
    cluster.kubectl("delete runtimeclass named-otherwise");
}

/// The container's CPU quota and memory limit as the kernel has them, on either version of cgroups.
fn limits(cluster: &Cluster) -> String {
    let cpu = "cut -d' ' -f1 /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us";
    let memory = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes";
    let command = format!("echo $({cpu}) $({memory})");
    cluster.kubectl_args(&["exec", "keeper", "--", "sh", "-c", &command]).trim().to_owned()
}
