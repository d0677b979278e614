//! `authorizer` in expressions: what the user of a request may do, asked in steps that end with `check`.

use std::sync::Arc;

use cel::extractors::This;
use cel::objects::Opaque;
use cel::{Context, ExecutionError, Value};
use shared::authn::UserInfo;
use shared::authz::Attributes;

use crate::authz::Authorization;

/// Whom to ask, about whom, and the request's own resource.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) authorization: Arc<Authorization>,
    pub(super) user: UserInfo,
    /// What `requestResource` is about.
    pub(super) request: Attributes,
}

/// A question in the making.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Question(Box<Attributes>);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    allowed: bool,
    reason: String,
    /// Why there is no answer, or "".
    error: String,
}

/// An authoriser outside would have to be asked.
const TOO_FAR: &str = "the authorizer cannot be asked from an expression";

impl Opaque for Question {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Authorizer"
    }
}

impl Opaque for Answer {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }
}

type Outcome = Result<Value, ExecutionError>;

fn question(this: &Value, function: &str) -> Result<Attributes, ExecutionError> {
    match this {
        Value::Opaque(opaque) => opaque.downcast_ref::<Question>().map(|q| (*q.0).clone()),
        _ => None,
    }
    .ok_or_else(|| ExecutionError::function_error(function, "no such overload"))
}

fn answer(this: &Value, function: &str) -> Result<Answer, ExecutionError> {
    match this {
        Value::Opaque(opaque) => opaque.downcast_ref::<Answer>().cloned(),
        _ => None,
    }
    .ok_or_else(|| ExecutionError::function_error(function, "no such overload"))
}

fn ask(attributes: Attributes) -> Value {
    Value::Opaque(Arc::new(Question(Box::new(attributes))))
}

/// Adds the functions and the variable.
pub(super) fn add(context: &mut Context<'static, 'static>, asker: Asker) {
    let user = asker.user.clone();
    let start = Attributes { user: user.clone(), ..Attributes::default() };
    context.add_variable_from_value("authorizer", ask(start));
    // Its one field, found under its whole name.
    context.add_variable_from_value("authorizer.requestResource", ask(Attributes { user, ..asker.request }));
    type Step = fn(&mut Attributes, String);
    let steps: [(&str, Step); 8] = [
        ("path", |q, v| q.path = v),
        ("group", |q, v| {
            q.resource_request = true;
            q.api_group = v;
            q.api_version = "*".to_owned();
        }),
        ("resource", |q, v| q.resource = v),
        ("subresource", |q, v| q.subresource = v),
        ("namespace", |q, v| q.namespace = v),
        ("name", |q, v| q.name = v),
        ("fieldSelector", |q, v| q.field_selector = v),
        ("labelSelector", |q, v| q.label_selector = v),
    ];
    for (name, step) in steps {
        let added = context.add_function(name, move |This(this): This<Value>, value: Arc<String>| -> Outcome {
            let mut q = question(&this, name)?;
            step(&mut q, value.as_ref().clone());
            Ok(ask(q))
        });
        report(added);
    }
    report(context.add_function(
        "serviceAccount",
        |This(this): This<Value>, namespace: Arc<String>, name: Arc<String>| -> Outcome {
            let mut q = question(&this, "serviceAccount")?;
            q.user = UserInfo {
                name: format!("system:serviceaccount:{namespace}:{name}"),
                groups: vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated".to_owned(),
                ],
                ..UserInfo::default()
            };
            Ok(ask(q))
        },
    ));
    let authorization = asker.authorization;
    report(context.add_function("check", move |This(this): This<Value>, verb: Arc<String>| -> Outcome {
        let mut q = question(&this, "check")?;
        q.verb = verb.as_ref().clone();
        // Authorisers that answer from memory answer at once; expressions do not wait for others.
        let answer = match authorization.verdict_at_once(&q) {
            Some(verdict) => {
                let allowed = verdict.is_allowed();
                Answer { allowed, reason: verdict.reason, error: verdict.error.unwrap_or_default() }
            }
            None => Answer { allowed: false, reason: String::new(), error: TOO_FAR.to_owned() },
        };
        Ok(Value::Opaque(Arc::new(answer)))
    }));
    report(context.add_function("allowed", |This(this): This<Value>| -> Outcome {
        Ok(Value::Bool(answer(&this, "allowed")?.allowed))
    }));
    report(context.add_function("reason", |This(this): This<Value>| -> Outcome {
        Ok(Value::String(Arc::new(answer(&this, "reason")?.reason)))
    }));
    report(context.add_function("errored", |This(this): This<Value>| -> Outcome {
        Ok(Value::Bool(!answer(&this, "errored")?.error.is_empty()))
    }));
    report(context.add_function("error", |This(this): This<Value>| -> Outcome {
        Ok(Value::String(Arc::new(answer(&this, "error")?.error)))
    }));
}

fn report<E: std::fmt::Debug>(added: Result<(), E>) {
    if let Err(error) = added {
        tracing::error!(?error, "a function of the authorizer is missing");
    }
}
