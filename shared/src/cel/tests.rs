//! Tests of CEL: results, errors and costs of expressions.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;

mod hostile;
mod library;
mod upstream;

fn declared() -> Declared {
    let object = Type::object(
        "Self",
        [
            ("name", Type::String),
            ("n", Type::Int),
            ("d", Type::Double),
            ("list", Type::list(Type::String)),
            ("missing", Type::String),
            ("map", Type::map(Type::String, Type::Int)),
            ("any", Type::Dyn),
        ],
    );
    Declared::from([("self".to_owned(), object), ("object".to_owned(), Type::Dyn)])
}

fn tree() -> serde_json::Value {
    json!({"name": "web", "list": ["b", "a"], "n": 3, "d": 1.5, "map": {"a": 1, "b": 2}, "any": {"x": [1, "2"]}})
}

fn run(expression: &str) -> Result<bool, String> {
    let tree = tree();
    let scope = Scope::of(&[("self", &tree), ("object", &tree)]);
    let extras = Extras { bind: true, patch: true };
    let program = Program::compile_with(expression, &declared(), extras).map_err(|e| e.to_string())?;
    match program.run(&scope, PER_CALL_LIMIT).0 {
        Ok(Value::Bool(answer)) => Ok(answer),
        Ok(other) => Err(format!("{other:?}")),
        Err(why) => Err(why.to_string()),
    }
}

