//! A checked expression, ready to run: names are found, functions are chosen, constants are made.

use std::sync::Arc;

use super::library::Entry;
use super::operator::Operator;
use super::types::Type;
use super::value::Value;

/// A part of an expression.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: ExprKind,
    /// Type of the value that the node evaluates to.
    pub(super) of: Type,
    /// Number by which the place in the source is found.
    pub(super) id: u64,
}

/// One of the functions a call may be: which one is told by the values.
#[derive(Debug)]
pub(super) struct OverloadCandidate {
    pub(super) entry: &'static Entry,
    pub(super) arguments: Vec<Type>,
}

/// Variant of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum How {
    #[default]
    Plain,
    /// Is a value in a list that is known beforehand: nothing is counted for it.
    Among,
    /// The second argument is looked at where the first has no value: nothing is counted for it either.
    Otherwise,
}

/// Possible types of an indexed value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Indexed {
    pub(super) list: bool,
    pub(super) map: bool,
}

/// Kind of an expression.
#[derive(Debug)]
pub(super) enum ExprKind {
    Literal(Value<'static>),
    /// A folded constant, with the original expression.
    Constant {
        value: Value<'static>,
        from: Box<Node>,
    },
    /// A variable that is given.
    Variable(Arc<str>),
    /// A variable of a comprehension, by its place on the stack; the value is moved out when nobody asks again.
    Local {
        name: Arc<str>,
        slot: usize,
        taken: bool,
    },
    Select {
        operand: Box<Node>,
        field: Arc<str>,
        test: bool,
    },
    OptionalSelect {
        operand: Box<Node>,
        field: Arc<str>,
    },
    Index {
        operand: Box<Node>,
        index: Box<Node>,
        optional: bool,
        of: Indexed,
    },
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Condition(Box<[Node; 3]>),
    NotStrictlyFalse(Box<Node>),
    /// A receiver comes first; `pattern` is a regular expression known beforehand.
    Call {
        name: Arc<str>,
        member: bool,
        candidates: Vec<OverloadCandidate>,
        arguments: Vec<Node>,
        pattern: Option<regex::Regex>,
        operator: Option<&'static Operator>,
        how: How,
    },
    /// Elements, and whether each is left out when missing.
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Struct {
        name: Arc<str>,
        fields: Vec<(Arc<str>, Node, bool)>,
    },
    Fold(Box<Fold>),
}

/// A comprehension. Its variables are on the stack in this order: accumulator, first, second (if there are two).
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) range: Node,
    /// One or two.
    pub(super) variables: usize,
    pub(super) init: Node,
    pub(super) condition: Node,
    pub(super) step: Node,
    pub(super) result: Node,
}

impl Node {
    /// The value of what is known beforehand.
    pub(super) fn known(&self) -> Option<&Value<'static>> {
        match &self.kind {
            ExprKind::Literal(value) | ExprKind::Constant { value, .. } => Some(value),
            _ => None,
        }
    }

    /// The text of a literal.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Literal(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Reports whether the expression is a variable, or selected from one: a chain of these is resolved at once.
    pub(super) fn is_path(&self) -> bool {
        matches!(
            self.kind,
            ExprKind::Variable(_)
                | ExprKind::Local { .. }
                | ExprKind::Select { .. }
                | ExprKind::OptionalSelect { .. }
                | ExprKind::Index { .. }
                | ExprKind::Condition(_)
        )
    }

    /// Does something to each part.
    pub(super) fn each_part(&mut self, visit: &mut dyn FnMut(&mut Node)) {
        match &mut self.kind {
            ExprKind::Literal(_) | ExprKind::Variable(_) | ExprKind::Local { .. } => {}
            ExprKind::Constant { from: inner, .. } | ExprKind::NotStrictlyFalse(inner) => visit(inner),
            ExprKind::Select { operand, .. } | ExprKind::OptionalSelect { operand, .. } => visit(operand),
            ExprKind::Index { operand, index, .. } => {
                visit(operand);
                visit(index);
            }
            ExprKind::And(parts) | ExprKind::Or(parts) => parts.iter_mut().for_each(visit),
            ExprKind::Condition(parts) => parts.iter_mut().for_each(visit),
            ExprKind::Call { arguments, .. } => arguments.iter_mut().for_each(visit),
            ExprKind::List(items) => items.iter_mut().for_each(|(item, _)| visit(item)),
            ExprKind::Map(entries) => entries.iter_mut().for_each(|(key, value, _)| {
                visit(key);
                visit(value);
            }),
            ExprKind::Struct { fields, .. } => fields.iter_mut().for_each(|(_, value, _)| visit(value)),
            ExprKind::Fold(fold) => {
                for part in [&mut fold.range, &mut fold.init, &mut fold.condition, &mut fold.step, &mut fold.result] {
                    visit(part);
                }
            }
        }
    }
}
