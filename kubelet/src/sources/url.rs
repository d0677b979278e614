//! Manifests from a URL, over HTTP or HTTPS, read again every `httpCheckFrequency`.
//! Answers for upstream's `pkg/kubelet/config/http.go`.

use super::manifest::{ManifestError, Owner};
use super::{Source, SourceSet, manifest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http::{HeaderMap, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rustls::pki_types::ServerName;
use shared::cert::{Trust, client_tls};
use shared::host_port;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// Largest answer that is read.
const MAX_ANSWER: usize = 10 << 20;
/// Longest time for one request, with all redirects.
const DEADLINE: Duration = Duration::from_secs(10);
/// Most redirects that are followed (Go's limit).
const REDIRECT_LIMIT: usize = 10;
/// Headers that are for the first host alone, as Go's client has it.
const FOR_FIRST_HOST: [HeaderName; 2] = [AUTHORIZATION, COOKIE];

/// Reasons why a URL gave no pods.
#[derive(Debug, thiserror::Error)]
enum UrlError {
    /// There is no client for such a URL.
    #[error("Get {url:?}: unsupported protocol scheme {scheme:?}")]
    Scheme { url: String, scheme: String },
    /// The server cannot be reached, or does not speak as it should.
    #[error("Get {url:?}: {cause}")]
    Exchange { url: String, cause: String },
    /// Any answer but 200.
    #[error("{url}: {status}")]
    Status { url: String, status: StatusCode },
    /// The answer is empty: the source has no pods.
    #[error("zero-length data received from {0}")]
    Empty(String),
    /// The answer is no manifest.
    #[error("{0}")]
    Manifest(#[from] ManifestError),
}

/// An answer, or the place where it is.
enum Fetched {
    Body(Vec<u8>),
    Elsewhere(String),
}

/// Asks for one URL, with the same headers each time.
struct Fetcher {
    url: String,
    headers: HeaderMap,
    tls: TlsConnector,
}

impl Fetcher {
    fn new(url: &str, headers: &BTreeMap<String, Vec<String>>, trust: Trust) -> Result<Self, shared::cert::CertError> {
        let mut map = HeaderMap::new();
        for (name, values) in headers {
            for value in values {
                match (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str())) {
                    (Ok(name), Ok(value)) => drop(map.append(name, value)),
                    _ => tracing::error!(url, header = name, "A header of the manifest URL is not usable"),
                }
            }
        }
        map.entry(USER_AGENT).or_insert(HeaderValue::from_static("Go-http-client/1.1"));
        let tls = TlsConnector::from(Arc::new(client_tls(trust, None)?));
        Ok(Self { url: url.to_owned(), headers: map, tls })
    }

    fn failed(&self, cause: impl ToString) -> UrlError {
        UrlError::Exchange { url: self.url.clone(), cause: cause.to_string() }
    }

    async fn fetch(&self) -> Result<Vec<u8>, UrlError> {
        let asked = tokio::time::timeout(DEADLINE, self.follow());
        let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        asked.await.unwrap_or_else(|_| Err(self.failed(late)))
    }

    /// Asks, and goes where the answers lead.
    async fn follow(&self) -> Result<Vec<u8>, UrlError> {
        let first: Uri = self.url.parse().map_err(|error| self.failed(error))?;
        let (mut target, mut headers) = (first.clone(), self.headers.clone());
        for _ in 0..REDIRECT_LIMIT {
            match self.ask(&target, &headers).await? {
                Fetched::Body(body) => return Ok(body),
                Fetched::Elsewhere(location) => {
                    target = next(&target, &location)
                        .ok_or_else(|| self.failed(format!("failed to parse Location header {location:?}")))?
                }
            }
            if target.host() != first.host() {
                FOR_FIRST_HOST.iter().for_each(|name| drop(headers.remove(name)));
            }
        }
        Err(self.failed(format!("stopped after {REDIRECT_LIMIT} redirects")))
    }

    async fn ask(&self, target: &Uri, headers: &HeaderMap) -> Result<Fetched, UrlError> {
        let is_secure = match target.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            other => {
                let scheme = other.unwrap_or_default().to_owned();
                return Err(UrlError::Scheme { url: self.url.clone(), scheme });
            }
        };
        let host = host_port::bare(target.host().unwrap_or_default()).to_owned();
        let port = target.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|error| self.failed(error))?;
        if !is_secure {
            return self.over(stream, target, headers).await;
        }
        let name = ServerName::try_from(host).map_err(|error| self.failed(error))?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| self.failed(error))?;
        self.over(stream, target, headers).await
    }

    async fn over<S>(&self, stream: S, target: &Uri, headers: &HeaderMap) -> Result<Fetched, UrlError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|error| self.failed(error))?;
        let mut request = http::Request::get(target.path_and_query().map_or("/", |path| path.as_str()));
        let (login, host) = authority(target);
        if let Some(map) = request.headers_mut() {
            map.extend(headers.clone());
            if let Ok(host) = HeaderValue::try_from(host) {
                map.entry(HOST).or_insert(host);
            }
            let login = login.and_then(|login| HeaderValue::try_from(format!("Basic {}", STANDARD.encode(login))).ok());
            if let Some(login) = login {
                map.entry(AUTHORIZATION).or_insert(login);
            }
        }
        let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|error| self.failed(error))?;
        let exchange = async move {
            let answer = sender.send_request(request).await.map_err(|error| self.failed(error))?;
            let location = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
            match (answer.status(), location) {
                (StatusCode::OK, _) => {}
                (status, Some(location)) if status.is_redirection() => {
                    return Ok(Fetched::Elsewhere(location.to_owned()));
                }
                (status, _) => return Err(UrlError::Status { url: self.url.clone(), status }),
            }
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            body.map(|body| Fetched::Body(body.to_bytes().to_vec())).map_err(|error| self.failed(error))
        };
        tokio::pin!(exchange);
        tokio::select! {
            result = &mut exchange => result,
            _ = connection => exchange.await,
        }
    }
}

