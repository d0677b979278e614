//! Checking an expression and making it ready to run: names that nobody declared, fields a type does not have, functions
//! that do not fit their arguments, lists of mixed types, literals no function can read.
//!
//! Types are told as `cel-go`'s checker tells them ([`unify`]): what cannot be told is [`Type::Dyn`] and passes; what
//! passes here may still fail when it runs.

mod calls;
mod literals;
mod objects;
mod unify;

use std::sync::Arc;

use cel::common::ast::{Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue, SelectExpr};

use super::error::CompileError;
use super::node::{ExprKind, Node};
use super::parse::{Parsed, pairs};
use super::types::Type;
use super::value::{Text, Value};
use super::{Declared, Extras, words};
use unify::{Bindings, general, is_open};

/// Deepest tree that is run: evaluation descends into it.
const MAX_DEPTH: usize = 250;
/// Problems that are told.
const MAX_PROBLEMS: usize = 100;

/// Checks; what is returned beside the program are the variables it names.
pub(super) fn check(
    parsed: &Parsed<'_>,
    variables: &Declared,
    extras: Extras,
) -> Result<(Node, Vec<String>), CompileError> {
    let mut checker = Checker {
        variables,
        extras,
        locals: Vec::new(),
        known: Bindings::default(),
        problems: Problems::default(),
        mentioned: Vec::new(),
        depth: 0,
        step_of: None,
    };
    let mut root = checker.expression(&parsed.root);
    if checker.problems.found.is_empty() {
        settle(&checker.known, &mut root);
        literals::judge(&mut root, &mut checker.problems);
    }
    if checker.problems.found.is_empty() {
        return Ok((root, checker.mentioned));
    }
    Err(CompileError::Report(checker.problems.report(parsed)))
}

fn settle(known: &Bindings, node: &mut Node) {
    node.of = known.settle(&node.of);
    node.each_part(&mut |part| settle(known, part));
}

/// Errors of an expression, by position.
#[derive(Debug, Default)]
struct Problems {
    found: Vec<(u64, String)>,
    /// More than are told.
    more: usize,
}

impl Problems {
    fn add(&mut self, id: u64, message: String) {
        if self.found.len() < MAX_PROBLEMS {
            self.found.push((id, message));
        } else {
            self.more += 1;
        }
    }

    fn report(mut self, parsed: &Parsed<'_>) -> String {
        self.found.sort_by_key(|(id, _)| parsed.start(*id));
        let mut lines: Vec<String> = self.found.iter().map(|(id, message)| parsed.problem(*id, message)).collect();
        if self.more > 0 {
            lines.push(format!("{} more errors were truncated", self.more));
        }
        lines.join("\n")
    }
}

/// A variable of a comprehension.
struct Local {
    name: Arc<str>,
    of: Type,
}

struct Checker<'d> {
    variables: &'d Declared,
    extras: Extras,
    locals: Vec<Local>,
    known: Bindings,
    problems: Problems,
    mentioned: Vec<String>,
    depth: usize,
    /// The step of a comprehension is being checked: the accumulator in this place is asked for once.
    step_of: Option<usize>,
}

/// Names of types, which are values too, as the tables of the library write them.
const TYPES: [(&str, &str); 15] = [
    ("bool", "bool"),
    ("bytes", "bytes"),
    ("double", "double"),
    ("google.protobuf.Duration", "duration"),
    ("int", "int"),
    ("list", "list(A)"),
    ("map", "map(A, B)"),
    ("null_type", "null"),
    ("string", "string"),
    ("google.protobuf.Timestamp", "timestamp"),
    ("type", "type"),
    ("uint", "uint"),
    ("optional_type", "optional(V)"),
    // These are declared, and nobody made them: see `plan`.
    ("duration", "duration"),
    ("timestamp", "timestamp"),
];

