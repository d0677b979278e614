//! Steps of field paths: how they compare, how they are stored, how conflicts show them.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::Value;

use crate::selector::format::quote;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// A field of a struct or map.
    Field(Box<str>),
    /// An element of an associative list: canonical JSON object of its keys.
    Key(Box<str>),
    /// An element of a set: canonical JSON of the value.
    Value(Box<str>),
    /// An element of a list by position.
    Index(i64),
}

impl Element {
    /// A field.
    #[must_use]
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// A set element.
    #[must_use]
    pub fn value(value: &Value) -> Self {
        Self::Value(value.to_string().into())
    }

    /// An associative element by its keys, in order, and their values.
    #[must_use]
    pub fn key<'a>(keys: impl Iterator<Item = (&'a str, &'a Value)>) -> Self {
        let mut text = String::from("{");
        for (i, (k, v)) in keys.enumerate() {
            if i > 0 {
                text.push(',');
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "{}:{v}", Value::from(k));
        }
        text.push('}');
        Self::Key(text.into())
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::field(rest)),
            "k" => {
                let object: BTreeMap<String, Value> = serde_json::from_str(rest).ok()?;
                if object.is_empty() {
                    return None;
                }
                Some(Self::key(object.iter().map(|(k, v)| (k.as_str(), v))))
            }
            "v" => serde_json::from_str::<Value>(rest).ok().map(|v| Self::value(&v)),
            "i" => rest.parse().ok().map(Self::Index),
            _ => None,
        }
    }

    /// Formats the element as a key of the stored form.
    pub(super) fn stored(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(json) => ["k:", json].concat(),
            Self::Value(json) => ["v:", json].concat(),
            Self::Index(i) => format!("i:{i}"),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        other => crate::merge::go_print(other),
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(json) => {
                let keys: BTreeMap<String, Value> = serde_json::from_str(json).unwrap_or_default();
                let parts: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={}", shown(v))).collect();
                write!(f, "[{}]", parts.join(","))
            }
            Self::Value(json) => {
                let value: Value = serde_json::from_str(json).unwrap_or_default();
                write!(f, "[={}]", shown(&value))
            }
            Self::Index(i) => write!(f, "[{i}]"),
        }
    }
}

/// A path as conflicts show it: `.spec.containers[name="c"].image`.
#[must_use]
pub fn path_text(path: &[Element]) -> String {
    path.iter().map(ToString::to_string).collect()
}
