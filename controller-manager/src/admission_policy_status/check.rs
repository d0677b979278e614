//! Type checking of CEL expressions against the schemas of the objects they are about.
//!
//! In: an expression and the types of its variables. Out: complaints, worded and placed as upstream's compiler does.
//! What the checker does not know, a function or a type, it takes to be right. No I/O here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, SourceInfo};
use cel::parser::Parser;

use super::types::Type;

/// Variables by name.
pub type Variables = BTreeMap<String, Type>;

/// Names that are types, and so values, in every expression.
const TYPE_NAMES: [&str; 11] =
    ["bool", "bytes", "double", "dyn", "int", "list", "map", "null_type", "string", "type", "uint"];

/// The type of an expression, or the complaints about it.
pub fn check(source: &str, variables: &Variables) -> Result<Type, String> {
    let parser = Parser::new().enable_optional_syntax(true).enable_ident_escape_syntax(true);
    let (expression, info) = match parser.parse_with_source_info(source) {
        Ok(parsed) => parsed,
        Err(errors) => {
            let all = errors.errors.iter().map(|e| {
                let line = usize::try_from(e.pos.0).unwrap_or(1).max(1);
                let column = usize::try_from(e.pos.1).unwrap_or(0);
                complaint(source, line, column, &format!("Syntax error: {}", e.msg))
            });
            return Err(all.collect::<Vec<_>>().join("\n"));
        }
    };
    let mut checker = Checker { source, info, scopes: Vec::new(), variables, complaints: Vec::new() };
    let result = checker.of(&expression);
    if checker.complaints.is_empty() {
        return Ok(result);
    }
    checker.complaints.sort();
    checker.complaints.dedup();
    let all = checker.complaints.iter().map(|(offset, text)| {
        let (line, column) = position(source, *offset);
        complaint(source, line, column, text)
    });
    Err(all.collect::<Vec<_>>().join("\n"))
}

/// Line and column, both from one, of an offset in characters.
fn position(source: &str, offset: usize) -> (usize, usize) {
    let before: String = source.chars().take(offset).collect();
    let line = before.matches('\n').count() + 1;
    (line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1)
}

fn complaint(source: &str, line: usize, column: usize, text: &str) -> String {
    let mut out = format!("ERROR: <input>:{line}:{column}: {text}");
    if let Some(shown) = source.lines().nth(line - 1) {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n | {shown}\n | {}^", ".".repeat(column.saturating_sub(1)));
    }
    out
}

struct Checker<'a> {
    source: &'a str,
    info: SourceInfo,
    scopes: Vec<(String, Type)>,
    variables: &'a Variables,
    complaints: Vec<(usize, String)>,
}

