//! Shape of a field for server-side apply: scalar, list or map, and of what.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ElementError;
use super::fieldset::Element;
use crate::schema::{Card, Field, ListType, MapType, Message, ValueKind};

/// Type of a place.
#[derive(Clone, Copy)]
pub(super) enum Type<'a> {
    /// A root or nested struct.
    Message(&'a Message),
    /// A field with its cardinality.
    Field(&'a Field),
    /// One element of a list or map field.
    Element(&'a Field),
    /// Anything: maps merge, lists are atomic.
    Any,
}

/// Shape of a field.
pub(super) enum Shape<'a> {
    Scalar(Scalar),
    List(List<'a>),
    Map(MapShape<'a>),
    Any,
}

/// Type of a scalar.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Numeric,
    Text,
    Boolean,
    Untyped,
}

#[derive(Clone, Copy)]
pub(super) enum Relation<'a> {
    Atomic,
    Set,
    Keys(&'a [Cow<'static, str>]),
}

#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    pub relation: Relation<'a>,
    pub element: Type<'a>,
}

#[derive(Clone, Copy)]
pub(super) struct MapShape<'a> {
    pub atomic: bool,
    pub fields: Option<&'a Message>,
    pub element: Type<'a>,
}

impl<'a> Type<'a> {
    pub(super) fn shape(self) -> Shape<'a> {
        match self {
            Self::Message(m) => Shape::Map(MapShape { atomic: m.atomic, fields: Some(m), element: Type::Any }),
            Self::Field(f) => match f.card {
                Card::Repeated => Shape::List(List {
                    relation: match &f.list_type {
                        ListType::Atomic => Relation::Atomic,
                        ListType::Set => Relation::Set,
                        ListType::Map(keys) => Relation::Keys(keys),
                    },
                    element: Self::Element(f),
                }),
                Card::Map => {
                    let atomic = f.map_type == MapType::Atomic;
                    Shape::Map(MapShape { atomic, fields: None, element: Self::Element(f) })
                }
                Card::Single => single(f, f.map_type == MapType::Atomic),
            },
            Self::Element(f) => single(f, false),
            Self::Any => Shape::Any,
        }
    }
}

fn single(field: &Field, atomic: bool) -> Shape<'_> {
    match &field.kind {
        ValueKind::Bool => Shape::Scalar(Scalar::Boolean),
        ValueKind::Int32 | ValueKind::Int64 | ValueKind::Double => Shape::Scalar(Scalar::Numeric),
        ValueKind::String | ValueKind::Bytes => Shape::Scalar(Scalar::Text),
        ValueKind::Quantity | ValueKind::IntOrString | ValueKind::Time | ValueKind::MicroTime => {
            Shape::Scalar(Scalar::Untyped)
        }
        ValueKind::Message(m) => {
            let atomic = atomic || (m.atomic && !field.granular);
            Shape::Map(MapShape { atomic, fields: Some(m), element: Type::Any })
        }
        ValueKind::Nested(inner) => Type::Field(inner).shape(),
        ValueKind::StringList => Shape::List(List { relation: Relation::Atomic, element: Type::Any }),
        ValueKind::RawExtension
        | ValueKind::FieldsV1
        | ValueKind::Json
        | ValueKind::SchemaOrBool
        | ValueKind::SchemaOrArray
        | ValueKind::SchemaOrStrings
        | ValueKind::Any => Shape::Any,
    }
}

/// The shape of a place of unknown type that holds these values.
pub(super) fn deduced<'a>(values: [Option<&Value>; 2]) -> Shape<'a> {
    let found = values.into_iter().flatten().find(|v| !v.is_null());
    match found {
        Some(Value::Object(_)) => Shape::Map(MapShape { atomic: false, fields: None, element: Type::Any }),
        Some(Value::Array(_)) => Shape::List(List { relation: Relation::Atomic, element: Type::Any }),
        _ => Shape::Scalar(Scalar::Untyped),
    }
}

impl<'a> MapShape<'a> {
    /// Reports whether a key is a declared field.
    pub(super) fn declares(&self, key: &str) -> bool {
        self.fields.is_some_and(|m| m.field(key).is_some())
    }

    /// Type of a key; None when the schema does not know it.
    pub(super) fn child(&self, key: &str) -> Option<Type<'a>> {
        match self.fields {
            Some(m) => match m.field(key) {
                Some(field) => Some(Type::Field(field)),
                None if m.embedded_resource && embedded(key).is_some() => embedded(key),
                None => m.preserve_unknown.then_some(Type::Any),
            },
            None => Some(self.element),
        }
    }
}

/// The fields every object carries.
fn embedded<'a>(key: &str) -> Option<Type<'a>> {
    match key {
        "apiVersion" | "kind" => Some(Type::Any),
        "metadata" => crate::schema::message("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta").map(Type::Message),
        _ => None,
    }
}

impl List<'_> {
    /// The element's identity in the list.
    ///
    /// # Errors
    /// What is wrong with the element.
    pub(super) fn identify(&self, index: usize, item: &Value) -> Result<Element, ElementError> {
        match self.relation {
            Relation::Atomic => Ok(Element::Index(i64::try_from(index).unwrap_or(i64::MAX))),
            Relation::Set => match item {
                Value::Null => Err(ElementError::NullInSet),
                Value::Object(_) => Err(ElementError::MapInSet),
                Value::Array(_) => Err(ElementError::ListInSet),
                scalar => Ok(Element::value(scalar)),
            },
            Relation::Keys(keys) => {
                let Value::Object(map) = item else {
                    let null = item.is_null();
                    return Err(if null { ElementError::NullWithKeys } else { ElementError::ScalarWithKeys });
                };
                let fields = match self.element {
                    Type::Element(Field { kind: ValueKind::Message(m), .. }) => Some(&**m),
                    _ => None,
                };
                let mut found: BTreeMap<&str, Cow<'_, Value>> = BTreeMap::new();
                for key in keys {
                    let default = || fields?.field(key).and_then(default_of);
                    if let Some(value) = map.get(key.as_ref()).map(Cow::Borrowed).or_else(|| default().map(Cow::Owned))
                    {
                        found.insert(key, value);
                    }
                }
                if found.is_empty() {
                    let names: Vec<String> = keys.iter().map(|k| format!("{k:?}")).collect();
                    return Err(ElementError::NoKeys(names.join(" ")));
                }
                Ok(Element::key(found.iter().map(|(k, v)| (*k, &**v))))
            }
        }
    }
}

/// Default of a field: by its schema, or the zero value of a required one.
fn default_of(field: &Field) -> Option<Value> {
    if let Some(text) = field.default.as_deref() {
        return serde_json::from_str(text).ok();
    }
    match field.kind {
        _ if field.pointer || field.omit_empty || field.card != Card::Single => None,
        ValueKind::String => Some(Value::from("")),
        ValueKind::Int32 | ValueKind::Int64 => Some(Value::from(0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_may_be_granular_over_an_atomic_type() {
        for (message, field, atomic) in [
            ("k8s.io.api.core.v1.PersistentVolumeSpec", "claimRef", false),
            ("k8s.io.api.core.v1.Event", "involvedObject", true),
        ] {
            let field = crate::schema::message(message).and_then(|m| m.field(field)).expect("field");
            let Shape::Map(shape) = Type::Field(field).shape() else { panic!("{message}: a map") };
            assert_eq!(shape.atomic, atomic, "{message}");
        }
    }
}
