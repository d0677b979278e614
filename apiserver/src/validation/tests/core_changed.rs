//! Tests of updates in the core group: which checks run, how often and in which order.

use serde_json::{Value, json};

use super::{Change, Valid, patched, warnings};

fn volume(source: Value) -> Valid {
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
    proto::merge::merge_patch::apply(&mut spec, source);
    Valid::new("/api/v1/persistentvolumes", json!({"spec": spec}))
}

fn claim(spec: Value) -> Valid {
    let mut all = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}});
    proto::merge::merge_patch::apply(&mut all, spec);
    Valid::new("/api/v1/namespaces/n/persistentvolumeclaims", json!({"spec": all}))
}

/// Upstream's kinds look at the metadata of what changes as often as they please, and tell every time.
#[test]
fn metadata_is_validated_as_often_as_upstream_does() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": super::pod_spec()});
    let storage = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volume = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/a"}});
    for (plural, body, uids, labels) in [
        ("nodes", json!({}), 2, 4),
        ("namespaces", json!({}), 2, 4),
        ("persistentvolumes", json!({"spec": volume}), 1, 4),
        ("namespaces/n/persistentvolumeclaims", json!({"spec": storage}), 2, 4),
        ("namespaces/n/endpoints", json!({}), 2, 4),
        ("namespaces/n/configmaps", json!({}), 2, 4),
        ("namespaces/n/secrets", json!({}), 2, 4),
        ("namespaces/n/serviceaccounts", json!({}), 2, 4),
        ("namespaces/n/limitranges", json!({"spec": {"limits": []}}), 1, 3),
        ("namespaces/n/resourcequotas", json!({}), 2, 3),
        ("namespaces/n/podtemplates", json!({"template": template}), 2, 3),
        ("namespaces/n/replicationcontrollers", json!({"spec": {"template": template}}), 2, 4),
        ("namespaces/n/events", json!({"involvedObject": {"namespace": "n"}}), 1, 2),
    ] {
        let times = |patch: Value| patched(&format!("/api/v1/{plural}"), body.clone(), patch).len();
        let uid = times(json!({"metadata": {"uid": "z"}}));
        let label = times(json!({"metadata": {"labels": {"k": "-"}}}));
        assert_eq!((uid, label), (uids, labels), "{plural}");
    }
}

#[test]
fn options_of_mounting_in_an_annotation() {
    const OPTIONS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1mount-options";
    let annotated: &[Change] = &[(OPTIONS, json!("ro,nolock"))];
    let no = "metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options for this volume type";
    for (source, takes_them) in [
        (json!({"nfs": {"server": "s", "path": "/"}}), true),
        (json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2015-02.example.com:test", "lun": 0}}), true),
        (json!({"hostPath": {"path": "/a"}}), false),
        (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), false),
    ] {
        let complaints: &[&str] = if takes_them { &[] } else { &[no] };
        volume(source).create(&[(annotated, complaints)]);
    }
    // Also where they were there before anybody looked.
    let mut old = volume(json!({"hostPath": {"path": "/a"}}));
    old.object = old.with(annotated);
    old.update(&[(&[("/metadata/labels", json!({"a": "b"}))], &[no])]);
}

#[test]
fn changed_volumes() {
    let csi = |more: Value| {
        let mut csi = json!({"driver": "d", "volumeHandle": "h"});
        proto::merge::merge_patch::apply(&mut csi, more);
        volume(json!({"csi": csi, "volumeAttributesClassName": "fast"}))
    };
    let secret = |name: &str| json!({"name": name, "namespace": "n"});
    const EXPAND: &str = "/spec/csi/controllerExpandSecretRef";
    // A secret may come, and not change.
    csi(json!({})).update(&[
        (&[(EXPAND, secret("s"))], &[]),
        (&[("/spec/volumeAttributesClassName", json!("slow"))], &[]),
        (
            &[("/spec/volumeAttributesClassName", Value::Null)],
            &["spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden"],
        ),
    ]);
    let source = "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation";
    let refused = |old: &Valid, pointer: &'static str, value: Value| {
        let errors = super::validate_update(old.row, old.row, &old.with(&[(pointer, value)]), &old.object);
        super::lines(old.row, errors)
    };
    let expanding = csi(json!({"controllerExpandSecretRef": secret("s")}));
    for (old, pointer, value) in [
        (&expanding, EXPAND, secret("t")),
        (&expanding, EXPAND, Value::Null),
        (&csi(json!({})), "/spec/csi/nodePublishSecretRef", secret("s")),
        (&csi(json!({})), "/spec/csi/volumeHandle", json!("other")),
    ] {
        let got = refused(old, pointer, value);
        assert!(got.len() == 1 && got[0].starts_with(source), "{pointer}: {got:?}");
    }
}

#[test]
fn node_affinity_of_updated_volumes() {
    let place = |key: &str, value: &str| {
        json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]}})
    };
    const BEFORE: &str = "failure-domain.beta.kubernetes.io/zone";
    const SINCE: &str = "topology.kubernetes.io/zone";
    let at = |affinity: Value| volume(json!({"hostPath": {"path": "/a"}, "nodeAffinity": affinity}));
    let table = [
        (at(place(BEFORE, "a")), place(SINCE, "a"), true),
        (at(place(BEFORE, "a")), place(SINCE, "b"), false),
        (at(place(SINCE, "a")), place(BEFORE, "a"), false),
        (at(place("k", "a")), place("l", "a"), false),
        (at(place("k", "a")), Value::Null, false),
        (volume(json!({"hostPath": {"path": "/a"}})), place("k", "a"), true),
    ];
    for (old, now, allowed) in table {
        let new = old.with(&[("/spec/nodeAffinity", now.clone())]);
        let got = super::lines(old.row, super::validate_update(old.row, old.row, &new, &old.object));
        let ends = "field is immutable, except for updating from beta label to GA";
        assert_eq!(got.is_empty(), allowed, "{now}: {got:?}");
        assert!(got.iter().all(|line| line.starts_with("nodeAffinity: Invalid value: ") && line.ends_with(ends)));
    }
}

