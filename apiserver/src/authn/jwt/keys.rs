//! Discovery and keys of an issuer. The discovery document is fetched at start; the keys when a token names an unknown
//! one and the issuer has not said that they stay the same; by one request at a time, whose result all waiters share.
//! Anybody can send such tokens: past a burst, fetches are delayed, and no token is refused for that, so that a key
//! which is really new is known with the next fetch. Answers for upstream's `go-oidc's` `remoteKeySet`.

use std::borrow::Cow;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::Jwk;
use p521::ecdsa::signature::Verifier as _;
use serde_json::Value;
use shared::client::{Remote, Reply};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::error::{IssuerError, SignatureError};
use super::fetches::Fetches;
use super::lifetime::lifetime;
use super::source::IssuerClient;
use crate::machinery::tree;

/// Between attempts to reach an issuer.
const RETRY: Duration = Duration::from_secs(10);
/// Between fetches of keys that tokens ask for, once there were as many at once as may be.
const EVERY: Duration = Duration::from_secs(1);
/// Fetches that may follow one another without a pause.
const AT_ONCE: u32 = 10;
/// Before keys cease to stay the same by this, they may be fetched again: clocks differ.
const AHEAD: Duration = Duration::from_secs(30);
/// Bytes of an answer that are shown where it is none.
const SHOWN: usize = 256;
/// Most keys of one issuer.
const KEYS: usize = 256;

/// Key that verifies signatures.
enum VerifyingKey {
    Usual(DecodingKey),
    /// Of the largest curve, which the library for the others does not know.
    P521(p521::ecdsa::VerifyingKey),
}

impl VerifyingKey {
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

struct VerificationKey {
    id: String,
    checked: VerifyingKey,
}

/// Once the issuer has said who it is.
struct KnownIssuer {
    jwks: Remote,
    keys: Vec<VerificationKey>,
    /// Until when the issuer keeps to them.
    lasting: Option<Instant>,
}

impl KnownIssuer {
    fn lasts(&self) -> bool {
        self.lasting.is_some_and(|until| Instant::now() + AHEAD <= until)
    }
}

/// State of fetching a document.
#[derive(Default)]
struct FetchState {
    /// Time and result of the last fetch.
    last: Option<(Instant, Result<(), IssuerError>)>,
    /// Time from which no fetch so far delays the next one.
    paid: Option<Instant>,
}

impl FetchState {
    /// Delay of the next fetch.
    fn wait(&self, now: Instant) -> Duration {
        self.paid.map_or(Duration::ZERO, |paid| paid.saturating_duration_since(now + EVERY * (AT_ONCE - 1)))
    }

    /// A fetch begins.
    fn begin(&mut self, now: Instant) {
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + EVERY);
    }
}

/// Discovery and keys of one issuer.
pub(super) struct Keys {
    issuer: String,
    discovery: String,
    source: IssuerClient,
    known: ArcSwapOption<KnownIssuer>,
    /// Tells of keys that are fetched, where that is measured.
    fetches: Option<Fetches>,
    /// Held while something is fetched. Who waited for that does not try again.
    tried: Mutex<FetchState>,
}

/// Fetches the discovery document of an issuer.
async fn document(source: &IssuerClient, remote: &Remote) -> Result<Value, IssuerError> {
    let reply = source.get(remote, None).await?;
    match refusal(&reply) {
        Some((status, body)) => Err(IssuerError::Discovery { status, body: body.into_owned() }),
        None => serde_json::from_slice(&reply.body).map_err(|e| IssuerError::DiscoveryDocument(e.into())),
    }
}

/// Code and beginning of an answer that is not what was asked for.
fn refusal(reply: &Reply) -> Option<(StatusCode, Cow<'_, str>)> {
    let status = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status != StatusCode::OK).then(|| (status, shown(&reply.body)))
}

fn shown(body: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&body[..body.len().min(SHOWN)])
}

async fn key_set(source: &IssuerClient, jwks: &Remote) -> Result<(Reply, Value), IssuerError> {
    let reply = source.get(jwks, None).await.map_err(|e| IssuerError::Keys(e.into()))?;
    if let Some((status, body)) = refusal(&reply) {
        return Err(IssuerError::KeysRefused { status, body: body.into_owned() });
    }
    let bad = |e: serde_json::Error| IssuerError::KeySet { source: e.into(), body: shown(&reply.body).into_owned() };
    let set = serde_json::from_slice(&reply.body).map_err(bad)?;
    Ok((reply, set))
}

