//! `--service-account-signing-endpoint`: another process on this machine holds the keys of service-account tokens. It
//! signs, and says which keys to believe. Upstream's ExternalJWTSigner (`package v1`) over a unix socket. Answers for
//! upstream's `pkg/serviceaccount/externaljwt/plugin`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::uri::PathAndQuery;
use prometheus::{CounterVec, HistogramVec};
use serde_json::Value;
use shared::{grpc, metrics};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::Code;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::keys::{KeyError, PublicKey};

/// For one call.
const DEADLINE: Duration = Duration::from_secs(30);
/// Keys are not fetched more often than this for tokens that name unknown ones.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// The least a signer must allow, in seconds.
const SHORTEST_LIFE: i64 = 600;
/// Most letters of a key's id.
const LONGEST_ID: usize = 1024;
/// Refresh interval when the signer gives none.
const REFRESH: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, prost::Message)]
struct SignRequest {
    #[prost(string, tag = "1")]
    claims: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SignResponse {
    #[prost(string, tag = "1")]
    header: String,
    #[prost(string, tag = "2")]
    signature: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeysResponse {
    #[prost(message, repeated, tag = "1")]
    keys: Vec<ExternalKey>,
    #[prost(message, optional, tag = "2")]
    data_timestamp: Option<Timestamp>,
    #[prost(int64, tag = "3")]
    refresh_hint_seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExternalKey {
    #[prost(string, tag = "1")]
    key_id: String,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
    #[prost(bool, tag = "3")]
    exclude_from_oidc_discovery: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MetadataResponse {
    #[prost(int64, tag = "1")]
    max_token_expiration_seconds: i64,
}

/// The keys to believe now.
pub(super) struct FetchedKeys {
    /// In the signer's order.
    pub(super) keys: Vec<PublicKey>,
    /// Time of the next refresh.
    pub(super) refresh: Duration,
}

/// The process behind the socket.
pub(super) struct Signer {
    channel: Channel,
    fetched: Mutex<Option<Instant>>,
    calls: HistogramVec,
    signed: CounterVec,
    asked: CounterVec,
}

impl Signer {
    /// Connects when it is first needed.
    pub(super) fn new(endpoint: &str) -> Result<Self, KeyError> {
        let bad = |e: String| KeyError(format!("service-account-signing-endpoint {endpoint:?}: {e}"));
        if !endpoint.starts_with('/') {
            return Err(bad("must be the path of a unix socket".to_owned()));
        }
        let target = Endpoint::from_shared(format!("unix://{endpoint}")).map_err(|e| bad(e.to_string()))?;
        Ok(Self {
            channel: target.timeout(DEADLINE).connect_lazy(),
            fetched: Mutex::default(),
            calls: metrics::histogram(
                "apiserver_externaljwt_request_duration_seconds",
                "[ALPHA] Request duration and time for calls to external-jwt-signer",
                &["code", "method"],
                vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0],
            ),
            signed: metrics::counter(
                "apiserver_externaljwt_sign_request_total",
                "[ALPHA] Total attempts at signing JWT",
                &["code"],
            ),
            asked: metrics::counter(
                "apiserver_externaljwt_fetch_keys_request_total",
                "[ALPHA] Total attempts at syncing supported JWKs",
                &["code"],
            ),
        })
    }

    async fn call<A, B>(&self, method: &'static str, message: A) -> Result<B, KeyError>
    where
        A: prost::Message + Clone + 'static,
        B: prost::Message + Default + 'static,
    {
        let started = Instant::now();
        let mut grpc = Grpc::new(self.channel.clone());
        let outcome = async {
            grpc.ready().await.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
            let path = PathAndQuery::try_from(format!("/v1.ExternalJWTSigner/{method}"))
                .map_err(|e| tonic::Status::internal(e.to_string()))?;
            grpc.unary(tonic::Request::new(message), path, ProstCodec::<A, B>::default()).await
        }
        .await;
        let code = grpc::name(outcome.as_ref().err().map_or(Code::Ok, tonic::Status::code));
        self.calls.with_label_values(&[code, method]).observe(started.elapsed().as_secs_f64());
        match method {
            "Sign" => self.signed.with_label_values(&[code]).inc(),
            "FetchKeys" => self.asked.with_label_values(&[code]).inc(),
            _ => {}
        }
        outcome
            .map(tonic::Response::into_inner)
            .map_err(|status| KeyError(format!("rpc error: code = {code} desc = {}", status.message())))
    }

    /// Seconds a token may live, as far as the signer is concerned.
    pub(super) async fn longest_life(&self) -> Result<i64, KeyError> {
        let answer: MetadataResponse = self.call("Metadata", Empty {}).await?;
        let seconds = answer.max_token_expiration_seconds;
        if seconds < SHORTEST_LIFE {
            return Err(KeyError(format!(
                "max token life supported by external-jwt-signer ({seconds}s) is less than acceptable (min {SHORTEST_LIFE}s)"
            )));
        }
        Ok(seconds)
    }

    /// A signed token of encoded claims.
    pub(super) async fn sign(&self, claims: &str) -> Result<String, KeyError> {
        let request = SignRequest { claims: claims.to_owned() };
        let answer: SignResponse = self.call("Sign", request).await?;
        check_header(&answer.header)?;
        if answer.signature.is_empty() {
            return Err(KeyError("the external signer returned no signature".to_owned()));
        }
        Ok(format!("{}.{claims}.{}", answer.header, answer.signature))
    }

    /// The keys, unless they were fetched just now.
    pub(super) async fn keys(&self, at_once: bool) -> Result<Option<FetchedKeys>, KeyError> {
        let mut fetched = self.fetched.lock().await;
        if !at_once && fetched.is_some_and(|at| at.elapsed() < AT_MOST_EVERY) {
            return Ok(None);
        }
        *fetched = Some(Instant::now());
        let answer: KeysResponse = self.call("FetchKeys", Empty {}).await?;
        if answer.data_timestamp.is_none() {
            return Err(KeyError("data timestamp is required in FetchKeys response".to_owned()));
        }
        let mut keys = Vec::new();
        for key in answer.keys {
            if key.key_id.is_empty() || key.key_id.len() > LONGEST_ID {
                return Err(KeyError(format!(
                    "key id {:?} must be non-empty and at most {LONGEST_ID} characters",
                    key.key_id
                )));
            }
            let id = key.key_id.clone();
            let mut public = PublicKey::from_pkix(&key.key, key.key_id)
                .ok_or_else(|| KeyError(format!("key {id:?} is not a supported public key")))?;
            public.published = !key.exclude_from_oidc_discovery;
            keys.push(public);
        }
        let refresh = u64::try_from(answer.refresh_hint_seconds).ok().filter(|s| *s > 0).map(Duration::from_secs);
        Ok(Some(FetchedKeys { keys, refresh: refresh.unwrap_or(REFRESH) }))
    }
}

/// A signer decides how a token is signed, and nothing else about it.
fn check_header(encoded: &str) -> Result<(), KeyError> {
    let bad = |why: &str| KeyError(format!("while validating header: {why}"));
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| bad("not base64"))?;
    let header: Value = serde_json::from_slice(&bytes).map_err(|_| bad("not JSON"))?;
    let fields = header.as_object().ok_or_else(|| bad("not an object"))?;
    if fields.keys().any(|k| !matches!(k.as_str(), "alg" | "kid" | "typ")) {
        return Err(bad("only alg, kid and typ are allowed"));
    }
    let text = |name: &str| header[name].as_str().unwrap_or("");
    if text("typ") != "JWT" {
        return Err(bad("bad type"));
    }
    if text("kid").is_empty() || text("kid").len() > LONGEST_ID {
        return Err(bad("key id missing or too long"));
    }
    if !matches!(text("alg"), "RS256" | "ES256" | "ES384" | "ES512") {
        return Err(bad("bad signing algorithm"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use serde_json::json;

    /// A signer on a socket, as gRPC goes over the wire: it signs with the key of the tests and publishes one of two.
    fn serve(path: &std::path::Path) {
        use crate::tokens::keys::SigningKey;
        use crate::tokens::keys::tests::RSA_PEM;
        let listener = tokio::net::UnixListener::bind(path).expect("bound");
        tokio::spawn(async move {
            let key = Arc::new(SigningKey::parse(RSA_PEM.as_bytes()).expect("a key"));
            while let Ok((stream, _)) = listener.accept().await {
                let key = key.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let key = key.clone();
                        tokio::spawn(async move {
                            let (head, mut body) = request.into_parts();
                            let mut bytes = Vec::new();
                            while let Some(Ok(chunk)) = body.data().await {
                                let _ = body.flow_control().release_capacity(chunk.len());
                                bytes.extend_from_slice(&chunk);
                            }
                            let message = answer(head.uri.path(), &bytes[5..], &key);
                            let mut framed = vec![0];
                            framed.extend_from_slice(&u32::try_from(message.len()).expect("small").to_be_bytes());
                            framed.extend_from_slice(&message);
                            let response = http::Response::builder().header("content-type", "application/grpc");
                            let mut stream =
                                respond.send_response(response.body(()).expect("a head"), false).expect("sent");
                            stream.send_data(framed.into(), false).expect("sent");
                            let mut trailers = http::HeaderMap::new();
                            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                            stream.send_trailers(trailers).expect("sent");
                        });
                    }
                });
            }
        });
    }

    fn answer(path: &str, request: &[u8], key: &crate::tokens::keys::SigningKey) -> Vec<u8> {
        use prost::Message as _;
        match path {
            "/v1.ExternalJWTSigner/Metadata" => MetadataResponse { max_token_expiration_seconds: 7200 }.encode_to_vec(),
            "/v1.ExternalJWTSigner/FetchKeys" => {
                let pem = include_bytes!("../../testdata/tokens/rsa.pub");
                let (_, pem) = x509_parser::pem::parse_x509_pem(pem).expect("PEM");
                let key = |id: &str, hidden: bool| ExternalKey {
                    key_id: id.to_owned(),
                    key: pem.contents.clone(),
                    exclude_from_oidc_discovery: hidden,
                };
                let data_timestamp = Some(Timestamp { seconds: 1, nanos: 0 });
                KeysResponse {
                    keys: vec![key("one", false), key("old", true)],
                    data_timestamp,
                    refresh_hint_seconds: 5,
                }
                .encode_to_vec()
            }
            _ => {
                let claims = SignRequest::decode(request).expect("a request").claims;
                let header = URL_SAFE_NO_PAD.encode(json!({"alg": "RS256", "kid": "one", "typ": "JWT"}).to_string());
                let signature = key.sign(&format!("{header}.{claims}")).expect("signed");
                SignResponse { header, signature }.encode_to_vec()
            }
        }
    }

    #[tokio::test]
    async fn external_signer_signs() {
        use crate::tokens::{Config, ServiceAccounts};
        let path = std::env::temp_dir().join(format!("signer-{}.sock", uuid::Uuid::new_v4()));
        serve(&path);
        let config = || Config {
            issuers: vec!["https://k".into()],
            signing_endpoint: path.display().to_string(),
            signs_elsewhere: true,
            ..Config::default()
        };
        let accounts = ServiceAccounts::connect(config()).await.expect("connected");
        assert_eq!((accounts.config().max_expiration, accounts.config().longest_extended), (7200, Some(7200)));
        let token = accounts.sign(&json!({"iss": "https://k"})).await.expect("signed");
        let (message, signature) = token.rsplit_once('.').expect("a token");
        assert!(accounts.verify(message, signature, "one"));
        assert!(!accounts.verify(&format!("{message}x"), signature, "one"));
        let signed = metrics::counter("apiserver_externaljwt_sign_request_total", "", &["code"]);
        assert!((signed.with_label_values(&["OK"]).get() - 1.0).abs() < 1e-9, "counted under the code as Go prints it");
        let published: Value = serde_json::from_slice(&accounts.jwks()).expect("JSON");
        let ids: Vec<&str> =
            published["keys"].as_array().expect("keys").iter().filter_map(|k| k["kid"].as_str()).collect();
        assert_eq!(ids, ["one"], "keys that no longer sign are believed, not published");
        let both = Config { max_expiration: 9000, ..config() };
        assert!(ServiceAccounts::connect(both).await.is_err(), "longer than the signer allows");
        let files = Config { signing_key_file: "/x".into(), ..config() };
        assert!(ServiceAccounts::connect(files).await.is_err(), "one of both");
        let off = ServiceAccounts::connect(Config { signs_elsewhere: false, ..config() }).await;
        let why = "setting `--service-account-signing-endpoint` requires enabling ExternalServiceAccountTokenSigner feature gate";
        assert_eq!(off.err().map(|e| e.to_string()).as_deref(), Some(why));
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn signer_headers_are_validated() {
        let header = |v: Value| check_header(&URL_SAFE_NO_PAD.encode(v.to_string())).map_err(|e| e.0);
        assert_eq!(header(json!({"alg": "RS256", "kid": "k", "typ": "JWT"})), Ok(()));
        for bad in [
            json!({"alg": "none", "kid": "k", "typ": "JWT"}),
            json!({"alg": "RS256", "kid": "", "typ": "JWT"}),
            json!({"alg": "RS256", "kid": "k"}),
            json!({"alg": "RS256", "kid": "k", "typ": "JWT", "jku": "https://evil"}),
        ] {
            assert!(header(bad.clone()).is_err(), "{bad}");
        }
    }
}
