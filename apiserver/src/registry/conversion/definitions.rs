//! Custom resource definitions as etcd has them: in `v1beta1`, which nobody serves any more. There, what all versions
//! have in common stands once, columns name their path in capitals, and a conversion webhook has no place of its own.

use proto::Value;
use serde_json::{Map, json};

/// Fields that versions can share: the name in a version, and in the specification for all versions.
const PARTS: [(&str, &str); 4] = [
    ("schema", "validation"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];
const WEBHOOK: [(&str, &str); 2] =
    [("clientConfig", "webhookClientConfig"), ("conversionReviewVersions", "conversionReviewVersions")];

/// Converts between what is stored and what is served.
pub(in crate::registry) fn convert(object: &mut Value, _: &str, version: &str) {
    if version == "v1beta1" {
        to_v1beta1(object);
    } else if object["apiVersion"] == "apiextensions.k8s.io/v1beta1" {
        from_v1beta1(object);
    }
}

fn spec(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.get_mut("spec")?.as_object_mut()
}

fn versions(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Renames the path of every column of a list.
fn rename(columns: Option<&mut Value>, from: &str, to: &str) {
    let columns = columns.and_then(Value::as_array_mut).into_iter().flatten();
    for column in columns.filter_map(Value::as_object_mut) {
        if let Some(path) = column.remove(from) {
            column.insert(to.to_owned(), path);
        }
    }
}

/// Returns a part that is set and equal in all versions.
fn common(spec: &mut Map<String, Value>, part: &str) -> Option<Value> {
    let mut all = versions(spec).map(|version| version.get(part).cloned());
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// Converts to v1beta1, as stored in etcd.
fn to_v1beta1(object: &mut Value) {
    let Some(spec) = spec(object) else { return };
    for version in versions(spec) {
        rename(version.get_mut("additionalPrinterColumns"), "jsonPath", "JSONPath");
    }
    for (part, all) in PARTS {
        if let Some(shared) = common(spec, part) {
            versions(spec).for_each(|version| drop(version.remove(part)));
            spec.insert(all.to_owned(), shared);
        }
    }
    let first = versions(spec).next().and_then(|version| version.get("name").cloned());
    if let Some(name) = first {
        spec.insert("version".to_owned(), name);
    }
    let keeps = spec.get("preserveUnknownFields").and_then(Value::as_bool).unwrap_or(false);
    spec.insert("preserveUnknownFields".to_owned(), Value::from(keeps));
    let conversion = spec.get_mut("conversion").and_then(Value::as_object_mut);
    if let Some(conversion) = conversion
        && let Some(Value::Object(mut webhook)) = conversion.remove("webhook")
    {
        for (own, there) in WEBHOOK {
            conversion.extend(webhook.remove(own).map(|value| (there.to_owned(), value)));
        }
    }
}

/// Converts to v1. A `v1beta1` object without version names is one that an earlier release of this server wrote as `v1`
/// under that name.
fn from_v1beta1(object: &mut Value) {
    let Some(spec) = spec(object) else { return };
    let Some(name) = spec.remove("version").filter(|name| name.as_str().is_some_and(|name| !name.is_empty())) else {
        return;
    };
    if versions(spec).next().is_none() {
        spec.insert("versions".to_owned(), json!([{"name": name, "served": true, "storage": true}]));
    }
    for (part, all) in PARTS {
        if let Some(shared) = spec.remove(all).filter(|shared| !shared.is_null()) {
            versions(spec).for_each(|version| drop(version.insert(part.to_owned(), shared.clone())));
        }
    }
    for version in versions(spec) {
        rename(version.get_mut("additionalPrinterColumns"), "JSONPath", "jsonPath");
    }
    // Who says nothing of it means yes there, and no in `v1`.
    match spec.get("preserveUnknownFields").and_then(Value::as_bool) {
        Some(false) => drop(spec.remove("preserveUnknownFields")),
        _ => drop(spec.insert("preserveUnknownFields".to_owned(), Value::from(true))),
    }
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) {
        let mut webhook = Map::new();
        for (own, there) in WEBHOOK {
            webhook.extend(conversion.remove(there).map(|value| (own.to_owned(), value)));
        }
        if !webhook.is_empty() {
            conversion.insert("webhook".to_owned(), Value::Object(webhook));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_stored_in_their_old_form_and_read_back() {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let columns = |key: &str| json!([{"name": "A", "type": "string", key: ".spec.a"}]);
        let names = json!({"plural": "as", "kind": "A"});
        let config = json!({"url": "https://x"});
        for (own, stored) in [
            (
                json!({"group": "g", "names": names, "versions": [
                    {"name": "v1", "served": true, "storage": true, "schema": schema, "additionalPrinterColumns": columns("jsonPath")},
                ]}),
                json!({"group": "g", "names": names, "version": "v1", "validation": schema, "preserveUnknownFields": false,
                    "additionalPrinterColumns": columns("JSONPath"), "versions": [{"name": "v1", "served": true, "storage": true}]}),
            ),
            (
                json!({"preserveUnknownFields": true, "versions": [
                    {"name": "v2", "schema": schema, "subresources": {"status": {}}},
                    {"name": "v1", "schema": schema, "additionalPrinterColumns": columns("jsonPath"), "selectableFields": []},
                ], "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}}}),
                json!({"preserveUnknownFields": true, "version": "v2", "validation": schema, "versions": [
                    {"name": "v2", "subresources": {"status": {}}},
                    {"name": "v1", "additionalPrinterColumns": columns("JSONPath"), "selectableFields": []},
                ], "conversion": {"strategy": "Webhook", "webhookClientConfig": config, "conversionReviewVersions": ["v1"]}}),
            ),
        ] {
            let mut object = json!({"spec": own});
            to_v1beta1(&mut object);
            assert_eq!(object["spec"], stored);
            from_v1beta1(&mut object);
            assert_eq!(object["spec"], own);
        }
        let mut old = json!({"spec": {"version": "v1", "validation": schema}});
        from_v1beta1(&mut old);
        let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": schema}]);
        assert_eq!(old["spec"], json!({"preserveUnknownFields": true, "versions": versions}));
        let misnamed = json!({"spec": {"versions": [{"name": "v1", "schema": schema}]}});
        let mut read = misnamed.clone();
        from_v1beta1(&mut read);
        assert_eq!(read, misnamed, "what we wrote before we knew");
    }
}
