//! The types of expressions, and how they follow from the schemas of API objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::schema::{Card, Field, Kind, Message, MessageRef};
use serde_json::Value;

/// The type of a value in CEL.
#[derive(Clone, Debug)]
pub enum Type {
    /// Anything; known only when the expression runs.
    Dyn,
    /// `null`
    Null,
    /// Booleans.
    Bool,
    /// Signed integers.
    Int,
    /// Unsigned integers.
    Uint,
    /// Floating point.
    Double,
    /// Text.
    String,
    /// Octets.
    Bytes,
    /// `google.protobuf.Duration`
    Duration,
    /// `google.protobuf.Timestamp`
    Timestamp,
    /// Lists.
    List(Box<Type>),
    /// Maps, which have keys of one type.
    Map(Box<Type>, Box<Type>),
    /// Objects with known fields.
    Object(Shape),
}

/// Where an object's fields are written down.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A built-in kind or a part of one.
    Message(MessageRef),
    /// A custom resource or a part of one: name and JSON schema.
    Custom(Arc<str>, Arc<Value>),
    /// What expressions are given besides objects.
    Given(&'static str, &'static [(&'static str, Given)]),
    /// The variables a policy declares.
    Variables(Arc<BTreeMap<String, Type>>),
}

/// The type of a field of what expressions are given.
#[derive(Clone, Copy, Debug)]
pub enum Given {
    /// Text.
    String,
    /// A boolean.
    Bool,
    /// Anything.
    Dyn,
    /// A list of texts.
    Strings,
    /// A map from text to lists of texts.
    Extra,
    /// An object.
    Object(&'static str, &'static [(&'static str, Given)]),
}

impl Type {
    /// A list.
    #[must_use]
    pub fn list(of: Self) -> Self {
        Self::List(Box::new(of))
    }

    /// The root type of a built-in kind.
    #[must_use]
    pub fn of_message(message: &'static Message) -> Self {
        Self::Object(Shape::Message(MessageRef::Static(message)))
    }

    /// The type of a part of a JSON schema. `root` marks a whole object, which has metadata whatever the schema says.
    #[must_use]
    pub fn of_schema(name: &str, schema: &Value) -> Self {
        let flag = |key: &str| schema[key] == true;
        if flag("x-kubernetes-int-or-string") || flag("x-kubernetes-preserve-unknown-fields") {
            return Self::Dyn;
        }
        match schema["type"].as_str().unwrap_or_default() {
            "boolean" => Self::Bool,
            "integer" => Self::Int,
            "number" => Self::Double,
            "string" => match schema["format"].as_str().unwrap_or_default() {
                "byte" => Self::Bytes,
                "duration" => Self::Duration,
                "date" | "date-time" => Self::Timestamp,
                _ => Self::String,
            },
            "array" => Self::list(Self::of_schema(&format!("{name}.@idx"), &schema["items"])),
            "object" if schema["additionalProperties"].is_object() => {
                let value = Self::of_schema(&format!("{name}.@elem"), &schema["additionalProperties"]);
                Self::Map(Box::new(Self::String), Box::new(value))
            }
            "object" if schema["properties"].is_object() || flag("x-kubernetes-embedded-resource") => {
                Self::Object(Shape::Custom(name.into(), Arc::new(schema.clone())))
            }
            _ => Self::Dyn,
        }
    }

    /// The type of a field of an object; None when there is no such field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Self> {
        match self {
            Self::Map(_, value) => Some((**value).clone()),
            Self::Object(Shape::Message(m)) => m.field(name).map(of_field),
            Self::Object(Shape::Custom(path, schema)) => custom_field(path, schema, name),
            Self::Object(Shape::Given(_, fields)) => {
                fields.iter().find(|(n, _)| *n == name).map(|(_, given)| of_given(*given))
            }
            Self::Object(Shape::Variables(declared)) => declared.get(name).cloned(),
            _ => None,
        }
    }

    /// Whether a value of one type can be where the other is asked for.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            (Self::List(a), Self::List(b)) => a.agrees(b),
            (Self::Map(a, b), Self::Map(c, d)) => a.agrees(c) && b.agrees(d),
            // An object may be absent, and absent is null.
            (Self::Null, Self::Object(_) | Self::Duration | Self::Timestamp)
            | (Self::Object(_) | Self::Duration | Self::Timestamp, Self::Null) => true,
            (a, b) => a.to_string() == b.to_string(),
        }
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dyn => "dyn",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(of) => return write!(f, "list({of})"),
            Self::Map(key, value) => return write!(f, "map({key}, {value})"),
            Self::Object(Shape::Message(m)) => &m.name,
            Self::Object(Shape::Custom(name, _)) => name,
            Self::Object(Shape::Given(name, _)) => name,
            Self::Object(Shape::Variables(_)) => "kubernetes.variables",
        })
    }
}

