//! Secure connections to etcd. As with etcd's own client, the authorities are read once, and the pair for every
//! handshake: a certificate that was renewed is shown from the next connection on.

use std::io;
use std::sync::Arc;

use rustls_pki_types::ServerName;
use shared::cert::{self, Authorities, CertError, ReloadingKey, Trust};
use shared::client::{BoxStream, Dialer};
use shared::host_port;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Error;
use super::connect::{CONNECT, Options};

/// Opens secure connections as the options say, on connections of their dialer where they have one.
pub(super) fn dialer(options: &Options) -> Result<Dialer, Error> {
    let connector = TlsConnector::from(Arc::new(tls(options)?));
    let below = options.dialer.clone().unwrap_or_else(straight);
    Ok(Dialer::new(move |address| {
        let (connector, below) = (connector.clone(), below.clone());
        Box::pin(async move {
            let opened = tokio::time::timeout(CONNECT, open(&connector, &below, address)).await;
            opened.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        })
    }))
}

async fn open(connector: &TlsConnector, below: &Dialer, address: String) -> io::Result<BoxStream> {
    let name = ServerName::try_from(host_port::split(&address).0.to_owned()).map_err(io::Error::other)?;
    let line = below.open(address).await?;
    let stream: BoxStream = Box::pin(connector.connect(name, line).await?);
    Ok(stream)
}

/// Opens connections that are not secure.
pub(super) fn straight() -> Dialer {
    Dialer::new(|address| {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream: BoxStream = Box::pin(stream);
            Ok(stream)
        })
    })
}

fn tls(options: &Options) -> Result<rustls::ClientConfig, CertError> {
    let trust = match options.ca_file.as_str() {
        "" => Trust::System,
        path => Trust::Authorities(Authorities::from_pem(&cert::read(path)?)?),
    };
    let pair = match (options.cert_file.as_str(), options.key_file.as_str()) {
        ("", _) => None,
        (certificate, key) => Some(Arc::new(ReloadingKey::looking_always(certificate, key)?)),
    };
    let mut config = cert::client_tls(trust, pair)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
