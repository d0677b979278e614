//! Variables and what is selected of them. A chain of selections is followed in one go: where one of them may be missing,
//! all behind it may, and what the choice of two is selected of is selected of the one that was chosen.

use std::sync::Arc;

use serde_json::Value as Tree;

use super::Error;
use super::dispatch;
use super::eval::{Run, SELECT, unless_cancelled};
use super::node::{ExprKind, Node};
use super::value::{Answer, Key, Value};

/// Cost of resolving a chain beside its links: that of the chosen branch, when it starts with a conditional.
pub(super) fn cost_of(node: &Node) -> u64 {
    match &node.kind {
        ExprKind::Select { operand, test: false, .. }
        | ExprKind::OptionalSelect { operand, .. }
        | ExprKind::Index { operand, .. } => cost_of(operand),
        ExprKind::Condition(_) | ExprKind::Select { test: true, .. } => 0,
        _ => SELECT,
    }
}

impl<'n, 'a> Run<'_, 'n, 'a> {
    /// Follows a chain, without what it costs as a whole.
    pub(super) fn path(&mut self, node: &'n Node) -> Answer<'a> {
        let mut links = Vec::new();
        let found = self.follow(node, &mut links)?;
        Ok(match (&node.kind, found) {
            (ExprKind::Select { test: true, .. }, Value::Optional(there)) => Value::Bool(there.is_some()),
            (_, found) => found,
        })
    }

    fn follow(&mut self, node: &'n Node, links: &mut Vec<&'n Node>) -> Answer<'a> {
        let start = match &node.kind {
            ExprKind::Select { operand, .. }
            | ExprKind::OptionalSelect { operand, .. }
            | ExprKind::Index { operand, .. } => {
                links.push(node);
                return self.begin(operand, links);
            }
            ExprKind::Condition(parts) => {
                return match self.eval(&parts[0])? {
                    Value::Bool(true) => self.begin(&parts[1], links),
                    Value::Bool(false) => self.begin(&parts[2], links),
                    _ => Err(Error::overload()),
                };
            }
            ExprKind::Variable(name) => self.variable(name)?,
            ExprKind::Local { slot, taken, .. } => self.local(*slot, *taken)?,
            _ => self.eval(node)?,
        };
        self.links(start, links)
    }

    /// Evaluates the start of a chain.
    fn begin(&mut self, node: &'n Node, links: &mut Vec<&'n Node>) -> Answer<'a> {
        // Whether something is there is the end of a chain.
        let ends = matches!(node.kind, ExprKind::Select { test: true, .. });
        if node.is_path() && !ends {
            return self.follow(node, links);
        }
        let start = self.eval(node)?;
        self.links(start, links)
    }

    fn links(&mut self, start: Value<'a>, links: &[&'n Node]) -> Answer<'a> {
        let (mut value, mut optional) = match start {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) if !links.is_empty() => ((*inner).clone(), true),
            plain => (plain, false),
        };
        for link in links.iter().rev() {
            optional |= matches!(link.kind, ExprKind::OptionalSelect { .. } | ExprKind::Index { optional: true, .. });
            match self.link(&value, link, optional)? {
                Some(found) => value = found,
                None => return Ok(Value::Optional(None)),
            }
        }
        Ok(if optional { Value::some(value) } else { value })
    }

    /// One step; nothing where something that may be missing is.
    fn link(&mut self, of: &Value<'a>, link: &'n Node, optional: bool) -> Result<Option<Value<'a>>, Error> {
        let (found, cost) = match &link.kind {
            ExprKind::Select { field, test: true, .. } => {
                let found = look_up_field(of, field);
                self.spend(SELECT)?;
                let there = match found {
                    Ok(_) => true,
                    Err(Missing::There(_)) => false,
                    Err(Missing::Wrong(why)) => return Err(why),
                };
                return Ok(Some(Value::Bool(there)).filter(|_| there || !optional));
            }
            ExprKind::Select { field, .. } | ExprKind::OptionalSelect { field, .. } => {
                (look_up_field(of, field), SELECT)
            }
            ExprKind::Index { index, .. } => {
                let (at, cost) = self.index(index)?;
                match at {
                    Ok(at) => (look_up(of, &at), cost),
                    Err(why) => (Err(Missing::Wrong(why)), cost),
                }
            }
            _ => return Err(Error::overload()),
        };
        match found {
            Ok(found) => self.spend(cost).map(|()| Some(found)),
            Err(Missing::There(_)) if optional => Ok(None),
            Err(Missing::There(why) | Missing::Wrong(why)) => {
                if !optional {
                    self.spend(cost)?;
                }
                Err(why)
            }
        }
    }

    /// Evaluates an index; returns it with the cost of the step.
    fn index(&mut self, index: &'n Node) -> Result<(Answer<'a>, u64), Error> {
        if index.known().is_none() && index.is_path() {
            let found = unless_cancelled(self.path(index))?;
            return Ok((found.and_then(is_index), cost_of(index)));
        }
        let found = unless_cancelled(self.eval(index))?;
        Ok((found.and_then(is_index), SELECT))
    }
}

fn is_index(at: Value<'_>) -> Answer<'_> {
    match at {
        Value::String(_) | Value::Int(_) | Value::UInt(_) | Value::Double(_) | Value::Bool(_) => Ok(at),
        other => Err(Error::new(format!("invalid qualifier type: {}", dispatch::go_type(&other)))),
    }
}

/// Reasons for which a link was not resolved.
enum Missing {
    /// The key or field is absent.
    There(Error),
    /// The value has no such field or index.
    Wrong(Error),
}

fn look_up_field<'a>(of: &Value<'a>, field: &Arc<str>) -> Result<Value<'a>, Missing> {
    match of {
        Value::Map(_) | Value::Tree(Tree::Object(_)) | Value::Made(_) => {
            of.field(field).ok_or_else(|| Missing::There(Error::no_key(field)))
        }
        _ => look_up(of, &Value::text(field.clone())),
    }
}

fn look_up<'a>(of: &Value<'a>, at: &Value<'a>) -> Result<Value<'a>, Missing> {
    match of {
        Value::Map(_) | Value::Tree(Tree::Object(_)) | Value::Made(_) => {
            of.at(at).map_err(|_| Missing::There(Error::no_key(&at.shown())))
        }
        Value::List(_) | Value::Tree(Tree::Array(_)) => {
            let place = match Key::of(at) {
                Some(Key::Int(place)) => place,
                _ if matches!(at, Value::Double(_)) => {
                    return Err(Missing::Wrong(Error::new(format!("unsupported index value {} in list", at.shown()))));
                }
                _ => {
                    let of = at.type_name();
                    return Err(Missing::Wrong(Error::new(format!("unsupported index type '{of}' in list"))));
                }
            };
            let found = usize::try_from(place).ok().and_then(|place| of.element(place));
            found.ok_or_else(|| Missing::There(Error::new(format!("index out of bounds: {}", at.shown()))))
        }
        _ => Err(Missing::There(Error::no_key(&at.shown()))),
    }
}
