//! A checked expression, ready to run: names are found, functions are chosen, constants are made.

use std::sync::Arc;

use super::library::Entry;
use super::types::Type;
use super::value::Value;

/// A part of an expression.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Its type.
    pub(super) of: Type,
}

/// One of the functions a call may be: which one is told by the values.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) entry: &'static Entry,
    pub(super) arguments: Vec<Type>,
}

/// What a part does.
#[derive(Debug)]
pub(super) enum Kind {
    Literal(Value<'static>),
    /// A variable that is given.
    Variable(Arc<str>),
    /// A variable of a comprehension, by its place on the stack; the value is moved out when nobody asks again.
    Local {
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
    },
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Condition(Box<[Node; 3]>),
    NotStrictlyFalse(Box<Node>),
    /// A receiver comes first; `pattern` is a regular expression known beforehand.
    Call {
        candidates: Vec<Candidate>,
        arguments: Vec<Node>,
        pattern: Option<regex::Regex>,
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

/// A comprehension. Its variables are on the stack in this order: first, second (if there are two), accumulator.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) range: Node,
    pub(super) variables: Vec<Arc<str>>,
    pub(super) accumulator: Arc<str>,
    pub(super) init: Node,
    pub(super) condition: Node,
    pub(super) step: Node,
    pub(super) result: Node,
}