#[test]
fn changed_claims() {
    const SIZE: &str = "/spec/resources/requests/storage";
    const CLASS: &str = "/spec/storageClassName";
    let immutable = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
    let refused = |old: &Valid, changes: &[Change]| {
        let errors = super::validate_update(old.row, old.row, &old.with(changes), &old.object);
        super::lines(old.row, errors)
    };
    let (pending, mut bound) = (claim(json!({})), claim(json!({"volumeName": "v"})));
    bound.object["status"] = json!({"phase": "Bound", "capacity": {"storage": "10Gi"}});
    let mut grown = claim(json!({"volumeName": "v"}));
    grown.object["status"] = json!({"phase": "Bound", "capacity": {"storage": "8Gi"}});
    for (old, change, wrong) in [
        (&pending, (SIZE, json!("12Gi")), Some(immutable)),
        (&pending, ("/spec/volumeName", json!("v")), None),
        (&pending, (CLASS, json!("fast")), None),
        (&pending, ("/spec/volumeAttributesClassName", json!("fast")), Some(immutable)),
        (&bound, (SIZE, json!("12Gi")), None),
        (&bound, ("/spec/volumeAttributesClassName", json!("fast")), None),
        (&bound, ("/spec/volumeName", json!("w")), Some(immutable)),
        (&bound, ("/spec/accessModes", json!(["ReadOnlyMany"])), Some(immutable)),
        // What has not grown yet may be asked for less, but for more than there is.
        (&grown, (SIZE, json!("9Gi")), None),
        (
            &grown,
            (SIZE, json!("8Gi")),
            Some("spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"),
        ),
    ] {
        let got = refused(old, std::slice::from_ref(&change));
        let fits = match wrong {
            None => got.is_empty(),
            Some(why) => got.len() == 1 && got[0].starts_with(why),
        };
        assert!(fits, "{change:?}: {got:?}");
    }
    // The volume that a claim gets is no change: it is shown as if it had been there.
    let got = refused(&pending, &[("/spec/volumeName", json!("v")), ("/spec/volumeMode", json!("Block"))]);
    assert!(got[0].contains("\n  \"VolumeName\": \"v\",\n"), "{got:?}");
}

/// A selector that v1 cannot express is kept in annotations.
#[test]
fn inexpressible_selectors_are_immutable() {
    let template = json!({"metadata": {"labels": {"a": "b", "c": "d"}}, "spec": super::pod_spec()});
    let mut old = Valid::new(
        "/api/v1/namespaces/n/replicationcontrollers",
        json!({"spec": {"selector": {"a": "b"}, "template": template}}),
    );
    let other: &[Change] = &[("/spec/selector", json!({"c": "d"}))];
    old.update(&[(other, &[])]);
    old.object["metadata"]["annotations"] = json!({"non-convertible.kubernetes.io/selector": "x"});
    old.update(&[
        (other, &[r#"spec.selector: Invalid value: {"c":"d"}: cannot update non-convertible selector"#]),
        (&[("/spec/replicas", json!(3))], &[]),
    ]);
    old.object["metadata"]["annotations"] = json!({"non-convertible.kubernetes.io/odd": "x"});
    old.update(&[(&[], &[r#"odd: Not found: "x": unknown non-convertible field"#])]);
}

#[test]
fn frozen_data() {
    let why = "Forbidden: field is immutable when `immutable` is set";
    let data = json!({"data": {"k": "eHg="}});
    let both = json!({"data": {"k": "eHg="}, "binaryData": {"b": "eHg="}});
    for (plural, data) in [("configmaps", both), ("secrets", data)] {
        let path = format!("/api/v1/namespaces/n/{plural}");
        let free = Valid::new(&path, data.clone());
        free.update(&[(&[("/data/k", json!("eHk="))], &[]), (&[("/immutable", json!(true))], &[])]);
        let mut frozen = data;
        frozen["immutable"] = json!(true);
        let frozen = Valid::new(&path, frozen);
        frozen.update(&[
            (&[("/immutable", json!(false))], &[&format!("immutable: {why}")]),
            (&[("/data/k", json!("eHk="))], &[&format!("data: {why}")]),
            (
                &[("/immutable", Value::Null), ("/data", Value::Null)],
                &[&format!("immutable: {why}"), &format!("data: {why}")],
            ),
            (&[("/metadata/labels", json!({"a": "b"}))], &[]),
        ]);
    }
}

#[test]
fn deprecated_node_labels() {
    let (row, namespace) = super::target("/api/v1/namespaces/n/pods");
    for (label, advice) in [
        ("app.kubernetes.io/created-by", "deprecated since v1.9"),
        ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
        ("node-role.kubernetes.io/master", r#"use "node-role.kubernetes.io/control-plane" instead"#),
    ] {
        let mut spec = super::pod_spec();
        spec["nodeSelector"] = json!({label: ""});
        let pod = super::prepared(row, &namespace, json!({"metadata": {"name": "p"}, "spec": spec}));
        assert_eq!(warnings(row, "", &pod, None), [format!("spec.nodeSelector[{label}]: {advice}")]);
    }
}
