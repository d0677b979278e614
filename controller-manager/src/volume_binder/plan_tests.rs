//! Binding step by step, and what becomes of volumes and claims that lose each other.

use super::*;
use serde_json::{Value, json};

/// Carry the writes out until there are none, as the server and the watches would.
fn settle(mut v: PersistentVolume, mut c: PersistentVolumeClaim) -> (Value, Value, usize) {
    for round in 0..20 {
        let w = World { volumes: vec![Arc::new(v.clone())], dynamic: true, ..World::default() };
        let mut actions = claim(&c, &w);
        actions.extend(volume(&v, Some(&c)));
        let Some(Action::Update { path, body }) = actions.into_iter().find(|a| matches!(a, Action::Update { .. }))
        else {
            return (serde_json::to_value(v).expect("json"), serde_json::to_value(c).expect("json"), round);
        };
        if path.contains("persistentvolumeclaims") {
            c = serde_json::from_value(body).expect("claim");
        } else {
            v = serde_json::from_value(body).expect("volume");
        }
    }
    panic!("does not settle");
}

fn a_volume() -> PersistentVolume {
    serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}}})).expect("volume")
}

fn a_claim() -> PersistentVolumeClaim {
    serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})).expect("claim")
}

#[test]
fn a_claim_and_a_volume_find_each_other() {
    let (v, c, _) = settle(a_volume(), a_claim());
    assert_eq!(v["status"]["phase"], "Bound");
    assert_eq!(v["spec"]["claimRef"]["uid"], "u");
    assert_eq!(c["spec"]["volumeName"], "v");
    assert_eq!(
        c["status"],
        json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}})
    );
    assert_eq!(c["metadata"]["annotations"], json!({COMPLETED: "yes", BY_US: "yes"}));
}

#[test]
fn nothing_to_bind_to() {
    let events = |c: &PersistentVolumeClaim, w: &World| -> Vec<&'static str> {
        claim(c, w)
            .iter()
            .filter_map(|a| if let Action::Event { reason, .. } = a { Some(*reason) } else { None })
            .collect()
    };
    assert_eq!(events(&a_claim(), &World::default()), ["FailedBinding"]);
    let mut classed = a_claim();
    classed.spec.get_or_insert_default().storage_class_name = Some("fast".into());
    assert_eq!(events(&classed, &World::default()), [""; 0], "nobody is asked for volumes");
    assert_eq!(events(&classed, &World { dynamic: true, ..World::default() }), ["ProvisioningFailed"]);
    let class = |mode: &str| -> Option<Arc<StorageClass>> {
        Some(Arc::new(
            serde_json::from_value(
                json!({"metadata": {"name": "fast"}, "provisioner": "acme.io/p", "volumeBindingMode": mode}),
            )
            .expect("class"),
        ))
    };
    assert_eq!(
        events(&classed, &World { class: class("WaitForFirstConsumer"), dynamic: true, ..World::default() }),
        ["WaitForFirstConsumer"]
    );
    let now = World { class: class("Immediate"), dynamic: true, ..World::default() };
    let noted = claim(&classed, &now);
    let Some(Action::Update { body, .. }) = noted.first() else { panic!("{noted:?}") };
    assert_eq!(body["metadata"]["annotations"][PROVISIONER], "acme.io/p");
    let noted: PersistentVolumeClaim = serde_json::from_value(body.clone()).expect("claim");
    assert_eq!(events(&noted, &now), ["ExternalProvisioning"]);
}

