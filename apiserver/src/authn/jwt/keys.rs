//! What an issuer publishes: where its keys are, and the keys. Fetched at start and again when a token names a key that
//! is not known; never more often than once a second.

use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use shared::client::{Dialer, Remote};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::access::tree;

/// For one document.
const DEADLINE: Duration = Duration::from_secs(30);
/// Between attempts to reach an issuer.
const RETRY: Duration = Duration::from_secs(10);
/// Tokens with unknown keys must not make us press the issuer.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Most keys of one issuer.
const KEYS: usize = 256;

struct Key {
    id: String,
    decoding: DecodingKey,
}

/// Once the issuer has said who it is.
struct Known {
    jwks: Remote,
    keys: Vec<Key>,
}

/// How issuers are reached.
#[derive(Clone, Default)]
pub(super) struct Source {
    /// Whom to trust (PEM); the system's authorities when absent.
    pub(super) ca: Option<String>,
    /// Opens the connections, where they do not go straight.
    pub(super) dialer: Option<Dialer>,
}

impl Source {
    pub(super) fn remote(&self, url: &str) -> Result<Remote, String> {
        let trust = self.ca.as_deref().map(str::as_bytes);
        Remote::to(url, trust, self.dialer.clone()).map_err(|e| e.to_string())
    }
}

/// See the module.
pub(super) struct Keys {
    issuer: String,
    discovery: String,
    source: Source,
    known: ArcSwapOption<Known>,
    /// When the keys were fetched last; held while they are.
    fetched: Mutex<Option<Instant>>,
}

async fn document(remote: &Remote) -> Result<Value, String> {
    let reply = remote.get(DEADLINE).await.map_err(|e| e.to_string())?;
    if reply.code != 200 {
        return Err(format!("{}: {}", reply.code, String::from_utf8_lossy(&reply.body[..reply.body.len().min(256)])));
    }
    serde_json::from_slice(&reply.body).map_err(|e| format!("failed to decode: {e}"))
}

/// Keys that cannot be used are left out: an issuer may have others.
fn read(set: &Value) -> Vec<Key> {
    let usable = |key: &Value| {
        let jwk: Jwk = serde_json::from_value(key.clone()).ok()?;
        let signs = matches!(tree::text(key, "/use"), "" | "sig");
        let decoding = DecodingKey::from_jwk(&jwk).ok().filter(|_| signs)?;
        Some(Key { id: tree::text(key, "/kid").to_owned(), decoding })
    };
    // A symmetric key would let whoever reads it make tokens.
    let asymmetric = |key: &&Value| tree::text(key, "/kty") != "oct";
    tree::list(set, "/keys").iter().take(KEYS).filter(asymmetric).filter_map(usable).collect()
}

impl Keys {
    /// Of an issuer, whose document may be in another place than the usual one.
    pub(super) fn new(issuer: &str, discovery: Option<&str>, source: Source) -> Self {
        let well_known = || format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        Self {
            issuer: issuer.to_owned(),
            discovery: discovery.map_or_else(well_known, str::to_owned),
            source,
            known: ArcSwapOption::empty(),
            fetched: Mutex::default(),
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known.load().is_some()
    }

    /// Until the issuer has answered.
    pub(super) async fn discover(&self) {
        loop {
            match self.discover_once().await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(issuer = self.issuer, %error, "oidc authenticator: initializing plugin");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Tries to reach the issuer, unless that was tried just now.
    pub(super) async fn reach(&self) {
        let mut tried = self.fetched.lock().await;
        if self.is_known() || tried.is_some_and(|at| at.elapsed() < RETRY) {
            return;
        }
        *tried = Some(Instant::now());
        if let Err(error) = self.discover_once().await {
            tracing::error!(issuer = self.issuer, %error, "oidc authenticator: async token verifier for issuer");
        }
    }

    async fn discover_once(&self) -> Result<(), String> {
        let found = document(&self.source.remote(&self.discovery)?).await?;
        let said = tree::text(&found, "/issuer");
        if said != self.issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {said:?}",
                self.issuer
            ));
        }
        let jwks = self.source.remote(tree::text(&found, "/jwks_uri"))?;
        let keys = read(&document(&jwks).await?);
        self.known.store(Some(Known { jwks, keys }.into()));
        Ok(())
    }

    /// Fetches the keys again, unless that was done just now. Whether there is something new to try.
    async fn refresh(&self) -> Result<bool, String> {
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|at| at.elapsed() < AT_MOST_EVERY) {
            return Ok(true);
        }
        let Some(known) = self.known.load_full() else { return Ok(false) };
        *fetched = Some(Instant::now());
        let keys = read(&document(&known.jwks).await?);
        self.known.store(Some(Known { jwks: known.jwks.clone(), keys }.into()));
        Ok(true)
    }

    fn verified(&self, algorithm: Algorithm, id: &str, message: &str, signature: &str) -> bool {
        let Some(known) = self.known.load_full() else { return false };
        let named = known.keys.iter().filter(|k| id.is_empty() || k.id == id);
        let mut good =
            named.map(|k| jsonwebtoken::crypto::verify(signature, message.as_bytes(), &k.decoding, algorithm));
        good.any(|verified| verified.unwrap_or(false))
    }

    /// Whether one of the issuer's keys signed a message.
    pub(super) async fn verify(&self, algorithm: &str, id: &str, message: &str, signature: &str) -> Result<(), String> {
        let refused = |why: &str| format!("failed to verify signature: {why}");
        let algorithm: Algorithm = algorithm.parse().map_err(|_| refused("unsupported algorithm"))?;
        if self.verified(algorithm, id, message, signature) {
            return Ok(());
        }
        self.refresh().await.map_err(|why| refused(&format!("fetching keys {why}")))?;
        if self.verified(algorithm, id, message, signature) {
            return Ok(());
        }
        Err(refused("failed to verify id token signature"))
    }
}
