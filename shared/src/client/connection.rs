//! One connection for all watches and requests: HTTP/2, where a connection for each of many watches would cost both
//! sides its buffers. Servers allow so many streams of a connection (kube-apiserver: 100); who has more to ask opens
//! another one, or watches would keep all other requests waiting for ever.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use futures::FutureExt as _;
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper_rustls::FixedServerNameResolver;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::GaiResolver;
use hyper_util::rt::TokioIo;
use kube::client::ConfigExt as _;
use kube::{Client, Config};
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use tokio::time::Instant;
use tower::{BoxError, Layer as _, Service, ServiceExt as _, service_fn};

use super::client_metrics::{self, Resolver};
use super::connect_timeout::{CONNECT, ConnectTimeout};
use super::credentials::{self, Credentials, User};
use super::peer::{Connector, Io, Peer, PeerResponseBody};
use super::request_metrics::Measures;
use super::retry::{Measured, RetryPolicy};
use super::transport::{Sent, erased};
use super::{Throttle, Transport};
use crate::cert::ReloadingKey;
use crate::read_ahead::ReadAhead;

/// Requests under way of one connection before another is opened.
const STREAMS: usize = 90;
/// Connections at the same time; with all of them full, the emptiest takes more.
const CONNECTIONS: usize = 16;

/// Connection pool of requests. The token is held by each request, and its response's body, until that ends.
struct Lane<H> {
    http: H,
    token: Arc<()>,
}

impl<H> Lane<H> {
    fn used(&self) -> usize {
        Arc::strong_count(&self.token) - 1
    }
}

/// The lane for a request: the first with room, or a new one.
fn pick<H: Clone>(lanes: &mut Vec<Lane<H>>, open: impl FnOnce() -> H) -> (H, Arc<()>) {
    let mut at = lanes.iter().position(|lane| lane.used() < STREAMS);
    if at.is_none() && lanes.len() < CONNECTIONS {
        lanes.push(Lane { http: open(), token: Arc::default() });
        at = Some(lanes.len() - 1);
    }
    let at = at.or_else(|| (0..lanes.len()).min_by_key(|at| lanes[*at].used())).unwrap_or(0);
    (lanes[at].http.clone(), lanes[at].token.clone())
}

/// The lanes there are. Those of a client certificate that has been replaced take nothing more.
struct Lanes<H> {
    open: Vec<Lane<H>>,
    pair: Option<(Arc<ReloadingKey>, Option<Arc<CertifiedKey>>)>,
}

impl<H: Clone> Lanes<H> {
    fn pick(&mut self, open: impl FnOnce() -> H) -> (H, Arc<()>) {
        if let Some((files, seen)) = &mut self.pair {
            let now = files.current();
            if now.as_ref().map(Arc::as_ptr) != seen.as_ref().map(Arc::as_ptr) {
                tracing::info!("Certificate rotation detected, using new connections");
                *seen = now;
                self.open.clear();
            }
        }
        pick(&mut self.open, open)
    }
}

/// A client for the server that `config` names.
///
/// # Errors
/// As [`transport`].
pub fn connect(config: &Config, throttle: &Throttle) -> anyhow::Result<Client> {
    transport(config, throttle).map(|transport| transport.client())
}

/// A client for the server that `config` names which shows `pair` and nothing else that `config` proves a user with.
///
/// # Errors
/// Unusable authorities.
pub fn connect_with(config: &Config, throttle: &Throttle, pair: Arc<ReloadingKey>) -> anyhow::Result<Client> {
    let user = credentials::of_pair(config, pair)?;
    as_user(connector(), config, throttle, user).map(|transport| transport.client())
}

/// The way to the server that `config` names. Servers without HTTP/2 are spoken to in HTTP/1.1.
///
/// # Errors
/// Unusable certificates or credentials.
pub fn transport(config: &Config, throttle: &Throttle) -> anyhow::Result<Transport> {
    through(connector(), config, throttle)
}

fn connector() -> HttpConnector<Resolver> {
    let mut tcp = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp
}

/// [`transport`] over connections that `connector` opens.
pub(super) fn through<C>(connector: C, config: &Config, throttle: &Throttle) -> anyhow::Result<Transport>
where
    C: Service<Uri, Response: Io, Future: Send + 'static, Error: Into<BoxError> + Send> + Clone + Send + Sync + 'static,
{
    as_user(connector, config, throttle, credentials::resolve(config)?)
}

