//! HTTPS to webhooks: whom to trust, who to be, and connections kept open between calls. Answers for upstream's
//! `pkg/util/webhook` (`ClientManager.HookClient`).

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::Value;
use rustls_pki_types::ServerName;
use sha2::{Digest, Sha256};
use shared::cert::{self, Trust};
use shared::host_port;
use shared::metrics;
use shared::run::{Shutdown, TaskGroup};
use shared::status::Status;
use shared::traces;
use tokio_rustls::TlsConnector;

use super::credentials::{HostIdentity, WebhookCredentials};
use super::error::{ExchangeError, WebhookCallError};
use super::redirect::CallStep;
use super::target::WebhookAddress;
use crate::api::Reader;
use crate::crd::convert::{ConversionCallError, WebhookClient};
use crate::egress::{Egress, ProxyRefused};

/// Idle connections per webhook, and webhooks with idle connections.
const IDLE: usize = 4;
const HOSTS: usize = 256;
/// Most bytes of an answer.
const ANSWER_LIMIT: usize = 3 << 20;

type Connection = SendRequest<Full<Bytes>>;

/// Key of a TLS configuration: the hash of the CA bundle, and the client identity.
type TrustId = ([u8; 32], usize);

/// Key of a pooled connection: the host, the TLS configuration, and the client certificate.
type Line = (String, TrustId, Vec<u8>);

/// Calls webhooks.
pub struct Caller {
    reader: Arc<dyn Reader>,
    tasks: TaskGroup,
    answered: Shutdown,
    /// Services are called at an endpoint and not at their cluster IP.
    direct: bool,
    egress: Egress,
    idle: Mutex<HashMap<Line, Vec<Connection>>>,
    trust: Mutex<HashMap<TrustId, Arc<rustls::ClientConfig>>>,
}

/// A call.
pub(in super::super) struct Call<'a> {
    pub(in super::super) target: &'a WebhookAddress,
    /// PEM of the authorities to trust; the system's when empty.
    pub(in super::super) bundle: &'a [u8],
    pub(in super::super) identity: HostIdentity,
    /// With its query.
    pub(in super::super) path: String,
    pub(in super::super) body: Bytes,
    pub(in super::super) timeout: Duration,
}

/// Response of a webhook server.
struct HttpResponse {
    code: u16,
    text: bool,
    location: Option<String>,
    body: Bytes,
}

#[async_trait]
impl WebhookClient for Caller {
    async fn post_json(&self, client: &Value, timeout: Duration, body: &Value) -> Result<Vec<u8>, ConversionCallError> {
        let body = Bytes::from(body.to_string());
        Ok(self.review(client, &WebhookCredentials::default(), timeout, body).await?)
    }
}

impl Caller {
    /// Services are found through the cache; open connections are work of `tasks` until the last request was
    /// answered.
    pub fn new(reader: Arc<dyn Reader>, tasks: TaskGroup, answered: Shutdown, direct: bool, egress: Egress) -> Self {
        Self { reader, tasks, answered, direct, egress, idle: Mutex::default(), trust: Mutex::default() }
    }

