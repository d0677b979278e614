//! `matchConditions`: expressions that must all be true of a request before a webhook is asked about it. Answers for
//! upstream's `pkg/admission/plugin/webhook/matchconditions`.

use serde_json::Value;

use super::super::NOTHING;
use super::super::request_authorizer::RequestAuthorizer;
use super::hook::Hook;
use crate::expressions::{self, Dialect, EvaluationError, Scope};
use crate::machinery::tree;

/// Reports whether all match conditions hold.
pub(super) fn all_hold(hook: &Hook, request: &Value, asker: &RequestAuthorizer) -> Result<bool, EvaluationError> {
    check(tree::list(hook.spec(), "/matchConditions"), request, Some(asker))
}

fn check(conditions: &[Value], request: &Value, asker: Option<&RequestAuthorizer>) -> Result<bool, EvaluationError> {
    if conditions.is_empty() {
        return Ok(true);
    }
    let mut scope = Scope::new(
        Dialect::Policy { params: false },
        &[
            ("request", request),
            ("object", &request["object"]),
            ("oldObject", &request["oldObject"]),
            ("namespaceObject", NOTHING),
        ],
    );
    if let Some(asker) = asker {
        asker.name_in(&mut scope);
    }
    expressions::conditions_hold(conditions, &mut scope)
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
            assert_eq!(check(&conditions, &request, None).map_err(drop), want, "{expression}");
        }
    }
}
