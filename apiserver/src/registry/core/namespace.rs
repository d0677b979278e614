//! Namespaces: the finalizer that makes their deletion wait for their content, and the label with their name. Answers
//! for upstream's `pkg/registry/core/namespace` (`shouldHaveOrphanFinalizer`, `FinalizeREST`).

use proto::Value;
use serde_json::json;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::text;
use crate::registry::strategy::{PLAIN, Strategy, StrategyCx, restore};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

pub(crate) const NAMESPACES: GroupResource<'static> = GroupResource::new("", "namespaces");

pub(crate) static KIND: KindDefinition = KindDefinition::new(NAMESPACES)
    .strategy(Strategy {
        prepare_create: Some(prepare_create),
        prepare_update: Some(prepare_update),
        prepare_status: Some(prepare_status),
        holds: Some(is_held),
        on_delete: Some(terminate),
        ..PLAIN
    })
    .rules(
        rules(validation::core::namespace)
            .named(NameRule::Label)
            .changed(CREATE_AND_UPDATE)
            .status(validation::core::namespace_status),
    )
    .cells(printers::cluster::namespace)
    .selectable(&[text("status.phase", &["/status/phase"])]);

/// Active, with the kubernetes finalizer.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
    object["status"] = json!({"phase": "Active"});
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    let mut finalizers = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|f| f == "kubernetes") {
        finalizers.push(json!("kubernetes"));
    }
    object["spec"]["finalizers"] = finalizers.into();
    object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
}

/// Finalizers only change through `finalize`; the name label cannot be taken off.
pub(in crate::registry) fn prepare_update(new: &mut Value, old: &Value) {
    restore(new, old, "spec");
    keep_label(new, old);
}

/// A write of `status`.
pub(in crate::registry) fn prepare_status(new: &mut Value, old: &Value) {
    keep_label(new, old);
}

/// A write of `finalize`.
pub(crate) fn finalize(new: &mut Value, old: &Value) {
    restore(new, old, "status");
    keep_label(new, old);
}

fn keep_label(new: &mut Value, old: &Value) {
    if let Some(name) = old.pointer("/metadata/name") {
        new["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.clone();
    }
}

/// True while something has to be cleaned up in the namespace.
pub(in crate::registry) fn is_held(object: &Value) -> bool {
    object.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty())
}

/// A namespace being deleted says so in its phase.
pub(in crate::registry) fn terminate(object: &mut Value) {
    object["status"]["phase"] = json!("Terminating");
}