fn of_field(field: &Field) -> Type {
    let one = of_kind(&field.kind);
    match field.card {
        Card::Single => one,
        Card::Repeated => Type::list(one),
        Card::Map => Type::Map(Box::new(Type::String), Box::new(one)),
    }
}

fn of_kind(kind: &Kind) -> Type {
    match kind {
        Kind::Bool => Type::Bool,
        Kind::Int32 | Kind::Int64 => Type::Int,
        Kind::Double => Type::Double,
        Kind::String | Kind::Quantity | Kind::Duration => Type::String,
        Kind::Bytes => Type::Bytes,
        Kind::Time | Kind::MicroTime => Type::Timestamp,
        Kind::StringList => Type::list(Type::String),
        Kind::Message(m) => Type::Object(Shape::Message(m.clone())),
        _ => Type::Dyn,
    }
}

/// Kind, version and metadata are there whether the schema of a root object names them or not.
fn custom_field(path: &str, schema: &Value, name: &str) -> Option<Type> {
    let root = !path.contains('.') || schema["x-kubernetes-embedded-resource"] == true;
    match name {
        "apiVersion" | "kind" if root => Some(Type::String),
        "metadata" if root => {
            let meta = proto::schema::message("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta");
            Some(meta.map_or(Type::Dyn, Type::of_message))
        }
        _ => {
            let found = schema["properties"].get(name)?;
            Some(Type::of_schema(&format!("{path}.{name}"), found))
        }
    }
}

fn of_given(given: Given) -> Type {
    match given {
        Given::String => Type::String,
        Given::Bool => Type::Bool,
        Given::Dyn => Type::Dyn,
        Given::Strings => Type::list(Type::String),
        Given::Extra => Type::Map(Box::new(Type::String), Box::new(Type::list(Type::String))),
        Given::Object(name, fields) => Type::Object(Shape::Given(name, fields)),
    }
}

const KIND: Given = Given::Object(
    "kubernetes.GroupVersionKind",
    &[("group", Given::String), ("version", Given::String), ("kind", Given::String)],
);
const RESOURCE: Given = Given::Object(
    "kubernetes.GroupVersionResource",
    &[("group", Given::String), ("version", Given::String), ("resource", Given::String)],
);
const USER: Given = Given::Object(
    "kubernetes.UserInfo",
    &[("username", Given::String), ("uid", Given::String), ("groups", Given::Strings), ("extra", Given::Extra)],
);

/// The type of `request`.
#[must_use]
pub fn request() -> Type {
    Type::Object(Shape::Given(
        "kubernetes.AdmissionRequest",
        &[
            ("uid", Given::String),
            ("kind", KIND),
            ("resource", RESOURCE),
            ("subResource", Given::String),
            ("requestKind", KIND),
            ("requestResource", RESOURCE),
            ("requestSubResource", Given::String),
            ("name", Given::String),
            ("namespace", Given::String),
            ("operation", Given::String),
            ("userInfo", USER),
            ("dryRun", Given::Bool),
            ("options", Given::Dyn),
        ],
    ))
}
