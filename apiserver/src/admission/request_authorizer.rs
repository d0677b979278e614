//! Authorizer of CEL expressions: checks of what the user of a request may do. Answers for upstream's
//! `cachingAuthorizer`.

use std::sync::Arc;

use shared::authn::UserInfo;
use shared::authz::Attributes;
use shared::cel::{Authorities, Decision, authorizer};

use super::Attributes as Write;
use crate::authz::Authorization;
use crate::expressions::Scope;

/// An authoriser outside would have to be asked.
const TOO_FAR: &str = "the authorizer cannot be asked from an expression";

/// Answers the authorizer checks of an expression: the authorizer, the user and the request's own resource.
#[derive(Clone)]
pub(super) struct RequestAuthorizer {
    authorization: Arc<Authorization>,
    user: UserInfo,
    /// Attributes behind `requestResource`.
    request: Attributes,
}

impl RequestAuthorizer {
    /// About the user of a write and what is written.
    pub(super) fn new(authorization: &Arc<Authorization>, a: &Write<'_>) -> Self {
        let request = Attributes {
            api_group: a.resource.group.to_string(),
            api_version: a.resource.version.to_string(),
            resource: a.resource.plural.to_string(),
            subresource: a.subresource.to_owned(),
            namespace: a.namespace.to_owned(),
            name: a.name.to_owned(),
            resource_request: true,
            ..Attributes::default()
        };
        Self { authorization: authorization.clone(), user: a.user.clone(), request }
    }

    /// Adds `authorizer` and `authorizer.requestResource`.
    pub(super) fn name_in(&self, scope: &mut Scope<'_>) {
        let memory = Arc::new(MemoryAuthorizers(self.authorization.clone()));
        let [authorizer, own] = authorizer(memory, &self.user, self.request.clone());
        scope.set("authorizer", authorizer);
        scope.set("authorizer.requestResource", own);
    }
}

/// Authorisers that answer from memory answer at once; expressions do not wait for others.
struct MemoryAuthorizers(Arc<Authorization>);

impl std::fmt::Debug for MemoryAuthorizers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Authorities for MemoryAuthorizers {
    fn decide(&self, question: &Attributes) -> Decision {
        match self.0.verdict_at_once(question) {
            Some(verdict) => {
                let allowed = verdict.is_allowed();
                Decision { allowed, reason: verdict.reason, error: verdict.error.unwrap_or_default() }
            }
            None => Decision { error: TOO_FAR.to_owned(), ..Decision::default() },
        }
    }
}
