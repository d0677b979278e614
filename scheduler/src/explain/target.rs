//! The pod that does not exist yet: from a manifest, with the defaults that the API server would give it.

use std::collections::HashMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use shared::types::from_tree;

/// Value and preemption policy by priority class; the default class under the empty name.
pub type Priorities = HashMap<String, (i32, Option<String>)>;

/// A pod from its manifest, or from that of anything with a pod template.
///
/// # Errors
/// A manifest that holds no pod.
pub fn from_manifest(manifest: &Value, namespace: &str) -> anyhow::Result<Pod> {
    let kind = manifest.get("kind").and_then(Value::as_str).unwrap_or_default();
    let template = ["/spec/template", "/spec/jobTemplate/spec/template", "/template"];
    let mut pod = match kind {
        "Pod" => manifest.clone(),
        _ => {
            let found = template.iter().find_map(|at| manifest.pointer(at));
            found.cloned().with_context(|| format!("{kind:?} is no pod and has no pod template"))?
        }
    };
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    for key in ["name", "namespace"] {
        let known = pod["metadata"].get(key).or_else(|| manifest.pointer(&format!("/metadata/{key}")));
        let fallback = if key == "name" { "what-if" } else { namespace };
        pod["metadata"][key] = known.and_then(Value::as_str).unwrap_or(fallback).into();
    }
    pod["metadata"]["uid"] = "what-if".into();
    proto::defaulting::apply(proto::schema::pod(), &mut pod);
    from_tree(&pod).map_err(anyhow::Error::msg).context("reading the pod")
}

/// The pod with the priority that its class gives it.
pub fn with_priority(mut pod: Pod, priorities: &Priorities) -> Pod {
    let Some(spec) = &mut pod.spec else { return pod };
    if spec.priority.is_none() {
        let class = spec.priority_class_name.as_deref().unwrap_or_default();
        if let Some((value, policy)) = priorities.get(class) {
            spec.priority = Some(*value);
            spec.preemption_policy = spec.preemption_policy.take().or_else(|| policy.clone());
        }
    }
    pod
}
