//! Schemas of types, in the dialect of either version.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::descriptions;
use crate::schema::{self, Card, Field, ListType, MapType, Message, ValueKind};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const RUNTIME: &str = "io.k8s.apimachinery.pkg.";
const APIEXT: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";

/// Groups and versions that upstream's scheme knows, also those that are not served.
const SCHEME: &str = "/v1 admission.k8s.io/v1 admission.k8s.io/v1beta1 admissionregistration.k8s.io/v1 \
    admissionregistration.k8s.io/v1alpha1 admissionregistration.k8s.io/v1beta1 apiextensions.k8s.io/v1 \
    apiextensions.k8s.io/v1beta1 apiregistration.k8s.io/v1 apiregistration.k8s.io/v1beta1 apps/v1 apps/v1beta1 \
    apps/v1beta2 authentication.k8s.io/v1 authentication.k8s.io/v1alpha1 authentication.k8s.io/v1beta1 \
    authorization.k8s.io/v1 authorization.k8s.io/v1beta1 autoscaling/v1 autoscaling/v2 autoscaling/v2beta1 \
    autoscaling/v2beta2 batch/v1 batch/v1beta1 certificates.k8s.io/v1 certificates.k8s.io/v1alpha1 \
    certificates.k8s.io/v1beta1 coordination.k8s.io/v1 coordination.k8s.io/v1alpha2 coordination.k8s.io/v1beta1 \
    discovery.k8s.io/v1 discovery.k8s.io/v1beta1 events.k8s.io/v1 events.k8s.io/v1beta1 extensions/v1beta1 \
    flowcontrol.apiserver.k8s.io/v1 flowcontrol.apiserver.k8s.io/v1beta1 flowcontrol.apiserver.k8s.io/v1beta2 \
    flowcontrol.apiserver.k8s.io/v1beta3 imagepolicy.k8s.io/v1alpha1 internal.apiserver.k8s.io/v1alpha1 \
    networking.k8s.io/v1 networking.k8s.io/v1beta1 node.k8s.io/v1 node.k8s.io/v1alpha1 node.k8s.io/v1beta1 policy/v1 \
    policy/v1beta1 rbac.authorization.k8s.io/v1 rbac.authorization.k8s.io/v1alpha1 \
    rbac.authorization.k8s.io/v1beta1 resource.k8s.io/v1 resource.k8s.io/v1alpha3 resource.k8s.io/v1beta1 \
    resource.k8s.io/v1beta2 scheduling.k8s.io/v1 scheduling.k8s.io/v1alpha1 scheduling.k8s.io/v1beta1 \
    storage.k8s.io/v1 storage.k8s.io/v1alpha1 storage.k8s.io/v1beta1 storagemigration.k8s.io/v1beta1";

/// Version of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

/// Published name of a message.
pub(super) fn name(message: &Message) -> String {
    let rest = message.name.strip_prefix("k8s.io.").unwrap_or(&message.name);
    let rest = rest.replace("apiextensions_apiserver", "apiextensions-apiserver");
    format!("io.k8s.{}", rest.replace("kube_aggregator", "kube-aggregator"))
}

/// Published name of a special form; None for those without a schema of their own.
fn special(kind: &ValueKind) -> Option<String> {
    Some(match kind {
        ValueKind::Quantity => format!("{RUNTIME}api.resource.Quantity"),
        ValueKind::IntOrString => format!("{RUNTIME}util.intstr.IntOrString"),
        ValueKind::Time => format!("{META}Time"),
        ValueKind::MicroTime => format!("{META}MicroTime"),
        ValueKind::RawExtension => format!("{RUNTIME}runtime.RawExtension"),
        ValueKind::FieldsV1 => format!("{META}FieldsV1"),
        ValueKind::Json => format!("{APIEXT}JSON"),
        ValueKind::SchemaOrBool => format!("{APIEXT}JSONSchemaPropsOrBool"),
        ValueKind::SchemaOrArray => format!("{APIEXT}JSONSchemaPropsOrArray"),
        ValueKind::SchemaOrStrings => format!("{APIEXT}JSONSchemaPropsOrStringArray"),
        _ => return None,
    })
}

