//! The YAML codec: YAML becomes JSON text, and the JSON codec does the rest, as upstream does it. What is written is
//! byte for byte what upstream's emitter writes ([`emit`]).
//!
//! Words that YAML 1.1 (which upstream's parser speaks) reads differently are understood where the schema asks for
//! them: `yes`, `no`, `on`, `off` for booleans and `0644` for integers.

mod emit;
mod order;
mod plain;
mod reread;

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess as _, Visitor,
};
use serde_json::{Map, Number, Value};

use crate::json::{self, DecodeError, Decoded, Strictness};
use crate::schema::Message;
use crate::selector::format::quote;
pub use reread::Unwritable;

/// Most keys that are reported as repeated.
const MAX_REPEATED: usize = 100;
/// Most bytes that are read for them.
const MAX_REREAD: usize = 1 << 24;

/// Turns the first document into JSON text: keys sorted, the last of equal ones alone.
///
/// # Errors
/// [`DecodeError::Syntax`] in upstream's style (`yaml: line 1: ...`).
pub fn to_json(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
    json::encode_any(&tree(bytes)?, &mut out);
    Ok(out)
}

/// The first document.
fn tree(bytes: &[u8]) -> Result<Value, DecodeError> {
    let Some(document) = serde_norway::Deserializer::from_slice(bytes).next() else { return Ok(Value::Null) };
    Tree { depth: 0, repeated: None }.deserialize(document).map_err(|e| DecodeError::Syntax(message(&e)))
}

/// What strict reading says of keys that the first document has twice: `line 5: key "name" already set in map`.
#[must_use]
pub fn repeated_keys(bytes: &[u8]) -> Vec<String> {
    let most = (MAX_REREAD / bytes.len().max(1)).clamp(1, MAX_REPEATED);
    (0..most).map_while(|n| repeated_key(bytes, n)).collect()
}

/// What the parser says of repeated keys, all at once.
#[must_use]
pub fn complaint(repeated: &[String]) -> Option<String> {
    (!repeated.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", repeated.join("\n  ")))
}

/// The repeated key after `skip` others. The parser tells the place of what it fails on, and of nothing else: so it fails
/// there.
fn repeated_key(bytes: &[u8], skip: usize) -> Option<String> {
    let document = serde_norway::Deserializer::from_slice(bytes).next()?;
    let mut repeated = Repeated { skip, key: None };
    let failed = Tree { depth: 0, repeated: Some(&mut repeated) }.deserialize(document).err()?;
    let key = repeated.key?;
    Some(format!("line {}: key {} already set in map", failed.location()?.line(), quote(&key)))
}

/// Decodes one object.
///
/// # Errors
/// [`DecodeError`].
pub fn decode(schema: &Message, bytes: &[u8], strict: Strictness) -> Result<Decoded, DecodeError> {
    json::decode_yaml(schema, &to_json(bytes)?, strict)
}

/// Decodes a document without a schema.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_any(bytes: &[u8]) -> Result<Value, DecodeError> {
    json::decode_any(&to_json(bytes)?)
}

/// The object as YAML, keys sorted as upstream prints them.
///
/// # Errors
/// [`Unwritable`].
pub fn encode(schema: &Message, value: &Value) -> Result<String, Unwritable> {
    let mut canonical = value.clone();
    json::canonicalize(schema, &mut canonical);
    encode_any(&canonical)
}

/// Any value as YAML.
///
/// # Errors
/// [`Unwritable`].
pub fn encode_any(value: &Value) -> Result<String, Unwritable> {
    let read = reread::reread(value)?;
    Ok(emit::document(read.as_ref().unwrap_or(value)))
}

fn message(error: &serde_norway::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    // Upstream counts from one only where the scanner complains, and says nothing about the first line.
    match error.location().map_or(0, |place| place.line().saturating_sub(1)) {
        0 => format!("yaml: {text}"),
        line if text.starts_with("did not find expected") => format!("yaml: line {line}: {text}"),
        line => format!("yaml: line {}: {text}", line + 1),
    }
}

/// A search for a repeated key.
struct Repeated {
    /// How many to pass by.
    skip: usize,
    /// What was found.
    key: Option<String>,
}

/// Reads a value.
struct Tree<'r> {
    depth: usize,
    /// Where this ends at a repeated key.
    repeated: Option<&'r mut Repeated>,
}

