//! Text → tree, checked against the tables: unknown and duplicate fields, wrong types, in Go's words.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::ConfigError;
use super::table::{Struct, Table, Type, parse_type};
use crate::flags::{format_nanos, parse_nanos};
use crate::status::go_quote;

/// Result of parsing, with the findings of strict decoding.
pub(super) struct Parsed {
    pub(super) value: Value,
    pub(super) strict: Vec<String>,
    pub(super) yaml: bool,
}

const NO_TYPE: &str = "couldn't get version/kind; json parse error: ";
const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// JSON or YAML to a tree; later duplicates win and are reported.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, ConfigError> {
    let yaml = bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{');
    let (converted, repeated);
    let json = if yaml {
        (converted, repeated) =
            proto::yaml::to_json_reporting(bytes).map_err(|e| ConfigError::Syntax(e.to_string()))?;
        &converted
    } else {
        repeated = Vec::new();
        bytes
    };
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let seed = Tree { path: "", duplicates: &mut duplicates };
    let value = seed.deserialize(&mut deserializer).and_then(|v| deserializer.end().map(|()| v));
    let value = value.map_err(|e| {
        // The schema-free decoder words syntax errors as Go does.
        let why = proto::json::decode_any(json).err().map_or_else(|| e.to_string(), |e| e.to_string());
        ConfigError::Syntax(format!("{NO_TYPE}{why}"))
    })?;
    if !matches!(value, Value::Object(_) | Value::Null) {
        let what = json_word(&value, false);
        return Err(ConfigError::Syntax(format!(
            "{NO_TYPE}json: cannot unmarshal {what} into Go value of type {TYPE_META}"
        )));
    }
    let strict = if yaml {
        proto::yaml::complaint(&repeated).into_iter().collect()
    } else {
        duplicates.iter().map(|path| format!("duplicate field {}", go_quote(path))).collect()
    };
    Ok(Parsed { value, strict, yaml })
}

struct Tree<'a> {
    path: &'a str,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, items.len());
            match seq.next_element_seed(Tree { path: &path, duplicates: &mut *self.duplicates })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            let value = map.next_value_seed(Tree { path: &path, duplicates: &mut *self.duplicates })?;
            if fields.insert(key, value).is_some() {
                self.duplicates.push(path);
            }
        }
        Ok(Value::Object(fields))
    }
}

/// Checks a tree against a struct: drops and reports unknown fields, drops nulls, writes durations as Go does.
pub(super) struct Checker<'t> {
    pub(super) table: &'t Table,
    pub(super) yaml: bool,
    pub(super) strict: Vec<String>,
}

/// Position of a value, for messages.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The innermost struct, without its package.
    owner: &'a str,
    path: &'a str,
}

impl Checker<'_> {
    pub(super) fn object(&mut self, name: &str, value: &mut Value, path: &str) -> Result<(), ConfigError> {
        let Some(owner) = self.table.get(name) else { return Ok(()) };
        let Value::Object(fields) = value else {
            return Err(mismatch(value, Place { owner: "", path }, owner.go_name));
        };
        fields.retain(|_, v| !v.is_null());
        let unknown: Vec<String> =
            fields.keys().filter(|k| !owner.fields.iter().any(|f| f.name == k.as_str())).cloned().collect();
        for key in unknown {
            fields.remove(&key);
            self.strict.push(format!("unknown field {}", go_quote(&join(path, &key))));
        }
        let short = short_name(owner);
        for field in &owner.fields {
            if let Some(value) = fields.get_mut(field.name) {
                let path = join(path, field.name);
                self.value(field.type_text, value, Place { owner: short, path: &path })?;
            }
        }
        Ok(())
    }

    fn value(&mut self, type_text: &'static str, value: &mut Value, at: Place<'_>) -> Result<(), ConfigError> {
        let only =
            |fits: bool, value: &Value, go_name: &str| if fits { Ok(()) } else { Err(mismatch(value, at, go_name)) };
        match parse_type(type_text) {
            Type::Any => Ok(()),
            Type::Text | Type::Time => only(value.is_string(), value, "string"),
            Type::Bytes => only(value.is_string(), value, "[]uint8"),
            Type::Quantity => quantity(value, at),
            Type::Bool => {
                if self.yaml {
                    old_yaml_bool(value);
                }
                only(value.is_boolean(), value, "bool")
            }
            Type::Int { bits, signed } => only(fits(value, bits, signed), value, type_text),
            Type::Float => only(value.is_number(), value, type_text),
            Type::Duration => duration(value),
            Type::TimeOrDuration => time_or_duration(value),
            Type::List(item) => {
                let Value::Array(items) = value else { return Err(mismatch(value, at, type_text)) };
                for (i, one) in items.iter_mut().enumerate() {
                    let path = format!("{}[{i}]", at.path);
                    self.item(item, one, Place { path: &path, ..at })?;
                }
                Ok(())
            }
            Type::Map(item) => {
                let Value::Object(entries) = value else { return Err(mismatch(value, at, type_text)) };
                for (key, one) in entries {
                    let path = join(at.path, key);
                    self.item(item, one, Place { path: &path, ..at })?;
                }
                Ok(())
            }
            Type::Struct(name) => match value {
                Value::Object(_) => self.object(name, value, at.path),
                _ => {
                    let go_name = self.table.get(name).map_or(name, |s| s.go_name);
                    Err(mismatch(value, at, go_name))
                }
            },
        }
    }

    /// A null element is its type's zero value.
    fn item(&mut self, type_text: &'static str, value: &mut Value, at: Place<'_>) -> Result<(), ConfigError> {
        if value.is_null() {
            *value = match parse_type(type_text) {
                Type::Text => "".into(),
                Type::Bool => false.into(),
                Type::Int { .. } | Type::Float => 0.into(),
                Type::Struct(_) => Value::Object(Map::new()),
                _ => return Ok(()),
            };
        }
        self.value(type_text, value, at)
    }
}