impl Checker<'_> {
    fn complain(&mut self, id: u64, text: String) -> Type {
        let offset = self.info.offset_for(id).map_or(0, |(start, _)| start as usize);
        self.complaints.push((offset, text));
        // One mistake is one complaint: what follows from it is taken to be right.
        Type::Dyn
    }

    fn of(&mut self, e: &IdedExpr) -> Type {
        match &e.expr {
            Expr::Literal(literal) => of_literal(literal),
            Expr::Ident(name) => self.ident(e.id, name),
            Expr::Select(select) => self.select(e.id, select),
            Expr::Call(call) => self.call(e.id, call),
            Expr::List(list) => {
                let types: Vec<Type> = list.elements.iter().map(|e| self.of(e)).collect();
                Type::list(common(types))
            }
            Expr::Map(map) => self.map(map.entries.iter().map(|e| &e.expr)),
            Expr::Struct(s) => {
                for entry in &s.entries {
                    self.entry(&entry.expr);
                }
                Type::Dyn
            }
            Expr::Comprehension(c) => self.comprehension(c),
            Expr::Unspecified => Type::Dyn,
        }
    }

    fn entry(&mut self, entry: &EntryExpr) -> (Type, Type) {
        match entry {
            EntryExpr::MapEntry(m) => (self.of(&m.key), self.of(&m.value)),
            EntryExpr::StructField(f) => (Type::String, self.of(&f.value)),
        }
    }

    fn map<'e>(&mut self, entries: impl Iterator<Item = &'e EntryExpr>) -> Type {
        let (keys, values): (Vec<Type>, Vec<Type>) = entries.map(|e| self.entry(e)).unzip();
        Type::Map(Box::new(common(keys)), Box::new(common(values)))
    }

    fn ident(&mut self, id: u64, name: &str) -> Type {
        if let Some((_, found)) = self.scopes.iter().rev().find(|(n, _)| n == name) {
            return found.clone();
        }
        if let Some(found) = self.variables.get(name) {
            return found.clone();
        }
        if TYPE_NAMES.contains(&name) || name.starts_with('@') || name.starts_with("__") {
            return Type::Dyn;
        }
        self.complain(id, format!("undeclared reference to '{name}' (in container '')"))
    }

    /// `google.protobuf.Timestamp` and the like are names, not fields of a variable.
    fn qualified(&self, select: &SelectExpr) -> bool {
        let mut operand = &select.operand.expr;
        while let Expr::Select(inner) = operand {
            operand = &inner.operand.expr;
        }
        matches!(operand, Expr::Ident(root) if matches!(root.as_str(), "google" | "optional" | "math" | "strings" | "sets" | "base64" | "cel"))
    }

    fn select(&mut self, id: u64, select: &SelectExpr) -> Type {
        if self.qualified(select) {
            return Type::Dyn;
        }
        let operand = self.of(&select.operand);
        let found = match &operand {
            Type::Dyn => Some(Type::Dyn),
            Type::Object(_) | Type::Map(..) => operand.field(&unescaped(&select.field)),
            other => {
                let text = format!("type '{other}' does not support field selection");
                return self.complain(id, text);
            }
        };
        match found {
            None => self.complain(id, format!("undefined field '{}'", select.field)),
            Some(_) if select.test => Type::Bool,
            Some(found) => found,
        }
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Type {
        let range = self.of(&c.iter_range);
        let (first, second) = match range {
            Type::List(of) if c.iter_var2.is_some() => (Type::Int, *of),
            Type::List(of) => (*of, Type::Dyn),
            Type::Map(key, value) => (*key, *value),
            Type::Dyn => (Type::Dyn, Type::Dyn),
            other => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                (self.complain(c.iter_range.id, text), Type::Dyn)
            }
        };
        let initial = self.of(&c.accu_init);
        let depth = self.scopes.len();
        self.scopes.push((c.accu_var.clone(), initial.clone()));
        self.scopes.push((c.iter_var.clone(), first));
        if let Some(name) = &c.iter_var2 {
            self.scopes.push((name.clone(), second));
        }
        self.of(&c.loop_cond);
        let step = self.of(&c.loop_step);
        self.scopes.truncate(depth);
        // An empty list says nothing of its elements, the step does.
        let result = if initial.agrees(&step) { step } else { initial };
        self.scopes.push((c.accu_var.clone(), result));
        let out = self.of(&c.result);
        self.scopes.truncate(depth);
        out
    }

    fn call(&mut self, id: u64, call: &CallExpr) -> Type {
        let name = call.func_name.as_str();
        // Functions of a namespace look like methods of a variable.
        let target = call.target.as_ref().filter(|t| !matches!(&t.expr, Expr::Ident(n) if self.namespace(n)));
        if name == "_?._" {
            for arg in call.args.iter().take(1) {
                self.of(arg);
            }
            return Type::Dyn;
        }
        let receiver = target.map(|t| self.of(t));
        let args: Vec<Type> = call.args.iter().map(|a| self.of(a)).collect();
        let all: Vec<&Type> = receiver.iter().chain(&args).collect();
        match overload(name, receiver.is_some(), &all) {
            Some(result) => result,
            None => {
                let shown: Vec<String> = args.iter().map(ToString::to_string).collect();
                let shown = match &receiver {
                    Some(receiver) => format!("{receiver}.({})", shown.join(", ")),
                    None => format!("({})", shown.join(", ")),
                };
                self.complain(id, format!("found no matching overload for '{name}' applied to '{shown}'"))
            }
        }
    }

    fn namespace(&self, name: &str) -> bool {
        !self.variables.contains_key(name)
            && !self.scopes.iter().any(|(n, _)| n == name)
            && matches!(name, "optional" | "math" | "strings" | "sets" | "base64" | "cel" | "ip" | "cidr")
    }
}

impl std::fmt::Debug for Checker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker").field("source", &self.source).finish_non_exhaustive()
    }
}

fn of_literal(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(_) => Type::Bytes,
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(_) => Type::String,
        LiteralValue::UInt(_) => Type::Uint,
    }
}

