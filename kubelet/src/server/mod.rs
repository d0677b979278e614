//! The kubelet's ports: 10250 (TLS, authenticated, authorised), 10255 (plain, read-only, off by default) and
//! 10248 (health on loopback).
//! Answers for upstream's `pkg/kubelet/server/server.go` (`InstallAuthNotRequiredHandlers`,
//! `InstallAuthRequiredHandlers`).
//!
//! Requests for exec, attach and port-forward become upgraded connections that are relayed to the runtime's
//! streaming server byte by byte, whichever protocol they speak; that is why this room stands on hyper. Nothing here
//! changes a pod.

pub mod access;
pub mod answer;
mod checkpoint;
mod files;
mod journal;
pub mod logs;
mod pods;
mod profiles;
pub mod query;
mod relay;

use crate::metrics;
use crate::node::agent::Agent;
use crate::pleg::Health;
use crate::probes;
use crate::stats::Stats;
use crate::workers::manager::Manager;
use access::Access;
use answer::{Answer, not_found, text};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use journal::{LogAnswer, LogQuery, NodeLogs};
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use shared::connections::{ConnectionLimits, Limited, Standing};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at the same time, port by port.
const MAX_CONNECTIONS: usize = 1024;
/// Deadline of a handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(30);
/// A connection without a request for so long ends, and so does one whose request's head takes longer (upstream's
/// `IdleTimeout`).
const IDLE: Duration = Duration::from_secs(90);
/// Pause between pings to an HTTP/2 client, and the longest wait for its answer.
const PING: Duration = Duration::from_secs(30);
/// Paths that `enableDebuggingHandlers` opens.
const DEBUGGING: [&str; 8] = ["run", "exec", "attach", "portForward", "containerLogs", "runningpods", "debug", "logs"];

/// Handlers of the secure port that can be switched off.
#[derive(Clone, Copy, Debug)]
pub struct Handlers {
    /// `enableDebuggingHandlers`: exec, attach, logs and the like.
    pub debugging: bool,
    /// `enableSystemLogHandler`.
    pub system_logs: bool,
    /// `enableSystemLogQuery`.
    pub system_log_query: bool,
    /// `ContainerCheckpoint`.
    pub checkpoints: bool,
    /// `enableProfilingHandler`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`.
    pub debug_flags: bool,
}

impl Handlers {
    /// Returns the answer to a request for a path whose handler is off.
    fn disabled(self, parts: &[&str]) -> Option<&'static str> {
        match parts {
            [first, ..] if !self.debugging && DEBUGGING.contains(first) => Some("Debug endpoints are disabled."),
            ["logs", ..] if !self.system_logs => Some("logs endpoint is disabled."),
            ["debug", "pprof", ..] if !self.profiling => Some("profiling endpoint is disabled."),
            ["debug", "flags", ..] if !self.debug_flags => Some("flags endpoint is disabled."),
            _ => None,
        }
    }
}

/// State that requests are answered from.
pub struct Server {
    /// All pods.
    pub manager: Arc<Manager>,
    /// The node.
    pub agent: Arc<Agent>,
    /// Usage.
    pub stats: Arc<Stats>,
    /// Health of the PLEG.
    pub health: Arc<Health>,
    /// Access checks.
    pub access: Access,
    /// For `/configz`.
    pub configuration: Value,
    /// Handlers that are on.
    pub handlers: Handlers,
    /// Logs that are followed and connections that are relayed.
    pub streams: TaskTracker,
}

/// Answer of `/healthz` while the runtime is not watched.
const STUCK: &str = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";

/// Port that a request came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// 10250.
    Secure,
    /// 10255.
    ReadOnly,
    /// 10248.
    Health,
}

/// Client of a connection.
struct ClientPeer {
    port: Port,
    /// Certificates that it showed, its own first.
    chain: Vec<CertificateDer<'static>>,
    standing: Standing,
}

impl Server {
    /// Serves TLS until shutdown.
    pub async fn secure(
        self: Arc<Self>,
        listener: TcpListener,
        tls: rustls::ServerConfig,
        shutdown: CancellationToken,
    ) {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let limits = ConnectionLimits::new(MAX_CONNECTIONS);
        self.accept(listener, Port::Secure, Some(acceptor), limits, shutdown).await;
    }

