//! Comparison with results observed from upstream's library: functions at their bounds, errors, costs.

use super::*;

/// An expression; what comes of it: a value as text, `other` for values that are none, or why there is none, with `\n`
/// for the end of a line; what it may cost at least and at most; what it did cost.
const OBSERVED: &str = include_str!("upstream.tsv");

fn outcome(expression: &str) -> String {
    let tree = json!(0);
    let declared = Declared::from([("x".to_owned(), Type::Dyn)]);
    let program = match Program::compile(expression, &declared) {
        Ok(program) => program,
        Err(why) => return why.to_string().replace('\n', "\\n"),
    };
    // What was asked knew of the variable that it has no size, whatever its name.
    let Estimate { min, max } = program.estimate(&|place| (place.len() == 1).then_some(0));
    let (answer, cost) = program.run(&Scope::of(&[("x", &tree)]), PER_CALL_LIMIT);
    let text = match answer {
        Err(why) => format!("error {why}"),
        Ok(Value::Bool(b)) => b.to_string(),
        Ok(Value::Int(n)) => n.to_string(),
        Ok(Value::UInt(n)) => n.to_string(),
        Ok(Value::String(s)) => s.to_string(),
        Ok(_) => "other".to_owned(),
    };
    format!("{}\t{min}\t{max}\t{cost}", text.replace('\n', "\\n"))
}

#[test]
fn expressions_come_to_what_they_do_upstream() {
    let rows = OBSERVED.lines().filter_map(|row| row.split_once('\t'));
    let wrong = rows.filter(|(expression, want)| outcome(expression) != *want);
    let wrong: Vec<String> = wrong.map(|(e, want)| format!("{e}\n  want {want}\n  got  {}", outcome(e))).collect();
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}
