//! Checking expressions before they run: names that nobody declared, fields a type does not have, operators that do not
//! fit their operands, results of the wrong type.
//!
//! Types that cannot be told are [`Type::Dyn`] and pass; what passes here may still fail when it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, SelectExpr};
use ::cel::parser::Expression;

use super::{Program, problem};

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Known when it runs.
    Dyn,
    /// `null`.
    Null,
    /// Truth.
    Bool,
    /// Whole number.
    Int,
    /// Whole number without sign.
    UInt,
    /// Fraction.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// Moment.
    Timestamp,
    /// Span.
    Duration,
    /// List of one type.
    List(Box<Type>),
    /// Map from text to one type.
    Map(Box<Type>),
    /// A struct with these fields.
    Object(Arc<BTreeMap<String, Type>>),
    /// A value that may be missing.
    Optional(Box<Type>),
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::UInt => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::List(t) => write!(f, "list({t})"),
            Self::Map(t) => write!(f, "map(string, {t})"),
            Self::Object(_) => f.write_str("object"),
            Self::Optional(t) => write!(f, "optional_type({t})"),
        }
    }
}

/// Variables and their types.
pub type Declared = BTreeMap<String, Type>;

/// Checks an expression; the error is a report as `cel-go` prints it. The type of the result is returned.
pub fn check(source: &str, program: &Program, variables: &Declared) -> Result<Type, String> {
    let mut checker = Checker { scopes: vec![variables.clone()], problems: Vec::new() };
    let found = checker.expression(program.expression());
    if checker.problems.is_empty() {
        return Ok(found);
    }
    let lines: Vec<String> =
        checker.problems.iter().map(|(id, message)| problem(source, program.place(*id), message)).collect();
    Err(lines.join("\n"))
}

struct Checker {
    scopes: Vec<Declared>,
    problems: Vec<(u64, String)>,
}

/// Functions there are, beside operators.
const FUNCTIONS: &[&str] = &[
    "size",
    "has",
    "type",
    "dyn",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "bytes",
    "timestamp",
    "duration",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "getFullYear",
    "getMonth",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
    "charAt",
    "indexOf",
    "lastIndexOf",
    "join",
    "lowerAscii",
    "upperAscii",
    "replace",
    "split",
    "substring",
    "trim",
    "format",
    "quote",
    "reverse",
    "slice",
    "flatten",
    "distinct",
    "sort",
    "sortBy",
    "range",
    "isSorted",
    "sum",
    "min",
    "max",
    "find",
    "findAll",
    "url",
    "isURL",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
    "getQuery",
    "quantity",
    "isQuantity",
    "sign",
    "isInteger",
    "asInteger",
    "asApproximateFloat",
    "add",
    "sub",
    "isLessThan",
    "isGreaterThan",
    "compareTo",
    "ip",
    "isIP",
    "isCanonical",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "cidr",
    "isCIDR",
    "containsIP",
    "containsCIDR",
    "masked",
    "prefixLength",
    "semver",
    "isSemver",
    "major",
    "minor",
    "patch",
    "validate",
    "named",
    "equivalent",
    "intersects",
    "of",
    "ofNonZeroValue",
    "none",
    "hasValue",
    "value",
    "or",
    "orValue",
    "optMap",
    "optFlatMap",
    "first",
    "last",
    "unwrapOpt",
    "path",
    "group",
    "resource",
    "subresource",
    "namespace",
    "name",
    "check",
    "allowed",
    "reason",
    "errored",
    "error",
    "serviceAccount",
    "fieldSelector",
    "labelSelector",
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "map",
    "filter",
];

/// Names in front of functions, and types.
const NAMESPACES: &[&str] = &[
    "sets",
    "strings",
    "lists",
    "format",
    "ip",
    "optional",
    "cel",
    "math",
    "base64",
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "google",
    "authorizer",
    "net",
    "kubernetes",
];

impl Checker {
    fn complain(&mut self, id: u64, message: String) -> Type {
        self.problems.push((id, message));
        Type::Dyn
    }

    fn variable(&self, name: &str) -> Option<Type> {
        self.scopes.iter().rev().find_map(|s| s.get(name).cloned())
    }

