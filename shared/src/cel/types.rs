//! The types of expressions.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The type of a value.
#[derive(Clone, Debug)]
pub enum Type {
    /// Known when it runs.
    Dyn,
    /// Known when it runs, like [`Type::Dyn`], but no comprehension goes over it.
    Any,
    /// Of an empty literal: whatever the rest of the expression makes of it.
    Open,
    /// `null`.
    Null,
    /// Truth.
    Bool,
    /// Whole number.
    Int,
    /// Whole number without sign.
    UInt,
    /// Fraction.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// Moment.
    Timestamp,
    /// Span.
    Duration,
    /// List of one type.
    List(Arc<Type>),
    /// Map from one type to another.
    Map(Arc<(Type, Type)>),
    /// A value that may be missing.
    Optional(Arc<Type>),
    /// A type as a value.
    Type,
    /// What only functions see inside of.
    Opaque(&'static str),
    /// An object with known fields.
    Object(Arc<dyn Shape>),
    /// Stands for any type in the declaration of a function.
    Param(char),
}

/// What is known of an object.
pub trait Shape: Send + Sync + std::fmt::Debug {
    /// The type's name; two types of one name are the same.
    fn name(&self) -> &str;
    /// The type of a field.
    fn field(&self, name: &str) -> Option<Type>;
}

/// A shape with listed fields.
#[derive(Debug)]
pub struct Fields {
    name: String,
    fields: BTreeMap<String, Type>,
}

impl Shape for Fields {
    fn name(&self) -> &str {
        &self.name
    }

    fn field(&self, name: &str) -> Option<Type> {
        self.fields.get(name).cloned()
    }
}

impl Type {
    /// A list.
    #[must_use]
    pub fn list(of: Self) -> Self {
        Self::List(Arc::new(of))
    }

    /// A map.
    #[must_use]
    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// A value that may be missing.
    #[must_use]
    pub fn optional(of: Self) -> Self {
        Self::Optional(Arc::new(of))
    }

    /// An object with these fields.
    pub fn object<N: Into<String>>(name: &str, fields: impl IntoIterator<Item = (N, Self)>) -> Self {
        let fields = fields.into_iter().map(|(n, t)| (n.into(), t)).collect();
        Self::Object(Arc::new(Fields { name: name.to_owned(), fields }))
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any | Self::Open)
    }

    /// Whether two types are the same.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.is(b),
            (Self::Map(a), Self::Map(b)) => a.0.is(&b.0) && a.1.is(&b.1),
            (Self::Object(a), Self::Object(b)) => a.name() == b.name(),
            (Self::Opaque(a), Self::Opaque(b)) => a == b,
            (Self::Param(a), Self::Param(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    /// Whether a value of the other type can stand where this one is asked for.
    #[must_use]
    pub fn takes(&self, other: &Self) -> bool {
        match (self, other) {
            (a, b) if a.is_dyn() || b.is_dyn() => true,
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.takes(b),
            (Self::Map(a), Self::Map(b)) => a.0.takes(&b.0) && a.1.takes(&b.1),
            // What may be absent may be null.
            (Self::Object(_) | Self::Timestamp | Self::Duration | Self::Opaque(_), Self::Null)
            | (Self::Null, Self::Object(_) | Self::Timestamp | Self::Duration | Self::Opaque(_)) => true,
            (a, b) => a.is(b),
        }
    }

    /// What both types are when they meet: the one that says more; `None` when they do not fit.
    #[must_use]
    pub fn join(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Open, t) | (t, Self::Open) => Some(t.clone()),
            (Self::Any, Self::Any) => Some(Self::Any),
            (Self::Dyn | Self::Any, _) | (_, Self::Dyn | Self::Any) => Some(Self::Dyn),
            (Self::Null, t) | (t, Self::Null) if t.takes(&Self::Null) => Some(t.clone()),
            (Self::List(a), Self::List(b)) => a.join(b).map(Self::list),
            (Self::Optional(a), Self::Optional(b)) => a.join(b).map(Self::optional),
            (Self::Map(a), Self::Map(b)) => Some(Self::map(a.0.join(&b.0)?, a.1.join(&b.1)?)),
            (a, b) => a.is(b).then(|| a.clone()),
        }
    }

    /// The name as results are called by: in full.
    #[must_use]
    pub fn full(&self) -> String {
        match self {
            Self::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Self::Duration => "google.protobuf.Duration".to_owned(),
            Self::Null => "null_type".to_owned(),
            Self::List(t) => format!("list({})", t.full()),
            Self::Map(m) => format!("map({}, {})", m.0.full(), m.1.full()),
            Self::Optional(t) => format!("optional_type({})", t.full()),
            other => other.to_string(),
        }
    }

    /// What its values are called when they are there; none where that is not known before.
    pub(super) fn at_runtime(&self) -> Option<String> {
        Some(match self {
            Self::Dyn | Self::Any | Self::Open | Self::Param(_) => return None,
            Self::List(_) => "list".to_owned(),
            Self::Map(_) => "map".to_owned(),
            Self::Optional(_) => "optional_type".to_owned(),
            other => other.full(),
        })
    }

    /// Reads a type as the tables of the library write it.
    pub(super) fn declared(text: &'static str) -> Self {
        let text = text.trim();
        if let Some((head, inner)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) {
            return match head {
                "list" => Self::list(Self::declared(inner)),
                "optional" => Self::optional(Self::declared(inner)),
                _ => {
                    let (key, value) = inner.split_once(',').unwrap_or((inner, "dyn"));
                    Self::map(Self::declared(key), Self::declared(value))
                }
            };
        }
        match text {
            "dyn" => Self::Dyn,
            "null" => Self::Null,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "uint" => Self::UInt,
            "double" => Self::Double,
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "timestamp" => Self::Timestamp,
            "duration" => Self::Duration,
            "type" => Self::Type,
            _ => match text.as_bytes() {
                [letter] => Self::Param(char::from(*letter)),
                _ => Self::Opaque(text),
            },
        }
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dyn | Self::Open => "dyn",
            Self::Any => "any",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::UInt => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Type => "type",
            Self::List(t) => return write!(f, "list({t})"),
            Self::Map(m) => return write!(f, "map({}, {})", m.0, m.1),
            Self::Optional(t) => return write!(f, "optional_type({t})"),
            Self::Opaque(name) => name,
            Self::Object(shape) => shape.name(),
            Self::Param(letter) => return write!(f, "{letter}"),
        })
    }
}
