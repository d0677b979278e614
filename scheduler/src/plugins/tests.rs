//! Queueing hints, plugin by plugin: upstream's, each a row.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::framework::{ClusterEvent, Delta, ExternalChange, Hint, Profile, ProfileConfig, QueuedPod};
use crate::model::PodInfo;
use crate::testing::{NodeBuilder, PodBuilder, node, pod};

fn came(n: NodeBuilder) -> ClusterEvent {
    ClusterEvent::Node { old: None, new: Arc::new(n.base()) }
}

fn changed(old: NodeBuilder, new: NodeBuilder) -> ClusterEvent {
    ClusterEvent::Node { old: Some(Arc::new(old.base())), new: Arc::new(new.base()) }
}

fn assigned(old: Option<PodBuilder>, new: Option<PodBuilder>) -> ClusterEvent {
    let info = |p: PodBuilder| Arc::new(p.on("n").info());
    ClusterEvent::AssignedPod { old: old.map(info), new: new.map(info) }
}

fn own(old: PodBuilder, new: PodBuilder) -> ClusterEvent {
    ClusterEvent::Target { old: Arc::new(old.info()), new: Arc::new(new.info()) }
}

fn object<K: serde::de::DeserializeOwned>(old: Value, new: Value) -> ClusterEvent
where
    ExternalChange: From<Delta<K>>,
{
    let read = |v: Value| (!v.is_null()).then(|| Arc::new(serde_json::from_value(v).expect("object")));
    ClusterEvent::Object(Delta { old: read(old), new: read(new) }.into())
}

fn hint(plugin: &'static str, pod: &PodInfo, event: &ClusterEvent) -> Hint {
    Profile::build(&ProfileConfig::default()).expect("profile").hint(pod, event, [plugin])
}

