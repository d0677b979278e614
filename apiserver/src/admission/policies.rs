//! ValidatingAdmissionPolicy: rules written as expressions, bound to requests and parameters. Judged in process.

use std::sync::Arc;

use async_trait::async_trait;
use proto::resources;
use proto::selector::label::Selector;
use serde_json::Value;
use shared::status::Status;

use super::chain::NOTHING;
use super::expressions::{self, Scope};
use super::matching::{self, Scene, Shown};
use super::{Attributes, Operation, Plugin};
use crate::access::tree;
use crate::api::Reader;

const GROUP: &str = "admissionregistration.k8s.io";

/// The plugin.
pub struct ValidatingPolicies {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

/// What one validation found.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    message: String,
    reason: String,
}

#[async_trait]
impl Plugin for ValidatingPolicies {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn validates(&self) -> bool {
        true
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if a.resource.group == GROUP {
            return Ok(());
        }
        let bindings = self.reader.list(GROUP, "validatingadmissionpolicybindings", None);
        if bindings.is_empty() {
            return Ok(());
        }
        let (denied, warnings) = self.judge(a, &bindings)?;
        a.warnings.extend(warnings);
        match denied {
            Some((text, reason)) => Err(refusal(a, &text, &reason)),
            None => Ok(()),
        }
    }
}

/// The first refusal (its text and reason), and warnings.
type Verdict = (Option<(String, String)>, Vec<String>);

impl ValidatingPolicies {
    fn judge(&self, a: &Attributes<'_>, bindings: &[Arc<Value>]) -> Result<Verdict, Status> {
        let scene = Scene::of(a, self.reader.as_ref());
        let (mut denied, mut warnings) = (None, Vec::new());
        for binding in bindings {
            let name = tree::text(binding, "/spec/policyName");
            let Some(policy) = self.reader.get(GROUP, "validatingadmissionpolicies", "", name) else { continue };
            let Some(shown) = matched(&scene, policy.pointer("/spec/matchConstraints"))? else { continue };
            if let Some(more) = binding.pointer("/spec/matchResources").filter(|m| m.is_object())
                && matched(&scene, Some(more))?.is_none()
            {
                continue;
            }
            let actions = tree::strings(binding, "/spec/validationActions");
            let found: Vec<Finding> = match self.parameters(a, &policy, binding) {
                Ok(parameters) => {
                    let request = matching::request(&shown, a);
                    let about = |p: &Value| evaluate(&policy, &request, scene.namespace.as_deref(), p);
                    parameters.iter().flat_map(|p| about(p)).collect()
                }
                Err(why) if fails_open(&policy) => {
                    tracing::warn!(policy = name, why, "a policy could not be configured, failing open");
                    continue;
                }
                Err(message) => {
                    let text = format!(
                        "ValidatingAdmissionPolicy '{name}' with binding '{}' denied request: {message}",
                        tree::name(binding)
                    );
                    denied = denied.or(Some((text, "Invalid".to_owned())));
                    continue;
                }
            };
            for Finding { message, reason } in found {
                let who = format!("ValidatingAdmissionPolicy '{name}' with binding '{}'", tree::name(binding));
                for action in &actions {
                    match action.as_str() {
                        "Deny" => {
                            denied = denied.or(Some((format!("{who} denied request: {message}"), reason.clone())))
                        }
                        "Warn" => warnings.push(format!("Validation failed for {who}: {message}")),
                        _ => {}
                    }
                }
            }
        }
        Ok((denied, warnings))
    }

