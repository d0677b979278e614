//! Calls, operators and comprehensions: which functions fit their arguments, and what comes of it.

use std::sync::Arc;

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue};

use super::super::library;
use super::super::node::{ExprKind, Fold, How, Indexed, Node, OverloadCandidate};
use super::super::operator;
use super::super::types::Type;
use super::unify::Fresh;
use super::{Checker, Local, dotted};

impl Checker<'_> {
    pub(super) fn call(&mut self, id: u64, call: &CallExpr) -> Node {
        let name = call.func_name.as_str();
        if let ("_?._", [operand, field]) = (name, call.args.as_slice()) {
            return self.optional_select(id, operand, field);
        }
        let arguments: Vec<Node> = call.args.iter().map(|a| self.expression(a)).collect();
        let Some(target) = &call.target else { return self.function(id, name, None, arguments) };
        // A function of a namespace (`sets.contains`) looks like a method of it.
        let whole = dotted(target).map(|t| format!("{}.{name}", t.trim_start_matches('.')));
        if let Some(whole) = whole.filter(|whole| self.is_declared(whole)) {
            return self.function(id, &whole, None, arguments);
        }
        let target = self.expression(target);
        self.function(id, name, Some(target), arguments)
    }

    fn is_declared(&self, name: &str) -> bool {
        matches!(name, "_&&_" | "_||_")
            || [true, false].iter().any(|member| library::overloads(name, *member, self.extras).next().is_some())
    }

    fn optional_select(&mut self, id: u64, operand: &IdedExpr, field: &IdedExpr) -> Node {
        let Expr::Literal(LiteralValue::String(name)) = &field.expr else {
            return self.complain(field.id, "unsupported optional field selection".to_owned());
        };
        let name = name.inner();
        let operand = self.expression(operand);
        let of = self.field(id, &operand.of, name, true);
        Node { kind: ExprKind::OptionalSelect { operand: Box::new(operand), field: name.into() }, of, id }
    }

    /// The functions of a name that take these arguments, and the type of what they make.
    fn candidates(&mut self, name: &str, member: bool, arguments: &[Node]) -> Option<(Vec<OverloadCandidate>, Type)> {
        let (mut fitting, mut of): (Vec<OverloadCandidate>, Option<Type>) = (Vec::new(), None);
        for entry in library::overloads(name, member, self.extras) {
            let declared = entry.arguments();
            let mut fresh = Fresh::new(&mut self.known);
            let wanted: Vec<Type> = declared.iter().map(|t| fresh.instance(t)).collect();
            let result = fresh.instance(&entry.result());
            let given = arguments.iter().map(|a| &a.of);
            if wanted.len() != arguments.len() || !self.known.fit_all(given.zip(&wanted)) {
                continue;
            }
            let result = self.known.resolve(&result);
            of = Some(match of {
                None => result,
                Some(of) if of.is_dyn() || of.is(&result) => of,
                Some(_) => Type::Dyn,
            });
            fitting.push(OverloadCandidate { entry, arguments: declared });
        }
        of.map(|of| (fitting, of))
    }

    fn function(&mut self, id: u64, name: &str, target: Option<Node>, rest: Vec<Node>) -> Node {
        if !self.is_declared(name) {
            return self.undeclared(id, name);
        }
        let member = target.is_some();
        let arguments: Vec<Node> = target.into_iter().chain(rest).collect();
        if matches!(name, "_&&_" | "_||_") {
            return self.logic(id, name, arguments);
        }
        let Some((candidates, of)) = self.candidates(name, member, &arguments) else {
            let mut types: Vec<String> = arguments.iter().map(|a| self.known.settle(&a.of).to_string()).collect();
            let target = if member && !types.is_empty() { format!("{}.", types.remove(0)) } else { String::new() };
            let shown = format!("{target}({})", types.join(", "));
            return self.complain(id, format!("found no matching overload for '{name}' applied to '{shown}'"));
        };
        Node { kind: kind(name, member, candidates, arguments), of, id }
    }

    fn logic(&mut self, id: u64, name: &str, arguments: Vec<Node>) -> Node {
        let before = self.problems.found.len();
        for argument in &arguments {
            if !self.known.fit(&argument.of, &Type::Bool) {
                self.mismatch(argument.id, &Type::Bool, &argument.of);
            }
        }
        let of = if self.problems.found.len() > before { Type::Error } else { Type::Bool };
        let Ok(both) = <[Node; 2]>::try_from(arguments) else { return self.undeclared(id, name) };
        let both = Box::new(both);
        Node { kind: if name == "_&&_" { ExprKind::And(both) } else { ExprKind::Or(both) }, of, id }
    }

    /// The types of the variables of a comprehension over something.
    fn variables_over(&mut self, id: u64, range: &Type, two: bool) -> (Type, Type) {
        match range {
            Type::List(t) if two => (Type::Int, (**t).clone()),
            Type::List(t) => ((**t).clone(), Type::Dyn),
            Type::Map(t) => (t.0.clone(), t.1.clone()),
            Type::Dyn | Type::Error | Type::Var(_) | Type::Param(_) => {
                self.known.fit(&Type::Dyn, range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.problems.add(id, message);
                (Type::Error, Type::Error)
            }
        }
    }

    pub(super) fn comprehension(&mut self, id: u64, c: &ComprehensionExpr) -> Node {
        let outer = self.step_of.take();
        let (range, init) = (self.expression(&c.iter_range), self.expression(&c.accu_init));
        let range_of = self.known.resolve(&range.of);
        let (first, second) = self.variables_over(c.iter_range.id, &range_of, c.iter_var2.is_some());
        let base = self.locals.len();
        let accumulator: Arc<str> = c.accu_var.as_str().into();
        let mut variables: Vec<Arc<str>> = vec![c.iter_var.as_str().into()];
        variables.extend(c.iter_var2.as_deref().map(Arc::from));
        self.locals.push(Local { name: accumulator.clone(), of: init.of.clone() });
        for (name, of) in variables.iter().zip([first, second]) {
            self.locals.push(Local { name: name.clone(), of });
        }
        let condition = self.expression(&c.loop_cond);
        self.wanted(&Type::Bool, &condition);
        self.step_of = Some(base).filter(|_| &*accumulator == "@result");
        let step = self.expression(&c.loop_step);
        self.step_of = None;
        self.wanted(&init.of, &step);
        // The result knows nothing but what was collected.
        for local in &mut self.locals[base + 1..] {
            local.name = "".into();
        }
        let result = self.expression(&c.result);
        self.step_of = outer;
        self.locals.truncate(base);
        let of = self.known.resolve(&result.of);
        let fold = Fold { range, variables: variables.len(), init, condition, step, result };
        Node { kind: ExprKind::Fold(Box::new(fold)), of, id }
    }

    fn wanted(&mut self, of: &Type, found: &Node) {
        if !self.known.fit(of, &found.of) {
            self.mismatch(found.id, of, &found.of);
        }
    }
}

