//! What an issuer publishes: where its keys are, which is asked at start, and the keys, which are fetched when a token
//! names one that is not known; by one request at a time, whose outcome is that of all who wait for it.

use std::time::Duration;

use arc_swap::ArcSwapOption;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::Jwk;
use p521::ecdsa::signature::Verifier as _;
use serde_json::Value;
use shared::client::{Dialer, Remote};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::fetches::Fetches;
use crate::access::tree;

/// For one document.
const DEADLINE: Duration = Duration::from_secs(30);
/// Between attempts to reach an issuer.
const RETRY: Duration = Duration::from_secs(10);
/// Most keys of one issuer.
const KEYS: usize = 256;

/// What a signature is checked with.
enum Checked {
    Usual(DecodingKey),
    /// Of the largest curve, which the library for the others does not know.
    P521(p521::ecdsa::VerifyingKey),
}

impl Checked {
    fn of(jwk: &Value) -> Option<Self> {
        if tree::text(jwk, "/kty") == "EC" && tree::text(jwk, "/crv") == "P-521" {
            let coordinate = |name: &str| -> Option<p521::FieldBytes> {
                let bytes = URL_SAFE_NO_PAD.decode(tree::text(jwk, name)).ok()?;
                let mut padded = p521::FieldBytes::default();
                let at = padded.len().checked_sub(bytes.len())?;
                padded[at..].copy_from_slice(&bytes);
                Some(padded)
            };
            let point = p521::EncodedPoint::from_affine_coordinates(&coordinate("/x")?, &coordinate("/y")?, false);
            return p521::ecdsa::VerifyingKey::from_encoded_point(&point).ok().map(Self::P521);
        }
        let jwk: Jwk = serde_json::from_value(jwk.clone()).ok()?;
        DecodingKey::from_jwk(&jwk).ok().map(Self::Usual)
    }

    fn fits(&self, algorithm: &str, message: &str, signature: &str) -> bool {
        match self {
            Self::Usual(key) => algorithm
                .parse()
                .is_ok_and(|a| jsonwebtoken::crypto::verify(signature, message.as_bytes(), key, a).unwrap_or(false)),
            Self::P521(key) => {
                let signature = URL_SAFE_NO_PAD.decode(signature).ok();
                let signature = signature.and_then(|bytes| p521::ecdsa::Signature::from_slice(&bytes).ok());
                algorithm == "ES512" && signature.is_some_and(|s| key.verify(message.as_bytes(), &s).is_ok())
            }
        }
    }
}

struct Key {
    id: String,
    checked: Checked,
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
    /// Tells of keys that are fetched, where that is measured.
    fetches: Option<Fetches>,
    /// When that was tried last, to its end; held meanwhile. Who waited for it does not try again.
    fetched: Mutex<Option<Instant>>,
}

async fn document(remote: &Remote) -> Result<Value, String> {
    parsed(&fetched(remote).await?)
}

async fn fetched(remote: &Remote) -> Result<Bytes, String> {
    let reply = remote.get(DEADLINE).await.map_err(|e| e.to_string())?;
    if reply.code != 200 {
        return Err(format!("{}: {}", reply.code, String::from_utf8_lossy(&reply.body[..reply.body.len().min(256)])));
    }
    Ok(reply.body)
}

fn parsed(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|e| format!("failed to decode: {e}"))
}

/// The keys as they are published; told where that is measured.
async fn set(jwks: &Remote, fetches: Option<&Fetches>) -> Result<Value, String> {
    let body = fetched(jwks).await;
    let set = body.as_deref().map_err(Clone::clone).and_then(parsed);
    if let Some(fetches) = fetches {
        fetches.tell(body.as_deref().ok().filter(|_| set.is_ok()));
    }
    set
}

/// Keys that cannot be used are left out: an issuer may have others.
fn read(set: &Value) -> Vec<Key> {
    let usable = |key: &Value| {
        let signs = matches!(tree::text(key, "/use"), "" | "sig");
        let checked = Checked::of(key).filter(|_| signs)?;
        Some(Key { id: tree::text(key, "/kid").to_owned(), checked })
    };
    // A symmetric key would let whoever reads it make tokens.
    let asymmetric = |key: &&Value| tree::text(key, "/kty") != "oct";
    tree::list(set, "/keys").iter().take(KEYS).filter(asymmetric).filter_map(usable).collect()
}

