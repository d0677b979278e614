//! `authorizer`: what the user of a request may do, asked in steps that end with `check`.

use std::sync::Arc;

use super::{Args, Entry, ONE, bool, method, text};
use crate::authn::UserInfo;
use crate::authz::Attributes;
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Opaque, Value};

/// The type of `authorizer`.
pub(crate) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
/// The type of `authorizer.requestResource`.
pub(crate) const RESOURCE: &str = "kubernetes.authorization.ResourceCheck";
const PATH: &str = "kubernetes.authorization.PathCheck";
const GROUP: &str = "kubernetes.authorization.GroupCheck";
const DECISION: &str = "kubernetes.authorization.Decision";
/// Two checks are as many as one expression can pay for.
const CHECK: Cost = Cost::Fixed(350_000);

/// Authorizer behind the CEL library.
pub trait Authorities: Send + Sync + std::fmt::Debug {
    /// Decides whether the user may do this.
    fn decide(&self, question: &Attributes) -> Decision;
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Yes.
    pub allowed: bool,
    /// Reason of the decision.
    pub reason: String,
    /// Error of the authorizer, or "".
    pub error: String,
}

super::opaque!(Decision, DECISION);

/// A question in the making.
#[derive(Clone, Debug)]
struct Question {
    stage: &'static str,
    attributes: Attributes,
    authorities: Arc<dyn Authorities>,
}

impl Opaque for Question {
    fn type_name(&self) -> &'static str {
        self.stage
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.any().downcast_ref::<Self>().is_some_and(|o| o.stage == self.stage && o.attributes == self.attributes)
    }

    fn any(&self) -> &dyn std::any::Any {
        self
    }
}

/// The values of `authorizer` and `authorizer.requestResource`.
#[must_use]
pub fn authorizer(authorities: Arc<dyn Authorities>, user: &UserInfo, request: Attributes) -> [Value<'static>; 2] {
    let start = Attributes { user: user.clone(), ..Attributes::default() };
    let own = Attributes { user: user.clone(), ..request };
    [(AUTHORIZER, start), (RESOURCE, own)]
        .map(|(stage, attributes)| Value::opaque(Question { stage, attributes, authorities: authorities.clone() }))
}

const STAGES: [&str; 4] = [AUTHORIZER, PATH, GROUP, RESOURCE];

pub(super) const TABLE: &[Entry] = &[
    method("path", "kubernetes.authorization.Authorizer, string", PATH, ONE, path),
    method("group", "kubernetes.authorization.Authorizer, string", GROUP, ONE, group),
    method("serviceAccount", "kubernetes.authorization.Authorizer, string, string", AUTHORIZER, ONE, service_account),
    method("resource", "kubernetes.authorization.GroupCheck, string", RESOURCE, ONE, resource),
    method("subresource", "kubernetes.authorization.ResourceCheck, string", RESOURCE, ONE, subresource),
    method("namespace", "kubernetes.authorization.ResourceCheck, string", RESOURCE, ONE, namespace),
    method("name", "kubernetes.authorization.ResourceCheck, string", RESOURCE, ONE, name),
    method("fieldSelector", "kubernetes.authorization.ResourceCheck, string", RESOURCE, Cost::Selector, field_selector),
    method("labelSelector", "kubernetes.authorization.ResourceCheck, string", RESOURCE, Cost::Selector, label_selector),
    method("check", "kubernetes.authorization.PathCheck, string", DECISION, CHECK, check),
    method("check", "kubernetes.authorization.ResourceCheck, string", DECISION, CHECK, check),
    method("allowed", "kubernetes.authorization.Decision", "bool", ONE, allowed),
    method("reason", "kubernetes.authorization.Decision", "string", ONE, reason),
    method("errored", "kubernetes.authorization.Decision", "bool", ONE, errored),
    method("error", "kubernetes.authorization.Decision", "string", ONE, error),
];

fn step<'a>(
    args: &Args<'_, 'a>,
    from: usize,
    stage: &'static str,
    change: impl FnOnce(&mut Attributes, String),
) -> Answer<'a> {
    let question = args.inside::<Question>(0)?;
    if question.stage != STAGES[from] {
        return Err(Error::overload());
    }
    let mut next = Question { stage, ..question.clone() };
    change(&mut next.attributes, args.text(1)?.to_owned());
    Ok(Value::opaque(next))
}

fn path<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 0, PATH, |q, v| q.path = v)
}

fn group<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 0, GROUP, |q, v| {
        q.resource_request = true;
        q.api_group = v;
        q.api_version = "*".to_owned();
    })
}

fn service_account<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let name = args.text(2)?.to_owned();
    step(args, 0, AUTHORIZER, |q, namespace| {
        q.user = UserInfo {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            ..UserInfo::default()
        };
    })
}

fn resource<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 2, RESOURCE, |q, v| q.resource = v)
}

fn subresource<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 3, RESOURCE, |q, v| q.subresource = v)
}

fn namespace<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 3, RESOURCE, |q, v| q.namespace = v)
}

fn name<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 3, RESOURCE, |q, v| q.name = v)
}

fn field_selector<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 3, RESOURCE, |q, v| q.field_selector = v)
}

fn label_selector<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    step(args, 3, RESOURCE, |q, v| q.label_selector = v)
}

fn check<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let question = args.inside::<Question>(0)?;
    let attributes = Attributes { verb: args.text(1)?.to_owned(), ..question.attributes.clone() };
    Ok(Value::opaque(question.authorities.decide(&attributes)))
}

fn allowed<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(args.inside::<Decision>(0)?.allowed)
}

fn reason<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(args.inside::<Decision>(0)?.reason.as_str())
}

fn errored<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(!args.inside::<Decision>(0)?.error.is_empty())
}

fn error<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(args.inside::<Decision>(0)?.error.as_str())
}