#[test]
fn when_the_claim_is_gone() {
    let (v, c, _) = settle(a_volume(), a_claim());
    let mut v: PersistentVolume = serde_json::from_value(v).expect("volume");
    let phase_after = |v: &PersistentVolume| -> Option<String> {
        volume(v, None).iter().find_map(|a| {
            if let Action::Update { body, .. } = a { body["status"]["phase"].as_str().map(str::to_owned) } else { None }
        })
    };
    assert_eq!(phase_after(&v).as_deref(), Some("Released"));
    v.status.get_or_insert_default().phase = Some("Released".into());
    assert_eq!(phase_after(&v), None, "retained");
    v.spec.get_or_insert_default().persistent_volume_reclaim_policy = Some("Delete".into());
    assert_eq!((phase_after(&v), deletable_path(&v)), (None, Some("/d")), "the binder removes the directory");
    let on_host = v.spec.as_mut().and_then(|s| s.host_path.take());
    assert_eq!(phase_after(&v).as_deref(), Some("Failed"), "nobody knows how to delete it");
    v.spec.get_or_insert_default().host_path = on_host;
    v.metadata.annotations.get_or_insert_default().insert(PROVISIONED_BY.into(), "acme.io/p".into());
    assert_eq!(phase_after(&v), None, "its provisioner deletes it");
    let c: PersistentVolumeClaim = serde_json::from_value(c).expect("claim");
    let gone = claim(&c, &World::default());
    assert!(matches!(gone.as_slice(), [Action::Update { .. }, Action::Event { reason: "ClaimLost", .. }]));
}

fn told(actions: &[Action]) -> Vec<(&'static str, String)> {
    let events = actions.iter().filter_map(|a| match a {
        Action::Event { reason, message, .. } => Some((*reason, message.clone())),
        _ => None,
    });
    events.collect()
}

