use std::sync::Arc;

use serde_json::{Value, json};

use crate::framework::ledger::Choice;
use crate::framework::plugin::{Filter as _, PreFilter as _, Reserve as _};
use crate::framework::{Code, Context, CycleState, Features, Nominated};
use crate::model::{PodInfo, Snapshot};
use crate::testing::{check::Check, node, pod};

const NOT_HERE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NONE_FREE: &str = "node(s) didn't find available persistent volumes to bind";

fn check(claim: Value, volumes: &[Value], classes: &[Value]) -> Check {
    let mut check = Check::of(|args| super::build(args, Features::default()), json!(null));
    let listers = &mut check.listers;
    if !claim.is_null() {
        listers.claims.insert(("default".into(), "c".into()), Arc::new(serde_json::from_value(claim).expect("claim")));
    }
    for v in volumes {
        let name = v["metadata"]["name"].as_str().expect("name").to_owned();
        listers.volumes.insert(name, Arc::new(serde_json::from_value(v.clone()).expect("volume")));
    }
    for c in classes {
        let name = c["metadata"]["name"].as_str().expect("name").to_owned();
        listers.classes.insert(name, Arc::new(serde_json::from_value(c.clone()).expect("class")));
    }
    check
}

fn user() -> PodInfo {
    pod("p").set("/spec", "volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])).info()
}

fn volume(name: &str, size: &str, on: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"phase": "Available"}, "spec": {"storageClassName": "late", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}]}]}}}})
}

fn claim(annotations: Value, volume: &str) -> Value {
    json!({"metadata": {"name": "c", "namespace": "default", "annotations": annotations},
        "spec": {"storageClassName": "late", "volumeName": volume, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}}})
}

