//! Authorisation as a chain: [`Attributes`] in, a [`Decision`] with its reason out.
//!
//! Policies that need storage live in the apiserver; here are the trait, its combinators and the delegated
//! authoriser the other components use.

mod delegated;

use std::sync::Arc;

use async_trait::async_trait;

use crate::authn::UserInfo;
pub use delegated::SubjectAccessReviewAuthorizer;

/// Attributes of a request that authorizers decide on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// User of the request.
    pub user: UserInfo,
    /// Verb, or lower-case method off resources.
    pub verb: String,
    /// Namespace, empty at cluster scope.
    pub namespace: String,
    /// API group.
    pub api_group: String,
    /// API version.
    pub api_version: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource or empty.
    pub subresource: String,
    /// Object name or empty.
    pub name: String,
    /// URL path.
    pub path: String,
    /// True when the request is for a resource.
    pub resource_request: bool,
    /// The request's field selector, as text, or empty.
    pub field_selector: String,
    /// The request's label selector, as text, or empty.
    pub label_selector: String,
}

/// An authoriser's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, stop asking.
    Allow,
    /// No, stop asking.
    Deny,
    /// Ask the next one.
    NoOpinion,
}

/// An authoriser could not decide.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct AuthzError(pub String);

/// Decides requests.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// The decision and the reason for it.
    async fn authorize(&self, request: &Attributes) -> Result<(Decision, String), AuthzError>;
}

/// Asks each member in turn until one decides. Reasons and errors of the undecided are joined.
#[derive(Clone, Default)]
pub struct Union(Vec<Arc<dyn Authorizer>>);

impl Union {
    /// In the order asked.
    pub fn new(members: Vec<Arc<dyn Authorizer>>) -> Self {
        Self(members)
    }
}

#[async_trait]
impl Authorizer for Union {
    async fn authorize(&self, request: &Attributes) -> Result<(Decision, String), AuthzError> {
        let (mut reasons, mut errors) = (Vec::new(), Vec::new());
        for member in &self.0 {
            match member.authorize(request).await {
                Ok((Decision::NoOpinion, reason)) => {
                    if !reason.is_empty() {
                        reasons.push(reason);
                    }
                }
                Ok(decided) => return Ok(decided),
                Err(e) => errors.push(e.0),
            }
        }
        if errors.is_empty() {
            Ok((Decision::NoOpinion, reasons.join("\n")))
        } else {
            Err(AuthzError(errors.join("\n")))
        }
    }
}

/// Allows everything.
pub struct AlwaysAllow;

#[async_trait]
impl Authorizer for AlwaysAllow {
    async fn authorize(&self, _: &Attributes) -> Result<(Decision, String), AuthzError> {
        Ok((Decision::Allow, String::new()))
    }
}

/// Denies everything it is asked.
pub struct AlwaysDeny;

#[async_trait]
impl Authorizer for AlwaysDeny {
    async fn authorize(&self, _: &Attributes) -> Result<(Decision, String), AuthzError> {
        Ok((Decision::NoOpinion, "Everything is forbidden.".to_owned()))
    }
}

/// Allows whoever is in one of the groups, such as `system:masters`.
pub struct PrivilegedGroups(pub Vec<String>);

#[async_trait]
impl Authorizer for PrivilegedGroups {
    async fn authorize(&self, request: &Attributes) -> Result<(Decision, String), AuthzError> {
        let member = request.user.groups.iter().any(|g| self.0.contains(g));
        Ok((if member { Decision::Allow } else { Decision::NoOpinion }, String::new()))
    }
}

/// Allows non-resource paths from a list; an entry ending in `*` is a prefix.
pub struct PathAllowList {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl PathAllowList {
    /// From the value of `--authorization-always-allow-paths`.
    pub fn new(paths: &[String]) -> Self {
        let (prefixes, exact): (Vec<&String>, Vec<&String>) = paths.iter().partition(|p| p.ends_with('*'));
        let bare = |p: &String| p.trim_start_matches('/').to_owned();
        Self {
            exact: exact.into_iter().map(bare).collect(),
            prefixes: prefixes.into_iter().map(|p| bare(p).trim_end_matches('*').to_owned()).collect(),
        }
    }

    /// Reports whether a path is on the list.
    pub fn contains(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        self.exact.iter().any(|p| p == path) || self.prefixes.iter().any(|p| path.starts_with(p.as_str()))
    }
}

#[async_trait]
impl Authorizer for PathAllowList {
    async fn authorize(&self, request: &Attributes) -> Result<(Decision, String), AuthzError> {
        let allowed = !request.resource_request && self.contains(&request.path);
        Ok((if allowed { Decision::Allow } else { Decision::NoOpinion }, String::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_list() {
        let list = PathAllowList::new(&["/healthz".into(), "/livez/*".into()]);
        for (path, want) in [("/healthz", true), ("/healthz/x", false), ("/livez/ping", true), ("/metrics", false)] {
            assert_eq!(list.contains(path), want, "{path}");
        }
    }

    #[tokio::test]
    async fn union_takes_the_first_decision() {
        let deny_all = Union::new(vec![Arc::new(AlwaysDeny)]);
        let (decision, reason) = deny_all.authorize(&Attributes::default()).await.expect("decides");
        assert_eq!((decision, reason.as_str()), (Decision::NoOpinion, "Everything is forbidden."));
        let chain = Union::new(vec![Arc::new(AlwaysDeny), Arc::new(AlwaysAllow)]);
        assert_eq!(chain.authorize(&Attributes::default()).await.expect("decides").0, Decision::Allow);
    }
}