/// Reference to a named schema.
pub(super) fn reference(name: &str, dialect: Dialect) -> String {
    match dialect {
        Dialect::V2 => format!("#/definitions/{name}"),
        Dialect::V3 => format!("#/components/schemas/{name}"),
    }
}

/// Adds a type and everything it refers to.
pub(super) fn close_over(root: &str, names: &mut BTreeSet<String>) {
    let mut open = vec![root.to_owned()];
    while let Some(next) = open.pop() {
        if !names.insert(next.clone()) {
            continue;
        }
        let Some(message) = message_of(&next) else { continue };
        for field in message.fields.iter() {
            match &field.kind {
                ValueKind::Message(inner) => open.push(name(inner)),
                kind => open.extend(special(kind)),
            }
        }
    }
}

fn message_of(published: &str) -> Option<&'static Message> {
    let rest = published.strip_prefix("io.k8s.")?;
    let rest = rest.replace("apiextensions-apiserver", "apiextensions_apiserver");
    schema::message(&format!("k8s.io.{}", rest.replace("kube-aggregator", "kube_aggregator")))
}

/// The schema with a published name; `enums` lists the words that fields may have.
pub(super) fn schema(published: &str, dialect: Dialect, enums: bool) -> Value {
    let mut schema = whole(published, dialect);
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut).filter(|_| !enums);
    for property in properties.into_iter().flat_map(|all| all.values_mut()) {
        for place in ["", "/items", "/additionalProperties"] {
            property.pointer_mut(place).and_then(Value::as_object_mut).and_then(|words| words.remove("enum"));
        }
    }
    schema
}

fn whole(published: &str, dialect: Dialect) -> Value {
    let v2 = dialect == Dialect::V2;
    let short = published.rsplit('.').next().unwrap_or_default();
    match short {
        "Quantity" if v2 => return json!({"type": "string"}),
        "Quantity" => return json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        "IntOrString" if v2 => return json!({"type": "string", "format": "int-or-string"}),
        "IntOrString" => {
            return json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]});
        }
        "Time" | "MicroTime" => return json!({"type": "string", "format": "date-time"}),
        "Duration" => return json!({"type": "string"}),
        "RawExtension" | "FieldsV1" | "Patch" => return json!({"type": "object"}),
        "JSON" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray" => {
            return json!({});
        }
        "Info" => return version_info(dialect),
        _ => {}
    }
    let Some(message) = message_of(published) else { return json!({"type": "object"}) };
    let mut out = Map::new();
    out.insert("type".to_owned(), json!("object"));
    let described = |f: &Field| {
        let mut out = property(f, dialect);
        if let Some(text) = descriptions::of(&message.name, &f.json) {
            out["description"] = json!(text);
        }
        (f.json.to_string(), out)
    };
    let properties: Map<String, Value> = message.fields.iter().map(described).collect();
    if !properties.is_empty() {
        out.insert("properties".to_owned(), Value::Object(properties));
    }
    let required: Vec<&str> = message.fields.iter().filter(|f| f.required).map(|f| f.json.as_ref()).collect();
    if !required.is_empty() {
        out.insert("required".to_owned(), json!(required));
    }
    let kinds = kinds(message);
    if !kinds.is_empty() {
        out.insert("x-kubernetes-group-version-kind".to_owned(), Value::Array(kinds));
    }
    if message.atomic {
        out.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    }
    if !message.unions.is_empty() {
        out.insert("x-kubernetes-unions".to_owned(), serde_json::from_str(message.unions).unwrap_or_default());
    }
    Value::Object(out)
}

fn kinds(message: &Message) -> Vec<Value> {
    let short = message.go_name();
    if matches!(short, "DeleteOptions" | "WatchEvent") && message.name.contains(".meta.v1.") {
        return SCHEME
            .split_whitespace()
            .filter_map(|gv| gv.split_once('/'))
            .map(|(group, version)| json!({"group": group, "kind": short, "version": version}))
            .collect();
    }
    schema::kinds()
        .filter(|(_, other)| std::ptr::eq(*other, message))
        .map(|((group, version, kind), _)| json!({"group": group, "kind": kind, "version": version}))
        .collect()
}

