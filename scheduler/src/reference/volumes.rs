//! Volumes: disks that cannot be shared, how many can be attached, where claims are or can be bound.

use std::collections::BTreeSet;

use serde_json::Value;

use super::resources::storage;
use super::{World, int, list, selectors, text};

/// Names of the pod's claims.
fn claims(pod: &Value) -> Vec<Value> {
    let name = |v: &Value| match v {
        v if !v["persistentVolumeClaim"].is_null() => Some(v["persistentVolumeClaim"]["claimName"].clone()),
        v if !v["ephemeral"].is_null() => {
            Some(Value::from(format!("{}-{}", text(&pod["metadata"]["name"]), text(&v["name"]))))
        }
        _ => None,
    };
    list(&pod["spec"]["volumes"]).filter_map(name).collect()
}

fn claim<'a>(world: &'a World, pod: &Value, name: &Value) -> Option<&'a Value> {
    world.find("PersistentVolumeClaim", &pod["metadata"]["namespace"], name)
}

fn volume<'a>(world: &'a World, name: &Value) -> Option<&'a Value> {
    world.find("PersistentVolume", &Value::Null, name)
}

/// Two uses of one disk: only read-only ones get along, and of some kinds none.
fn same_disk(a: &Value, b: &Value) -> bool {
    let both = |kind: &str, id: &str| !a[kind].is_null() && !b[kind].is_null() && a[kind][id] == b[kind][id];
    let writes = |kind: &str| a[kind]["readOnly"] != true || b[kind]["readOnly"] != true;
    both("awsElasticBlockStore", "volumeID")
        || both("gcePersistentDisk", "pdName") && writes("gcePersistentDisk")
        || both("iscsi", "iqn") && writes("iscsi")
}

/// Nobody on the node has the pod's disks, and nobody anywhere its claims for one pod alone.
pub(super) fn no_conflict(world: &World, pod: &Value, node: &Value) -> bool {
    let mut disks = list(&pod["spec"]["volumes"]);
    let clash = disks.any(|v| world.pods_on(node).any(|p| list(&p["spec"]["volumes"]).any(|w| same_disk(v, w))));
    let placed = || world.all("Node").iter().flat_map(|n| world.pods_on(n));
    !clash
        && claims(pod).iter().all(|name| {
            let Some(claim) = claim(world, pod, name) else { return false };
            let alone = list(&claim["spec"]["accessModes"]).any(|m| m == "ReadWriteOncePod");
            let used =
                |p: &Value| p["metadata"]["namespace"] == pod["metadata"]["namespace"] && claims(p).contains(name);
            !alone || !placed().any(used)
        })
}

/// Driver and handle of the volumes behind a pod's claims; a claim without a volume stands for one of its class's driver.
fn attached(world: &World, pod: &Value) -> BTreeSet<(String, String)> {
    let of = |name: &Value| {
        let claim = claim(world, pod, name)?;
        if let Some(volume) = volume(world, &claim["spec"]["volumeName"]) {
            let csi = &volume["spec"]["csi"];
            return (!csi.is_null()).then(|| (text(&csi["driver"]), text(&csi["volumeHandle"])));
        }
        let class = world.find("StorageClass", &Value::Null, &claim["spec"]["storageClassName"])?;
        Some((text(&class["provisioner"]), format!("unbound {}/{}", text(&pod["metadata"]["namespace"]), text(name))))
    };
    claims(pod).iter().filter_map(of).collect()
}

/// No driver has to attach more volumes than it can.
pub(super) fn attachable(world: &World, pod: &Value, node: &Value) -> bool {
    let Some(csi) = world.find("CSINode", &Value::Null, &node["metadata"]["name"]) else { return true };
    let there: BTreeSet<_> = world.pods_on(node).flat_map(|p| attached(world, p)).collect();
    let new: BTreeSet<_> = attached(world, pod).difference(&there).cloned().collect();
    list(&csi["spec"]["drivers"]).filter(|d| !d["allocatable"]["count"].is_null()).all(|d| {
        let of = |set: &BTreeSet<(String, String)>| set.iter().filter(|(driver, _)| d["name"] == **driver).count();
        of(&new) == 0 || i64::try_from(of(&there) + of(&new)).expect("few") <= int(&d["allocatable"]["count"])
    })
}

fn reachable(volume: &Value, node: &Value) -> bool {
    selectors::node_selector_selects(&volume["spec"]["nodeAffinity"]["required"], node)
}

