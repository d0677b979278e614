//! Connections to one other server: HTTP/2 or HTTP/1.1 with the front proxy's certificate, kept open between requests.
//! Answers for upstream's `kube-aggregator/pkg/apiserver/handler_proxy.go`.

use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use bytes::Bytes;
use futures::future::{FusedFuture as _, LocalBoxFuture};
use futures::{FutureExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Empty, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use shared::authn::{SYSTEM_MASTERS, UserInfo};
use shared::cert::{self, Trust};
use shared::client::Dialer;
use shared::host_port;
use shared::run::{Shutdown, TaskGroup};

use super::Aggregator;
use super::error::{BackendError, ForwardError, io_error, is_tls};
use super::pool::Pool;
use super::service::ServiceReference;
use crate::admission::{ServiceAddressError, WebhookAddress, count_outdated};
use crate::api::Reader;
use crate::authn::front_proxy;
use crate::egress::{Egress, NetworkContext};

/// Idle connections that are kept, and for how long.
const IDLE: usize = 25;
const IDLE_FOR: Duration = Duration::from_secs(90);
/// Chunks of a request's body on their way.
const CHUNKS: usize = 4;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Error>;

/// Connection pool to one aggregated API server.
pub struct Backend {
    target: WebhookAddress,
    direct: bool,
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
    egress: Egress,
    client: Pool<Http>,
    /// Asks whether anybody answers, whoever that may be.
    probe: Pool<Http>,
}

type Http = Client<HttpsConnector<Dialer>, Body>;

/// An answer that begins.
pub(super) struct ProxiedResponse {
    pub(super) answer: http::Response<Incoming>,
    /// Sends what remains of the request.
    pub(super) rest: Option<LocalBoxFuture<'static, ()>>,
}

/// Runs connections as named work that ends with the server.
#[derive(Clone)]
struct Tasks(TaskGroup, Shutdown);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, work: F) {
        self.0.spawn_until(&self.1, "aggregated-connection", work);
    }
}

/// Identity of the aggregator towards other servers.
pub(super) fn aggregator() -> UserInfo {
    UserInfo {
        name: "system:kube-aggregator".to_owned(),
        groups: vec![SYSTEM_MASTERS.to_owned()],
        ..UserInfo::default()
    }
}

fn trust(behind: &ServiceReference) -> Result<Trust, cert::CertError> {
    Ok(match (behind.insecure, behind.bundle.is_empty()) {
        (true, _) => Trust::Anybody,
        (false, true) => Trust::System,
        (false, false) => Trust::Authorities(cert::Authorities::from_pem(&behind.bundle)?),
    })
}

fn http(tls: ClientConfig, name: &ServerName<'static>, (egress, aggregator): (&Egress, &Aggregator)) -> Pool<Http> {
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only()
        .with_server_name_resolver(FixedServerNameResolver::new(name.clone()))
        .enable_http1()
        .enable_http2()
        .wrap_connector(egress.dialer(NetworkContext::Cluster));
    let tasks = Tasks(aggregator.tasks.clone(), aggregator.answered.clone());
    Pool::new(aggregator.pair.clone(), move || {
        Client::builder(tasks.clone())
            .pool_max_idle_per_host(IDLE)
            .pool_idle_timeout(IDLE_FOR)
            .pool_timer(hyper_util::rt::TokioTimer::new())
            .build(https.clone())
    })
}

/// A request of the server itself, as a user.
fn own(address: &str, path: &str, user: &UserInfo, headers: &[(&str, &str)]) -> http::Result<http::Request<Body>> {
    let mut head = http::Request::get(format!("https://{address}{path}"))
        .header(front_proxy::USER, &user.name)
        .header("user-agent", "kube-aggregator");
    for group in &user.groups {
        head = head.header(front_proxy::GROUP, group);
    }
    for (name, value) in headers {
        head = head.header(*name, *value);
    }
    head.body(Empty::new().map_err(|never| match never {}).boxed_unsync())
}

impl Backend {
    /// A server behind a service.
    pub(super) fn new(behind: &ServiceReference, aggregator: &Aggregator) -> Result<Self, BackendError> {
        let tls = |trust: Trust| cert::client_tls(trust, aggregator.pair.clone());
        let anybody = tls(Trust::Anybody).map_err(BackendError::Authorities)?;
        let tls = trust(behind).and_then(tls).map_err(BackendError::Authorities)?;
        let target = WebhookAddress::service(&behind.namespace, &behind.name, behind.port);
        let name = ServerName::try_from(target.server.clone())?;
        let (direct, egress) = (aggregator.direct, aggregator.egress.clone());
        let client = http(tls.clone(), &name, (&egress, aggregator));
        let probe = http(anybody, &name, (&egress, aggregator));
        Ok(Self { target, direct, tls: Arc::new(tls), name, egress, client, probe })
    }