/// Upstream's parser speaks YAML 1.1, which has more words for yes and no.
fn old_yaml_bool(value: &mut Value) {
    let Value::String(text) = &*value else { return };
    match text.to_ascii_lowercase().as_str() {
        "yes" | "y" | "on" => *value = true.into(),
        "no" | "n" | "off" => *value = false.into(),
        _ => {}
    }
}

fn fits(value: &Value, bits: u32, signed: bool) -> bool {
    match (value.as_i64(), bits, signed) {
        (Some(n), 32, true) => i32::try_from(n).is_ok(),
        (Some(n), 32, false) => u32::try_from(n).is_ok(),
        (Some(n), _, false) => n >= 0,
        (Some(_), ..) => true,
        (None, _, signed) => !signed && value.is_u64(),
    }
}

/// Quantities may be written as numbers.
fn quantity(value: &mut Value, at: Place<'_>) -> Result<(), ConfigError> {
    match value {
        Value::String(text) => {
            proto::quantity::Quantity::parse(text).map(drop).map_err(|e| ConfigError::Type(e.to_string()))
        }
        Value::Number(n) => {
            *value = Value::String(n.to_string());
            Ok(())
        }
        _ => Err(mismatch(value, at, "string")),
    }
}

/// Durations are kept the way Go prints them.
fn duration(value: &mut Value) -> Result<(), ConfigError> {
    let Value::String(text) = &*value else {
        let what = json_word(value, false);
        return Err(ConfigError::Type(format!("json: cannot unmarshal {what} into Go value of type string")));
    };
    let nanos = parse_nanos(text).map_err(|e| ConfigError::Type(e.to_string()))?;
    *value = Value::String(format_nanos(nanos));
    Ok(())
}

/// Numbers are nanoseconds; kubeadm writes them so. They are kept as durations.
fn time_or_duration(value: &mut Value) -> Result<(), ConfigError> {
    let Value::Number(number) = &*value else { return duration(value) };
    let Some(nanos) = number.as_i64() else {
        let why = format!("json: cannot unmarshal number {number} into Go value of type time.Duration");
        return Err(ConfigError::Type(why));
    };
    *value = Value::String(format_nanos(nanos));
    Ok(())
}

fn short_name(owner: &Struct) -> &'static str {
    owner.go_name.rsplit('.').next().unwrap_or(owner.go_name)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn json_word(value: &Value, number: bool) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(n) if number => format!("number {n}"),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(_) => "array".into(),
        Value::Object(_) => "object".into(),
    }
}

fn mismatch(value: &Value, at: Place<'_>, go_type: &str) -> ConfigError {
    let numeric = go_type.starts_with("int") || go_type.starts_with("uint") || go_type.starts_with("float");
    let what = json_word(value, numeric);
    // Elements have no field of their own in Go's messages.
    let mut path = String::new();
    let mut inside = false;
    for c in at.path.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            other if !inside => path.push(other),
            _ => {}
        }
    }
    ConfigError::Type(if at.owner.is_empty() {
        format!("json: cannot unmarshal {what} into Go value of type {go_type}")
    } else {
        format!("json: cannot unmarshal {what} into Go struct field {}.{path} of type {go_type}", at.owner)
    })
}

/// Fills in what is missing from `defaults`. Structs are filled field by field; lists and maps stay as given. A zero
/// in a field that cannot tell zero from absent is filled in, too, as Go's defaulting does.
pub(super) fn fill(table: &Table, name: &str, value: &mut Value, defaults: &Value) {
    let (Some(owner), Value::Object(fields), Value::Object(defaults)) = (table.get(name), value, defaults) else {
        return;
    };
    for field in &owner.fields {
        let Some(default) = defaults.get(field.name) else { continue };
        let kind = parse_type(field.type_text);
        match fields.get_mut(field.name) {
            None => {
                fields.insert(field.name.to_owned(), default.clone());
            }
            Some(value) => match kind {
                Type::Struct(inner) => fill(table, inner, value, default),
                Type::List(_) | Type::Map(_) | Type::Any => {}
                _ if !field.pointer && is_zero(value) => *value = default.clone(),
                _ => {}
            },
        }
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty() || s == "0s",
        _ => false,
    }
}
