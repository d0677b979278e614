//! Signatures of handshakes. webpki knows certificates of version 3 only; for the others, which Go knows too, their
//! key alone is looked at.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::{CertificateError, DigitallySignedStruct, Error};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

/// A certificate older than version 3.
fn old<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    (parsed.version() != X509Version::V3).then_some(parsed)
}

/// Whether the owner of a certificate signed a handshake of TLS 1.2.
pub(super) fn tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    known: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(old) = old(certificate) else {
        return rustls::crypto::verify_tls12_signature(message, certificate, signed, known);
    };
    let key = &old.public_key().subject_public_key.data;
    let mut ways = known.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme).flat_map(|(_, ways)| *ways);
    if ways.any(|way| way.verify_signature(key, message, signed.signature()).is_ok()) {
        return Ok(HandshakeSignatureValid::assertion());
    }
    Err(Error::InvalidCertificate(CertificateError::BadSignature))
}

/// Whether the owner of a certificate signed a handshake of TLS 1.3.
pub(super) fn tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    known: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(old) = old(certificate) else {
        return rustls::crypto::verify_tls13_signature(message, certificate, signed, known);
    };
    let key = SubjectPublicKeyInfoDer::from(old.public_key().raw);
    rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signed, known)
}
