//! Nodes to a tree: types by tag and by what a text looks like, keys to text, aliases and merges to what they stand for.
//!
//! Aliases make much of little: what a document comes to is counted twice, as upstream counts it and in bytes.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::error::Broken;
use super::parser::{LONG, Node, What};
use super::plain::{self, Word};
use crate::json::{self, MAX_TREE_DEPTH};
use crate::merge::go_syntax;
use crate::scalar::{decode_base64, float};
use crate::selector::format::quote;

/// Most keys that are reported as repeated.
pub(super) const MAX_REPEATED: usize = 1000;
/// Maximum size of a document with its aliases expanded, in bytes.
const MAX_TREE: usize = 1 << 26;
/// The type of keys.
const KEYS: &str = "interface {}";
/// Bytes counted for a value beside its text.
const VALUE: usize = 16;

/// A value that is no collection.
#[derive(Debug, Clone, PartialEq)]
enum Scalar<'t> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(Cow<'t, str>),
}

/// Parsed document.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) value: Value,
    /// Duplicate keys, as strict decoding reports them.
    pub(super) repeated: Vec<String>,
}

/// The fields of a map, and the keys that are no texts: `1` and `"1"` are two.
#[derive(Default)]
struct MapFields<'t> {
    map: Map<String, Value>,
    odd: Vec<Scalar<'t>>,
}

/// Reads a document of a text of some size.
pub(super) fn build(nodes: &[Node<'_>], size: usize) -> Result<Tree, Broken> {
    let mut builder = Builder {
        nodes,
        following: Vec::new(),
        // The document itself.
        counted: 1,
        of_aliases: 0,
        left: MAX_TREE + size + nodes.len() * VALUE,
        repeated: Vec::new(),
        bad_key: None,
        bad_number: None,
    };
    let value = builder.value(0, 0)?;
    match builder.bad_key.or(builder.bad_number) {
        Some(broken) => Err(broken),
        None => Ok(Tree { value, repeated: builder.repeated }),
    }
}

struct Builder<'n, 't> {
    nodes: &'n [Node<'t>],
    /// Aliases within whose values this is.
    following: Vec<usize>,
    counted: u64,
    of_aliases: u64,
    left: usize,
    repeated: Vec<String>,
    /// Key that JSON cannot express, reported once everything is read.
    bad_key: Option<Broken>,
    bad_number: Option<Broken>,
}

impl<'n, 't> Builder<'n, 't> {
    fn value(&mut self, at: usize, depth: usize) -> Result<Value, Broken> {
        self.count(depth)?;
        let nodes = self.nodes;
        let node = &nodes[at];
        match &node.what {
            What::Alias(to, name) => self.follow(at, name, |builder| builder.value(*to, depth + 1)),
            What::Scalar { .. } => {
                let scalar = self.scalar(node)?;
                Ok(self.json(scalar))
            }
            What::Sequence(end) => {
                let mut list = Vec::new();
                let mut next = at + 1;
                while next < *end {
                    list.push(self.value(next, depth + 1)?);
                    next = self.after(next);
                }
                Ok(Value::Array(list))
            }
            What::Mapping(end) => {
                let mut fields = MapFields::default();
                self.mapping(at + 1, *end, depth, &mut fields)?;
                Ok(Value::Object(fields.map))
            }
        }
    }

    /// Index of the node behind another.
    fn after(&self, at: usize) -> usize {
        match self.nodes[at].what {
            What::Sequence(end) | What::Mapping(end) => end,
            _ => at + 1,
        }
    }

