//! Tokens of other issuers (OpenID Connect): by the `--oidc-*` flags or by the file of `--authentication-config`,
//! which is followed while the server runs. Answers for upstream's `plugin/pkg/authenticator/token/oidc`.
//!
//! In comes a token, out goes whom it stands for. What an issuer says of itself is fetched in the background; until it
//! is known, the issuer's tokens are refused.

mod claims;
pub mod config;
mod distributed;
mod error;
mod fetches;
mod keys;
mod lifetime;
mod registered;
mod source;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prometheus::HistogramVec;
use serde_json::Value;
use shared::authn::{AuthnError, Identity};
use shared::metrics;
use tokio_util::sync::CancellationToken;

use super::TokenAuthenticator;
use crate::egress::{Egress, EgressLookupError};
use crate::machinery::tree;
use crate::reloads::hashed;
use config::{Issuer, Mapping};
use distributed::Distributed;
use error::{InvalidToken, TokenError};
use fetches::Fetches;
use keys::Keys;
use source::IssuerClient;

/// Seconds a token may be ahead of this machine's clock.
const EARLY: f64 = 60.0;

/// Seconds by which the time for a token is sorted.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// One issuer.
struct IssuerProvider {
    issuer: Issuer,
    keys: Arc<Keys>,
    distributed: Distributed,
    hash: String,
}

/// The issuers in force. They stop fetching when dropped.
#[derive(Default)]
pub struct Issuers {
    providers: Vec<IssuerProvider>,
    /// Ends the background work.
    stop: Option<tokio_util::sync::DropGuard>,
}

impl Issuers {
    /// Over these, asking where they publish their keys until the parent is cancelled. `measured`: metrics tell of keys
    /// that are fetched.
    ///
    /// # Errors
    /// An issuer is to be reached through a network that is not configured.
    pub fn start(
        issuers: Vec<Issuer>,
        egress: &Egress,
        parent: &CancellationToken,
        tasks: &shared::run::TaskGroup,
        measured: bool,
    ) -> Result<Self, EgressLookupError> {
        let stop = parent.child_token();
        let mut providers = Vec::new();
        let dialers = issuers.iter().map(|issuer| issuer.egress.map(|to| egress.demanded(to)).transpose());
        let dialers = dialers.collect::<Result<Vec<_>, _>>()?;
        for (issuer, dialer) in issuers.into_iter().zip(dialers) {
            let source = IssuerClient { ca: issuer.ca.clone(), dialer };
            let fetches = measured.then(|| Fetches::new(&issuer.url));
            let keys = Arc::new(Keys::new(&issuer.url, issuer.discovery.as_deref(), source.clone(), fetches));
            let (work, until) = (keys.clone(), stop.clone());
            tasks.spawn("token-issuer", async move {
                tokio::select! {
                    () = until.cancelled() => {}
                    () = work.discover() => {}
                }
            });
            let hash = hashed(issuer.url.as_bytes());
            let distributed = Distributed::new(source);
            providers.push(IssuerProvider { issuer, keys, distributed, hash });
        }
        Ok(Self { providers, stop: Some(stop.drop_guard()) })
    }

    /// Reports whether all issuers have been reached.
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

/// A part of a token as the JSON that it says.
pub(crate) fn part(text: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

impl Jwt {
    /// Over issuers.
    pub fn new(issuers: Issuers) -> Self {
        Self { issuers: ArcSwap::from_pointee(issuers) }
    }

    /// Exchanges the issuers. Nothing is said any more of the keys of those that are gone.
    pub fn replace(&self, issuers: Issuers) {
        let fresh = Arc::new(issuers);
        let old = self.issuers.swap(fresh.clone());
        let stays = |gone: &IssuerProvider| fresh.providers.iter().any(|p| p.issuer.url == gone.issuer.url);
        old.providers.iter().filter(|p| !stays(p)).for_each(|gone| gone.keys.remove_metrics());
    }

    /// Authenticates a token at a time (seconds). `None` for tokens of other issuers.
    async fn check(&self, token: &str, now: f64) -> Result<Option<Identity>, AuthnError> {
        let Some(token) = Token::read(token) else { return Ok(None) };
        let issuers = self.issuers.load_full();
        let own = |p: &&IssuerProvider| p.issuer.url == token.issuer();
        let Some(provider) = issuers.providers.iter().find(own) else { return Ok(None) };
        let started = std::time::Instant::now();
        let outcome = provider.check(token, now).await;
        let result = if outcome.is_ok() { "success" } else { "failure" };
        latency().with_label_values(&[&provider.hash, result]).observe(started.elapsed().as_secs_f64());
        outcome.map(Some).map_err(|e| AuthnError(e.to_string()))
    }
}

/// A token taken apart; nothing of it is known to be true.
struct Token<'t> {
    header: &'t str,
    /// Signed part of the token.
    message: &'t str,
    signature: &'t str,
    claims: Value,
}

impl<'t> Token<'t> {
    fn read(text: &'t str) -> Option<Self> {
        let (message, signature) = text.rsplit_once('.')?;
        let (header, payload) = message.split_once('.').filter(|(_, p)| !p.contains('.'))?;
        Some(Self { header, message, signature, claims: part(payload)? })
    }

