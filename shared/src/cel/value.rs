//! Values of expressions. Trees are looked at where they are: nothing is copied before an expression asks for it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value as Tree;

pub use super::opaque::Opaque;
use super::{Error, Fuel, printed, words};

/// A text: a part of a tree, or made by an expression.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// Part of a tree.
    Borrowed(&'a str),
    /// Made.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

/// Key of a map.
#[derive(Clone, Debug)]
pub enum Key<'a> {
    /// Truth.
    Bool(bool),
    /// A whole number, whatever its type; those above `i64` are unsigned.
    Int(i128),
    /// A fraction that is no whole number, by its bits.
    Double(u64),
    /// Text.
    String(Text<'a>),
    /// The name of a type.
    Type(Text<'a>),
    /// `null`.
    Null,
}

impl Key<'_> {
    fn rank(&self) -> u8 {
        match self {
            Self::Bool(_) => 0,
            Self::Int(_) => 1,
            Self::String(_) => 2,
            Self::Double(_) => 3,
            Self::Type(_) => 4,
            Self::Null => 5,
        }
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) | (Self::Type(a), Self::Type(b)) => (**a).cmp(&**b),
            (Self::Double(a), Self::Double(b)) => a.cmp(b),
            (a, b) => a.rank().cmp(&b.rank()),
        }
    }
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key<'_> {}

impl<'a> Key<'a> {
    /// The key a value is.
    #[must_use]
    pub fn of(value: &Value<'a>) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Bool(*b)),
            Value::Int(n) => Some(Self::Int((*n).into())),
            Value::UInt(n) => Some(Self::Int((*n).into())),
            #[expect(clippy::cast_possible_truncation, reason = "the guard holds the range")]
            Value::Double(n) if n.fract() == 0.0 && n.abs() < 9.3e18 => Some(Self::Int(*n as i128)),
            Value::Double(n) => Some(Self::Double(n.to_bits())),
            Value::String(s) => Some(Self::String(s.clone())),
            Value::Type(name) => Some(Self::Type(name.clone())),
            Value::Null => Some(Self::Null),
            _ => None,
        }
    }

    pub(super) fn value(&self) -> Value<'a> {
        match self {
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(n) => i64::try_from(*n).map_or_else(|_| Value::UInt(u64::try_from(*n).unwrap_or(0)), Value::Int),
            Self::Double(bits) => Value::Double(f64::from_bits(*bits)),
            Self::String(s) => Value::String(s.clone()),
            Self::Type(name) => Value::Type(name.clone()),
            Self::Null => Value::Null,
        }
    }
}

/// A map.
#[derive(Clone, Debug, Default)]
pub struct Map<'a> {
    /// Entries.
    pub entries: BTreeMap<Key<'a>, Value<'a>>,
    /// Value for every other key, if any.
    pub otherwise: Option<Value<'a>>,
}

/// An object an expression made: `Object{...}`, `JSONPatch{...}`.
#[derive(Clone, Debug)]
pub struct Made<'a> {
    /// The name of its type.
    pub name: Arc<str>,
    /// Fields of the object.
    pub fields: BTreeMap<String, Value<'a>>,
}

