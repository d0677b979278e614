//! Expressions nobody meant well by: none panics, none runs past its limit, none takes long.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn work_is_bounded() {
    let big: Vec<i64> = (0..100_000).collect();
    let tree = json!({"list": big, "name": "x".repeat(100_000), "n": 3, "map": {}});
    let scope = Scope::of(&[("self", &tree), ("object", &tree)]);
    for source in [
        "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c >= 0)))",
        "object.list.map(a, object.list)[0].map(a, object.list.map(b, object.list)) == []",
        "object.list.map(x, object.name + object.name).join(object.name) == ''",
        "object.name.split('').map(x, object.name.replace('', object.name)) == []",
        "lists.range(9000000000).size() > 1",
        "object.list.map(x, [object.list, object.list]) == object.list.map(x, [object.list, object.list])",
        "object.list.all(x, object.name.matches('(a' + string(x) + '{100}){100}') || true)",
        "object.list.all(x, string(x).find(string(x) + '(b{99}){99}') == '')",
        "'%s'.format([object.list.map(x, object.list)]) == ''",
        "object.list.sort().distinct().reverse() == object.list",
        "object.list.all(x, object.list.exists(y, true) && object.list.first().value() == 0 && object.name.charAt(9) == 'x')",
        "object.list.all(x, (object.list + object.list).size() == 200000)",
    ] {
        let since = Instant::now();
        let program = Program::compile(source, &declared()).expect(source);
        let (answer, cost) = program.run(&scope, PER_CALL_LIMIT);
        assert!(matches!(answer, Err(Error::Cancelled)), "{source} {cost}");
        assert!(since.elapsed() < Duration::from_secs(30), "{source} {:?}", since.elapsed());
    }
}

/// Lists of lists of one list are large when looked into, whatever they cost to make.
#[test]
fn shared_parts_are_looked_into_within_limits() {
    let mut source = "a".to_owned();
    for _ in 0..40 {
        source = format!("[{source}].map(a, [a, a])[0]");
    }
    let source = format!("[object.n].all(a, {source} == {source})");
    let tree = json!({"n": 1});
    let scope = Scope::of(&[("object", &tree)]);
    let program = Program::compile(&source, &declared()).expect("compiles");
    assert_eq!(program.run(&scope, PER_CALL_LIMIT).0.unwrap_err(), Error::Cancelled);
}

#[test]
fn deep_and_long_texts_are_refused_or_compiled() {
    for source in [
        "(".repeat(50_000),
        "[".repeat(5_000),
        format!("{}1{}", "[".repeat(300), "]".repeat(300)),
        "1 + ".repeat(20_000) + "1",
        format!("self{}", ".a".repeat(20_000)),
        "1 in ".repeat(15_000) + "[1]",
        "'\\''".to_owned() + &" + ''".repeat(5_000),
        "1 + ".repeat(2_000) + "1",
        "true ? ".repeat(3_000),
        "x".repeat(200_000),
        "\"".repeat(1_001),
    ] {
        assert!(Program::compile(&source, &declared()).is_err(), "{:.20}", source);
    }
    let many = vec!["self.n == 3"; 400].join(" || ");
    assert!(Program::compile(&many, &declared()).is_ok());
}

/// Pieces that make expressions, right ones and wrong ones.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "1",
        "-7",
        "2u",
        "1.5",
        "'a'",
        "b'x'",
        "true",
        "null",
        "self",
        "self.n",
        "self.list",
        "self.map",
        "object",
        "object.any.x",
        "self.?missing",
        "[]",
        "{}",
        "x",
        "quantity('1Gi')",
        "duration('1h')",
        "ip('::1')",
        "int",
        "lists.range(5)",
        "'[a-'",
        "9223372036854775807",
        "timestamp('2026-01-01T00:00:00Z')",
        "optional.none()",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(5, 64, 4, |inner| {
        let operator = prop::sample::select(vec!["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "in"]);
        let method = prop::sample::select(vec![
            "size()",
            "map(x, x)",
            "all(x, true)",
            "exists(x, x == 1)",
            "filter(x, true)",
            "sort()",
            "join('-')",
            "split('')",
            "transformList(i, x, i)",
            "transformMap(i, x, x)",
            "orValue(1)",
            "first()",
            "isSorted()",
            "sum()",
            "charAt(3)",
            "substring(1, 2)",
            "replace('', 'yy')",
            "matches('a+')",
            "flatten()",
            "distinct()",
            "lastIndexOf('a', 1)",
            "getHours('-25:00')",
            "sub(1)",
            "validate('a')",
            "format([1])",
            "optMap(x, x)",
        ]);
        let function =
            prop::sample::select(vec!["int", "string", "size", "type", "dyn", "url", "semver", "timestamp", "bytes"]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
            (inner.clone(), method).prop_map(|(a, m)| format!("{a}.{m}")),
            (function, inner.clone()).prop_map(|(f, a)| format!("{f}({a})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|l| format!("[{}]", l.join(", "))),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}.map(x, {b})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{a}[{b}]")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_all_ends(source in expression()) {
        let mut declared = declared();
        declared.insert("x".to_owned(), Type::Dyn);
        let tree = tree();
        let mut scope = Scope::of(&[("self", &tree), ("object", &tree)]);
        scope.set("x", Value::of(&tree));
        if let Ok(program) = Program::compile(&source, &declared) {
            let (answer, cost) = program.run(&scope, 10_000);
            let estimate = program.estimate(&|_| None);
            prop_assert!(estimate.min <= estimate.max);
            prop_assert!(cost <= 10_000 || answer.is_err(), "{source} {cost}");
            if let Ok(value) = answer {
                let _ = value.tree(&mut Fuel::default());
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(source in "[ -~]{0,60}") {
        let _ = Program::compile(&source, &declared());
    }
}
