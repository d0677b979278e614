//! Secure serving options: address and certificates.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::ResolvesServerCert;

use super::ServeError;
use crate::cert::{self, CertError, PemPair, ReloadingKey, SniKeys, TlsOptions};
use crate::flags::FlagSet;
use crate::os::FileError;

/// Keys and rules of a TLS port.
#[derive(Clone)]
pub struct Tls {
    key: Arc<dyn ResolvesServerCert>,
    options: TlsOptions,
    http2: bool,
}

impl Tls {
    /// With a key that may change while serving.
    pub fn new(key: Arc<dyn ResolvesServerCert>) -> Self {
        Self { key, options: TlsOptions::default(), http2: true }
    }

    /// From files, read again when they change.
    pub fn from_files(certificate: &str, key: &str) -> Result<Self, CertError> {
        Ok(Self::new(Arc::new(ReloadingKey::from_files(certificate, key)?)))
    }

    /// A fresh self-signed pair.
    pub fn self_signed(host: &str, addresses: &[IpAddr], names: &[String]) -> Result<Self, CertError> {
        Ok(Self::new(Arc::new(ReloadingKey::from_pem(&cert::self_signed(host, addresses, names)?)?)))
    }

    /// Other versions and suites than the defaults.
    #[must_use]
    pub fn with_options(self, options: TlsOptions) -> Self {
        Self { options, ..self }
    }

    /// Enables or disables HTTP/2.
    #[must_use]
    pub fn with_http2(self, http2: bool) -> Self {
        Self { http2, ..self }
    }

    pub(super) fn server_config(&self) -> Result<ServerConfig, CertError> {
        cert::server_config_with(Arc::clone(&self.key), self.http2, &self.options)
    }
}

/// The secure-serving flags that the API server, the controller manager and the scheduler share.
#[derive(Clone, Debug)]
pub struct SecureOptions {
    /// `--bind-address`
    pub address: IpAddr,
    /// `--secure-port`; 0 serves nothing.
    pub port: u16,
    /// `--cert-dir`; empty keeps a generated pair in memory.
    pub cert_dir: String,
    /// Base name of the pair in `cert_dir`.
    pub pair_name: String,
    /// `--tls-cert-file`
    pub certificate: String,
    /// `--tls-private-key-file`
    pub key: String,
    /// `--tls-sni-cert-key`
    pub named: Vec<(String, String, Vec<String>)>,
    /// `--tls-min-version`
    pub min_version: String,
    /// `--tls-cipher-suites`
    pub suites: Vec<String>,
    /// Unless `--disable-http2-serving`.
    pub http2: bool,
    /// `--http2-max-streams-per-connection`; 0 is the usual.
    pub streams: u32,
    /// `--permit-port-sharing`: other processes may listen there, too.
    pub shares_port: bool,
}

impl SecureOptions {
    /// Reads the options from flags.
    pub fn from_flags(flags: &FlagSet) -> Result<Self, ServeError> {
        // What it asks for is so for every socket that listens.
        flags.boolean("permit-address-sharing");
        let port = flags.integer("secure-port");
        let port = u16::try_from(port).map_err(|_| {
            ServeError::Setup(format!(
                "--secure-port {port} must be between 0 and 65535, inclusive. 0 for turning off secure port"
            ))
        })?;
        Ok(Self {
            address: flags.address("bind-address").unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            port,
            cert_dir: flags.string("cert-dir"),
            pair_name: flags.component().to_owned(),
            certificate: flags.string("tls-cert-file"),
            key: flags.string("tls-private-key-file"),
            named: flags.named_keys("tls-sni-cert-key"),
            min_version: flags.string("tls-min-version"),
            suites: flags.list("tls-cipher-suites"),
            http2: !flags.boolean("disable-http2-serving"),
            streams: u32::try_from(flags.integer("http2-max-streams-per-connection")).unwrap_or(0),
            shares_port: flags.boolean("permit-port-sharing"),
        })
    }

    /// The address to serve on; `None` when secure serving is off.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        (self.port != 0).then(|| SocketAddr::new(self.address, self.port))
    }

    /// Loads the pair, or makes a self-signed one for this host and `names` and `addresses`.
    pub fn tls(&self, addresses: &[IpAddr], names: &[String]) -> Result<Tls, ServeError> {
        let default: Arc<dyn ResolvesServerCert> = if self.certificate.is_empty() && self.key.is_empty() {
            Arc::new(self.generated(addresses, names)?)
        } else {
            Arc::new(ReloadingKey::from_files(&self.certificate, &self.key)?)
        };
        let key: Arc<dyn ResolvesServerCert> =
            if self.named.is_empty() { default } else { Arc::new(SniKeys::new(default, &self.named)?) };
        Ok(Tls::new(key).with_options(TlsOptions::new(&self.min_version, &self.suites)?).with_http2(self.http2))
    }

    fn generated(&self, addresses: &[IpAddr], names: &[String]) -> Result<ReloadingKey, CertError> {
        let host = hostname();
        let local = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let all: Vec<IpAddr> = addresses.iter().chain(&local).copied().filter(|ip| !ip.is_unspecified()).collect();
        let mut all_names = names.to_vec();
        all_names.push("localhost".to_owned());
        if self.cert_dir.is_empty() {
            return ReloadingKey::from_pem(&cert::self_signed(&host, &all, &all_names)?);
        }
        let file = |ending: &str| Path::new(&self.cert_dir).join(format!("{}.{ending}", self.pair_name));
        let (certificate, key) = (file("crt"), file("key"));
        if !(certificate.exists() && key.exists()) {
            let pair = cert::self_signed(&host, &all, &all_names)?;
            write_pair(&pair, &certificate, &key)?;
            tracing::info!(cert = %certificate.display(), key = %key.display(), "Generated self-signed cert");
        }
        ReloadingKey::from_files(certificate, key)
    }
}

fn write_pair(pair: &PemPair, certificate: &Path, key: &Path) -> Result<(), CertError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let write = |path: &Path, mode: u32, text: &str| {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode).open(path)?.write_all(text.as_bytes())
    };
    for (path, mode, text) in [(certificate, 0o644, &pair.certificate), (key, 0o600, &pair.key)] {
        write(path, mode, text).map_err(|e| CertError::File(FileError::new("open", path.display().to_string(), &e)))?;
    }
    Ok(())
}

/// This machine's name, lower case.
pub fn hostname() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = text.trim().to_ascii_lowercase();
    if name.is_empty() { "localhost".to_owned() } else { name }
}
