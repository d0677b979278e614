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

/// Verifies the signature of a TLS 1.2 handshake.
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

/// Verifies the signature of a TLS 1.3 handshake.
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;

    use super::super::{
        Authorities, PemPair, ReloadingKey, TlsOptions, Trust, client_tls, self_signed, server_config_with,
    };

    /// Lets two ends shake hands in memory; the certificate that the server was shown.
    fn shown(server: rustls::ServerConfig, client: rustls::ClientConfig) -> Option<Vec<u8>> {
        let name = "localhost".try_into().expect("a name");
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).expect("a client");
        let mut server = rustls::ServerConnection::new(Arc::new(server)).expect("a server");
        let carry = |from: &mut dyn FnMut(&mut dyn Write), to: &mut dyn FnMut(&mut dyn Read)| {
            let mut bytes = Vec::new();
            from(&mut bytes);
            to(&mut &*bytes);
        };
        for _ in 0..4 {
            carry(&mut |out| drop(client.write_tls(out)), &mut |read| drop(server.read_tls(read)));
            server.process_new_packets().expect("a good client");
            carry(&mut |out| drop(server.write_tls(out)), &mut |read| drop(client.read_tls(read)));
            client.process_new_packets().expect("a good server");
        }
        server.peer_certificates().and_then(|all| all.first()).map(|leaf| leaf.to_vec())
    }

    #[test]
    fn clients_with_certificates_of_version_1_shake_hands() {
        let jane = PemPair {
            certificate: include_str!("../../testdata/version1/jane.crt").to_owned(),
            key: include_str!("../../testdata/version1/jane.key").to_owned(),
        };
        let pair = self_signed("localhost", &[], &[]).expect("a pair");
        const VERSIONS: [&[&rustls::SupportedProtocolVersion]; 2] =
            [&[&rustls::version::TLS12], &[&rustls::version::TLS13]];
        for versions in VERSIONS {
            let key = Arc::new(ReloadingKey::from_pem(&pair).expect("a key"));
            let options = TlsOptions { versions, ..TlsOptions::default() };
            let server = server_config_with(key, false, &options).expect("a server");
            let trust = Trust::Authorities(Authorities::from_pem(pair.certificate.as_bytes()).expect("trust"));
            let own = Arc::new(ReloadingKey::from_pem(&jane).expect("a key"));
            let client = client_tls(trust, Some(own)).expect("a client");
            let certificate = super::super::certificates(jane.certificate.as_bytes()).expect("a certificate").remove(0);
            assert_eq!(shown(server, client).as_deref(), Some(certificate.as_ref()));
        }
    }
}
