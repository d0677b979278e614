//! A version's schema, compiled: what every place of an object may hold. Answers for upstream's
//! `apiextensions-apiserver/pkg/apiserver/schema` (`Structural`).
//!
//! Made once per version from the definition's `openAPIV3Schema`, which validation has found to be structural; what
//! does not make sense is read as "anything goes", so a definition that got into etcd otherwise is served as well as
//! it can be. Pruning, defaulting and validation walk over it; the merge tables are made from the same text.

use std::sync::OnceLock;

use proto::Value;
use regex::Regex;
use serde_json::Map;

use super::rule::{self, Rule};

/// Deepest schema that is compiled; deeper places hold anything.
pub(super) const MAX_DEPTH: usize = 100;

/// Compiled structural schema.
#[derive(Debug, Default)]
pub struct Schema {
    /// JSON type, empty when not said.
    pub kind: Box<str>,
    /// `null` is a value.
    pub nullable: bool,
    /// Unknown fields stay.
    pub preserve: bool,
    /// A whole object with `apiVersion`, `kind` and `metadata`.
    pub embedded: bool,
    /// A number or a text.
    pub int_or_string: bool,
    /// Identity of list elements (`x-kubernetes-list-type`).
    pub list: ListKind,
    /// The map changes as a whole (server-side apply).
    pub atomic_map: bool,
    /// Filled in when absent.
    pub default: Option<Value>,
    /// Fields, sorted by name.
    pub properties: Box<[(Box<str>, Schema)]>,
    /// Other fields.
    pub additional: Additional,
    /// Elements.
    pub items: Option<Box<Schema>>,
    /// Constraints on values.
    pub checks: Option<Box<Checks>>,
    /// CEL rules of this place.
    pub rules: Box<[Rule]>,
    /// Rules somewhere below.
    pub rules_below: bool,
    /// Whole objects somewhere below.
    pub embeds: bool,
}

/// Fields that are not listed by name.
#[derive(Debug, Default)]
pub enum Additional {
    /// Not said: none.
    #[default]
    Unset,
    /// `false`.
    None,
    /// `true`.
    Any,
    /// Of this kind.
    Schema(Box<Schema>),
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    /// Elements are nothing by themselves.
    #[default]
    Atomic,
    /// Elements are unique.
    Set,
    /// The combination of these fields is unique.
    Map(Box<[Box<str>]>),
}

/// Constraints on values.
#[derive(Debug, Default)]
pub struct Checks {
    /// Format of texts.
    pub format: Box<str>,
    /// Regular expression texts match somewhere.
    pub pattern: Option<Pattern>,
    /// Limits of numbers, as written.
    pub minimum: Option<Value>,
    /// See `minimum`.
    pub maximum: Option<Value>,
    /// The limit itself is excluded.
    pub exclusive_minimum: bool,
    /// The limit itself is excluded.
    pub exclusive_maximum: bool,
    /// Numbers divide by it.
    pub multiple_of: Option<Value>,
    /// Characters.
    pub min_length: Option<u64>,
    /// Characters.
    pub max_length: Option<u64>,
    /// Elements.
    pub min_items: Option<u64>,
    /// Elements.
    pub max_items: Option<u64>,
    /// Elements differ.
    pub unique_items: bool,
    /// Fields.
    pub min_properties: Option<u64>,
    /// Fields.
    pub max_properties: Option<u64>,
    /// Fields that must be there.
    pub required: Box<[Box<str>]>,
    /// The values there are.
    pub enums: Box<[Value]>,
    /// All hold.
    pub all_of: Box<[Schema]>,
    /// One or more hold.
    pub any_of: Box<[Schema]>,
    /// Exactly one holds.
    pub one_of: Box<[Schema]>,
    /// Does not hold.
    pub not: Option<Box<Schema>>,
}

/// A regular expression, compiled when it is first needed.
#[derive(Debug)]
pub struct Pattern {
    /// Source of the pattern.
    pub text: Box<str>,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Self { text: text.into(), compiled: OnceLock::new() }
    }

    /// Reports whether the pattern matches a text; an invalid pattern matches none.
    pub fn is_match(&self, text: &str) -> bool {
        self.compiled
            .get_or_init(|| shared::patterns::compile(&self.text).ok())
            .as_ref()
            .is_some_and(|r| r.is_match(text))
    }
}

impl Schema {
    /// Compiles the text of a schema.
    pub fn compile(text: &Value) -> Self {
        compile(text, 0)
    }

    /// A field listed by name.
    pub fn property(&self, name: &str) -> Option<&Self> {
        self.properties.binary_search_by(|(k, _)| (**k).cmp(name)).ok().map(|i| &self.properties[i].1)
    }