    /// Counts a value as upstream does, which lets less and less of a document come from aliases.
    fn count(&mut self, depth: usize) -> Result<(), Broken> {
        const FEW: f64 = 400_000.0;
        const MANY: f64 = 4_000_000.0;
        if depth > MAX_TREE_DEPTH {
            return Err(Broken::at(0, "exceeded max depth"));
        }
        self.counted += 1;
        self.of_aliases += u64::from(!self.following.is_empty());
        if self.of_aliases > 100 && self.counted > 1000 {
            let counted = as_float(self.counted);
            let more = ((counted - FEW) / (MANY - FEW)).clamp(0.0, 1.0);
            if as_float(self.of_aliases) / counted > 0.99 - 0.89 * more {
                return Err(excessive());
            }
        }
        self.spend(VALUE)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Broken> {
        self.left = self.left.checked_sub(bytes).ok_or_else(excessive)?;
        Ok(())
    }

    /// Does something within the value of an alias.
    fn follow<T>(
        &mut self,
        at: usize,
        name: &str,
        inner: impl FnOnce(&mut Self) -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        if self.following.contains(&at) {
            return Err(Broken(format!("yaml: anchor '{name}' value contains itself")));
        }
        self.following.push(at);
        let done = inner(self)?;
        self.following.pop();
        Ok(done)
    }

    fn mapping(&mut self, from: usize, end: usize, depth: usize, fields: &mut MapFields<'t>) -> Result<(), Broken> {
        let mut at = from;
        while at < end {
            let value_at = self.after(at);
            if is_merge(&self.nodes[at]) {
                self.merge(value_at, depth, fields)?;
            } else {
                let key = self.key(at, depth)?;
                let value = self.value(value_at, depth + 1)?;
                self.set(fields, key, value, self.nodes[value_at].line);
            }
            at = self.after(value_at);
        }
        Ok(())
    }

    /// Takes over the fields of a map, or of several, of which the first count most.
    fn merge(&mut self, at: usize, depth: usize, fields: &mut MapFields<'t>) -> Result<(), Broken> {
        let What::Sequence(end) = self.nodes[at].what else { return self.merge_one(at, depth, fields) };
        let mut parts = Vec::new();
        let mut next = at + 1;
        while next < end {
            parts.push(next);
            next = self.after(next);
        }
        parts.into_iter().rev().try_for_each(|part| self.merge_one(part, depth, fields))
    }

    fn merge_one(&mut self, at: usize, depth: usize, fields: &mut MapFields<'t>) -> Result<(), Broken> {
        let nodes = self.nodes;
        let within = |builder: &mut Self, map: usize, end: usize, fields: &mut MapFields<'t>| {
            builder.count(depth + 1)?;
            builder.mapping(map + 1, end, depth + 1, fields)
        };
        match &nodes[at].what {
            What::Mapping(end) => within(self, at, *end, fields),
            What::Alias(to, name) if let What::Mapping(end) = nodes[*to].what => {
                self.count(depth + 1)?;
                self.follow(at, name, |builder| within(builder, *to, end, fields))
            }
            _ => Err(Broken::at(0, "map merge requires map or sequence of maps as the value")),
        }
    }

    fn key(&mut self, at: usize, depth: usize) -> Result<Scalar<'t>, Broken> {
        let nodes = self.nodes;
        let to = if let What::Alias(to, _) = nodes[at].what { to } else { at };
        if let What::Sequence(_) | What::Mapping(_) = nodes[to].what {
            let key = self.value(at, depth + 1)?;
            return Err(Broken(format!("yaml: invalid map key: {}", go_syntax(&key, KEYS))));
        }
        self.count(depth + 1)?;
        match &nodes[at].what {
            What::Alias(_, name) => self.follow(at, name, |builder| {
                builder.count(depth + 1)?;
                builder.scalar(&nodes[to])
            }),
            _ => self.scalar(&nodes[at]),
        }
    }

    fn set(&mut self, fields: &mut MapFields<'t>, key: Scalar<'t>, value: Value, line: usize) {
        let Some(text) = self.key_text(&key, &value) else { return };
        let of_this_text = |odd: &Scalar<'_>| key_text(odd).as_deref() == Some(&text);
        let before = match key {
            Scalar::Text(_) => fields.map.contains_key(&text) && !fields.odd.iter().any(of_this_text),
            _ => fields.odd.contains(&key),
        };
        if before && self.repeated.len() < MAX_REPEATED {
            self.repeated.push(format!("line {}: key {} already set in map", line + 1, shown(&key)));
        }
        fields.map.insert(text, value);
        if !matches!(key, Scalar::Text(_)) && !before {
            fields.odd.push(key);
        }
    }

    /// A key as JSON has it, if it can be one there.
    fn key_text(&mut self, key: &Scalar<'_>, value: &Value) -> Option<String> {
        let text = key_text(key);
        if text.is_none() {
            let kind = if *key == Scalar::Null { "%!s(<nil>)" } else { "uint64" };
            let (key, value) = (shown(key), if value.is_null() { "<nil>".to_owned() } else { go_syntax(value, KEYS) });
            let said = format!("unsupported map key of type: {kind}, key: {key}, value: {value}");
            self.bad_key.get_or_insert(Broken(said));
        }
        text
    }

    fn scalar(&mut self, node: &'n Node<'t>) -> Result<Scalar<'t>, Broken> {
        let What::Scalar { value, implicit } = &node.what else { return Ok(Scalar::Null) };
        self.spend(value.len())?;
        let text = || Ok(Scalar::Text(value.clone()));
        match node.tag.strip_prefix(LONG) {
            _ if node.tag.is_empty() && *implicit => Ok(typed(plain::read(value, true), value)),
            Some(tag @ ("bool" | "int" | "float" | "null" | "timestamp")) => tagged(tag, value),
            Some("binary") => match decode_base64(value) {
                Ok(bytes) => Ok(Scalar::Text(Cow::Owned(replaced(&bytes)))),
                Err(_) => Err(Broken::at(0, "!!binary value contains invalid base64 data")),
            },
            _ => text(),
        }
    }

    fn json(&mut self, scalar: Scalar<'_>) -> Value {
        match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Int(value) => value.into(),
            Scalar::Uint(value) => value.into(),
            Scalar::Text(text) => Value::String(text.into_owned()),
            Scalar::Float(value) => json::number(value).map_or_else(
                || {
                    let shown =
                        if value.is_nan() { "NaN".to_owned() } else { format!("{value:+}").replace("inf", "Inf") };
                    self.bad_number.get_or_insert_with(|| Broken(format!("json: unsupported value: {shown}")));
                    Value::Null
                },
                Value::Number,
            ),
        }
    }
}

