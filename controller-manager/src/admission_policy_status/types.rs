//! The types of expressions, and how they follow from the schemas of API objects, which the server publishes as OpenAPI:
//! those of built-in kinds and of custom resources in the same form.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

const REFERENCE: &str = "#/components/schemas/";
const OBJECT_META: &str = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

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
    /// A schema by name, and the document that it refers into.
    Schema(Arc<str>, Arc<Value>, Document),
    /// What expressions are given besides objects.
    Given(&'static str, &'static [(&'static str, Given)]),
    /// The variables a policy declares.
    Variables(Arc<BTreeMap<String, Type>>),
}

/// The OpenAPI v3 document of a group and version.
#[derive(Clone, Debug, Default)]
pub struct Document(Arc<Value>);

impl Document {
    /// Of what the server answers.
    #[must_use]
    pub fn new(document: Value) -> Self {
        Self(Arc::new(document))
    }

    /// The type of a root kind.
    #[must_use]
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<Type> {
        let wanted = json!({"group": group, "version": version, "kind": kind});
        let is = |schema: &Value| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| kinds.contains(&wanted))
        };
        let schemas = self.0["components"]["schemas"].as_object()?;
        let (name, schema) = schemas.iter().find(|(_, schema)| is(schema))?;
        Some(Type::of_schema(name, schema, self))
    }

    /// The name and the schema behind a `$ref`.
    fn behind<'a>(&'a self, reference: &'a str) -> Option<(&'a str, &'a Value)> {
        let name = reference.strip_prefix(REFERENCE)?;
        Some((name, self.0["components"]["schemas"].get(name)?))
    }
}

/// The type of a field of what expressions are given.
#[derive(Clone, Copy, Debug)]
pub enum Given {
    /// Text.
    String,
    /// A boolean.
    Bool,
    /// A signed integer.
    Int,
    /// A moment.
    Timestamp,
    /// Anything.
    Dyn,
    /// A list of texts.
    Strings,
    /// A map from text to text.
    Labels,
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

    /// The type that a schema describes; `name` is what it is called when it is an object.
    #[must_use]
    pub fn of_schema(name: &str, schema: &Value, document: &Document) -> Self {
        // A reference with a description or a default beside it is wrapped in allOf.
        if let Some(reference) = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str()) {
            let found = document.behind(reference);
            return found.map_or(Self::Dyn, |(name, schema)| Self::of_schema(name, schema, document));
        }
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
                "int-or-string" => Self::Dyn,
                _ => Self::String,
            },
            "array" => Self::list(Self::of_schema(&format!("{name}.@idx"), &schema["items"], document)),
            "object" if schema["additionalProperties"].is_object() => {
                let value = Self::of_schema(&format!("{name}.@elem"), &schema["additionalProperties"], document);
                Self::Map(Box::new(Self::String), Box::new(value))
            }
            "object" if schema["properties"].is_object() || flag("x-kubernetes-embedded-resource") => {
                Self::Object(Shape::Schema(name.into(), Arc::new(schema.clone()), document.clone()))
            }
            _ => Self::Dyn,
        }
    }

    /// The type of a field of an object; None when there is no such field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Self> {
        match self {
            Self::Map(_, value) => Some((**value).clone()),
            Self::Object(Shape::Schema(path, schema, document)) => of_property(path, schema, document, name),
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
            Self::Object(Shape::Schema(name, ..)) => name,
            Self::Object(Shape::Given(name, _)) => name,
            Self::Object(Shape::Variables(_)) => "kubernetes.variables",
        })
    }
}

/// Kind, version and metadata of an embedded object are there whether its schema names them or not.
fn of_property(path: &str, schema: &Value, document: &Document, name: &str) -> Option<Type> {
    if let Some(property) = schema["properties"].get(name) {
        return Some(Type::of_schema(&format!("{path}.{name}"), property, document));
    }
    match name {
        _ if schema["x-kubernetes-embedded-resource"] != true => None,
        "apiVersion" | "kind" => Some(Type::String),
        "metadata" => Some(Type::of_schema(name, &json!({"$ref": OBJECT_META}), document)),
        _ => None,
    }
}

fn of_given(given: Given) -> Type {
    match given {
        Given::String => Type::String,
        Given::Bool => Type::Bool,
        Given::Int => Type::Int,
        Given::Timestamp => Type::Timestamp,
        Given::Labels => Type::Map(Box::new(Type::String), Box::new(Type::String)),
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

const NAMESPACE_METADATA: Given = Given::Object(
    "kubernetes.NamespaceMetadata",
    &[
        ("name", Given::String),
        ("generateName", Given::String),
        ("namespace", Given::String),
        ("labels", Given::Labels),
        ("annotations", Given::Labels),
        ("uid", Given::String),
        ("UID", Given::String),
        ("creationTimestamp", Given::Timestamp),
        ("deletionGracePeriodSeconds", Given::Int),
        ("deletionTimestamp", Given::Timestamp),
        ("generation", Given::Int),
        ("resourceVersion", Given::String),
        ("finalizers", Given::Strings),
    ],
);
const NAMESPACE_SPEC: Given = Given::Object("kubernetes.NamespaceSpec", &[("finalizers", Given::Strings)]);
const NAMESPACE_STATUS: Given =
    Given::Object("kubernetes.NamespaceStatus", &[("conditions", Given::Dyn), ("phase", Given::String)]);

/// The type of `namespaceObject`: of a Namespace, what policies may rely on.
#[must_use]
pub fn namespace() -> Type {
    Type::Object(Shape::Given(
        "kubernetes.Namespace",
        &[("metadata", NAMESPACE_METADATA), ("spec", NAMESPACE_SPEC), ("status", NAMESPACE_STATUS)],
    ))
}