    /// Other servers of this kind, at any address.
    pub(super) fn peers(trust: Trust, aggregator: &Aggregator) -> Result<Self, BackendError> {
        let tls = |trust: Trust| cert::client_tls(trust, aggregator.pair.clone());
        let (anybody, tls) = (tls(Trust::Anybody)?, tls(trust)?);
        let target = WebhookAddress::service("default", "kubernetes", 443);
        let name = ServerName::try_from(target.server.clone())?;
        let egress = Egress::default();
        let client = http(tls.clone(), &name, (&egress, aggregator));
        let probe = http(anybody, &name, (&egress, aggregator));
        Ok(Self { target, direct: true, tls: Arc::new(tls), name, egress, client, probe })
    }

    /// Current address of the server: `host:port`.
    pub(super) fn address(&self, reader: &dyn Reader) -> Result<String, ServiceAddressError> {
        self.target.address(reader, self.direct)
    }

    /// For connections that switch protocols.
    pub(super) fn origin(&self, address: &str) -> crate::connect::Origin {
        let (host, port) = host_port::split(address);
        crate::connect::Origin {
            host: host.to_owned(),
            port: port.and_then(|port| port.parse().ok()).unwrap_or(443),
            tls: Some(self.tls.clone()),
            name: Some(self.name.clone()),
            egress: self.egress.clone(),
        }
    }

    /// Sends a request whose URI names the address; the answer's body still flows.
    pub(super) async fn send(
        &self,
        head: http::request::Builder,
        payload: Option<Payload>,
        address: &str,
    ) -> Result<ProxiedResponse, ForwardError> {
        let Some(mut payload) = payload else {
            let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
            let request = head.body(body)?;
            return Ok(ProxiedResponse { answer: self.exchange(request, address).await?, rest: None });
        };
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Error>>(CHUNKS);
        let chunks = futures::stream::unfold(receiver, |mut r| async move { r.recv().await.map(|chunk| (chunk, r)) });
        let request = head.body(StreamBody::new(chunks).boxed_unsync())?;
        let mut pump = Box::pin(
            async move {
                while let Some(chunk) = payload.next().await {
                    let failed = chunk.is_err();
                    let frame = chunk.map(Frame::data).map_err(|e| Error::from(e.to_string()));
                    if sender.send(frame).await.is_err() || failed {
                        break;
                    }
                }
            }
            .fuse(),
        );
        let mut exchange = std::pin::pin!(self.exchange(request, address));
        let answer = loop {
            tokio::select! {
                answer = &mut exchange => break answer?,
                () = &mut pump, if !pump.is_terminated() => {}
            }
        };
        let rest = (!pump.is_terminated()).then(|| pump.boxed_local());
        Ok(ProxiedResponse { answer, rest })
    }

    async fn exchange(
        &self,
        request: http::Request<Body>,
        address: &str,
    ) -> Result<http::Response<Incoming>, ForwardError> {
        self.client.client().request(request).await.map_err(|error| self.failed(address, error))
    }

    /// A request of the server itself; code, media type, ETag and body.
    pub(super) async fn fetch(
        &self,
        reader: &dyn Reader,
        path: &str,
        headers: &[(&str, &str)],
        limit: usize,
    ) -> Result<FetchedDocument, ForwardError> {
        self.fetch_as((&self.address(reader)?, path), &aggregator(), headers, limit).await
    }

    /// Fetches a path from an address as a user.
    pub(super) async fn fetch_as(
        &self,
        (address, path): (&str, &str),
        user: &UserInfo,
        headers: &[(&str, &str)],
        limit: usize,
    ) -> Result<FetchedDocument, ForwardError> {
        let answer = self.exchange(own(address, path, user, headers)?, address).await?;
        let text = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
        let (code, kind, etag) = (answer.status().as_u16(), text("content-type"), text("etag"));
        if answer.size_hint().lower() > limit as u64 {
            return Err(ForwardError::TooLarge);
        }
        let body = Limited::new(answer.into_body(), limit).collect().await?;
        Ok(FetchedDocument { code, kind, etag, body: body.to_bytes() })
    }

    /// The code of the answer to a request of the server itself, from whoever is there.
    pub(super) async fn probe(&self, reader: &dyn Reader, path: &str) -> Result<u16, ForwardError> {
        let address = self.address(reader)?;
        let answer = self.probe.client().request(own(&address, path, &aggregator(), &[])?).await;
        answer.map(|answer| answer.status().as_u16()).map_err(|error| self.failed(&address, error))
    }

    /// The error of an exchange. Certificates of an old kind are counted.
    fn failed(&self, address: &str, error: hyper_util::client::legacy::Error) -> ForwardError {
        if let Some(io) = io_error(&error).filter(|io| is_tls(io)) {
            count_outdated("kube_aggregator", io);
        }
        ForwardError::Exchange { server: self.target.server.clone(), address: address.to_owned(), error: error.into() }
    }
}

/// An answer to the server itself.
pub(super) struct FetchedDocument {
    pub(super) code: u16,
    pub(super) kind: String,
    pub(super) etag: String,
    pub(super) body: Bytes,
}