#[test]
fn what_brings_a_pod_back() {
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

    let claims = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let uses = || pod("p").set("/spec", "volumes", claims.clone());
    let tolerant = || pod("p").set("/spec", "tolerations", json!([{"operator": "Exists"}]));
    let choosy = || pod("p").set("/spec", "nodeSelector", json!({"disk": "ssd"}));
    let gated = || pod("p").set("/spec", "schedulingGates", json!([{"name": "g"}]));
    let ports =
        |p: PodBuilder, n: i32| p.set("/spec/containers/0", "ports", json!([{"containerPort": 1, "hostPort": n}]));
    let claim = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {}});
    let volume = |zone: &str| json!({"metadata": {"name": "v", "labels": {"topology.kubernetes.io/zone": zone}}});
    let class = |mode: &str| json!({"metadata": {"name": "c"}, "provisioner": "x", "volumeBindingMode": mode});
    let driver = |capacity: bool| json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": capacity}});
    let capacity = |size: &str| json!({"metadata": {"name": "c"}, "storageClassName": "c", "capacity": size});
    let csi = json!({"metadata": {"name": "n"}, "spec": {"drivers": []}});
    let attachment = json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}});
    let drivers = |count: i32| {
        let driver = json!({"name": "d", "nodeID": "n", "allocatable": {"count": count}});
        json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}})
    };
    let (yes, no) = (Hint::Queue, Hint::Skip);
    for (plugin, what, waiting, event, want) in [
        (
            "NodeUnschedulable",
            "a node is uncordoned",
            pod("p"),
            changed(node("n").set("/spec", "unschedulable", json!(true)), node("n")),
            yes,
        ),
        (
            "NodeUnschedulable",
            "a cordoned node came",
            pod("p"),
            came(node("n").set("/spec", "unschedulable", json!(true))),
            no,
        ),
        ("NodeName", "a node came", pod("p"), came(node("n")), yes),
        ("NodeName", "a node changed", pod("p"), changed(node("n"), node("n").label("a", "b")), no),
        ("TaintToleration", "a taint went", pod("p"), changed(node("n").taint("t", "", "NoSchedule"), node("n")), yes),
        ("TaintToleration", "a tainted node came", pod("p"), came(node("n").taint("t", "", "NoSchedule")), no),
        ("TaintToleration", "the pod tolerates more", tolerant(), own(pod("p"), tolerant()), yes),
        ("NodeAffinity", "a matching node came", choosy(), came(node("n").label("disk", "ssd")), yes),
        ("NodeAffinity", "another node came", choosy(), came(node("n")), no),
        ("NodePorts", "the port's user went", ports(pod("p"), 80), assigned(Some(ports(pod("q"), 80)), None), yes),
        ("NodePorts", "somebody else went", ports(pod("p"), 80), assigned(Some(ports(pod("q"), 81)), None), no),
        ("NodeResourcesFit", "a pod went", pod("p").cpu("1"), assigned(Some(pod("q")), None), yes),
        (
            "NodeResourcesFit",
            "a pod shrank",
            pod("p").cpu("1"),
            assigned(Some(pod("q").cpu("2")), Some(pod("q").cpu("1"))),
            yes,
        ),
        (
            "NodeResourcesFit",
            "a pod grew",
            pod("p").cpu("1"),
            assigned(Some(pod("q").cpu("1")), Some(pod("q").cpu("2"))),
            no,
        ),
        ("NodeResourcesFit", "a node too small came", pod("p").cpu("8"), came(node("n")), no),
        ("NodeResourcesFit", "a node grew", pod("p").cpu("8"), changed(node("n"), node("n").has("cpu", "9")), yes),
        ("VolumeRestrictions", "its claim came", uses(), object::<PersistentVolumeClaim>(Value::Null, claim("c")), yes),
        (
            "VolumeRestrictions",
            "another claim came",
            uses(),
            object::<PersistentVolumeClaim>(Value::Null, claim("d")),
            no,
        ),
        ("VolumeZone", "its claim changed", uses(), object::<PersistentVolumeClaim>(claim("c"), claim("c")), yes),
        ("VolumeZone", "a volume moved", uses(), object::<PersistentVolume>(volume("a"), volume("b")), yes),
        ("VolumeZone", "a volume changed otherwise", uses(), object::<PersistentVolume>(volume("a"), volume("a")), no),
        (
            "VolumeZone",
            "a class that waits came",
            uses(),
            object::<StorageClass>(Value::Null, class("WaitForFirstConsumer")),
            yes,
        ),
        (
            "VolumeZone",
            "a class that does not came",
            uses(),
            object::<StorageClass>(Value::Null, class("Immediate")),
            no,
        ),
        ("VolumeBinding", "a class came", uses(), object::<StorageClass>(Value::Null, class("Immediate")), yes),
        ("VolumeBinding", "a class changed in vain", uses(), object::<StorageClass>(class("a"), class("b")), no),
        ("VolumeBinding", "a volume came", uses(), object::<PersistentVolume>(Value::Null, volume("a")), yes),
        ("VolumeBinding", "another claim came", uses(), object::<PersistentVolumeClaim>(Value::Null, claim("d")), no),
        ("VolumeBinding", "a driver stops publishing", uses(), object::<CSIDriver>(driver(true), driver(false)), yes),
        ("VolumeBinding", "a driver starts publishing", uses(), object::<CSIDriver>(driver(false), driver(true)), no),
        ("VolumeBinding", "capacity grew", uses(), object::<CSIStorageCapacity>(capacity("1Gi"), capacity("2Gi")), yes),
        (
            "VolumeBinding",
            "capacity shrank",
            uses(),
            object::<CSIStorageCapacity>(capacity("2Gi"), capacity("1Gi")),
            no,
        ),
        ("VolumeBinding", "capacity went", uses(), object::<CSIStorageCapacity>(capacity("2Gi"), Value::Null), no),
        ("NodeVolumeLimits", "a node's drivers came", uses(), object::<CSINode>(Value::Null, csi.clone()), yes),
        (
            "NodeVolumeLimits",
            "an attachment went",
            uses(),
            object::<VolumeAttachment>(attachment.clone(), Value::Null),
            yes,
        ),
        (
            "NodeVolumeLimits",
            "an attachment came",
            uses(),
            object::<VolumeAttachment>(Value::Null, attachment.clone()),
            no,
        ),
        ("NodeVolumeLimits", "its claim came", uses(), object::<PersistentVolumeClaim>(Value::Null, claim("c")), yes),
        ("NodeVolumeLimits", "a limit grew", uses(), object::<CSINode>(drivers(1), drivers(2)), yes),
        ("NodeVolumeLimits", "a limit shrank", uses(), object::<CSINode>(drivers(2), drivers(1)), no),
        ("NodeVolumeLimits", "a driver that sets no limit came", uses(), object::<CSINode>(csi, drivers(0)), no),
        (
            "NodeVolumeLimits",
            "an attachment of no concern went",
            pod("p"),
            object::<VolumeAttachment>(attachment, Value::Null),
            no,
        ),
        ("SchedulingGates", "the gates opened", pod("p"), own(gated(), pod("p")), yes),
        ("SchedulingGates", "a node came", gated(), came(node("n")), no),
    ] {
        assert_eq!(hint(plugin, &waiting.info(), &event), want, "{plugin}: {what}");
    }
}

