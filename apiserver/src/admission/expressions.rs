//! CEL: expressions in webhook match conditions and admission policies. Compiled once, run on trees.
//!
//! Synchronous and pure: no expression can reach out of the values it is given. Messages are those of upstream's
//! compiler and evaluator.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use cel::objects::{Key, Map};
use cel::{Context, Env, ExecutionError, Program};
use parking_lot::Mutex;
use serde_json::Value;

use super::authorizer;

/// Programs remembered.
const PROGRAMS: usize = 1024;

type Compiled = Result<Arc<Program>, String>;

fn environment() -> &'static Arc<Env> {
    static ENV: OnceLock<Arc<Env>> = OnceLock::new();
    ENV.get_or_init(|| {
        let mut env = Env::stdlib();
        for added in [env.add_extension(cel::extensions::strings), env.add_extension(cel::extensions::lists)] {
            if let Err(error) = added {
                tracing::error!(?error, "a library of functions for expressions is missing");
            }
        }
        Arc::new(env)
    })
}

fn compiled(expression: &str) -> Compiled {
    static KNOWN: OnceLock<Mutex<HashMap<String, Compiled>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    if let Some(program) = known.lock().get(expression) {
        return program.clone();
    }
    let program = environment().compile(expression).map(Arc::new).map_err(|errors| {
        let errors = errors.errors.iter().map(|e| complaint(expression, e.pos, &e.msg));
        errors.collect::<Vec<_>>().join("\n")
    });
    let mut known = known.lock();
    if known.len() >= PROGRAMS {
        known.clear();
    }
    known.insert(expression.to_owned(), program.clone());
    program
}

/// Whether an expression can be run at all.
pub(crate) fn check(expression: &str) -> Result<(), String> {
    compiled(expression).map(drop)
}

/// An error of the compiler with the line it is about and a mark below.
fn complaint(expression: &str, (line, column): (isize, isize), message: &str) -> String {
    let mut text = format!("ERROR: <input>:{line}:{column}: {message}");
    let at = usize::try_from(line - 1).ok().and_then(|n| expression.lines().nth(n));
    if let Some(source) = at {
        let dots = ".".repeat(usize::try_from(column - 1).unwrap_or(0));
        text.push_str(&format!("\n | {source}\n | {dots}^"));
    }
    text
}

/// What is wrong with an expression that may speak of `names`: it cannot be read, or names something else.
pub(crate) fn problem(expression: &str, names: &[&str]) -> Option<String> {
    let program = match compiled(expression) {
        Ok(program) => program,
        Err(why) => return Some(format!("compilation failed: {why}")),
    };
    let mut unknown = Vec::new();
    let mut known: Vec<&str> = names.iter().copied().chain(TYPES).collect();
    undeclared(program.expression(), &mut known, &mut unknown);
    if unknown.is_empty() {
        return None;
    }
    let complaints = unknown.into_iter().map(|(id, name)| {
        let at = program.source_info().offset_for(id).map_or(0, |(start, _)| start as usize);
        let before = expression.get(..at).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        let place = (isize::try_from(line).unwrap_or(1), isize::try_from(column).unwrap_or(1));
        complaint(expression, place, &format!("undeclared reference to '{name}' (in container '')"))
    });
    Some(format!("compilation failed: {}", complaints.collect::<Vec<_>>().join("\n")))
}

/// Names of types, which are values too.
const TYPES: [&str; 14] = [
    "bool",
    "bytes",
    "double",
    "dyn",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
    "google",
    "optional",
    "optional_type",
];

