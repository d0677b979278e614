//! One connection for all watches and requests: HTTP/2, where a connection for each of many watches would cost both
//! sides its buffers.

use std::time::Duration;

use hyper_rustls::FixedServerNameResolver;
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use tower::ServiceBuilder;

use super::{Throttle, credentials};

/// A peer that does not answer pings for so long is gone, as client-go has it.
const PING: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A client for the server that `config` names. Servers without HTTP/2 are spoken to in HTTP/1.1.
///
/// # Errors
/// Unusable certificates or credentials.
pub fn connect(config: &Config, throttle: &Throttle) -> anyhow::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let (credentials, tls) = credentials::resolve(config)?;
    let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let https = match config.tls_server_name.clone().map(rustls_pki_types::ServerName::try_from) {
        Some(Ok(name)) => https.with_server_name_resolver(FixedServerNameResolver::new(name)),
        _ => https,
    };
    let https = https.enable_all_versions().wrap_connector(tcp);
    let http: Http<_, Body> = Http::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(https);
    let service = ServiceBuilder::new()
        .layer(throttle)
        .layer(config.base_uri_layer())
        .layer(credentials)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}
