//! Custom resource definitions: names, versions, and schemas that say of every place what it holds.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::crd::JsonPath;

use super::meta::annotation;
use super::names::{complain, dns1035_label, dns1123_subdomain};
use super::tree::{entries, flag, get, has, list, text};

const APPROVED: &str = "api-approved.kubernetes.io";
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Deepest schema that is looked at.
const DEPTH: usize = 200;

/// A new definition.
pub(super) fn definition(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (group, names) = (text(spec, "group"), get(spec, "names"));
    let (plural, name) = (text(names, "plural"), text(get(object, "metadata"), "name"));
    if name != format!("{plural}.{group}") {
        let message = "must be spec.names.plural+\".\"+spec.group";
        out.push(Error::invalid(Path::of(&["metadata", "name"]), name, message));
    }
    approval(object, group, out);
    if group.is_empty() {
        out.push(Error::required(path.child("group"), ""));
    } else {
        complain(out, &path.child("group"), group, dns1123_subdomain(group));
    }
    match text(spec, "scope") {
        "" => out.push(Error::required(path.child("scope"), "")),
        "Cluster" | "Namespaced" => {}
        other => out.push(Error::not_supported(path.child("scope"), other, &["Cluster", "Namespaced"])),
    }
    for key in ["plural", "singular", "kind", "listKind"] {
        let name = text(names, key);
        let path = path.child("names").child(key);
        if name.is_empty() {
            // The other two have defaults.
            if matches!(key, "plural" | "kind") {
                out.push(Error::required(path, ""));
            }
        } else {
            complain(out, &path, name, dns1035_label(&name.to_lowercase()));
        }
    }
    versions(spec, &path, out);
    conversion(spec, &path, out);
    for (i, version) in list(spec, "versions").iter().enumerate() {
        presentation(version, &path.child("versions").index(i), out);
    }
}

fn approval(object: &Value, group: &str, out: &mut Vec<Error>) {
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|g| group.strip_suffix(g).is_some_and(|r| r.is_empty() || r.ends_with('.')));
    if protected && annotation(object, APPROVED).is_empty() {
        let message = format!(
            "protected groups must have approval annotation \"{APPROVED}\", see https://github.com/kubernetes/enhancements/pull/1111"
        );
        out.push(Error::required(Path::of(&["metadata", "annotations"]).key(APPROVED), &message));
    }
}

fn versions(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let all = list(spec, "versions");
    let path = path.child("versions");
    if all.iter().filter(|v| flag(v, "storage")).count() != 1 {
        let shown = get(spec, "versions").clone();
        out.push(Error::invalid(&path, shown, "must have exactly one version marked as storage version"));
    }
    let mut seen = std::collections::BTreeSet::new();
    if all.iter().any(|v| !seen.insert(text(v, "name"))) {
        let shown = get(spec, "versions").clone();
        out.push(Error::invalid(&path, shown, "must contain unique version names"));
    }
    let schema = |version: &Value| get(get(version, "schema"), "openAPIV3Schema").clone();
    for (i, version) in all.iter().enumerate() {
        let path = path.index(i);
        complain(out, &path.child("name"), text(version, "name"), dns1035_label(text(version, "name")));
        if schema(version).is_null() {
            out.push(Error::required(path.child("schema").child("openAPIV3Schema"), ""));
        }
    }
    // Schemas that are all the same count as one for the whole definition.
    let same = all.windows(2).all(|pair| schema(&pair[0]) == schema(&pair[1]));
    for (i, version) in all.iter().enumerate().take(if same { 1 } else { all.len() }) {
        let at = if same { Path::of(&["spec", "validation"]) } else { path.index(i).child("schema") };
        if !schema(version).is_null() {
            let (text, at) = (schema(version), at.child("openAPIV3Schema"));
            let before = out.len();
            typed(&text, "at the root", &at, 0, out);
            if out.len() == before {
                crate::crd::validate::schema(&text, &at, out);
            }
        }
    }
}

/// Every place has a type.
fn typed(schema: &Value, place: &str, path: &Path, depth: usize, out: &mut Vec<Error>) {
    if depth > DEPTH || !schema.is_object() {
        return;
    }
    let open =
        ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"].iter().any(|key| flag(schema, key));
    match text(schema, "type") {
        "" if open && depth > 0 => {}
        "" => out.push(Error::required(path.child("type"), &format!("must not be empty {place}"))),
        "object" => {}
        other if !TYPES.contains(&other) => out.push(Error::not_supported(path.child("type"), other, &TYPES)),
        other if depth == 0 => out.push(Error::invalid(path.child("type"), other, "must be object at the root")),
        _ => {}
    }
    let field = "for specified object fields";
    for (name, inner) in entries(schema, "properties") {
        typed(inner, field, &path.child("properties").key(name), depth + 1, out);
    }
    if has(schema, "additionalProperties") {
        typed(get(schema, "additionalProperties"), field, &path.child("additionalProperties"), depth + 1, out);
    }
    typed(get(schema, "items"), "for specified array items", &path.child("items"), depth + 1, out);
}