/// Bound claims' volumes can be reached; the others wait for a consumer, and a volume is there or can be made.
pub(super) fn bindable(world: &World, pod: &Value, node: &Value) -> bool {
    let mut waiting = Vec::new();
    for name in claims(pod) {
        let Some(claim) = claim(world, pod, &name) else { return false };
        if !claim["metadata"]["deletionTimestamp"].is_null() || claim["status"]["phase"] == "Lost" {
            return false;
        }
        let bound = claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes";
        match claim["spec"]["volumeName"].as_str() {
            Some(_) if !bound => return false,
            Some(_) => match volume(world, &claim["spec"]["volumeName"]) {
                Some(v) if reachable(v, node) => {}
                _ => return false,
            },
            None => {
                let class = world.find("StorageClass", &Value::Null, &claim["spec"]["storageClassName"]);
                match class.filter(|c| c["volumeBindingMode"] == "WaitForFirstConsumer") {
                    Some(class) => waiting.push((claim, class)),
                    None => return false,
                }
            }
        }
    }
    // Those that want least choose first.
    waiting.sort_by_key(|(claim, _)| storage(&claim["spec"]["resources"]["requests"]["storage"]));
    let mut taken: Vec<&Value> = Vec::new();
    waiting.iter().all(|(claim, class)| {
        let chosen = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
        if !chosen.is_null() {
            return *chosen == node["metadata"]["name"] && can_be_made(world, claim, class, node);
        }
        match smallest(world, claim, node, &taken) {
            Some(volume) => {
                taken.push(&volume["metadata"]["name"]);
                true
            }
            None => can_be_made(world, claim, class, node),
        }
    })
}

fn smallest<'a>(world: &'a World, claim: &Value, node: &Value, taken: &[&Value]) -> Option<&'a Value> {
    let spec = &claim["spec"];
    let size = |v: &Value| storage(&v["spec"]["capacity"]["storage"]);
    let suits = |v: &&Value| {
        v["spec"]["storageClassName"] == spec["storageClassName"]
            && v["spec"]["claimRef"].is_null()
            && v["status"]["phase"] == "Available"
            && size(v) >= storage(&spec["resources"]["requests"]["storage"])
            && list(&spec["accessModes"]).all(|m| list(&v["spec"]["accessModes"]).any(|have| have == m))
            && (spec["selector"].is_null() || selectors::selects(&spec["selector"], &v["metadata"]["labels"]))
            && reachable(v, node)
            && !taken.contains(&&v["metadata"]["name"])
    };
    world.all("PersistentVolume").iter().filter(suits).min_by_key(|v| size(v))
}

/// The class has a provisioner that makes volumes there, and as far as it tells has room.
fn can_be_made(world: &World, claim: &Value, class: &Value, node: &Value) -> bool {
    if class["provisioner"] == "kubernetes.io/no-provisioner" {
        return false;
    }
    let fits = |term: &Value| {
        list(&term["matchLabelExpressions"])
            .all(|e| list(&e["values"]).any(|v| *v == node["metadata"]["labels"][text(&e["key"])]))
    };
    let topologies = &class["allowedTopologies"];
    if list(topologies).next().is_some() && !list(topologies).any(fits) {
        return false;
    }
    let driver = world.find("CSIDriver", &Value::Null, &class["provisioner"]);
    let wanted = storage(&claim["spec"]["resources"]["requests"]["storage"]);
    if wanted == 0 || !driver.is_some_and(|d| d["spec"]["storageCapacity"] == true) {
        return true;
    }
    world.all("CSIStorageCapacity").iter().any(|c| {
        let limit = if c["maximumVolumeSize"].is_null() { &c["capacity"] } else { &c["maximumVolumeSize"] };
        c["storageClassName"] == class["metadata"]["name"]
            && !limit.is_null()
            && storage(limit) >= wanted
            && selectors::selects(&c["nodeTopology"], &node["metadata"]["labels"])
    })
}

/// Volumes labelled with zones or regions are reached from there; a node in none of them reaches all.
pub(super) fn in_zone(world: &World, pod: &Value, node: &Value) -> bool {
    const LABELS: [(&str, &str); 4] = [
        ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ];
    let labels = &node["metadata"]["labels"];
    if LABELS.iter().all(|(key, _)| labels[key].is_null()) {
        return true;
    }
    claims(pod).iter().filter_map(|name| volume(world, &claim(world, pod, name)?["spec"]["volumeName"])).all(|volume| {
        LABELS.iter().all(|(key, now)| {
            let Some(allowed) = volume["metadata"]["labels"][key].as_str() else { return true };
            let here = if labels[key].is_null() { &labels[now] } else { &labels[key] };
            allowed.split("__").any(|zone| *here == zone)
        })
    })
}
