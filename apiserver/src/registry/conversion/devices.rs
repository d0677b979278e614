//! resource.k8s.io/v1beta1 and what came after it: a request says what it wants in fields of its own where it now has
//! `exactly`, and what is known of a device is in `basic`.

use proto::Value;
use serde_json::{Map, json};

const EXACTLY: &[&str] =
    &["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

/// Conversion to make of the parts of an object, given the version it says and the one that is wanted.
fn direction(object: &Value, version: &str, newer: Part, older: Part) -> Option<Part> {
    match (object["apiVersion"] == "resource.k8s.io/v1beta1", version) {
        (true, _) => Some(newer),
        (false, "v1beta1") => Some(older),
        _ => None,
    }
}

/// Conversion of a request or a device.
type Part = fn(&mut Map<String, Value>);

/// Converts a claim.
pub(in crate::registry) fn convert_claim(object: &mut Value, _: &str, version: &str) {
    convert_requests(object, "/spec/devices/requests", version);
}

/// Converts the template of claims.
pub(in crate::registry) fn convert_template(object: &mut Value, _: &str, version: &str) {
    convert_requests(object, "/spec/spec/devices/requests", version);
}

fn convert_requests(object: &mut Value, pointer: &str, version: &str) {
    if let Some(convert) = direction(object, version, wrap_exactly, unwrap_exactly) {
        maps(object, pointer).for_each(convert);
    }
}

/// Converts a slice.
pub(in crate::registry) fn convert_slice(object: &mut Value, _: &str, version: &str) {
    if let Some(convert) = direction(object, version, unwrap_basic, wrap_basic) {
        devices(object).for_each(convert);
    }
}

fn maps<'a>(object: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    object.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Yields the devices of a slice, and drops its empty `nodeName` and `allNodes`, which are pointers in one version
/// only.
fn devices(slice: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    if let Some(spec) = slice.get_mut("spec").and_then(Value::as_object_mut) {
        for (field, nothing) in [("nodeName", json!("")), ("allNodes", json!(false))] {
            if spec.get(field) == Some(&nothing) {
                spec.remove(field);
            }
        }
    }
    maps(slice, "/spec/devices")
}

fn wrap_exactly(request: &mut Map<String, Value>) {
    let exactly: Map<String, Value> =
        EXACTLY.iter().filter_map(|field| request.remove_entry(*field)).filter(|(_, value)| says(value)).collect();
    if !exactly.is_empty() {
        request.insert("exactly".to_owned(), Value::Object(exactly));
    }
}

fn says(value: &Value) -> bool {
    !(value.is_null() || value == "" || value == 0)
}

fn unwrap_exactly(request: &mut Map<String, Value>) {
    if let Some(Value::Object(exactly)) = request.remove("exactly") {
        request.extend(exactly);
    }
    request.entry("deviceClassName").or_insert_with(|| json!(""));
}

fn unwrap_basic(device: &mut Map<String, Value>) {
    if let Some(Value::Object(basic)) = device.remove("basic") {
        device.extend(basic);
    }
}

fn wrap_basic(device: &mut Map<String, Value>) {
    let name = device.remove_entry("name");
    let basic = std::mem::take(device);
    device.extend(name);
    device.insert("basic".to_owned(), Value::Object(basic));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(object: &mut Value, kind: &str, from: &str, to: &str) {
        object["apiVersion"] = json!(format!("resource.k8s.io/{from}"));
        let convert: fn(&mut Value, &str, &str) = match kind {
            "ResourceSlice" => convert_slice,
            "ResourceClaimTemplate" => convert_template,
            _ => convert_claim,
        };
        convert(object, "resource.k8s.io", to);
        object.as_object_mut().expect("an object").remove("apiVersion");
    }

    fn from_v1beta1(object: &mut Value, kind: &str) {
        convert(object, kind, "v1beta1", "v1");
    }

    fn to_v1beta1(object: &mut Value, kind: &str) {
        convert(object, kind, "v1", "v1beta1");
    }

    fn both_ways(kind: &str, old: &Value, new: &Value) {
        let mut object = old.clone();
        from_v1beta1(&mut object, kind);
        assert_eq!(object, *new);
        to_v1beta1(&mut object, kind);
        assert_eq!(object, *old);
    }

    #[test]
    fn v1beta1_requests_become_exactly() {
        let old = json!([
            {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2, "adminAccess": false},
            {"name": "any", "deviceClassName": "", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]},
        ]);
        let new = json!([
            {"name": "one", "exactly":
                {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2, "adminAccess": false}},
            {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]},
        ]);
        let claim = |requests: &Value| json!({"spec": {"devices": {"requests": requests}}});
        let template = |requests: &Value| json!({"spec": {"spec": {"devices": {"requests": requests}}}});
        both_ways("ResourceClaim", &claim(&old), &claim(&new));
        both_ways("ResourceClaimTemplate", &template(&old), &template(&new));
    }

    #[test]
    fn basic_devices_are_inlined() {
        let old = json!({"spec": {"devices": [{"name": "d", "basic": {"attributes": {"a": {"int": 1}}}}]}});
        let new = json!({"spec": {"devices": [{"name": "d", "attributes": {"a": {"int": 1}}}]}});
        both_ways("ResourceSlice", &old, &new);
        let mut slice = json!({"spec": {"nodeName": "", "allNodes": false, "driver": "d"}});
        from_v1beta1(&mut slice, "ResourceSlice");
        assert_eq!(slice, json!({"spec": {"driver": "d"}}));
    }

    #[test]
    fn odd_shapes_are_left_to_validation() {
        for spec in [json!(null), json!({"devices": 1}), json!({"devices": {"requests": [1, null]}})] {
            for kind in ["ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"] {
                let mut object = json!({"spec": spec.clone()});
                from_v1beta1(&mut object, kind);
                to_v1beta1(&mut object, kind);
                assert_eq!(object, json!({"spec": spec.clone()}), "{kind}");
            }
        }
    }
}