    /// Posts to a webhook as the users of `credentials`; the body of the answer.
    pub(super) async fn review(
        &self,
        client: &serde_json::Value,
        credentials: &WebhookCredentials,
        timeout: Duration,
        body: Bytes,
    ) -> Result<Vec<u8>, WebhookCallError> {
        let target = WebhookAddress::read(client)?;
        let bundle = match crate::machinery::tree::text(client, "/caBundle") {
            "" => Vec::new(),
            encoded => base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded)?,
        };
        let path = format!("{}?timeout={}s", target.path, timeout.as_secs());
        let identity = credentials.of(&target.server, &target.port);
        self.post(Call { target: &target, bundle: &bundle, identity, path, body, timeout }).await
    }

    /// Posts, and follows where that leads; the body of the answer.
    pub(in super::super) async fn post(&self, call: Call<'_>) -> Result<Vec<u8>, WebhookCallError> {
        let id = (Sha256::digest(call.bundle).into(), call.identity.id);
        let trust = self.trust(id, &call)?;
        let until = tokio::time::Instant::now() + call.timeout;
        let mut step = CallStep::first(call.target, &call.path);
        loop {
            let failed = |source: ExchangeError| WebhookCallError::Post { url: step.url(), source };
            let answered = {
                let exchange = pin!(self.exchange(&call, &step, (id, trust.clone())));
                tokio::time::timeout_at(until, asked(&step, exchange)).await
            };
            let answer = answered.map_err(|_| ExchangeError::Deadline).flatten().map_err(failed)?;
            match step.next(answer.code, answer.location.as_deref()).map_err(|e| failed(e.into()))? {
                Some(next) => step = next,
                None if (200..300).contains(&answer.code) => return Ok(answer.body.to_vec()),
                None => {
                    let message = unsuccessful(answer.code, answer.text, &answer.body);
                    return Err(WebhookCallError::Unsuccessful { code: answer.code, message });
                }
            }
        }
    }

    fn trust(&self, id: TrustId, call: &Call<'_>) -> Result<Arc<rustls::ClientConfig>, WebhookCallError> {
        if let Some(known) = self.trust.lock().get(&id) {
            return Ok(known.clone());
        }
        let trust = match call.bundle {
            [] => Trust::System,
            pem => Trust::Authorities(cert::Authorities::from_pem(pem).map_err(WebhookCallError::Authorities)?),
        };
        let config = cert::client_tls(trust, call.identity.pair.clone()).map_err(WebhookCallError::Certificate)?;
        let config = Arc::new(config);
        let mut trust = self.trust.lock();
        if trust.len() >= HOSTS {
            trust.clear();
        }
        trust.insert(id, config.clone());
        Ok(config)
    }

    async fn exchange(
        &self,
        call: &Call<'_>,
        step: &CallStep,
        (id, trust): (TrustId, Arc<rustls::ClientConfig>),
    ) -> Result<HttpResponse, ExchangeError> {
        let key = (step.target.host.clone(), id, call.identity.shown());
        let request = || {
            let mut request = http::Request::builder()
                .method(if step.get { http::Method::GET } else { http::Method::POST })
                .uri(&step.path)
                .header("host", &step.target.host)
                .header("accept", "application/json, */*")
                .header("user-agent", "kube-apiserver-admission");
            // Who is led elsewhere does not take the secret along.
            let secret = call.identity.authorization().filter(|_| step.target.host == call.target.host);
            if let Some(authorization) = secret {
                request = request.header("authorization", authorization);
            }
            let mut body = Bytes::new();
            if !step.get {
                request = request.header("content-type", "application/json");
                body = call.body.clone();
            }
            for (name, value) in traces::headers() {
                request = request.header(name, value);
            }
            request.body(Full::new(body))
        };
        // A kept connection may have been closed meanwhile; then a new one is opened, once.
        let kept = self.idle.lock().get_mut(&key).and_then(Vec::pop);
        if let Some(mut connection) = kept
            && connection.ready().await.is_ok()
            && let Ok(response) = connection.send_request(request()?).await
        {
            return self.finish(key, connection, response).await;
        }
        let mut connection = self.connect(&step.target, trust).await?;
        let response = connection.send_request(request()?).await?;
        self.finish(key, connection, response).await
    }

    async fn finish(
        &self,
        key: Line,
        connection: Connection,
        response: http::Response<hyper::body::Incoming>,
    ) -> Result<HttpResponse, ExchangeError> {
        let code = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        let text = header("content-type").unwrap_or("text/plain").starts_with("text/");
        let location = header("location").map(str::to_owned);
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await?;
        let mut idle = self.idle.lock();
        if idle.len() >= HOSTS {
            idle.clear();
        }
        let kept = idle.entry(key).or_default();
        if kept.len() < IDLE {
            kept.push(connection);
        }
        Ok(HttpResponse { code, text, location, body: body.to_bytes() })
    }

    async fn connect(
        &self,
        target: &WebhookAddress,
        trust: Arc<rustls::ClientConfig>,
    ) -> Result<Connection, ExchangeError> {
        let address = target.address(self.reader.as_ref(), self.direct)?;
        let dialed = self.egress.dial(target.network(), &address).await;
        let stream = dialed.map_err(|error| ExchangeError::Dial { address, error })?;
        let name = ServerName::try_from(target.server.clone())?;
        let stream = TlsConnector::from(trust).connect(name, stream).await.map_err(|error| {
            count_outdated("webhooks", &error);
            ExchangeError::Tls { server: target.server.clone(), error }
        })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (connection, driver) = handshake.map_err(ExchangeError::Http)?;
        let answered = self.answered.clone();
        // Ends when the connection is dropped or closed by the other side.
        self.tasks.spawn("webhook-connection", async move {
            tokio::select! {
                () = answered.wait() => {}
                ended = driver => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "Connection to webhook ended");
                    }
                }
            }
        });
        Ok(connection)
    }
}

