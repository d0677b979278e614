//! Workloads: what makes pods.

use serde_json::{Value, json};

use super::{Object, child_or_new, if_nil, if_zero, is_empty, items, text};

pub(super) fn replicas(spec: &mut Object) {
    if_nil(spec, "replicas", 1);
}

fn template_labels(spec: &Object) -> Option<Value> {
    let labels = spec.get("template")?.get("metadata")?.get("labels")?;
    labels.as_object().filter(|l| !l.is_empty())?;
    Some(labels.clone())
}

/// Selector and labels come from the template.
pub(super) fn replication_controller(controller: &mut Object) {
    let Some(spec) = child_or_new(controller, "spec") else { return };
    replicas(spec);
    let Some(labels) = template_labels(spec) else { return };
    if is_empty(spec, "selector") {
        spec.insert("selector".to_owned(), labels.clone());
    }
    set_labels(controller, labels);
}

fn set_labels(object: &mut Object, labels: Value) {
    if let Some(metadata) = child_or_new(object, "metadata")
        && is_empty(metadata, "labels")
    {
        metadata.insert("labels".to_owned(), labels);
    }
}

pub(super) fn deployment(spec: &mut Object) {
    replicas(spec);
    if let Some(strategy) = child_or_new(spec, "strategy") {
        if_zero(strategy, "type", "RollingUpdate");
        rolling(strategy, &json!("25%"), &json!("25%"));
    }
    if_nil(spec, "revisionHistoryLimit", 10);
    if_nil(spec, "progressDeadlineSeconds", 600);
}

fn rolling(strategy: &mut Object, unavailable: &Value, surge: &Value) {
    if text(strategy, "type") != "RollingUpdate" {
        return;
    }
    if let Some(update) = child_or_new(strategy, "rollingUpdate") {
        if_nil(update, "maxUnavailable", unavailable.clone());
        if_nil(update, "maxSurge", surge.clone());
    }
}

pub(super) fn daemon_set(spec: &mut Object) {
    if let Some(strategy) = child_or_new(spec, "updateStrategy") {
        if_zero(strategy, "type", "RollingUpdate");
        rolling(strategy, &json!(1), &json!(0));
    }
    if_nil(spec, "revisionHistoryLimit", 10);
}

pub(super) fn stateful_set(spec: &mut Object) {
    if_zero(spec, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = child_or_new(spec, "updateStrategy") {
        if text(strategy, "type").is_empty() {
            strategy.insert("type".to_owned(), Value::from("RollingUpdate"));
            if_nil(strategy, "rollingUpdate", Object::new());
        }
        if text(strategy, "type") == "RollingUpdate"
            && let Some(Value::Object(update)) = strategy.get_mut("rollingUpdate")
        {
            if_nil(update, "partition", 0);
        }
    }
    if let Some(policy) = child_or_new(spec, "persistentVolumeClaimRetentionPolicy") {
        if_zero(policy, "whenDeleted", "Retain");
        if_zero(policy, "whenScaled", "Retain");
    }
    replicas(spec);
    if_nil(spec, "revisionHistoryLimit", 10);
    for claim in items(spec, "volumeClaimTemplates") {
        if_zero(claim, "apiVersion", "v1");
        if_zero(claim, "kind", "PersistentVolumeClaim");
    }
}

pub(super) fn job(job: &mut Object) {
    let Some(spec) = child_or_new(job, "spec") else { return };
    if spec.get("completions").is_none_or(Value::is_null) && spec.get("parallelism").is_none_or(Value::is_null) {
        spec.insert("completions".to_owned(), Value::from(1));
    }
    if_nil(spec, "parallelism", 1);
    let per_index = spec.get("backoffLimitPerIndex").is_some_and(|v| !v.is_null());
    if_nil(spec, "backoffLimit", if per_index { i32::MAX } else { 6 });
    if_nil(spec, "completionMode", "NonIndexed");
    if_nil(spec, "suspend", false);
    if_nil(spec, "manualSelector", false);
    let with_policy = spec.get("podFailurePolicy").is_some_and(Value::is_object);
    if_nil(spec, "podReplacementPolicy", if with_policy { "Failed" } else { "TerminatingOrFailed" });
    if let Some(Value::Object(policy)) = spec.get_mut("podFailurePolicy") {
        for rule in items(policy, "rules") {
            for condition in items(rule, "onPodConditions") {
                if_zero(condition, "status", "True");
            }
        }
    }
    if let Some(labels) = template_labels(spec) {
        set_labels(job, labels);
    }
}

pub(super) fn cron_job(spec: &mut Object) {
    if_zero(spec, "concurrencyPolicy", "Allow");
    if_nil(spec, "suspend", false);
    if_nil(spec, "successfulJobsHistoryLimit", 3);
    if_nil(spec, "failedJobsHistoryLimit", 1);
}
