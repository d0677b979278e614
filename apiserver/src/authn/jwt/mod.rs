//! Tokens of other issuers (OpenID Connect): by the `--oidc-*` flags or by the file of `--authentication-config`,
//! which is followed while the server runs.
//!
//! In comes a token, out goes whom it stands for. What an issuer says of itself is fetched in the background; until it
//! is known, the issuer's tokens are refused.

mod claims;
pub mod config;
mod keys;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prometheus::HistogramVec;
use serde_json::Value;
use sha2::{Digest, Sha256};
use shared::authn::{AuthnError, Identity};
use shared::metrics;
use tokio_util::sync::CancellationToken;

use super::TokenAuthenticator;
use crate::access::tree;
use config::Issuer;
use keys::Keys;

/// Seconds a token may be ahead of this machine's clock.
const EARLY: f64 = 300.0;

/// One issuer.
struct Provider {
    issuer: Issuer,
    keys: Arc<Keys>,
    hash: String,
}

/// The issuers in force. They stop fetching when dropped.
#[derive(Default)]
pub struct Issuers {
    providers: Vec<Provider>,
    /// Ends the background work.
    stop: Option<tokio_util::sync::DropGuard>,
}

impl Issuers {
    /// Over these, fetching what they publish until the parent is cancelled.
    pub fn start(issuers: Vec<Issuer>, parent: &CancellationToken, tasks: &shared::run::TaskGroup) -> Self {
        let stop = parent.child_token();
        let mut providers = Vec::new();
        for issuer in issuers {
            let keys = Arc::new(Keys::new(&issuer));
            let (work, until) = (keys.clone(), stop.clone());
            tasks.spawn("token-issuer", async move {
                tokio::select! {
                    () = until.cancelled() => {}
                    () = work.discover() => {}
                }
            });
            let hash: String = Sha256::digest(issuer.url.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
            providers.push(Provider { issuer, keys, hash: format!("sha256:{hash}") });
        }
        Self { providers, stop: Some(stop.drop_guard()) }
    }

    /// Whether all issuers have been reached.
    pub fn ready(&self) -> bool {
        let _ = &self.stop;
        self.providers.iter().all(|p| p.keys.is_known())
    }
}

/// The authenticator; the issuers may be exchanged.
#[derive(Default)]
pub struct Jwt {
    issuers: ArcSwap<Issuers>,
}

fn part(text: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

fn bad<T>(text: impl Into<String>) -> Result<T, AuthnError> {
    Err(AuthnError(text.into()))
}

impl Jwt {
    /// Over issuers.
    pub fn new(issuers: Issuers) -> Self {
        Self { issuers: ArcSwap::from_pointee(issuers) }
    }

    /// Exchanges the issuers.
    pub fn replace(&self, issuers: Issuers) {
        self.issuers.store(Arc::new(issuers));
    }

    /// Whom a token stands for at a time (seconds). `None` for tokens of other issuers.
    async fn check(&self, token: &str, now: f64) -> Result<Option<Identity>, AuthnError> {
        let Some((message, signature)) = token.rsplit_once('.') else { return Ok(None) };
        let Some((header, payload)) = message.split_once('.').filter(|(_, p)| !p.contains('.')) else {
            return Ok(None);
        };
        let Some(claims) = part(payload) else { return Ok(None) };
        let issuers = self.issuers.load_full();
        let own = |p: &&Provider| p.issuer.url == tree::text(&claims, "/iss");
        let Some(provider) = issuers.providers.iter().find(own) else { return Ok(None) };
        let started = std::time::Instant::now();
        let outcome = provider.check(header, message, signature, &claims, now).await;
        let result = if outcome.is_ok() { "success" } else { "failure" };
        latency().with_label_values(&[&provider.hash, result]).observe(started.elapsed().as_secs_f64());
        outcome.map(Some)
    }
}

fn latency() -> HistogramVec {
    metrics::histogram(
        "apiserver_authentication_jwt_authenticator_latency_seconds",
        "[ALPHA] Latency of jwt authentication operations in seconds. This is the time spent authenticating a token for cache miss only (i.e. when the token is not found in the cache).",
        &["jwt_issuer_hash", "result"],
        metrics::default_buckets(),
    )
}

impl Provider {
    async fn check(
        &self,
        header: &str,
        message: &str,
        signature: &str,
        claims: &Value,
        now: f64,
    ) -> Result<Identity, AuthnError> {
        let header = part(header).unwrap_or_default();
        let (algorithm, id) = (tree::text(&header, "/alg"), tree::text(&header, "/kid"));
        if !self.issuer.algorithms.iter().any(|a| a == algorithm) {
            return bad(format!(
                "oidc: verify token: oidc: id token signed with unsupported algorithm, expected {} got {algorithm:?}",
                crate::authz::rbac::quoted_list(&self.issuer.algorithms)
            ));
        }
        self.audience(claims)?;
        let number = |name: &str| claims.get(name).and_then(Value::as_f64);
        match number("exp") {
            Some(at) if at > now => {}
            _ => {
                return bad(format!(
                    "oidc: verify token: oidc: token is expired (Token Expiry: {})",
                    time(number("exp"))
                ));
            }
        }
        if number("nbf").is_some_and(|at| at > now + EARLY) {
            return bad(format!(
                "oidc: verify token: oidc: current time {} before the nbf (not before) time: {}",
                time(Some(now)),
                time(number("nbf"))
            ));
        }
        self.keys.verify(algorithm, id, message, signature).await?;
        claims::identity(&self.issuer, claims).map(Identity::from).map_err(AuthnError)
    }

    fn audience(&self, claims: &Value) -> Result<(), AuthnError> {
        let said: Vec<&str> = match claims.get("aud") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let wanted = &self.issuer.audiences;
        if wanted.iter().any(|w| said.contains(&w.as_str())) {
            return Ok(());
        }
        let shown = crate::authz::rbac::quoted_list(&said);
        match wanted.as_slice() {
            [one] => bad(format!("oidc: verify token: oidc: expected audience {one:?} got {shown}")),
            many => bad(format!(
                "oidc: verify token: oidc: expected audience in {} got {shown}",
                crate::authz::rbac::quoted_list(many)
            )),
        }
    }
}

fn time(seconds: Option<f64>) -> String {
    #[allow(clippy::cast_possible_truncation)]
    let at = jiff::Timestamp::from_second(seconds.unwrap_or(0.0) as i64);
    at.map(|t| t.to_string()).unwrap_or_default()
}

#[async_trait]
impl TokenAuthenticator for Jwt {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<Identity>, AuthnError> {
        self.check(token, jiff::Timestamp::now().as_duration().as_secs_f64()).await
    }
}