    /// Serves plain HTTP until shutdown.
    pub async fn plain(self: Arc<Self>, listener: TcpListener, port: Port, shutdown: CancellationToken) {
        self.accept(listener, port, None, ConnectionLimits::new(MAX_CONNECTIONS), shutdown).await;
    }

    async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        port: Port,
        acceptor: Option<tokio_rustls::TlsAcceptor>,
        limits: Arc<ConnectionLimits>,
        shutdown: CancellationToken,
    ) {
        let tasks = TaskTracker::new();
        loop {
            let (stream, peer) = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "Could not accept a connection");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
            };
            let (server, acceptor, stop) = (Arc::clone(&self), acceptor.clone(), shutdown.clone());
            let _ = stream.set_nodelay(true);
            let stream = Limited::new(stream, limits.admit(peer.ip()));
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = server.connection(stream, peer, port, acceptor) => {}
                }
            });
        }
        tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(2), tasks.wait()).await;
    }

    async fn connection(
        self: Arc<Self>,
        stream: Limited<TcpStream>,
        peer: SocketAddr,
        port: Port,
        acceptor: Option<tokio_rustls::TlsAcceptor>,
    ) {
        let standing = stream.standing().clone();
        let Some(acceptor) = acceptor else {
            self.serve(stream, ClientPeer { port, chain: Vec::new(), standing }, false).await;
            return;
        };
        match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let session = stream.get_ref().1;
                let is_http2 = session.alpn_protocol() == Some(b"h2");
                let chain = session.peer_certificates().into_iter().flatten();
                let chain = chain.map(|certificate| certificate.clone().into_owned()).collect();
                self.serve(stream, ClientPeer { port, chain, standing }, is_http2).await;
            }
            Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
        }
    }

    async fn serve<S>(self: Arc<Self>, stream: S, peer: ClientPeer, is_http2: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = Arc::new(peer);
        let service = service_fn(move |request: Request<Incoming>| {
            let (server, peer) = (Arc::clone(&self), Arc::clone(&peer));
            async move { Ok::<_, Infallible>(server.answer(request, &peer).await) }
        });
        // The protocol is known: to find it out from the first bytes would mean to wait for them without a deadline.
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
        let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
        if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
            tracing::debug!(%error, "Connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>, peer: &ClientPeer) -> Answer {
        if peer.port == Port::Health {
            return self.health_only(request.uri().path());
        }
        let is_read_only = peer.port == Port::ReadOnly;
        let _counted = metrics::CountedRequest::begin(request.method().as_str(), request.uri().path(), is_read_only);
        if peer.port == Port::Secure {
            if let Err(refusal) = self.access.check(&request, &peer.chain).await {
                return refusal;
            }
            peer.standing.authenticated();
        }
        self.route(request, peer.port).await
    }

    fn health_only(&self, path: &str) -> Answer {
        match path {
            "/healthz" | "/healthz/ping" | "/healthz/log" | "/healthz/syncloop" | "/livez" | "/readyz" => {
                self.healthz()
            }
            _ => not_found(),
        }
    }

    fn healthz(&self) -> Answer {
        match self.health.is_stuck() {
            false => text(StatusCode::OK, "ok"),
            true => text(StatusCode::INTERNAL_SERVER_ERROR, STUCK),
        }
    }

    async fn route(&self, request: Request<Incoming>, port: Port) -> Answer {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let debugging = port == Port::Secure && self.handlers.debugging;
        if port == Port::Secure
            && let Some(why) = self.handlers.disabled(&parts)
        {
            return answer::error(StatusCode::METHOD_NOT_ALLOWED, why);
        }
        match (request.method(), parts.as_slice()) {
            (&Method::GET | &Method::HEAD, ["healthz"] | ["healthz", "ping" | "log" | "syncloop"]) => self.healthz(),
            (&Method::GET, ["pods"]) => self.pods(),
            (&Method::GET, ["stats"] | ["stats", "summary"]) => {
                answer::json(&self.stats.summary(query::flag(&request, "only_cpu_and_memory")).await)
            }
            (&Method::GET, ["metrics"]) => answer::metrics(self.stats.kubelet().await),
            (&Method::GET, ["metrics", "resource"]) => answer::metrics(self.stats.resource().await),
            (&Method::GET, ["metrics", "cadvisor"]) => answer::metrics_stream(self.stats.cadvisor().await),
            (&Method::GET, ["metrics", "probes"]) => answer::metrics(probes::metrics::text()),
            (&Method::GET, ["metrics", "slis"]) => answer::metrics(shared::metrics::start_time_family()),
            (&Method::GET, ["configz"]) if debugging => {
                answer::json(&serde_json::json!({"kubeletconfig": self.configuration}))
            }
            (&Method::GET, ["runningpods"]) if debugging => self.running_pods().await,
            (&Method::GET, ["containerLogs", namespace, pod, container]) if debugging => {
                self.container_logs(&request, namespace, pod, container).await
            }
            (&Method::POST, ["run", namespace, pod, rest @ ..]) if debugging => {
                let (uid, container) = uid_and_container(rest);
                self.run_command(&request, namespace, pod, uid, container).await
            }
            (&Method::GET | &Method::POST, ["exec", namespace, pod, rest @ ..]) if debugging => {
                let (namespace, pod) = (namespace.to_string(), pod.to_string());
                let (uid, container) = uid_and_container(rest);
                let (uid, container) = (uid.map(str::to_owned), container.to_owned());
                self.exec(request, &namespace, &pod, uid.as_deref(), &container).await
            }
            (&Method::GET | &Method::POST, ["attach", namespace, pod, rest @ ..]) if debugging => {
                let (namespace, pod) = (namespace.to_string(), pod.to_string());
                let (uid, container) = uid_and_container(rest);
                let (uid, container) = (uid.map(str::to_owned), container.to_owned());
                self.attach(request, &namespace, &pod, uid.as_deref(), &container).await
            }
            (&Method::GET | &Method::POST, ["portForward", namespace, pod, rest @ ..])
                if debugging && rest.len() <= 1 =>
            {
                let (namespace, pod) = (namespace.to_string(), pod.to_string());
                let uid = rest.first().map(|uid| (*uid).to_owned());
                self.port_forward(request, &namespace, &pod, uid.as_deref()).await
            }
            (&Method::PUT, ["debug", "flags", "v"]) if debugging => self.set_verbosity(request).await,
            (&Method::GET, ["debug", "pprof", ..]) if debugging => profiles::serve(&request).await,
            (&Method::GET, ["logs", rest @ ..]) if debugging => self.node_logs(&request, rest).await,
            (&Method::POST, ["checkpoint", namespace, pod, container])
                if port == Port::Secure && self.handlers.checkpoints =>
            {
                self.checkpoint(&request, namespace, pod, container).await
            }
            _ => not_found(),
        }
    }

    /// Files below `/var/log`, and logs of services where they may be asked for.
    async fn node_logs<B>(&self, request: &Request<B>, parts: &[&str]) -> Answer {
        let path = request.uri().path();
        if !self.handlers.system_log_query {
            return files::serve(parts, path.ends_with('/')).await;
        }
        match LogQuery::parse(&query::pairs(request.uri().query().unwrap_or_default())) {
            Err(why) => answer::error(StatusCode::BAD_REQUEST, &why.to_string()),
            Ok(None) => files::serve(parts, path.ends_with('/')).await,
            Ok(Some(asked)) => {
                let below = path.strip_prefix("/logs").unwrap_or(path);
                match NodeLogs::default().answer(asked, below, request.headers()) {
                    LogAnswer::Answer(answer) => answer,
                    LogAnswer::File(name) => files::show(name).await,
                }
            }
        }
    }

    async fn set_verbosity(&self, request: Request<Incoming>) -> Answer {
        match answer::small_body(request).await.ok().and_then(|body| body.trim().parse::<u32>().ok()) {
            Some(level) => {
                shared::run::set_verbosity(level);
                text(StatusCode::OK, &format!("successfully set klog.logging.verbosity to {level}"))
            }
            None => text(StatusCode::BAD_REQUEST, "failed to set klog.logging.verbosity: invalid syntax"),
        }
    }
}

/// `{container}` or `{uid}/{container}`.
fn uid_and_container<'a>(rest: &[&'a str]) -> (Option<&'a str>, &'a str) {
    match rest {
        [container] => (None, container),
        [uid, container] => (Some(uid), container),
        _ => (None, ""),
    }
}

#[cfg(test)]
mod tests;
