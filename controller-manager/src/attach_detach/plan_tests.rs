//! Attaching and detaching, node by node.

use super::*;
use serde_json::{Value, json};

fn node(v: Value) -> Node {
    let mut n: Node = serde_json::from_value(v).expect("node");
    n.metadata.name = Some("n1".into());
    n.metadata.annotations.get_or_insert_default().entry(MANAGED.into()).or_insert("true".into());
    n
}

fn ready(status: &str, rest: Value) -> Node {
    let mut status = json!({"conditions": [{"type": "Ready", "status": status}]});
    status.as_object_mut().expect("map").extend(rest.as_object().expect("map").clone());
    node(json!({"status": status}))
}

fn volume(name: &str) -> Attachable {
    Attachable { volume: name.into(), driver: "d".into(), handle: name.into(), exclusive: true, inline: None }
}

fn wanted(name: &str, elsewhere: &[&str], used_by: &[(&str, &str)]) -> BTreeMap<String, WantedVolume> {
    let elsewhere = elsewhere.iter().map(|s| (*s).to_owned()).collect();
    let used_by = used_by.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    BTreeMap::from([(
        name.to_owned(),
        WantedVolume { volume: volume(name), elsewhere, used_by, namespace: "ns".into() },
    )])
}

fn attachment(attached: bool, deleting: bool) -> VolumeAttachment {
    let deleted = deleting.then_some("2026-01-01T00:00:00Z");
    serde_json::from_value(json!({"metadata": {"name": "a", "deletionTimestamp": deleted},
        "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "a"}}, "status": {"attached": attached}}))
    .expect("attachment")
}

fn look(
    node: Option<&Node>,
    wanted: &BTreeMap<String, WantedVolume>,
    va: Option<&VolumeAttachment>,
    unwanted_for: u64,
) -> NodeDecision {
    look_after(node, wanted, va, unwanted_for, &[])
}

/// After attachments were made that the cache does not show yet.
fn look_after(
    node: Option<&Node>,
    wanted: &BTreeMap<String, WantedVolume>,
    va: Option<&VolumeAttachment>,
    unwanted_for: u64,
    made: &[&str],
) -> NodeDecision {
    let made = made.iter().map(|name| (*name).to_owned()).collect();
    let attachments = va
        .map(|object| {
            let unwanted_for = Duration::from_secs(unwanted_for);
            ("a".to_owned(), Attachment { object, unique_name: volume("a").unique_name(), unwanted_for })
        })
        .into_iter()
        .collect();
    plan(&Snapshot {
        node,
        left_mounted: None,
        wanted,
        listed: &BTreeMap::new(),
        flex_wanted: &BTreeMap::new(),
        flex: &BTreeMap::new(),
        attachments: &attachments,
        made: &made,
        never_force: false,
    })
}

const IN_USE: &str = "kubernetes.io/csi/d^a";

#[test]
fn attaches_what_pods_need() {
    let n = ready("True", json!({}));
    let d = look(Some(&n), &wanted("a", &[], &[]), None, 0);
    assert_eq!(d.attach, [("a".to_owned(), volume("a"))]);
    let d = look_after(Some(&n), &wanted("a", &[], &[]), None, 0, &["a"]);
    assert_eq!(d, NodeDecision::default(), "the cache does not show it yet");
    let d = look(Some(&n), &wanted("a", &[], &[]), Some(&attachment(false, false)), 0);
    assert_eq!(d, NodeDecision::default(), "the driver is at it");
    let d = look(Some(&n), &wanted("a", &[], &[]), Some(&attachment(true, false)), 0);
    assert_eq!(d.report.map(|r| r[0].name.clone()).as_deref(), Some(IN_USE));
    assert_eq!(d.attached, ["a"]);
    let unmanaged = node(json!({"metadata": {"annotations": {MANAGED: "false"}}}));
    assert_eq!(look(Some(&unmanaged), &wanted("a", &[], &[]), None, 0), NodeDecision::default());
}

#[test]
fn one_node_at_a_time() {
    let n = ready("True", json!({}));
    let base = "Multi-Attach error for volume \"a\" Volume is already ";
    for (used_by, why) in [
        (vec![], "exclusively attached to one node and can't be attached to another"),
        (vec![("ns", "p"), ("ns", "q")], "used by pod(s) p, q"),
        (vec![("x", "p")], "used by 1 pod(s) in different namespaces"),
        (vec![("ns", "p"), ("x", "q")], "used by pod(s) p and 1 pod(s) in different namespaces"),
    ] {
        let d = look(Some(&n), &wanted("a", &["n2"], &used_by), None, 0);
        assert_eq!(d.blocked, [("a".to_owned(), format!("{base}{why}"))]);
        assert!(d.attach.is_empty());
    }
    let mut shared = wanted("a", &["n2"], &[]);
    shared.get_mut("a").expect("wanted").volume.exclusive = false;
    assert_eq!(look(Some(&n), &shared, None, 0).attach.len(), 1);
}

#[test]
fn detaches_when_unmounted_or_lost() {
    let none = BTreeMap::new();
    let va = attachment(true, false);
    let used = json!({"volumesInUse": [IN_USE], "volumesAttached": [{"name": IN_USE, "devicePath": ""}]});
    let idle =
        json!({"volumesAttached": [{"name": IN_USE, "devicePath": ""}, {"name": "acme.io/flex/x", "devicePath": ""}]});
    let lost = |t: Value| node(json!({"spec": {"taints": t}, "status": used}));
    for (n, unwanted_for, detach, why) in [
        (Some(ready("True", idle.clone())), 0, Some(None), "unmounted"),
        (Some(ready("True", used.clone())), 9999, None, "mounted on a healthy node"),
        (Some(ready("Unknown", used.clone())), 100, None, "mounted on a silent node"),
        (Some(ready("Unknown", used.clone())), 361, Some(Some("timeout")), "silent for six minutes"),
        (
            Some(lost(json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]))),
            0,
            Some(Some("out-of-service")),
            "declared lost",
        ),
        (None, 100, None, "the node is gone"),
        (None, 361, Some(Some("timeout")), "gone for six minutes"),
    ] {
        let d = look(n.as_ref(), &none, Some(&va), unwanted_for);
        assert_eq!(d.detach, detach.map(|f| ("a".to_owned(), f)).into_iter().collect::<Vec<_>>(), "{why}");
        // A node must not believe in what is about to go.
        let reported = d.report.map(|r| r.iter().any(|v| v.name == IN_USE));
        assert_eq!(reported, (detach.is_some() && n.is_some()).then_some(false), "{why}");
        let waits = ["mounted on a silent node", "the node is gone"].contains(&why);
        assert_eq!(d.again.is_some(), waits, "{why}");
    }
    let d = look(Some(&ready("True", idle)), &none, Some(&attachment(true, true)), 0);
    assert!(d.detach.is_empty(), "deletion is under way");
    assert_eq!(d.report.map(|r| r.len()), Some(1), "another plugin's entry stays");
}

#[test]
fn pods_that_need_their_volumes() {
    let pod = |v: Value| serde_json::from_value::<Pod>(v).expect("pod");
    let deleted = "2026-01-01T00:00:00Z";
    let state =
        |s: Value| json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": s}]);
    let keep = node(json!({"metadata": {"annotations": {KEEP_TERMINATED: "true"}}}));
    for (p, want) in [
        (json!({"status": {"phase": "Pending"}}), true),
        (json!({"status": {"phase": "Succeeded"}}), false),
        (
            json!({"metadata": {"deletionTimestamp": deleted}, "status": {"containerStatuses": state(json!({"running": {}}))}}),
            true,
        ),
        (
            json!({"metadata": {"deletionTimestamp": deleted}, "status": {"containerStatuses": state(json!({"terminated": {"exitCode": 0}}))}}),
            false,
        ),
    ] {
        assert_eq!(needs_volumes(&pod(p.clone()), None), want, "{p}");
        assert!(needs_volumes(&pod(p), Some(&keep)));
    }
}

#[test]
fn whose_claims_are_used() {
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [], "volumes": [
        {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "named", "persistentVolumeClaim": {"claimName": "c"}}]}}))
        .expect("pod");
    let owned = |uid: &str| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
    for (name, owners, want) in [
        ("c", json!([]), true),
        ("p-own", owned("u"), true),
        ("p-own", json!([]), false),
        ("p-own", owned("another"), false),
    ] {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": owners}})).expect("claim");
        assert_eq!(may_use(&pod, &claim), want, "{name} {owners}");
    }
}

