//! A function of expressions: its row, and the arguments that it is called with.

use std::sync::Arc;

use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::tools::Tools;
use crate::cel::types::Type;
use crate::cel::value::{Answer, Value};

/// Arguments of a function; a receiver comes first.
pub(in crate::cel) struct Args<'r, 'a> {
    pub(in crate::cel) values: Vec<Value<'a>>,
    /// The regular expression, when it was known beforehand.
    pub(in crate::cel) pattern: Option<&'r ::regex::Regex>,
    pub(in crate::cel) tools: &'r mut Tools,
}

/// Implementation of a function.
pub(in crate::cel) type Run = for<'r, 'a> fn(&mut Args<'r, 'a>) -> Answer<'a>;

/// Environment in which a function is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Everywhere,
    /// In mutations.
    Patches,
}

/// A function.
#[derive(Debug)]
pub(in crate::cel) struct Entry {
    pub(in crate::cel) name: &'static str,
    pub(super) member: bool,
    pub(super) arguments: &'static str,
    pub(super) result: &'static str,
    pub(in crate::cel) cost: Cost,
    pub(in crate::cel) run: Run,
    pub(super) known: Where,
}

pub(super) const fn function(
    name: &'static str,
    arguments: &'static str,
    result: &'static str,
    cost: Cost,
    run: Run,
) -> Entry {
    Entry { name, member: false, arguments, result, cost, run, known: Where::Everywhere }
}

pub(super) const fn method(
    name: &'static str,
    arguments: &'static str,
    result: &'static str,
    cost: Cost,
    run: Run,
) -> Entry {
    Entry { name, member: true, arguments, result, cost, run, known: Where::Everywhere }
}

/// Cost of most functions.
pub(super) const ONE: Cost = Cost::Fixed(1);

impl Entry {
    /// The types it takes.
    pub(in crate::cel) fn arguments(&self) -> Vec<Type> {
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
    pub(in crate::cel) fn result(&self) -> Type {
        Type::declared(self.result)
    }
}

impl<'a> Args<'_, 'a> {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get(&self, i: usize) -> Result<&Value<'a>, Error> {
        self.values.get(i).ok_or_else(Error::overload)
    }

    /// Moves a value out.
    pub(super) fn take(&mut self, i: usize) -> Value<'a> {
        self.values.get_mut(i).map_or(Value::Null, |v| std::mem::replace(v, Value::Null))
    }

    pub(super) fn text(&self, i: usize) -> Result<&str, Error> {
        match self.get(i)? {
            Value::String(s) => Ok(s),
            _ => Err(Error::overload()),
        }
    }

    pub(super) fn int(&self, i: usize) -> Result<i64, Error> {
        match self.get(i)? {
            Value::Int(n) => Ok(*n),
            _ => Err(Error::overload()),
        }
    }

    pub(super) fn list(&mut self, i: usize) -> Result<Arc<Vec<Value<'a>>>, Error> {
        // A list that is part of a tree is made into values, all of it.
        if let Value::Tree(serde_json::Value::Array(items)) = self.get(i)? {
            self.tools.fuel.burn(items.len() as u64)?;
        }
        self.get(i)?.items().ok_or_else(Error::overload)
    }

    pub(super) fn inside<T: 'static>(&self, i: usize) -> Result<&T, Error> {
        self.get(i)?.inside().ok_or_else(Error::overload)
    }
}

pub(super) fn bool<'a>(b: bool) -> Answer<'a> {
    Ok(Value::Bool(b))
}

pub(super) fn int<'a>(n: i64) -> Answer<'a> {
    Ok(Value::Int(n))
}

pub(super) fn text<'a>(text: impl Into<Arc<str>>) -> Answer<'a> {
    Ok(Value::text(text))
}
