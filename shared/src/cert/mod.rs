//! Certificates and keys: PEM in, rustls configurations out; self-signed pairs, signing requests, key pairs that
//! are re-read when their files change.

mod authorities;
mod options;
mod pem;
mod private_key;
mod reload;
mod signature;
mod sni;
mod trust;
mod unverified;
mod words;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName as TlsName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

pub use authorities::Authorities;
pub(crate) use authorities::KeyUsage;
pub use options::{OptionError, TlsOptions};
pub use pem::{CertError, PemPair, certificates, certified_key, private_key, provider, read, root_store, to_pem};
pub use pkcs8::ObjectIdentifier;
pub use private_key::{curve, to_pkcs8};
pub use reload::ReloadingKey;
pub use sni::SniKeys;
pub use trust::ReloadingRoots;
use trust::system_authorities;
use unverified::AnyServer;
pub(crate) use words::refusal;
pub use words::refused;

/// A self-signed serving pair for a host and its addresses, valid for a year.
pub fn self_signed(host: &str, addresses: &[IpAddr], names: &[String]) -> Result<PemPair, CertError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, format!("{host}@{}", jiff::Timestamp::now().as_second()));
    params.distinguished_name = subject;
    for name in std::iter::once(host).chain(names.iter().map(String::as_str)) {
        if let Ok(ip) = name.parse::<IpAddr>() {
            params.subject_alt_names.push(SanType::IpAddress(ip));
        } else {
            params.subject_alt_names.push(SanType::DnsName(name.try_into()?));
        }
    }
    params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let start = jiff::Timestamp::now().as_second() - 3600;
    let date = |s: i64| jiff::Timestamp::from_second(s).map(|t| t.to_zoned(jiff::tz::TimeZone::UTC).date());
    if let (Ok(from), Ok(to)) = (date(start), date(start + 366 * 86_400)) {
        let at = |d: jiff::civil::Date| {
            rcgen::date_time_ymd(
                i32::from(d.year()),
                u8::try_from(d.month()).unwrap_or(1),
                u8::try_from(d.day()).unwrap_or(1),
            )
        };
        params.not_before = at(from);
        params.not_after = at(to);
    }
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(PemPair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// A new key and a signing request for it.
pub struct SigningRequest {
    /// PEM request.
    pub request: String,
    /// PEM key.
    pub key: String,
}

/// A signing request with a subject and alternative names, as kubelets send them.
pub fn signing_request(
    common_name: &str,
    organizations: &[&str],
    names: &[String],
    addresses: &[IpAddr],
) -> Result<SigningRequest, CertError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    for organization in organizations {
        subject.push(DnType::OrganizationName, *organization);
    }
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    for name in names {
        params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
    }
    params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
    let key = KeyPair::generate()?;
    let request = params.serialize_request(&key)?;
    Ok(SigningRequest { request: request.pem()?, key: key.serialize_pem() })
}

/// Takes any client certificate whose key the peer owns; whom it identifies is decided by [`crate::authn::X509`].
#[derive(Debug)]
pub struct AnyClient(Arc<CryptoProvider>);

impl AnyClient {
    /// With the process-wide provider.
    pub fn new() -> Self {
        Self(provider())
    }
}

impl Default for AnyClient {
    fn default() -> Self {
        Self::new()
    }
}

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[TlsName] {
        &[]
    }
    fn client_auth_mandatory(&self) -> bool {
        false
    }
    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature::tls12(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature::tls13(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A server configuration: the reloading key, optional client certificates, HTTP/2 and HTTP/1.1.
pub fn server_config(
    key: Arc<dyn rustls::server::ResolvesServerCert>,
    http2: bool,
) -> Result<rustls::ServerConfig, CertError> {
    server_config_with(key, http2, &TlsOptions::default())
}

/// [`server_config`] with chosen versions and suites.
pub fn server_config_with(
    key: Arc<dyn rustls::server::ResolvesServerCert>,
    http2: bool,
    options: &TlsOptions,
) -> Result<rustls::ServerConfig, CertError> {
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&options.provider))
        .with_protocol_versions(options.versions)?
        .with_client_cert_verifier(Arc::new(AnyClient::new()))
        .with_cert_resolver(key);
    config.alpn_protocols = if http2 { vec![b"h2".to_vec(), b"http/1.1".to_vec()] } else { vec![b"http/1.1".to_vec()] };
    Ok(config)
}

