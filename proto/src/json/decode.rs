//! Bytes to canonical tree. The text has passed the syntax check, so this reads without looking back.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use super::cursor::Cursor;
use super::error::DecodeError;
use super::scan::{self, SyntaxError};
use super::text::{schema_props, time};
use super::tree::{MAX_TREE_DEPTH, NAMES, number};
use crate::schema::zero;
use crate::schema::{Card, Field, Message, ValueKind};
use crate::{quantity, scalar};

/// Most reports of one text.
const MAX_REPORTS: usize = 100;
/// Most bytes of places that are put together for them: what is wrong at one place may be wrong there a million times.
const MAX_PLACES: usize = 1 << 24;

/// Treatment of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// Drop them silently.
    Ignore,
    /// Drop and report them.
    Warn,
    /// Fail.
    Strict,
}

/// A decoded object.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The canonical tree.
    pub value: Value,
    /// Unknown and duplicate fields, in the order of the text.
    pub warnings: Vec<String>,
}

/// Decodes one object.
///
/// # Errors
/// [`DecodeError`] with upstream's text.
pub fn decode(schema: &Message, bytes: &[u8], strict: Strictness) -> Result<Decoded, DecodeError> {
    scan::check(bytes)?;
    let mut d = Decoder::new(bytes, strict != Strictness::Ignore);
    d.passed_over = usize::from(schema.is_open());
    let map = match d.text.peek() {
        b'{' => d.object(schema, Map::new(), 0)?,
        b'n' => Map::new(),
        _ => {
            let what = d.text.what();
            return Err(d.wrong(what, &format!("{}.{}", schema.go_package, schema.go_name())));
        }
    };
    if let Some(error) = d.first.take() {
        return Err(error);
    }
    if strict == Strictness::Strict && !d.reports.is_empty() {
        return Err(DecodeError::Strict(d.reports));
    }
    Ok(Decoded { value: Value::Object(map), warnings: d.reports })
}

/// Decodes any JSON text.
///
/// # Errors
/// [`DecodeError`] with Go's text.
pub fn decode_any(bytes: &[u8]) -> Result<Value, DecodeError> {
    decode_any_at(bytes, 0)
}

/// Decodes a text at a depth inside another object.
pub(crate) fn decode_any_at(bytes: &[u8], depth: usize) -> Result<Value, DecodeError> {
    scan::check(bytes)?;
    Decoder::new(bytes, false).any(depth)
}

/// Decodes, and reports duplicate fields.
///
/// # Errors
/// [`DecodeError`] with Go's text.
pub fn decode_any_reporting(bytes: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    scan::check(bytes)?;
    let mut d = Decoder::new(bytes, true);
    let value = d.any(0)?;
    Ok((value, d.reports))
}

enum Segment<'s> {
    Key(Cow<'s, str>),
    Index(usize),
}

struct Decoder<'a, 's> {
    text: Cursor<'a>,
    /// Unknown and duplicate fields are reported.
    report: bool,
    /// Deepest nesting of what is read.
    deepest: usize,
    /// Path of the current value in reports.
    path: Vec<Segment<'s>>,
    /// Path of the current value in type errors: only fields of structs.
    names: Vec<&'s str>,
    /// Innermost struct.
    owner: &'s str,
    reports: Vec<String>,
    /// Number of leading names that are left out of errors.
    passed_over: usize,
    /// Bytes of places that were put together.
    placed: usize,
    /// First type error; decoding goes on, as later errors of other sorts take precedence.
    first: Option<DecodeError>,
}

type Outcome<T> = Result<T, DecodeError>;

/// Go type of an element, from that of the container.
fn element_type<'t>(go: &'t str, kind: &ValueKind) -> Cow<'t, str> {
    if let Some(element) = go.strip_prefix("[]").or_else(|| go.strip_prefix("map[string]")) {
        return Cow::Borrowed(element);
    }
    match kind {
        ValueKind::Message(m) => Cow::Owned(format!("{}.{}", m.go_package, m.go_name())),
        _ => Cow::Borrowed("string"),
    }
}

fn may_be_nil(field: &Field) -> bool {
    field.pointer
        || field.card != Card::Single
        || matches!(field.kind, ValueKind::Bytes | ValueKind::StringList | ValueKind::Any)
}

