//! The HTTPS server of the components that accept upgrades: actix-web's with [`Http1Filter`] between TLS and HTTP/1.1, and
//! [`http2`] for whoever speaks that.

use std::fmt::{Debug, Display};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use actix_http::body::BoxBody;
use actix_http::{HttpService, Protocol, Request, Response};
use actix_server::Server;
use actix_service::{IntoServiceFactory, ServiceFactory, ServiceFactoryExt as _, fn_factory, fn_service, map_config};
use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{AppConfig, Extensions, Service};
use actix_web::http::KeepAlive;
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::http1_filter::Http1Filter;
use super::http2::{self, Noted, Peer, Settings};
use super::pipelining::{Answer, ConnectionSequencer, Fitted, Sequenced};
use crate::connections::{ConnectionLimits, Limited, Standing};
use crate::metrics::{self, Counter};
use crate::read_ahead::ReadAhead;
use crate::run::Shutdown;

/// The server's own limit of connections is this many times that of [`ConnectionLimits`], which it never comes to where
/// those that lose their places end in time.
const SLACK: usize = 2;
/// Peers that are silent for so long are asked whether they are there, as upstream's are.
const SILENCE: Duration = Duration::from_secs(3 * 60);
const BETWEEN_PROBES: Duration = Duration::from_secs(15);

/// Handshakes that failed.
static FAILED: LazyLock<Counter> = LazyLock::new(|| {
    let help = "[ALPHA] Number of requests dropped with a TLS handshake error.";
    metrics::counter("apiserver_tls_handshake_errors_total", help, &[]).with_label_values::<&str>(&[])
});