    /// The objects a binding names as parameters; one null for a policy without.
    fn parameters(&self, a: &Attributes<'_>, policy: &Value, binding: &Value) -> Result<Vec<Arc<Value>>, String> {
        let Some(kind) = policy.pointer("/spec/paramKind").filter(|k| k.is_object()) else {
            return Ok(vec![Arc::new(Value::Null)]);
        };
        let Some(reference) = binding.pointer("/spec/paramRef").filter(|r| r.is_object()) else {
            return Ok(vec![Arc::new(Value::Null)]);
        };
        let api_version = tree::text(kind, "/apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let row = resources::find_kind(group, version, tree::text(kind, "/kind")).ok_or_else(|| {
            format!(
                "failed to find resource referenced by paramKind: '{api_version}, Kind={}'",
                tree::text(kind, "/kind")
            )
        })?;
        let namespace = match tree::text(reference, "/namespace") {
            _ if !row.namespaced => "",
            "" => a.namespace,
            own => own,
        };
        if row.namespaced && namespace.is_empty() {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        let name = tree::text(reference, "/name");
        let found = if name.is_empty() {
            let selector = Selector::from_object(reference.get("selector")).map_err(|e| e.to_string())?;
            let scope = row.namespaced.then_some(namespace);
            let mut all = self.reader.list(group, &row.plural, scope);
            all.retain(|o| selector.matches(o.pointer("/metadata/labels")));
            all
        } else {
            self.reader.get(group, &row.plural, namespace, name).into_iter().collect()
        };
        if !found.is_empty() {
            return Ok(found);
        }
        if tree::text(reference, "/parameterNotFoundAction") == "Allow" {
            return Ok(Vec::new());
        }
        Err("failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
            .to_owned())
    }
}

fn fails_open(policy: &Value) -> bool {
    tree::text(policy, "/spec/failurePolicy") == "Ignore"
}

/// Whether match constraints cover the request, and in which version.
fn matched(scene: &Scene<'_>, constraints: Option<&Value>) -> Result<Option<Shown>, Status> {
    let constraints = constraints.unwrap_or(NOTHING);
    let policy = tree::text(constraints, "/matchPolicy");
    if !scene.selected(constraints)?
        || scene.by_rules(tree::list(constraints, "/excludeResourceRules"), policy).is_some()
    {
        return Ok(None);
    }
    let rules = tree::list(constraints, "/resourceRules");
    if rules.is_empty() {
        // A binding that only selects leaves the choice of resources to its policy.
        return Ok(Some(scene.own()));
    }
    Ok(scene.by_rules(rules, policy))
}

/// What a policy finds wrong with a request under one parameter.
fn evaluate(policy: &Value, request: &Value, namespace: Option<&Value>, parameter: &Value) -> Vec<Finding> {
    let mut scope = Scope::new(&[
        ("request", request),
        ("object", &request["object"]),
        ("oldObject", &request["oldObject"]),
        ("params", parameter),
        ("namespaceObject", namespace.unwrap_or(NOTHING)),
    ]);
    let broken = |why: String| {
        if fails_open(policy) { Vec::new() } else { vec![Finding { message: why, reason: "Invalid".to_owned() }] }
    };
    match expressions::hold(tree::list(policy, "/spec/matchConditions"), &scope) {
        Ok(true) => {}
        Ok(false) => return Vec::new(),
        Err(why) => return broken(why),
    }
    for variable in tree::list(policy, "/spec/variables") {
        scope.define(tree::name_field(variable), tree::text(variable, "/expression"));
    }
    let mut findings = Vec::new();
    for validation in tree::list(policy, "/spec/validations") {
        let expression = tree::text(validation, "/expression").trim();
        match scope.truth(expression) {
            Ok(true) => {}
            Ok(false) => findings.push(Finding {
                message: message(validation, expression, &scope),
                reason: match tree::text(validation, "/reason") {
                    "" => "Invalid".to_owned(),
                    reason => reason.to_owned(),
                },
            }),
            Err(why) => findings.extend(broken(format!("expression '{expression}' resulted in error: {why}"))),
        }
    }
    findings
}

/// The text a validation gives for its failure.
fn message(validation: &Value, expression: &str, scope: &Scope) -> String {
    let computed = match tree::text(validation, "/messageExpression") {
        "" => None,
        text => scope.text(text).ok().flatten(),
    };
    let usable = |text: &String| !text.trim().is_empty() && !text.contains('\n') && text.len() <= 5 * 1024;
    match (computed.filter(usable), tree::text(validation, "/message").trim()) {
        (Some(text), _) => text.trim().to_owned(),
        (None, "") => format!("failed expression: {expression}"),
        (None, text) => text.to_owned(),
    }
}

