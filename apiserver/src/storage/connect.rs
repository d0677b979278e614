//! The connection to etcd as `--etcd-servers`, `--etcd-cafile`, `--etcd-certfile`, `--etcd-keyfile` describe it.

use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};

use super::Error;

/// Where etcd is and who we are to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// `https://host:port` of each member.
    pub servers: Vec<String>,
    /// Key prefix of this cluster.
    pub prefix: String,
    /// Certificate authority of the servers, or empty.
    pub ca_file: String,
    /// Our client certificate, or empty.
    pub cert_file: String,
    /// Its key.
    pub key_file: String,
}

pub(super) async fn client(options: &Options) -> Result<Client, Error> {
    let mut connect = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(10))
        .with_keep_alive(Duration::from_secs(30), Duration::from_secs(10))
        .with_keep_alive_while_idle(true);
    if options.servers.iter().any(|s| s.starts_with("https://")) {
        let mut tls = TlsOptions::new();
        if !options.ca_file.is_empty() {
            tls = tls.ca_certificate(Certificate::from_pem(read(&options.ca_file).await?));
        }
        if !options.cert_file.is_empty() {
            tls = tls.identity(Identity::from_pem(read(&options.cert_file).await?, read(&options.key_file).await?));
        }
        connect = connect.with_tls(tls);
    }
    Ok(Client::connect(&options.servers, Some(connect)).await?)
}

async fn read(path: &str) -> Result<Vec<u8>, Error> {
    tokio::fs::read(path).await.map_err(|source| Error::File { path: path.to_owned(), source })
}
