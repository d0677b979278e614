//! Rules about the node itself: cordoned, tainted, selected, its host ports and images.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{BEST, World, int, list, selectors, text};

/// Cordoned nodes take only pods that tolerate being unschedulable.
pub(super) fn schedulable(pod: &Value, node: &Value) -> bool {
    let taint = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    node["spec"]["unschedulable"] != true || selectors::tolerates(list(&pod["spec"]["tolerations"]), &taint)
}

/// Taints that keep pods away are tolerated.
pub(super) fn tolerated(pod: &Value, node: &Value) -> bool {
    list(&node["spec"]["taints"])
        .filter(|t| t["effect"] == "NoSchedule" || t["effect"] == "NoExecute")
        .all(|t| selectors::tolerates(list(&pod["spec"]["tolerations"]), t))
}

/// `nodeSelector` and required node affinity.
pub(super) fn selected(pod: &Value, node: &Value) -> bool {
    let pairs = pod["spec"]["nodeSelector"].as_object();
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    pairs.into_iter().flatten().all(|(key, value)| node["metadata"]["labels"][key] == *value)
        && selectors::node_selector_selects(required, node)
}

/// Address, protocol and port of every host port; containers and sidecars.
fn host_ports(pod: &Value) -> Vec<(String, String, i64)> {
    let sidecars = list(&pod["spec"]["initContainers"]).filter(|c| c["restartPolicy"] == "Always");
    let or = |v: &Value, default: &str| v.as_str().unwrap_or(default).to_owned();
    list(&pod["spec"]["containers"])
        .chain(sidecars)
        .flat_map(|c| list(&c["ports"]))
        .filter(|p| int(&p["hostPort"]) > 0)
        .map(|p| (or(&p["hostIP"], "0.0.0.0"), or(&p["protocol"], "TCP"), int(&p["hostPort"])))
        .collect()
}

/// Nobody on the node has one of the pod's host ports, at an address that overlaps.
pub(super) fn ports_are_free(world: &World, pod: &Value, node: &Value) -> bool {
    let used: Vec<_> = world.pods_on(node).flat_map(host_ports).collect();
    let overlap = |a: &str, b: &str| a == b || a == "0.0.0.0" || b == "0.0.0.0";
    host_ports(pod)
        .iter()
        .all(|(ip, protocol, port)| !used.iter().any(|(other, p, n)| p == protocol && n == port && overlap(ip, other)))
}

/// 100 for the node with no soft taint that is not tolerated, 0 for the one with the most.
pub(super) fn taint_scores(pod: &Value, fitting: &[&Value]) -> Vec<i64> {
    let soft =
        || list(&pod["spec"]["tolerations"]).filter(|t| ["", "PreferNoSchedule"].contains(&&*text(&t["effect"])));
    let count = |node: &&Value| {
        let taints = list(&node["spec"]["taints"]).filter(|t| t["effect"] == "PreferNoSchedule");
        i64::try_from(taints.filter(|t| !selectors::tolerates(soft(), t)).count()).expect("few")
    };
    let counts: Vec<i64> = fitting.iter().map(count).collect();
    let most = counts.iter().copied().max().unwrap_or(0);
    counts.iter().map(|n| if most == 0 { BEST } else { BEST - BEST * n / most }).collect()
}

/// Sums of the weights of preferred terms, the highest made 100.
pub(super) fn affinity_scores(pod: &Value, fitting: &[&Value]) -> Vec<i64> {
    let wishes = &pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let sum = |node: &&Value| -> i64 {
        list(wishes).filter(|w| selectors::term_selects(&w["preference"], node)).map(|w| int(&w["weight"])).sum()
    };
    let sums: Vec<i64> = fitting.iter().map(sum).collect();
    let most = sums.iter().copied().max().unwrap_or(0);
    sums.iter().map(|s| if most == 0 { 0 } else { BEST * s / most }).collect()
}

/// Bytes of the pod's images that are there, each weighed by the part of all nodes that have it; 23 MiB are nothing, 1000
/// MiB per container everything.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
pub(super) fn image_scores(world: &World, pod: &Value, fitting: &[&Value]) -> Vec<i64> {
    const MIB: i64 = 1024 * 1024;
    let containers: Vec<&Value> =
        list(&pod["spec"]["initContainers"]).chain(list(&pod["spec"]["containers"])).collect();
    let full = |image: &Value| {
        let name = text(image);
        let last = name.rsplit('/').next().unwrap_or_default().to_owned();
        if last.contains(':') { name } else { format!("{name}:latest") }
    };
    let size_on = |node: &Value, name: &str| {
        list(&node["status"]["images"]).find(|i| list(&i["names"]).any(|n| n == name)).map(|i| int(&i["sizeBytes"]))
    };
    let most = 1000 * MIB * i64::try_from(containers.len().max(1)).expect("few");
    fitting
        .iter()
        .map(|node| {
            let weigh = |c: &&Value| {
                let name = full(&c["image"]);
                let Some(size) = size_on(node, &name) else { return 0 };
                let having: BTreeSet<String> = world
                    .all("Node")
                    .iter()
                    .filter(|n| size_on(n, &name).is_some())
                    .map(|n| text(&n["metadata"]["name"]))
                    .collect();
                (size as f64 * (having.len() as f64 / world.all("Node").len() as f64)) as i64
            };
            let sum: i64 = containers.iter().map(weigh).sum();
            BEST * (sum.clamp(23 * MIB, most) - 23 * MIB) / (most - 23 * MIB)
        })
        .collect()
}
