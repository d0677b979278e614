//! Binding a pod to a node. Answers for upstream's `BindingREST.Create`, `setPodNodeAndMetadata`.

use std::sync::Arc;

use proto::Value;
use proto::resources::Row;
use serde_json::Map;
use shared::status::Status;
use shared::status::field::aggregate;

use crate::admission::Operation;
use crate::machinery::meta;
use crate::machinery::query::{OptionsKind, WriteOptions};
use crate::registry::core::pod::PODS;
use crate::storage::other_than_asked;
use crate::verbs::engine::Engine;
use crate::verbs::{Reply, VerbRequest, subresources, target, write};

/// Checks the target. Upstream answers these with code 500 and no reason.
fn check(binding: &Value) -> Result<(), Status> {
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
    if errors.is_empty() { Ok(()) } else { Err(Status::unknown(&aggregate(&errors))) }
}

fn refuse(pod: &Value, why: &str) -> Status {
    Status::conflict(PODS.group, &format!("{}/binding", PODS.plural), meta::text(pod, "name"), why)
}

/// Effects of a binding besides setting the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindingEffects {
    /// A nomination has served its purpose and goes.
    pub clears_nomination: bool,
    /// The binding's labels become the pod's.
    pub labels: bool,
}

/// Puts the pod that is stored under `key` on the node.
fn assign(pod: &mut Value, binding: &Value, key: &str, effects: BindingEffects) -> Result<(), Status> {
    let name = meta::text(pod, "name").to_owned();
    for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (asked, there) = (meta::text(binding, field), meta::text(pod, field));
        if !asked.is_empty() && asked != there {
            return Err(PODS.conflict(&name, &other_than_asked(key, what, asked, there)));
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
    let fields = if effects.labels { &["annotations", "labels"][..] } else { &["annotations"] };
    for field in fields {
        let Some(extra) = binding["metadata"].get(field).and_then(Value::as_object) else { continue };
        let map = meta::metadata(pod).entry(*field).or_insert_with(|| Value::Object(Map::new()));
        if let Some(map) = map.as_object_mut() {
            map.extend(extra.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
    }
    super::conditions::scheduled(pod);
    if let (true, Some(status)) = (effects.clears_nomination, pod["status"].as_object_mut()) {
        status.remove("nominatedNodeName");
    }
    Ok(())
}

/// POST of `binding` below a pod.
pub(super) async fn bind(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    row: &Row,
    effects: BindingEffects,
) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Create, &r.user_agent)?;
    let mut object = write::body_of_kind(r, ("", "v1", "Binding"), &options)?.object;
    write::check_namespace(&mut object, &r.info.namespace)?;
    bind_to(engine, r, (row, r.info.name.as_str()), object, &options, effects).await
}

/// POST of a Binding, which names the pod itself.
pub(super) async fn create(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    object: Value,
    options: &WriteOptions,
    effects: BindingEffects,
) -> Result<Reply, Status> {
    let pods = &engine.rows.storage(PODS).ok_or_else(Status::generic_not_found)?;
    let name = meta::text(&object, "name").to_owned();
    bind_to(engine, r, (pods, name.as_str()), object, options, effects).await
}

async fn bind_to(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    (row, name): (&Row, &str),
    mut object: Value,
    options: &WriteOptions,
    effects: BindingEffects,
) -> Result<Reply, Status> {
    let mut t = target(r, row, "binding", options, "CreateOptions");
    t.name = name;
    engine.admit(&mut t, Operation::Create, Some(&mut object), None).await?;
    if meta::text(&object, "name") != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    check(&object)?;
    engine.validate_admission(&mut t, Operation::Create, Some(&mut object), None).await?;
    let key = engine.key(row, &r.info.namespace, name);
    let mut change = |pod: &mut Value| assign(pod, &object, &key, effects);
    engine.modify(row, &r.info.namespace, name, options.dry_run, &mut change).await?;
    subresources::created(r)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALL: BindingEffects = BindingEffects { clears_nomination: true, labels: true };
    const KEY: &str = "/registry/pods/n/p";

    fn binding() -> Value {
        json!({"metadata": {"annotations": {"a": "b"}, "labels": {"l": "2"}}, "target": {"kind": "Node", "name": "n1"}})
    }

    #[test]
    fn a_pod_is_bound_once() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending"}});
        let b = binding();
        assert!(check(&b).is_ok() && assign(&mut pod, &b, KEY, ALL).is_ok());
        assert_eq!((&pod["spec"]["nodeName"], &pod["metadata"]["annotations"]["a"]), (&json!("n1"), &json!("b")));
        assert_eq!(pod["status"]["conditions"][0]["status"], "True");
        let e = assign(&mut pod, &b, KEY, ALL).expect_err("twice");
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
    fn only_the_pod_that_is_meant_is_bound() {
        for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let mut pod = json!({"metadata": {"name": "p", "uid": "1", "resourceVersion": "1"}, "spec": {}});
            let mut b = binding();
            b["metadata"][field] = json!("2");
            let e = assign(&mut pod, &b, KEY, ALL).expect_err("another pod");
            let why = format!("Precondition failed: {what} in precondition: 2, {what} in object meta: 1");
            assert_eq!(
                (e.code, e.message),
                (
                    409,
                    format!(
                        "Operation cannot be fulfilled on pods \"p\": StorageError: invalid object, Code: 4, \
                         Key: {KEY}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
                    )
                )
            );
        }
    }

    #[test]
    fn feature_gates_decide_effects_of_a_binding() {
        let none = BindingEffects { clears_nomination: false, labels: false };
        for (effects, nominated, label) in [(ALL, json!(null), "2"), (none, json!("n2"), "1")] {
            let mut pod = json!({"metadata": {"name": "p", "labels": {"l": "1"}}, "spec": {},
                "status": {"nominatedNodeName": "n2"}});
            assert!(assign(&mut pod, &binding(), KEY, effects).is_ok());
            assert_eq!(
                (&pod["status"]["nominatedNodeName"], &pod["metadata"]["labels"]["l"]),
                (&nominated, &json!(label))
            );
        }
    }
}
