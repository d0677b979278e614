//! Running a checked expression. Every step is counted as upstream counts it, and the run ends when the limit is passed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Tree;

use super::library::Args;
use super::node::{Candidate, Fold, Kind, Node};
use super::types::Type;
use super::value::{Answer, Key, Made, Map, Text, Value};
use super::{Error, Fuel, Scope};

/// What a variable or a selection costs.
const SELECT: u64 = 1;
const LIST: u64 = 10;
const MAP: u64 = 30;
const STRUCT: u64 = 40;
/// Bytes of text that a function looks at in one unit of work.
const LOOKED_AT: u64 = 64;
/// Regular expressions that one run may compile: those the checker has not seen.
pub(super) const MAX_PATTERNS: u32 = 1_000;

/// Runs; the cost is told even when there is no value.
pub(super) fn run<'a>(root: &Node, scope: &Scope<'a>, limit: u64) -> (Answer<'a>, u64) {
    let mut run = Run { scope, locals: Vec::new(), cost: 0, limit, tools: Tools::default() };
    let answer = run.eval(root);
    (answer, run.cost)
}

/// What functions may use beside their arguments.
#[derive(Debug, Default)]
pub(super) struct Tools {
    pub(super) fuel: Fuel,
    patterns: u32,
    last: Option<(String, regex::Regex)>,
}

impl Tools {
    /// A regular expression that is made while the expression runs.
    pub(super) fn pattern(&mut self, text: &str) -> Result<regex::Regex, Error> {
        if let Some((_, known)) = self.last.as_ref().filter(|(t, _)| t == text) {
            return Ok(known.clone());
        }
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return Err(Error::Cancelled);
        }
        let made = super::library::small_pattern(text).map_err(Error::new)?;
        self.last = Some((text.to_owned(), made.clone()));
        Ok(made)
    }
}

struct Run<'s, 'a> {
    scope: &'s Scope<'a>,
    locals: Vec<Answer<'a>>,
    cost: u64,
    limit: u64,
    tools: Tools,
}

