//! The HTTPS server of the components that accept upgrades: actix-web's, with [`Rewriting`] between TLS and HTTP.

use std::fmt::Debug;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actix_http::{HttpService, Protocol, Request, Response};
use actix_server::Server;
use actix_service::{IntoServiceFactory, ServiceFactory, ServiceFactoryExt as _, fn_service, map_config};
use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{AppConfig, Extensions, Service};
use actix_web::http::KeepAlive;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::rewrite::Rewriting;
use crate::run::Shutdown;

const HANDSHAKE: Duration = Duration::from_secs(10);

/// How to listen.
#[derive(Clone)]
pub struct Listening {
    /// Names the server in logs.
    pub name: &'static str,
    /// Threads that serve connections.
    pub workers: usize,
    /// Connections at the same time, per worker.
    pub connections: usize,
    /// An idle connection is closed after this.
    pub keep_alive: Duration,
    /// A request's head must have come by then.
    pub head_deadline: Duration,
    /// How long requests may go on after the shutdown.
    pub drain: Duration,
    /// Ends idle connections when triggered.
    pub shutdown: Shutdown,
}

/// Serves an app over TLS. `connected` sees each connection once, before its first request, and may leave notes in
/// its data. The server ends by its handle.
///
/// # Errors
/// The listener cannot be used.
pub fn serve<F, I, S, B>(
    listening: Listening,
    listener: TcpListener,
    tls: ServerConfig,
    connected: fn(&TlsStream<TcpStream>, &mut Extensions),
    factory: F,
) -> io::Result<Server>
where
    F: Fn() -> I + Send + Clone + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<Error> + 'static,
    S::InitError: Debug,
    S::Response: Into<Response<B>> + 'static,
    S::Service: 'static,
    <S::Service as Service<Request>>::Future: 'static,
    B: MessageBody + 'static,
{
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let drain = listening.drain.as_secs();
    let (workers, connections) = (listening.workers, listening.connections);
    let built = Server::build().workers(workers).max_concurrent_connections(connections).disable_signals();
    let built = built.shutdown_timeout(drain).worker_max_blocking_threads(4);
    let built = built.listen(listening.name, listener, move || {
        let shutdown = listening.shutdown.clone();
        let app = factory().into_factory().map_err(|error| error.into().error_response());
        let http = HttpService::build()
            .keep_alive(KeepAlive::Timeout(listening.keep_alive))
            .client_request_timeout(listening.head_deadline)
            .client_disconnect_timeout(Duration::from_secs(1))
            .graceful_shutdown_signal(move || {
                let shutdown = shutdown.clone();
                async move { shutdown.wait().await }
            })
            .on_connect_ext(move |io: &Rewriting<TlsStream<TcpStream>>, data: &mut Extensions| {
                connected(io.inner(), data)
            })
            .finish(map_config(app, |()| AppConfig::default()));
        let acceptor = acceptor.clone();
        fn_service(move |socket: TcpStream| accept(acceptor.clone(), socket))
            .map_err(|error| tracing::debug!(%error, "TLS handshake error"))
            .and_then(http.map_err(|error| tracing::debug!(%error, "HTTP connection error")))
    })?;
    Ok(built.run())
}

type Accepted = (Rewriting<TlsStream<TcpStream>>, Protocol, Option<std::net::SocketAddr>);

async fn accept(acceptor: TlsAcceptor, socket: TcpStream) -> io::Result<Accepted> {
    socket.set_nodelay(true).ok();
    let peer = socket.peer_addr().ok();
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await??;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let protocol = if http2 { Protocol::Http2 } else { Protocol::Http1 };
    Ok((Rewriting::new(stream, !http2), protocol, peer))
}