/// Keys that cannot be used are left out: an issuer may have others.
fn read(set: &Value) -> Vec<VerificationKey> {
    let usable = |key: &Value| {
        let signs = matches!(tree::text(key, "/use"), "" | "sig");
        let checked = VerifyingKey::of(key).filter(|_| signs)?;
        Some(VerificationKey { id: tree::text(key, "/kid").to_owned(), checked })
    };
    // A symmetric key would let whoever reads it make tokens.
    let asymmetric = |key: &&Value| tree::text(key, "/kty") != "oct";
    tree::list(set, "/keys").iter().take(KEYS).filter(asymmetric).filter_map(usable).collect()
}

impl Keys {
    /// Of an issuer, whose document may be in another place than the usual one.
    pub(super) fn new(issuer: &str, discovery: Option<&str>, source: IssuerClient, fetches: Option<Fetches>) -> Self {
        let well_known = || format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        Self {
            issuer: issuer.to_owned(),
            discovery: discovery.map_or_else(well_known, str::to_owned),
            source,
            known: ArcSwapOption::empty(),
            fetches,
            tried: Mutex::default(),
        }
    }

    /// Removes the metrics of the issuer's keys.
    pub(super) fn remove_metrics(&self) {
        if let Some(fetches) = &self.fetches {
            fetches.remove();
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known.load().is_some()
    }

    /// Retries discovery until the issuer has answered.
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
    pub(super) async fn try_discover(&self) {
        let mut tried = self.tried.lock().await;
        if self.is_known() || tried.last.as_ref().is_some_and(|(at, _)| at.elapsed() < RETRY) {
            return;
        }
        let outcome = self.discover_once().await;
        if let Err(error) = &outcome {
            tracing::error!(issuer = self.issuer, %error, "oidc authenticator: async token verifier for issuer");
        }
        tried.last = Some((Instant::now(), outcome));
    }

    async fn discover_once(&self) -> Result<(), IssuerError> {
        let found = document(&self.source, &self.source.remote(&self.discovery)?).await?;
        let said = tree::text(&found, "/issuer");
        if said != self.issuer {
            return Err(IssuerError::OtherIssuer { expected: self.issuer.clone(), found: said.to_owned() });
        }
        let place = tree::text(&found, "/jwks_uri");
        if place.is_empty() {
            return Err(IssuerError::NoKeysUrl);
        }
        let jwks = self.source.remote(place)?;
        self.known.store(Some(KnownIssuer { jwks, keys: Vec::new(), lasting: None }.into()));
        Ok(())
    }

    /// Fetches the keys, unless they stay the same, or that was done while it was waited for.
    async fn refresh(&self) -> Result<(), IssuerError> {
        let asked = Instant::now();
        let mut tried = self.tried.lock().await;
        if let Some((_, outcome)) = tried.last.as_ref().filter(|(at, _)| *at > asked) {
            return outcome.clone();
        }
        let Some(known) = self.known.load_full().filter(|known| !known.lasts()) else { return Ok(()) };
        // Who gives up meanwhile has fetched nothing, and others wait no longer for it.
        tokio::time::sleep(tried.wait(Instant::now())).await;
        tried.begin(Instant::now());
        let outcome = self.fetch(&known.jwks).await.map(|fresh| self.known.store(Some(fresh.into())));
        tried.last = Some((Instant::now(), outcome.clone()));
        outcome
    }

    /// The keys as they are published; told where that is measured.
    async fn fetch(&self, jwks: &Remote) -> Result<KnownIssuer, IssuerError> {
        let found = key_set(&self.source, jwks).await;
        if let Some(fetches) = &self.fetches {
            fetches.record(found.as_ref().ok().map(|(reply, _)| &*reply.body));
        }
        let (reply, set) = found?;
        let lasting = lifetime(&reply.headers, jiff::Timestamp::now());
        Ok(KnownIssuer { jwks: jwks.clone(), keys: read(&set), lasting: Instant::now().checked_add(lasting) })
    }

    fn verified(&self, algorithm: &str, id: &str, message: &str, signature: &str) -> bool {
        let Some(known) = self.known.load_full() else { return false };
        let mut named = known.keys.iter().filter(|k| id.is_empty() || k.id == id);
        named.any(|k| k.checked.fits(algorithm, message, signature))
    }

    /// Verifies the signature of a message with one of the issuer's keys.
    pub(super) async fn verify(
        &self,
        algorithm: &str,
        id: &str,
        message: &str,
        signature: &str,
    ) -> Result<(), SignatureError> {
        if self.verified(algorithm, id, message, signature) {
            return Ok(());
        }
        self.refresh().await?;
        if self.verified(algorithm, id, message, signature) {
            return Ok(());
        }
        Err(SignatureError::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::client::Dialer;

    use super::super::source::DEADLINE;
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

    /// Turns of fetches of which each is begun as soon as it may: so many at once, then one after another.
    #[test]
    fn turns_of_fetches() {
        let (mut tried, begun) = (FetchState::default(), Instant::now());
        let mut now = begun;
        let mut turns = |pause: u64, fetches: u64| {
            now += Duration::from_secs(pause);
            let turn = |_| {
                now += tried.wait(now);
                tried.begin(now);
                (now - begun).as_secs()
            };
            (0..fetches).map(turn).collect::<Vec<_>>()
        };
        assert_eq!(turns(0, 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        assert_eq!(turns(2, 4), [5, 5, 6, 7]);
        assert_eq!(turns(60, 11), [67, 67, 67, 67, 67, 67, 67, 67, 67, 67, 68]);
    }

    /// The keys of an issuer whose every connection this serves with one answer.
    fn issuer(answer: impl Fn() -> Option<String> + Clone + Send + Sync + 'static) -> Keys {
        use shared::client::BoxStream;
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let dialer = Dialer::new(move |_| {
            let (near, mut far) = tokio::io::duplex(1 << 12);
            let answer = answer.clone();
            Box::pin(async move {
                tokio::spawn(async move {
                    let mut asked = [0; 1 << 10];
                    let some = far.read(&mut asked).await.unwrap_or_default();
                    match answer().filter(|_| some > 0) {
                        Some(answer) => drop(far.write_all(answer.as_bytes()).await),
                        None => std::future::pending::<()>().await,
                    }
                });
                let near: BoxStream = Box::pin(near);
                Ok(near)
            })
        });
        let source = IssuerClient { ca: None, dialer: Some(dialer) };
        let keys = Keys::new("http://issuer", None, source.clone(), None);
        let jwks = source.remote("http://issuer/keys").expect("a remote");
        keys.known.store(Some(KnownIssuer { jwks, keys: Vec::new(), lasting: None }.into()));
        keys
    }

    /// An issuer that takes requests and never answers keeps who waits for it no longer than whoever asked first, and
    /// all are told the same.
    #[tokio::test(start_paused = true)]
    async fn concurrent_key_fetches_are_shared() {
        let keys = issuer(|| None);
        let began = Instant::now();
        let asked = (0..5).map(|_| keys.verify("RS256", "k", "a.b", "c"));
        let told = futures::future::join_all(asked).await;
        assert!(told.iter().all(|told| matches!(told, Err(SignatureError::Keys(_)))), "{told:?}");
        assert_eq!(began.elapsed().as_secs(), DEADLINE.as_secs());
    }

    /// Tokens with keys that nobody knows, one after another: how often the issuer is asked in a time.
    #[tokio::test(start_paused = true)]
    async fn tokens_that_ask_for_keys() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU64, Ordering};
        for (said, tokens, fetches, seconds) in [
            ("", 5, 5, 0),
            ("", 40, 40, 30),
            ("Cache-Control: max-age=3600\r\n", 40, 1, 0),
            // What lasts hardly longer than clocks differ.
            ("Cache-Control: max-age=20\r\n", 5, 5, 0),
        ] {
            let asked = Arc::new(AtomicU64::new(0));
            let count = asked.clone();
            let keys = issuer(move || {
                count.fetch_add(1, Ordering::Relaxed);
                Some(format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{said}Content-Length: 11\r\n\r\n{{\"keys\":[]}}"))
            });
            let began = Instant::now();
            for _ in 0..tokens {
                let refused = keys.verify("RS256", "k", "a.b", "c").await;
                assert!(matches!(refused, Err(SignatureError::Unknown)), "{refused:?}");
            }
            assert_eq!((asked.load(Ordering::Relaxed), began.elapsed().as_secs()), (fetches, seconds), "{said}");
        }
    }
}
