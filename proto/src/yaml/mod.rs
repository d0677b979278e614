//! The YAML codec: YAML becomes JSON text, and the JSON codec does the rest, as upstream does it. What is written is
//! byte for byte what upstream's emitter writes ([`emit`]).
//!
//! Upstream reads YAML 1.1 with a port of libyaml. So do we, after its rules: characters ([`reader`]) become tokens
//! ([`scanner`]), tokens the nodes of a document ([`parser`]), and those a tree ([`tree`]), in which a plain `yes` or `010`
//! is what it looks like ([`plain`]). Nothing here recurses with the input but [`tree`], which has a limit.

mod directives;
mod emit;
mod error;
mod order;
mod parser;
mod plain;
mod reader;
mod scalars;
mod scanner;
mod tree;

use serde_json::Value;

use crate::json::{self, DecodeError, Decoded, Strictness};
use crate::schema::Message;
use error::Broken;
use parser::Parser;
use reader::StreamText;
use scanner::Scanner;
use tree::Tree;

/// The first document.
fn first(bytes: &[u8]) -> Result<Tree, Broken> {
    let text = StreamText::of(bytes);
    match Parser::new(Scanner::new(text.cursor())).document()? {
        Some(nodes) => tree::build(&nodes, bytes.len()),
        None => Ok(Tree { value: Value::Null, repeated: Vec::new() }),
    }
}

/// Turns the first document into JSON text: keys sorted, the last of equal ones alone.
///
/// # Errors
/// [`DecodeError::Yaml`] in upstream's words (`yaml: line 1: ...`).
pub fn to_json(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    to_json_reporting(bytes).map(|(json, _)| json)
}

/// Also says what strict reading says of keys that a map has twice: `line 5: key "name" already set in map`.
///
/// # Errors
/// [`DecodeError::Yaml`] in upstream's words.
pub fn to_json_reporting(bytes: &[u8]) -> Result<(Vec<u8>, Vec<String>), DecodeError> {
    let tree = first(bytes)?;
    let mut json = Vec::with_capacity(bytes.len() + bytes.len() / 4);
    json::encode_any(&tree.value, &mut json);
    Ok((json, tree.repeated))
}

/// Error of all duplicate keys together.
#[must_use]
pub fn complaint(repeated: &[String]) -> Option<String> {
    (!repeated.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", repeated.join("\n  ")))
}

/// Decodes one object.
///
/// # Errors
/// [`DecodeError`].
pub fn decode(schema: &Message, bytes: &[u8], strict: Strictness) -> Result<Decoded, DecodeError> {
    json::decode(schema, &to_json(bytes)?, strict)
}

/// Decodes a document without a schema.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_any(bytes: &[u8]) -> Result<Value, DecodeError> {
    json::decode_any(&to_json(bytes)?)
}

/// Decodes the documents of a stream without a schema, one after another.
///
/// # Errors
/// [`DecodeError`], or what `take` says.
pub fn each<E: From<DecodeError>>(bytes: &[u8], mut take: impl FnMut(Value) -> Result<(), E>) -> Result<(), E> {
    let text = StreamText::of(bytes);
    let mut parser = Parser::new(Scanner::new(text.cursor()));
    while let Some(nodes) = parser.document().map_err(DecodeError::from)? {
        take(tree::build(&nodes, bytes.len()).map_err(DecodeError::from)?.value)?;
    }
    Ok(())
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

/// Reason for which upstream writes no YAML of a value. The text is its parser's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unwritable(String);

/// Any value as YAML: of what the parser reads in its JSON, which differs where there are characters that end a line in
/// YAML alone, or are none of YAML's.
///
/// # Errors
/// [`Unwritable`].
pub fn encode_any(value: &Value) -> Result<String, Unwritable> {
    if !has_foreign(value) {
        return Ok(emit::document(value));
    }
    let mut json = Vec::new();
    json::encode_any(value, &mut json);
    first(&json).map(|tree| emit::document(&tree.value)).map_err(|broken| Unwritable(broken.0))
}

/// Reports whether a value has characters that JSON writes unescaped and YAML reads differently.
fn has_foreign(value: &Value) -> bool {
    // Most texts are of ASCII, in which there is one such character.
    let foreign = |c| matches!(c, '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}');
    let text = |text: &str| (!text.is_ascii() || text.contains('\u{7f}')) && text.contains(foreign);
    match value {
        Value::String(s) => text(s),
        Value::Array(items) => items.iter().any(has_foreign),
        Value::Object(map) => map.iter().any(|(key, item)| text(key) || has_foreign(item)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