/// Collects identifiers that nothing declares.
fn undeclared<'a>(e: &'a IdedExpr, known: &mut Vec<&'a str>, out: &mut Vec<(u64, &'a str)>) {
    match &e.expr {
        Expr::Ident(name) if !known.contains(&name.as_str()) => out.push((e.id, name)),
        Expr::Select(select) => undeclared(&select.operand, known, out),
        Expr::Call(call) => {
            // A namespaced function (`math.greatest`, `sets.contains`) looks like a method of its namespace.
            let library = |t: &IdedExpr| matches!(&t.expr, Expr::Ident(name) if LIBRARIES.contains(&name.as_str()));
            if let Some(target) = call.target.as_deref().filter(|t| !library(t)) {
                undeclared(target, known, out);
            }
            call.args.iter().for_each(|a| undeclared(a, known, out));
        }
        Expr::List(list) => list.elements.iter().for_each(|a| undeclared(a, known, out)),
        Expr::Map(map) => map.entries.iter().for_each(|entry| entry_undeclared(&entry.expr, known, out)),
        Expr::Struct(made) => made.entries.iter().for_each(|entry| entry_undeclared(&entry.expr, known, out)),
        Expr::Comprehension(c) => {
            undeclared(&c.iter_range, known, out);
            undeclared(&c.accu_init, known, out);
            let depth = known.len();
            known.extend([c.iter_var.as_str(), c.accu_var.as_str()]);
            known.extend(c.iter_var2.as_deref());
            for part in [&c.loop_cond, &c.loop_step, &c.result] {
                undeclared(part, known, out);
            }
            known.truncate(depth);
        }
        _ => {}
    }
}

fn entry_undeclared<'a>(entry: &'a EntryExpr, known: &mut Vec<&'a str>, out: &mut Vec<(u64, &'a str)>) {
    match entry {
        EntryExpr::StructField(field) => undeclared(&field.value, known, out),
        EntryExpr::MapEntry(pair) => {
            undeclared(&pair.key, known, out);
            undeclared(&pair.value, known, out);
        }
    }
}

const LIBRARIES: [&str; 9] = ["math", "sets", "lists", "strings", "format", "base64", "ip", "cidr", "semver"];

/// A tree as expressions see it: whole numbers are `int`.
fn convert(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(b) => cel::Value::Bool(*b),
        Value::Number(n) => match n.as_i64() {
            Some(i) => cel::Value::Int(i),
            None => cel::Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => cel::Value::String(Arc::new(s.clone())),
        Value::Array(list) => cel::Value::List(Arc::new(list.iter().map(convert).collect())),
        Value::Object(map) => {
            let entries: HashMap<Key, cel::Value> =
                map.iter().map(|(k, v)| (Key::from(k.clone()), convert(v))).collect();
            cel::Value::Map(Map { map: Arc::new(entries) })
        }
    }
}

/// The values expressions are about.
pub(crate) struct Scope {
    context: Context<'static, 'static>,
    variables: HashMap<Key, cel::Value>,
    /// Variables that could not be computed, and why.
    broken: BTreeMap<String, String>,
}

impl Scope {
    /// With named values.
    pub(crate) fn new(values: &[(&str, &Value)]) -> Self {
        let mut context = Context::with_env(environment().clone());
        for (name, value) in values {
            context.add_variable_from_value(*name, convert(value));
        }
        Self { context, variables: HashMap::new(), broken: BTreeMap::new() }
    }

    /// Adds `authorizer`, by which expressions ask what the user of the request may do.
    pub(super) fn authorize(&mut self, authorizer: authorizer::Asker) {
        authorizer::add(&mut self.context, authorizer);
    }

    /// Adds `variables.<name>`. One that cannot be computed fails whoever uses it.
    pub(super) fn define(&mut self, name: &str, expression: &str) {
        match self.run(expression) {
            Ok(value) => drop(self.variables.insert(Key::from(name.to_owned()), value)),
            Err(why) => drop(self.broken.insert(name.to_owned(), why)),
        }
        let map = cel::Value::Map(Map { map: Arc::new(self.variables.clone()) });
        self.context.add_variable_from_value("variables", map);
    }

    fn run(&self, expression: &str) -> Result<cel::Value, String> {
        compiled(expression)?.execute(&self.context).map_err(|e| match e {
            ExecutionError::NoSuchKey(key) => match self.broken.get(key.as_str()) {
                Some(why) => format!("composited variable {key:?} fails to evaluate: {why}"),
                None => format!("no such key: {key}"),
            },
            ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
            ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
            other => other.to_string(),
        })
    }

    /// The value of an expression as a tree.
    pub(crate) fn value(&self, expression: &str) -> Result<Value, String> {
        self.run(expression)?.json().map_err(|e| e.to_string())
    }

    /// The truth of an expression.
    pub(crate) fn truth(&self, expression: &str) -> Result<bool, String> {
        match self.run(expression)? {
            cel::Value::Bool(answer) => Ok(answer),
            _ => Err("must evaluate to bool".to_owned()),
        }
    }

