//! Running a checked expression. Every step is counted as upstream counts it, and the run ends when the limit is passed.
//!
//! A failure is a value like any other until somebody needs a better one: the rest of a call is evaluated, and counted,
//! after an argument has failed. What ends all is [`Error::Cancelled`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Tree;

use super::Error;
use super::dispatch;
use super::library::Args;
use super::node::{ExprKind, Fold, How, Node, OverloadCandidate};
use super::operator::Operator;
use super::program::Scope;
use super::tools::Tools;
use super::value::{Answer, Key, Made, Map, Text, Value};

/// Cost of a variable or a selection.
pub(super) const SELECT: u64 = 1;
const LIST: u64 = 10;
const MAP: u64 = 30;
const STRUCT: u64 = 40;
/// Bytes of text that a function looks at in one unit of work.
const LOOKED_AT: u64 = 64;

/// Runs; the cost is told even when there is no value.
pub(super) fn run<'a>(root: &Node, scope: &Scope<'a>, limit: u64) -> (Answer<'a>, u64) {
    let mut run = Run { scope, locals: Vec::new(), cost: 0, limit, tools: Tools::default() };
    let answer = run.eval(root);
    (answer, run.cost)
}

/// The value of a variable of a comprehension.
#[derive(Clone)]
enum Local<'n, 'a> {
    /// Not asked for yet.
    Asleep(&'n Node),
    Awake(Answer<'a>),
}

pub(super) struct Run<'s, 'n, 'a> {
    scope: &'s Scope<'a>,
    locals: Vec<Local<'n, 'a>>,
    cost: u64,
    limit: u64,
    pub(super) tools: Tools,
}

/// Passes on that all has ended.
pub(super) fn unless_cancelled<'a>(answer: Answer<'a>) -> Result<Answer<'a>, Error> {
    match answer {
        Err(Error::Cancelled) => Err(Error::Cancelled),
        other => Ok(other),
    }
}

