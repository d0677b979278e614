//! Checks of literals at compile time: durations and timestamps that cannot be parsed, patterns, format strings, lists
//! of mixed types.

use super::super::library;
use super::super::node::{ExprKind, Node};
use super::super::types::Type;
use super::super::value::Value;
use super::Problems;

/// Judges a whole expression whose types are known.
pub(super) fn judge(root: &mut Node, problems: &mut Problems) {
    visit(root, false, problems);
}

/// `mixed`: it is given to `format`, which takes lists of anything.
fn visit(node: &mut Node, mixed: bool, problems: &mut Problems) {
    let mut below = mixed;
    match &node.kind {
        ExprKind::Call { name, member, arguments, .. } => {
            below |= &**name == "format";
            call(node, name, &arguments[usize::from(*member)..], problems);
        }
        ExprKind::List(items) if !mixed => {
            let types = items.iter().map(|(item, optional)| (item.id, given(&item.of, *optional)));
            if let Some((id, wanted, found)) = first_odd(types) {
                tell(problems, id, &wanted, &found);
            }
        }
        ExprKind::Map(entries) if !mixed => {
            // Each odd one is told of, unlike in lists.
            let mut wanted: Option<(Type, Type)> = None;
            for (key, value, optional) in entries {
                let found = given(&value.of, *optional);
                let Some((keys, values)) = &wanted else {
                    wanted = Some((key.of.clone(), found));
                    continue;
                };
                if !keys.is(&key.of) {
                    tell(problems, key.id, keys, &key.of);
                }
                if !values.is(&found) {
                    tell(problems, value.id, values, &found);
                }
            }
        }
        _ => {}
    }
    node.each_part(&mut |part| visit(part, below, problems));
}

fn tell(problems: &mut Problems, id: u64, wanted: &Type, found: &Type) {
    problems.add(id, format!("expected type '{wanted}' but found '{found}'"));
}

fn given(of: &Type, optional: bool) -> Type {
    if optional { super::inner(of).0 } else { of.clone() }
}

fn first_odd(mut types: impl Iterator<Item = (u64, Type)>) -> Option<(u64, Type, Type)> {
    let (_, wanted) = types.next()?;
    types.find(|(_, found)| !wanted.is(found)).map(|(id, found)| (id, wanted, found))
}

fn call(node: &Node, name: &str, arguments: &[Node], problems: &mut Problems) {
    let first = arguments.first().filter(|first| matches!(first.kind, ExprKind::Literal(_)) && !first.is_type());
    let bad = match (name, first.map(|first| &first.kind)) {
        ("duration", Some(ExprKind::Literal(value))) => match value {
            Value::String(text) => library::duration(text).is_none(),
            _ => true,
        },
        ("timestamp", Some(ExprKind::Literal(value))) => match value {
            Value::String(text) => library::timestamp(text).is_none(),
            Value::Int(seconds) => library::at(*seconds).is_none(),
            _ => true,
        },
        ("matches", Some(ExprKind::Literal(Value::String(text)))) => crate::patterns::compile(text).is_err(),
        ("format", _) => return format(node, problems),
        _ => false,
    };
    if let Some(first) = first.filter(|_| bad) {
        problems.add(first.id, format!("invalid {name} argument"));
    }
}

impl Node {
    /// Reports whether the expression names a type.
    fn is_type(&self) -> bool {
        matches!(self.of, Type::Type(_))
    }
}

/// Checks that the arguments of a literal format string fit its clauses.
fn format(node: &Node, problems: &mut Problems) {
    let ExprKind::Call { arguments, .. } = &node.kind else { return };
    let [template, list] = arguments.as_slice() else { return };
    let (Some(template), ExprKind::List(items)) = (template.text(), &list.kind) else { return };
    let types: Vec<Option<String>> = items.iter().map(|(item, _)| item.of.at_runtime()).collect();
    let mut at = None;
    let wanted = library::pieces(template, types.len(), |piece| {
        let library::Piece::Value(index, letter, _) = piece else { return Ok(()) };
        let wrong = types.get(index).and_then(Option::as_deref).and_then(|of| library::unfit(letter, of));
        wrong.map_or(Ok(()), |why| {
            at = items.get(index).map(|(item, _)| item.id);
            Err(why)
        })
    });
    match wanted {
        Err(why) => problems.add(at.unwrap_or(node.id), why.to_string()),
        Ok(wanted) if wanted < types.len() => {
            let given = types.len();
            let why = format!("too many arguments supplied to string.format (expected {wanted}, got {given})");
            problems.add(node.id, why);
        }
        Ok(_) => {}
    }
}