#[test]
fn what_a_node_that_is_gone_had_mounted() {
    let (none, made) = (BTreeMap::new(), BTreeSet::new());
    let object = attachment(true, false);
    let unique_name = volume("a").unique_name();
    let attachments = BTreeMap::from([(
        "a".to_owned(),
        Attachment { object: &object, unique_name, unwanted_for: Duration::from_secs(1) },
    )]);
    let (mounted, other) = ([IN_USE.to_owned()], ["kubernetes.io/csi/d^b".to_owned()]);
    for (left, goes) in [(None, false), (Some(&mounted[..]), false), (Some(&other[..]), true), (Some(&[][..]), true)] {
        let d = plan(&Snapshot {
            node: None,
            left_mounted: left,
            wanted: &none,
            listed: &BTreeMap::new(),
            flex_wanted: &BTreeMap::new(),
            flex: &BTreeMap::new(),
            attachments: &attachments,
            made: &made,
            never_force: false,
        });
        assert_eq!((d.detach.is_empty(), d.again.is_some()), (!goes, !goes), "{left:?}");
    }
}

#[test]
fn what_only_has_to_be_listed() {
    const DISK: &str = "kubernetes.io/iscsi/192.0.2.1:3260:iqn:0";
    let disk = Listed { volume: "pv".into(), unique_name: DISK.into(), exclusive: true };
    let want = |elsewhere: &[&str]| {
        let elsewhere = elsewhere.iter().map(|s| (*s).to_owned()).collect();
        let wanted = WantedVolume { volume: disk.clone(), elsewhere, used_by: Vec::new(), namespace: "ns".into() };
        BTreeMap::from([(DISK.to_owned(), wanted)])
    };
    let (mounted, there) =
        (json!({"volumesInUse": [DISK]}), json!({"volumesAttached": [{"name": DISK, "devicePath": ""}]}));
    let both = json!({"volumesInUse": [DISK], "volumesAttached": [{"name": DISK, "devicePath": ""}]});
    for (why, status, listed, (names, blocked)) in [
        ("a pod needs it", json!({}), want(&[]), (Some(1), 0)),
        ("it is there", there.clone(), want(&[]), (None, 0)),
        ("another node has it", json!({}), want(&["n2"]), (None, 1)),
        ("both have it", there.clone(), want(&["n2"]), (None, 0)),
        ("nobody needs it", there, BTreeMap::new(), (Some(0), 0)),
        ("it is mounted still", both, BTreeMap::new(), (None, 0)),
        ("it was mounted, and not by us", mounted, BTreeMap::new(), (None, 0)),
    ] {
        let d = plan(&Snapshot {
            node: Some(&ready("True", status)),
            left_mounted: None,
            wanted: &BTreeMap::new(),
            listed: &listed,
            flex_wanted: &BTreeMap::new(),
            flex: &BTreeMap::new(),
            attachments: &BTreeMap::new(),
            made: &BTreeSet::new(),
            never_force: false,
        });
        assert_eq!((d.report.map(|r| r.len()), d.blocked.len()), (names, blocked), "{why}");
        assert_eq!(d.attached.len(), usize::from(names == Some(1)), "{why}");
    }
}

