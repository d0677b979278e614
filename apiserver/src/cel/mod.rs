//! CEL: one environment, with Kubernetes' function libraries, for custom resource rules, admission policies, match
//! conditions and authentication configuration.
//!
//! In come expressions and trees, out go values. Synchronous and pure: no expression can reach out of the values it is
//! given. The `cel` crate parses and evaluates; what is here is compiled once ([`Program`]), bound to names ([`Scope`])
//! and extended by [`library`].

mod check;
mod library;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use cel::objects::{Key, Map, OptionalValue};
use cel::{Context, Env};
use proto::Value as Tree;

pub use cel::Value;
pub use check::{Declared, Type, check};

/// Longest expression that is compiled.
const MAX_EXPRESSION: usize = 100 * 1024;

/// The environment all expressions run in.
pub fn environment() -> &'static Arc<Env> {
    static ENV: OnceLock<Arc<Env>> = OnceLock::new();
    ENV.get_or_init(|| {
        let mut env = Env::stdlib();
        let added = [env.add_extension(cel::extensions::strings), env.add_extension(cel::extensions::lists)];
        for result in added.into_iter().chain([library::add(&mut env)]) {
            if let Err(error) = result {
                tracing::error!(?error, "a library of functions for expressions is missing");
            }
        }
        Arc::new(env)
    })
}

/// A compiled expression.
#[derive(Clone)]
pub struct Program {
    program: Arc<cel::Program>,
    variables: Arc<[String]>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Program")
    }
}

impl Program {
    /// Compiles an expression; the error is a report of syntax errors with their places.
    pub fn compile(expression: &str) -> Result<Self, String> {
        if expression.len() > MAX_EXPRESSION {
            return Err("expression is too long".to_owned());
        }
        let program = environment().compile(expression).map_err(|e| report(expression, &e))?;
        let variables = program.references().variables().into_iter().map(str::to_owned).collect();
        Ok(Self { program: Arc::new(program), variables })
    }

    /// Whether a variable is named.
    pub fn mentions(&self, variable: &str) -> bool {
        self.variables.iter().any(|v| v == variable)
    }

    /// The parsed expression.
    pub fn expression(&self) -> &cel::parser::Expression {
        self.program.expression()
    }

    /// Line and column of a part of the expression, both from 1.
    fn place(&self, id: u64) -> (usize, usize) {
        let source = self.program.source_info();
        let start = source.offset_for(id).map_or(0, |(start, _)| start as usize);
        let before: String = source.source.chars().take(start).collect();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        (line, column)
    }
}

/// Syntax errors as `cel-go` prints them.
fn report(expression: &str, errors: &cel::ParseErrors) -> String {
    let lines: Vec<String> = errors
        .errors
        .iter()
        .map(|e| {
            let place = |n: isize| usize::try_from(n).unwrap_or(1).max(1);
            problem(expression, (place(e.pos.0), place(e.pos.1)), &format!("Syntax error: {}", e.msg))
        })
        .collect();
    lines.join("\n")
}

/// One problem with its place in the source.
fn problem(expression: &str, (line, column): (usize, usize), message: &str) -> String {
    let source = expression.lines().nth(line - 1).unwrap_or("");
    let dots = ".".repeat(column - 1);
    format!("ERROR: <input>:{line}:{column}: {message}\n | {source}\n | {dots}^")
}

/// Values by name.
pub struct Scope {
    context: Context<'static, 'static>,
}

impl Default for Scope {
    fn default() -> Self {
        Self::bare()
    }
}

impl Scope {
    /// Without any.
    pub fn bare() -> Self {
        Self { context: Context::with_env(environment().clone()) }
    }

    /// With these trees.
    pub fn of(values: &[(&str, &Tree)]) -> Self {
        let mut scope = Self::bare();
        for (name, value) in values {
            scope.set(name, convert(value));
        }
        scope
    }

    /// Names a value.
    pub fn set(&mut self, name: &str, value: Value) {
        self.context.add_variable_from_value(name, value);
    }

    /// Evaluates.
    pub fn run(&self, program: &Program) -> Result<Value, String> {
        program.program.execute(&self.context).map_err(|e| e.to_string())
    }

    /// The truth of an expression.
    pub fn truth(&self, program: &Program) -> Result<bool, String> {
        match self.run(program)? {
            Value::Bool(answer) => Ok(answer),
            _ => Err("must evaluate to bool".to_owned()),
        }
    }

    /// The text of an expression; `None` for null.
    pub fn text(&self, program: &Program) -> Result<Option<String>, String> {
        match self.run(program)? {
            Value::String(text) => Ok(Some(text.as_ref().clone())),
            Value::Null => Ok(None),
            _ => Err("must evaluate to string".to_owned()),
        }
    }
}

