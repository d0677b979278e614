//! What upstream's library makes of expressions, as it was observed: the outermost values of each function, and what it
//! says of those beyond them.

use super::*;

/// An expression and what comes of it: a value as text, `other` for values that are none, `error` and why, or `refused`.
const OBSERVED: &str = include_str!("upstream.tsv");

fn outcome(expression: &str) -> String {
    let tree = json!(0);
    let declared = Declared::from([("x".to_owned(), Type::Dyn)]);
    let Ok(program) = Program::compile(expression, &declared) else { return "refused".to_owned() };
    let text = match program.run(&Scope::of(&[("x", &tree)]), PER_CALL_LIMIT).0 {
        Err(why) => format!("error {why}"),
        Ok(Value::Bool(b)) => b.to_string(),
        Ok(Value::Int(n)) => n.to_string(),
        Ok(Value::UInt(n)) => n.to_string(),
        Ok(Value::String(s)) => s.to_string(),
        Ok(_) => "other".to_owned(),
    };
    text.replace('\n', "\\n")
}

#[test]
fn expressions_come_to_what_they_do_upstream() {
    let rows = OBSERVED.lines().filter_map(|row| row.split_once('\t'));
    let wrong = rows.filter(|(expression, want)| outcome(expression) != *want);
    let wrong: Vec<String> = wrong.map(|(e, want)| format!("{e}: {want}, not {}", outcome(e))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
