//! Claims of devices. Answers for upstream's `pkg/registry/resource/resourceclaim`.

use proto::Value;

/// Fields of the requests of claims and their templates that go with feature gates.
pub(super) mod request_fields {
    pub(in crate::registry) const ADMIN_ACCESS: &[&str] = &["requests.*.exactly.adminAccess"];
    pub(in crate::registry) const TOLERATIONS: &[&str] =
        &["requests.*.exactly.tolerations", "requests.*.firstAvailable.*.tolerations"];
    pub(in crate::registry) const CAPACITY: &[&str] =
        &["requests.*.exactly.capacity", "requests.*.firstAvailable.*.capacity", "constraints.*.distinctAttribute"];
    pub(in crate::registry) const ALTERNATIVES: &[&str] = &["requests.*.firstAvailable"];
}

/// Drops the device status of devices that are no longer allocated: a client that deallocates need not know of it.
pub(super) fn prepare_status(new: &mut Value, old: &Value) {
    let kept = allocated(new);
    let gone: Vec<[String; 4]> = allocated(old).into_iter().filter(|device| !kept.contains(device)).collect();
    let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) else { return };
    let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) else { return };
    devices.retain(|device| !gone.contains(&id(device)));
    if devices.is_empty() {
        status.remove("devices");
    }
}

fn allocated(claim: &Value) -> Vec<[String; 4]> {
    let results = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    results.into_iter().flatten().map(id).collect()
}

/// Identity of a device, or of a share of it.
fn id(device: &Value) -> [String; 4] {
    ["driver", "pool", "device", "shareID"].map(|key| device[key].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn device_status_is_dropped_on_deallocation() {
        let device = |name: &str| json!({"driver": "d", "pool": "p", "device": name});
        let claim = |allocated: &[&str], told: &[&str]| {
            let results: Vec<Value> = allocated.iter().map(|name| device(name)).collect();
            let devices: Vec<Value> = told.iter().map(|name| device(name)).collect();
            json!({"status": {"allocation": {"devices": {"results": results}}, "devices": devices}})
        };
        let old = claim(&["a", "b"], &["a", "b"]);
        let mut new = claim(&["b"], &["a", "b", "c"]);
        prepare_status(&mut new, &old);
        assert_eq!(new["status"]["devices"], json!([device("b"), device("c")]), "only what was given back goes");
        let mut new = claim(&[], &["a", "b"]);
        prepare_status(&mut new, &old);
        assert!(new["status"].get("devices").is_none());
    }
}