impl<'a> Run<'_, 'a> {
    fn spend(&mut self, cost: u64) -> Result<(), Error> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn eval(&mut self, node: &Node) -> Answer<'a> {
        match &node.kind {
            Kind::Literal(value) => Ok(value.clone()),
            Kind::Variable(name) => {
                self.spend(SELECT)?;
                self.scope.get(name)
            }
            Kind::Local { slot, taken, .. } => {
                self.spend(SELECT)?;
                if *taken {
                    return std::mem::replace(&mut self.locals[*slot], Ok(Value::Null));
                }
                self.locals[*slot].clone()
            }
            Kind::Select { operand, field, test } => self.select(operand, field, *test),
            Kind::OptionalSelect { operand, field } => {
                let operand = self.operand(operand)?;
                self.spend(SELECT)?;
                Ok(Value::Optional(present(&operand).and_then(|v| v.field(field)).map(Arc::new)))
            }
            Kind::Index { operand, index, optional } => self.index(operand, index, *optional),
            Kind::And(parts) => self.logic(parts, false),
            Kind::Or(parts) => self.logic(parts, true),
            Kind::Condition(parts) => match self.eval(&parts[0])? {
                Value::Bool(true) => self.eval(&parts[1]),
                Value::Bool(false) => self.eval(&parts[2]),
                _ => Err(Error::overload()),
            },
            Kind::NotStrictlyFalse(inner) => {
                let found = self.eval(inner);
                self.spend(1)?;
                match found {
                    Ok(Value::Bool(false)) => Ok(Value::Bool(false)),
                    Err(Error::Cancelled) => Err(Error::Cancelled),
                    _ => Ok(Value::Bool(true)),
                }
            }
            Kind::Call { candidates, arguments, pattern } => self.call(candidates, arguments, pattern.as_ref()),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => self.made(name, fields),
            Kind::Fold(fold) => self.fold(fold),
        }
    }

    /// What a selection is made from; something that is no chain of names costs once more.
    fn operand(&mut self, node: &Node) -> Answer<'a> {
        let chain = matches!(
            node.kind,
            Kind::Variable(_)
                | Kind::Local { .. }
                | Kind::Select { test: false, .. }
                | Kind::Index { .. }
                | Kind::OptionalSelect { .. }
        );
        let found = self.eval(node)?;
        if !chain {
            self.spend(SELECT)?;
        }
        Ok(found)
    }

    fn select(&mut self, operand: &Node, field: &str, test: bool) -> Answer<'a> {
        let operand = self.operand(operand)?;
        if test {
            return match &operand {
                Value::Optional(inner) => Ok(Value::Bool(inner.as_ref().is_some_and(|v| v.field(field).is_some()))),
                Value::Map(_) | Value::Tree(Tree::Object(_)) | Value::Made(_) => {
                    Ok(Value::Bool(operand.field(field).is_some()))
                }
                _ => Err(Error::overload()),
            };
        }
        self.spend(SELECT)?;
        match &operand {
            Value::Optional(inner) => Ok(Value::Optional(inner.as_ref().and_then(|v| v.field(field)).map(Arc::new))),
            Value::Map(_) | Value::Tree(Tree::Object(_)) | Value::Made(_) => {
                operand.field(field).ok_or_else(|| Error::no_key(field))
            }
            _ => Err(Error::new(format!("no such key: {field}"))),
        }
    }

    fn index(&mut self, operand: &Node, index: &Node, optional: bool) -> Answer<'a> {
        let operand = self.operand(operand)?;
        let index = self.eval(index)?;
        self.spend(SELECT)?;
        if !optional && !matches!(operand, Value::Optional(_)) {
            return operand.at(&index);
        }
        Ok(Value::Optional(present(&operand).and_then(|v| v.at(&index).ok()).map(Arc::new)))
    }

    /// `&&` and `||`: one side can be enough, and then what is wrong with the other does not matter.
    fn logic(&mut self, parts: &[Node; 2], enough: bool) -> Answer<'a> {
        let first = match self.eval(&parts[0]) {
            Ok(Value::Bool(b)) if b == enough => return Ok(Value::Bool(enough)),
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Ok(Value::Bool(_)) => None,
            Ok(_) => Some(Error::overload()),
            Err(e) => Some(e),
        };
        match (self.eval(&parts[1]), first) {
            (Ok(Value::Bool(b)), _) if b == enough => Ok(Value::Bool(enough)),
            (Err(Error::Cancelled), _) => Err(Error::Cancelled),
            (_, Some(e)) | (Err(e), None) => Err(e),
            (Ok(Value::Bool(b)), None) => Ok(Value::Bool(b)),
            (Ok(_), None) => Err(Error::overload()),
        }
    }

    fn call(&mut self, candidates: &[Candidate], arguments: &[Node], pattern: Option<&regex::Regex>) -> Answer<'a> {
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.eval(argument)?);
        }
        let chosen = match candidates {
            [one] => one,
            many => {
                let fits = |c: &&Candidate| c.arguments.iter().zip(&values).all(|(t, v)| suits(t, v));
                many.iter().find(fits).ok_or_else(Error::overload)?
            }
        };
        let entry = chosen.entry;
        // Looking at a long text takes long, whatever it costs.
        let bytes = values.iter().map(|v| if let Value::String(s) = v { s.len() as u64 } else { 0 }).sum::<u64>();
        self.tools.fuel.burn(bytes / LOOKED_AT)?;
        let before = entry.cost.before(&values, &mut self.tools.fuel)?;
        self.spend(before)?;
        let answer = (entry.run)(&mut Args { values, pattern, tools: &mut self.tools });
        if let Ok(value) = &answer {
            self.spend(entry.cost.after(value))?;
        }
        answer
    }

    fn list(&mut self, items: &[(Node, bool)]) -> Answer<'a> {
        let mut out = Vec::with_capacity(items.len());
        for (item, optional) in items {
            let value = self.eval(item)?;
            if *optional {
                out.extend(unwrapped(&value)?);
            } else {
                out.push(value);
            }
        }
        self.spend(LIST)?;
        Ok(Value::List(Arc::new(out)))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Answer<'a> {
        let mut out = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let key = Key::of(&key).ok_or_else(|| Error::new(format!("unsupported key type: {}", key.type_name())))?;
            let mut value = self.eval(value)?;
            if *optional {
                match unwrapped(&value)? {
                    Some(inner) => value = inner,
                    None => continue,
                }
            }
            if out.contains_key(&key) {
                return Err(Error::new("Failed with repeated key"));
            }
            out.insert(key, value);
        }
        self.spend(MAP)?;
        Ok(Value::Map(Arc::new(Map { entries: out, otherwise: None })))
    }

    fn made(&mut self, name: &Arc<str>, fields: &[(Arc<str>, Node, bool)]) -> Answer<'a> {
        let mut out = BTreeMap::new();
        for (field, value, optional) in fields {
            let mut value = self.eval(value)?;
            if *optional {
                match unwrapped(&value)? {
                    Some(inner) => value = inner,
                    None => continue,
                }
            }
            out.insert(field.to_string(), value);
        }
        self.spend(STRUCT)?;
        Ok(Value::Made(Arc::new(Made { name: name.clone(), fields: out })))
    }

    fn fold(&mut self, fold: &Fold) -> Answer<'a> {
        let range = self.eval(&fold.range)?;
        let init = self.eval(&fold.init);
        if matches!(init, Err(Error::Cancelled)) {
            return Err(Error::Cancelled);
        }
        let base = self.locals.len();
        let accumulator = base + fold.variables.len();
        self.locals.resize_with(accumulator, || Ok(Value::Null));
        self.locals.push(init);
        let done = self.rounds(fold, &range, base, accumulator).and_then(|()| self.eval(&fold.result));
        self.locals.truncate(base);
        done
    }

    fn rounds(&mut self, fold: &Fold, range: &Value<'a>, base: usize, accumulator: usize) -> Result<(), Error> {
        // What a loop may leave early is not made into values beforehand.
        match range {
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    if !self.element(fold, i, item.clone(), base, accumulator)? {
                        break;
                    }
                }
            }
            Value::Tree(Tree::Array(items)) => {
                for (i, item) in items.iter().enumerate() {
                    if !self.element(fold, i, Value::of(item), base, accumulator)? {
                        break;
                    }
                }
            }
            Value::Tree(Tree::Object(entries)) => {
                for (key, value) in entries {
                    let key = Value::String(Text::Borrowed(key));
                    if !self.entry(fold, key, Value::of(value), base, accumulator)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in &map.entries {
                    if !self.entry(fold, key.value(), value.clone(), base, accumulator)? {
                        break;
                    }
                }
            }
            _ => return Err(Error::overload()),
        }
        Ok(())
    }

    fn element(
        &mut self,
        fold: &Fold,
        i: usize,
        item: Value<'a>,
        base: usize,
        accumulator: usize,
    ) -> Result<bool, Error> {
        if fold.variables.len() == 2 {
            self.locals[base] = Ok(Value::Int(i64::try_from(i).unwrap_or(i64::MAX)));
            self.locals[base + 1] = Ok(item);
        } else {
            self.locals[base] = Ok(item);
        }
        self.round(fold, accumulator)
    }

    fn entry(
        &mut self,
        fold: &Fold,
        key: Value<'a>,
        value: Value<'a>,
        base: usize,
        accumulator: usize,
    ) -> Result<bool, Error> {
        self.locals[base] = Ok(key);
        if fold.variables.len() == 2 {
            self.locals[base + 1] = Ok(value);
        }
        self.round(fold, accumulator)
    }

    /// One round; whether there is another.
    fn round(&mut self, fold: &Fold, accumulator: usize) -> Result<bool, Error> {
        match self.eval(&fold.condition) {
            Ok(Value::Bool(true)) => {}
            Ok(Value::Bool(false)) => return Ok(false),
            Ok(_) => return Err(Error::overload()),
            Err(e) => return Err(e),
        }
        let next = self.eval(&fold.step);
        if matches!(next, Err(Error::Cancelled)) {
            return Err(Error::Cancelled);
        }
        self.locals[accumulator] = next;
        Ok(true)
    }
}

