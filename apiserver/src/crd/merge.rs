//! The merge tables of a version: the same [`Message`]s that compiled-in kinds have, made from a schema's text.
//!
//! Server-side apply and managed fields work on these; nothing else about custom resources does.

use std::borrow::Cow;
use std::sync::Arc;

use proto::schema::{self, Card, Derived, Field, Gvk, ListType, MapType, Message, MessageRef, ValueKind};

use super::schema::{Additional, ListKind, Schema};

fn message(name: String, fields: Vec<Field>) -> Message {
    Message {
        name: Cow::Owned(name),
        fields: Cow::Owned(fields),
        wire: Cow::Borrowed(&[]),
        gvk: None,
        atomic: false,
        preserve_unknown: false,
        embedded_resource: false,
        has_protobuf: false,
        unions: "",
        go_package: "",
        derived: Derived::new(),
    }
}

/// The table of a version's root type.
pub(super) fn root(group: &str, version: &str, kind: &str, schema: &Schema) -> Arc<Message> {
    let mut root = structure(schema, 0);
    root.name = Cow::Owned(kind.to_owned());
    root.embedded_resource = true;
    let gvk = Gvk {
        group: Cow::Owned(group.to_owned()),
        version: Cow::Owned(version.to_owned()),
        kind: Cow::Owned(kind.to_owned()),
    };
    root.gvk = Some(gvk);
    let mut fields: Vec<Field> = std::mem::take(&mut root.fields).into_owned();
    fields.retain(|f| !matches!(&*f.json, "apiVersion" | "kind" | "metadata"));
    fields.extend(type_fields());
    root.fields = Cow::Owned(fields);
    Arc::new(root)
}

fn type_fields() -> Vec<Field> {
    let mut out = vec![
        Field::new("apiVersion", ValueKind::String, Card::Single),
        Field::new("kind", ValueKind::String, Card::Single),
    ];
    if let Some(meta) = schema::reference("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
        out.push(Field::new("metadata", ValueKind::Message(meta), Card::Single));
    }
    out
}

/// The table of its lists.
pub(super) fn list(kind: &str, item: &Arc<Message>) -> Arc<Message> {
    let mut fields = type_fields();
    fields.truncate(2);
    if let Some(meta) = schema::reference("k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta") {
        fields.push(Field::new("metadata", ValueKind::Message(meta), Card::Single));
    }
    fields.push(Field::new("items", ValueKind::Message(MessageRef::Shared(item.clone())), Card::Repeated));
    Arc::new(message(kind.to_owned(), fields))
}

fn structure(schema: &Schema, depth: usize) -> Message {
    let fields = schema.properties.iter().map(|(name, s)| field(name, s, depth + 1)).collect();
    let mut out = message(String::new(), fields);
    out.preserve_unknown = schema.preserve;
    out.embedded_resource = schema.embedded;
    out.atomic = schema.atomic_map;
    out
}

fn field(name: &str, schema: &Schema, depth: usize) -> Field {
    let mut out = place(name, schema, depth);
    out.nullable = schema.nullable;
    out.default = schema.default.as_ref().map(|v| Cow::Owned(v.to_string()));
    out
}

fn place(name: &str, schema: &Schema, depth: usize) -> Field {
    let name = name.to_owned();
    match &*schema.kind {
        "array" => {
            let mut out = match &schema.items {
                Some(items) => {
                    let (kind, _) = element(items, depth);
                    Field::new(name, kind, Card::Repeated)
                }
                None => Field::new(name, ValueKind::Any, Card::Repeated),
            };
            out.list_type = match &schema.list {
                ListKind::Atomic => ListType::Atomic,
                ListKind::Set => ListType::Set,
                ListKind::Map(keys) => ListType::Map(keys.iter().map(|k| Cow::Owned(k.to_string())).collect()),
            };
            out
        }
        _ => match (&schema.additional, schema.properties.is_empty()) {
            (Additional::Schema(inner), true) => {
                let mut out = Field::new(name, element(inner, depth).0, Card::Map);
                out.map_type = map_type(schema);
                out
            }
            (Additional::Any, true) => {
                let mut out = Field::new(name, ValueKind::Any, Card::Map);
                out.map_type = map_type(schema);
                out
            }
            _ => {
                let mut out = Field::new(name, element(schema, depth).0, Card::Single);
                out.map_type = map_type(schema);
                out
            }
        },
    }
}

fn map_type(schema: &Schema) -> MapType {
    if schema.atomic_map { MapType::Atomic } else { MapType::Granular }
}

/// The kind of one value, and whether it is a list or map wrapped for use inside another.
fn element(schema: &Schema, depth: usize) -> (ValueKind, bool) {
    if schema.int_or_string {
        return (ValueKind::IntOrString, false);
    }
    match &*schema.kind {
        "string" => (ValueKind::String, false),
        "integer" => (ValueKind::Int64, false),
        "number" => (ValueKind::Double, false),
        "boolean" => (ValueKind::Bool, false),
        "array" => (ValueKind::Nested(Arc::new(place("", schema, depth + 1))), true),
        "object" if schema.properties.is_empty() && !schema.embedded => match schema.additional {
            Additional::Schema(_) | Additional::Any => {
                (ValueKind::Nested(Arc::new(place("", schema, depth + 1))), true)
            }
            _ if schema.preserve => (ValueKind::Any, false),
            _ => (ValueKind::Message(MessageRef::Shared(Arc::new(structure(schema, depth)))), false),
        },
        "object" => (ValueKind::Message(MessageRef::Shared(Arc::new(structure(schema, depth)))), false),
        _ => (ValueKind::Any, false),
    }
}
