//! The YAML codec: YAML becomes JSON text, and the JSON codec does the rest, as upstream does it.
//!
//! Words that YAML 1.1 (which upstream's parser speaks) reads differently are understood where the schema asks for
//! them: `yes`, `no`, `on`, `off` for booleans and `0644` for integers.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess as _, Visitor,
};
use serde_json::Value;

use crate::json::{self, DecodeError, Decoded, Strictness};
use crate::schema::Message;

/// Turns the first document into JSON text. Keys keep their order; duplicates stay.
///
/// # Errors
/// [`DecodeError::Syntax`] in upstream's style (`yaml: line 1: ...`).
pub fn to_json(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
    let Some(document) = serde_norway::Deserializer::from_slice(bytes).next() else {
        return Ok(b"null".to_vec());
    };
    ToJson { out: &mut out, depth: 0 }.deserialize(document).map_err(|e| DecodeError::Syntax(message(&e)))?;
    if out.is_empty() {
        out.extend_from_slice(b"null");
    }
    Ok(out)
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
#[must_use]
pub fn encode(schema: &Message, value: &Value) -> String {
    let mut canonical = value.clone();
    json::canonicalize(schema, &mut canonical);
    encode_any(&canonical)
}

/// Any value as YAML.
#[must_use]
pub fn encode_any(value: &Value) -> String {
    serde_norway::to_string(value).unwrap_or_default()
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

struct ToJson<'o> {
    out: &'o mut Vec<u8>,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for ToJson<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.depth > json::MAX_TREE_DEPTH {
            return Err(D::Error::custom("exceeded max depth"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ToJson<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, v: bool) -> Result<(), E> {
        self.out.extend_from_slice(if v { b"true" } else { b"false" });
        Ok(())
    }

    fn visit_i64<E>(self, v: i64) -> Result<(), E> {
        self.out.extend_from_slice(v.to_string().as_bytes());
        Ok(())
    }

    fn visit_u64<E>(self, v: u64) -> Result<(), E> {
        self.out.extend_from_slice(v.to_string().as_bytes());
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<(), E> {
        let number = serde_json::Number::from_f64(v).ok_or_else(|| E::custom(format!("unsupported value: {v}")))?;
        json::encode_any(&Value::Number(number), self.out);
        Ok(())
    }

    fn visit_str<E>(self, v: &str) -> Result<(), E> {
        json::encode_text(v, self.out);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.out.push(b'[');
        let mut first = true;
        loop {
            let at = self.out.len();
            if !first {
                self.out.push(b',');
            }
            if seq.next_element_seed(ToJson { out: &mut *self.out, depth: self.depth + 1 })?.is_none() {
                self.out.truncate(at);
                break;
            }
            first = false;
        }
        self.out.push(b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.out.push(b'{');
        let mut first = true;
        while let Some(key) = map.next_key::<Key>()? {
            if !first {
                self.out.push(b',');
            }
            first = false;
            json::encode_text(&key.0, self.out);
            self.out.push(b':');
            map.next_value_seed(ToJson { out: &mut *self.out, depth: self.depth + 1 })?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<(), A::Error> {
        // A local tag: its value counts.
        let (_, variant) = data.variant::<Key>()?;
        variant.newtype_variant_seed(self)
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
}
