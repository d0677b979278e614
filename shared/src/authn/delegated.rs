//! Asks the apiserver through TokenReview, with a bounded cache keyed by the token's hash.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::metrics;

use super::{Authenticator, AuthnError, Credentials, Identity, UserInfo};

const CACHE_LIMIT: usize = 1024;
const DEADLINE: Duration = Duration::from_secs(10);
/// Buckets of the time that answers take.
const BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

/// Code of an answer by which it is counted: that of HTTP, or upstream's word where there is none.
pub(crate) fn code<T>(answer: Option<&Result<T, kube::Error>>) -> String {
    match answer {
        Some(Ok(_)) => "201".to_owned(),
        Some(Err(kube::Error::Api(status))) if status.code != 0 => status.code.to_string(),
        Some(Err(_)) | None => "<error>".to_owned(),
    }
}

/// Counts a question to the API server: `authn` or `authz`.
pub(crate) fn count(what: &str, code: String, took: Duration) {
    let name = format!("apiserver_delegated_{what}_request_total");
    let help = "[ALPHA] Number of HTTP requests partitioned by status code.";
    metrics::counter(&name, help, &["code"]).with_label_values(&[&code]).inc();
    let name = format!("apiserver_delegated_{what}_request_duration_seconds");
    let help = "[ALPHA] Request latency in seconds. Broken down by status code.";
    metrics::histogram(&name, help, &["code"], BUCKETS.to_vec())
        .with_label_values(&[&code])
        .observe(took.as_secs_f64());
}

/// The delegated token authenticator.
pub struct TokenReviewAuthenticator {
    api: Api<TokenReview>,
    audiences: Vec<String>,
    ttl: Duration,
    cache: Mutex<HashMap<[u8; 32], (Identity, Instant)>>,
}

impl TokenReviewAuthenticator {
    /// Good tokens are remembered for `ttl`.
    pub fn new(client: kube::Client, audiences: Vec<String>, ttl: Duration) -> Self {
        Self { api: Api::all(client), audiences, ttl, cache: Mutex::new(HashMap::new()) }
    }
}

#[async_trait]
impl Authenticator for TokenReviewAuthenticator {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        let Some(token) = request.bearer() else { return Ok(None) };
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some((identity, until)) = self.cache.lock().get(&key)
            && *until > Instant::now()
        {
            return Ok(Some(identity.clone()));
        }
        let audiences = Some(self.audiences.clone()).filter(|a| !a.is_empty());
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let begun = Instant::now();
        let answer = tokio::time::timeout(DEADLINE, self.api.create(&PostParams::default(), &review)).await;
        count("authn", code(answer.as_ref().ok()), begun.elapsed());
        let answer = answer
            .map_err(|_| AuthnError("token review: deadline exceeded".to_owned()))?
            .map_err(|e| AuthnError(e.to_string()))?;
        let status = answer.status.unwrap_or_default();
        if !status.authenticated.unwrap_or(false) {
            return Err(AuthnError(status.error.unwrap_or_else(|| "invalid bearer token".to_owned())));
        }
        let user = status.user.unwrap_or_default();
        let extra: BTreeMap<String, Vec<String>> = user.extra.unwrap_or_default();
        let user = UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra,
        };
        let identity = Identity { user, audiences: status.audiences.unwrap_or_default() };
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_LIMIT {
            cache.clear();
        }
        cache.insert(key, (identity.clone(), Instant::now() + self.ttl));
        Ok(Some(identity))
    }
}