/// The value inside of an optional one; a plain value is itself.
fn present<'v, 'a>(value: &'v Value<'a>) -> Option<&'v Value<'a>> {
    match value {
        Value::Optional(inner) => inner.as_deref(),
        plain => Some(plain),
    }
}

fn unwrapped<'a>(value: &Value<'a>) -> Result<Option<Value<'a>>, Error> {
    match value {
        Value::Optional(inner) => Ok(inner.as_deref().cloned()),
        other => Err(Error::new(format!(
            "cannot initialize optional entry from non-optional value of type {}",
            other.type_name()
        ))),
    }
}

/// Whether a value is of a declared type, as far as it can be told from outside.
fn suits(of: &Type, value: &Value<'_>) -> bool {
    match (of, value) {
        (Type::Dyn | Type::Open | Type::Param(_), _)
        | (Type::Null, Value::Null)
        | (Type::Bool, Value::Bool(_))
        | (Type::Int, Value::Int(_))
        | (Type::UInt, Value::UInt(_))
        | (Type::Double, Value::Double(_))
        | (Type::String, Value::String(_))
        | (Type::Bytes, Value::Bytes(_))
        | (Type::Timestamp, Value::Timestamp(_))
        | (Type::Duration, Value::Duration(_))
        | (Type::Type, Value::Type(_))
        | (Type::Optional(_), Value::Optional(_))
        | (Type::List(_), Value::List(_) | Value::Tree(Tree::Array(_)))
        | (Type::Map(_), Value::Map(_) | Value::Tree(Tree::Object(_))) => true,
        (Type::Opaque(name), Value::Opaque(o)) => o.type_name() == *name,
        _ => false,
    }
}
