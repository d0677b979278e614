//! The types rules see at the places of a schema, and how large values can be there: what a request can hold at most
//! bounds what the schema does not. Answers for upstream's `SchemaDeclType`.

use std::collections::BTreeMap;

use shared::cel::{EstimatePlace, Type, escape};

use super::schema::{Additional, Schema};

/// Largest request, in bytes.
const MAX_REQUEST: u64 = 3 << 20;
/// Bytes of one character at most.
const CHARACTER: u64 = 4;

/// A place: the type of its value, and its size.
#[derive(Debug)]
pub(super) struct Decl {
    /// CEL type of the values.
    pub(super) of: Type,
    /// Most elements, entries or bytes; 0 for what has none.
    max: u64,
    /// Fewest bytes of it in JSON.
    pub(super) min_bytes: u64,
    fields: BTreeMap<String, Decl>,
    element: Option<Box<Decl>>,
}

impl Decl {
    fn simple(of: Type, min_bytes: u64, max: u64) -> Self {
        Self { of, max, min_bytes, fields: BTreeMap::new(), element: None }
    }

    /// The place rules of this schema speak about; `None` for what rules cannot see.
    pub(super) fn of(schema: &Schema, root: bool) -> Option<Self> {
        Self::named("self", schema, root)
    }

    fn named(name: &str, schema: &Schema, root: bool) -> Option<Self> {
        let checks = schema.checks.as_deref();
        let longest = checks.and_then(|c| c.max_length).map(|n| n.saturating_mul(CHARACTER));
        if schema.int_or_string {
            return Some(Self::simple(Type::Dyn, 1, longest.unwrap_or(MAX_REQUEST - 2)));
        }
        Some(match &*schema.kind {
            "boolean" => Self::simple(Type::Bool, 4, 0),
            "integer" => Self::simple(Type::Int, 1, 0),
            "number" => Self::simple(Type::Double, 1, 0),
            "string" => match checks.map_or("", |c| &*c.format) {
                "byte" => Self::simple(Type::Bytes, 2, checks.and_then(|c| c.max_length).unwrap_or(MAX_REQUEST - 2)),
                "date" => Self::simple(Type::Timestamp, 12, 12),
                "date-time" | "datetime" => Self::simple(Type::Timestamp, 21, 37),
                "duration" => Self::simple(Type::Duration, 4, 32),
                _ => {
                    let listed = checks.map_or(&[][..], |c| &c.enums).iter().filter_map(|v| v.as_str()).map(str::len);
                    let listed = listed.max().and_then(|n| u64::try_from(n).ok());
                    Self::simple(Type::String, 2, longest.or(listed).unwrap_or(MAX_REQUEST - 2))
                }
            },
            "array" => {
                let items = schema.items.as_deref()?;
                let element = Self::named(&format!("{name}.@idx"), items, items.embedded)?;
                let most = checks.and_then(|c| c.max_items);
                Self {
                    of: Type::list(element.of.clone()),
                    max: most.unwrap_or((MAX_REQUEST - 2) / (element.min_bytes + 1)),
                    min_bytes: 2,
                    fields: BTreeMap::new(),
                    element: Some(Box::new(element)),
                }
            }
            "object" => match &schema.additional {
                Additional::Schema(inner) => {
                    let element = Self::named(&format!("{name}.@elem"), inner, inner.embedded)?;
                    let most = checks.and_then(|c| c.max_properties);
                    Self {
                        of: Type::map(Type::String, element.of.clone()),
                        max: most.unwrap_or((MAX_REQUEST - 2) / (element.min_bytes + 6)),
                        min_bytes: 2,
                        fields: BTreeMap::new(),
                        element: Some(Box::new(element)),
                    }
                }
                _ => Self::object(name, schema, root || schema.embedded),
            },
            _ => return None,
        })
    }

    fn object(name: &str, schema: &Schema, root: bool) -> Self {
        let required = schema.checks.as_deref().map_or(&[][..], |c| &c.required);
        let (mut fields, mut min_bytes) = (BTreeMap::new(), 2);
        for (key, inner) in &schema.properties {
            let Some(field) = Self::named(&format!("{name}.{key}"), inner, inner.embedded) else { continue };
            if inner.default.is_none() && required.iter().any(|r| r == key) {
                min_bytes += u64::try_from(key.len()).unwrap_or(0) + field.min_bytes + 4;
            }
            fields.insert(escape(key), field);
        }
        if root {
            // Rules see no more of an object's metadata than its name.
            let text = || Self::simple(Type::String, 2, MAX_REQUEST - 2);
            let names = ["name", "generateName"];
            let metadata = Self {
                of: Type::object(&format!("{name}.metadata"), names.map(|k| (k, Type::String))),
                max: 0,
                min_bytes: 2,
                fields: names.map(|k| (k.to_owned(), text())).into(),
                element: None,
            };
            fields.insert("metadata".to_owned(), metadata);
            for key in ["apiVersion", "kind"] {
                fields.insert(key.to_owned(), text());
            }
        }
        let of = Type::object(name, fields.iter().map(|(k, d)| (k.clone(), d.of.clone())));
        Self { of, max: 0, min_bytes, fields, element: None }
    }

    /// The most there can be at a place below `self` or `oldSelf`.
    pub(super) fn size(&self, path: &[EstimatePlace<'_>]) -> Option<u64> {
        let mut at = self;
        for (i, place) in path.iter().enumerate().skip(1) {
            at = match place {
                EstimatePlace::Named(name) => at.fields.get(*name)?,
                EstimatePlace::Items | EstimatePlace::Values => at.element.as_deref()?,
                // Keys are texts of any length.
                EstimatePlace::Keys => return (i + 1 == path.len() && at.element.is_some()).then_some(0),
            };
        }
        Some(at.max)
    }
}

/// Maximum number of values at a position: by the limits of the lists and maps around it, or by the size of a request.
pub(super) fn cardinality(bounded: Option<u64>, min_bytes: u64) -> u64 {
    bounded.unwrap_or(MAX_REQUEST / (min_bytes + 1))
}

/// By how much a schema multiplies what is in it; `None` for no limit.
pub(super) fn factor(schema: &Schema) -> Option<u64> {
    let checks = schema.checks.as_deref();
    match &*schema.kind {
        "object" if !matches!(schema.additional, Additional::Unset) => checks.and_then(|c| c.max_properties),
        "array" => checks.and_then(|c| c.max_items),
        _ => Some(1),
    }
}