/// `a.b.c` when an expression is a chain of names.
fn dotted(e: &IdedExpr) -> Option<String> {
    match &e.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(s) if !s.test => Some(format!("{}.{}", dotted(&s.operand)?, s.field)),
        _ => None,
    }
}

/// The type of a value that may be missing, if one is.
fn inner(of: &Type) -> (Type, bool) {
    match of {
        Type::Optional(inner) => ((**inner).clone(), true),
        plain => (plain.clone(), false),
    }
}

impl Checker<'_> {
    /// Takes down what is wrong; anything goes with the part from then on.
    fn complain(&mut self, id: u64, message: String) -> Node {
        self.problems.add(id, message);
        Node { kind: ExprKind::Literal(Value::Null), of: Type::Error, id }
    }

    fn undeclared(&mut self, id: u64, name: &str) -> Node {
        self.complain(id, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn mismatch(&mut self, id: u64, wanted: &Type, found: &Type) {
        self.problems.add(id, format!("expected type '{wanted}' but found '{found}'"));
    }

    /// A variable or a type by its whole name.
    fn named(&mut self, id: u64, name: &str) -> Option<Node> {
        let name = name.trim_start_matches('.');
        if let Some(slot) = self.locals.iter().rposition(|l| &*l.name == name) {
            let kind = ExprKind::Local { name: name.into(), slot, taken: self.step_of == Some(slot) };
            return Some(Node { kind, of: self.locals[slot].of.clone(), id });
        }
        if let Some(of) = self.variables.get(name) {
            if !self.mentioned.iter().any(|m| m == name) {
                self.mentioned.push(name.to_owned());
            }
            return Some(Node { kind: ExprKind::Variable(name.into()), of: of.clone(), id });
        }
        let (known, written) = TYPES.iter().find(|(n, _)| *n == name)?;
        let kind = ExprKind::Literal(Value::Type(Text::Borrowed(known)));
        // The type of types is called like any of them.
        let of = if *known == "type" { Type::of(Type::Type(None)) } else { Type::of(Type::declared(written)) };
        Some(Node { kind, of, id })
    }

    fn expression(&mut self, e: &IdedExpr) -> Node {
        if self.depth >= MAX_DEPTH {
            return self.complain(e.id, format!("expression recursion limit exceeded: {MAX_DEPTH}"));
        }
        self.depth += 1;
        let found = self.part(e);
        self.depth -= 1;
        found
    }

    fn part(&mut self, e: &IdedExpr) -> Node {
        let id = e.id;
        match &e.expr {
            Expr::Unspecified => Node { kind: ExprKind::Literal(Value::Null), of: Type::Dyn, id },
            Expr::Ident(name) => match self.named(id, name) {
                Some(found) => found,
                None => self.undeclared(id, name),
            },
            Expr::Literal(value) => {
                let (value, of) = constant(value);
                Node { kind: ExprKind::Literal(value), of, id }
            }
            Expr::List(list) => self.list(id, list),
            Expr::Map(map) => self.map(id, &map.entries),
            Expr::Struct(made) => self.made(id, made),
            Expr::Select(select) => self.select(e, select),
            Expr::Call(call) => self.call(id, call),
            Expr::Comprehension(comprehension) => self.comprehension(id, comprehension),
        }
    }

    /// The type of what is given for something that may be missing.
    fn given(&mut self, value: &Node, optional: bool) -> Type {
        if !optional {
            return value.of.clone();
        }
        let (of, wrapped) = inner(&value.of);
        if !wrapped && !of.is_dyn() {
            self.mismatch(value.id, &Type::optional(of.clone()), &of);
        }
        of
    }

    /// The type of another element of a list or map; the elements of a literal are of one type.
    fn another(&mut self, so_far: Option<Type>, next: Type) -> Type {
        let Some(so_far) = so_far else { return next };
        if self.known.fit(&so_far, &next) {
            return general(&so_far, &next);
        }
        // Told of when all is known, and not of what is given to `format`.
        Type::Dyn
    }

    fn list(&mut self, id: u64, list: &ListExpr) -> Node {
        let (mut of, mut items) = (None, Vec::with_capacity(list.elements.len()));
        for (i, element) in list.elements.iter().enumerate() {
            let (item, optional) = (self.expression(element), list.optional_indices.contains(&i));
            let given = self.given(&item, optional);
            of = Some(self.another(of, given));
            items.push((item, optional));
        }
        let of = of.unwrap_or_else(|| self.known.fresh());
        Node { kind: ExprKind::List(items), of: Type::list(of), id }
    }

    fn map(&mut self, id: u64, entries: &[IdedEntryExpr]) -> Node {
        let (mut key_of, mut value_of, mut out) = (None, None, Vec::new());
        for entry in pairs(entries) {
            let key = self.expression(&entry.key);
            key_of = Some(self.another(key_of, key.of.clone()));
            let value = self.expression(&entry.value);
            let given = self.given(&value, entry.optional);
            value_of = Some(self.another(value_of, given));
            out.push((key, value, entry.optional));
        }
        let key = key_of.unwrap_or_else(|| self.known.fresh());
        let of = Type::map(key, value_of.unwrap_or_else(|| self.known.fresh()));
        Node { kind: ExprKind::Map(out), of, id }
    }

    fn select(&mut self, e: &IdedExpr, select: &SelectExpr) -> Node {
        // A name with dots is looked up whole before it is taken apart.
        if !select.test
            && let Some(name) = dotted(e)
            && let Some(found) = self.named(e.id, &name)
        {
            return found;
        }
        let declared = |of: String| self.variables.contains_key(&format!("{of}.{}", select.field));
        if select.test && dotted(&select.operand).is_some_and(declared) {
            // A variable that is declared is there, whatever becomes of it.
            return Node { kind: ExprKind::Literal(Value::Bool(true)), of: Type::Bool, id: e.id };
        }
        let operand = self.expression(&select.operand);
        let of = self.field(e.id, &operand.of, &select.field, false);
        let of = if select.test { Type::Bool } else { of };
        let field = select.field.as_str().into();
        Node { kind: ExprKind::Select { operand: Box::new(operand), field, test: select.test }, of, id: e.id }
    }

    /// The type of a field of something of a type.
    fn field(&mut self, id: u64, operand: &Type, field: &str, optional: bool) -> Type {
        let (of, wrapped) = inner(&self.known.resolve(operand));
        let found = match &of {
            Type::Map(map) => map.1.clone(),
            Type::Object(shape) => match shape.field(field).or_else(|| shape.field(&words::kept(field)?)) {
                Some(t) => t,
                None => self.complain(id, format!("undefined field '{field}'")).of,
            },
            Type::Opaque(name) if objects::is_structure(name) => {
                self.complain(id, format!("unexpected failed resolution of '{name}'")).of
            }
            Type::Var(_) | Type::Param(_) => {
                self.known.fit(&Type::Dyn, &of);
                Type::Dyn
            }
            open if is_open(open) => Type::Dyn,
            other => {
                self.problems.add(id, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        let found = self.known.resolve(&found);
        if wrapped || optional { Type::optional(found) } else { found }
    }
}

fn constant(value: &LiteralValue) -> (Value<'static>, Type) {
    match value {
        LiteralValue::Boolean(b) => (Value::Bool(*b.inner()), Type::Bool),
        LiteralValue::Int(n) => (Value::Int(*n.inner()), Type::Int),
        LiteralValue::UInt(n) => (Value::UInt(*n.inner()), Type::UInt),
        LiteralValue::Double(n) => (Value::Double(*n.inner()), Type::Double),
        LiteralValue::String(s) => (Value::text(s.inner()), Type::String),
        LiteralValue::Bytes(b) => (Value::Bytes(b.inner().into()), Type::Bytes),
        LiteralValue::Null => (Value::Null, Type::Null),
    }
}
