//! Small random clusters with everything that rules look at.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::{Scoring, World, text};

const NAMESPACES: [&str; 2] = ["default", "other"];
const GIB: &str = "Gi";

fn one_of<T: Copy>(rng: &mut StdRng, list: &[T]) -> T {
    list[rng.random_range(0..list.len())]
}

fn zone(rng: &mut StdRng) -> &'static str {
    one_of(rng, &["a", "b", "c"])
}

/// A node of a number.
pub(super) fn node(rng: &mut StdRng, n: usize) -> Value {
    let mut labels = json!({"kubernetes.io/hostname": format!("n{n}")});
    for (key, chance) in [
        ("zone", 0.9),
        ("topology.kubernetes.io/zone", 0.7),
        ("topology.kubernetes.io/region", 0.3),
        ("failure-domain.beta.kubernetes.io/zone", 0.1),
    ] {
        if rng.random_bool(chance) {
            labels[key] = json!(zone(rng));
        }
    }
    if rng.random_bool(0.6) {
        labels["disk"] = json!(one_of(rng, &["ssd", "hdd"]));
        labels["size"] = json!(one_of(rng, &["1", "5", "9"]));
    }
    let mut taints = Vec::new();
    for i in 0..2 {
        if rng.random_bool(0.2) {
            let effect = one_of(rng, &["NoSchedule", "PreferNoSchedule", "PreferNoSchedule", "NoExecute"]);
            taints.push(json!({"key": format!("t{i}"), "value": one_of(rng, &["v", ""]), "effect": effect}));
        }
    }
    // One size per name: nodes do not disagree about what an image weighs.
    let images: Vec<Value> = [("img:latest", 300), ("big:1", 900), ("registry:5000/tool:latest", 2500)]
        .iter()
        .filter(|_| rng.random_bool(0.4))
        .map(|(name, mib)| json!({"names": [name, format!("{name}@digest")], "sizeBytes": mib * 1024 * 1024_i64}))
        .collect();
    json!({
        "metadata": {"name": format!("n{n}"), "labels": labels},
        "spec": {"unschedulable": rng.random_bool(0.08), "taints": taints},
        "status": {"images": images, "allocatable": {
            "cpu": one_of(rng, &["4", "6", "3500m"]), "memory": one_of(rng, &["8Gi", "12Gi"]), "pods": one_of(rng, &["5", "9"]),
            "ephemeral-storage": "20Gi", "example.com/gpu": one_of(rng, &["0", "1", "3"]), "hugepages-2Mi": "64Mi"}},
    })
}

fn requests(rng: &mut StdRng) -> Value {
    let mut out = json!({});
    for (resource, chance, amounts) in [
        ("cpu", 0.8, ["100m", "500m", "1500m"]),
        ("memory", 0.6, ["128Mi", "1Gi", "3Gi"]),
        ("ephemeral-storage", 0.2, ["1Gi", "5Gi", "9Gi"]),
        ("example.com/gpu", 0.1, ["1", "2", "1"]),
        ("hugepages-2Mi", 0.05, ["2Mi", "16Mi", "64Mi"]),
    ] {
        if rng.random_bool(chance) {
            out[resource] = json!(one_of(rng, &amounts));
        }
    }
    out
}

fn container(rng: &mut StdRng, name: &str) -> Value {
    let mut out = json!({"name": name, "image": one_of(rng, &["img", "big:1", "registry:5000/tool", "none"]),
        "resources": {"requests": requests(rng)}});
    if rng.random_bool(0.12) {
        out["ports"] = json!([{"containerPort": 1, "hostPort": rng.random_range(80..82), "hostIP": one_of(rng, &["", "10.0.0.1", "0.0.0.0", "10.0.0.2"]),
            "protocol": one_of(rng, &["TCP", "UDP"])}]);
        if out["ports"][0]["hostIP"] == "" {
            out["ports"][0].as_object_mut().expect("a port").remove("hostIP");
        }
    }
    out
}

fn selector(rng: &mut StdRng) -> Value {
    match rng.random_range(0..8) {
        0 => json!({}),
        1 => json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}),
        2 => json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
        3 => json!({"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
        _ => json!({"matchLabels": {"app": one_of(rng, &["x", "y", "z"])}}),
    }
}

