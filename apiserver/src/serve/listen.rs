//! Listening: certificates, TLS settings, the HTTP server and its end. Answers for upstream's
//! `SecureServingInfo.Serve`.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{Extensions, ServerHandle};
use actix_web::{App, web};
use shared::cert::{self, CertError, OptionError, ReloadingKey, SniKeys, TlsOptions};
use shared::flags::FlagSet;
use shared::run::Shutdown;
use shared::upgrade::{self, Listening, Secured};
use tokio::net::TcpSocket;

use super::chain::handle;
use super::context::Peer;
use super::server::Server;

/// Streams of an HTTP/2 connection unless `--http2-max-streams-per-connection` says otherwise.
const STREAMS: u32 = 100;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;
/// Time that the remaining connections have to hear of the shutdown.
const PARTING: Duration = Duration::from_secs(5);
/// Connections at the same time, as far as there are files: seven parts in eight may be of clients that nobody knows.
const CONNECTIONS: usize = 32_768;
/// Least number of threads that serve connections.
const LEAST_WORKERS: usize = 2;

/// Reasons for which the port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No certificate.
    #[error(transparent)]
    Certificate(#[from] CertError),
    /// Flags that ask for what there is not.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// The port is taken, or not ours.
    #[error("failed to create listener: failed to listen on {address}: {source}")]
    Bind {
        /// Address to bind.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// Anything else.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Addresses to bind and to advertise.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// `--bind-address`.
    pub bind: IpAddr,
    /// `--secure-port`.
    pub port: u16,
    /// `--advertise-address`, or what can be found out.
    pub advertise: IpAddr,
    /// `--permit-port-sharing`: other processes may listen there, too.
    pub shared: bool,
}

impl Addresses {
    /// From the flags.
    pub fn read(flags: &FlagSet) -> Self {
        let bind = flags.address("bind-address").unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let port = u16::try_from(flags.integer("secure-port")).unwrap_or(6443);
        let advertise = flags.address("advertise-address").filter(|a| !a.is_unspecified());
        // A loopback address is of no use to others.
        let bound = (!bind.is_unspecified() && !bind.is_loopback()).then_some(bind);
        let advertise = advertise.or(bound).or_else(outgoing).unwrap_or(IpAddr::from([127, 0, 0, 1]));
        // What `--permit-address-sharing` asks for is so for every socket that listens.
        flags.boolean("permit-address-sharing");
        Self { bind, port, advertise, shared: flags.boolean("permit-port-sharing") }
    }
}

/// The address of the interface with the default route. Nothing is sent.
fn outgoing() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|a| !a.is_unspecified())
}

/// The serving pair: the files given, those in `--cert-dir`, or a new self-signed pair put there.
fn key(flags: &FlagSet, addresses: &Addresses, names: &[String]) -> Result<ReloadingKey, CertError> {
    let (certificate, key) = (flags.string("tls-cert-file"), flags.string("tls-private-key-file"));
    if !certificate.is_empty() && !key.is_empty() {
        return ReloadingKey::from_files(certificate, key);
    }
    let dir = flags.string("cert-dir");
    let dir = Path::new(&dir);
    let files = (dir.join("apiserver.crt"), dir.join("apiserver.key"));
    if files.0.exists() && files.1.exists() {
        return ReloadingKey::from_files(&files.0, &files.1);
    }
    let pair = cert::self_signed("localhost", &[addresses.advertise, IpAddr::from([127, 0, 0, 1])], names)?;
    let written = std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&files.0, &pair.certificate))
        .and_then(|()| write_key(&files.1, &pair.key));
    if let Err(error) = written {
        tracing::warn!(%error, dir = %dir.display(), "Failed to write the self-signed certificate, keeping it in memory");
        return ReloadingKey::from_pem(&pair);
    }
    ReloadingKey::from_files(&files.0, &files.1)
}

fn write_key(path: &Path, key: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(key.as_bytes())
}

/// Opens the port; connections wait until [`serve`].
pub fn bind(addresses: &Addresses) -> Result<TcpListener, Error> {
    let address = SocketAddr::new(addresses.bind, addresses.port);
    listener(address, addresses.shared).map_err(|source| Error::Bind { address, source })
}

fn listener(address: SocketAddr, shared: bool) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(shared)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

fn remember_peer(connection: &Secured, data: &mut Extensions) {
    let chain = connection.get_ref().1.peer_certificates().unwrap_or_default();
    data.insert(Peer(Arc::new(chain.iter().map(|c| c.clone().into_owned()).collect())));
}

/// Starts serving; the handle stops it, the future ends with it.
pub fn serve(
    listener: TcpListener,
    flags: &FlagSet,
    addresses: &Addresses,
    names: &[String],
    server: Server,
    shutdown: &Shutdown,
) -> Result<(ServerHandle, impl Future<Output = std::io::Result<()>> + use<>), Error> {
    let default: Arc<dyn rustls::server::ResolvesServerCert> = Arc::new(key(flags, addresses, names)?);
    let named = flags.named_keys("tls-sni-cert-key");
    let key = if named.is_empty() { default } else { Arc::new(SniKeys::new(default, &named)?) };
    let options = TlsOptions::new(&flags.string("tls-min-version"), &flags.list("tls-cipher-suites"))?;
    let tls = cert::server_config_with(key, !flags.boolean("disable-http2-serving"), &options)?;
    let engine = server.engine.clone();
    let data = web::Data::new(server);
    let listening = Listening {
        name: "kube-apiserver",
        workers: shared::run::worker_threads(LEAST_WORKERS),
        connections: CONNECTIONS,
        streams: u32::try_from(flags.integer("http2-max-streams-per-connection"))
            .ok()
            .filter(|streams| *streams > 0)
            .unwrap_or(STREAMS),
        keep_alive: Duration::from_secs(90),
        head_deadline: Duration::from_secs(32),
        // Requests and streams are waited for before: what is left by then has been told to end.
        drain: flags.duration("request-timeout") + PARTING,
        shutdown: shutdown.clone(),
        begin: Some(Arc::new(move || drop(tokio::task::spawn_local(engine.clone().open_thread_connection())))),
    };
    let app = move || App::new().app_data(data.clone()).default_service(web::to(handle));
    let http = upgrade::serve(listening, listener, tls, remember_peer, app)?;
    Ok((http.handle(), http))
}