    fn issuer(&self) -> &str {
        tree::text(&self.claims, "/iss")
    }
}

fn latency() -> HistogramVec {
    metrics::histogram(
        "apiserver_authentication_jwt_authenticator_latency_seconds",
        "[ALPHA] Latency of jwt authentication operations in seconds. This is the time spent authenticating a token for cache miss only (i.e. when the token is not found in the cache).",
        &["jwt_issuer_hash", "result"],
        BUCKETS.to_vec(),
    )
}

impl IssuerProvider {
    async fn check(&self, token: Token<'_>, now: f64) -> Result<Identity, TokenError> {
        if !self.keys.is_known() {
            return Err(TokenError::Uninitialized);
        }
        self.verify(&self.keys, &token, now).await?;
        let mut claims = token.claims;
        if let Mapping::Claim { claim, .. } = &self.issuer.groups {
            self.complete(&mut claims, claim, now).await?;
        }
        Ok(Identity::from(claims::identity(&self.issuer, &claims)?))
    }

    /// Verifies that a token is from the issuer of these keys, for one of our audiences, and valid at a time (seconds).
    async fn verify(&self, keys: &Keys, token: &Token<'_>, now: f64) -> Result<(), InvalidToken> {
        registered::check(&token.claims)?;
        self.audience(&token.claims)?;
        let number = |name: &str| registered::seconds(&token.claims, name);
        match number("exp") {
            Some(at) if at > now => {}
            _ => return Err(InvalidToken::Expired(time(number("exp")))),
        }
        if number("nbf").is_some_and(|at| at > now + EARLY) {
            return Err(InvalidToken::NotYet { now: time(Some(now)), since: time(number("nbf")) });
        }
        let header = part(token.header).unwrap_or_default();
        let (algorithm, id) = (tree::text(&header, "/alg"), tree::text(&header, "/kid"));
        if !self.issuer.algorithms.iter().any(|a| a == algorithm) {
            let wanted = self.issuer.algorithms.clone();
            return Err(InvalidToken::Algorithm { wanted, found: algorithm.to_owned() });
        }
        Ok(keys.verify(algorithm, id, token.message, token.signature).await?)
    }

    fn audience(&self, claims: &Value) -> Result<(), InvalidToken> {
        let said: Vec<&str> = match claims.get("aud") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let wanted = &self.issuer.audiences;
        if wanted.iter().any(|w| said.contains(&w.as_str())) {
            return Ok(());
        }
        let found = said.into_iter().map(str::to_owned).collect();
        Err(InvalidToken::Audience { wanted: wanted.clone(), found })
    }
}

/// A moment as Go prints it; none is the first of all.
fn time(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return "0001-01-01 00:00:00 +0000 UTC".to_owned() };
    #[expect(clippy::cast_possible_truncation, reason = "seconds of a token are far below 2^53")]
    let at = jiff::Timestamp::from_second(seconds as i64);
    at.map(|t| t.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string()).unwrap_or_default()
}

#[async_trait]
impl TokenAuthenticator for Jwt {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<Identity>, AuthnError> {
        self.check(token, jiff::Timestamp::now().as_duration().as_secs_f64()).await
    }
}
