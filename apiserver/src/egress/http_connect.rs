//! A proxy that is asked with HTTP's CONNECT (RFC 9110 section 9.3.6), over TCP, TLS or a unix socket. Answers for
//! upstream's `tunnelHTTPConnect`.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::http::header::{HOST, HeaderMap, HeaderValue};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use shared::cert::{self, ReloadingKey, Trust};
use shared::host_port;
use shared::os;
use shared::upgrade::{Dialed, RequestHead, dial};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{BoxStream, CONNECT, Stage};

/// Address of the proxy.
pub(super) enum Proxy {
    Tcp { address: String, tls: Option<(Arc<ClientConfig>, ServerName<'static>)> },
    Uds(PathBuf),
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// Error of a configured proxy.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyConfigError {
    /// A certificate, key or bundle cannot be used.
    #[error(transparent)]
    Certificate(#[from] cert::CertError),
    /// The host of an address has no name that a certificate could have.
    #[error("invalid proxy address {address:?}: {source}")]
    Address {
        /// The address.
        address: String,
        /// Cause.
        source: rustls_pki_types::InvalidDnsNameError,
    },
    /// Neither an address nor a socket is given.
    #[error("Either a TCP or UDS transport must be specified")]
    NoTransport,
}

/// TLS to a proxy: files of authorities (those of the system when empty), certificate and key.
pub(super) fn client_tls(authorities: &str, certificate: &str, key: &str) -> Result<ClientConfig, ProxyConfigError> {
    let trust = match authorities {
        "" => Trust::System,
        path => Trust::File(path.into()),
    };
    let pair = ReloadingKey::from_files(certificate, key)?;
    Ok(cert::client_tls(trust, Some(Arc::new(pair)))?)
}

impl Proxy {
    /// At `host:port`.
    pub(super) fn tcp(address: String, tls: Option<ClientConfig>) -> Result<Self, ProxyConfigError> {
        let Some(tls) = tls else { return Ok(Self::Tcp { address, tls: None }) };
        match ServerName::try_from(host_port::split(&address).0.to_owned()) {
            Ok(name) => Ok(Self::Tcp { address, tls: Some((Arc::new(tls), name)) }),
            Err(source) => Err(ProxyConfigError::Address { address, source }),
        }
    }

    pub(super) fn transport(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "tcp",
            Self::Uds(_) => "uds",
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Tcp { address, .. } => address.clone(),
            Self::Uds(path) => path.display().to_string(),
        }
    }

    async fn open(&self) -> std::io::Result<BoxStream> {
        match self {
            Self::Uds(path) => Ok(Box::pin(UnixStream::connect(path).await?)),
            Self::Tcp { address, tls } => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let Some((config, name)) = tls else { return Ok(Box::pin(stream)) };
                Ok(Box::pin(TlsConnector::from(config.clone()).connect(name.clone(), stream).await?))
            }
        }
    }

    /// Describes a failed connection to the proxy in Go's words.
    fn unreachable(&self, error: &std::io::Error) -> String {
        let network = if matches!(self, Self::Uds(_)) { "unix" } else { "tcp" };
        match os::words(error) {
            Some(words) => format!("dial {network} {}: connect: {words}", self.name()),
            None if error.kind() == ErrorKind::TimedOut => format!("dial {network} {}: i/o timeout", self.name()),
            None => cert::refused(host_port::split(&self.name()).0, error),
        }
    }

    /// A connection to `address` through the proxy.
    pub(super) async fn dial(&self, address: &str) -> Result<BoxStream, (Stage, String)> {
        let proxy = self.name();
        let opened = timeout(CONNECT, self.open()).await.map_err(|_| ErrorKind::TimedOut.into()).flatten();
        let stream = opened.map_err(|e| (Stage::Connect, self.unreachable(&e)))?;
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("127.0.0.1"));
        let head = RequestHead { method: "CONNECT".to_owned(), path_and_query: address.to_owned(), headers };
        match timeout(CONNECT, dial(stream, &head)).await.map_err(|_| ErrorKind::TimedOut.into()).flatten() {
            Ok(Dialed::Switched(answer, stream)) if answer.status == StatusCode::OK => Ok(Box::pin(stream)),
            Ok(Dialed::Switched(answer, _) | Dialed::Refused(answer, _)) => Err((
                Stage::Proxy,
                format!(
                    "proxy error from {proxy} while dialing {address}, code {}: {}",
                    answer.status.as_u16(),
                    answer.status
                ),
            )),
            Err(e) => {
                let why =
                    if e.kind() == ErrorKind::UnexpectedEof { "unexpected EOF".to_owned() } else { e.to_string() };
                Err((
                    Stage::Proxy,
                    format!("reading HTTP response from CONNECT to {address} via proxy {proxy} failed: {why}"),
                ))
            }
        }
    }
}
