//! `matchConditions`: expressions that must all be true of a request before a webhook is asked about it.

use cel::{Context, Program};
use serde_json::Value;

use super::hook::Hook;
use crate::access::tree;

/// Whether all conditions are true. One that is false wins over one that fails.
pub(super) fn hold(hook: &Hook, request: &Value) -> Result<bool, String> {
    check(tree::list(hook.spec(), "/matchConditions"), request)
}

fn check(conditions: &[Value], request: &Value) -> Result<bool, String> {
    if conditions.is_empty() {
        return Ok(true);
    }
    let mut context = Context::default();
    let null = Value::Null;
    for (name, value) in [("request", request), ("object", &request["object"]), ("oldObject", &request["oldObject"])] {
        let value = if value.is_null() { &null } else { value };
        context.add_variable(name, value).map_err(|e| e.to_string())?;
    }
    let mut failure = None;
    for condition in conditions {
        match evaluate(tree::text(condition, "/expression"), &context) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) => failure = failure.or(Some(format!("match condition {:?}: {why}", tree::name_field(condition)))),
        }
    }
    failure.map_or(Ok(true), Err)
}

fn evaluate(expression: &str, context: &Context<'_, '_>) -> Result<bool, String> {
    let program = Program::compile(expression).map_err(|e| e.to_string())?;
    match program.execute(context).map_err(|e| e.to_string())? {
        cel::Value::Bool(answer) => Ok(answer),
        _ => Err("must evaluate to bool".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_about_the_request() {
        let request = json!({"operation": "CREATE", "userInfo": {"username": "alice"}, "object": {"metadata": {"name": "x"}}, "oldObject": null});
        for (expression, want) in [
            ("request.userInfo.username == 'alice'", Ok(true)),
            ("object.metadata.name == 'y'", Ok(false)),
            ("oldObject == null", Ok(true)),
            ("object.metadata.name", Err(())),
            ("object.nope.name == 'x'", Err(())),
        ] {
            let conditions = [json!({"name": "c", "expression": expression})];
            assert_eq!(check(&conditions, &request).map_err(drop), want, "{expression}");
        }
    }
}
