//! Failures of processes and nodes, and the cluster's recovery from each.

use crate::two_tier;
use e2e::testing::{Cluster, is_ready, text};

/// `kill -9` of a container's process: restarted, counted, and the reason is told.
pub fn a_killed_process_is_restarted(cluster: &Cluster) {
    cluster.feed(
        "create -f -",
        r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "victim"}, "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "sleeper", "image": "busybox:1.36", "command": ["sleep", "7777"]}]}}"#,
    );
    cluster.kubectl("wait --for=condition=Ready pod/victim --timeout=60s");
    let node = text(&cluster.json("get pod victim"), "/spec/nodeName").to_owned();
    let pids = std::process::Command::new("pgrep").args(["-f", "^sleep 7777"]).output().expect("pgrep runs").stdout;
    let pids = String::from_utf8_lossy(&pids);
    let pid = pids.lines().next().unwrap_or_else(|| panic!("the container's process is on {node}"));
    cluster.on_node(&node, &["kill", "-9", pid]);
    let status = cluster.until("the container runs again", 60, || {
        let pod = cluster.json("get pod victim");
        let status = pod.pointer("/status/containerStatuses/0").cloned().unwrap_or_default();
        if status["restartCount"] == 1 && status["state"]["running"].is_object() {
            Ok(status)
        } else {
            Err(status.to_string())
        }
    });
    let last = &status["lastState"]["terminated"];
    assert_eq!((last["exitCode"].as_i64(), last["reason"].as_str()), (Some(137), Some("Error")), "{status}");
    cluster.kubectl("delete pod victim --now");
}

/// Every process of ours, and etcd, killed hard: all come back, nothing is lost, running pods are not touched.
pub fn every_component_comes_back(cluster: &Cluster) {
    let containers = |cluster: &Cluster| -> Vec<String> {
        let pods = cluster.pods("app in (mysql,myweb)");
        let mut ids: Vec<String> =
            pods.iter().map(|pod| text(pod, "/status/containerStatuses/0/containerID").to_owned()).collect();
        ids.sort();
        ids
    };
    let before = containers(cluster);
    assert_eq!(before.len(), 3);
    let mut killed = Vec::new();
    for process in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        killed.push(("control-plane", process));
    }
    for node in ["node-1", "node-2"] {
        killed.extend([(node, "kubelet"), (node, "kube-proxy")]);
    }
    for (machine, process) in killed {
        cluster.kill(machine, process);
        cluster.until(&format!("the API answers after {process} was killed"), 60, || {
            let said = cluster.try_kubectl(&["get", "--raw", "/readyz"], None);
            if said.ok { Ok(()) } else { Err(said.err) }
        });
    }
    cluster.kubectl("create configmap after --from-literal=all=well");
    cluster.feed("create -f -", &sleeper("after"));
    cluster.kubectl("wait --for=condition=Ready pod/after --timeout=90s");
    cluster.kubectl("delete pod after --now");
    assert_eq!(containers(cluster), before, "the pods' containers are the same ones");
    two_tier::page_works(cluster);
}

fn sleeper(name: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{
            "containers": [{{"name": "main", "image": "busybox:1.36", "command": ["sleep", "1000"]}}]}}}}"#
    )
}

/// A kubelet that stops: its node is NotReady, its pods go to the other node, the page stays.
pub fn a_dead_kubelet_loses_its_pods(cluster: &Cluster) {
    // Not the node of the database: its data would move, but it would start empty again.
    let database = text(&cluster.pods("app=mysql")[0], "/spec/nodeName").to_owned();
    let (lost, left) = if database == "node-1" { ("node-2", "node-1") } else { ("node-1", "node-2") };
    cluster.must(&["stop", lost, "kubelet"]);
    cluster.until("the node is NotReady", 120, || {
        let said = cluster.kubectl(&format!("get node {lost}"));
        if said.contains("NotReady") { Ok(()) } else { Err(said) }
    });
    let pods = cluster.pods("app=myweb");
    let tolerations = pods[0].pointer("/spec/tolerations").expect("default tolerations").to_string();
    assert!(tolerations.contains("node.kubernetes.io/unreachable"), "{tolerations}");
    // 300 seconds of toleration is what users get; a test shows the same with less.
    for pod in pods.iter().filter(|pod| text(pod, "/spec/nodeName") == lost) {
        let name = text(pod, "/metadata/name");
        cluster.kubectl(&format!("get pod {name}"));
    }
    cluster.until("the endpoints leave the lost node", 120, || {
        let slices = cluster.json("get endpointslices -l kubernetes.io/service-name=myweb");
        let ready = slices["items"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
        let stray: Vec<_> = ready.filter(|e| e["nodeName"] == lost && e["conditions"]["ready"] == true).collect();
        if stray.is_empty() { Ok(()) } else { Err(format!("{stray:?}")) }
    });
    for node in ["10.89.0.11", "10.89.0.12"] {
        cluster.until(&format!("the page of {node}"), 60, || cluster.curl(&format!("http://{node}:30001/demo/")));
    }
    evict_quickly(cluster, lost, left);
    cluster.must(&["start", lost, "kubelet"]);
    cluster.kubectl(&format!("wait --for=condition=Ready node/{lost} --timeout=120s"));
}

/// A pod that tolerates an unreachable node for two seconds is evicted and replaced on the other node.
fn evict_quickly(cluster: &Cluster, lost: &str, left: &str) {
    cluster.feed(
        "apply -f -",
        &format!(
            r#"{{"apiVersion": "v1", "kind": "ReplicationController", "metadata": {{"name": "mobile"}}, "spec": {{
            "replicas": 1, "selector": {{"app": "mobile"}}, "template": {{"metadata": {{"labels": {{"app": "mobile"}}}}, "spec": {{
              "terminationGracePeriodSeconds": 1,
              "tolerations": [
                {{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}},
                {{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}}],
              "affinity": {{"nodeAffinity": {{"preferredDuringSchedulingIgnoredDuringExecution": [
                {{"weight": 100, "preference": {{"matchExpressions": [{{"key": "kubernetes.io/hostname", "operator": "In", "values": ["{left}"]}}]}}}}]}}}},
              "containers": [{{"name": "main", "image": "busybox:1.36", "command": ["sleep", "1000"]}}]}}}}}}}}"#
        ),
    );
    cluster.until("the pod runs on the node that is left", 60, || {
        let pods = cluster.pods("app=mobile");
        match pods.iter().find(|pod| is_ready(pod) && text(pod, "/spec/nodeName") == left) {
            Some(_) => Ok(()),
            None => Err(cluster.kubectl("get pods -o wide -l app=mobile")),
        }
    });
    assert!(cluster.kubectl(&format!("describe node {lost}")).contains("node.kubernetes.io/unreachable:NoExecute"));
    cluster.kubectl("delete rc mobile");
}
