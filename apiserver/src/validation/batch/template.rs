//! Validation of updates of a job's template: immutable while the job runs. While it is suspended the scheduling
//! directives may change, and with a feature gate the resources. Answers for upstream's `validatePodTemplateUpdate`.

use proto::Value;
use serde_json::Map;
use shared::status::field::{Error, Path};

use crate::rules::meta::immutable;
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{at, flag, get, int, list, same, text};

/// The template of a changed job.
pub(super) fn stays(new: &Value, old: &Value, path: &Path, out: &mut FieldErrors) {
    let (template, mut was) = (get(get(new, "spec"), "template"), get(get(old, "spec"), "template").clone());
    let suspended = flag(get(old, "spec"), "suspend");
    let placeable = if out.allows(ValidationOption::MutableSchedulingDirectivesForSuspendedJobs) {
        is_idle(old)
    } else {
        at(old, &["status", "startTime"]).is_null()
    };
    if suspended && placeable {
        placed_as(&mut was, template);
    }
    if suspended && out.allows(ValidationOption::MutableResourcesForSuspendedJobs) && is_idle(old) {
        let pod = get(template, "spec");
        needing_as(&mut was, pod);
        immutable(pod, get(&was, "spec"), &path.child("template").child("spec"), out);
    } else if !same(template, &was) {
        out.push(Error::invalid(path.child("template"), template.clone(), "field is immutable"));
    }
}

/// A suspended job of which nothing is left running.
fn is_idle(job: &Value) -> bool {
    let status = get(job, "status");
    let told = |c: &Value| text(c, "type") == "Suspended" && text(c, "status") == "True";
    list(status, "conditions").iter().any(told) && int(status, "active").unwrap_or_default() == 0
}

fn set(map: &mut Map<String, Value>, key: &str, value: &Value) {
    match value {
        Value::Null => drop(map.remove(key)),
        value => drop(map.insert(key.to_owned(), value.clone())),
    }
}

/// Copies the scheduling directives of the new template.
fn placed_as(was: &mut Value, new: &Value) {
    for (holder, keys) in
        [("metadata", &["labels", "annotations"][..]), ("spec", &["nodeSelector", "tolerations", "schedulingGates"])]
    {
        let Some(map) = was.get_mut(holder).and_then(Value::as_object_mut) else { continue };
        for key in keys {
            set(map, key, get(get(new, holder), key));
        }
    }
    if let Some(pod) = was.get_mut("spec").and_then(Value::as_object_mut) {
        near_nodes_as(pod, get(get(new, "spec"), "affinity"));
    }
}

/// Of the affinity, that to nodes.
fn near_nodes_as(pod: &mut Map<String, Value>, new: &Value) {
    let Some(affinity) = pod.entry("affinity").or_insert_with(|| Value::Object(Map::new())).as_object_mut() else {
        return;
    };
    set(affinity, "nodeAffinity", get(new, "nodeAffinity"));
    if affinity.is_empty() && new.is_null() {
        pod.remove("affinity");
    }
}

/// The resources of containers that are the same otherwise, as in the new pods.
fn needing_as(was: &mut Value, new: &Value) {
    for kind in ["containers", "initContainers"] {
        let news = list(new, kind);
        let olds = was.get_mut("spec").and_then(|pod| pod.get_mut(kind)).and_then(Value::as_array_mut);
        let Some(olds) = olds.filter(|olds| olds.len() == news.len()) else { continue };
        for (old, new) in olds.iter_mut().zip(news).filter(|(old, new)| text(old, "name") == text(new, "name")) {
            if let Some(old) = old.as_object_mut() {
                set(old, "resources", get(new, "resources"));
            }
        }
    }
}
