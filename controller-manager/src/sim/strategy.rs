//! Strategies of kinds on create and update, as far as controllers rely on them.

use proto::resources::Resource;
use serde_json::{Value, json};

/// Complete a new object.
pub(super) fn create(row: &Resource, object: &mut Value, serial: u64) {
    match (row.group.as_ref(), row.kind.as_ref()) {
        ("", "Pod") => {
            if object["status"]["phase"].is_null() {
                object["status"]["phase"] = json!("Pending");
            }
        }
        ("", "Namespace") => {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"]["phase"] = json!("Active");
        }
        ("", "PersistentVolumeClaim") => {
            object["status"]["phase"] = json!("Pending");
            object["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
        }
        ("", "PersistentVolume") => {
            object["status"]["phase"] = json!("Pending");
            object["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
        }
        ("", "Service") => service(object, serial),
        ("batch", "Job") => job(object),
        _ => {}
    }
}

fn service(object: &mut Value, serial: u64) {
    let spec = &mut object["spec"];
    if spec["type"] == "ExternalName" {
        return;
    }
    if spec["ipFamilies"].is_null() {
        spec["ipFamilies"] = json!(["IPv4"]);
    }
    if spec["clusterIP"].is_null() {
        spec["clusterIP"] = json!(format!("10.96.{}.{}", serial / 250 % 250, serial % 250 + 1));
    }
    spec["clusterIPs"] = json!([spec["clusterIP"]]);
}

/// The selector and the labels that tie pods to their job.
fn job(object: &mut Value) {
    if object["spec"]["manualSelector"] == true {
        return;
    }
    let (uid, name) = (object["metadata"]["uid"].clone(), object["metadata"]["name"].clone());
    let labels = &mut object["spec"]["template"]["metadata"]["labels"];
    for (k, v) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("job-name", &name),
    ] {
        labels[k] = v.clone();
    }
    object["spec"]["selector"]["matchLabels"] = json!({"batch.kubernetes.io/controller-uid": uid});
}

/// Reports whether objects of a kind are given time to stop.
pub(super) fn has_grace(row: &Resource) -> bool {
    row.plural == "pods" && row.group.is_empty()
}

/// Returns the grace period of a pod; zero when nothing runs.
pub(super) fn grace(row: &Resource, object: &Value, options: &Value) -> u64 {
    if !has_grace(row) {
        return 0;
    }
    let asked = options["gracePeriodSeconds"].as_u64();
    let own = object["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
    let started = object["spec"]["nodeName"].as_str().is_some_and(|n| !n.is_empty());
    let over = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if started && !over { asked.unwrap_or(own) } else { 0 }
}