/// Authorities that a client trusts.
#[derive(Debug)]
pub enum Trust {
    /// The system's authorities.
    System,
    /// The given authorities.
    Authorities(Authorities),
    /// The authorities in a file, which may change.
    File(PathBuf),
    /// Any.
    Anybody,
}

/// A client configuration that trusts so, with a client pair that may change while connections come and go.
pub fn client_tls(trust: Trust, pair: Option<Arc<ReloadingKey>>) -> Result<rustls::ClientConfig, CertError> {
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::System => Arc::new(system_authorities()),
        Trust::Authorities(authorities) => Arc::new(authorities),
        Trust::File(path) => Arc::new(ReloadingRoots::new(path)?),
        Trust::Anybody => Arc::new(AnyServer::new()),
    };
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match pair {
        Some(pair) => builder.with_client_cert_resolver(pair),
        None => builder.with_no_client_auth(),
    };
    // A session that is taken up again is that of the pair and the authorities it began with, also after these have
    // changed. Go's clients begin anew each time.
    config.resumption = Resumption::disabled();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_signed_pair_serves() {
        let pair = self_signed("node1", &["127.0.0.1".parse().expect("ip")], &["localhost".into()]).expect("pair");
        let key = certified_key(pair.certificate.as_bytes(), pair.key.as_bytes()).expect("key");
        assert_eq!(key.cert.len(), 1);
        assert!(root_store(pair.certificate.as_bytes()).is_ok());
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let pair = || self_signed("node1", &[], &[]).expect("pair");
        let (one, other) = (pair(), pair());
        let refused = certified_key(one.certificate.as_bytes(), other.key.as_bytes()).expect_err("a mismatch");
        assert_eq!(refused.to_string(), "tls: private key does not match public key");
    }

    /// A new key pair is shown at the next connection, also to a client that was connected before.
    #[test]
    fn a_new_pair_is_shown_at_the_next_connection() {
        let pair = |name: &str| self_signed(name, &[], &[]).expect("a pair");
        let serving = pair("server");
        let keys = ReloadingKey::from_pem(&serving).expect("a key");
        let server = Arc::new(server_config(Arc::new(keys), false).expect("a server"));
        let (first, second) = (pair("first"), pair("second"));
        let shown = Arc::new(ReloadingKey::from_pem(&first).expect("a key"));
        let client = Arc::new(client_tls(Trust::Anybody, Some(Arc::clone(&shown))).expect("a client"));
        let seen = || {
            let name = "server".try_into().expect("a name");
            let mut here = rustls::ClientConnection::new(Arc::clone(&client), name).expect("a connection");
            let mut there = rustls::ServerConnection::new(Arc::clone(&server)).expect("a connection");
            while here.wants_write() || there.wants_write() {
                let (mut up, mut down) = (Vec::new(), Vec::new());
                while here.wants_write() {
                    here.write_tls(&mut up).expect("written");
                }
                there.read_tls(&mut up.as_slice()).expect("read");
                there.process_new_packets().expect("understood");
                while there.wants_write() {
                    there.write_tls(&mut down).expect("written");
                }
                here.read_tls(&mut down.as_slice()).expect("read");
                here.process_new_packets().expect("understood");
            }
            there.peer_certificates().expect("a certificate")[0].clone().into_owned()
        };
        let leaf = |pair: &PemPair| certificates(pair.certificate.as_bytes()).expect("a certificate").remove(0);
        assert_eq!(seen(), leaf(&first));
        shown.replace(&second).expect("replaced");
        assert_eq!(seen(), leaf(&second));
    }

    #[test]
    fn request_names_its_subject() {
        let request = signing_request("system:node:n1", &["system:nodes"], &[], &[]).expect("request");
        assert!(request.request.starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
    }

    #[test]
    fn garbage_is_refused() {
        assert!(certificates(b"nonsense").is_err());
        assert!(private_key(b"nonsense").is_err());
    }
}