fn excessive() -> Broken {
    Broken::at(0, "document contains excessive aliasing")
}

/// Counts are far from what a float cannot tell apart.
#[expect(clippy::cast_precision_loss, reason = "YAML has floats of 64 bits")]
fn as_float(count: u64) -> f64 {
    count as f64
}

/// The key under which another map stands whose fields are taken over.
fn is_merge(node: &Node<'_>) -> bool {
    matches!(&node.what, What::Scalar { value, implicit } if value == "<<"
        && (*implicit || node.tag.strip_prefix(LONG) == Some("merge")))
}

fn typed<'t>(word: Word, text: &Cow<'t, str>) -> Scalar<'t> {
    match word {
        Word::Null => Scalar::Null,
        Word::Bool(value) => Scalar::Bool(value),
        Word::Int(value) => Scalar::Int(value),
        Word::Uint(value) => Scalar::Uint(value),
        Word::Float(value) => Scalar::Float(value),
        Word::Timestamp | Word::Text => Scalar::Text(text.clone()),
    }
}

/// A text that says of what type it is has to look like it.
fn tagged<'t>(tag: &str, text: &Cow<'t, str>) -> Result<Scalar<'t>, Broken> {
    let word = plain::read(text, tag == "timestamp");
    let found = match word {
        Word::Null => "null",
        Word::Bool(_) => "bool",
        Word::Int(_) | Word::Uint(_) => "int",
        Word::Float(_) => "float",
        Word::Timestamp => "timestamp",
        Word::Text => "str",
    };
    match word {
        _ if found == tag => Ok(typed(word, text)),
        #[expect(clippy::cast_precision_loss, reason = "YAML has floats of 64 bits")]
        Word::Int(value) if tag == "float" => Ok(Scalar::Float(value as f64)),
        _ => Err(Broken(format!("yaml: cannot decode !!{found} `{text}` as a !!{tag}"))),
    }
}

/// Bytes as JSON has them: each that is not of a character is replaced.
fn replaced(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|_| text.push(char::REPLACEMENT_CHARACTER));
    }
    text
}

/// Text of a key in JSON; `None` for null and numbers beyond 64 signed bits.
fn key_text(key: &Scalar<'_>) -> Option<String> {
    Some(match key {
        Scalar::Null | Scalar::Uint(_) => return None,
        Scalar::Text(text) => text.clone().into_owned(),
        Scalar::Bool(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        // With the digits of the shorter float.
        #[expect(clippy::cast_possible_truncation, reason = "upstream prints the shorter float")]
        Scalar::Float(value) => match *value as f32 {
            short if short.is_nan() => ".nan".to_owned(),
            short if short.is_infinite() => if short > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
            short => float(&short),
        },
    })
}

/// A key in Go's syntax.
fn shown(key: &Scalar<'_>) -> String {
    match key {
        Scalar::Null => "<nil>".to_owned(),
        Scalar::Bool(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Uint(value) => format!("{value:#x}"),
        Scalar::Float(value) => float(value),
        Scalar::Text(text) => quote(text),
    }
}