    fn expression(&mut self, e: &Expression) -> Type {
        match &e.expr {
            Expr::Unspecified => Type::Dyn,
            Expr::Ident(name) => match self.variable(name.trim_start_matches('.')) {
                Some(t) => t,
                None if NAMESPACES.contains(&name.as_str()) || name.starts_with('@') => Type::Dyn,
                None => self.complain(e.id, format!("undeclared reference to '{name}' (in container '')")),
            },
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::UInt(_) => Type::UInt,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::String(_) => Type::String,
                LiteralValue::Bytes(_) => Type::Bytes,
                LiteralValue::Null => Type::Null,
            },
            Expr::List(list) => {
                let found: Vec<Type> = list.elements.iter().map(|x| self.expression(x)).collect();
                let one = found.first().cloned().unwrap_or(Type::Dyn);
                let same = found.iter().all(|t| *t == one) && list.optional_indices.is_empty();
                Type::List(Box::new(if same { one } else { Type::Dyn }))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let ::cel::common::ast::EntryExpr::MapEntry(entry) = &entry.expr {
                        self.expression(&entry.key);
                        self.expression(&entry.value);
                    }
                }
                Type::Map(Box::new(Type::Dyn))
            }
            Expr::Struct(_) => Type::Dyn,
            Expr::Select(select) => self.select(e.id, select),
            Expr::Call(call) => self.call(e.id, call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn select(&mut self, id: u64, select: &SelectExpr) -> Type {
        let operand = self.expression(&select.operand);
        let found = self.field(id, &operand, &select.field);
        if select.test { Type::Bool } else { found }
    }

    fn field(&mut self, id: u64, operand: &Type, field: &str) -> Type {
        match operand {
            Type::Dyn => Type::Dyn,
            Type::Map(value) => (**value).clone(),
            Type::Object(fields) => match fields.get(field) {
                Some(t) => t.clone(),
                None => self.complain(id, format!("undefined field '{field}'")),
            },
            Type::Optional(inner) => {
                let inner = (**inner).clone();
                Type::Optional(Box::new(self.field(id, &inner, field)))
            }
            other => {
                let message = format!("type '{other}' does not support field selection");
                self.complain(id, message)
            }
        }
    }

    fn call(&mut self, id: u64, call: &CallExpr) -> Type {
        let qualified = call.target.as_ref().is_some_and(
            |t| matches!(&t.expr, Expr::Ident(n) if self.variable(n).is_none() && NAMESPACES.contains(&n.as_str())),
        );
        let target = match &call.target {
            Some(target) if !qualified => Some(self.expression(target)),
            _ => None,
        };
        // The second operand of an optional selection is the field's name.
        let arguments: Vec<Type> = call.args.iter().map(|a| self.expression(a)).collect();
        let name = call.func_name.as_str();
        if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            if !FUNCTIONS.contains(&name) {
                return self.complain(id, format!("undeclared reference to '{name}' (in container '')"));
            }
            return self.function(id, name, target.as_ref(), &arguments);
        }
        self.operator(id, name, &arguments)
    }

    fn mismatch(&mut self, id: u64, name: &str, target: Option<&Type>, arguments: &[Type]) -> Type {
        let list = arguments.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let shown = target.map_or_else(|| format!("({list})"), |t| format!("{t}.({list})"));
        self.complain(id, format!("found no matching overload for '{name}' applied to '{shown}'"))
    }

