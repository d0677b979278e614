//! Binding a pod to a node.

use proto::Value;
use serde_json::Map;
use shared::status::Status;

use crate::registry::meta;

/// Checks the target. Upstream answers these with code 500 and no reason.
pub fn check(binding: &Value) -> Result<(), Status> {
    let text = |key: &str| binding["target"].get(key).and_then(Value::as_str).unwrap_or("");
    let mut errors = Vec::new();
    if !matches!(text("kind"), "" | "Node") {
        errors.push(format!(
            "target.kind: Unsupported value: {:?}: supported values: \"Node\", \"<empty>\"",
            text("kind")
        ));
    }
    if text("name").is_empty() {
        errors.push("target.name: Required value".to_owned());
    }
    match errors.as_slice() {
        [] => Ok(()),
        [only] => Err(Status::unknown(only)),
        several => Err(Status::unknown(&format!("[{}]", several.join(", ")))),
    }
}

fn refuse(pod: &Value, why: &str) -> Status {
    Status::conflict("", "pods/binding", meta::text(pod, "name"), why)
}

/// Puts the pod on the node, with the labels and annotations of the binding. A nomination has served its purpose
/// then and goes, if `clear_nomination` says so.
pub fn assign(pod: &mut Value, binding: &Value, clear_nomination: bool) -> Result<(), Status> {
    let name = meta::text(pod, "name").to_owned();
    for field in ["uid", "resourceVersion"] {
        let (asked, there) = (meta::text(binding, field), meta::text(pod, field));
        if !asked.is_empty() && asked != there {
            let what = if field == "uid" { "UID" } else { "ResourceVersion" };
            return Err(refuse(
                pod,
                &format!("Precondition failed: {what} in precondition: {asked}, {what} in object meta: {there}"),
            ));
        }
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return Err(refuse(pod, &format!("pod {name} is being deleted, cannot be assigned to a host")));
    }
    if let Some(node) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
        return Err(refuse(pod, &format!("pod {name} is already assigned to node {node:?}")));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
        return Err(refuse(pod, &format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for field in ["annotations", "labels"] {
        let Some(extra) = binding["metadata"].get(field).and_then(Value::as_object) else { continue };
        let map = meta::metadata(pod).entry(field).or_insert_with(|| Value::Object(Map::new()));
        if let Some(map) = map.as_object_mut() {
            map.extend(extra.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
    }
    super::conditions::scheduled(pod);
    if let (true, Some(status)) = (clear_nomination, pod["status"].as_object_mut()) {
        status.remove("nominatedNodeName");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_bound_once() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending"}});
        let b = json!({"metadata": {"annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "n1"}});
        assert!(check(&b).is_ok() && assign(&mut pod, &b, true).is_ok());
        assert_eq!((&pod["spec"]["nodeName"], &pod["metadata"]["annotations"]["a"]), (&json!("n1"), &json!("b")));
        assert_eq!(pod["status"]["conditions"][0]["status"], "True");
        let e = assign(&mut pod, &b, true).expect_err("twice");
        assert_eq!(
            e.message,
            r#"Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1""#
        );
        assert_eq!(check(&json!({"target": {"kind": "Pod", "name": "x"}})).expect_err("kind").code, 500);
        assert_eq!(
            check(&json!({"target": {"kind": "Pod"}})).expect_err("both").message,
            r#"[target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>", target.name: Required value]"#
        );
    }

    #[test]
    fn a_nomination_ends_with_the_binding() {
        let b = json!({"target": {"kind": "Node", "name": "n1"}});
        for (clear, left) in [(true, json!(null)), (false, json!("n2"))] {
            let mut pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": {"nominatedNodeName": "n2"}});
            assert!(assign(&mut pod, &b, clear).is_ok());
            assert_eq!(pod["status"]["nominatedNodeName"], left);
        }
    }
}