#[test]
fn only_changes_of_what_was_asked_for_bring_a_pod_back() {
    let asks = || pod("p").cpu("2");
    let ssd = || node("n").label("disk", "ssd");
    let choosy = || pod("p").set("/spec", "nodeSelector", json!({"disk": "ssd"}));
    let tainted = |n: NodeBuilder, key: &str| n.taint(key, "", "NoSchedule");
    let tolerant = || pod("p").set("/spec", "tolerations", json!([{"key": "t", "operator": "Exists"}]));
    let (yes, no) = (Hint::Queue, Hint::Skip);
    for (plugin, what, waiting, event, want) in [
        ("NodeResourcesFit", "a node has more CPU", asks(), changed(node("n"), node("n").has("cpu", "9")), yes),
        ("NodeResourcesFit", "it has more memory", asks(), changed(node("n"), node("n").has("memory", "99Gi")), no),
        ("NodeResourcesFit", "it takes more pods", asks(), changed(node("n"), node("n").has("pods", "200")), yes),
        ("NodeResourcesFit", "it shrank", asks(), changed(node("n").has("cpu", "9"), node("n")), no),
        (
            "NodeResourcesFit",
            "another pod needs less memory",
            asks(),
            assigned(Some(pod("q").cpu("1").memory("2Gi")), Some(pod("q").cpu("1").memory("1Gi"))),
            no,
        ),
        (
            "NodeResourcesFit",
            "the pod itself needs less memory",
            asks(),
            own(asks().memory("2Gi"), asks().memory("1Gi")),
            yes,
        ),
        ("NodeAffinity", "a node gained the label", choosy(), changed(node("n"), ssd()), yes),
        ("NodeAffinity", "it had it before", choosy(), changed(ssd(), ssd().label("x", "y")), no),
        (
            "TaintToleration",
            "a taint that the pod tolerates came",
            tolerant(),
            changed(node("n"), tainted(node("n"), "t")),
            no,
        ),
        (
            "TaintToleration",
            "the one that it does not tolerate went",
            tolerant(),
            changed(tainted(tainted(node("n"), "t"), "u"), tainted(node("n"), "t")),
            yes,
        ),
    ] {
        assert_eq!(hint(plugin, &waiting.info(), &event), want, "{plugin}: {what}");
    }
}

#[test]
fn relations_to_pods_bring_a_pod_back_by_their_keys() {
    let term = |app: &str| json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}]);
    let rule = |kind: &str, terms: Value| {
        pod("p").set("/spec", "affinity", json!({kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}))
    };
    let (near, far) = (|| rule("podAffinity", term("a")), || rule("podAntiAffinity", term("a")));
    let two = [term("a")[0].clone(), json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"tier": "x"}}})];
    let both = || rule("podAffinity", json!(two));
    let spread = |policy: &str| {
        let constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": policy, "labelSelector": {"matchLabels": {"app": "a"}}});
        pod("p").set("/spec", "topologySpreadConstraints", json!([constraint]))
    };
    let tolerant = |p: PodBuilder| p.set("/spec", "tolerations", json!([{"operator": "Exists"}]));
    let (zone, plain) = (|name: &str| node("n").label("zone", name), || node("n"));
    let app = || pod("q").label("app", "a");
    let (yes, no) = (Hint::Queue, Hint::Skip);
    for (plugin, what, waiting, event, want) in [
        ("InterPodAffinity", "a node of a domain came", near(), came(zone("a")), yes),
        ("InterPodAffinity", "a node of no domain came", near(), came(plain()), no),
        ("InterPodAffinity", "a node came", far(), came(plain()), yes),
        ("InterPodAffinity", "a node moved", near(), changed(zone("a"), zone("b")), yes),
        ("InterPodAffinity", "a node left its domain", near(), changed(zone("a"), plain()), no),
        ("InterPodAffinity", "a node left the hated domain", far(), changed(zone("a"), plain()), yes),
        ("InterPodAffinity", "a node joined a domain", far(), changed(plain(), zone("a")), no),
        ("InterPodAffinity", "another label changed", near(), changed(zone("a"), zone("a").label("x", "y")), no),
        (
            "InterPodAffinity",
            "others' terms may have kept it away",
            pod("p"),
            changed(plain(), plain().label("x", "y")),
            yes,
        ),
        ("InterPodAffinity", "a pod that meets one of two terms came", both(), assigned(None, Some(app())), no),
        ("InterPodAffinity", "a pod that meets both came", both(), assigned(None, Some(app().label("tier", "x"))), yes),
        (
            "PodTopologySpread",
            "a pod without a node came",
            pod("p"),
            ClusterEvent::WaitingPod(Arc::new(app().info())),
            no,
        ),
        ("PodTopologySpread", "a node moved", spread("Ignore"), changed(zone("a"), zone("b")), yes),
        (
            "PodTopologySpread",
            "another label changed",
            spread("Ignore"),
            changed(zone("a"), zone("a").label("x", "y")),
            no,
        ),
        (
            "PodTopologySpread",
            "a node of no domain lost a taint",
            spread("Honor"),
            changed(plain().taint("t", "", "NoSchedule"), plain()),
            no,
        ),
        (
            "PodTopologySpread",
            "a node lost a taint",
            spread("Honor"),
            changed(zone("a").taint("t", "", "NoSchedule"), zone("a")),
            yes,
        ),
        (
            "PodTopologySpread",
            "the pod tolerates more where taints count",
            spread("Honor"),
            own(spread("Honor"), tolerant(spread("Honor"))),
            yes,
        ),
        (
            "PodTopologySpread",
            "the pod tolerates more where they do not",
            spread("Ignore"),
            own(spread("Ignore"), tolerant(spread("Ignore"))),
            no,
        ),
        (
            "PodTopologySpread",
            "a label of no concern changed",
            spread("Ignore"),
            own(spread("Ignore"), spread("Ignore").label("x", "y")),
            no,
        ),
        (
            "PodTopologySpread",
            "the pod itself is counted now",
            spread("Ignore"),
            own(spread("Ignore"), spread("Ignore").label("app", "a")),
            yes,
        ),
    ] {
        assert_eq!(hint(plugin, &waiting.info(), &event), want, "{plugin}: {what}");
    }
}

