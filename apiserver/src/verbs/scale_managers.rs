//! Managed fields of replicas, mapped from an object to its Scale and back: entries that own the replicas stand in
//! both, each in terms of its kind. Pure. Answers for upstream's `ScaleHandler`, `ResourcePathMappings`.

use proto::Value;
use serde_json::{Map, json};

use crate::machinery::tree::text;

/// Reports whether two entries have the same owner; the version it wrote in does not matter.
fn same(a: &Value, b: &Value) -> bool {
    ["/manager", "/operation", "/subresource"].iter().all(|field| text(a, field) == text(b, field))
}

fn owns(entry: &Value, path: &[String]) -> bool {
    path.iter().try_fold(&entry["fieldsV1"], |fields, name| fields.get(format!("f:{name}"))).is_some()
}

/// A field set that holds a path.
fn only(path: &[String]) -> Value {
    path.iter().rev().fold(json!({}), |below, name| json!({format!("f:{name}"): below}))
}

/// Removes a path, and what is empty without it.
fn remove(fields: &mut Map<String, Value>, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    let name = format!("f:{first}");
    let emptied = match fields.get_mut(&name).and_then(Value::as_object_mut) {
        Some(below) if !rest.is_empty() => {
            remove(below, rest);
            below.is_empty()
        }
        below => below.is_some(),
    };
    if emptied {
        fields.remove(&name);
    }
}

/// The entries that own the replicas, as entries of the Scale.
pub(super) fn of_scale(entries: &[Value], replicas: &[String]) -> Vec<Value> {
    let owners = entries.iter().filter(|entry| owns(entry, replicas));
    let shown = owners.map(|entry| {
        let mut entry = entry.clone();
        entry["apiVersion"] = json!("autoscaling/v1");
        entry["fieldsV1"] = json!({"f:spec": {"f:replicas": {}}});
        entry
    });
    shown.collect()
}

/// The entries of the object after its Scale was written: who owns the replicas there owns them here, and nobody else.
/// As upstream has it, who does so already keeps the time of his entry, and a new entry has none: it is among the
/// first.
pub(super) fn of_object(entries: &[Value], scale: &[Value], replicas: &[String], api_version: &str) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for entry in entries {
        let mut entry = entry.clone();
        if !(owns(&entry, replicas) && scale.iter().any(|s| same(s, &entry)))
            && let Some(fields) = entry["fieldsV1"].as_object_mut()
        {
            remove(fields, replicas);
        }
        if entry["fieldsV1"].as_object().is_some_and(|fields| !fields.is_empty()) {
            all.push(entry);
        }
    }
    for written in scale {
        if !entries.iter().any(|entry| same(entry, written) && owns(entry, replicas)) {
            let mut entry = written.clone();
            entry["apiVersion"] = json!(api_version);
            entry["fieldsV1"] = only(replicas);
            if let Some(entry) = entry.as_object_mut() {
                entry.remove("time");
            }
            all.push(entry);
        }
    }
    all.sort_by(|a, b| {
        let rank = |e: &Value| {
            ["/operation", "/time", "/manager", "/apiVersion", "/subresource"].map(|f| text(e, f).to_owned())
        };
        rank(a).cmp(&rank(b))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_the_replicas_stand_in_both() {
        let path: Vec<String> = ["spec", "size"].map(str::to_owned).into();
        let entry = |manager: &str, version: &str, subresource: &str, fields: Value| {
            json!({"manager": manager, "operation": "Apply", "apiVersion": version, "time": "t", "fieldsType": "FieldsV1",
                "fieldsV1": fields, "subresource": subresource})
        };
        let object = [
            entry("a", "x.io/v1", "", json!({"f:spec": {"f:size": {}, "f:image": {}}})),
            entry("b", "x.io/v1", "", json!({"f:spec": {"f:size": {}}})),
            entry("c", "x.io/v1", "", json!({"f:spec": {"f:image": {}}})),
        ];
        let shown = of_scale(&object, &path);
        let replicas = json!({"f:spec": {"f:replicas": {}}});
        assert_eq!(shown, ["a", "b"].map(|m| entry(m, "autoscaling/v1", "", replicas.clone())));

        // Somebody takes them from both.
        let scaled = [entry("hpa", "autoscaling/v1", "scale", replicas)];
        let back = of_object(&object, &scaled, &path, "x.io/v1");
        let image = json!({"f:spec": {"f:image": {}}});
        let mut own = entry("hpa", "x.io/v1", "scale", json!({"f:spec": {"f:size": {}}}));
        own.as_object_mut().and_then(|entry| entry.remove("time"));
        assert_eq!(back, [own, entry("a", "x.io/v1", "", image.clone()), entry("c", "x.io/v1", "", image)]);
        // Who writes what is there changes nothing.
        assert_eq!(of_object(&back, &of_scale(&back, &path), &path, "x.io/v1"), back);
    }
}