/// A request in a span, where that which it is for has one.
async fn asked<F: Future>(step: &CallStep, work: Pin<&mut F>) -> F::Output {
    let method = if step.get { "GET" } else { "POST" };
    let span = traces::request(method, &step.target.host, || step.url());
    traces::within(span.as_ref(), work).await
}

/// Error text of client-go for an unsuccessful response.
fn unsuccessful(code: u16, text: bool, body: &[u8]) -> String {
    let said = String::from_utf8_lossy(&body[..body.len().min(2048)]).trim().to_owned();
    Status::answered(code, if text { &said } else { "unknown" }).message
}

/// Go's text for a failed connection.
pub(crate) fn dial_error(address: &str, error: &std::io::Error) -> String {
    if let Some(refused) = ProxyRefused::of(error) {
        return refused.to_string();
    }
    let why = match shared::os::words(error) {
        Some(words) => format!("connect: {words}"),
        None if error.kind() == std::io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        None => return format!("dial tcp: lookup {}: no such host", host_port::split(address).0),
    };
    format!("dial tcp {address}: {why}")
}

/// Counts certificates that were refused for being of an old kind: with a common name instead of alternative names, or
/// signed over SHA-1. `of` says whose they are.
pub(crate) fn count_outdated(of: &str, error: &std::io::Error) {
    use rustls::CertificateError as C;
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    let (nameless, sha1) = match inner {
        Some(rustls::Error::InvalidCertificate(C::NotValidForName)) => (true, false),
        Some(rustls::Error::InvalidCertificate(C::NotValidForNameContext { presented, .. })) => {
            (presented.is_empty(), false)
        }
        Some(rustls::Error::InvalidCertificate(C::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id,
            ..
        })) => (false, SHA1.iter().any(|oid| signature_algorithm_id.windows(oid.len()).any(|w| w == *oid))),
        _ => (false, false),
    };
    let [missing, insecure] = outdated(of);
    missing.inc_by(f64::from(u8::from(nameless)));
    insecure.inc_by(f64::from(u8::from(sha1)));
}

/// The counters of certificates without alternative names, and of those signed over SHA-1.
pub(crate) fn outdated(of: &str) -> [metrics::Counter; 2] {
    [
        ("missing_san", "[ALPHA] Number of requests to webhooks whose serving certificate lacks a SAN extension."),
        ("insecure_sha1", "[ALPHA] Number of requests to webhooks whose serving certificate has a SHA-1 signature."),
    ]
    .map(|(what, help)| {
        let name = format!("apiserver_{of}_x509_{what}_total");
        metrics::counter(&name, help, &[]).with_label_values::<&str>(&[])
    })
}

/// Object identifiers of signatures over SHA-1: RSA's and ECDSA's.
const SHA1: [&[u8]; 2] = [&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5], &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1]];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_no_success() {
        for (code, text, body, want) in [
            (500, true, "boom\n", "an error on the server (\"boom\") has prevented the request from succeeding"),
            (502, false, "{}", "an error on the server (\"unknown\") has prevented the request from succeeding"),
            (404, true, "404 page not found", "the server could not find the requested resource"),
            (410, true, "gone", "the server responded with the status code 410 but did not return more information"),
            (415, true, "only JSON", "only JSON"),
            (302, true, "", "the server responded with the status code 302 but did not return more information"),
        ] {
            assert_eq!(unsuccessful(code, text, body.as_bytes()), want);
        }
    }
}
