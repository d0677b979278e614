//! Who answers when an expression asks what the user of a request may do.

use std::sync::Arc;

use shared::authn::UserInfo;
use shared::authz::Attributes;
use shared::cel::{Authorities, Decision, Value, authorizer};

use crate::authz::Authorization;

/// An authoriser outside would have to be asked.
const TOO_FAR: &str = "the authorizer cannot be asked from an expression";

/// Whom to ask, about whom, and the request's own resource.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) authorization: Arc<Authorization>,
    pub(super) user: UserInfo,
    /// What `requestResource` is about.
    pub(super) request: Attributes,
}

impl Asker {
    /// `authorizer` and `authorizer.requestResource`.
    pub(super) fn values(&self) -> [Value<'static>; 2] {
        authorizer(Arc::new(Memory(self.authorization.clone())), &self.user, self.request.clone())
    }
}

/// Authorisers that answer from memory answer at once; expressions do not wait for others.
struct Memory(Arc<Authorization>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Authorities for Memory {
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
