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
/// What a document may come to, in bytes: aliases make much of little.
const MAX_TREE: usize = 1 << 26;
/// What a value counts beside its text: so much that no document of a body's size without aliases comes to the limit.
const VALUE: usize = 16;

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
    let mut reading = Reading { left: MAX_TREE, search: None };
    Tree { depth: 0, reading: &mut reading }.deserialize(document).map_err(|e| DecodeError::Syntax(message(&e)))
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
    let mut reading = Reading { left: MAX_TREE, search: Some(Search { skip, key: None }) };
    let failed = Tree { depth: 0, reading: &mut reading }.deserialize(document).err()?;
    let key = reading.search?.key?;
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
struct Search {
    /// How many to pass by.
    skip: usize,
    /// What was found.
    key: Option<String>,
}

/// One way through a document.
struct Reading {
    /// What the document may still come to.
    left: usize,
    /// Where this ends at a repeated key.
    search: Option<Search>,
}

impl Reading {
    /// Counts a value, or the text of one.
    fn spend<E: serde::de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| E::custom("document contains excessive aliasing"))?;
        Ok(())
    }

    /// True for the key where reading ends.
    fn ends_at(&mut self, key: &str) -> bool {
        let Some(search) = &mut self.search else { return false };
        if search.skip > 0 {
            search.skip -= 1;
            return false;
        }
        search.key = Some(key.to_owned());
        true
    }
}

/// Reads a value.
struct Tree<'r> {
    depth: usize,
    reading: &'r mut Reading,
}

impl Tree<'_> {
    /// Of what stands in this value.
    fn inner(&mut self) -> Tree<'_> {
        Tree { depth: self.depth + 1, reading: self.reading }
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth > json::MAX_TREE_DEPTH {
            return Err(D::Error::custom("exceeded max depth"));
        }
        self.reading.spend(VALUE)?;
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

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Value, E> {
        self.reading.spend(v.len())?;
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
        while let Some(key) = map.next_key_seed(Key(self.reading))? {
            if fields.contains_key(&key) && self.reading.ends_at(&key) {
                return map.next_value_seed(Failing);
            }
            let value = map.next_value_seed(self.inner())?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Value, A::Error> {
        // A local tag: its value counts.
        let (_, variant) = data.variant_seed(Key(self.reading))?;
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

/// Reads a key, as text whatever it looks like.
struct Key<'r>(&'r mut Reading);

const NO_KEY: &str = "unsupported map key";

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok("null".to_owned())
    }

    fn visit_bool<E>(self, v: bool) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_i64<E>(self, v: i64) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_u64<E>(self, v: u64) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_f64<E>(self, v: f64) -> Result<String, E> {
        Ok(serde_norway::Number::from(v).to_string())
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<String, E> {
        self.0.spend(v.len())?;
        Ok(v.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        Err(A::Error::custom(NO_KEY))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        Err(A::Error::custom(NO_KEY))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        Err(A::Error::custom(NO_KEY))
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
    fn aliases_do_not_make_much_of_little() {
        let many = |value: &str, count: usize| format!("a: &a {value}\nb: [{}]\n", vec!["*a"; count].join(","));
        let of_texts = many(&"x".repeat(1 << 20), 1000);
        assert!(of_texts.len() < 2 << 20);
        let refused = "document contains excessive aliasing";
        assert!(to_json(of_texts.as_bytes()).expect_err("too much").to_string().contains(refused));
        let of_keys = format!("a: &a {}\nb:\n{}", "x".repeat(1 << 20), "- *a : 1\n".repeat(1000));
        assert!(to_json(of_keys.as_bytes()).expect_err("too much").to_string().contains(refused));
        assert_eq!(
            to_json(b"a: &a xyz\nb: [*a, *a]\n*a : 1").expect("few"),
            br#"{"a":"xyz","b":["xyz","xyz"],"xyz":1}"#
        );
        // As much as fits into a body.
        let plain = format!("[{}]", vec!["a"; 3 << 19].join(","));
        assert!(to_json(plain.as_bytes()).is_ok());
    }

    #[test]
    fn keys_are_text() {
        assert_eq!(
            to_json(b"{1: a, true: b, null: c, 1.5: d, -2: e}").expect("keys"),
            br#"{"-2":"e","1":"a","1.5":"d","null":"c","true":"b"}"#
        );
        let odd = to_json(b"? [a]\n: b").expect_err("no key").to_string();
        assert!(odd.contains("unsupported map key"), "{odd}");
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
