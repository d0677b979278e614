use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::volume_binder::plan::BY_US;
use serde_json::{Value, json};

fn volume(with: Value) -> PersistentVolume {
    let mut made = json!({"metadata": {"name": "v", "annotations": {BY_US: "yes"}}, "status": {"phase": "Released"},
        "spec": {"persistentVolumeReclaimPolicy": "Recycle", "capacity": {"storage": "10Gi"},
            "claimRef": {"namespace": "ns", "name": "c", "uid": "u"}}});
    proto::merge::merge_patch::apply(&mut made, with);
    serde_json::from_value(made).expect("volume")
}

fn recyclers(path: &str) -> Result<Recyclers, String> {
    let recycler = |minimum, per_gib| Recycler { minimum, per_gib, path: path.to_owned() };
    Recyclers::load(&recycler(60, 30), &recycler(300, 30)).map_err(|e| e.to_string())
}

/// The pod from a file that holds this.
fn from_file(text: &str) -> Result<Recyclers, String> {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let name = format!("recycler-pod-{}-{}", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("a path");
    let read = recyclers(path).map_err(|e| e.replace(path, "FILE"));
    std::fs::remove_file(path).expect("removed");
    read
}

#[test]
fn what_is_waiting_to_be_emptied() {
    let host = json!({"spec": {"hostPath": {"path": "/d"}}});
    for (with, want) in [
        (json!({}), false),
        (host.clone(), true),
        (json!({"spec": {"nfs": {"server": "s", "path": "/"}}}), true),
        (json!({"spec": {"hostPath": {"path": "/d"}}, "status": {"phase": "Failed"}}), true),
        (json!({"spec": {"hostPath": {"path": "/d"}}, "status": {"phase": "Bound"}}), false),
        (json!({"spec": {"hostPath": {"path": "/d"}, "persistentVolumeReclaimPolicy": "Retain"}}), false),
    ] {
        assert_eq!(due(&volume(with.clone())), want, "{with}");
    }
    assert!(recyclers("").expect("recyclers").pod(&volume(json!({}))).is_none());
}

#[test]
fn the_pod_is_given_the_place_and_the_time() {
    let standard = recyclers("").expect("recyclers");
    let own = from_file(
        "{apiVersion: v1, kind: Pod, metadata: {name: mine, namespace: ops, generateName: x}, \
         spec: {containers: [{name: c, image: i}], volumes: [{name: it, emptyDir: {}}, {name: other, emptyDir: {}}]}}",
    )
    .expect("recyclers");
    for (recyclers, with, namespace, seconds, source) in [
        (
            &standard,
            json!({"hostPath": {"path": "/d", "type": "Directory"}}),
            "default",
            300,
            json!({"name": "vol", "hostPath": {"path": "/d"}}),
        ),
        (
            &standard,
            json!({"hostPath": {"path": "/d"}, "capacity": {"storage": "1Gi"}}),
            "default",
            60,
            json!({"name": "vol", "hostPath": {"path": "/d"}}),
        ),
        (
            &standard,
            json!({"nfs": {"server": "s", "path": "/x", "readOnly": true}, "capacity": {"storage": "2Gi"}}),
            "default",
            300,
            json!({"name": "vol", "nfs": {"server": "s", "path": "/x"}}),
        ),
        (&own, json!({"hostPath": {"path": "/d"}}), "ops", 300, json!({"name": "it", "hostPath": {"path": "/d"}})),
    ] {
        let pod = recyclers.pod(&volume(json!({"spec": with}))).expect("a pod");
        let pod = serde_json::to_value(&pod).expect("json");
        assert_eq!(pod["metadata"], json!({"name": "recycler-for-v", "namespace": namespace}), "{with}");
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], seconds, "{with}");
        assert_eq!(pod["spec"]["volumes"][0], source, "{with}");
    }
}

#[test]
fn files_that_hold_no_recycler_pod() {
    let wrong = |text: &str| from_file(text).err().unwrap_or_default();
    let about = "could not create hostpath recycler pod from file FILE: ";
    assert_eq!(wrong(""), format!("{about}file was empty: FILE"));
    assert_eq!(
        wrong("{apiVersion: v1, kind: Pod, spec: {containers: []}}"),
        format!("{about}pod specification (FILE): does not contain any volumes")
    );
    assert!(wrong("{apiVersion: v1, kind: PodTemplate}").starts_with(&format!("{about}failed decoding file: ")));
    assert!(recyclers("/nowhere").expect_err("no file").contains("failed to read file path /nowhere: "));
}

#[test]
fn what_a_pod_came_to() {
    for (status, want) in [
        (json!({}), None),
        (json!({"phase": "Running"}), None),
        (json!({"phase": "Succeeded"}), Some(Ok(()))),
        (json!({"phase": "Failed"}), Some(Err(PodFailure::Unknown))),
        (json!({"phase": "Failed", "message": "too slow"}), Some(Err(PodFailure::Message("too slow".to_owned())))),
    ] {
        let pod = serde_json::from_value(json!({"status": status})).expect("pod");
        assert_eq!(verdict(&pod), want, "{status}");
    }
}

#[test]
fn what_follows() {
    let volume = |phase: &str| volume(json!({"spec": {"hostPath": {"path": "/d"}}, "status": {"phase": phase}}));
    let freed = done(&volume("Released"), Ok(()));
    let [Action::Event { reason: "VolumeRecycled", warning: false, .. }, Action::Update { body, .. }] =
        freed.as_slice()
    else {
        panic!("{freed:?}")
    };
    assert!(body["spec"]["claimRef"].is_null());
    let failed = done(&volume("Released"), Err(RecycleError::Pod(PodFailure::Message("no".to_owned()))));
    let [Action::Update { body, .. }, Action::Event { reason, warning: true, message, .. }] = failed.as_slice() else {
        panic!("{failed:?}")
    };
    assert_eq!(
        (body["status"]["phase"].as_str(), body["status"]["message"].as_str()),
        (Some("Failed"), Some(&**message))
    );
    assert_eq!((*reason, &**message), ("VolumeFailedRecycle", "Recycle failed: failed to recycle volume: no"));
    assert!(
        done(&volume("Failed"), Err(RecycleError::Pod(PodFailure::Message("no".to_owned())))).is_empty(),
        "told once"
    );
}