fn key(rng: &mut StdRng) -> &'static str {
    one_of(rng, &["zone", "kubernetes.io/hostname", "topology.kubernetes.io/zone"])
}

fn node_term(rng: &mut StdRng) -> Value {
    let expression = match rng.random_range(0..6) {
        0 => json!({"key": "disk", "operator": "NotIn", "values": ["hdd"]}),
        1 => json!({"key": "size", "operator": "Gt", "values": ["4"]}),
        2 => json!({"key": "size", "operator": "Lt", "values": ["4"]}),
        3 => json!({"key": "disk", "operator": "Exists"}),
        _ => json!({"key": "zone", "operator": "In", "values": [zone(rng), zone(rng)]}),
    };
    let mut term = json!({"matchExpressions": [expression]});
    if rng.random_bool(0.15) {
        let names = [format!("n{}", rng.random_range(0..8)), format!("n{}", rng.random_range(0..8))];
        term = json!({"matchFields": [{"key": "metadata.name", "operator": one_of(rng, &["In", "NotIn"]), "values": names}]});
        if term["matchFields"][0]["operator"] == "NotIn" {
            term["matchFields"][0]["values"] = json!([names[0]]);
        }
    }
    term
}

fn affinity(rng: &mut StdRng) -> Value {
    let mut out = json!({});
    if rng.random_bool(0.2) {
        let terms: Vec<Value> = (0..rng.random_range(1..3)).map(|_| node_term(rng)).collect();
        out["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({"nodeSelectorTerms": terms});
    }
    if rng.random_bool(0.25) {
        let wishes: Vec<Value> = (0..rng.random_range(1..3))
            .map(|_| json!({"weight": rng.random_range(1..101), "preference": node_term(rng)}))
            .collect();
        out["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!(wishes);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        let term = |rng: &mut StdRng| {
            let mut term = json!({"labelSelector": selector(rng), "topologyKey": key(rng)});
            match rng.random_range(0..6) {
                0 => term["namespaceSelector"] = json!({}),
                1 => term["namespaceSelector"] = json!({"matchLabels": {"team": "blue"}}),
                2 => term["namespaces"] = json!(["other"]),
                _ => {}
            }
            term
        };
        if rng.random_bool(0.15) {
            let terms: Vec<Value> = (0..rng.random_range(1..3)).map(|_| term(rng)).collect();
            out[field]["requiredDuringSchedulingIgnoredDuringExecution"] = json!(terms);
        }
        if rng.random_bool(0.2) {
            let wishes: Vec<Value> = (0..rng.random_range(1..3))
                .map(|_| json!({"weight": rng.random_range(1..101), "podAffinityTerm": term(rng)}))
                .collect();
            out[field]["preferredDuringSchedulingIgnoredDuringExecution"] = json!(wishes);
        }
    }
    out
}

fn spread(rng: &mut StdRng) -> Value {
    let mut out = json!({"maxSkew": rng.random_range(1..3), "topologyKey": key(rng), "labelSelector": selector(rng),
        "whenUnsatisfiable": one_of(rng, &["DoNotSchedule", "ScheduleAnyway"])});
    if rng.random_bool(0.3) {
        out["nodeTaintsPolicy"] = json!(one_of(rng, &["Honor", "Ignore"]));
        out["nodeAffinityPolicy"] = json!(one_of(rng, &["Honor", "Ignore"]));
    }
    if rng.random_bool(0.2) && out["whenUnsatisfiable"] == "DoNotSchedule" {
        out["minDomains"] = json!(rng.random_range(1..4));
    }
    if rng.random_bool(0.2) {
        out["matchLabelKeys"] = json!(["tier"]);
    }
    out
}

/// A volume: a claim of the pod's namespace or a disk.
fn volume(rng: &mut StdRng, i: usize) -> Value {
    let name = format!("v{i}");
    let claim = format!("claim-{}", rng.random_range(0..CLAIMS));
    match rng.random_range(0..10) {
        0 => json!({"name": name, "gcePersistentDisk": {"pdName": "d", "readOnly": rng.random_bool(0.5)}}),
        1 => json!({"name": name, "awsElasticBlockStore": {"volumeID": one_of(rng, &["d", "e"])}}),
        _ => json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}),
    }
}