/// Kind of a call: operators that are no functions are told apart.
fn kind(name: &str, member: bool, candidates: Vec<OverloadCandidate>, arguments: Vec<Node>) -> ExprKind {
    let arguments = match name {
        "_?_:_" => match <[Node; 3]>::try_from(arguments) {
            Ok(parts) => return ExprKind::Condition(Box::new(parts)),
            Err(arguments) => arguments,
        },
        "@not_strictly_false" => match <[Node; 1]>::try_from(arguments) {
            Ok([inner]) => return ExprKind::NotStrictlyFalse(Box::new(inner)),
            Err(arguments) => arguments,
        },
        "_[_]" | "_[?_]" => match <[Node; 2]>::try_from(arguments) {
            Ok([operand, index]) => {
                let optional = name == "_[?_]";
                let takes =
                    |of: fn(&Type) -> bool| !optional && candidates.iter().any(|c| c.arguments.first().is_some_and(of));
                let of =
                    Indexed { list: takes(|t| matches!(t, Type::List(_))), map: takes(|t| matches!(t, Type::Map(_))) };
                return ExprKind::Index { operand: Box::new(operand), index: Box::new(index), optional, of };
            }
            Err(arguments) => arguments,
        },
        _ => arguments,
    };
    let how = if member && matches!(name, "or" | "orValue") { How::Otherwise } else { How::Plain };
    let operator = operator::operator(name);
    ExprKind::Call { name: name.into(), member, candidates, arguments, pattern: None, operator, how }
}