#[test]
fn events_have_upstreams_names() {
    let gated = pod("p").set("/spec", "schedulingGates", json!([{"name": "g"}]));
    for (event, want) in [
        (came(node("n")), "NodeAdd"),
        (changed(node("n"), node("n").has("cpu", "9")), "NodeUpdateNodeAllocatable"),
        (changed(node("n"), node("n").label("a", "b")), "NodeUpdateNodeLabel"),
        (changed(node("n"), node("n").taint("t", "", "NoSchedule")), "NodeUpdateNodeTaint"),
        (ClusterEvent::NodeGone, "NodeDelete"),
        (assigned(None, Some(pod("p"))), "AssignedPodAdd"),
        (assigned(Some(pod("p")), None), "AssignedPodDelete"),
        (assigned(Some(pod("p").cpu("2")), Some(pod("p").cpu("1"))), "AssignedPodUpdatePodScaleDown"),
        (own(gated, pod("p")), "UnschedulablePodUpdatePodSchedulingGatesEliminated"),
        (own(pod("p"), pod("p").label("a", "b")), "UnschedulablePodUpdatePodLabel"),
    ] {
        assert_eq!(event.label(), want);
    }
}

#[test]
fn gates_and_order() {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let gated = pod("p").set("/spec", "schedulingGates", json!([{"name": "a"}, {"name": "b"}])).info();
    let status = profile.pre_enqueue(None, &gated);
    assert_eq!(
        (status.plugin, status.to_string().as_str()),
        ("SchedulingGates", "waiting for scheduling gates: [a b]")
    );
    let now = std::time::Instant::now();
    let queued = |priority, late: u64| {
        QueuedPod::new(Arc::new(pod("p").priority(priority).info()), now + std::time::Duration::from_secs(late))
    };
    let sort = profile.queue_sort();
    assert!(sort.compare(&queued(2, 9), &queued(1, 0)).is_lt(), "higher priority first");
    assert!(sort.compare(&queued(1, 0), &queued(1, 1)).is_lt(), "then first come, first served");
}

#[test]
fn nodes_by_name_and_cordoned_nodes() {
    use crate::testing::check::Check;
    let there = node("a").with(&[]);
    let named = Check::of(super::node_name::build, json!(null));
    assert_eq!(named.filter(&pod("p").on("a").info(), &there), "");
    assert_eq!(named.filter(&pod("p").info(), &there), "");
    assert_eq!(named.filter(&pod("p").on("b").info(), &there), "node(s) didn't match the requested node name");
    let cordoned = node("a").set("/spec", "unschedulable", json!(true)).with(&[]);
    let check = Check::of(super::node_unschedulable::build, json!(null));
    assert_eq!(check.filter(&pod("p").info(), &cordoned), "node(s) were unschedulable");
    let tolerations = json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]);
    assert_eq!(check.filter(&pod("p").set("/spec", "tolerations", tolerations).info(), &cordoned), "");
}