/// Conversion between versions.
fn conversion(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let conversion = get(spec, "conversion");
    let path = path.child("conversion");
    let webhook = get(conversion, "webhook");
    match text(conversion, "strategy") {
        // Defaulted before.
        "" => {}
        "None" => {
            if webhook.is_object() {
                let message = "should not be set when strategy is not set to Webhook";
                out.push(Error::forbidden(path.child("webhook"), message));
            }
        }
        "Webhook" => {
            let path = path.child("webhook");
            let client = get(webhook, "clientConfig");
            let versions = super::tree::texts(webhook, "conversionReviewVersions");
            if !client.is_object() {
                out.push(Error::required(path.child("clientConfig"), "required when strategy is set to Webhook"));
            } else if has(client, "url") == has(client, "service") {
                let message = "exactly one of url or service is required";
                out.push(Error::required(path.child("clientConfig"), message));
            }
            let at = path.child("conversionReviewVersions");
            if versions.is_empty() {
                out.push(Error::required(at, "must specify at least one version"));
            } else if !versions.iter().any(|v| matches!(*v, "v1" | "v1beta1")) {
                let message = "must include at least one of v1, v1beta1";
                out.push(Error::invalid(at, Value::from(versions), message));
            }
        }
        other => out.push(Error::not_supported(path.child("strategy"), other, &["None", "Webhook"])),
    }
}

/// Columns, subresources and selectable fields of a version.
fn presentation(version: &Value, path: &Path, out: &mut Vec<Error>) {
    const KINDS: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    for (i, column) in list(version, "additionalPrinterColumns").iter().enumerate() {
        let path = path.child("additionalPrinterColumns").index(i);
        if text(column, "name").is_empty() {
            out.push(Error::required(path.child("name"), ""));
        }
        let kind = text(column, "type");
        if kind.is_empty() {
            let message = format!("must be one of {}", KINDS.join(","));
            out.push(Error::required(path.child("type"), &message));
        } else if !KINDS.contains(&kind) {
            let message = format!("must be one of {}", KINDS.join(","));
            out.push(Error::invalid(path.child("type"), kind, &message));
        }
        let json_path = text(column, "jsonPath");
        if json_path.is_empty() {
            out.push(Error::required(path.child("jsonPath"), ""));
        } else if let Err(why) = JsonPath::parse(json_path) {
            out.push(Error::invalid(path.child("jsonPath"), json_path, &why));
        }
    }
    let scale = super::tree::at(version, &["subresources", "scale"]);
    if scale.is_object() {
        let path = path.child("subresources").child("scale");
        for (key, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
            let value = text(scale, key);
            let at = path.child(key);
            let plain = JsonPath::parse(value).is_ok_and(|p| p.fields().is_some());
            if value.is_empty() {
                out.push(Error::required(at, ""));
            } else if !plain {
                out.push(Error::invalid(at, value, "should be a json path under the dot notation"));
            } else if !value.starts_with(prefix) {
                let message = format!("should be a json path under {}", prefix.trim_end_matches('.'));
                out.push(Error::invalid(at, value, &message));
            }
        }
        let selector = text(scale, "labelSelectorPath");
        if !selector.is_empty() && !selector.starts_with(".spec.") && !selector.starts_with(".status.") {
            let message = "should be a json path under either .spec or .status";
            out.push(Error::invalid(path.child("labelSelectorPath"), selector, message));
        }
    }
    if !text(version, "deprecationWarning").is_empty() && !flag(version, "deprecated") {
        let message = "can only be set for deprecated versions";
        out.push(Error::invalid(path.child("deprecationWarning"), text(version, "deprecationWarning"), message));
    }
}

/// What defines the resource stays.
pub(super) fn definition_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    for keys in [&["group"][..], &["scope"], &["names", "kind"], &["names", "plural"]] {
        let value = |from: &Value| super::tree::at(from, keys).clone();
        if value(spec) != value(before) {
            let path = keys.iter().fold(Path::new("spec"), |p, k| p.child(k));
            out.push(Error::invalid(path, value(spec), "field is immutable"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(name: &str, group: &str, schema: Value) -> Value {
        json!({"metadata": {"name": name}, "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": "bars", "kind": "Bar"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        }})
    }

    #[test]
    fn definitions() {
        let check = |object: Value| -> Vec<String> {
            let mut out = Vec::new();
            definition(&object, &mut out);
            out.iter().map(ToString::to_string).collect()
        };
        let object = || json!({"type": "object"});
        assert!(check(crd("bars.ex.com", "ex.com", object())).is_empty());
        assert_eq!(
            check(crd("x", "ex.com", Value::Null)),
            [
                r#"metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group"#,
                "spec.versions[0].schema.openAPIV3Schema: Required value"
            ]
        );
        assert_eq!(
            check(crd("bars.ex.com", "ex.com", json!({"properties": {"a": {"type": "strin"}, "b": {}}}))),
            [
                "spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root",
                r#"spec.validation.openAPIV3Schema.properties[a].type: Unsupported value: "strin": supported values: "array", "boolean", "integer", "number", "object", "string""#,
                "spec.validation.openAPIV3Schema.properties[b].type: Required value: must not be empty for specified object fields",
            ]
        );
        let protected = check(crd("bars.x.k8s.io", "x.k8s.io", object()));
        assert!(protected.len() == 1 && protected[0].starts_with("metadata.annotations[api-approved.kubernetes.io]"));
        assert!(check(crd("bars.xk8s.io", "xk8s.io", object())).is_empty());
        let any = json!({"type": "object", "properties": {"a": {"x-kubernetes-preserve-unknown-fields": true}}});
        assert!(check(crd("bars.ex.com", "ex.com", any)).is_empty());
    }

    #[test]
    fn scopes_stay() {
        let old = crd("bars.ex.com", "ex.com", json!({"type": "object"}));
        let mut new = old.clone();
        new["spec"]["scope"] = json!("Cluster");
        let mut out = Vec::new();
        definition_update(&new, &old, &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].to_string(), r#"spec.scope: Invalid value: "Cluster": field is immutable"#);
    }
}