    fn function(&mut self, id: u64, name: &str, target: Option<&Type>, arguments: &[Type]) -> Type {
        let on_text = [
            "startsWith",
            "endsWith",
            "matches",
            "contains",
            "charAt",
            "lowerAscii",
            "upperAscii",
            "trim",
            "split",
            "substring",
            "replace",
            "find",
            "findAll",
        ];
        if on_text.contains(&name)
            && let Some(t) = target
            && !matches!(t, Type::String | Type::Dyn)
        {
            return self.mismatch(id, name, target, arguments);
        }
        match name {
            "startsWith" | "endsWith" | "contains"
                if target.is_some()
                    && matches!(arguments.first(), Some(t) if !matches!(t, Type::String | Type::Dyn)) =>
            {
                self.mismatch(id, name, target, arguments)
            }
            "size" => match target.or(arguments.first()) {
                Some(
                    Type::Int | Type::UInt | Type::Double | Type::Bool | Type::Null | Type::Timestamp | Type::Duration,
                ) => self.mismatch(id, name, target, arguments),
                _ => Type::Int,
            },
            "startsWith" | "endsWith" | "matches" | "contains" | "isURL" | "isQuantity" | "isIP" | "isCIDR"
            | "isSemver" | "hasValue" | "isSorted" | "containsIP" | "containsCIDR" | "isLessThan" | "isGreaterThan"
            | "isInteger" | "bool" | "equivalent" | "intersects" | "isLoopback" | "isUnspecified"
            | "isGlobalUnicast" => Type::Bool,
            "int" | "indexOf" | "lastIndexOf" | "compareTo" | "family" | "prefixLength" | "asInteger"
            | "getFullYear" | "getMonth" | "getHours" | "getMinutes" | "getSeconds" => Type::Int,
            "uint" => Type::UInt,
            "double" | "asApproximateFloat" => Type::Double,
            "string" | "charAt" | "lowerAscii" | "upperAscii" | "trim" | "substring" | "replace" | "join" | "find"
            | "quote" | "getScheme" | "getHost" | "getHostname" | "getPort" | "getEscapedPath" => Type::String,
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            "bytes" => Type::Bytes,
            "split" | "findAll" => Type::List(Box::new(Type::String)),
            _ => Type::Dyn,
        }
    }

    fn operator(&mut self, id: u64, name: &str, arguments: &[Type]) -> Type {
        let open = |t: &Type| matches!(t, Type::Dyn);
        match (name, arguments) {
            ("_&&_" | "_||_", [a, b]) => {
                if [a, b].iter().any(|t| !matches!(t, Type::Bool | Type::Dyn)) {
                    return self.mismatch(id, name, None, arguments);
                }
                Type::Bool
            }
            ("!_", [a]) => {
                if !matches!(a, Type::Bool | Type::Dyn) {
                    return self.mismatch(id, name, None, arguments);
                }
                Type::Bool
            }
            ("_?_:_", [_, a, b]) => {
                if a == b {
                    a.clone()
                } else {
                    Type::Dyn
                }
            }
            ("_==_" | "_!=_", [a, b]) => {
                if !comparable(a, b) {
                    return self.mismatch(id, name, None, arguments);
                }
                Type::Bool
            }
            ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => {
                let numbers = is_number(a) && is_number(b);
                let ordered =
                    |t: &Type| matches!(t, Type::Bool | Type::String | Type::Bytes | Type::Timestamp | Type::Duration);
                if !(open(a) || open(b) || numbers || (a == b && ordered(a))) {
                    return self.mismatch(id, name, None, arguments);
                }
                Type::Bool
            }
            ("@in" | "_in_", [_, b]) => {
                if !matches!(b, Type::List(_) | Type::Map(_) | Type::Dyn) {
                    return self.mismatch(id, name, None, arguments);
                }
                Type::Bool
            }
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [a, b]) => self.arithmetic(id, name, a, b, arguments),
            ("-_", [a]) => a.clone(),
            ("_[_]", [a, _]) => match a {
                Type::List(t) | Type::Map(t) => (**t).clone(),
                Type::Dyn | Type::Optional(_) => Type::Dyn,
                _ => self.mismatch(id, name, None, arguments),
            },
            ("@not_strictly_false", _) => Type::Bool,
            _ => Type::Dyn,
        }
    }

    fn arithmetic(&mut self, id: u64, name: &str, a: &Type, b: &Type, arguments: &[Type]) -> Type {
        let plus = name == "_+_";
        match (a, b) {
            (Type::Dyn, _) | (_, Type::Dyn) => Type::Dyn,
            (a, b) if is_number(a) && a == b => a.clone(),
            (Type::String, Type::String) if plus => Type::String,
            (Type::Bytes, Type::Bytes) if plus => Type::Bytes,
            (Type::List(x), Type::List(y)) if plus => {
                if x == y {
                    a.clone()
                } else {
                    Type::List(Box::new(Type::Dyn))
                }
            }
            (Type::Timestamp, Type::Duration) | (Type::Duration, Type::Timestamp) => Type::Timestamp,
            (Type::Timestamp, Type::Timestamp) if name == "_-_" => Type::Duration,
            (Type::Duration, Type::Duration) => Type::Duration,
            _ => self.mismatch(id, name, None, arguments),
        }
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Type {
        let range = self.expression(&c.iter_range);
        let (first, second) = match &range {
            Type::List(t) if c.iter_var2.is_some() => (Type::Int, (**t).clone()),
            Type::List(t) => ((**t).clone(), Type::Dyn),
            Type::Map(t) => (Type::String, (**t).clone()),
            Type::Object(_) => (Type::String, Type::Dyn),
            Type::Dyn | Type::Optional(_) => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.complain(c.iter_range.id, message);
                (Type::Dyn, Type::Dyn)
            }
        };
        let start = self.expression(&c.accu_init);
        let accumulated = if start == Type::Bool {
            Type::Bool
        } else if matches!(start, Type::List(_)) {
            Type::List(Box::new(Type::Dyn))
        } else if start == Type::Int {
            Type::Int
        } else {
            start
        };
        let mut scope = Declared::from([(c.iter_var.clone(), first), (c.accu_var.clone(), accumulated.clone())]);
        if let Some(name) = &c.iter_var2 {
            scope.insert(name.clone(), second);
        }
        self.scopes.push(scope);
        self.expression(&c.loop_cond);
        let step = self.expression(&c.loop_step);
        self.scopes.pop();
        let mut kept = accumulated;
        if let (Type::List(_), Type::List(_)) = (&kept, &step) {
            kept = Type::List(Box::new(Type::Dyn));
        }
        self.scopes.push(Declared::from([(c.accu_var.clone(), kept)]));
        let result = self.expression(&c.result);
        self.scopes.pop();
        result
    }
}

