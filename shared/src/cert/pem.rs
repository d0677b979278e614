//! Certificates and keys in PEM, and the provider of their cryptography.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::os::FileError;

/// Errors of certificates.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not PEM, or the wrong kind.
    #[error("data does not contain any valid RSA or ECDSA certificates: {0}")]
    Pem(String),
    /// The key is that of another certificate; text of Go's `tls.X509KeyPair`.
    #[error("tls: private key does not match public key")]
    Mismatch,
    /// rustls refused it.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    /// Could not be generated.
    #[error("unable to generate certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// The process-wide crypto provider.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Reads a file, naming it in the error.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>, CertError> {
    crate::os::read(&path.as_ref().to_string_lossy()).map_err(CertError::from)
}

/// All certificates of a PEM text.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|e| CertError::Pem(e.to_string()))?;
    if all.is_empty() { Err(CertError::Pem("no certificate".into())) } else { Ok(all) }
}

/// Certificates as a PEM text.
pub fn to_pem(all: &[CertificateDer<'_>]) -> String {
    let mut pem = String::new();
    for certificate in all {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = base64::engine::general_purpose::STANDARD.encode(certificate);
        for line in text.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    pem
}

/// The first private key of a PEM text.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, CertError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|e| CertError::Pem(e.to_string()))
}

/// A trust store from PEM.
pub fn root_store(pem: &[u8]) -> Result<RootCertStore, CertError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store.add(certificate)?;
    }
    Ok(store)
}

/// Joins a certificate chain and its key, ready to serve. Answers for Go's `tls.X509KeyPair`.
///
/// # Errors
/// Neither is PEM of its kind, or the key belongs to another certificate: files of a rotation that is half done.
pub fn certified_key(cert_pem: &[u8], key_pem: &[u8]) -> Result<CertifiedKey, CertError> {
    let key = rustls::crypto::ring::sign::any_supported_type(&private_key(key_pem)?)?;
    let pair = CertifiedKey::new(certificates(cert_pem)?, key);
    // Other errors mean that rustls cannot tell, as for a certificate of X.509 version 1, which Go serves.
    match pair.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(CertError::Mismatch),
        _ => Ok(pair),
    }
}

/// Certificate and key in PEM.
#[derive(Clone)]
pub struct PemPair {
    /// Certificate chain.
    pub certificate: String,
    /// Private key.
    pub key: String,
}