    /// Schema of a field, listed or additional.
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.property(name).or(match &self.additional {
            Additional::Schema(s) => Some(s),
            _ => None,
        })
    }

    /// Reports whether a null is dropped here, because the schema is not nullable.
    pub fn drops_null(&self, value: &Value) -> bool {
        value.is_null() && !self.nullable
    }

    /// Reports whether this schema or a nested one has rules.
    pub fn has_rules(&self) -> bool {
        self.rules_below || !self.rules.is_empty()
    }
}

fn flag(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn count(map: &Map<String, Value>, key: &str) -> Option<u64> {
    map.get(key).and_then(|v| v.as_u64().or_else(|| v.as_i64().map(|_| 0)))
}

fn schemas(map: &Map<String, Value>, key: &str, depth: usize) -> Box<[Schema]> {
    map.get(key).and_then(Value::as_array).into_iter().flatten().map(|s| compile(s, depth + 1)).collect()
}

fn texts(map: &Map<String, Value>, key: &str) -> Box<[Box<str>]> {
    map.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(|v| v.as_str().map(Box::from)).collect()
}

fn compile(text: &Value, depth: usize) -> Schema {
    let Some(map) = text.as_object().filter(|_| depth <= MAX_DEPTH) else {
        return Schema { preserve: true, ..Schema::default() };
    };
    let word = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or("");
    let mut properties: Vec<(Box<str>, Schema)> = map
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| (k.as_str().into(), compile(v, depth + 1)))
        .collect();
    properties.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let additional = match map.get("additionalProperties") {
        None | Some(Value::Null) => Additional::Unset,
        Some(Value::Bool(true)) => Additional::Any,
        Some(Value::Bool(false)) => Additional::None,
        Some(s) => Additional::Schema(Box::new(compile(s, depth + 1))),
    };
    let items = map.get("items").filter(|v| v.is_object()).map(|s| Box::new(compile(s, depth + 1)));
    let list = match word("x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => ListKind::Map(texts(map, "x-kubernetes-list-map-keys")),
        _ => ListKind::Atomic,
    };
    let below = |is: fn(&Schema) -> bool| {
        properties.iter().any(|(_, s)| is(s))
            || items.as_deref().is_some_and(is)
            || matches!(&additional, Additional::Schema(s) if is(s))
    };
    let (rules_below, embeds) = (below(Schema::has_rules), below(|s| s.embedded || s.embeds));
    Schema {
        kind: word("type").into(),
        nullable: flag(map, "nullable"),
        preserve: flag(map, "x-kubernetes-preserve-unknown-fields"),
        embedded: flag(map, "x-kubernetes-embedded-resource"),
        int_or_string: flag(map, "x-kubernetes-int-or-string"),
        list,
        atomic_map: word("x-kubernetes-map-type") == "atomic",
        default: map.get("default").filter(|v| !v.is_null()).cloned(),
        properties: properties.into(),
        additional,
        items,
        checks: checks(map, depth),
        rules: rule::compile(map.get("x-kubernetes-validations")),
        rules_below,
        embeds,
    }
}

fn checks(map: &Map<String, Value>, depth: usize) -> Option<Box<Checks>> {
    const KEYS: [&str; 20] = [
        "format",
        "pattern",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "required",
        "enum",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
    ];
    if !KEYS.iter().any(|k| map.contains_key(*k)) {
        return None;
    }
    let number = |key: &str| map.get(key).filter(|v| v.is_number()).cloned();
    Some(Box::new(Checks {
        format: map.get("format").and_then(Value::as_str).unwrap_or("").into(),
        pattern: map.get("pattern").and_then(Value::as_str).filter(|p| !p.is_empty()).map(Pattern::new),
        minimum: number("minimum"),
        maximum: number("maximum"),
        exclusive_minimum: flag(map, "exclusiveMinimum"),
        exclusive_maximum: flag(map, "exclusiveMaximum"),
        multiple_of: number("multipleOf"),
        min_length: count(map, "minLength"),
        max_length: count(map, "maxLength"),
        min_items: count(map, "minItems"),
        max_items: count(map, "maxItems"),
        unique_items: flag(map, "uniqueItems"),
        min_properties: count(map, "minProperties"),
        max_properties: count(map, "maxProperties"),
        required: texts(map, "required"),
        enums: map.get("enum").and_then(Value::as_array).cloned().unwrap_or_default().into(),
        all_of: schemas(map, "allOf", depth),
        any_of: schemas(map, "anyOf", depth),
        one_of: schemas(map, "oneOf", depth),
        not: map.get("not").filter(|v| v.is_object()).map(|s| Box::new(compile(s, depth + 1))),
    }))
}