/// A value.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// Truth.
    Bool(bool),
    /// Whole number.
    Int(i64),
    /// Whole number without sign.
    UInt(u64),
    /// Fraction.
    Double(f64),
    /// Text.
    String(Text<'a>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// Moment, in UTC.
    Timestamp(jiff::civil::DateTime),
    /// Span, in nanoseconds.
    Duration(i64),
    /// List.
    List(Arc<Vec<Value<'a>>>),
    /// Map.
    Map(Arc<Map<'a>>),
    /// A list or map that is part of a tree.
    Tree(&'a Tree),
    /// An object an expression made.
    Made(Arc<Made<'a>>),
    /// The name of a type.
    Type(Text<'a>),
    /// A value that may be missing.
    Optional(Option<Arc<Value<'a>>>),
    /// Value of an opaque type.
    Opaque(Arc<dyn Opaque>),
}

/// Result of an evaluation.
pub type Answer<'a> = Result<Value<'a>, Error>;

impl<'a> Value<'a> {
    /// A tree as expressions see it: whole numbers are `int`.
    #[must_use]
    pub fn of(tree: &'a Tree) -> Self {
        match tree {
            Tree::Null => Self::Null,
            Tree::Bool(b) => Self::Bool(*b),
            Tree::Number(n) => match n.as_i64() {
                Some(i) => Self::Int(i),
                None => Self::Double(n.as_f64().unwrap_or(f64::NAN)),
            },
            Tree::String(s) => Self::String(Text::Borrowed(s)),
            Tree::Array(_) | Tree::Object(_) => Self::Tree(tree),
        }
    }

    /// A text.
    #[must_use]
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Shared(text.into()))
    }

    /// A list.
    #[must_use]
    pub fn list(items: impl IntoIterator<Item = Value<'a>>) -> Self {
        Self::List(Arc::new(items.into_iter().collect()))
    }

    /// A map with text keys.
    #[must_use]
    pub fn map(entries: impl IntoIterator<Item = (Text<'a>, Value<'a>)>) -> Self {
        let entries = entries.into_iter().map(|(k, v)| (Key::String(k), v)).collect();
        Self::Map(Arc::new(Map { entries, otherwise: None }))
    }

    /// A value that is there.
    #[must_use]
    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// Wraps a value of an opaque type.
    pub fn opaque(value: impl Opaque) -> Self {
        Self::Opaque(Arc::new(value))
    }

    /// Looks inside.
    #[must_use]
    pub fn inside<T: 'static>(&self) -> Option<&T> {
        match self {
            Self::Opaque(o) => o.any().downcast_ref(),
            _ => None,
        }
    }

    /// The name of its type, as `type()` tells it.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::UInt(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) | Self::Tree(Tree::Array(_)) => "list",
            Self::Map(_) | Self::Tree(_) => "map",
            Self::Made(made) => &made.name,
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Opaque(o) => o.type_name(),
        }
    }

    /// Size of the value in characters, bytes, elements or entries; `None` for scalars.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        let n = match self {
            Self::String(s) => s.chars().count(),
            Self::Bytes(b) => b.len(),
            Self::List(l) => l.len(),
            Self::Map(m) => m.entries.len(),
            Self::Tree(Tree::Array(l)) => l.len(),
            Self::Tree(Tree::Object(m)) => m.len(),
            Self::Opaque(o) => return o.size(),
            _ => return None,
        };
        u64::try_from(n).ok()
    }

    /// The elements of a list.
    #[must_use]
    pub fn items(&self) -> Option<Arc<Vec<Value<'a>>>> {
        match self {
            Self::List(l) => Some(l.clone()),
            Self::Tree(Tree::Array(l)) => Some(Arc::new(l.iter().map(Value::of).collect())),
            _ => None,
        }
    }

    /// An element of a list.
    pub(super) fn element(&self, place: usize) -> Option<Value<'a>> {
        match self {
            Self::List(l) => l.get(place).cloned(),
            Self::Tree(Tree::Array(l)) => l.get(place).map(Self::of),
            _ => None,
        }
    }

    /// The first entry of a map.
    pub(super) fn first_entry(&self) -> Option<(Value<'a>, Value<'a>)> {
        match self {
            Self::Map(m) => m.entries.first_key_value().map(|(k, v)| (k.value(), v.clone())),
            Self::Tree(Tree::Object(m)) => m.iter().next().map(|(k, v)| (Self::String(Text::Borrowed(k)), Self::of(v))),
            _ => None,
        }
    }

    /// The entries of a map.
    #[must_use]
    pub fn entries(&self) -> Option<Vec<(Value<'a>, Value<'a>)>> {
        match self {
            Self::Map(m) => Some(m.entries.iter().map(|(k, v)| (k.value(), v.clone())).collect()),
            Self::Tree(Tree::Object(m)) => {
                Some(m.iter().map(|(k, v)| (Self::String(Text::Borrowed(k)), Self::of(v))).collect())
            }
            _ => None,
        }
    }

    /// Returns the value of a field or entry by name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        match self {
            Self::Tree(tree) => tree.get(name).map(Value::of),
            // A borrowed key cannot be looked up by a shorter borrow, so the order is spelled out.
            Self::Map(m) => {
                let get = |name: &str| m.entries.get(&Key::String(Text::Shared(name.into())));
                get(name).or_else(|| get(&words::kept(name)?)).or(m.otherwise.as_ref()).cloned()
            }
            Self::Made(made) => made.fields.get(name).cloned(),
            _ => None,
        }
    }

    /// Returns the element or entry at an index, or the error.
    pub fn at(&self, index: &Value<'a>) -> Answer<'a> {
        let out = |n: &dyn std::fmt::Display| Error::new(format!("index out of bounds: {n}"));
        let place = |len: usize| match Key::of(index) {
            Some(Key::Int(n)) => usize::try_from(n).ok().filter(|i| *i < len).ok_or_else(|| out(&n)),
            _ => Err(Error::overload()),
        };
        match self {
            Self::List(l) => Ok(l[place(l.len())?].clone()),
            Self::Tree(Tree::Array(l)) => Ok(Value::of(&l[place(l.len())?])),
            Self::Tree(Tree::Object(m)) => match index {
                Value::String(s) => m.get(&**s).map(Value::of).ok_or_else(|| Error::no_key(s)),
                _ => Err(Error::no_key(&index.shown())),
            },
            Self::Map(m) => {
                let found = Key::of(index).and_then(|k| m.entries.get(&k).or(m.otherwise.as_ref()).cloned());
                found.ok_or_else(|| Error::no_key(&index.shown()))
            }
            Self::Made(made) => match index {
                Value::String(s) => made.fields.get(&**s).cloned().ok_or_else(|| Error::no_key(s)),
                _ => Err(Error::overload()),
            },
            _ => Err(Error::overload()),
        }
    }

    /// A scalar as messages show it.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::String(s) => s.to_string(),
            Self::Int(n) => n.to_string(),
            Self::UInt(n) => n.to_string(),
            Self::Double(n) => n.to_string(),
            Self::Bool(b) => b.to_string(),
            Self::Null => "null".to_owned(),
            other => other.type_name().to_owned(),
        }
    }

    /// Compares two values. Those of different types differ; numbers compare by value.
    pub fn equals(&self, other: &Value<'a>, fuel: &mut Fuel) -> Result<bool, Error> {
        fuel.burn(1)?;
        Ok(match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::String(a), Self::String(b)) | (Self::Type(a), Self::Type(b)) => **a == **b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Opaque(a), Self::Opaque(b)) => a.equals(b.as_ref()),
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (None, None) => true,
                (Some(a), Some(b)) => a.equals(b, fuel)?,
                _ => false,
            },
            (Self::Tree(a), Self::Tree(b)) if std::ptr::eq(*a, *b) => true,
            (Self::Made(a), Self::Made(b)) => {
                if a.name != b.name || a.fields.len() != b.fields.len() {
                    return Ok(false);
                }
                for ((k, v), (l, w)) in a.fields.iter().zip(&b.fields) {
                    if k != l || !v.equals(w, fuel)? {
                        return Ok(false);
                    }
                }
                true
            }
            (a, b) => match (a.number(), b.number()) {
                (Some(a), Some(b)) => a.partial_cmp(&b) == Some(Ordering::Equal),
                (None, None) => return a.same_parts(b, fuel),
                _ => false,
            },
        })
    }

    fn same_parts(&self, other: &Value<'a>, fuel: &mut Fuel) -> Result<bool, Error> {
        if self.size() != other.size() || self.size().is_none() {
            return Ok(false);
        }
        fuel.burn(self.size().unwrap_or(0))?;
        if let (Some(a), Some(b)) = (self.items(), other.items()) {
            for (x, y) in a.iter().zip(b.iter()) {
                if !x.equals(y, fuel)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let Some(entries) = self.entries() else { return Ok(false) };
        if other.items().is_some() {
            return Ok(false);
        }
        for (key, value) in entries {
            match other.at(&key) {
                Ok(found) if value.equals(&found, fuel)? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn number(&self) -> Option<Number> {
        match self {
            Self::Int(n) => Some(Number::Whole((*n).into())),
            Self::UInt(n) => Some(Number::Whole((*n).into())),
            Self::Double(n) => Some(Number::Fraction(*n)),
            _ => None,
        }
    }

    /// The order of two values of types that have one.
    #[must_use]
    pub fn order(&self, other: &Value<'a>) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::String(a), Self::String(b)) => Some((**a).cmp(&**b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (a, b) => a.number()?.partial_cmp(&b.number()?),
        }
    }

    /// Converts to JSON; an error for values without a JSON form.
    pub fn tree(&self, fuel: &mut Fuel) -> Result<Tree, Error> {
        fuel.burn(1)?;
        Ok(match self {
            Self::Null | Self::Optional(None) => Tree::Null,
            Self::Bool(b) => Tree::Bool(*b),
            Self::Int(n) => Tree::from(*n),
            Self::UInt(n) => Tree::from(*n),
            Self::Double(n) => Tree::from(*n),
            Self::String(s) => {
                fuel.burn(s.len() as u64 / 16)?;
                Tree::from(&**s)
            }
            Self::Bytes(b) => Tree::from(printed::base64(b)),
            Self::Timestamp(t) => Tree::from(printed::print_time(t)),
            Self::Duration(n) => Tree::from(printed::print_span(*n)),
            Self::Tree(tree) => {
                fuel.burn(weight(tree))?;
                (*tree).clone()
            }
            Self::List(items) => Tree::Array(items.iter().map(|v| v.tree(fuel)).collect::<Result<_, _>>()?),
            Self::Map(m) => {
                let mut out = serde_json::Map::new();
                for (k, v) in &m.entries {
                    out.insert(k.value().shown(), v.tree(fuel)?);
                }
                Tree::Object(out)
            }
            Self::Made(made) => {
                let mut out = serde_json::Map::new();
                for (k, v) in &made.fields {
                    out.insert(k.clone(), v.tree(fuel)?);
                }
                Tree::Object(out)
            }
            Self::Optional(Some(v)) => v.tree(fuel)?,
            Self::Type(_) => return Err(Error::new("type conversion not supported for 'type'")),
            Self::Opaque(_) => {
                let name = self.type_name();
                let short = name.rsplit_once('.').map_or(name, |(_, short)| short);
                return Err(Error::new(format!("type conversion error from '{short}' to '*structpb.Value'")));
            }
        })
    }
}

/// Number of values in a JSON tree.
fn weight(tree: &Tree) -> u64 {
    match tree {
        Tree::Array(l) => 1 + l.iter().map(weight).sum::<u64>(),
        Tree::Object(m) => 1 + m.values().map(weight).sum::<u64>(),
        _ => 1,
    }
}

/// Numbers of all types, compared by what they count.
#[derive(PartialEq)]
enum Number {
    Whole(i128),
    Fraction(f64),
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        #[expect(clippy::cast_precision_loss, reason = "the fraction is shown and compared as a float")]
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(b)),
            (Self::Fraction(a), Self::Fraction(b)) => a.partial_cmp(b),
            (Self::Whole(a), Self::Fraction(b)) => (*a as f64).partial_cmp(b),
            (Self::Fraction(a), Self::Whole(b)) => a.partial_cmp(&(*b as f64)),
        }
    }
}