fn as_user<C>(connector: C, config: &Config, throttle: &Throttle, user: User) -> anyhow::Result<Transport>
where
    C: Service<Uri, Response: Io, Future: Send + 'static, Error: Into<BoxError> + Send> + Clone + Send + Sync + 'static,
{
    let (credentials, tls, pair) = user;
    client_metrics::transport();
    let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let https = match config.tls_server_name.clone().map(rustls_pki_types::ServerName::try_from) {
        Some(Ok(name)) => https.with_server_name_resolver(FixedServerNameResolver::new(name)),
        _ => https,
    };
    let pair = pair.map(|files| (Arc::clone(&files), files.current()));
    let measures = Measures::of(config.cluster_url.authority().map_or("", |host| host.as_str()));
    let server = Arc::new(RemoteServer {
        base: config.cluster_url.clone(),
        headers: headers(config)?,
        credentials,
        retry_policy: RetryPolicy::new(throttle.clone(), measures),
        connector: ConnectTimeout(https.enable_all_versions().wrap_connector(connector.map_response(ahead))),
        lanes: Mutex::new(Lanes { open: Vec::new(), pair }),
    });
    let send = move |mut request| {
        let server = Arc::clone(&server);
        Box::pin(async move { server.send(&mut request).await.map(erased) }) as Sent
    };
    Ok(Transport::new(config.default_namespace.clone(), send))
}

/// A connection that is read with as few system calls as possible.
fn ahead<T: Io>(io: T) -> TokioIo<ReadAhead<TokioIo<T>>> {
    TokioIo::new(ReadAhead::of(TokioIo::new(io)))
}

/// Headers of every request, impersonation included.
fn headers(config: &Config) -> anyhow::Result<HeaderMap> {
    let reads =
        service_fn(|request: Request<()>| std::future::ready(Ok::<_, Infallible>(request.into_parts().0.headers)));
    let carried = config.extra_headers_layer()?.layer(reads).oneshot(Request::default()).now_or_never();
    carried.and_then(Result::ok).context("headers that are not there at once")
}

/// A server, and how it is spoken to.
struct RemoteServer<C> {
    base: Uri,
    headers: HeaderMap,
    credentials: Credentials,
    retry_policy: RetryPolicy,
    connector: C,
    lanes: Mutex<Lanes<Arc<Peer<C>>>>,
}

impl<C: Connector> RemoteServer<C> {
    async fn send(&self, request: &mut Request<Bytes>) -> Result<Response<Measured<PeerResponseBody>>, BoxError> {
        *request.uri_mut() = below(&self.base, request.uri())?;
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
        let then = Instant::now();
        if let Some(value) = self.credentials.header().await? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let attempt = |request: &Request<Bytes>| {
            let (peer, lane) = self.lanes.lock().pick(|| Arc::new(Peer::new(self.connector.clone())));
            peer.send(request, lane)
        };
        let answer = self.retry_policy.send(request, attempt).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            Box::pin(self.credentials.refused(then)).await;
        }
        Ok(answer)
    }
}

/// Resolves a path below a base URL, which may have a path of its own.
fn below(base: &Uri, path: &Uri) -> Result<Uri, http::Error> {
    let mut parts = base.clone().into_parts();
    let asked = path.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    parts.path_and_query = Some(match base.path().trim_end_matches('/') {
        "" => asked,
        above => format!("{above}{asked}").parse::<PathAndQuery>()?,
    });
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_below_the_server() {
        for (base, path, whole) in [
            ("https://a:6443", "/api?x=y", "https://a:6443/api?x=y"),
            ("https://a/", "/api", "https://a/api"),
            ("https://a/k8s/c", "/api?x=y", "https://a/k8s/c/api?x=y"),
            ("http://a/k8s/", "/", "http://a/k8s/"),
        ] {
            let (base, path) = (base.parse().expect("a base"), path.parse().expect("a path"));
            assert_eq!(below(&base, &path).expect("a URI").to_string(), whole);
        }
    }

    #[test]
    fn requests_say_whom_they_are_for() {
        let mut config = Config::new(Uri::from_static("https://a"));
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static("test/1")));
        config.auth_info.impersonate = Some("jane".to_owned());
        config.auth_info.impersonate_groups = Some(vec!["a".to_owned(), "b".to_owned()]);
        let headers = headers(&config).expect("headers");
        let all = |name| headers.get_all(name).iter().map(|v| v.to_str().unwrap_or_default()).collect::<Vec<_>>();
        assert_eq!((all("user-agent"), all("impersonate-user")), (vec!["test/1"], vec!["jane"]));
        assert_eq!(all("impersonate-group"), ["a", "b"]);
    }

    #[test]
    fn lanes_are_filled_one_after_the_other() {
        let (mut lanes, mut opened) = (Vec::new(), 0);
        let mut held = Vec::new();
        let mut ask = |held: &mut Vec<Arc<()>>| {
            let (lane, token) = pick(&mut lanes, || {
                opened += 1;
                opened
            });
            held.push(token);
            lane
        };
        for _ in 0..STREAMS {
            assert_eq!(ask(&mut held), 1);
        }
        assert_eq!(ask(&mut held), 2, "the first is full");
        held.remove(0);
        assert_eq!(ask(&mut held), 1, "it has room again");
        for _ in 0..STREAMS * CONNECTIONS {
            assert!(ask(&mut held) <= CONNECTIONS, "there is an end to it");
        }
    }
}
