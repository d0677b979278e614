//! One connection for all watches and requests: HTTP/2, where a connection for each of many watches would cost both
//! sides its buffers. Servers allow so many streams of a connection (kube-apiserver: 100); who has more to ask opens
//! another one, or watches would keep all other requests waiting for ever.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper_rustls::FixedServerNameResolver;
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::dns::GaiResolver;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use tower::{Service, ServiceBuilder, ServiceExt as _, service_fn};

use super::families::{self, Resolver};
use super::gathered::Gathered;
use super::measured::Measures;
use super::patience::Patience;
use super::{Throttle, Transport, credentials};
use crate::cert::ReloadingKey;

/// A peer that does not answer pings for so long is gone, as client-go has it.
const PING: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests under way of one connection before another is opened.
const STREAMS: usize = 90;
/// Connections at the same time; with all of them full, the emptiest takes more.
const CONNECTIONS: usize = 16;

/// What requests are sent through. The token is held by each request, and its answer's body, until that ends.
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
    pair: Option<(Arc<ReloadingKey>, Arc<CertifiedKey>)>,
}

impl<H: Clone> Lanes<H> {
    fn pick(&mut self, open: impl FnOnce() -> H) -> (H, Arc<()>) {
        if let Some((files, seen)) = &mut self.pair {
            let now = files.current();
            if !Arc::ptr_eq(&now, seen) {
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

/// The way to the server that `config` names. Servers without HTTP/2 are spoken to in HTTP/1.1.
///
/// # Errors
/// Unusable certificates or credentials.
pub fn transport(config: &Config, throttle: &Throttle) -> anyhow::Result<Transport> {
    let mut tcp = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    through(tcp, config, throttle)
}

/// [`transport`] over connections that `connector` opens.
pub(super) fn through<C>(connector: C, config: &Config, throttle: &Throttle) -> anyhow::Result<Transport>
where
    C: Service<http::Uri> + Clone + Send + Sync + 'static,
    C::Response: hyper::rt::Read + hyper::rt::Write + Connection + Unpin + Send + 'static,
    C::Future: Send + 'static,
    C::Error: Into<tower::BoxError> + Send,
{
    let (credentials, tls, pair) = credentials::resolve(config)?;
    families::transport();
    let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let https = match config.tls_server_name.clone().map(rustls_pki_types::ServerName::try_from) {
        Some(Ok(name)) => https.with_server_name_resolver(FixedServerNameResolver::new(name)),
        _ => https,
    };
    let https = https.enable_all_versions().wrap_connector(connector).map_response(Gathered::over);
    let open = move || -> Http<_, Body> {
        Http::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .build(https.clone())
    };
    let pair = pair.map(|files| (Arc::clone(&files), files.current()));
    let lanes = Arc::new(Mutex::new(Lanes { open: Vec::new(), pair }));
    let measures = Measures::of(config.cluster_url.authority().map_or("", |host| host.as_str()));
    let patience = Arc::new(Patience::new(throttle.clone(), measures));
    let attempt = Arc::new(move |request: http::Request<Body>| {
        let (http, token) = lanes.lock().pick(&open);
        async move {
            Ok::<_, hyper_util::client::legacy::Error>(http.request(request).await?.map(|body| {
                body.map_frame(move |frame| {
                    let _held = &token;
                    frame
                })
            }))
        }
    });
    let http = service_fn(move |request: http::Request<Body>| {
        let (patience, attempt) = (Arc::clone(&patience), Arc::clone(&attempt));
        async move { patience.send(request, &*attempt).await }
    });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(credentials)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(Transport::new(service, config.default_namespace.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