impl<'a, 's> Decoder<'a, 's> {
    fn new(data: &'a [u8], report: bool) -> Self {
        Self {
            text: Cursor::new(data),
            report,
            deepest: MAX_TREE_DEPTH,
            path: vec![],
            names: vec![],
            owner: "",
            reports: vec![],
            passed_over: 0,
            placed: 0,
            first: None,
        }
    }

    fn wrong(&self, what: &str, go_type: &str) -> DecodeError {
        let names = self.names.get(self.passed_over..).unwrap_or_default();
        DecodeError::Type(if names.is_empty() {
            format!("json: cannot unmarshal {what} into Go value of type {go_type}")
        } else {
            let field = names.join(".");
            format!("json: cannot unmarshal {what} into Go struct field {}.{field} of type {go_type}", self.owner)
        })
    }

    fn soft(&mut self, what: &str, go_type: &str) {
        if self.first.is_none() {
            self.first = Some(self.wrong(what, go_type));
        }
    }

    fn strict(&mut self, what: &str, key: &str) {
        if !self.report || self.reports.len() >= MAX_REPORTS || self.placed >= MAX_PLACES {
            return;
        }
        let mut path = String::new();
        for segment in &self.path {
            match segment {
                Segment::Key(key) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(key);
                }
                Segment::Index(i) => path.push_str(&format!("[{i}]")),
            }
        }
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        self.placed += path.len();
        let text = format!("{what} field {path:?}");
        if !self.reports.contains(&text) {
            self.reports.push(text);
        }
    }

    fn deeper(&self, depth: usize) -> Outcome<usize> {
        if depth >= self.deepest {
            let character = self.text.peek();
            return Err(SyntaxError::InvalidCharacter { character, context: "exceeded max depth".into() }.into());
        }
        Ok(depth + 1)
    }

    fn object(
        &mut self,
        schema: &'s Message,
        mut map: Map<String, Value>,
        depth: usize,
    ) -> Outcome<Map<String, Value>> {
        let depth = self.deeper(depth)?;
        let outer = std::mem::replace(&mut self.owner, schema.go_name());
        let mut seen: Vec<usize> = Vec::new();
        let mut more = self.text.open(b'}');
        while more {
            let key = self.text.key();
            if let Some(index) = schema.field_index(&key) {
                if self.report {
                    if seen.contains(&index) {
                        self.strict("duplicate", &key);
                    } else {
                        seen.push(index);
                    }
                }
                let field = &schema.fields[index];
                self.names.push(&field.json);
                self.path.push(Segment::Key(Cow::Borrowed(&field.json)));
                let old = map.remove(field.json.as_ref());
                if let Some(value) = self.field(field, old, depth)? {
                    map.insert(key.into_owned(), value);
                }
                self.path.pop();
                self.names.pop();
                self.owner = schema.go_name();
            } else if schema.preserve_unknown {
                if map.contains_key(key.as_ref()) {
                    self.strict("duplicate", &key);
                }
                self.path.push(Segment::Key(Cow::Owned(key.clone().into_owned())));
                let value = self.any(depth)?;
                self.path.pop();
                map.insert(key.into_owned(), value);
            } else {
                self.strict("unknown", &key);
                self.text.skip();
            }
            more = self.text.next(b'}');
        }
        self.owner = outer;
        zero::fill(schema, &mut map);
        Ok(map)
    }

    fn field(&mut self, field: &'s Field, old: Option<Value>, depth: usize) -> Outcome<Option<Value>> {
        if self.text.peek() == b'n' {
            self.text.skip();
            if field.nullable {
                return Ok(Some(Value::Null));
            }
            return Ok(if may_be_nil(field) { None } else { old });
        }
        match (field.card, self.text.peek()) {
            (Card::Single, _) => self.single(&field.kind, &field.go_type, old, depth),
            (Card::Repeated, b'[') => self.list(&field.kind, &field.go_type, depth).map(Some),
            (Card::Map, b'{') => self.map(field, old, depth).map(Some),
            _ => {
                let what = self.text.what();
                self.soft(what, &field.go_type);
                self.text.skip();
                Ok(None)
            }
        }
    }

    fn list(&mut self, kind: &'s ValueKind, go: &str, depth: usize) -> Outcome<Value> {
        let depth = self.deeper(depth)?;
        let go = element_type(go, kind);
        let mut list = Vec::new();
        let mut more = self.text.open(b']');
        while more {
            self.path.push(Segment::Index(list.len()));
            let value = self.element(kind, &go, depth)?;
            self.path.pop();
            list.push(value);
            more = self.text.next(b']');
        }
        Ok(Value::Array(list))
    }

    fn map(&mut self, field: &'s Field, old: Option<Value>, depth: usize) -> Outcome<Value> {
        let depth = self.deeper(depth)?;
        let go = element_type(&field.go_type, &field.kind);
        let map = match old {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        self.entries(map, |reader| reader.element(&field.kind, &go, depth))
    }

    /// Adds what a text has to a map of free keys.
    #[inline]
    fn entries(&mut self, mut map: Map<String, Value>, value: impl Fn(&mut Self) -> Outcome<Value>) -> Outcome<Value> {
        let mut more = self.text.open(b'}');
        while more {
            let key = self.text.key();
            if self.report {
                if map.contains_key(key.as_ref()) {
                    self.strict("duplicate", &key);
                }
                self.path.push(Segment::Key(Cow::Owned(key.clone().into_owned())));
            }
            let value = value(self)?;
            if self.report {
                self.path.pop();
            }
            map.insert(key.into_owned(), value);
            more = self.text.next(b'}');
        }
        Ok(Value::Object(map))
    }

    fn element(&mut self, kind: &'s ValueKind, go: &str, depth: usize) -> Outcome<Value> {
        if self.text.peek() == b'n' {
            self.text.skip();
            return Ok(zero::element(kind));
        }
        Ok(self.single(kind, go, None, depth)?.unwrap_or_else(|| zero::element(kind)))
    }

    /// A value that is not null. None leaves the field at zero, after an error was noted.
    fn single(&mut self, kind: &'s ValueKind, go: &str, old: Option<Value>, depth: usize) -> Outcome<Option<Value>> {
        let first = self.text.peek();
        let matched = match (kind, first) {
            (ValueKind::Bool, b't' | b'f') => {
                self.text.skip();
                Some(Value::Bool(first == b't'))
            }
            (ValueKind::String, b'"') => Some(Value::String(self.text.string().into_owned())),
            (ValueKind::Int32 | ValueKind::Int64 | ValueKind::Double, b'-' | b'0'..=b'9') => {
                return Ok(self.number(kind, go));
            }
            (ValueKind::Bytes, b'"') => {
                let text = self.text.string();
                match scalar::decode_base64(&text) {
                    Ok(bytes) => Some(Value::String(scalar::encode_base64(&bytes))),
                    Err(error) => {
                        self.first.get_or_insert(error.into());
                        return Ok(None);
                    }
                }
            }
            (ValueKind::Message(message), b'{') => {
                let old = match old {
                    Some(Value::Object(map)) => map,
                    _ => Map::new(),
                };
                Some(Value::Object(self.object(message, old, depth)?))
            }
            (ValueKind::StringList, b'[') => Some(self.list(&ValueKind::String, "[]string", depth)?),
            (ValueKind::Nested(field), _) => return self.field(field, old, depth),
            (ValueKind::Any, _) => Some(self.any(depth)?),
            (ValueKind::Bool | ValueKind::String | ValueKind::Int32 | ValueKind::Int64 | ValueKind::Double, _)
            | (ValueKind::Bytes | ValueKind::Message(_) | ValueKind::StringList, _) => None,
            _ => return self.special(kind, depth).map(Some),
        };
        if matched.is_none() {
            let what = self.text.what();
            self.soft(what, go);
            self.text.skip();
        }
        Ok(matched)
    }

    fn number(&mut self, kind: &ValueKind, go: &str) -> Option<Value> {
        let token = self.text.token();
        let number = match kind {
            ValueKind::Int32 => token.parse::<i32>().ok().map(Number::from),
            ValueKind::Int64 => token.parse::<i64>().ok().map(Number::from),
            _ => token.parse().ok().and_then(number),
        };
        if number.is_none() {
            self.soft(&format!("number {token}"), go);
        }
        number.map(Value::Number)
    }

    /// Types that decode themselves in Go: their errors end the decoding.
    fn special(&mut self, kind: &'s ValueKind, depth: usize) -> Outcome<Value> {
        match kind {
            ValueKind::Quantity => {
                let raw = self.text.raw();
                let raw = raw.strip_prefix(b"\"").and_then(|r| r.strip_suffix(b"\"")).unwrap_or(raw);
                let text = String::from_utf8_lossy(raw);
                let canonical = quantity::canonicalize(text.trim())?;
                Ok(Value::String(canonical.into_owned()))
            }
            ValueKind::IntOrString => match self.text.peek() {
                b'"' => Ok(Value::String(self.text.string().into_owned())),
                b'-' | b'0'..=b'9' => {
                    let token = self.text.token();
                    let number = token.parse::<i32>();
                    number.map(Value::from).map_err(|_| self.wrong(&format!("number {token}"), "int32"))
                }
                _ => Err(self.wrong(self.text.what(), "int32")),
            },
            ValueKind::Time | ValueKind::MicroTime => {
                if self.text.peek() != b'"' {
                    return Err(self.wrong(self.text.what(), "string"));
                }
                let text = self.text.string();
                Ok(time(&text, matches!(kind, ValueKind::MicroTime))?)
            }
            ValueKind::SchemaOrBool if matches!(self.text.peek(), b't' | b'f') => {
                let value = self.text.peek() == b't';
                self.text.skip();
                Ok(Value::Bool(value))
            }
            ValueKind::SchemaOrBool | ValueKind::SchemaOrArray | ValueKind::SchemaOrStrings => {
                self.schema_or(kind, depth)
            }
            ValueKind::FieldsV1 => {
                self.deepest = MAX_TREE_DEPTH + NAMES;
                let fields = self.quietly(|d| d.any(depth));
                self.deepest = MAX_TREE_DEPTH;
                fields
            }
            _ => self.quietly(|d| d.any(depth)),
        }
    }

    fn schema_or(&mut self, kind: &'s ValueKind, depth: usize) -> Outcome<Value> {
        static STRINGS: ValueKind = ValueKind::String;
        match (kind, self.text.peek()) {
            (_, b'{') => self.quietly(|d| d.object(schema_props(), Map::new(), depth).map(Value::Object)),
            (ValueKind::SchemaOrArray, b'[') => self.quietly(|d| {
                let depth = d.deeper(depth)?;
                let mut list = Vec::new();
                let mut more = d.text.open(b']');
                while more {
                    list.push(match d.text.peek() {
                        b'{' => Value::Object(d.object(schema_props(), Map::new(), depth)?),
                        b'n' => {
                            d.text.skip();
                            Value::Object(Map::new())
                        }
                        _ => return Err(d.wrong(d.text.what(), "v1.JSONSchemaProps")),
                    });
                    more = d.text.next(b']');
                }
                Ok(Value::Array(list))
            }),
            (ValueKind::SchemaOrStrings, b'[') => self.list(&STRINGS, "[]string", depth),
            (ValueKind::SchemaOrBool, _) => Err(DecodeError::Type("boolean or JSON schema expected".to_owned())),
            _ => {
                self.text.skip();
                Ok(Value::Null)
            }
        }
    }

    /// Go hands the text to another decoder here, one that reports nothing.
    fn quietly<T>(&mut self, read: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        let report = std::mem::replace(&mut self.report, false);
        let result = read(self);
        self.report = report;
        result
    }

    fn any(&mut self, depth: usize) -> Outcome<Value> {
        Ok(match self.text.peek() {
            b'{' => {
                let depth = self.deeper(depth)?;
                self.entries(Map::new(), |reader| reader.any(depth))?
            }
            b'[' => {
                let depth = self.deeper(depth)?;
                let mut list = Vec::new();
                let mut more = self.text.open(b']');
                while more {
                    self.path.push(Segment::Index(list.len()));
                    list.push(self.any(depth)?);
                    self.path.pop();
                    more = self.text.next(b']');
                }
                Value::Array(list)
            }
            b'"' => Value::String(self.text.string().into_owned()),
            b't' => {
                self.text.skip();
                Value::Bool(true)
            }
            b'f' => {
                self.text.skip();
                Value::Bool(false)
            }
            b'n' => {
                self.text.skip();
                Value::Null
            }
            _ => {
                let token = self.text.token();
                let number =
                    token.parse::<i64>().ok().map(Number::from).or_else(|| token.parse().ok().and_then(number));
                Value::Number(number.ok_or_else(|| self.wrong(&format!("number {token}"), "float64"))?)
            }
        })
    }
}
