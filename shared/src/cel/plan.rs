//! Constant folding before the first evaluation: lists and maps of constants, conversions, patterns. An error here
//! rejects the whole expression.

use super::error::{Error, PlanError};
use super::eval;
use super::limits::PER_CALL_LIMIT;
use super::node::{ExprKind, How, Node};
use super::program::Scope;
use super::types::Type;
use super::value::{Text, Value};

/// Functions that are called beforehand when their argument is known.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];
/// Functions whose first argument after the text is a pattern.
const PATTERNS: [&str; 3] = ["matches", "find", "findAll"];

/// Plans the run of an expression.
pub(super) fn plan(root: &mut Node) -> Result<(), PlanError> {
    let mut failed = None;
    root.each_part(&mut |part| {
        if failed.is_none() {
            failed = plan(part).err();
        }
    });
    match failed {
        Some(why) => Err(why),
        None => one(root),
    }
}

fn one(node: &mut Node) -> Result<(), PlanError> {
    match &mut node.kind {
        // Types have no other names than their own, and no variables.
        ExprKind::Literal(Value::Type(Text::Borrowed(name @ ("duration" | "timestamp")))) => {
            return Err(PlanError::UndefinedType(name.to_string()));
        }
        ExprKind::Local { name, .. } if matches!(node.of, Type::Type(_)) => {
            return Err(PlanError::UndefinedType(name.to_string()));
        }
        ExprKind::List(items) if items.iter().all(|(item, optional)| !optional && item.known().is_some()) => {}
        ExprKind::Map(entries)
            if entries.iter().all(|(k, v, optional)| !optional && k.known().is_some() && v.known().is_some()) => {}
        ExprKind::Call { name, arguments, .. } if CONVERSIONS.contains(&&**name) && arguments.len() == 1 => {
            if arguments[0].known().is_none() {
                return Ok(());
            }
        }
        ExprKind::Call { name, arguments, pattern, .. } if PATTERNS.contains(&&**name) => {
            if let Some(Value::String(text)) = arguments.get(1).and_then(Node::known) {
                *pattern = Some(crate::patterns::compile(text)?);
            }
            return Ok(());
        }
        ExprKind::Call { name, candidates, arguments, how, .. } if &**name == "@in" && candidates.len() == 1 => {
            let Some(list) = arguments.get(1).and_then(Node::known).and_then(Value::items) else { return Ok(()) };
            if !list.is_empty() {
                *how = if list.iter().all(is_plain) { How::Among } else { How::Plain };
                return Ok(());
            }
        }
        _ => return Ok(()),
    }
    fold(node)
}

/// Reports whether a value can be looked up in a set.
fn is_plain(value: &Value<'_>) -> bool {
    matches!(value, Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Double(_) | Value::String(_))
}

fn fold(node: &mut Node) -> Result<(), PlanError> {
    let value = match &node.kind {
        // Nothing is in a list that holds nothing, whoever asks.
        ExprKind::Call { name, .. } if &**name == "@in" => Value::Bool(false),
        _ => match eval::run(node, &Scope::default(), PER_CALL_LIMIT).0 {
            Ok(value) => value,
            // What is too much will be told when it runs.
            Err(Error::Cancelled) => return Ok(()),
            Err(why) => return Err(PlanError::Constant(why.to_string())),
        },
    };
    let (of, id) = (node.of.clone(), node.id);
    let from = std::mem::replace(node, Node { kind: ExprKind::Literal(Value::Null), of, id });
    node.kind = ExprKind::Constant { value, from: Box::new(from) };
    Ok(())
}