impl<'n, 'a> Run<'_, 'n, 'a> {
    pub(super) fn spend(&mut self, cost: u64) -> Result<(), Error> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Error::Cancelled) } else { Ok(()) }
    }

    pub(super) fn eval(&mut self, node: &'n Node) -> Answer<'a> {
        match &node.kind {
            ExprKind::Literal(value) | ExprKind::Constant { value, .. } => Ok(value.clone()),
            ExprKind::Variable(_)
            | ExprKind::Local { .. }
            | ExprKind::Select { .. }
            | ExprKind::OptionalSelect { .. }
            | ExprKind::Index { .. }
            | ExprKind::Condition(_) => {
                let found = unless_cancelled(self.path(node))?;
                self.spend(super::paths::cost_of(node))?;
                found
            }
            ExprKind::And(parts) => self.logic(parts, false),
            ExprKind::Or(parts) => self.logic(parts, true),
            ExprKind::NotStrictlyFalse(inner) => {
                let found = unless_cancelled(self.eval(inner))?;
                self.spend(1)?;
                Ok(Value::Bool(!matches!(found, Ok(Value::Bool(false)))))
            }
            ExprKind::Call { name, candidates, arguments, pattern, operator, how, .. } => match how {
                How::Otherwise => self.otherwise(name, arguments),
                _ => self.call((name, *operator), candidates, arguments, (pattern.as_ref(), *how)),
            },
            ExprKind::List(items) => {
                let made = unless_cancelled(self.list(items))?;
                self.spend(LIST)?;
                made
            }
            ExprKind::Map(entries) => {
                let made = unless_cancelled(self.map(entries))?;
                self.spend(MAP)?;
                made
            }
            ExprKind::Struct { name, fields } => {
                let made = unless_cancelled(self.made(name, fields))?;
                self.spend(STRUCT)?;
                made
            }
            ExprKind::Fold(fold) => self.fold(fold),
        }
    }

    pub(super) fn variable(&self, name: &str) -> Answer<'a> {
        self.scope.get(name)
    }

    /// A variable of a comprehension.
    pub(super) fn local(&mut self, slot: usize, taken: bool) -> Answer<'a> {
        if let Local::Asleep(init) = self.locals[slot] {
            let found = unless_cancelled(self.eval(init))?;
            self.locals[slot] = Local::Awake(found);
        }
        let kept = &mut self.locals[slot];
        let found = if taken { std::mem::replace(kept, Local::Awake(Ok(Value::Null))) } else { kept.clone() };
        match found {
            Local::Awake(found) => found,
            Local::Asleep(_) => Err(Error::overload()),
        }
    }

    /// `&&` and `||`: one side can be enough, and then what is wrong with the other does not matter.
    fn logic(&mut self, parts: &'n [Node; 2], enough: bool) -> Answer<'a> {
        let mut wrong = None;
        for part in parts {
            match self.eval(part) {
                Ok(Value::Bool(b)) if b == enough => return Ok(Value::Bool(enough)),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Ok(Value::Bool(_)) => {}
                Ok(_) => wrong = wrong.or(Some(Error::overload())),
                Err(why) => wrong = wrong.or(Some(why)),
            }
        }
        wrong.map_or(Ok(Value::Bool(!enough)), Err)
    }

    /// `or` and `orValue`.
    fn otherwise(&mut self, name: &str, arguments: &'n [Node]) -> Answer<'a> {
        let [first, second] = arguments else { return Err(Error::overload()) };
        match self.eval(first)? {
            Value::Optional(None) => self.eval(second),
            Value::Optional(Some(value)) if name == "orValue" => Ok((*value).clone()),
            other => Ok(other),
        }
    }

    fn call(
        &mut self,
        (name, operator): (&str, Option<&Operator>),
        candidates: &'n [OverloadCandidate],
        arguments: &'n [Node],
        (pattern, how): (Option<&'n regex::Regex>, How),
    ) -> Answer<'a> {
        let (mut values, mut wrong) = (Vec::with_capacity(arguments.len()), None);
        let in_turn = arguments.len() > 2
            || pattern.is_some()
            || name == "format"
            || (candidates.len() > 1 && operator.is_none());
        for (i, argument) in arguments.iter().enumerate() {
            match unless_cancelled(self.eval(argument))? {
                Ok(value) => values.push(value),
                // What others stand behind is not called at all, and nothing is counted.
                Err(why) if in_turn && i + 1 < arguments.len() => return Err(why),
                Err(why) => {
                    wrong = wrong.or(Some(why));
                    values.push(Value::Null);
                }
            }
        }
        if how == How::Among {
            return wrong
                .map_or_else(|| (candidates[0].entry.run)(&mut Args { values, pattern, tools: &mut self.tools }), Err);
        }
        let single = candidates.len() == 1;
        // Looking at a long text takes long, whatever it costs.
        let bytes = values.iter().map(|v| if let Value::String(s) = v { s.len() as u64 } else { 0 }).sum::<u64>();
        self.tools.fuel.burn(bytes / LOOKED_AT)?;
        let cost = candidates[0].entry.cost;
        let before = cost.before(&values, single, &mut self.tools.fuel)?;
        self.spend(before)?;
        if let Some(why) = wrong {
            self.spend(cost.after(None))?;
            return Err(why);
        }
        let tools = &mut self.tools;
        let answer = match dispatch::choose((name, operator), candidates, &values, pattern.is_some()) {
            Ok(entry) => unless_cancelled((entry.run)(&mut Args { values, pattern, tools }))?,
            Err(why) => Err(why),
        };
        self.spend(cost.after(answer.as_ref().ok()))?;
        answer
    }

    fn list(&mut self, items: &'n [(Node, bool)]) -> Answer<'a> {
        let mut out = Vec::with_capacity(items.len());
        for (item, optional) in items {
            let value = self.eval(item)?;
            if *optional {
                out.extend(unwrapped(&value, None)?);
            } else {
                out.push(value);
            }
        }
        Ok(Value::List(Arc::new(out)))
    }

    fn map(&mut self, entries: &'n [(Node, Node, bool)]) -> Answer<'a> {
        let mut out = BTreeMap::new();
        for (key, value, optional) in entries {
            let named = self.eval(key)?;
            let mut value = self.eval(value)?;
            if *optional {
                match unwrapped(&value, Some(&named.shown()))? {
                    Some(inner) => value = inner,
                    None => continue,
                }
            }
            let key =
                Key::of(&named).ok_or_else(|| Error::new(format!("unsupported key type: {}", named.type_name())))?;
            out.insert(key, value);
        }
        Ok(Value::Map(Arc::new(Map { entries: out, otherwise: None })))
    }

    fn made(&mut self, name: &Arc<str>, fields: &'n [(Arc<str>, Node, bool)]) -> Answer<'a> {
        let mut out = BTreeMap::new();
        for (field, value, optional) in fields {
            let mut value = self.eval(value)?;
            if *optional {
                match unwrapped(&value, Some(field))? {
                    Some(inner) => value = inner,
                    None => continue,
                }
            }
            out.insert(field.to_string(), value);
        }
        Ok(Value::Made(Arc::new(Made { name: name.clone(), fields: out })))
    }

    fn fold(&mut self, fold: &'n Fold) -> Answer<'a> {
        let range = self.eval(&fold.range)?;
        let base = self.locals.len();
        // What is collected is computed when it is first asked for: perhaps never.
        self.locals.push(Local::Asleep(&fold.init));
        self.locals.resize(base + 1 + fold.variables, Local::Awake(Ok(Value::Null)));
        let done = self.rounds(fold, &range, base).and_then(|()| self.eval(&fold.result));
        self.locals.truncate(base);
        done
    }

    fn rounds(&mut self, fold: &'n Fold, range: &Value<'a>, base: usize) -> Result<(), Error> {
        // What a loop may leave early is not made into values beforehand.
        match range {
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    if !self.element(fold, i, item.clone(), base)? {
                        break;
                    }
                }
            }
            Value::Tree(Tree::Array(items)) => {
                for (i, item) in items.iter().enumerate() {
                    if !self.element(fold, i, Value::of(item), base)? {
                        break;
                    }
                }
            }
            Value::Tree(Tree::Object(entries)) => {
                for (key, value) in entries {
                    let key = Value::String(Text::Borrowed(key));
                    if !self.entry(fold, key, Value::of(value), base)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in &map.entries {
                    if !self.entry(fold, key.value(), value.clone(), base)? {
                        break;
                    }
                }
            }
            other => {
                let of = dispatch::go_type(other);
                return Err(Error::new(match fold.variables {
                    2 => format!("unsupported comprehension range type: {of}"),
                    _ => format!("got '{of}', expected iterable type"),
                }));
            }
        }
        Ok(())
    }

    fn element(&mut self, fold: &'n Fold, i: usize, item: Value<'a>, base: usize) -> Result<bool, Error> {
        if fold.variables == 2 {
            self.locals[base + 1] = Local::Awake(Ok(Value::Int(i64::try_from(i).unwrap_or(i64::MAX))));
            self.locals[base + 2] = Local::Awake(Ok(item));
        } else {
            self.locals[base + 1] = Local::Awake(Ok(item));
        }
        self.round(fold, base)
    }

    fn entry(&mut self, fold: &'n Fold, key: Value<'a>, value: Value<'a>, base: usize) -> Result<bool, Error> {
        self.locals[base + 1] = Local::Awake(Ok(key));
        if fold.variables == 2 {
            self.locals[base + 2] = Local::Awake(Ok(value));
        }
        self.round(fold, base)
    }

    /// One round; whether there is another.
    fn round(&mut self, fold: &'n Fold, base: usize) -> Result<bool, Error> {
        if let Ok(Value::Bool(false)) = unless_cancelled(self.eval(&fold.condition))? {
            return Ok(false);
        }
        let next = unless_cancelled(self.eval(&fold.step))?;
        self.locals[base] = Local::Awake(next);
        Ok(true)
    }
}

/// Value of an optional entry or element; `None` when it is absent.
fn unwrapped<'a>(value: &Value<'a>, entry: Option<&str>) -> Result<Option<Value<'a>>, Error> {
    let Value::Optional(inner) = value else {
        let (what, shown) = (entry.map_or("list element".to_owned(), |e| format!("entry '{e}'")), value.shown());
        return Err(Error::new(format!("cannot initialize optional {what} from non-optional value {shown}")));
    };
    Ok(inner.as_deref().cloned())
}
