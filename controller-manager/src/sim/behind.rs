//! Controllers that see less than there is, or of whose several writes one fails.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::cost::{SETTLED, Scene};
use super::http::rows;
use super::store::Name;
use super::verbs;

/// Writes the status of an object without a namespace.
fn write_status(scene: &Scene, plural: &str, name: &str, status: &Value) {
    let row = rows().find(|r| r.plural == plural).expect("a served resource");
    let (name, with): (Name, Value) = ((String::new(), name.to_owned()), json!({"status": status}));
    verbs::patch(&mut scene.server.store.lock(), row, &name, "status", "application/merge-patch+json", with)
        .expect("patched");
}

#[tokio::test(start_paused = true)]
async fn volume_that_a_node_has_mounted_unseen_is_not_taken_from_it() {
    let mut scene = Scene::new();
    scene.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1",
        "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    scene.create(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "csi": {"driver": "d", "volumeHandle": "h1"}}}));
    scene.create(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}}));
    scene.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}}));
    scene.start("persistentvolume-binder-controller,persistentvolume-attach-detach-controller").await;
    sleep(SETTLED).await;
    let attached = || scene.names("storage.k8s.io", "volumeattachments");
    let [attachment]: [String; 1] = attached().try_into().expect("it is attached");
    write_status(&scene, "volumeattachments", &attachment, &json!({"attached": true}));
    sleep(SETTLED).await;
    // The kubelet mounts it, and no informer hears of that.
    *scene.server.stalled.lock() = "nodes".to_owned();
    write_status(&scene, "nodes", "n1", &json!({"volumesInUse": ["kubernetes.io/csi/d^h1"]}));
    scene.delete("pods", "p", &json!({"gracePeriodSeconds": 0}));
    sleep(Duration::from_mins(2)).await;
    assert_eq!(attached(), [attachment], "it is still mounted");
    write_status(&scene, "nodes", "n1", &json!({"volumesInUse": []}));
    scene.server.stalled.lock().clear();
    sleep(Duration::from_mins(4)).await;
    assert!(attached().is_empty());
}

#[tokio::test(start_paused = true)]
async fn status_that_cannot_be_written_is_no_failure_to_make_a_set() {
    let mut scene = Scene::new();
    scene.start("deployment-controller").await;
    sleep(SETTLED).await;
    *scene.server.refusing.lock() = Some(("PUT deployments".to_owned(), "a webhook says no".to_owned()));
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    scene.create(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "progressDeadlineSeconds": 600, "selector": {"matchLabels": labels}, "template": template,
            "strategy": {"type": "Recreate"}}}));
    sleep(SETTLED).await;
    assert_eq!(scene.names("apps", "replicasets").len(), 1);
    let refused = scene.server.log.lock().iter().any(|write| write.starts_with("PUT") && write.contains("web/status"));
    assert!(refused, "it has tried to write the status");
    assert_eq!(scene.events("ReplicaSetCreateError"), 0);
}