fn with(object: impl serde::Serialize, more: Value) -> Value {
    let mut tree = serde_json::to_value(object).expect("json");
    merge(&mut tree, more);
    tree
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn the_claim(more: Value) -> PersistentVolumeClaim {
    serde_json::from_value(with(a_claim(), more)).expect("claim")
}

fn the_volume(more: Value) -> PersistentVolume {
    serde_json::from_value(with(a_volume(), more)).expect("volume")
}

fn class(provisioner: &str, mode: &str) -> Option<Arc<StorageClass>> {
    let class = json!({"metadata": {"name": "fast"}, "provisioner": provisioner, "volumeBindingMode": mode});
    Some(Arc::new(serde_json::from_value(class).expect("class")))
}

#[test]
fn who_waits_for_whom() {
    let fast = the_claim(json!({"spec": {"storageClassName": "fast"}}));
    let free = the_volume(json!({"spec": {"storageClassName": "fast"}, "status": {"phase": "Available"}}));
    for (unscheduled, reason, text) in [
        (vec![], "WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        (vec!["a"], "WaitForPodScheduled", "waiting for pod a to be scheduled"),
        (vec!["a", "b"], "WaitForPodScheduled", "waiting for pods a,b to be scheduled"),
    ] {
        let w = World {
            volumes: vec![Arc::new(free.clone())],
            class: class("acme.io/p", "WaitForFirstConsumer"),
            dynamic: true,
            unscheduled: unscheduled.into_iter().map(str::to_owned).collect(),
            ..World::default()
        };
        assert_eq!(told(&claim(&fast, &w)), [(reason, text.to_owned())]);
        let placed =
            the_claim(json!({"spec": {"storageClassName": "fast"}, "metadata": {"annotations": {SELECTED_NODE: "n"}}}));
        let next = claim(&placed, &w);
        let [Action::Update { body, .. }] = next.as_slice() else { panic!("{next:?}") };
        assert_eq!(body["metadata"]["annotations"][PROVISIONER], "acme.io/p", "and not what happens to be free");
    }
}

#[test]
fn nobody_who_could_make_it() {
    let fast =
        the_claim(json!({"spec": {"storageClassName": "fast"}, "metadata": {"annotations": {PROVISIONER: HOST_PATH}}}));
    for (provisioner, text) in [
        ("kubernetes.io/no-provisioner", "no volume plugin matched name: kubernetes.io/no-provisioner"),
        (
            HOST_PATH,
            "Failed to create provisioner: provisioning in volume plugin \"kubernetes.io/host-path\" is disabled",
        ),
    ] {
        let w = World { class: class(provisioner, "Immediate"), dynamic: true, ..World::default() };
        assert_eq!(told(&claim(&fast, &w)), [("ProvisioningFailed", text.to_owned())]);
    }
}

#[test]
fn claims_that_lose_their_volume() {
    let bound = |more: Value| {
        let mut c = the_claim(json!({"metadata": {"annotations": {COMPLETED: "yes"}}, "spec": {"volumeName": "v"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "currentVolumeAttributesClassName": "gold"}}));
        c = serde_json::from_value(with(c, more)).expect("claim");
        c
    };
    let of = |reference: Value| World {
        volumes: vec![Arc::new(the_volume(json!({"spec": {"claimRef": reference}})))],
        ..World::default()
    };
    for (more, w, reason, text) in [
        (
            json!({"spec": {"volumeName": null}}),
            World::default(),
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        ),
        (
            json!({}),
            World::default(),
            "ClaimLost",
            "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
        ),
        (
            json!({}),
            of(json!({"namespace": "ns", "name": "c", "uid": "another"})),
            "ClaimMisbound",
            "Two claims are bound to the same volume, this one is bound incorrectly",
        ),
    ] {
        let actions = claim(&bound(more), &w);
        let [Action::Update { body, .. }, _] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(body["status"], json!({"phase": "Lost"}));
        assert_eq!(told(&actions), [(reason, text.to_owned())]);
    }
}

#[test]
fn claims_become_pending_again() {
    let was = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}});
    let actions = claim(&the_claim(was.clone()), &World::default());
    let [_, Action::Update { body, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(body["status"], json!({"phase": "Pending"}));
    let taken = the_volume(json!({"spec": {"claimRef": {"namespace": "ns", "name": "other", "uid": "o"}}}));
    let w = World { volumes: vec![Arc::new(taken)], ..World::default() };
    for (notes, writes) in [(json!({}), 2), (json!({BY_US: "yes"}), 1)] {
        let named = the_claim(with(&was, json!({"spec": {"volumeName": "v"}, "metadata": {"annotations": notes}})));
        assert_eq!(claim(&named, &w).len(), writes, "what was named here stays as it is");
    }
}

#[test]
fn the_status_of_a_bound_claim() {
    let of = |volume: Value, claim: Value| {
        let status = bound_status(&the_volume(volume), &the_claim(claim));
        serde_json::to_value(status).expect("json")
    };
    let modes = json!(["ReadWriteOnce"]);
    for (volume, claim, want) in [
        (
            json!({"spec": {"volumeAttributesClassName": "gold"}}),
            json!({"status": {"phase": "Pending"}}),
            json!({"phase": "Bound", "accessModes": modes, "capacity": {"storage": "1Gi"}, "currentVolumeAttributesClassName": "gold"}),
        ),
        (
            json!({"metadata": {"annotations": {BEFORE_RESIZE: "512Mi"}}}),
            json!({"status": {"phase": "Pending"}}),
            json!({"phase": "Bound", "accessModes": modes, "capacity": {"storage": "512Mi"}}),
        ),
        (
            json!({"spec": {"volumeAttributesClassName": "gold"}}),
            json!({"status": {"phase": "Bound", "capacity": {"storage": "512Mi"}, "accessModes": ["ReadOnlyMany"]}}),
            json!({"phase": "Bound", "accessModes": modes, "capacity": {"storage": "512Mi"}}),
        ),
    ] {
        assert_eq!(of(volume, claim), want);
    }
}

#[test]
fn volumes_whose_claim_took_another() {
    let reference = json!({"namespace": "ns", "name": "c", "uid": "u"});
    let elsewhere = the_claim(json!({"spec": {"volumeName": "w"}}));
    for (more, want) in [
        (json!({"metadata": {"annotations": {BY_US: "yes"}}}), Value::Null),
        (json!({}), json!({"namespace": "ns", "name": "c"})),
    ] {
        let v = the_volume(with(more, json!({"spec": {"claimRef": reference}, "status": {"phase": "Bound"}})));
        let actions = volume(&v, Some(&elsewhere));
        let [Action::Update { body, .. }] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(body["spec"]["claimRef"], want);
    }
    let made = json!({"metadata": {"annotations": {PROVISIONED_BY: "acme.io/p"}}, "status": {"phase": "Bound"},
        "spec": {"claimRef": reference, "persistentVolumeReclaimPolicy": "Delete"}});
    let actions = volume(&the_volume(made), Some(&elsewhere));
    let [Action::Update { body, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(body["status"]["phase"], "Released", "what was made for it is not needed");
    let block = the_volume(json!({"spec": {"claimRef": reference, "volumeMode": "Block"}}));
    assert_eq!(
        told(&volume(&block, Some(&a_claim()))),
        [
            (
                "VolumeMismatch",
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode."
                    .to_owned()
            ),
            (
                "VolumeMismatch",
                "Cannot bind PersistentVolume \"v\" to requested PersistentVolumeClaim due to incompatible volumeMode."
                    .to_owned()
            ),
        ]
    );
}

#[test]
fn failures_are_told_once() {
    let reference = json!({"namespace": "ns", "name": "c", "uid": "u"});
    let of = |policy: &str, phase: &str, notes: Value| {
        let guards =
            notes[PROVISIONED_BY].as_str().filter(|by| by.starts_with("kubernetes.io/")).map(|_| [maker::GUARD]);
        let spec = json!({"claimRef": reference, "persistentVolumeReclaimPolicy": policy, "hostPath": null, "csi": null, "iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t"}});
        told(&volume(
            &the_volume(
                json!({"spec": spec, "status": {"phase": phase}, "metadata": {"annotations": notes, "finalizers": guards}}),
            ),
            None,
        ))
    };
    for (policy, notes, want) in [
        (
            "Delete",
            json!({}),
            Some((
                "VolumeFailedDelete",
                "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched",
            )),
        ),
        (
            "Delete",
            json!({PROVISIONED_BY: "kubernetes.io/x"}),
            Some(("VolumeFailedDelete", "no volume plugin matched name: kubernetes.io/x")),
        ),
        ("Delete", json!({PROVISIONED_BY: "acme.io/p"}), None),
        ("Recycle", json!({}), Some(("VolumeFailedRecycle", "No recycler plugin found for the volume!"))),
        ("Retain", json!({}), None),
    ] {
        let want: Vec<_> = want.into_iter().map(|(reason, text)| (reason, text.to_owned())).collect();
        assert_eq!(of(policy, "Released", notes.clone()), want, "{policy} {notes}");
        assert_eq!(of(policy, "Failed", notes), []);
    }
}

#[test]
fn a_volume_goes_when_what_it_stands_for_has_gone() {
    let volume = |deleting: bool, finalizers: Value| -> PersistentVolume {
        let deleted = deleting.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(
            json!({"metadata": {"name": "v", "finalizers": finalizers, "deletionTimestamp": deleted}}),
        )
        .expect("volume")
    };
    for (deleting, finalizers, want) in [
        (false, json!([]), vec!["delete"]),
        (false, json!([maker::GUARD]), vec!["[]", "delete"]),
        (false, json!(["x", maker::GUARD]), vec![r#"["x"]"#, "delete"]),
        (true, json!(["x", maker::GUARD]), vec![r#"["x"]"#]),
    ] {
        let shown: Vec<String> = deleted(&volume(deleting, finalizers.clone()))
            .into_iter()
            .map(|action| match action {
                Action::Update { body, .. } => {
                    body["metadata"].get("finalizers").map_or_else(|| "[]".to_owned(), Value::to_string)
                }
                Action::Delete { .. } => "delete".to_owned(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(shown, want, "{finalizers}");
    }
}