#[test]
fn what_does_not_fit_is_told() {
    for (source, want) in [
        ("self.n > 1 && self.name == 'x'", "bool"),
        ("self.list.all(x, x.startsWith('a') || size(x) > 2)", "bool"),
        ("self.list.map(x, x + 'y')", "list(string)"),
        ("self.list.map(x, size(x))", "list(int)"),
        ("self.list.filter(x, x != '')", "list(string)"),
        ("self.list.transformMap(i, x, i)", "map(int, int)"),
        ("[]", "list(dyn)"),
        ("{'a': 1}", "map(string, int)"),
        ("self.n + 1", "int"),
        ("self.d > 1", "bool"),
        ("has(self.name) ? self.name : 'x'", "string"),
        ("self.?name", "optional_type(string)"),
        ("self.map['a']", "int"),
        ("self.any.x[0]", "dyn"),
        ("timestamp('2026-01-01T00:00:00Z') - duration('1h')", "timestamp"),
        ("quantity(self.name)", "kubernetes.Quantity"),
        ("sets.contains(self.list, ['a'])", "bool"),
        ("type(1) == int", "bool"),
    ] {
        let got = Program::compile(source, &declared()).map(|p| p.result().to_string());
        assert_eq!(got.as_deref(), Ok(want), "{source}");
    }
    for (source, want) in [
        ("other == 1", "ERROR: <input>:1:1: undeclared reference to 'other' (in container '')\n | other == 1\n | ^"),
        ("self.nope == 1", "undefined field 'nope'"),
        ("self.name == 1", "1:11: found no matching overload for '_==_' applied to '(string, int)'"),
        ("self.n && true", "1:5: expected type 'bool' but found 'int'"),
        ("1 == 1.0", "found no matching overload for '_==_' applied to '(int, double)'"),
        ("nope(self.n)", "undeclared reference to 'nope' (in container '')"),
        ("self.n.x == 1", "type 'int' does not support field selection"),
        ("self.n.startsWith('a')", "found no matching overload for 'startsWith' applied to 'int.(string)'"),
        ("self.list.all(x, x > 1)", "found no matching overload for '_>_' applied to '(string, int)'"),
        (
            "self.n.all(x, x > 1)",
            "expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("[1, 'a']", "ERROR: <input>:1:5: expected type 'int' but found 'string'"),
        ("'a'.matches('[')", "invalid matches argument"),
        ("duration('x')", "invalid duration argument"),
        ("timestamp('x')", "invalid timestamp argument"),
        ("self.name ==", "ERROR: <input>:1:13: Syntax error: "),
        ("object.", "ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'\n | object.\n | .......^"),
        ("cel.bind(x, 1, x)", "undeclared reference to 'cel'"),
        ("{1: 'x'}[1u]", "found no matching overload for '_[_]' applied to '(map(int, string), uint)'"),
        ("[dyn(1), 1]", "1:10: expected type 'dyn' but found 'int'"),
        ("int('a') == 1", "program instantiation failed: type conversion error from 'string' to 'int'"),
        (
            "'日本'.size() == nope",
            "1:16: undeclared reference to 'nope' (in container '')\n | '日本'.size() == nope\n | .．．............^",
        ),
        ("jsonpatch.escapeKey('a')", "undeclared reference to 'jsonpatch'"),
        ("Object{a: 1}", "undeclared reference to 'Object'"),
    ] {
        let got = Program::compile(source, &declared()).map(|p| p.result().to_string()).expect_err(source).to_string();
        assert!(got.contains(want), "{source}: {got}");
    }
}

#[test]
fn failures_are_in_upstreams_words() {
    for (source, want) in [
        ("self.missing == 'x'", "no such key: missing"),
        ("object.nope.nope", "no such key: nope"),
        ("self.n / (self.n - 3) == 1", "division by zero"),
        ("self.n % (self.n - 3) == 1", "modulus by zero"),
        ("9223372036854775807 + self.n > 0", "integer overflow"),
        ("self.list[7] == ''", "index out of bounds: 7"),
        ("object.name > 1", "no such overload"),
        ("quantity('x' + self.name) == quantity('1')", "quantities must match the regular expression"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("self.list.exists(x, object.nope == 1)", "no such key: nope"),
    ] {
        let got = run(source).expect_err(source);
        assert!(got.contains(want), "{source}: {got}");
    }
    // One side of a junction can be enough.
    for source in ["object.nope == 1 || true", "!(object.nope == 1 && false)", "[1, 0].exists(x, 1 / x == 1)"] {
        assert_eq!(run(source), Ok(true), "{source}");
    }
}

#[test]
fn variables_are_computed_once_and_when_asked_for() {
    let tree = tree();
    let mut declared = declared();
    let mut scope = Scope::of(&[("object", &tree)]);
    for (name, source) in
        [("images", "object.list.map(x, x + '!')"), ("broken", "object.nope"), ("two", "size(variables.images)")]
    {
        let program = Program::compile(source, &declared).expect(source);
        admission::declare(&mut declared, name, program.result());
        scope.define(&format!("variables.{name}"), Ok::<_, Error>(Arc::new(program)));
    }
    admission::declare_none(&mut declared);
    let run = |source: &str| {
        let program = Program::compile(source, &declared).map_err(|e| e.to_string())?;
        let mut budget = Budget::new(RUNTIME_BUDGET);
        let answer = program.evaluate(&scope, &mut budget).map(|v| v.shown()).map_err(|e| e.to_string());
        Ok::<_, String>((answer, RUNTIME_BUDGET - budget.left()))
    };
    let (first, paid) = run("variables.two == 2").expect("compiles");
    assert_eq!(first.as_deref(), Ok("true"));
    let (again, less) = run("variables.two == 2").expect("compiles");
    assert_eq!(again.as_deref(), Ok("true"));
    assert!(less < paid, "computed once: {less} {paid}");
    let (broken, _) = run("variables.broken == 1").expect("compiles");
    assert_eq!(broken.unwrap_err(), "composited variable \"broken\" fails to evaluate: no such key: nope");
    assert!(run("variables.nope").unwrap_err().contains("undefined field 'nope'"));
}

#[test]
fn costs_are_upstreams() {
    let tree = tree();
    let scope = Scope::of(&[("self", &tree), ("object", &tree)]);
    for (source, want) in [
        ("true", 0),
        ("self.n == 3", 3),
        ("self.name == 'web'", 3),
        ("has(self.name)", 1),
        ("[1, 2, 3].size() == 3", 2),
        ("[self.n].size() == 1", 14),
        ("{'a': self.n} == {'a': 3}", 33),
        ("self.list.all(x, true)", 2 + 2 * 3 + 1),
        ("'a' in self.list", 2 + 2),
        ("self.name.startsWith('w')", 3),
        ("self.name.matches('[a-z]+')", 2 + 2),
        ("self.name + 'abcdefghijk' == ''", 2 + 2),
    ] {
        let program = Program::compile(source, &declared()).expect(source);
        let (answer, cost) = program.run(&scope, PER_CALL_LIMIT);
        assert!(answer.is_ok(), "{source} {answer:?}");
        assert_eq!(cost, want, "{source}");
    }
}

#[test]
fn estimates_follow_the_sizes() {
    let sizes = |path: &[EstimatePlace<'_>]| match path {
        [_, EstimatePlace::Named("list")] => Some(10),
        [_, EstimatePlace::Named("list"), EstimatePlace::Items] => Some(100),
        [_, EstimatePlace::Named("name")] => Some(50),
        _ => None,
    };
    for (source, want) in [
        ("self.n == 3", 3),
        ("self.name == 'web'", 3),
        ("self.list.all(x, x == 'abc')", 2 + 10 * (2 + 3) + 1),
        ("self.name.contains('a')", 2 + 5),
        ("self.map.all(k, self.map[k] > 1)", u64::MAX),
    ] {
        let program = Program::compile(source, &declared()).expect(source);
        assert_eq!(program.estimate(&sizes).max, want, "{source}");
    }
}

#[test]
fn typed_objects_are_made_in_mutations() {
    let tree = tree();
    let scope = Scope::of(&[("object", &tree)]);
    let extras = Extras { patch: true, ..Extras::default() };
    let made = |source: &str| {
        let program = Program::compile_with(source, &declared(), extras).expect(source);
        let of = program.result().to_string();
        let (answer, _) = program.run(&scope, PER_CALL_LIMIT);
        (of, answer.expect(source).tree(&mut Fuel::default()).expect(source))
    };
    let (of, tree) = made("Object{spec: Object.spec{replicas: object.n + 1, ?gone: object.?nope}}");
    assert_eq!((of.as_str(), tree), ("Object", json!({"spec": {"replicas": 4}})));
    let (of, tree) = made("[JSONPatch{op: 'add', path: '/a/' + jsonpatch.escapeKey('x/y~'), value: [1]}]");
    assert_eq!((of.as_str(), tree), ("list(JSONPatch)", json!([{"op": "add", "path": "/a/x~1y~0", "value": [1]}])));
}

#[test]
fn devices_have_no_domains_that_are_asked_for_only() {
    let empty = Value::map(std::iter::empty::<(Text<'_>, Value<'_>)>());
    let version = Value::map([(Text::Borrowed("v"), semver("1.2.3").expect("a version"))]);
    let entries = BTreeMap::from([(Key::String(Text::Borrowed("here")), version)]);
    let attributes = Value::Map(Arc::new(Map { entries, otherwise: Some(empty) }));
    let mut scope = Scope::default();
    scope.set("device", Value::map([(Text::Borrowed("attributes"), attributes)]));
    for (expression, want) in [
        ("'here' in device.attributes", Ok(true)),
        ("'there' in device.attributes", Ok(false)),
        ("'v' in device.attributes['there']", Ok(false)),
        ("device.attributes['here'].v == semver('1.2.3')", Ok(true)),
        ("device.attributes['here'].v == null", Ok(false)),
        ("device.attributes['here'].v == '1.2.3'", Err("no such overload".to_owned())),
        ("device.attributes['here'].v != '1.2.3'", Err("no such overload".to_owned())),
    ] {
        let program = Program::compile_with(expression, &device::variables(), device::extras()).expect(expression);
        let answer = program.run(&scope, device::MAX_COST).0;
        let answer = answer.map(|v| matches!(v, Value::Bool(true))).map_err(|e| e.to_string());
        assert_eq!(answer, want, "{expression}");
    }
}
