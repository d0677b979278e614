//! Policies: rules written as expressions, bound to requests and parameters, and asked in process. Answers for
//! upstream's `pkg/admission/plugin/policy/generic`.
//!
//! Which policies a request comes before, in which version and with which parameters, is found out here; what they say
//! of it is up to [`ValidatingPolicies`] and [`MutatingPolicies`].

mod error;
mod evaluate;
mod mutating;
mod params;
mod permission;
mod plurals;
mod validating;

use std::sync::Arc;

use proto::resources::Row;
use serde_json::Value;
use shared::status::Status;

use super::matching::MatchRequest;
use super::request_authorizer::RequestAuthorizer;
use super::views::Views;
use super::webhooks::WebhookDeps;
use super::{Attributes, NOTHING};
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::is_question;
use evaluate::EvaluationInput;
pub(super) use mutating::MutatingPolicies;
pub(super) use permission::check as check_parameters;
use plurals::{GROUP, MUTATING, Plurals, VALIDATING};
pub(super) use validating::ValidatingPolicies;

/// Policies of one kind, from the cache.
struct Policies {
    means: WebhookDeps,
    plurals: Plurals,
}

/// A policy that is to be asked about a request, and by which binding.
struct Bound {
    policy: Arc<Value>,
    binding: Arc<Value>,
    /// The request's resource as the policy's rules know it.
    shown: Row,
    /// Parameters to evaluate with, one after the other.
    parameters: Result<Vec<Arc<Value>>, PolicyError>,
}

/// Reasons for which a policy cannot be evaluated.
#[derive(Debug, PartialEq, Eq)]
enum PolicyError {
    Policy(String),
    Binding(String),
}

impl PolicyError {
    fn message(&self) -> String {
        match self {
            Self::Policy(why) => format!("failed to configure policy: {why}"),
            Self::Binding(why) => format!("failed to configure binding: {why}"),
        }
    }

    /// The binding to be named with the refusal.
    fn binding<'b>(&self, bound: &'b Bound) -> Option<&'b str> {
        matches!(self, Self::Binding(_)).then(|| tree::name(&bound.binding))
    }
}

impl Policies {
    /// The policies that are to be asked, in the order of their names and those of their bindings.
    async fn bound(&self, a: &Attributes<'_>) -> Result<(Vec<Bound>, Option<Arc<Value>>), Status> {
        if a.resource.group == GROUP || is_question(GroupResource::of(a.resource)) {
            return Ok((Vec::new(), None));
        }
        let (reader, rows) = (self.means.reader.as_ref(), &self.means.rows);
        let mut bindings = reader.list(self.plurals.1, None);
        if bindings.is_empty() {
            return Ok((Vec::new(), None));
        }
        bindings.sort_by_cached_key(|b| (tree::text(b, "/spec/policyName").to_owned(), tree::name(b).to_owned()));
        let namespace = self.means.namespace(a).await;
        let scene = MatchRequest::of(a, a.object(), namespace.clone(), rows);
        let mut all = Vec::new();
        for binding in bindings {
            let name = tree::text(&binding, "/spec/policyName");
            let Some(policy) = reader.get(self.plurals.0, "", name) else { continue };
            let Some(shown) = matched(&scene, policy.pointer("/spec/matchConstraints"))? else { continue };
            let row = match params::row(rows, &policy).transpose() {
                Ok(row) => row,
                // That is said once of a policy, whatever its bindings are about.
                Err(_) if all.last().is_some_and(|b: &Bound| tree::name(&b.policy) == name) => continue,
                Err(why) => {
                    all.push(Bound { policy, binding, shown, parameters: Err(why) });
                    continue;
                }
            };
            if let Some(more) = binding.pointer("/spec/matchResources").filter(|m| m.is_object())
                && matched(&scene, Some(more))?.is_none()
            {
                continue;
            }
            let parameters = params::find(reader, row.as_ref(), a, &binding).await;
            all.push(Bound { policy, binding, shown, parameters });
        }
        // A namespace that is gone is missed by whoever is asked about what is in it.
        if all.is_empty() { Ok((all, None)) } else { Ok((all, namespace?)) }
    }

    fn views(&self) -> Views<'_> {
        Views::new(&self.means.caller)
    }

    /// Builds the variables of a request in the version at hand.
    fn matter(&self, a: &Attributes<'_>, views: &Views<'_>, namespace: Option<Arc<Value>>) -> EvaluationInput {
        let mut request = views.request(a);
        let [object, old] = ["object", "oldObject"].map(|field| request[field].take());
        if let Some(fields) = request.as_object_mut() {
            fields.remove("object");
            fields.remove("oldObject");
        }
        EvaluationInput { request, object, old, namespace, asker: RequestAuthorizer::new(&self.means.authorization, a) }
    }
}

/// Evaluates match constraints; returns the version of the resource that matched.
fn matched(scene: &MatchRequest<'_>, constraints: Option<&Value>) -> Result<Option<Row>, Status> {
    let constraints = constraints.unwrap_or(NOTHING);
    let policy = tree::text(constraints, "/matchPolicy");
    let selected = scene.selected(constraints);
    if matches!(selected, Ok(false))
        || scene.by_rules(tree::list(constraints, "/excludeResourceRules"), policy).is_some()
    {
        return Ok(None);
    }
    let rules = tree::list(constraints, "/resourceRules");
    // A binding that only selects leaves the choice of resources to its policy.
    let shown = if rules.is_empty() { Some(scene.own()) } else { scene.by_rules(rules, policy) };
    if shown.is_some() {
        selected?;
    }
    Ok(shown)
}

#[cfg(test)]
mod tests;