fn is_number(t: &Type) -> bool {
    matches!(t, Type::Int | Type::UInt | Type::Double)
}

/// Whether two values may be asked to be the same.
fn comparable(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn, _) | (_, Type::Dyn) => true,
        (Type::Null, t) | (t, Type::Null) => {
            matches!(t, Type::Null | Type::Object(_) | Type::Timestamp | Type::Duration | Type::Optional(_))
        }
        (Type::List(x), Type::List(y)) | (Type::Map(x), Type::Map(y)) | (Type::Optional(x), Type::Optional(y)) => {
            comparable(x, y)
        }
        (Type::Object(_) | Type::Map(_), Type::Object(_) | Type::Map(_)) => true,
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told() {
        let object = Type::Object(Arc::new(BTreeMap::from([
            ("name".to_owned(), Type::String),
            ("n".to_owned(), Type::Int),
            ("d".to_owned(), Type::Double),
            ("list".to_owned(), Type::List(Box::new(Type::String))),
        ])));
        let declared = Declared::from([("self".to_owned(), object)]);
        let run = |source: &str| {
            let program = Program::compile(source)?;
            check(source, &program, &declared).map(|t| t.to_string())
        };
        for (source, want) in [
            ("self.n > 1 && self.name == 'x'", "bool"),
            ("self.list.exists(x, x == 'a')", "bool"),
            ("self.list.all(x, x.startsWith('a') || size(x) > 2)", "bool"),
            ("self.list.map(x, x + 'y')", "list(dyn)"),
            ("self.n + 1", "int"),
            ("self.d > 1", "bool"),
            ("has(self.name) ? self.name : 'x'", "string"),
            ("quantity(self.name).isLessThan(quantity('1'))", "bool"),
            ("self.list.isSorted()", "bool"),
            ("sets.contains(self.list, ['a'])", "bool"),
        ] {
            assert_eq!(run(source).as_deref(), Ok(want), "{source}");
        }
        for (source, want) in [
            (
                "other == 1",
                "ERROR: <input>:1:1: undeclared reference to 'other' (in container '')\n | other == 1\n | ^",
            ),
            ("self.nope == 1", "undefined field 'nope'"),
            ("self.name == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
            ("self.n && true", "found no matching overload for '_&&_' applied to '(int, bool)'"),
            ("nope(self.n)", "undeclared reference to 'nope' (in container '')"),
            ("self.n.x == 1", "type 'int' does not support field selection"),
            ("self.n.startsWith('a')", "found no matching overload for 'startsWith' applied to 'int.(string)'"),
            ("self.list.all(x, x > 1)", "found no matching overload for '_>_' applied to '(string, int)'"),
        ] {
            let got = run(source).expect_err(source);
            assert!(got.contains(want), "{source}: {got}");
        }
    }
}