/// A pod that waits.
pub(super) fn pod(rng: &mut StdRng, name: &str) -> Value {
    let mut labels = json!({"app": one_of(rng, &["x", "y", "z"])});
    if rng.random_bool(0.4) {
        labels["tier"] = json!(one_of(rng, &["front", "back"]));
    }
    let containers: Vec<Value> = (0..rng.random_range(1..3)).map(|i| container(rng, &format!("c{i}"))).collect();
    let mut spec = json!({"containers": containers, "priority": rng.random_range(0..3)});
    if rng.random_bool(0.25) {
        let mut inits: Vec<Value> = (0..rng.random_range(1..3)).map(|i| container(rng, &format!("i{i}"))).collect();
        inits.iter_mut().filter(|_| rng.random_bool(0.5)).for_each(|c| c["restartPolicy"] = json!("Always"));
        spec["initContainers"] = json!(inits);
    }
    if rng.random_bool(0.1) {
        spec["overhead"] = json!({"cpu": "250m", "memory": "64Mi"});
    }
    if rng.random_bool(0.08) {
        spec["resources"] = json!({"requests": {"cpu": one_of(rng, &["2", "700m"]), "memory": "2Gi"}});
    }
    if rng.random_bool(0.15) {
        spec["nodeSelector"] = json!({"disk": "ssd"});
    }
    spec["affinity"] = affinity(rng);
    let mut tolerations = Vec::new();
    for i in 0..2 {
        let toleration = match rng.random_range(0..4) {
            0 => json!({"operator": "Exists"}),
            1 => {
                json!({"key": format!("t{i}"), "operator": "Exists", "effect": one_of(rng, &["NoSchedule", "PreferNoSchedule"])})
            }
            2 => json!({"key": format!("t{i}"), "operator": "Equal", "value": "v"}),
            _ => json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}),
        };
        if rng.random_bool(0.25) {
            tolerations.push(toleration);
        }
    }
    spec["tolerations"] = json!(tolerations);
    if rng.random_bool(0.3) {
        let all: Vec<Value> = (0..rng.random_range(1..3)).map(|_| spread(rng)).collect();
        spec["topologySpreadConstraints"] = json!(all);
    }
    if rng.random_bool(0.3) {
        let all: Vec<Value> = (0..rng.random_range(1..3)).map(|i| volume(rng, i)).collect();
        spec["volumes"] = json!(all);
    }
    if rng.random_bool(0.1) {
        let claim = format!("devices-{}", rng.random_range(0..DEVICE_CLAIMS));
        spec["resourceClaims"] = json!([{"name": "it", "resourceClaimName": claim}]);
    }
    let namespace = one_of(rng, &NAMESPACES);
    let mut meta = json!({"name": name, "namespace": namespace, "uid": format!("uid-{name}"), "labels": labels});
    if rng.random_bool(0.3) {
        meta["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "u", "controller": true}]);
    }
    json!({"metadata": meta, "spec": spec, "status": {}})
}

