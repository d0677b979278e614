//! The functions of expressions: those of the language, the community's for texts, lists and sets, and Kubernetes' own.
//!
//! A function is one row: its name, the types it takes and makes, what it costs, what it does. The checker, the evaluator
//! and the estimate all read the same row. What is of no CEL type is opaque: only these functions see inside.

mod address;
pub(super) mod authorizer;
mod convert;
pub(super) mod format;
mod lists;
mod operators;
mod optional;
mod patch;
mod print;
pub(super) mod quantity;
mod regex;
pub(super) mod semver;
mod text;
mod time;
mod url;

use std::sync::Arc;

use super::cost::Cost;
use super::eval::Tools;
use super::types::Type;
use super::value::{Answer, Value};
use super::{Error, Extras};

pub(super) use convert::base64;
pub(super) use print::{Piece, pieces, unfit};
pub(super) use regex::small_pattern;
pub(super) use time::at;
pub use time::{duration, timestamp};
pub(super) use time::{print_span, print_time};

/// Arguments of a function; a receiver comes first.
pub(super) struct Args<'r, 'a> {
    pub(super) values: Vec<Value<'a>>,
    /// The regular expression, when it was known beforehand.
    pub(super) pattern: Option<&'r ::regex::Regex>,
    pub(super) tools: &'r mut Tools,
}

/// Implementation of a function.
type Run = for<'r, 'a> fn(&mut Args<'r, 'a>) -> Answer<'a>;

/// Environment in which a function is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Everywhere,
    /// In mutations.
    Patches,
}

/// One function.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    member: bool,
    arguments: &'static str,
    result: &'static str,
    pub(super) cost: Cost,
    pub(super) run: Run,
    known: Where,
}

const fn function(name: &'static str, arguments: &'static str, result: &'static str, cost: Cost, run: Run) -> Entry {
    Entry { name, member: false, arguments, result, cost, run, known: Where::Everywhere }
}

const fn method(name: &'static str, arguments: &'static str, result: &'static str, cost: Cost, run: Run) -> Entry {
    Entry { name, member: true, arguments, result, cost, run, known: Where::Everywhere }
}

/// Cost of most functions.
const ONE: Cost = Cost::Fixed(1);

const TABLES: [&[Entry]; 13] = [
    convert::TABLE,
    text::TABLE,
    print::TABLE,
    time::TABLE,
    time::MORE,
    optional::TABLE,
    regex::TABLE,
    url::TABLE,
    quantity::TABLE,
    address::TABLE,
    semver::TABLE,
    format::TABLE,
    authorizer::TABLE,
];

/// The functions of a name.
pub(super) fn overloads(name: &str, member: bool, extras: Extras) -> impl Iterator<Item = &'static Entry> {
    let all = operators::TABLES.into_iter().chain(lists::TABLES).chain(TABLES).chain([patch::TABLE]).flatten();
    all.filter(move |e| e.name == name && e.member == member && (e.known == Where::Everywhere || extras.patch))
}

impl Entry {
    /// The types it takes.
    pub(super) fn arguments(&self) -> Vec<Type> {
        let (mut depth, mut start, mut out) = (0_u32, 0, Vec::new());
        for (i, c) in self.arguments.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                ',' if depth == 0 => {
                    out.push(Type::declared(&self.arguments[start..i]));
                    start = i + 1;
                }
                _ => {}
            }
        }
        if !self.arguments.is_empty() {
            out.push(Type::declared(&self.arguments[start..]));
        }
        out
    }

    /// The type it makes.
    pub(super) fn result(&self) -> Type {
        Type::declared(self.result)
    }
}

impl<'a> Args<'_, 'a> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn get(&self, i: usize) -> Result<&Value<'a>, Error> {
        self.values.get(i).ok_or_else(Error::overload)
    }

    /// Moves a value out.
    fn take(&mut self, i: usize) -> Value<'a> {
        self.values.get_mut(i).map_or(Value::Null, |v| std::mem::replace(v, Value::Null))
    }

    fn text(&self, i: usize) -> Result<&str, Error> {
        match self.get(i)? {
            Value::String(s) => Ok(s),
            _ => Err(Error::overload()),
        }
    }

    fn int(&self, i: usize) -> Result<i64, Error> {
        match self.get(i)? {
            Value::Int(n) => Ok(*n),
            _ => Err(Error::overload()),
        }
    }

    fn list(&mut self, i: usize) -> Result<Arc<Vec<Value<'a>>>, Error> {
        // A list that is part of a tree is made into values, all of it.
        if let Value::Tree(serde_json::Value::Array(items)) = self.get(i)? {
            self.tools.fuel.burn(items.len() as u64)?;
        }
        self.get(i)?.items().ok_or_else(Error::overload)
    }

    fn inside<T: 'static>(&self, i: usize) -> Result<&T, Error> {
        self.get(i)?.inside().ok_or_else(Error::overload)
    }
}

fn bool<'a>(b: bool) -> Answer<'a> {
    Ok(Value::Bool(b))
}

fn int<'a>(n: i64) -> Answer<'a> {
    Ok(Value::Int(n))
}

fn text<'a>(text: impl Into<Arc<str>>) -> Answer<'a> {
    Ok(Value::text(text))
}

/// Makes a type opaque: its name in expressions.
macro_rules! opaque {
    ($type:ty, $name:expr) => {
        $crate::cel::library::opaque!($type, $name, |_| None, |_| $name.to_owned());
    };
    ($type:ty, $name:expr, $size:expr, $shown:expr) => {
        impl $crate::cel::value::Opaque for $type {
            fn size(&self) -> Option<u64> {
                let size: fn(&Self) -> Option<u64> = $size;
                size(self)
            }

            fn shown(&self) -> String {
                let shown: fn(&Self) -> String = $shown;
                shown(self)
            }

            fn type_name(&self) -> &'static str {
                $name
            }

            fn equals(&self, other: &dyn $crate::cel::value::Opaque) -> bool {
                other.any().downcast_ref::<Self>().is_some_and(|o| o == self)
            }

            fn any(&self) -> &dyn std::any::Any {
                self
            }
        }
    };
}
pub(super) use opaque;