fn refusal(a: &Attributes<'_>, text: &str, reason: &str) -> Status {
    let mut status = a.forbidden(text);
    status.code = match reason {
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    status.reason = reason.to_owned();
    status.add_cause("", text, "");
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::{Fixed, Write};
    use serde_json::json;

    fn cluster(spec: &Value, binding: &Value) -> ValidatingPolicies {
        let cluster = Arc::new(Fixed::default());
        let mut policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}}});
        let mut bound = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
        for (target, more) in [(&mut policy, spec), (&mut bound, binding)] {
            for (key, value) in more.as_object().into_iter().flatten() {
                target["spec"][key] = value.clone();
            }
        }
        cluster.put(GROUP, "validatingadmissionpolicies", policy);
        cluster.put(GROUP, "validatingadmissionpolicybindings", bound);
        cluster.put("", "namespaces", json!({"metadata": {"name": "e", "labels": {"team": "a"}}}));
        cluster.put("", "configmaps", json!({"metadata": {"name": "limits", "namespace": "e"}, "data": {"max": "2"}}));
        ValidatingPolicies { reader: cluster }
    }

    async fn create(spec: Value, binding: Value) -> Result<(), (u16, String)> {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1", "b": "2", "c": "3"}});
        let write = Write::create("", "configmaps", "e", object);
        write.validate(&cluster(&spec, &binding)).await.map(drop).map_err(|s| (s.code, s.message))
    }

    #[tokio::test]
    async fn refusals() {
        let table = [
            (
                json!({"validations": [{"expression": "size(object.data) <= 2"}]}),
                422,
                "failed expression: size(object.data) <= 2",
            ),
            (
                json!({"validations": [{"expression": "size(object.data) <= 2", "message": "too much", "reason": "Forbidden"}]}),
                403,
                "too much",
            ),
            (
                json!({"variables": [{"name": "n", "expression": "size(object.data)"}],
                    "validations": [{"expression": "variables.n <= 2", "messageExpression": "'has ' + string(variables.n)"}]}),
                422,
                "has 3",
            ),
        ];
        for (spec, code, text) in table {
            let text = format!(
                "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {text}"
            );
            assert_eq!(create(spec, json!({})).await, Err((code, text)));
        }
    }

    #[tokio::test]
    async fn what_lets_a_request_through() {
        let strict = json!([{"expression": "false"}]);
        for (spec, binding) in [
            (json!({"validations": [{"expression": "size(object.data) == 3"}]}), json!({})),
            (json!({"validations": strict}), json!({"validationActions": ["Warn", "Audit"]})),
            (
                json!({"validations": strict}),
                json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "b"}}}}),
            ),
            (
                json!({"validations": strict, "matchConditions": [{"name": "c", "expression": "request.userInfo.username != 'alice'"}]}),
                json!({}),
            ),
            (json!({"validations": [{"expression": "object.nope.nope"}], "failurePolicy": "Ignore"}), json!({})),
            (json!({"validations": strict}), json!({"policyName": "other"})),
        ] {
            assert_eq!(create(spec.clone(), binding.clone()).await, Ok(()), "{spec} {binding}");
        }
    }

    #[tokio::test]
    async fn parameters() {
        let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "validations": [{"expression": "size(object.data) <= int(params.data.max)", "messageExpression": "'more than ' + params.data.max"}]});
        let refused = create(spec.clone(), json!({"paramRef": {"name": "limits"}})).await.expect_err("refused");
        assert!(refused.1.ends_with("denied request: more than 2"), "{}", refused.1);
        let missing = create(spec.clone(), json!({"paramRef": {"name": "nope"}})).await.expect_err("refused");
        assert!(
            missing.1.contains("no params found for policy binding with `Deny` parameterNotFoundAction"),
            "{}",
            missing.1
        );
        let allowed = json!({"paramRef": {"name": "nope", "parameterNotFoundAction": "Allow"}});
        assert_eq!(create(spec, allowed).await, Ok(()));
    }

    #[tokio::test]
    async fn a_failing_expression_refuses_unless_told_otherwise() {
        let refused = create(json!({"validations": [{"expression": "object.nope.nope == 1"}]}), json!({}))
            .await
            .expect_err("refused");
        assert!(refused.1.contains("expression 'object.nope.nope == 1' resulted in error: "), "{}", refused.1);
    }
}