fn property(field: &Field, dialect: Dialect) -> Value {
    let mut out = match field.card {
        Card::Single => value(field, !field.pointer && !field.omit_empty, dialect),
        Card::Repeated => {
            let mut out = Map::new();
            out.insert("type".to_owned(), json!("array"));
            out.insert("items".to_owned(), Value::Object(value(field, true, dialect)));
            out
        }
        Card::Map => {
            let mut out = Map::new();
            out.insert("type".to_owned(), json!("object"));
            out.insert("additionalProperties".to_owned(), Value::Object(value(field, true, dialect)));
            out
        }
    };
    if let (Some(default), Dialect::V3) = (&field.default, dialect) {
        out.insert("default".to_owned(), serde_json::from_str(default).unwrap_or_default());
    }
    if field.card == Card::Repeated && !field.unlisted {
        match &field.list_type {
            ListType::Atomic => {
                out.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
            }
            ListType::Set => {
                out.insert("x-kubernetes-list-type".to_owned(), json!("set"));
            }
            ListType::Map(keys) => {
                out.insert("x-kubernetes-list-type".to_owned(), json!("map"));
                out.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
            }
        }
    }
    if field.map_type == MapType::Atomic {
        out.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    } else if field.granular {
        out.insert("x-kubernetes-map-type".to_owned(), json!("granular"));
    }
    let mut strategy = Vec::new();
    for (set, word) in
        [(field.patch.merge, "merge"), (field.patch.retain_keys, "retainKeys"), (field.patch.replace, "replace")]
    {
        strategy.extend(set.then_some(word));
    }
    if !strategy.is_empty() {
        out.insert("x-kubernetes-patch-strategy".to_owned(), json!(strategy.join(",")));
    }
    if let Some(key) = &field.patch_merge_key {
        out.insert("x-kubernetes-patch-merge-key".to_owned(), json!(key));
    }
    Value::Object(out)
}

/// Schema of a value or element. `zero` publishes the zero value as its default.
fn value(field: &Field, zero: bool, dialect: Dialect) -> Map<String, Value> {
    let mut out = Map::new();
    let (kind, format, default) = match &field.kind {
        ValueKind::Bool => ("boolean", None, json!(false)),
        ValueKind::Int32 => ("integer", Some("int32"), json!(0)),
        ValueKind::Int64 => ("integer", Some("int64"), json!(0)),
        ValueKind::Double => ("number", Some("double"), json!(0)),
        ValueKind::String => ("string", None, json!("")),
        ValueKind::Bytes => ("string", Some("byte"), Value::Null),
        ValueKind::StringList => {
            out.insert("type".to_owned(), json!("array"));
            out.insert("items".to_owned(), strings(dialect));
            return out;
        }
        ValueKind::Message(inner) => {
            let plain = !field.pointer || field.card != Card::Single;
            return named(&name(inner), plain, dialect);
        }
        kind => {
            let Some(name) = special(kind) else { return out };
            return named(&name, false, dialect);
        }
    };
    out.insert("type".to_owned(), json!(kind));
    if let Some(format) = format {
        out.insert("format".to_owned(), json!(format));
    }
    if !field.enums.is_empty() {
        out.insert("enum".to_owned(), json!(field.enums));
    }
    if zero && dialect == Dialect::V3 && !default.is_null() {
        out.insert("default".to_owned(), default);
    }
    out
}

fn strings(dialect: Dialect) -> Value {
    match dialect {
        Dialect::V2 => json!({"type": "string"}),
        Dialect::V3 => json!({"default": "", "type": "string"}),
    }
}

fn named(name: &str, empty: bool, dialect: Dialect) -> Map<String, Value> {
    let target = reference(name, dialect);
    let mut out = Map::new();
    if dialect == Dialect::V2 {
        out.insert("$ref".to_owned(), json!(target));
        return out;
    }
    out.insert("allOf".to_owned(), json!([{"$ref": target}]));
    if empty {
        out.insert("default".to_owned(), json!({}));
    }
    out
}

fn version_info(dialect: Dialect) -> Value {
    let required =
        ["major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
    let optional = ["emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"];
    let mut properties = Map::new();
    for name in required {
        properties.insert(name.to_owned(), strings(dialect));
    }
    for name in optional {
        properties.insert(name.to_owned(), json!({"type": "string"}));
    }
    json!({"type": "object", "properties": properties, "required": required})
}