/// A tree as expressions see it: whole numbers are `int`.
pub fn convert(value: &Tree) -> Value {
    match value {
        Tree::Null => Value::Null,
        Tree::Bool(b) => Value::Bool(*b),
        Tree::Number(n) => match n.as_i64() {
            Some(i) => Value::Int(i),
            None => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Tree::String(s) => Value::String(Arc::new(s.clone())),
        Tree::Array(items) => list(items.iter().map(convert)),
        Tree::Object(entries) => map(entries.iter().map(|(k, v)| (k.clone(), convert(v)))),
    }
}

/// A map with text keys.
pub fn map(entries: impl Iterator<Item = (String, Value)>) -> Value {
    let entries: HashMap<Key, Value> = entries.map(|(k, v)| (Key::from(k), v)).collect();
    Value::Map(Map { map: Arc::new(entries) })
}

/// A list.
pub fn list(items: impl Iterator<Item = Value>) -> Value {
    Value::List(Arc::new(items.collect()))
}

/// A floating-point number.
pub fn double(n: f64) -> Value {
    Value::Float(n)
}

/// A whole number that is written as a fraction.
pub fn int(n: f64) -> Value {
    #[allow(clippy::cast_possible_truncation)]
    Value::Int(n as i64)
}

/// No value.
pub fn none() -> Value {
    Value::Opaque(Arc::new(OptionalValue::none()))
}

/// A value that may be missing, and is not.
pub fn some(value: Value) -> Value {
    Value::Opaque(Arc::new(OptionalValue::of(value)))
}

/// A moment: RFC 3339, or a date alone.
pub fn timestamp(text: &str) -> Option<Value> {
    let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    chrono::DateTime::parse_from_rfc3339(&whole).ok().map(Value::Timestamp)
}

/// A span of time as Go writes it.
pub fn duration(text: &str) -> Option<Value> {
    shared::flags::parse_nanos(text).ok().map(|n| Value::Duration(chrono::Duration::nanoseconds(n)))
}

/// Base64.
pub fn bytes(text: &str) -> Option<Value> {
    base64::engine::general_purpose::STANDARD.decode(text).ok().map(|b| Value::Bytes(Arc::new(b)))
}

/// Words of the language, which fields are not called in expressions.
const WORDS: [&str; 19] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
];

/// The name a field has in expressions.
pub fn escape(name: &str) -> String {
    if WORDS.contains(&name) || matches!(name, "void" | "while") {
        return format!("__{name}__");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.contains("__") && name.chars().all(plain) {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn truth(expression: &str) -> Result<bool, String> {
        let object = json!({"name": "web", "list": ["b", "a"], "n": 3});
        Scope::of(&[("self", &object)]).truth(&Program::compile(expression)?)
    }

    #[test]
    fn libraries() {
        for expression in [
            "self.name.find('[a-z]') == 'w'",
            "self.name.find('[0-9]') == ''",
            "'a1b22'.findAll('[0-9]+') == ['1', '22']",
            "'a1b22'.findAll('[0-9]+', 1) == ['1']",
            "!self.list.isSorted() && ['a', 'b'].isSorted()",
            "[1, 2, 3].sum() == 6 && [1.5, 2.0].sum() == 3.5 && [1, 3, 2].max() == 3 && ['b', 'a'].min() == 'a'",
            "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(7) == -1",
            "isURL('https://u@h.com:80/p%20q?a=1&a=2') && !isURL('a b')",
            "url('https://h.com:80/p%20q?a=1&a=2').getHost() == 'h.com:80'",
            "url('https://h.com:80/x').getHostname() == 'h.com' && url('https://h.com:80/x').getPort() == '80'",
            "url('https://h.com/p%20q').getEscapedPath() == '/p%20q' && url('/x').getScheme() == ''",
            "url('https://h.com/?a=1&a=2&b=x%20y').getQuery() == {'a': ['1', '2'], 'b': ['x y']}",
            "quantity('1Gi').isGreaterThan(quantity('1000M')) && quantity('1k').asInteger() == 1000",
            "quantity('50k').add(quantity('20k')) == quantity('70k') && quantity('50k').sub(20000).asInteger() == 30000",
            "isQuantity('1.5') && !isQuantity('x') && quantity('-1').sign() == -1 && !quantity('100m').isInteger()",
            "quantity('1').compareTo(quantity('2')) == -1 && quantity('1500m').asApproximateFloat() == 1.5",
            "ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && isIP('1.2.3.4') && !isIP('1.2.3')",
            "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
            "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8",
            "isCIDR('10.0.0.0/8') && cidr('10.0.0.1/8').ip() == ip('10.0.0.1') && ip.isCanonical('::1')",
            "semver('1.2.3').isLessThan(semver('1.10.0')) && isSemver('1.0.0-rc.1') && !isSemver('1.0')",
            "semver('1.2.3').major() == 1 && semver('v1.2', true).minor() == 2 && semver('1.0.0-a').compareTo(semver('1.0.0')) == -1",
            "sets.contains([1, 2, 3], [2]) && sets.equivalent([1, 1], [1]) && sets.intersects([1], [1, 2])",
            "format.dns1123Label().validate('Not') != optional.none() && !format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
            "self.?missing.orValue('x') == 'x' && [?self.?missing] == []",
            "'a,b'.split(',').map(p, p.upperAscii()) == ['A', 'B']",
            "self.list.exists(x, x == 'a') && self.list.sort() == ['a', 'b']",
            "duration('1h') > duration('30m') && timestamp('2026-01-01T00:00:00Z').getFullYear() == 2026",
        ] {
            assert_eq!(truth(expression), Ok(true), "{expression}");
        }
    }

    #[test]
    fn what_is_wrong_is_shown() {
        assert!(Program::compile("self.name ==").expect_err("incomplete").starts_with("ERROR: <input>:1:"));
        assert!(truth("self.nope == 1").expect_err("missing").contains("nope"));
        assert!(truth("quantity('x') == quantity('1')").is_err());
        assert_eq!(escape("a-b.c"), "a__dash__b__dot__c");
        assert_eq!(escape("namespace"), "__namespace__");
        assert_eq!(escape("a__b"), "a__underscores__b");
    }
}