/// User and password, where a URL has them, and its host as the header names it.
fn authority(target: &Uri) -> (Option<&str>, &str) {
    let whole = target.authority().map_or("", |authority| authority.as_str());
    whole.rsplit_once('@').map_or((None, whole), |(login, host)| (Some(login), host))
}

/// The place that a redirect leads to.
fn next(from: &Uri, location: &str) -> Option<Uri> {
    let to: Uri = location.parse().ok()?;
    if to.scheme().is_some() {
        return Some(to);
    }
    let path = to.path_and_query()?.clone();
    Uri::builder().scheme(from.scheme_str()?).authority(from.authority()?.clone()).path_and_query(path).build().ok()
}

fn pods(url: &str, text: &[u8], owner: &Owner, now: Timestamp) -> Result<Vec<Pod>, UrlError> {
    if text.is_empty() {
        return Err(UrlError::Empty(url.to_owned()));
    }
    let list = manifest::decode(&String::from_utf8_lossy(text))?;
    Ok(list.into_iter().map(|pod| manifest::adopt(pod, "http", url, owner, now)).collect::<Result<_, _>>()?)
}

/// Asks until shutdown and sends the whole set whenever it changed.
pub async fn watch(
    url: String,
    headers: BTreeMap<String, Vec<String>>,
    owner: Owner,
    every: Duration,
    sender: mpsc::Sender<SourceSet>,
    shutdown: CancellationToken,
) {
    match Fetcher::new(&url, &headers, Trust::System) {
        Ok(fetcher) => {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = keep_asking(&fetcher, &owner, every, &sender) => {}
            }
        }
        Err(error) => tracing::error!(url, %error, "The manifest URL is not usable"),
    }
}