impl Tree<'_> {
    /// Of what stands in this value.
    fn inner(&mut self) -> Tree<'_> {
        Tree { depth: self.depth + 1, repeated: self.repeated.as_deref_mut() }
    }

    /// True for the key where reading ends.
    fn ends_at(&mut self, key: &str) -> bool {
        let Some(search) = self.repeated.as_deref_mut() else { return false };
        if search.skip > 0 {
            search.skip -= 1;
            return false;
        }
        search.key = Some(key.to_owned());
        true
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth > json::MAX_TREE_DEPTH {
            return Err(D::Error::custom("exceeded max depth"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
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

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom(format!("unsupported value: {v}")))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self.inner())? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(Key(key)) = map.next_key()? {
            if fields.contains_key(&key) && self.ends_at(&key) {
                return map.next_value_seed(Failing);
            }
            let value = map.next_value_seed(self.inner())?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Value, A::Error> {
        // A local tag: its value counts.
        let (_, variant) = data.variant::<Key>()?;
        variant.newtype_variant_seed(self)
    }
}

/// Accepts no value, so that the parser says where it stands.
struct Failing;

impl<'de> DeserializeSeed<'de> for Failing {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Failing {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another key")
    }
}

/// A key, as text whatever it looks like.
struct Key(String);

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_norway::Value::deserialize(deserializer)? {
            serde_norway::Value::String(s) => Ok(Self(s)),
            serde_norway::Value::Number(n) => Ok(Self(n.to_string())),
            serde_norway::Value::Bool(b) => Ok(Self(b.to_string())),
            serde_norway::Value::Null => Ok(Self("null".to_owned())),
            _ => Err(D::Error::custom("unsupported map key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::kind;

    #[test]
    fn yaml_reads_as_json_does() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  labels: {1: a, true: b}\nspec:\n  hostNetwork: yes\n  \
                    containers:\n  - name: c\n    args: [\"yes\", on]\n  volumes:\n  - name: v\n    configMap: {defaultMode: 0644}\n";
        let pod = kind("", "v1", "Pod").expect("present");
        let value = decode(pod, text.as_bytes(), Strictness::Strict).expect("present").value;
        assert_eq!(value["metadata"]["labels"], serde_json::json!({"1": "a", "true": "b"}));
        assert_eq!(value["spec"]["hostNetwork"], true);
        assert_eq!(value["spec"]["containers"][0]["args"], serde_json::json!(["yes", "on"]));
        assert_eq!(value["spec"]["volumes"][0]["configMap"]["defaultMode"], 420);
    }

    #[test]
    fn errors_have_lines() {
        let error = to_json(b"a: [").expect_err("bad").to_string();
        assert_eq!(error, "yaml: line 1: did not find expected node content");
        let error = to_json(b"a: b: c").expect_err("bad").to_string();
        assert_eq!(error, "yaml: mapping values are not allowed in this context");
        assert_eq!(to_json(b"").expect("present"), b"null");
        assert!(to_json("[".repeat(5000).as_bytes()).is_err());
    }

    #[test]
    fn keys_are_sorted_and_the_last_of_equal_ones_counts() {
        assert_eq!(
            to_json(b"b: 1\na: {d: 1, c: [x, 1.5, no]}\nb: 2\n").expect("present"),
            br#"{"a":{"c":["x",1.5,"no"],"d":1},"b":2}"#
        );
    }

    #[test]
    fn repeated_keys_have_the_lines_of_their_values() {
        let text = "\nspec:\n  foo: 1\n  foo: 2\n  \"ports\":\n  - {a: 1, b: 2, a: 3}\n  - name: x\n    name: y\n  foo:\n    bar: z\n";
        let lines = [
            "line 4: key \"foo\" already set in map",
            "line 6: key \"a\" already set in map",
            "line 8: key \"name\" already set in map",
            "line 10: key \"foo\" already set in map",
        ];
        assert_eq!(repeated_keys(text.as_bytes()), lines);
        assert!(repeated_keys(b"a: {name: 1}\nb: {name: 1}").is_empty());
        assert_eq!(repeated_keys(b"a: 1\n".repeat(5000).as_slice()).len(), MAX_REPEATED);
    }
}