impl Keys {
    /// Of an issuer, whose document may be in another place than the usual one.
    pub(super) fn new(issuer: &str, discovery: Option<&str>, source: Source, fetches: Option<Fetches>) -> Self {
        let well_known = || format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        Self {
            issuer: issuer.to_owned(),
            discovery: discovery.map_or_else(well_known, str::to_owned),
            source,
            known: ArcSwapOption::empty(),
            fetches,
            fetched: Mutex::default(),
        }
    }

    /// Nothing is said any more of what was fetched.
    pub(super) fn forget(&self) {
        if let Some(fetches) = &self.fetches {
            fetches.forget();
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
        if let Err(error) = self.discover_once().await {
            tracing::error!(issuer = self.issuer, %error, "oidc authenticator: async token verifier for issuer");
        }
        *tried = Some(Instant::now());
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
        let place = tree::text(&found, "/jwks_uri");
        if place.is_empty() {
            return Err("provider did not return JWKS URL".to_owned());
        }
        let jwks = self.source.remote(place)?;
        self.known.store(Some(Known { jwks, keys: Vec::new() }.into()));
        Ok(())
    }

    /// Fetches the keys, unless that was done while it was waited for.
    async fn refresh(&self) -> Result<(), String> {
        let asked = Instant::now();
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|at| at >= asked) {
            return Ok(());
        }
        let Some(known) = self.known.load_full() else { return Ok(()) };
        let found = set(&known.jwks, self.fetches.as_ref()).await;
        *fetched = Some(Instant::now());
        self.known.store(Some(Known { jwks: known.jwks.clone(), keys: read(&found?) }.into()));
        Ok(())
    }

    fn verified(&self, algorithm: &str, id: &str, message: &str, signature: &str) -> bool {
        let Some(known) = self.known.load_full() else { return false };
        let mut named = known.keys.iter().filter(|k| id.is_empty() || k.id == id);
        named.any(|k| k.checked.fits(algorithm, message, signature))
    }

    /// Whether one of the issuer's keys signed a message.
    pub(super) async fn verify(&self, algorithm: &str, id: &str, message: &str, signature: &str) -> Result<(), String> {
        let refused = |why: &str| format!("failed to verify signature: {why}");
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_the_largest_curve() {
        let keys = read(&json!({"keys": [{
            "kty": "EC", "crv": "P-521", "kid": "k",
            "x": "APXpVIBJjrdkFhkKgdAA2oDqg7blhklB4SNBMhf7InceHzi_CZ17OEl3WRAPehY51aLjdP54Mqc2gyjMlhVSeLOW",
            "y": "Ab1ztiNs09q8p7AMoFc5i78VUohmvZ-ibVp5Hv0zFrlZPFPQHlS4jwtZ7vQaLvTKw6ksx3HN34FYmfeDjbnYfm88",
        }]}));
        let signature = "Adtj8CkT8Ym9aXIpHRfgVTeW5EuTS8sAdr9g7oRBcpqe3Cacdhlr-raEPqDWYj6MgspJiNvxWpWwLh7bUevFo-r0AV3FbfZgUfPsneCYPcrb-bLk9F8NqyppxBX0vtgHHr7U4Zye-ycycNj6dpQIzrb9DNJBvJLW1OvPk65SHt7_nEdL";
        let fits = |algorithm: &str, message: &str| keys[0].checked.fits(algorithm, message, signature);
        assert!(fits("ES512", "a.b"));
        assert!(!fits("ES512", "a.c") && !fits("ES384", "a.b") && !fits("RS256", "a.b"));
    }

    /// An issuer that takes requests and never answers keeps who waits for it no longer than whoever asked first.
    #[tokio::test(start_paused = true)]
    async fn who_waits_for_keys_does_not_ask_again() {
        use shared::client::BoxStream;
        let silent = Dialer::new(|_| {
            let (near, far) = tokio::io::duplex(1 << 12);
            Box::pin(async move {
                tokio::spawn(async move {
                    let _open = far;
                    std::future::pending::<()>().await;
                });
                let near: BoxStream = Box::pin(near);
                Ok(near)
            })
        });
        let source = Source { ca: None, dialer: Some(silent) };
        let keys = Keys::new("http://issuer", None, source.clone(), None);
        let jwks = source.remote("http://issuer/keys").expect("a remote");
        keys.known.store(Some(Known { jwks, keys: Vec::new() }.into()));
        let began = Instant::now();
        let asked = (0..5).map(|_| keys.verify("RS256", "k", "a.b", "c"));
        assert!(futures::future::join_all(asked).await.iter().all(Result::is_err));
        assert_eq!(began.elapsed().as_secs(), DEADLINE.as_secs());
    }
}