#[test]
fn flex_volumes_are_attached_by_their_drivers() {
    const DISK: &str = "vendor/disk/pv";
    let source: k8s_openapi::api::core::v1::FlexVolumeSource =
        serde_json::from_value(json!({"driver": "vendor/disk"})).expect("source");
    let disk = FlexAttachable { volume: shared::flex::FlexVolume::inline("pv", &source), exclusive: true };
    let want = |elsewhere: &[&str]| {
        let elsewhere = elsewhere.iter().map(|s| (*s).to_owned()).collect();
        let wanted = WantedVolume { volume: disk.clone(), elsewhere, used_by: Vec::new(), namespace: "ns".into() };
        BTreeMap::from([(DISK.to_owned(), wanted)])
    };
    let new = FlexState::default;
    let there = || FlexState { attached: Some("/dev/x".into()), ..new() };
    let busy = |state: FlexState| FlexState { is_busy: true, ..state };
    let waits = |state: FlexState| FlexState { waits: Some(Duration::from_secs(9)), ..state };
    let old = |state: FlexState| FlexState { unwanted_for: UNMOUNT_WAIT, ..state };
    let listed = || json!({"volumesAttached": [{"name": DISK, "devicePath": "/dev/x"}]});
    let used = || json!({"volumesAttached": [{"name": DISK, "devicePath": "/dev/x"}], "volumesInUse": [DISK]});
    let none = BTreeMap::new;
    // Why; readiness and status; needs, state; what is attached, detached, blocked; the new list.
    for (why, (is_ready, status), (wanted, state), (attach, detach, blocked), list) in [
        ("a pod needs it", ("True", json!({})), (want(&[]), new()), (1, 0, 0), None),
        ("the driver is at it", ("True", json!({})), (want(&[]), busy(new())), (0, 0, 0), None),
        ("it is tried again later", ("True", json!({})), (want(&[]), waits(new())), (0, 0, 0), None),
        ("another node has it", ("True", json!({})), (want(&["n2"]), new()), (0, 0, 1), None),
        ("it is attached", ("True", json!({})), (want(&[]), there()), (0, 0, 0), Some(1)),
        ("it is listed", ("True", listed()), (want(&["n2"]), there()), (0, 0, 0), None),
        ("it is not attached any more", ("True", listed()), (want(&[]), new()), (1, 0, 0), Some(0)),
        ("nobody needs it", ("True", listed()), (none(), there()), (0, 1, 0), Some(0)),
        ("it is being detached", ("True", listed()), (none(), busy(there())), (0, 0, 0), Some(0)),
        ("detaching it has failed", ("True", json!({})), (none(), waits(there())), (0, 0, 0), Some(1)),
        ("it is mounted", ("True", used()), (none(), there()), (0, 0, 0), None),
        ("the node has just died", ("Unknown", used()), (none(), there()), (0, 0, 0), None),
        ("the node is long dead", ("Unknown", used()), (none(), old(there())), (0, 1, 0), Some(0)),
    ] {
        let d = plan(&Snapshot {
            node: Some(&ready(is_ready, status)),
            left_mounted: None,
            wanted: &BTreeMap::new(),
            listed: &BTreeMap::new(),
            flex_wanted: &wanted,
            flex: &BTreeMap::from([(DISK.to_owned(), state)]),
            attachments: &BTreeMap::new(),
            made: &BTreeSet::new(),
            never_force: false,
        });
        let found = (d.flex_attach.len(), d.flex_detach.len(), d.blocked.len());
        assert_eq!((found, d.report.map(|r| r.len())), ((attach, detach, blocked), list), "{why}");
    }
}
