//! Checking an expression and making it ready to run, in one pass: names that nobody declared, fields a type does not
//! have, functions that do not fit their arguments, lists of mixed types, literals no function can read.
//!
//! Types that cannot be told are [`Type::Dyn`] and pass; what passes here may still fail when it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, StructExpr};

use super::library::{self, Entry};
use super::node::{Candidate, Fold, Kind, Node};
use super::parse::{Parsed, pairs};
use super::types::Type;
use super::value::{Text, Value};
use super::{Declared, Extras, Key, Map};

/// Deepest tree that is run: evaluation descends into it.
const MAX_DEPTH: usize = 250;

/// Checks; what is returned beside the program are the variables it names.
pub(super) fn check(parsed: &Parsed<'_>, variables: &Declared, extras: Extras) -> Result<(Node, Vec<String>), String> {
    let mut checker = Checker {
        variables,
        extras,
        locals: Vec::new(),
        problems: Vec::new(),
        mentioned: Vec::new(),
        depth: 0,
        mixed: false,
        in_step: false,
    };
    let root = checker.expression(&parsed.root);
    if checker.problems.is_empty() {
        return Ok((root, checker.mentioned));
    }
    checker.problems.sort_by_key(|(id, _)| parsed.start(*id));
    let lines: Vec<String> = checker.problems.iter().map(|(id, message)| parsed.problem(*id, message)).collect();
    Err(lines.join("\n"))
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
    problems: Vec<(u64, String)>,
    mentioned: Vec<String>,
    depth: usize,
    /// What is given to `format` may be of many types.
    mixed: bool,
    /// The step of a comprehension is being checked: the accumulator is asked for once.
    in_step: bool,
}

/// Names of types, which are values too.
const TYPES: [(&str, &str); 14] = [
    ("bool", "bool"),
    ("bytes", "bytes"),
    ("double", "double"),
    ("dyn", "dyn"),
    ("int", "int"),
    ("list", "list"),
    ("map", "map"),
    ("null_type", "null_type"),
    ("string", "string"),
    ("type", "type"),
    ("uint", "uint"),
    ("optional_type", "optional_type"),
    ("google.protobuf.Timestamp", "google.protobuf.Timestamp"),
    ("google.protobuf.Duration", "google.protobuf.Duration"),
];

fn node(kind: Kind, of: Type) -> Node {
    Node { kind, of }
}

fn literal(value: Value<'static>, of: Type) -> Node {
    node(Kind::Literal(value), of)
}

/// `a.b.c` when an expression is a chain of names.
fn dotted(e: &IdedExpr) -> Option<String> {
    match &e.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(s) if !s.test => Some(format!("{}.{}", dotted(&s.operand)?, s.field)),
        _ => None,
    }
}

