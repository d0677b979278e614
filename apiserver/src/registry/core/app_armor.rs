//! AppArmor by the annotations of old: the fields say the same. Answers for upstream's `applyAppArmorVersionSkew`.

use proto::Value;
use serde_json::json;

use crate::machinery::tree::find;
use crate::validation::pod_annotations::APP_ARMOR;

/// Converts an AppArmor annotation to a field; `None` for an invalid one.
fn profile(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        other => {
            let local = other.strip_prefix("localhost/").filter(|local| !local.trim().is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": local}))
        }
    }
}

/// Gives containers without a profile the one of their annotation, where the pod's is another, and
/// says that this is a thing of the past.
pub(super) fn sync_fields_and_annotations(pod: &mut Value, warnings: &mut Vec<String>) {
    let annotations = find(pod, "/metadata/annotations").and_then(Value::as_object);
    let Some(annotations) = annotations.filter(|all| all.keys().any(|key| key.starts_with(APP_ARMOR))).cloned() else {
        return;
    };
    if find(pod, "/spec/os/name").is_some_and(|name| name == "windows") {
        return;
    }
    let of_pod = find(pod, "/spec/securityContext/appArmorProfile").cloned();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let key = format!("{APP_ARMOR}{}", container["name"].as_str().unwrap_or_default());
            let own = annotations.get(&key).and_then(Value::as_str).and_then(profile);
            let unsaid = find(container, "/securityContext/appArmorProfile").is_none_or(Value::is_null);
            if let Some(own) = own.filter(|own| unsaid && of_pod.as_ref() != Some(own)) {
                container["securityContext"]["appArmorProfile"] = own;
                let advice = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                warnings.push(format!("metadata.annotations[{key}]: {advice}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_become_fields() {
        let annotations = json!({(format!("{APP_ARMOR}a")): "localhost/x", (format!("{APP_ARMOR}b")): "unconfined",
            (format!("{APP_ARMOR}c")): "runtime/default", (format!("{APP_ARMOR}d")): "nonsense"});
        let own = json!({"type": "RuntimeDefault"});
        let containers = json!([{"name": "a"}, {"name": "b", "securityContext": {"appArmorProfile": own}},
            {"name": "c"}, {"name": "d"}, {"name": "e"}]);
        let mut pod = json!({"metadata": {"annotations": annotations},
            "spec": {"securityContext": {"appArmorProfile": own}, "containers": containers}});
        let mut warnings = Vec::new();
        sync_fields_and_annotations(&mut pod, &mut warnings);
        let advice = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
        assert_eq!(
            warnings,
            [format!("metadata.annotations[{APP_ARMOR}a]: {advice}")],
            "b has a field, c is like its pod"
        );
        let profiles: Vec<&Value> = (0..5).map(|i| &pod["spec"]["containers"][i]["securityContext"]).collect();
        let local = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}});
        let kept = json!({"appArmorProfile": own});
        assert_eq!(profiles, [&local, &kept, &Value::Null, &Value::Null, &Value::Null]);
        let mut windows = json!({"metadata": {"annotations": {(format!("{APP_ARMOR}a")): "unconfined"}},
            "spec": {"os": {"name": "windows"}, "containers": [{"name": "a"}]}});
        let before = windows.clone();
        sync_fields_and_annotations(&mut windows, &mut Vec::new());
        assert_eq!(windows, before);
    }
}