/// Asks as long as somebody takes the answers.
async fn keep_asking(fetcher: &Fetcher, owner: &Owner, every: Duration, sender: &mpsc::Sender<SourceSet>) {
    let mut last: Option<Vec<u8>> = None;
    loop {
        let found = match fetcher.fetch().await {
            Ok(text) if last.as_ref() == Some(&text) => None,
            Ok(text) => {
                let found = pods(&fetcher.url, &text, owner, Timestamp::now());
                last = found.is_ok().then_some(text);
                Some(found)
            }
            Err(error) => Some(Err(error)),
        };
        if let Some(Err(error)) = &found {
            tracing::error!(url = fetcher.url, %error, "Failed to read pods from URL");
        }
        let pods = match found {
            Some(Ok(pods)) => Some(pods),
            // Nothing is an answer: the source is known, and has no pods.
            Some(Err(UrlError::Empty(_))) => Some(Vec::new()),
            _ => None,
        };
        if let Some(pods) = pods
            && sender.send(SourceSet { source: Source::Url, pods }).await.is_err()
        {
            return;
        }
        tokio::time::sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use shared::cert::{Authorities, certificates, private_key, provider, self_signed};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    const MANIFEST: &str =
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}";

    fn answer(status: &str, headers: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n{body}", body.len())
    }

    /// Answers requests one after the other, and keeps what was asked.
    fn serve(
        listener: TcpListener,
        tls: Option<tokio_rustls::TlsAcceptor>,
        answers: Vec<String>,
    ) -> Arc<Mutex<Vec<String>>> {
        async fn one(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str) -> String {
            let (mut asked, mut byte) = (Vec::new(), [0]);
            while !asked.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
                asked.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).await.ok();
            stream.shutdown().await.ok();
            String::from_utf8_lossy(&asked).into_owned()
        }
        let asked = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&asked);
        tokio::spawn(async move {
            for answer in answers {
                let Ok((stream, _)) = listener.accept().await else { return };
                let head = match &tls {
                    None => one(stream, &answer).await,
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => one(stream, &answer).await,
                        Err(error) => error.to_string(),
                    },
                };
                keeps.lock().push(head);
            }
        });
        asked
    }

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        (listener, port)
    }

    fn headers() -> BTreeMap<String, Vec<String>> {
        BTreeMap::from([
            ("Authorization".to_owned(), vec!["token".to_owned()]),
            ("X-More".to_owned(), vec!["1".to_owned()]),
        ])
    }

    #[tokio::test]
    async fn manifests_are_fetched_over_https_from_servers_that_are_trusted() {
        let pair = self_signed("127.0.0.1", &["127.0.0.1".parse().expect("ip")], &[]).expect("pair");
        let chain = certificates(pair.certificate.as_bytes()).expect("a certificate");
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, private_key(pair.key.as_bytes()).expect("key"))
            .expect("a server");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let (listener, port) = listener().await;
        let asked = serve(listener, Some(acceptor), vec![answer("200 OK", "", MANIFEST); 2]);
        let url = format!("https://127.0.0.1:{port}/pods?node=n");
        let trusted = Trust::Authorities(Authorities::from_pem(pair.certificate.as_bytes()).expect("authorities"));
        let fetcher = Fetcher::new(&url, &headers(), trusted).expect("a fetcher");
        assert_eq!(fetcher.fetch().await.expect("fetched"), MANIFEST.as_bytes());
        let head = asked.lock()[0].to_lowercase();
        assert!(head.starts_with("get /pods?node=n http/1.1\r\n"), "{head}");
        for line in [format!("host: 127.0.0.1:{port}\r\n"), "authorization: token\r\n".into(), "x-more: 1\r\n".into()] {
            assert!(head.contains(&line), "{head}");
        }
        let stranger = Fetcher::new(&url, &headers(), Trust::System).expect("a fetcher");
        let refused = stranger.fetch().await.expect_err("nobody vouches for it").to_string();
        assert!(refused.starts_with(&format!("Get {url:?}: ")), "{refused}");
    }

    #[tokio::test]
    async fn redirects_are_followed_and_secrets_stay_with_their_host() {
        let ((first, port), (second, other)) = (listener().await, listener().await);
        let elsewhere = answer("302 Found", &format!("location: http://localhost:{other}/x\r\n"), "");
        let asked = serve(first, None, vec![answer("301 Moved", "location: /there\r\n", ""), elsewhere]);
        let asked_there = serve(second, None, vec![answer("200 OK", "", MANIFEST)]);
        let fetcher = Fetcher::new(&format!("http://u:p@127.0.0.1:{port}"), &BTreeMap::new(), Trust::System);
        assert_eq!(fetcher.expect("a fetcher").fetch().await.expect("fetched"), MANIFEST.as_bytes());
        let asked = asked.lock().join("").to_lowercase();
        assert!(asked.contains("get / ") && asked.contains("get /there "), "{asked}");
        assert_eq!(asked.matches("authorization: basic dtpw\r\n").count(), 2, "{asked}");
        let asked = asked_there.lock()[0].to_lowercase();
        assert!(asked.starts_with("get /x ") && !asked.contains("authorization"), "{asked}");
    }

    #[tokio::test]
    async fn answers_that_are_no_manifests_are_told_with_the_url() {
        let (listener, port) = listener().await;
        serve(listener, None, vec![answer("404 Not Found", "", "")]);
        let url = format!("http://127.0.0.1:{port}/");
        let error = |url: &str| {
            let fetcher = Fetcher::new(url, &BTreeMap::new(), Trust::System).expect("a fetcher");
            async move { fetcher.fetch().await.expect_err("no manifest").to_string() }
        };
        assert_eq!(error(&url).await, format!("{url}: 404 Not Found"));
        assert_eq!(error("ftp://h/x").await, "Get \"ftp://h/x\": unsupported protocol scheme \"ftp\"");
    }

    #[tokio::test]
    async fn pods_of_a_url_go_when_it_has_nothing_and_stay_while_it_fails() {
        let (listener, port) = listener().await;
        let fine = answer("200 OK", "", MANIFEST);
        let answers = vec![
            fine.clone(),
            fine.clone(),
            answer("500 Oops", "", ""),
            answer("200 OK", "", "]"),
            answer("200 OK", "", ""),
            fine,
        ];
        serve(listener, None, answers);
        let (sender, mut receiver) = mpsc::channel(1);
        let owner = Owner { node_name: "n".to_owned(), prevents_references: true };
        let fetcher =
            Fetcher::new(&format!("http://127.0.0.1:{port}"), &BTreeMap::new(), Trust::System).expect("fetcher");
        let asking = keep_asking(&fetcher, &owner, Duration::from_millis(1), &sender);
        let heard = async {
            let mut heard = Vec::new();
            while heard.len() < 3 {
                heard.extend(receiver.recv().await.map(|set| set.pods.len()));
            }
            heard
        };
        tokio::select! {
            () = asking => panic!("it asks for ever"),
            heard = heard => assert_eq!(heard, [1, 0, 1]),
        }
    }
}
