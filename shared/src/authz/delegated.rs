//! Asks the apiserver through SubjectAccessReview, with a bounded cache.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::authn::{code, count};

use super::{Attributes, Authorizer, AuthzError, Decision};

const CACHE_LIMIT: usize = 1024;
const DEADLINE: Duration = Duration::from_secs(10);

/// The delegated authoriser.
pub struct SubjectAccessReviewAuthorizer {
    api: Api<SubjectAccessReview>,
    allow_ttl: Duration,
    deny_ttl: Duration,
    cache: Mutex<HashMap<String, (Decision, String, Instant)>>,
}

impl SubjectAccessReviewAuthorizer {
    /// Answers are kept for the given times.
    pub fn new(client: kube::Client, allow_ttl: Duration, deny_ttl: Duration) -> Self {
        Self { api: Api::all(client), allow_ttl, deny_ttl, cache: Mutex::new(HashMap::new()) }
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn spec(a: &Attributes) -> SubjectAccessReviewSpec {
    let resource = a.resource_request.then(|| ResourceAttributes {
        group: some(&a.api_group),
        version: some(&a.api_version),
        resource: some(&a.resource),
        subresource: some(&a.subresource),
        name: some(&a.name),
        namespace: some(&a.namespace),
        verb: some(&a.verb),
        ..ResourceAttributes::default()
    });
    let path = (!a.resource_request).then(|| NonResourceAttributes { path: some(&a.path), verb: some(&a.verb) });
    SubjectAccessReviewSpec {
        user: some(&a.user.name),
        uid: some(&a.user.uid),
        groups: Some(a.user.groups.clone()),
        extra: Some(a.user.extra.clone()).filter(|e| !e.is_empty()),
        resource_attributes: resource,
        non_resource_attributes: path,
    }
}

#[async_trait]
impl Authorizer for SubjectAccessReviewAuthorizer {
    async fn authorize(&self, request: &Attributes) -> Result<(Decision, String), AuthzError> {
        let spec = spec(request);
        let key = serde_json::to_string(&spec).map_err(|e| AuthzError(e.to_string()))?;
        if let Some((decision, reason, until)) = self.cache.lock().get(&key)
            && *until > Instant::now()
        {
            return Ok((*decision, reason.clone()));
        }
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let begun = Instant::now();
        let answer = tokio::time::timeout(DEADLINE, self.api.create(&PostParams::default(), &review)).await;
        count("authz", code(answer.as_ref().ok()), begun.elapsed());
        let answer = answer
            .map_err(|_| AuthzError("subject access review: deadline exceeded".to_owned()))?
            .map_err(|e| AuthzError(e.to_string()))?;
        let status = answer.status.unwrap_or_default();
        let decision = match (status.allowed, status.denied.unwrap_or(false)) {
            (true, _) => Decision::Allow,
            (false, true) => Decision::Deny,
            (false, false) => Decision::NoOpinion,
        };
        let reason = status.reason.unwrap_or_default();
        let ttl = if decision == Decision::Allow { self.allow_ttl } else { self.deny_ttl };
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_LIMIT {
            let now = Instant::now();
            cache.retain(|_, (_, _, until)| *until > now);
            if cache.len() >= CACHE_LIMIT {
                cache.clear();
            }
        }
        cache.insert(key, (decision, reason.clone(), Instant::now() + ttl));
        Ok((decision, reason))
    }
}