/// Listener options.
#[derive(Clone)]
pub struct Listening {
    /// Names the server in logs.
    pub name: &'static str,
    /// Threads that serve connections.
    pub workers: usize,
    /// Connections at the same time; see [`ConnectionLimits`].
    pub connections: usize,
    /// Streams of an HTTP/2 connection at the same time.
    pub streams: u32,
    /// An idle connection is closed after this.
    pub keep_alive: Duration,
    /// A request's head must have come by then.
    pub head_deadline: Duration,
    /// Longest time that requests may go on after shutdown.
    pub drain: Duration,
    /// Ends idle connections when triggered.
    pub shutdown: Shutdown,
    /// Hook of each thread before it serves, on its own runtime.
    pub begin: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// A connection over TLS.
pub type Secured = TlsStream<ReadAhead<Limited<TcpStream>>>;
type Connected = fn(&Secured, &mut Extensions);

/// Serves an app over TLS. `connected` sees each connection once, before its first request, and may leave notes in
/// its data. The server ends by its handle.
///
/// # Errors
/// The listener cannot be used.
pub fn serve<F, I, S, B>(
    listening: Listening,
    listener: TcpListener,
    tls: ServerConfig,
    connected: Connected,
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
    LazyLock::force(&FAILED);
    let drain = listening.drain.as_secs();
    let (workers, connections) = (listening.workers, listening.connections.saturating_mul(SLACK));
    let built = Server::build().workers(workers).max_concurrent_connections(connections).disable_signals();
    let limits = ConnectionLimits::new(listening.connections);
    let built = built.shutdown_timeout(drain).worker_max_blocking_threads(4);
    let built = built.listen(listening.name, listener, move || {
        let (listening, acceptor, factory) = (listening.clone(), acceptor.clone(), factory.clone());
        let limits = Arc::clone(&limits);
        fn_factory(move || {
            if let Some(begin) = &listening.begin {
                begin();
            }
            let app = factory().into_factory().map_err(|error| error.into().error_response());
            let http1 = http1(&listening, connected, map_config(app, |()| AppConfig::default())).new_service(());
            let http2 = map_config(factory().into_factory(), |()| AppConfig::default()).new_service(());
            let (acceptor, settings, limits) = (acceptor.clone(), listening.http2(), Arc::clone(&limits));
            async move {
                let made = tokio::try_join!(
                    async {
                        http1.await.map_err(|error| tracing::error!(?error, "Failed to create the HTTP application"))
                    },
                    async {
                        http2.await.map_err(|error| tracing::error!(?error, "Failed to create the HTTP application"))
                    }
                );
                let (http1, http2) = made?;
                let thread = Rc::new(Thread { acceptor, limits, connected, http1, http2, settings });
                Ok::<_, ()>(fn_service(move |socket: TcpStream| {
                    let thread = Rc::clone(&thread);
                    async move {
                        thread.serve::<B>(socket).await;
                        Ok::<_, ()>(())
                    }
                }))
            }
        })
    })?;
    Ok(built.run())
}

impl Listening {
    fn http2(&self) -> Settings {
        Settings {
            streams: self.streams,
            idle: self.keep_alive,
            handshake: self.head_deadline,
            shutdown: self.shutdown.clone(),
        }
    }
}

/// HTTP/1.1 over an app.
#[allow(clippy::type_complexity, reason = "a connection's service as the library has it")]
fn http1<S, B>(
    listening: &Listening,
    connected: Connected,
    app: S,
) -> HttpService<Http1Filter<Secured>, Sequenced<Fitted<S, B>>, Answer<BoxBody>>
where
    S: ServiceFactory<Request, Config = ()>,
    S::Error: Into<Response<BoxBody>> + 'static,
    S::InitError: Debug + 'static,
    S::Response: Into<Response<B>> + 'static,
    S::Future: 'static,
    S::Service: 'static,
    <S::Service as Service<Request>>::Future: 'static,
    B: MessageBody + 'static,
{
    let shutdown = listening.shutdown.clone();
    HttpService::build()
        .keep_alive(KeepAlive::Timeout(listening.keep_alive))
        .client_request_timeout(listening.head_deadline)
        .client_disconnect_timeout(Duration::from_secs(1))
        .graceful_shutdown_signal(move || {
            let shutdown = shutdown.clone();
            async move { shutdown.wait().await }
        })
        .on_connect_ext(move |io: &Http1Filter<Secured>, data: &mut Extensions| {
            data.insert(ConnectionSequencer(Rc::clone(io.turn())));
            note(io.inner(), data, connected);
        })
        .finish(Sequenced(Fitted::new(app)))
}

/// State of a serving thread.
struct Thread<H1, H2> {
    acceptor: TlsAcceptor,
    limits: Arc<ConnectionLimits>,
    connected: Connected,
    http1: H1,
    http2: H2,
    settings: Settings,
}

impl<H1, H2> Thread<H1, H2> {
    /// Serves a connection to its end.
    async fn serve<B>(&self, socket: TcpStream)
    where
        H1: Service<(Http1Filter<Secured>, Protocol, Option<SocketAddr>)>,
        H1::Error: Display,
        H2: Service<Request>,
        H2::Response: Into<Response<B>>,
        H2::Error: Into<Error>,
        B: MessageBody + 'static,
    {
        let Ok(address) = socket.peer_addr() else { return };
        let socket = Limited::new(socket, self.limits.admit(address.ip()));
        let Some(stream) = accept(&self.acceptor, socket, self.settings.handshake).await else { return };
        let address = Some(address);
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let mut noted = Extensions::new();
            note(&stream, &mut noted, self.connected);
            let peer = Peer { address, noted: Noted(Rc::new(noted)) };
            if let Err(error) = http2::serve(stream, &self.http2, &peer, &self.settings).await {
                tracing::debug!(%error, "HTTP/2 connection error");
            }
        } else if let Err(error) =
            self.http1.call((Http1Filter::new(stream, self.settings.handshake), Protocol::Http1, address)).await
        {
            tracing::debug!(%error, "HTTP connection error");
        }
    }
}

/// Small answers are not waited with, and peers that have vanished are found out although nothing is said to them. What
/// the system does not know it does without.
fn prepare(socket: &TcpStream) {
    socket.set_nodelay(true).ok();
    let alive = TcpKeepalive::new().with_time(SILENCE).with_interval(BETWEEN_PROBES);
    SockRef::from(socket).set_tcp_keepalive(&alive).ok();
}

/// Notes of a connection what its requests may have to know.
fn note(stream: &Secured, data: &mut Extensions, connected: Connected) {
    data.insert::<Standing>(stream.get_ref().0.inner().standing().clone());
    connected(stream, data);
}

/// The handshake. It has as long as a request's head, as upstream.
async fn accept(acceptor: &TlsAcceptor, socket: Limited<TcpStream>, limit: Duration) -> Option<Secured> {
    prepare(socket.inner());
    match tokio::time::timeout(limit, acceptor.accept(ReadAhead::of(socket))).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake error"),
        Err(_) => tracing::debug!("TLS handshake timeout"),
    }
    FAILED.inc();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_peers_are_asked_whether_they_are_there() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (ours, _theirs) = tokio::join!(listener.accept(), TcpStream::connect(address));
        let (ours, _) = ours.expect("a connection");
        prepare(&ours);
        assert!(SockRef::from(&ours).keepalive().expect("known"));
        assert!(ours.nodelay().expect("known"));
    }
}
