//! The port every component has: TLS, who may ask, health, metrics and the debug pages, plus the component's routes.
//!
//! A [`Server`] is described, then started into a task group; it stops accepting when its shutdown is triggered and
//! lets running requests finish. What a request is allowed to do is decided by `authn` and `authz`; this room only
//! asks them.

mod access;
mod delegated;
mod health;
mod logs;
mod pages;
mod profiles;
mod secure;
#[cfg(test)]
mod tests;
mod zpages;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Extensions;
use actix_web::http::KeepAlive;
use actix_web::middleware::from_fn;
use actix_web::web::ServiceConfig;
use actix_web::{App, HttpServer};
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use tokio::net::TcpSocket;

use crate::authn::Authenticator;
use crate::authz::Authorizer;
use crate::cert::CertError;
use crate::flags::FlagSet;
use crate::run::{Shutdown, TaskGroup};
use crate::upgrade::{self, Listening, Secured};
pub use access::{AttributesOf, Denials, Requested, path_attributes};
pub use delegated::{Delegated, DelegatedOptions};
pub use health::{Health, HealthResponse, Probe, Report, Tally, Unhealthy, slis};
pub use logs::{Found, logs};
pub use pages::{Configz, Debugging, Query, verbosity, verbosity_index, verbosity_pages};
pub use profiles::{profile, profiler_pages};
pub use secure::{SecureOptions, Tls, hostname};
pub use zpages::{PageForm, ZPage, flagz, statusz};

const HEADER_DEADLINE: Duration = Duration::from_secs(32);
const IDLE: Duration = Duration::from_secs(90);
const DRAIN: Duration = Duration::from_secs(10);
const MAX_CONNECTIONS: usize = 4096;
/// Streams of an HTTP/2 connection unless a flag says otherwise.
const MAX_STREAMS: u32 = 100;
const BACKLOG: u32 = 1024;