    /// The truth of a rule; the error names the rule.
    pub(super) fn judge(&self, expression: &str) -> Result<bool, String> {
        self.truth(expression).map_err(|why| failed(expression, &why))
    }

    /// The text of an expression; `None` for null.
    pub(super) fn text(&self, expression: &str) -> Result<Option<String>, String> {
        match self.run(expression).map_err(|why| failed(expression, &why))? {
            cel::Value::String(text) => Ok(Some(text.as_ref().clone())),
            cel::Value::Null => Ok(None),
            other => Err(format!(
                "valueExpression '{expression}' resulted in unsupported return type: {}. Return type must be either string or null.",
                other.type_of()
            )),
        }
    }
}

fn failed(expression: &str, why: &str) -> String {
    format!("expression '{expression}' resulted in error: {why}")
}

/// Whether any of these expressions speaks of a name.
pub(super) fn mention<'a>(expressions: impl IntoIterator<Item = &'a str>, name: &str) -> bool {
    expressions.into_iter().any(|e| compiled(e).is_ok_and(|p| p.references().has_variable(name)))
}

/// Whether all conditions are true: the name of the first that is false, or `None`. One that is false wins over those
/// that fail.
pub(super) fn hold(conditions: &[Value], scope: &Scope) -> Result<bool, String> {
    let mut failures = Vec::new();
    for condition in conditions {
        match scope.judge(crate::access::tree::text(condition, "/expression")) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) => failures.push(why),
        }
    }
    let mut seen = BTreeSet::new();
    failures.retain(|f| seen.insert(f.clone()));
    if failures.is_empty() { Ok(true) } else { Err(crate::authz::rbac::join_errors(failures)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_policies_are_written_with() {
        let object = json!({"metadata": {"name": "web", "labels": {"app": "a"}}, "spec": {"replicas": 3,
            "template": {"spec": {"containers": [{"name": "c", "image": "reg.example.com/x:1"}, {"name": "d", "image": "other/x"}]}}}});
        let null = Value::Null;
        let mut scope = Scope::new(&[("object", &object), ("oldObject", &null)]);
        scope.define("images", "object.spec.template.spec.containers.map(c, c.image)");
        scope.define("broken", "object.nope.nope");
        for (expression, want) in [
            ("object.spec.replicas <= 5", Ok(true)),
            ("object.spec.replicas == 3", Ok(true)),
            ("oldObject == null || object.spec.replicas == oldObject.spec.replicas", Ok(true)),
            ("has(object.spec.paused)", Ok(false)),
            ("object.metadata.name.startsWith('we')", Ok(true)),
            ("object.metadata.name.matches('^[a-z]+$')", Ok(true)),
            ("object.spec.template.spec.containers.all(c, c.image.startsWith('reg.example.com/'))", Ok(false)),
            ("'app' in object.metadata.labels", Ok(true)),
            ("variables.images.exists(i, i == 'other/x')", Ok(true)),
            ("size(variables.images) == 2", Ok(true)),
            ("object.metadata.name.upperAscii() == 'WEB'", Ok(true)),
            ("variables.broken == 1", Err(())),
            ("object.spec.replicas", Err(())),
            ("object.spec.(", Err(())),
        ] {
            assert_eq!(scope.truth(expression).map_err(drop), want, "{expression}");
        }
        assert_eq!(scope.text("'too many: ' + string(object.spec.replicas)"), Ok(Some("too many: 3".into())));
        assert_eq!(
            scope.judge("variables.broken == 1"),
            Err("expression 'variables.broken == 1' resulted in error: composited variable \"broken\" fails to evaluate: no such key: nope".into())
        );
    }

    #[test]
    fn expressions_are_checked() {
        for (expression, want) in [
            ("object.a == 1 && [1].all(x, x > 0) && int(object.b) > 0", None),
            (
                "object.",
                Some(
                    "compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'\n | object.\n | .......^",
                ),
            ),
            (
                "1 == foo",
                Some(
                    "compilation failed: ERROR: <input>:1:6: undeclared reference to 'foo' (in container '')\n | 1 == foo\n | .....^",
                ),
            ),
        ] {
            assert_eq!(problem(expression, &["object"]).as_deref(), want, "{expression}");
        }
    }
}