fn class(provisioner: &str) -> Value {
    json!({"metadata": {"name": "late"}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"})
}

#[test]
fn filter() {
    let nodes = [node("a").with(&[]), node("b").with(&[])];
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let static_class = class("kubernetes.io/no-provisioner");
    for (what, check, want) in [
        ("no claim", check(json!(null), &[], &[]), ["persistentvolumeclaim \"c\" not found"; 2]),
        ("bound", check(claim(bound.clone(), "v"), &[volume("v", "5Gi", "a")], &[]), ["", NOT_HERE]),
        (
            "bound to nothing",
            check(claim(bound, "v"), &[], &[]),
            ["node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"; 2],
        ),
        ("immediate", check(claim(json!({}), ""), &[], &[]), ["pod has unbound immediate PersistentVolumeClaims"; 2]),
        (
            "a volume is there",
            check(claim(json!({}), ""), &[volume("v", "9Gi", "b")], std::slice::from_ref(&static_class)),
            [NONE_FREE, ""],
        ),
        (
            "too small",
            check(claim(json!({}), ""), &[volume("v", "1Gi", "b")], std::slice::from_ref(&static_class)),
            [NONE_FREE; 2],
        ),
        ("made anywhere", check(claim(json!({}), ""), &[], &[class("csi.example.com")]), ["", ""]),
        (
            "made where chosen before",
            check(claim(json!({"volume.kubernetes.io/selected-node": "b"}), ""), &[], &[class("csi.example.com")]),
            [NONE_FREE, ""],
        ),
    ] {
        let got: Vec<String> = check.statuses(&user(), &nodes).iter().map(ToString::to_string).collect();
        assert_eq!(got, want, "{what}");
    }
}

#[test]
fn the_smallest_volume_is_taken() {
    let base = node("a").base();
    let volumes: Vec<_> = [volume("big", "50Gi", "a"), volume("small", "6Gi", "a"), volume("tiny", "1Gi", "a")]
        .into_iter()
        .map(|v| Arc::new(serde_json::from_value(v).expect("volume")))
        .collect();
    let claim = serde_json::from_value(claim(json!({}), "")).expect("claim");
    let name = |taken: &str| {
        super::matching::smallest(&claim, &volumes, &base, |v| v == taken).and_then(|v| v.metadata.name.clone())
    };
    assert_eq!(name("").as_deref(), Some("small"));
    assert_eq!(name("small").as_deref(), Some("big"));
}

#[test]
fn volumes_have_the_class_of_attributes_that_is_asked_for_and_are_available() {
    let base = node("a").base();
    let classed = |class: &str, phase: &str| {
        let mut v = volume("v", "6Gi", "a");
        v["spec"]["volumeAttributesClassName"] = json!(class);
        v["status"] = json!({"phase": phase});
        vec![Arc::new(serde_json::from_value(v).expect("volume"))]
    };
    for (what, wanted, volumes, fits) in [
        ("the same class", "gold", classed("gold", "Available"), true),
        ("another class", "gold", classed("silver", "Available"), false),
        ("a class that nobody asked for", "", classed("silver", "Available"), false),
        ("no class", "gold", classed("", "Available"), false),
        ("no phase", "gold", classed("gold", ""), false),
        ("bound", "gold", classed("gold", "Bound"), false),
    ] {
        let mut asks = claim(json!({}), "");
        asks["spec"]["volumeAttributesClassName"] = json!(wanted);
        let asks = serde_json::from_value(asks).expect("claim");
        assert_eq!(super::matching::smallest(&asks, &volumes, &base, |_| false).is_some(), fits, "{what}");
    }
}

#[test]
fn classes_of_attributes_are_refused_without_their_gate() {
    let nodes = [node("b").with(&[])];
    let mut asks = claim(json!({}), "");
    asks["spec"]["volumeAttributesClassName"] = json!("gold");
    let off = Features { volume_attributes: false, ..Features::default() };
    let why = "unsupported volumeAttributesClassName is set on claim default/c when the feature-gate \
        VolumeAttributesClass is disabled";
    let mut check = check(asks, &[], &[class("csi.example.com")]);
    assert_eq!(check.statuses(&user(), &nodes)[0].to_string(), "");
    check.replace(super::build(&json!(null), off).expect("plugin"));
    let status = &check.statuses(&user(), &nodes)[0];
    assert_eq!((status.code(), status.to_string()), (Code::Error, why.to_owned()));
}

#[test]
fn claim_is_reserved_for_all_pods_that_are_bound_with_it() {
    let nodes = vec![node("a").with(&[]), node("b").with(&[])];
    let made = check(claim(json!({}), ""), &[volume("v", "6Gi", "a"), volume("w", "6Gi", "b")], &[class("x")]);
    let (snapshot, nominated) = (Snapshot::of(nodes.clone()), Nominated::default());
    let now = jiff::Timestamp::UNIX_EPOCH;
    let cx = Context { snapshot: &snapshot, listers: &made.listers, nominated: &nominated, now };
    let timeout = std::time::Duration::from_secs(1);
    let plugin = super::VolumeBinding { timeout, shape: None, attributes: true };
    let begin = || {
        let mut state = CycleState::default();
        plugin.pre_filter(cx, &mut state, &user()).expect("claims are there");
        let said = nodes.iter().map(|node| plugin.filter(cx, &state, &user(), node).to_string()).collect::<Vec<_>>();
        (state, said)
    };
    let (mut first, said) = begin();
    assert_eq!(said, ["", ""]);
    assert!(plugin.reserve(cx, &mut first, &user(), &nodes[0]).is_success());
    assert_eq!(made.listers.ledger.chosen("default/c"), Some(Choice::Volume("v".into())));
    // No informer has shown anything of that yet.
    let (mut second, said) = begin();
    assert_eq!(said, ["", NONE_FREE]);
    assert!(plugin.reserve(cx, &mut second, &user(), &nodes[0]).is_success());
    plugin.unreserve(&mut first, &user(), "a");
    assert_eq!(begin().1, ["", NONE_FREE], "the second one is still bound with it");
    plugin.unreserve(&mut second, &user(), "a");
    assert_eq!(begin().1, ["", ""]);
}

#[test]
fn claim_that_had_its_node_before_is_awaited_since_then() {
    let of = |annotations: Value| {
        let mut asks = claim(annotations, "");
        asks["metadata"]["resourceVersion"] = json!("7");
        let make = vec![Arc::new(serde_json::from_value(asks).expect("claim"))];
        let plan = super::Plan { make, ..super::Plan::default() };
        let reserved = super::Reserved { plan, ledger: Arc::default(), released: Arc::default() };
        reserved.awaited().iter().map(|awaited| awaited.since).collect::<Vec<_>>()
    };
    assert_eq!(of(json!({"volume.kubernetes.io/selected-node": "b"})), [7]);
    assert_eq!(of(json!({})), [0], "its node is written first");
}

#[test]
fn capacity() {
    let nodes = [node("a").label("zone", "a").with(&[]), node("b").label("zone", "b").with(&[])];
    let short = "node(s) did not have enough free storage";
    let published = |on: bool| json!({"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": on}});
    let room = |zone: &str, capacity: &str, largest: Value| {
        json!({"metadata": {"name": zone}, "storageClassName": "late", "nodeTopology": {"matchLabels": {"zone": zone}},
            "capacity": capacity, "maximumVolumeSize": largest})
    };
    for (what, driver, rooms, want) in [
        ("no driver object", json!(null), vec![], ["", ""]),
        ("capacity is not published", published(false), vec![], ["", ""]),
        ("nothing is left", published(true), vec![], [short, short]),
        (
            "enough in one zone",
            published(true),
            vec![room("a", "10Gi", json!(null)), room("b", "1Gi", json!(null))],
            ["", short],
        ),
        (
            "the largest volume counts",
            published(true),
            vec![room("a", "10Gi", json!("2Gi")), room("b", "10Gi", json!("5Gi"))],
            [short, ""],
        ),
    ] {
        let mut check = check(claim(json!({}), ""), &[], &[class("csi.example.com")]);
        if !driver.is_null() {
            let driver = Arc::new(serde_json::from_value(driver).expect("driver"));
            check.listers.csi_drivers.insert("csi.example.com".into(), driver);
        }
        check.listers.capacities =
            rooms.into_iter().map(|r| Arc::new(serde_json::from_value(r).expect("capacity"))).collect();
        let got: Vec<String> = check.statuses(&user(), &nodes).iter().map(ToString::to_string).collect();
        assert_eq!(got, want, "{what}");
    }
}

#[test]
fn second_pod_with_a_claim_follows_the_choice_of_the_first() {
    let nodes = [node("a").with(&[]), node("b").with(&[])];
    let volumes = [volume("v", "6Gi", "a"), volume("w", "6Gi", "b")];
    for (what, class, choice, want) in [
        ("nobody has chosen", class("kubernetes.io/no-provisioner"), None, ["", ""]),
        (
            "a volume is chosen",
            class("kubernetes.io/no-provisioner"),
            Some(Choice::Volume("v".to_owned())),
            ["", NONE_FREE],
        ),
        ("a node is chosen", class("csi.example.com"), Some(Choice::Node("b".to_owned())), [NONE_FREE, ""]),
    ] {
        let check = check(claim(json!({}), ""), &volumes, &[class]);
        if let Some(choice) = choice {
            check.listers.ledger.choose("default/c".to_owned(), choice);
        }
        let got: Vec<String> = check.statuses(&user(), &nodes).iter().map(ToString::to_string).collect();
        assert_eq!(got, want, "{what}");
    }
}

#[test]
fn bound_disk_of_old_is_where_its_driver_says() {
    let migrated = "kubernetes.io/aws-ebs,kubernetes.io/gce-pd,kubernetes.io/azure-disk";
    let bound = claim(json!({"pv.kubernetes.io/bind-completed": "yes"}), "v");
    let disk = |source: Value, labels: Value, zone: Value| {
        let mut spec = source;
        if !zone.is_null() {
            let term = json!({"matchExpressions": [{"key": zone, "operator": "In", "values": ["z"]}]});
            spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [term]}});
        }
        json!({"metadata": {"name": "v", "labels": labels}, "spec": spec})
    };
    let ebs = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id}});
    let gce = || json!({"gcePersistentDisk": {"pdName": "d"}});
    let azure = || json!({"azureDisk": {"diskName": "d", "diskURI": "u"}});
    let (zone, driver) = ("topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone");
    let old_zone = "failure-domain.beta.kubernetes.io/zone";
    let error = "could not translate pv: failed to translate Kubernetes ID to EBS Volume ID \
        Invalid format for AWS volume (aws://z/x)";
    for (what, volume, label, plugins, want) in [
        ("translated affinity", disk(ebs("vol-1"), json!({}), json!(zone)), driver, migrated, ""),
        ("older label", disk(ebs("vol-1"), json!({}), json!(old_zone)), driver, migrated, ""),
        ("label of the volume", disk(ebs("vol-1"), json!({zone: "y__z"}), json!(null)), driver, migrated, ""),
        ("elsewhere", disk(ebs("vol-1"), json!({zone: "y"}), json!(null)), driver, migrated, NOT_HERE),
        ("the plugin's own label does not count", disk(ebs("vol-1"), json!({}), json!(zone)), zone, migrated, NOT_HERE),
        ("the node has not moved", disk(ebs("vol-1"), json!({}), json!(zone)), zone, "", ""),
        ("another driver", disk(gce(), json!({}), json!(zone)), "topology.gke.io/zone", migrated, ""),
        ("a driver without zones", disk(azure(), json!({}), json!(zone)), zone, migrated, ""),
        ("a name that is none", disk(ebs("aws://z/x"), json!({}), json!(zone)), driver, migrated, error),
    ] {
        let mut check = check(bound.clone(), &[volume], &[]);
        let meta = json!({"name": "a", "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": plugins}});
        let csi = serde_json::from_value(json!({"metadata": meta, "spec": {"drivers": []}})).expect("csi node");
        check.listers.csi_nodes.insert("a".into(), Arc::new(csi));
        let status = check.status(&user(), &node("a").label(label, "z").with(&[]));
        assert_eq!(status.to_string(), want, "{what}");
        assert_eq!(status.code() == Code::Error, want == error, "{what}");
    }
}

