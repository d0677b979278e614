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
    /// Of what was complained of: anything goes with it.
    Error,
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
    /// A type as a value, and which one; `None` for that of types.
    Type(Option<Arc<Type>>),
    /// An opaque type, which only functions look into.
    Opaque(&'static str),
    /// An object with known fields.
    Object(Arc<dyn Shape>),
    /// Stands for any type in the declaration of a function.
    Param(char),
    /// Not known yet: what the rest of the expression makes of it.
    Var(u32),
}

/// Schema of an object type.
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

    /// The type of a type.
    #[must_use]
    pub(super) fn of(of: Self) -> Self {
        Self::Type(Some(Arc::new(of)))
    }

    /// Reports whether the type is dynamic.
    #[must_use]
    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any)
    }

    /// The types that it is made of.
    pub(super) fn parts(&self) -> Vec<&Self> {
        match self {
            Self::List(of) | Self::Optional(of) | Self::Type(Some(of)) => vec![of],
            Self::Map(of) => vec![&of.0, &of.1],
            _ => Vec::new(),
        }
    }

    /// Itself with other parts.
    pub(super) fn with(&self, change: &mut dyn FnMut(&Self) -> Self) -> Self {
        match self {
            Self::List(of) => Self::list(change(of)),
            Self::Optional(of) => Self::optional(change(of)),
            Self::Map(of) => Self::map(change(&of.0), change(&of.1)),
            Self::Type(Some(of)) => Self::of(change(of)),
            plain => plain.clone(),
        }
    }

    /// Reports whether two types have the same constructor.
    pub(super) fn alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(a), Self::Object(b)) => a.name() == b.name(),
            (Self::Opaque(a), Self::Opaque(b)) => a == b,
            (Self::Param(a), Self::Param(b)) => a == b,
            (Self::Var(a), Self::Var(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a.is_some() == b.is_some(),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    /// Reports whether two types are equal.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.alike(other) && self.parts().iter().zip(other.parts()).all(|(a, b)| a.is(b))
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
            Self::Type(Some(t)) => format!("type({})", t.full()),
            Self::Any => "google.protobuf.Any".to_owned(),
            other => other.to_string(),
        }
    }

    /// Name of the runtime type; `None` where it is not known statically.
    pub(super) fn at_runtime(&self) -> Option<String> {
        Some(match self {
            Self::Dyn | Self::Any | Self::Error | Self::Param(_) | Self::Var(_) => return None,
            _ => self.erased(),
        })
    }

    /// The name without those of its parts.
    pub(super) fn erased(&self) -> String {
        match self {
            Self::List(_) => "list".to_owned(),
            Self::Map(_) => "map".to_owned(),
            Self::Optional(_) => "optional_type".to_owned(),
            Self::Type(_) => "type".to_owned(),
            other => other.full(),
        }
    }

    /// Reads a type as the tables of the library write it.
    pub(super) fn declared(text: &'static str) -> Self {
        let text = text.trim();
        if let Some((head, inner)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) {
            return match head {
                "list" => Self::list(Self::declared(inner)),
                "optional" => Self::optional(Self::declared(inner)),
                "type" => Self::of(Self::declared(inner)),
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
            "type" => Self::Type(None),
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
            Self::Dyn => "dyn",
            Self::Any => "any",
            Self::Error => "!error!",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::UInt => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Type(None) => "type",
            Self::Type(Some(t)) => return write!(f, "type({t})"),
            Self::List(t) => return write!(f, "list({t})"),
            Self::Map(m) => return write!(f, "map({}, {})", m.0, m.1),
            Self::Optional(t) => return write!(f, "optional_type({t})"),
            Self::Opaque(name) => name,
            Self::Object(shape) => shape.name(),
            Self::Param(letter) => return write!(f, "{letter}"),
            Self::Var(n) => return write!(f, "_var{n}"),
        })
    }
}
