//! A checked expression, ready to run: names are found, functions are chosen, constants are made.

use super::dispatch::Operator;
use std::sync::Arc;

use super::library::Entry;
use super::types::Type;
use super::value::Value;

/// A part of an expression.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Type of the value that the node evaluates to.
    pub(super) of: Type,
    /// Number by which the place in the source is found.
    pub(super) id: u64,
}

/// One of the functions a call may be: which one is told by the values.
#[derive(Debug)]
pub(super) struct Candidate {
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
pub(super) enum Kind {
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
        candidates: Vec<Candidate>,
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
            Kind::Literal(value) | Kind::Constant { value, .. } => Some(value),
            _ => None,
        }
    }

    /// The text of a literal.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Literal(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Reports whether the expression is a variable, or selected from one: a chain of these is resolved at once.
    pub(super) fn is_path(&self) -> bool {
        matches!(
            self.kind,
            Kind::Variable(_)
                | Kind::Local { .. }
                | Kind::Select { .. }
                | Kind::OptionalSelect { .. }
                | Kind::Index { .. }
                | Kind::Condition(_)
        )
    }

    /// Does something to each part.
    pub(super) fn each_part(&mut self, visit: &mut dyn FnMut(&mut Node)) {
        match &mut self.kind {
            Kind::Literal(_) | Kind::Variable(_) | Kind::Local { .. } => {}
            Kind::Constant { from: inner, .. } | Kind::NotStrictlyFalse(inner) => visit(inner),
            Kind::Select { operand, .. } | Kind::OptionalSelect { operand, .. } => visit(operand),
            Kind::Index { operand, index, .. } => {
                visit(operand);
                visit(index);
            }
            Kind::And(parts) | Kind::Or(parts) => parts.iter_mut().for_each(visit),
            Kind::Condition(parts) => parts.iter_mut().for_each(visit),
            Kind::Call { arguments, .. } => arguments.iter_mut().for_each(visit),
            Kind::List(items) => items.iter_mut().for_each(|(item, _)| visit(item)),
            Kind::Map(entries) => entries.iter_mut().for_each(|(key, value, _)| {
                visit(key);
                visit(value);
            }),
            Kind::Struct { fields, .. } => fields.iter_mut().for_each(|(_, value, _)| visit(value)),
            Kind::Fold(fold) => {
                for part in [&mut fold.range, &mut fold.init, &mut fold.condition, &mut fold.step, &mut fold.result] {
                    visit(part);
                }
            }
        }
    }
}