#[test]
fn nodes_are_scored_by_how_full_their_storage_would_be() {
    let nodes = ["a", "b", "c"].map(|name| node(name).label("zone", name).with(&[]));
    let shaped = |check: Check| check.scores_after_filter(&user(), &nodes);
    let scoring = |claim: Value, volumes: &[Value], class: Value| {
        let features = Features { capacity_scores: true, ..Features::default() };
        let mut check = check(claim, volumes, &[class]);
        check.replace(super::build(&json!(null), features).expect("plugin"));
        check
    };
    // Volumes that are there: 5Gi of 5, 10 and 50.
    let volumes = [volume("s", "5Gi", "a"), volume("m", "10Gi", "b"), volume("l", "50Gi", "c")];
    let fixed = scoring(claim(json!({}), ""), &volumes, class("kubernetes.io/no-provisioner"));
    assert_eq!(shaped(fixed), [0, 50, 90]);
    // Places where they are made, by what is left; one that says nothing does not count.
    let mut made = scoring(claim(json!({}), ""), &[], class("csi.example.com"));
    let driver = json!({"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": true}});
    made.listers
        .csi_drivers
        .insert("csi.example.com".into(), Arc::new(serde_json::from_value(driver).expect("driver")));
    made.listers.capacities = [("a", "5Gi"), ("b", "20Gi"), ("c", "100Gi")]
        .map(|(zone, left)| {
            let capacity = json!({"metadata": {"name": zone}, "storageClassName": "late", "capacity": left,
                "nodeTopology": {"matchLabels": {"zone": zone}}});
            Arc::new(serde_json::from_value(capacity).expect("capacity"))
        })
        .to_vec();
    assert_eq!(shaped(made), [0, 75, 95]);
    // Without the gate nothing is scored.
    let plain = check(claim(json!({}), ""), &volumes, &[class("kubernetes.io/no-provisioner")]);
    assert_eq!(plain.scores_after_filter(&user(), &nodes), Vec::<i64>::new());
}