/// The one type of all, or any.
fn common(types: Vec<Type>) -> Type {
    let mut types = types.into_iter();
    let Some(first) = types.next() else { return Type::Dyn };
    if types.all(|t| t.agrees(&first)) { first } else { Type::Dyn }
}

/// Names that are no identifiers are written with escapes in expressions.
fn unescaped(field: &str) -> String {
    let reserved = field.strip_prefix("__").and_then(|f| f.strip_suffix("__")).filter(|f| !f.contains("__"));
    if let Some(word) = reserved {
        return word.to_owned();
    }
    let mut out = field.to_owned();
    for (escape, plain) in [("__dot__", "."), ("__dash__", "-"), ("__slash__", "/"), ("__underscores__", "__")] {
        out = out.replace(escape, plain);
    }
    out
}

/// The result type; None when no overload takes these types.
fn overload(name: &str, method: bool, args: &[&Type]) -> Option<Type> {
    use Type::{Bool, Bytes, Double, Duration, Dyn, Int, List, Map, String, Timestamp, Uint};
    let number = |t: &Type| matches!(t, Dyn | Int | Uint | Double);
    match (name, args) {
        ("_==_" | "_!=_", [a, b]) => a.agrees(b).then_some(Bool),
        ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => {
            let ordered = |t: &Type| number(t) || matches!(t, Bool | String | Bytes | Duration | Timestamp);
            let comparable = (number(a) && number(b)) || a.agrees(b);
            (ordered(a) && ordered(b) && comparable).then_some(Bool)
        }
        ("_&&_" | "_||_", all) => all.iter().all(|t| t.agrees(&Bool)).then_some(Bool),
        ("!_" | "@not_strictly_false", [a]) => a.agrees(&Bool).then_some(Bool),
        ("-_", [a]) => matches!(a, Dyn | Int | Double).then(|| (*a).clone()),
        ("_+_", [Timestamp, Duration] | [Duration, Timestamp]) => Some(Timestamp),
        ("_+_", [a, b]) => {
            let adds = matches!(a, Dyn | Int | Uint | Double | String | Bytes | List(_) | Duration);
            match (a, b) {
                (Dyn, other) | (other, Dyn) => Some((*other).clone()).filter(|_| adds),
                _ => (adds && a.agrees(b)).then(|| (*a).clone()),
            }
        }
        ("_-_", [Timestamp, Timestamp]) => Some(Duration),
        ("_-_", [Timestamp, Duration]) => Some(Timestamp),
        ("_-_", [a, b]) => {
            let known = if matches!(a, Dyn) { b } else { a };
            let takes = |t: &Type| number(t) || matches!(t, Duration | Timestamp);
            (takes(a) && takes(b) && a.agrees(b)).then(|| (*known).clone())
        }
        ("_*_" | "_/_", [a, b]) => {
            let known = if matches!(a, Dyn) { b } else { a };
            (number(a) && number(b) && a.agrees(b)).then(|| (*known).clone())
        }
        ("_%_", [a, b]) => {
            let whole = |t: &Type| matches!(t, Dyn | Int | Uint);
            (whole(a) && whole(b) && a.agrees(b)).then(|| (*a).clone())
        }
        ("_?_:_", [condition, a, b]) => {
            let result = if matches!(a, Dyn | Type::Null) { b } else { a };
            (condition.agrees(&Bool) && a.agrees(b)).then(|| (*result).clone())
        }
        ("_[_]", [List(of), index]) => number(index).then(|| (**of).clone()),
        ("_[_]", [Map(key, value), index]) => key.agrees(index).then(|| (**value).clone()),
        ("_[_]", [container, _]) => matches!(container, Dyn).then_some(Dyn),
        ("@in", [value, List(of)]) => value.agrees(of).then_some(Bool),
        ("@in", [value, Map(key, _)]) => value.agrees(key).then_some(Bool),
        ("@in", [_, container]) => matches!(container, Dyn).then_some(Bool),
        ("size", [a]) => matches!(a, Dyn | String | Bytes | List(_) | Map(..)).then_some(Int),
        ("startsWith" | "endsWith" | "contains" | "matches", [a, b]) if method => {
            // Sets of networks contain, too.
            let texts = a.agrees(&String) && b.agrees(&String);
            texts.then_some(Bool)
        }
        ("lowerAscii" | "upperAscii" | "trim" | "replace" | "substring" | "charAt", [a, ..]) if method => {
            a.agrees(&String).then_some(String)
        }
        ("split", [a, ..]) if method => a.agrees(&String).then(|| Type::list(String)),
        ("join", [a, ..]) if method => a.agrees(&Type::list(String)).then_some(String),
        ("string", [_]) => Some(String),
        ("int", [_]) => Some(Int),
        ("uint", [_]) => Some(Uint),
        ("double", [_]) => Some(Double),
        ("duration", [_]) => Some(Duration),
        ("timestamp", [_]) => Some(Timestamp),
        // Libraries are many, and what they give is known when they run.
        _ => Some(Dyn),
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::{Document, request};
    use super::*;

    fn variables() -> Variables {
        let document = proto::openapi::v3_group_version("apps", "v1").expect("a document");
        let document = Document::new(serde_json::from_slice(&document).expect("JSON"));
        let object = document.kind("apps", "v1", "Deployment").expect("kind");
        let metadata = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let schema = serde_json::json!({"type": "object", "properties": {"metadata": {"$ref": metadata}, "spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "names": {"type": "array", "items": {"type": "string"}},
            "free": {"x-kubernetes-preserve-unknown-fields": true, "type": "object"}}}}});
        [
            ("object", object.clone()),
            ("oldObject", object),
            ("request", request()),
            ("custom", Type::of_schema("Foo", &schema, &document)),
            ("params", Type::Dyn),
            ("variables", Type::Dyn),
        ]
        .into_iter()
        .map(|(n, t)| (n.to_owned(), t))
        .collect()
    }

    #[test]
    fn what_is_right() {
        let v = variables();
        for e in [
            "object.spec.replicas > 1",
            "object.spec.replicas <= 5.5",
            "has(object.metadata.labels) && object.metadata.labels['app'] == 'x'",
            "object.metadata.labels.app == 'x'",
            "object.spec.template.spec.containers.all(c, c.image.startsWith('r/') && c.name != '')",
            "object.spec.template.spec.containers.exists(c, size(c.args) > 2)",
            "object.spec.template.spec.containers.map(c, c.name).exists(n, n == 'a')",
            "object.spec.template.spec.containers.filter(c, has(c.resources)).size() == 1",
            "oldObject == null || object.spec.replicas == oldObject.spec.replicas",
            "request.userInfo.username == 'admin' && 'g' in request.userInfo.groups",
            "params.max >= object.spec.replicas",
            "variables.anything.goes",
            "object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')",
            "custom.spec.size + 1 > 2 && custom.metadata.name == 'x' && custom.spec.free.any.thing == 1",
            "custom.spec.names.all(n, n.matches('^a'))",
            "object.spec.strategy.rollingUpdate.maxSurge == 1",
            "object.spec.?replicas.orValue(1) > 2",
            "string(object.spec.replicas) + ' replicas'",
        ] {
            assert!(check(e, &v).is_ok(), "{e}: {}", check(e, &v).unwrap_err());
        }
    }

    #[test]
    fn what_is_wrong() {
        let v = variables();
        for (e, want) in [
            ("object.spec.replicas > '1'", "found no matching overload for '_>_' applied to '(int, string)'"),
            ("object.spec.replicas == '1'", "found no matching overload for '_==_' applied to '(int, string)'"),
            ("object.spec.nope > 1", "undefined field 'nope'"),
            ("has(object.spec.nope)", "undefined field 'nope'"),
            ("unknown.spec", "undeclared reference to 'unknown' (in container '')"),
            ("object.spec.replicas.deep == 1", "type 'int' does not support field selection"),
            ("object.spec.template.spec.containers.all(c, c.imag != '')", "undefined field 'imag'"),
            ("object.spec.replicas.all(c, c == 1)", "cannot be range of a comprehension"),
            (
                "custom.spec.size == custom.spec.names",
                "found no matching overload for '_==_' applied to '(int, list(string))'",
            ),
            ("request.user == 'x'", "undefined field 'user'"),
            ("object.spec.replicas && true", "found no matching overload for '_&&_' applied to '(int, bool)'"),
        ] {
            let got = check(e, &v).expect_err(e);
            assert!(got.contains(want), "{e}: {got}");
        }
    }

    #[test]
    fn where_it_is_wrong() {
        assert_eq!(
            check("object.spec.replicas > '1'", &variables()).unwrap_err(),
            "ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^"
        );
    }
}