impl Checker<'_> {
    fn complain(&mut self, id: u64, message: String) -> Node {
        self.problems.push((id, message));
        literal(Value::Null, Type::Dyn)
    }

    fn undeclared(&mut self, id: u64, name: &str) -> Node {
        self.complain(id, format!("undeclared reference to '{name}' (in container '')"))
    }

    /// A variable or a type by its whole name.
    fn named(&mut self, name: &str) -> Option<Node> {
        let name = name.trim_start_matches('.');
        if let Some(slot) = self.locals.iter().rposition(|l| &*l.name == name) {
            let local = &self.locals[slot];
            let taken = self.in_step && name == "@result" && slot + 1 == self.locals.len();
            return Some(node(Kind::Local { slot, taken }, local.of.clone()));
        }
        if let Some(of) = self.variables.get(name) {
            if !self.mentioned.iter().any(|m| m == name) {
                self.mentioned.push(name.to_owned());
            }
            return Some(node(Kind::Variable(name.into()), of.clone()));
        }
        let (_, known) = TYPES.iter().find(|(n, _)| *n == name)?;
        Some(literal(Value::Type(Text::Borrowed(known)), Type::Type))
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
        match &e.expr {
            Expr::Unspecified => literal(Value::Null, Type::Dyn),
            Expr::Ident(name) => match self.named(name) {
                Some(found) => found,
                None => self.undeclared(e.id, name),
            },
            Expr::Literal(value) => constant(value),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(&map.entries),
            Expr::Struct(made) => self.made(e.id, made),
            Expr::Select(select) => self.select(e, select),
            Expr::Call(call) => self.call(e.id, call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    /// The type of another element of a list or map; the elements of a literal are of one type.
    fn another(&mut self, id: u64, so_far: &Type, next: &Type) -> Type {
        match so_far.join(next) {
            Some(both) => both,
            None if self.mixed => Type::Dyn,
            None => {
                self.problems.push((id, format!("expected type '{so_far}' but found '{next}'")));
                so_far.clone()
            }
        }
    }

    fn list(&mut self, list: &cel::common::ast::ListExpr) -> Node {
        let (mut of, mut items) = (Type::Open, Vec::with_capacity(list.elements.len()));
        for (i, element) in list.elements.iter().enumerate() {
            let item = self.expression(element);
            let optional = list.optional_indices.contains(&i);
            let inner = match (&item.of, optional) {
                (Type::Optional(inner), true) => (**inner).clone(),
                (_, true) => Type::Dyn,
                (plain, false) => plain.clone(),
            };
            of = self.another(element.id, &of, &inner);
            items.push((item, optional));
        }
        let of = Type::list(of);
        let constants: Option<Vec<_>> = items.iter().map(|(n, optional)| known(n).filter(|_| !optional)).collect();
        match constants.filter(|c| !c.is_empty()) {
            Some(constants) => literal(Value::list(constants), of),
            None => node(Kind::List(items), of),
        }
    }

    fn map(&mut self, entries: &[cel::common::ast::IdedEntryExpr]) -> Node {
        let (mut key_of, mut value_of, mut out) = (Type::Open, Type::Open, Vec::new());
        for entry in pairs(entries) {
            let (key, value) = (self.expression(&entry.key), self.expression(&entry.value));
            key_of = self.another(entry.key.id, &key_of, &key.of);
            let inner = match (&value.of, entry.optional) {
                (Type::Optional(inner), true) => (**inner).clone(),
                (_, true) => Type::Dyn,
                (plain, false) => plain.clone(),
            };
            value_of = self.another(entry.value.id, &value_of, &inner);
            out.push((key, value, entry.optional));
        }
        let of = Type::map(key_of, value_of);
        let constants: Option<BTreeMap<_, _>> = out
            .iter()
            .map(|(k, v, optional)| known(k).filter(|_| !optional).as_ref().and_then(Key::of).zip(known(v)))
            .collect();
        match constants.filter(|c| !c.is_empty() && c.len() == out.len()) {
            Some(entries) => literal(Value::Map(Arc::new(Map { entries, otherwise: None })), of),
            None => node(Kind::Map(out), of),
        }
    }

    /// `Object{...}`, `Object.spec{...}`, `JSONPatch{...}`.
    fn made(&mut self, id: u64, made: &StructExpr) -> Node {
        let name = made.type_name.trim_start_matches('.');
        let patch = name == "JSONPatch";
        if !self.extras.patch || !(patch || name == "Object" || name.starts_with("Object.")) {
            return self.undeclared(id, name);
        }
        let mut fields = Vec::new();
        for entry in &made.entries {
            let EntryExpr::StructField(field) = &entry.expr else { continue };
            let value = self.expression(&field.value);
            let wanted = match (patch, field.field.as_str()) {
                (true, "op" | "path" | "from") => Type::String,
                (true, "value") | (false, _) => Type::Dyn,
                (true, other) => {
                    self.problems.push((entry.id, format!("undefined field '{other}'")));
                    Type::Dyn
                }
            };
            let inner = match (&value.of, field.optional) {
                (Type::Optional(inner), true) => (**inner).clone(),
                (plain, _) => plain.clone(),
            };
            if !wanted.takes(&inner) {
                let message =
                    format!("expected type of field '{}' is '{wanted}' but provided type is '{inner}'", field.field);
                self.problems.push((entry.id, message));
            }
            fields.push((field.field.as_str().into(), value, field.optional));
        }
        let of = if patch { Type::Opaque("JSONPatch") } else { Type::object(name, [] as [(&str, Type); 0]) };
        node(Kind::Struct { name: name.into(), fields }, of)
    }

    fn select(&mut self, e: &IdedExpr, select: &SelectExpr) -> Node {
        // A name with dots is looked up whole before it is taken apart.
        if !select.test
            && let Some(name) = dotted(e)
            && !self.locals.iter().any(|l| name.split('.').next() == Some(&*l.name))
            && let Some(found) = self.named(&name)
        {
            return found;
        }
        let operand = self.expression(&select.operand);
        let of = self.field(e.id, &operand.of, &select.field);
        let of = if select.test { Type::Bool } else { of };
        let field = select.field.as_str().into();
        node(Kind::Select { operand: Box::new(operand), field, test: select.test }, of)
    }

    fn field(&mut self, id: u64, operand: &Type, field: &str) -> Type {
        match operand {
            Type::Dyn | Type::Any | Type::Open => Type::Dyn,
            Type::Map(map) => map.1.clone(),
            Type::Object(shape) => match shape.field(field) {
                Some(t) => t,
                None => self.complain(id, format!("undefined field '{field}'")).of,
            },
            Type::Optional(inner) => {
                let inner = inner.clone();
                Type::optional(self.field(id, &inner, field))
            }
            other => {
                let message = format!("type '{other}' does not support field selection");
                self.complain(id, message).of
            }
        }
    }

    fn call(&mut self, id: u64, call: &CallExpr) -> Node {
        let name = call.func_name.as_str();
        match (name, call.args.as_slice()) {
            ("_&&_" | "_||_", [a, b]) => return self.logic(id, name, a, b),
            ("_?_:_", [condition, a, b]) => return self.condition(id, condition, a, b),
            ("@not_strictly_false", [a]) => {
                let inner = self.expression(a);
                return node(Kind::NotStrictlyFalse(Box::new(inner)), Type::Bool);
            }
            ("_?._", [operand, field]) => return self.optional_select(id, operand, field),
            ("_[_]" | "_[?_]", [operand, index]) => return self.index(id, name, operand, index),
            _ => {}
        }
        // A function of a namespace (`sets.contains`) looks like a method of it.
        let whole = call.target.as_deref().and_then(dotted).map(|t| format!("{}.{name}", t.trim_start_matches('.')));
        if let Some(whole) = &whole
            && library::overloads(whole, false, self.extras).next().is_some()
        {
            let arguments = call.args.iter().map(|a| self.expression(a)).collect();
            return self.function(id, whole, false, arguments, &call.args);
        }
        let mut arguments = Vec::with_capacity(call.args.len() + 1);
        if let Some(target) = &call.target {
            arguments.push(self.expression(target));
        }
        let outer = self.mixed;
        self.mixed |= name == "format" && call.target.is_some();
        arguments.extend(call.args.iter().map(|a| self.expression(a)).collect::<Vec<_>>());
        self.mixed = outer;
        let member = call.target.is_some();
        let any = [true, false].iter().any(|m| library::overloads(name, *m, self.extras).next().is_some());
        if !any {
            return self.undeclared(id, name);
        }
        self.function(id, name, member, arguments, &call.args)
    }

    fn logic(&mut self, id: u64, name: &str, a: &IdedExpr, b: &IdedExpr) -> Node {
        let (a, b) = (self.expression(a), self.expression(b));
        if ![&a.of, &b.of].iter().all(|t| Type::Bool.takes(t)) {
            return self.mismatch(id, name, false, &[a, b]);
        }
        let both = Box::new([a, b]);
        node(if name == "_&&_" { Kind::And(both) } else { Kind::Or(both) }, Type::Bool)
    }

    fn condition(&mut self, id: u64, condition: &IdedExpr, a: &IdedExpr, b: &IdedExpr) -> Node {
        let parts = [self.expression(condition), self.expression(a), self.expression(b)];
        let joined = parts[1].of.join(&parts[2].of).filter(|_| Type::Bool.takes(&parts[0].of));
        match joined {
            Some(of) => node(Kind::Condition(Box::new(parts)), of),
            None => self.mismatch(id, "_?_:_", false, &parts),
        }
    }

    fn optional_select(&mut self, id: u64, operand: &IdedExpr, field: &IdedExpr) -> Node {
        let operand = self.expression(operand);
        let Expr::Literal(LiteralValue::String(name)) = &field.expr else {
            return self.complain(id, "unsupported optional field selection".to_owned());
        };
        let name = name.inner();
        let inner = match &operand.of {
            Type::Optional(inner) => (**inner).clone(),
            plain => plain.clone(),
        };
        let of = Type::optional(self.field(id, &inner, name));
        node(Kind::OptionalSelect { operand: Box::new(operand), field: name.into() }, of)
    }

    fn index(&mut self, id: u64, name: &str, operand: &IdedExpr, index: &IdedExpr) -> Node {
        let (operand, index) = (self.expression(operand), self.expression(index));
        let (inner, wrapped) = match &operand.of {
            Type::Optional(inner) => ((**inner).clone(), true),
            plain => (plain.clone(), false),
        };
        let number = |t: &Type| matches!(t, Type::Int | Type::UInt | Type::Double | Type::Dyn | Type::Any | Type::Open);
        let of = match &inner {
            Type::List(of) if number(&index.of) => (**of).clone(),
            Type::Map(of) if of.0.takes(&index.of) || (number(&of.0) && number(&index.of)) => of.1.clone(),
            t if t.is_dyn() => Type::Dyn,
            _ => return self.mismatch(id, name, false, &[operand, index]),
        };
        let optional = name == "_[?_]";
        let of = if optional || wrapped { Type::optional(of) } else { of };
        node(Kind::Index { operand: Box::new(operand), index: Box::new(index), optional }, of)
    }

    fn mismatch(&mut self, id: u64, name: &str, member: bool, arguments: &[Node]) -> Node {
        let mut types: Vec<String> = arguments.iter().map(|a| a.of.to_string()).collect();
        let target = if member && !types.is_empty() { format!("{}.", types.remove(0)) } else { String::new() };
        let shown = format!("{target}({})", types.join(", "));
        self.complain(id, format!("found no matching overload for '{name}' applied to '{shown}'"))
    }

    fn function(&mut self, id: u64, name: &str, member: bool, arguments: Vec<Node>, places: &[IdedExpr]) -> Node {
        let (mut candidates, mut of): (Vec<Candidate>, Option<Type>) = (Vec::new(), None);
        for entry in library::overloads(name, member, self.extras) {
            let Some(result) = fit(entry, &arguments) else { continue };
            of = Some(match of {
                None => result,
                Some(other) if other.is(&result) => other,
                Some(_) => Type::Dyn,
            });
            candidates.push(Candidate { entry, arguments: entry.arguments() });
        }
        let Some(of) = of else { return self.mismatch(id, name, member, &arguments) };
        let pattern = self.literals(id, name, &arguments, places);
        node(Kind::Call { candidates, arguments, pattern }, of)
    }

    /// Literals no function can read are told at once; a regular expression is compiled.
    fn literals(&mut self, id: u64, name: &str, arguments: &[Node], places: &[IdedExpr]) -> Option<regex::Regex> {
        let text = |n: &Node| match &n.kind {
            Kind::Literal(Value::String(s)) => Some(s.to_string()),
            _ => None,
        };
        let last = places.last()?;
        match name {
            "matches" | "find" | "findAll" => match crate::patterns::compile(&text(arguments.get(1)?)?) {
                Ok(pattern) => return Some(pattern),
                Err(_) if name == "matches" => self.problems.push((last.id, "invalid matches argument".to_owned())),
                Err(_) => {}
            },
            "duration" if library::duration(&text(arguments.first()?)?).is_none() => {
                self.problems.push((last.id, "invalid duration argument".to_owned()));
            }
            "timestamp" => {
                let exists = match &arguments.first()?.kind {
                    Kind::Literal(Value::Int(seconds)) => library::at(*seconds).is_some(),
                    _ => library::timestamp(&text(arguments.first()?)?).is_some(),
                };
                if !exists {
                    self.problems.push((last.id, "invalid timestamp argument".to_owned()));
                }
            }
            "format" => {
                if let Err((place, why)) = template(&text(arguments.first()?)?, arguments.get(1)?, last) {
                    self.problems.push((place.unwrap_or(id), why));
                }
            }
            _ => {}
        }
        None
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Node {
        let range = self.expression(&c.iter_range);
        let two = c.iter_var2.is_some();
        let (first, second) = match &range.of {
            Type::List(t) if two => (Type::Int, (**t).clone()),
            Type::List(t) => ((**t).clone(), Type::Dyn),
            Type::Map(t) => (t.0.clone(), t.1.clone()),
            t if t.is_dyn() && !matches!(t, Type::Any) => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.complain(c.iter_range.id, message);
                (Type::Dyn, Type::Dyn)
            }
        };
        let init = self.expression(&c.accu_init);
        let base = self.locals.len();
        let mut variables: Vec<Arc<str>> = vec![c.iter_var.as_str().into()];
        variables.extend(c.iter_var2.as_deref().map(Arc::from));
        let mut local = |name: &Arc<str>, of: Type| self.locals.push(Local { name: name.clone(), of });
        local(&variables[0], first);
        if let Some(name) = variables.get(1) {
            local(name, second);
        }
        let accumulator: Arc<str> = c.accu_var.as_str().into();
        local(&accumulator, init.of.clone());
        let outer = std::mem::replace(&mut self.in_step, false);
        let condition = self.expression(&c.loop_cond);
        self.in_step = true;
        let step = self.expression(&c.loop_step);
        self.in_step = false;
        // What is collected is known once the step is.
        let kept = init.of.join(&step.of).unwrap_or(Type::Dyn);
        self.locals[base + variables.len()].of = kept;
        let hidden: Vec<Arc<str>> = self.locals[base..base + variables.len()]
            .iter_mut()
            .map(|l| std::mem::replace(&mut l.name, "".into()))
            .collect();
        drop(hidden);
        let result = self.expression(&c.result);
        self.in_step = outer;
        self.locals.truncate(base);
        let of = result.of.clone();
        node(Kind::Fold(Box::new(Fold { range, variables, accumulator, init, condition, step, result })), of)
    }
}

/// Whether what a list holds can be put into a template; where it cannot, and why.
fn template(template: &str, list: &Node, place: &IdedExpr) -> Result<(), (Option<u64>, String)> {
    let Expr::List(places) = &place.expr else { return Ok(()) };
    // The types as they are when it runs; none where they are not known before.
    let types: Vec<Option<String>> = match &list.kind {
        Kind::List(items) => items.iter().map(|(item, _)| item.of.at_runtime()).collect(),
        Kind::Literal(list) => {
            list.items().iter().flat_map(|l| l.iter()).map(|v| Some(v.type_name().to_owned())).collect()
        }
        _ => return Ok(()),
    };
    let mut at = None;
    let wanted = library::pieces(template, types.len(), |piece| {
        let library::Piece::Value(index, letter, _) = piece else { return Ok(()) };
        let wrong = types.get(index).and_then(Option::as_deref).and_then(|of| library::unfit(letter, of));
        wrong.map_or(Ok(()), |why| {
            at = places.elements.get(index).map(|element| element.id);
            Err(why)
        })
    });
    match wanted {
        Err(why) => Err((at, why.to_string())),
        Ok(wanted) if wanted < types.len() => {
            let given = types.len();
            let why = format!("too many arguments supplied to string.format (expected {wanted}, got {given})");
            Err((None, why))
        }
        Ok(_) => Ok(()),
    }
}

/// The value of a literal.
fn known(node: &Node) -> Option<Value<'static>> {
    match &node.kind {
        Kind::Literal(value) => Some(value.clone()),
        _ => None,
    }
}

fn constant(value: &LiteralValue) -> Node {
    match value {
        LiteralValue::Boolean(b) => literal(Value::Bool(*b.inner()), Type::Bool),
        LiteralValue::Int(n) => literal(Value::Int(*n.inner()), Type::Int),
        LiteralValue::UInt(n) => literal(Value::UInt(*n.inner()), Type::UInt),
        LiteralValue::Double(n) => literal(Value::Double(*n.inner()), Type::Double),
        LiteralValue::String(s) => literal(Value::text(s.inner()), Type::String),
        LiteralValue::Bytes(b) => literal(Value::Bytes(b.inner().into()), Type::Bytes),
        LiteralValue::Null => literal(Value::Null, Type::Null),
    }
}

/// The result of a function for arguments of these types; `None` when it does not take them.
fn fit(entry: &Entry, arguments: &[Node]) -> Option<Type> {
    let wanted = entry.arguments();
    if wanted.len() != arguments.len() {
        return None;
    }
    let mut bound = BTreeMap::new();
    let fits = wanted.iter().zip(arguments).all(|(w, a)| unify(w, &a.of, &mut bound));
    fits.then(|| resolve(&entry.result(), &bound))
}

/// Whether a type fits a declared one; what its letters stand for is remembered.
fn unify(wanted: &Type, given: &Type, bound: &mut BTreeMap<char, Type>) -> bool {
    match (wanted, given) {
        (Type::Param(letter), given) => {
            let joined = match bound.get(letter) {
                Some(known) => known.join(given),
                None => Some(given.clone()),
            };
            let Some(joined) = joined else { return false };
            bound.insert(*letter, joined);
            true
        }
        (_, given) if given.is_dyn() => true,
        (Type::List(w), Type::List(g)) | (Type::Optional(w), Type::Optional(g)) => unify(w, g, bound),
        (Type::Map(w), Type::Map(g)) => unify(&w.0, &g.0, bound) && unify(&w.1, &g.1, bound),
        (w, g) => w.takes(g),
    }
}

fn resolve(of: &Type, bound: &BTreeMap<char, Type>) -> Type {
    match of {
        Type::Param(letter) => bound.get(letter).cloned().unwrap_or(Type::Dyn),
        Type::List(t) => Type::list(resolve(t, bound)),
        Type::Optional(t) => Type::optional(resolve(t, bound)),
        Type::Map(t) => Type::map(resolve(&t.0, bound), resolve(&t.1, bound)),
        plain => plain.clone(),
    }
}