/// Errors of serving a port.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is taken or not ours to take.
    #[error("failed to create listener: failed to listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// Certificates.
    #[error(transparent)]
    Cert(#[from] CertError),
    /// TLS settings.
    #[error(transparent)]
    Options(#[from] crate::cert::OptionError),
    /// Trust in clients.
    #[error("unable to load client CA provider: {0}")]
    Authn(#[from] crate::authn::AuthnError),
    /// Could not be set up.
    #[error("{0}")]
    Setup(String),
}

/// The chain the client presented, leaf first and unverified; in a connection's data.
#[derive(Clone)]
pub struct ClientCertificates(pub Arc<[CertificateDer<'static>]>);

type Routes = Arc<dyn Fn(&mut ServiceConfig) + Send + Sync>;

/// A port to serve.
#[derive(Clone)]
pub struct Server {
    name: &'static str,
    address: SocketAddr,
    tls: Option<Tls>,
    access: Option<access::Access>,
    pages: pages::Pages,
    routes: Vec<Routes>,
    workers: usize,
    streams: u32,
    shares_port: bool,
}

impl Server {
    /// Plain HTTP that anybody may ask.
    pub fn plain(name: &'static str, address: SocketAddr) -> Self {
        Self {
            name,
            address,
            tls: None,
            access: None,
            pages: pages::Pages::default(),
            routes: Vec::new(),
            workers: 1,
            streams: MAX_STREAMS,
            shares_port: false,
        }
    }

    /// HTTPS.
    pub fn secure(name: &'static str, address: SocketAddr, tls: Tls) -> Self {
        Self { tls: Some(tls), ..Self::plain(name, address) }
    }

    /// Sets authentication and authorization. Without them every request is allowed.
    #[must_use]
    pub fn access(mut self, authenticator: Arc<dyn Authenticator>, authorizer: Arc<dyn Authorizer>) -> Self {
        self.access = Some(access::Access::new(authenticator, authorizer));
        self
    }

    /// Sets the hook that maps a request to attributes; the request is allowed when any of them is.
    #[must_use]
    pub fn attributes(mut self, hook: impl Fn(&Requested<'_>) -> AttributesOf + Send + Sync + 'static) -> Self {
        if let Some(access) = &mut self.access {
            access.attributes = Arc::new(hook);
        }
        self
    }

    /// Sets the form of refusals.
    #[must_use]
    pub fn denials(mut self, denials: Denials) -> Self {
        if let Some(access) = &mut self.access {
            access.denials = denials;
        }
        self
    }

    /// Serves health checks.
    #[must_use]
    pub fn health(mut self, health: &Health) -> Self {
        self.pages.health = Some(health.clone());
        self
    }

    /// Serves `/metrics` and `/metrics/slis`.
    #[must_use]
    pub fn metrics(mut self) -> Self {
        self.pages.metrics = true;
        self
    }

    /// Serves `/configz`.
    #[must_use]
    pub fn configz(mut self, configz: &Configz) -> Self {
        self.pages.configz = Some(configz.clone());
        self
    }

    /// One entry of `/configz`.
    #[must_use]
    pub fn config(mut self, name: &str, value: Value) -> Self {
        self.pages.configz.get_or_insert_default().set(name, value);
        self
    }

    /// Serves `/version`, `/debug/flags/v` and `/debug/pprof/`, and `/flagz` and `/statusz` when their gates are on.
    #[must_use]
    pub fn flags(mut self, flags: &FlagSet) -> Self {
        self.pages.flags = Some(flags.clone());
        self.pages.profiling = !flags.knows("profiling") || flags.boolean("profiling");
        // Asked for here and not by whichever thread serves first: by then it may be told which gates nobody asks for.
        self.pages.flagz = flags.enabled("ComponentFlagz");
        self.pages.statusz = flags.enabled("ComponentStatusz");
        self
    }

    /// Serves pages for debugging.
    #[must_use]
    pub fn debugging(mut self, debugging: &Debugging) -> Self {
        self.pages.debugging = Some(debugging.clone());
        self
    }

    /// The component's own routes. Runs once per worker thread.
    #[must_use]
    pub fn routes(mut self, routes: impl Fn(&mut ServiceConfig) + Send + Sync + 'static) -> Self {
        self.routes.push(Arc::new(routes));
        self
    }

    /// Sets connection options beyond address and certificates.
    #[must_use]
    pub fn listening(mut self, options: &SecureOptions) -> Self {
        if options.streams > 0 {
            self.streams = options.streams;
        }
        self.shares_port = options.shares_port;
        self
    }

    /// Worker threads; one by default.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Binds and serves until the shutdown. The answer is the address in force, for port 0.
    pub fn start(self, tasks: &TaskGroup, shutdown: &Shutdown) -> Result<SocketAddr, ServeError> {
        let listener = listener(self.address, self.shares_port).map_err(|e| ServeError::Listen(self.address, e))?;
        let address = listener.local_addr().map_err(|e| ServeError::Listen(self.address, e))?;
        let tls = self.tls.as_ref().map(Tls::server_config).transpose()?;
        let secure = tls.is_some();
        let (pages, access, routes) = (self.pages, self.access, self.routes);
        let app = move || {
            let (access, pages, routes) = (access.clone(), pages.clone(), routes.clone());
            App::new()
                .wrap(from_fn(move |request, next| access::guard(access.clone(), request, next)))
                .configure(move |config| {
                    for add in &routes {
                        add(config);
                    }
                    pages.configure(config);
                })
                .default_service(actix_web::web::to(pages::not_found))
        };
        let server = match tls {
            Some(tls) => {
                let listening = Listening {
                    name: self.name,
                    workers: self.workers,
                    connections: MAX_CONNECTIONS,
                    streams: self.streams,
                    keep_alive: IDLE,
                    head_deadline: HEADER_DEADLINE,
                    drain: DRAIN,
                    shutdown: shutdown.clone(),
                    begin: None,
                };
                upgrade::serve(listening, listener, tls, note_certificates, app)
            }
            None => HttpServer::new(app)
                .workers(self.workers)
                .worker_max_blocking_threads(4)
                .max_connections(MAX_CONNECTIONS)
                .disable_signals()
                .keep_alive(KeepAlive::Timeout(IDLE))
                .client_request_timeout(HEADER_DEADLINE)
                .shutdown_timeout(DRAIN.as_secs())
                .listen(listener)
                .map(HttpServer::run),
        };
        let server = server.map_err(|e| ServeError::Listen(address, e))?;
        let (handle, shutdown, name) = (server.handle(), shutdown.clone(), self.name);
        tasks.spawn(name, async move {
            let stop = async {
                shutdown.wait().await;
                handle.stop(true).await;
            };
            let (ended, ()) = tokio::join!(server, stop);
            if let Err(e) = ended {
                tracing::error!(server = name, err = %e, "Server failed");
            }
        });
        if secure {
            tracing::info!(address = %address, "Serving securely");
        } else {
            tracing::info!(address = %address, "Serving insecurely");
        }
        Ok(address)
    }
}

/// A port that listens, also for others if they want.
fn listener(address: SocketAddr, shares_port: bool) -> std::io::Result<TcpListener> {
    if !shares_port {
        return TcpListener::bind(address);
    }
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

/// Keeps the client's certificates and address where requests find them.
fn note_certificates(stream: &Secured, data: &mut Extensions) {
    let (socket, session) = stream.get_ref();
    if let Some(chain) = session.peer_certificates() {
        let owned: Vec<CertificateDer<'static>> = chain.iter().map(|c| c.clone().into_owned()).collect();
        data.insert(ClientCertificates(owned.into()));
    }
    if let Ok(peer) = socket.inner().inner().peer_addr() {
        data.insert(peer);
    }
}