/// Gives the pod a container that is resized where it runs, or whose resize was refused.
pub(super) fn resize(rng: &mut StdRng, pod: &mut Value) {
    let granted = json!({"cpu": one_of(rng, &["100m", "900m"]), "memory": "256Mi"});
    pod["status"]["containerStatuses"] = json!([{"name": "c0", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResources": granted, "resources": {"requests": requests(rng)}}]);
    if rng.random_bool(0.3) {
        pod["status"]["conditions"] = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
    }
}

const CLAIMS: usize = 8;
const DEVICE_CLAIMS: usize = 6;

/// A cluster without pods.
pub(super) fn world(rng: &mut StdRng) -> World {
    let mut out = World::default();
    for (name, team) in [("default", "red"), ("other", "blue")] {
        out.all_mut("Namespace").push(json!({"metadata": {"name": name, "labels": {"team": team}}}));
        let set = json!({"metadata": {"name": "set", "namespace": name}, "spec": {"selector": {"matchLabels": {"app": "x"}}}});
        out.all_mut("ReplicaSet").push(set);
    }
    (0..rng.random_range(1..8)).for_each(|n| {
        let made = node(rng, n);
        out.all_mut("Node").push(made);
    });
    storage(rng, &mut out);
    devices(rng, &mut out);
    out
}

/// Services of a moment.
pub(super) fn services(rng: &mut StdRng) -> Vec<Value> {
    let service = |i: usize, rng: &mut StdRng| {
        json!({"metadata": {"name": format!("s{i}"), "namespace": one_of(rng, &NAMESPACES)},
            "spec": {"selector": {"app": one_of(rng, &["x", "y"])}}})
    };
    (0..rng.random_range(0..3)).map(|i| service(i, rng)).collect()
}

fn storage(rng: &mut StdRng, out: &mut World) {
    let classes = [
        ("made", "csi.example.com", "WaitForFirstConsumer"),
        ("zoned", "csi.example.com", "WaitForFirstConsumer"),
        ("found", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
        ("now", "csi.example.com", "Immediate"),
    ];
    for (name, provisioner, mode) in classes {
        let mut class = json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
        if name == "zoned" {
            class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": "zone", "values": [zone(rng)]}]}]);
        }
        out.all_mut("StorageClass").push(class);
        if rng.random_bool(0.6) {
            let mut room = json!({"metadata": {"name": format!("room-{name}"), "namespace": "default"}, "storageClassName": name,
                "nodeTopology": {"matchLabels": {"zone": zone(rng)}}, "capacity": one_of(rng, &["1Gi", "20Gi"])});
            if rng.random_bool(0.3) {
                room["maximumVolumeSize"] = json!("4Gi");
            }
            out.all_mut("CSIStorageCapacity").push(room);
        }
    }
    let driver = json!({"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": rng.random_bool(0.5)}});
    out.all_mut("CSIDriver").push(driver);
    for n in 0..8 {
        if rng.random_bool(0.5) {
            let drivers =
                json!([{"name": "csi.example.com", "nodeID": "n", "allocatable": {"count": rng.random_range(1..3)}}]);
            out.all_mut("CSINode").push(json!({"metadata": {"name": format!("n{n}")}, "spec": {"drivers": drivers}}));
        }
    }
    for i in 0..6 {
        let made = free_volume(rng, i);
        out.all_mut("PersistentVolume").push(made);
    }
    for namespace in NAMESPACES {
        for i in 0..CLAIMS {
            claim(rng, namespace, i, out);
        }
    }
}

fn free_volume(rng: &mut StdRng, i: usize) -> Value {
    let zones = json!([{"key": "zone", "operator": "In", "values": [zone(rng), zone(rng)]}]);
    json!({"metadata": {"name": format!("free-{i}"), "labels": {"speed": one_of(rng, &["fast", "slow"])}},
        "spec": {"storageClassName": one_of(rng, &["found", "made"]), "accessModes": one_of(rng, &[&["ReadWriteOnce"][..], &["ReadWriteOnce", "ReadOnlyMany"]]),
            "capacity": {"storage": format!("{}{GIB}", [3, 6, 9, 4, 7, 10][i])}, "csi": {"driver": "csi.example.com", "volumeHandle": format!("h-{i}")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": zones}]}}},
        "status": {"phase": one_of(rng, &["Available", "Available", "Released"])}})
}

/// A claim: bound with its volume, half bound, waiting, or told where to go.
fn claim(rng: &mut StdRng, namespace: &str, i: usize, out: &mut World) {
    let (name, bound) = (format!("claim-{i}"), format!("bound-{namespace}-{i}"));
    let mode = one_of(rng, &["ReadWriteOnce", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"]);
    let mut it = json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{namespace}-{name}")},
        "spec": {"storageClassName": one_of(rng, &["made", "zoned", "found", "now"]), "accessModes": [mode],
            "resources": {"requests": {"storage": format!("{}{GIB}", i + 1)}}}, "status": {}});
    match rng.random_range(0..10) {
        0..=4 => {
            it["spec"]["volumeName"] = json!(bound);
            it["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
            let mut labels = json!({});
            for key in [
                "topology.kubernetes.io/zone",
                "failure-domain.beta.kubernetes.io/zone",
                "topology.kubernetes.io/region",
            ] {
                if rng.random_bool(0.2) {
                    labels[key] = json!(one_of(rng, &["a", "b", "a__b", "c"]));
                }
            }
            let mut volume = json!({"metadata": {"name": bound, "labels": labels}, "status": {"phase": "Bound"},
                "spec": {"csi": {"driver": "csi.example.com", "volumeHandle": bound}, "claimRef": {"name": name, "namespace": namespace}}});
            if rng.random_bool(0.4) {
                volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [node_term(rng)]}});
            }
            if rng.random_bool(0.95) {
                out.all_mut("PersistentVolume").push(volume);
            }
        }
        5 => it["spec"]["volumeName"] = json!("free-0"),
        6 => {
            let chosen = format!("n{}", rng.random_range(0..8));
            it["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": chosen});
        }
        7 => it["spec"]["selector"] = json!({"matchLabels": {"speed": "fast"}}),
        _ => {}
    }
    out.all_mut("PersistentVolumeClaim").push(it);
}

fn devices(rng: &mut StdRng, out: &mut World) {
    for driver in ["gpu", "tpu"] {
        let expression = format!("device.driver == \"{driver}.example.com\"");
        let class = json!({"metadata": {"name": driver}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        out.all_mut("DeviceClass").push(class);
        for n in 0..8 {
            let all: Vec<Value> = (0..rng.random_range(0..4)).map(|d| json!({"name": format!("d{d}")})).collect();
            if !all.is_empty() {
                let slice = json!({"metadata": {"name": format!("{driver}-{n}")}, "spec": {"driver": format!("{driver}.example.com"),
                    "nodeName": format!("n{n}"), "pool": {"name": format!("{driver}-n{n}"), "generation": 1, "resourceSliceCount": 1}, "devices": all}});
                out.all_mut("ResourceSlice").push(slice);
            }
        }
    }
    for namespace in NAMESPACES {
        for i in 0..DEVICE_CLAIMS {
            let request = |rng: &mut StdRng, j: usize| {
                json!({"name": format!("r{j}"), "exactly": {"deviceClassName": one_of(rng, &["gpu", "tpu"]),
                    "allocationMode": "ExactCount", "count": rng.random_range(1..3)}})
            };
            let requests: Vec<Value> = (0..rng.random_range(1..3)).map(|j| request(rng, j)).collect();
            let name = format!("devices-{i}");
            let mut claim = json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{namespace}-{name}"), "resourceVersion": "1"},
                "spec": {"devices": {"requests": requests}}, "status": {}});
            let n = rng.random_range(0..8);
            let pool = format!("gpu-n{n}");
            let device = json!({"request": "r0", "driver": "gpu.example.com", "pool": pool, "device": "d0"});
            let gone = out
                .all("ResourceClaim")
                .iter()
                .any(|c| c["status"]["allocation"]["devices"]["results"][0]["pool"] == *pool);
            let there = out.all("ResourceSlice").iter().any(|s| text(&s["metadata"]["name"]) == format!("gpu-{n}"));
            if rng.random_bool(0.3) && there && !gone {
                let fields = json!([{"key": "metadata.name", "operator": "In", "values": [format!("n{n}")]}]);
                claim["status"]["allocation"] = json!({"devices": {"results": [device]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}});
            }
            out.all_mut("ResourceClaim").push(claim);
        }
    }
}

/// A strategy with its resources.
pub(super) fn scoring(rng: &mut StdRng) -> Scoring {
    let more = |rng: &mut StdRng| {
        let mut names = vec!["cpu", "memory"];
        names.extend(["ephemeral-storage", "example.com/gpu"].into_iter().filter(|_| rng.random_bool(0.4)));
        names
    };
    let fit = more(rng).into_iter().map(|n| (n, rng.random_range(1..4))).collect();
    let shape = one_of(rng, &[&[(0, 0), (100, 10)][..], &[(0, 10), (100, 0)], &[(10, 2), (50, 9), (70, 3)]]);
    Scoring {
        strategy: one_of(rng, &["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]),
        fit,
        balance: more(rng),
        shape: shape.to_vec(),
    }
}
