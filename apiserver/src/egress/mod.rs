//! Egress of the API server: direct connections, or the proxy that `--egress-selector-config-file` sets for the
//! destination's network. Answers for upstream's `pkg/server/egressselector` (`EgressSelector.Lookup`).
//!
//! In: `host:port` and which network it belongs to. Out: a stream of bytes to it. What is spoken on it (TLS, HTTP) is
//! the caller's business. Proxies speak HTTP CONNECT ([`http_connect`]) or Konnectivity's gRPC ([`konnectivity`]).

mod config;
mod http_connect;
mod konnectivity;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use prometheus::{CounterVec, HistogramVec};
pub use shared::client::BoxStream;
use shared::client::Dialer;
use shared::flags::FlagSet;
use shared::metrics;
use shared::os;
use tokio::net::TcpStream;

/// Until somebody answers.
const CONNECT: Duration = Duration::from_secs(30);

/// The network an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkContext {
    /// Nodes, pods and services.
    Cluster,
    /// Peers of the API server: webhooks with a URL, authentication and authorization webhooks, audit.
    ControlPlane,
    /// The store.
    Etcd,
}

impl NetworkContext {
    /// Name in the configuration.
    fn name(self) -> &'static str {
        config::NAMES.iter().find(|(_, to)| *to == self).map_or("", |(name, _)| name)
    }
}

/// Transport to a network.
#[derive(Debug, Default)]
enum EgressTransport {
    #[default]
    Direct,
    HttpConnect(http_connect::Proxy),
    /// The socket of a Konnectivity server.
    Grpc(PathBuf),
}

/// Failure of a proxy to connect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProxyRefused(String);

impl ProxyRefused {
    /// The proxy's reason in an error of [`Egress::dial`].
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// A network that a client must reach through an egress, and for which there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EgressLookupError {
    /// There is no configuration.
    #[error("egress lookup required with egress selector type {:?}", .0.name())]
    NoSelector(NetworkContext),
    /// The configuration does not name the network.
    #[error("egress lookup for {:?} is not configured", .0.name())]
    NotConfigured(NetworkContext),
}

/// Cheap to clone. The default leads everything straight.
#[derive(Clone, Default)]
pub struct Egress(Arc<Transports>);

#[derive(Default)]
struct Transports {
    cluster: EgressTransport,
    control_plane: EgressTransport,
    etcd: EgressTransport,
    /// The networks that the configuration names, where there is one.
    named: Option<Vec<NetworkContext>>,
}

struct Metrics {
    started: CounterVec,
    failed: CounterVec,
    took: HistogramVec,
}

impl Metrics {
    fn new() -> Self {
        Self {
            started: metrics::counter(
                "apiserver_egress_dialer_dial_start_total",
                "[ALPHA] Dial starts, labeled by the protocol (http-connect or grpc) and transport (tcp or uds).",
                &["protocol", "transport"],
            ),
            failed: metrics::counter(
                "apiserver_egress_dialer_dial_failure_count",
                "[ALPHA] Dial failure count, labeled by the protocol (http-connect or grpc), transport (tcp or uds), and stage (connect or proxy). The stage indicates at which stage the dial failed",
                &["protocol", "stage", "transport"],
            ),
            took: metrics::histogram(
                "apiserver_egress_dialer_dial_duration_seconds",
                "[ALPHA] Dial latency histogram in seconds, labeled by the protocol (http-connect or grpc), transport (tcp or uds)",
                &["protocol", "transport"],
                vec![0.005, 0.025, 0.1, 0.5, 2.5, 12.5],
            ),
        }
    }
}

impl Egress {
    /// Reads `--egress-selector-config-file`.
    ///
    /// # Errors
    /// A file that cannot be read, or upstream's words about what is wrong in it.
    pub fn from_flags(flags: &FlagSet) -> anyhow::Result<Self> {
        let path = flags.string("egress-selector-config-file");
        if path.is_empty() {
            return Ok(Self::default());
        }
        let text = os::read(&path)
            .map_err(|why| anyhow::anyhow!("unable to read egress selector configuration from {path:?} [{why}]"))
            .context("failed to read egress selector config")?;
        let mut ways = Transports { named: Some(Vec::new()), ..Transports::default() };
        for (to, way) in config::read(&text)? {
            ways.named.get_or_insert_default().push(to);
            match to {
                NetworkContext::Cluster => ways.cluster = way,
                NetworkContext::ControlPlane => ways.control_plane = way,
                NetworkContext::Etcd => ways.etcd = way,
            }
        }
        Ok(Self(Arc::new(ways)))
    }

    fn way(&self, to: NetworkContext) -> &EgressTransport {
        match to {
            NetworkContext::Cluster => &self.0.cluster,
            NetworkContext::ControlPlane => &self.0.control_plane,
            NetworkContext::Etcd => &self.0.etcd,
        }
    }

    /// For a client whose own configuration names the network, and so must find it in this one.
    ///
    /// # Errors
    /// [`EgressLookupError`].
    pub fn demanded(&self, to: NetworkContext) -> Result<Dialer, EgressLookupError> {
        match &self.0.named {
            None => Err(EgressLookupError::NoSelector(to)),
            Some(named) if !named.contains(&to) => Err(EgressLookupError::NotConfigured(to)),
            Some(_) => Ok(self.dialer(to)),
        }
    }

    /// For clients that would otherwise open their connections themselves; `None` where that is what they should do.
    pub fn proxied(&self, to: NetworkContext) -> Option<Dialer> {
        (!matches!(self.way(to), EgressTransport::Direct)).then(|| self.dialer(to))
    }

    /// For clients.
    pub fn dialer(&self, to: NetworkContext) -> Dialer {
        let egress = self.clone();
        Dialer::new(move |address| {
            let egress = egress.clone();
            Box::pin(async move { egress.dial(to, &address).await })
        })
    }

    /// A connection to `host:port`, or none when it takes too long.
    ///
    /// # Errors
    /// The system's for a straight connection, [`ProxyRefused`] with the proxy's reason otherwise.
    pub async fn dial(&self, to: NetworkContext, address: &str) -> io::Result<BoxStream> {
        match self.way(to) {
            EgressTransport::Direct => {
                let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(address)).await;
                let stream = connecting.map_err(|_| io::ErrorKind::TimedOut)??;
                stream.set_nodelay(true)?;
                Ok(Box::pin(stream))
            }
            EgressTransport::HttpConnect(proxy) => {
                self.counted(["http_connect", proxy.transport()], proxy.dial(address)).await
            }
            EgressTransport::Grpc(socket) => self.counted(["grpc", "uds"], konnectivity::dial(socket, address)).await,
        }
    }

    async fn counted(
        &self,
        labels: [&str; 2],
        dialing: impl Future<Output = Result<BoxStream, (Stage, String)>>,
    ) -> io::Result<BoxStream> {
        let started = Instant::now();
        let meters = Metrics::new();
        meters.started.with_label_values(&labels).inc();
        let dialed = dialing.await;
        match &dialed {
            Ok(_) => meters.took.with_label_values(&labels).observe(started.elapsed().as_secs_f64()),
            Err((stage, _)) => meters.failed.with_label_values(&[labels[0], stage.name(), labels[1]]).inc(),
        }
        dialed.map_err(|(_, why)| io::Error::other(ProxyRefused(why)))
    }
}

/// Stage at which a dial failed.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The proxy was not reached.
    Connect,
    /// The proxy did not reach the address.
    Proxy,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Proxy => "proxy",
        }
    }
}
