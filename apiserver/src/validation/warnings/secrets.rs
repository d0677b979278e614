//! Secrets for TLS: a pair that no server could use is stored all the same, and said to be useless in the words of Go's
//! own library.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::Value;
use shared::cert::{self, CertError};
use x509_parser::parse_x509_certificate;
use x509_parser::pem::Pem;

use crate::rules::options::Warnings;
use crate::rules::tree::{get, text};

/// See the module.
pub(crate) fn tls(new: &Value, out: &mut Warnings) {
    if text(new, "type") != "kubernetes.io/tls" {
        return;
    }
    let part = |key: &str| STANDARD.decode(text(get(new, "data"), key)).unwrap_or_default();
    if let Err(why) = usable(&part("tls.crt"), &part("tls.key")) {
        out.push(why.to_string());
    }
}

/// Fault of a pair, in the words of Go's `tls.X509KeyPair`. Types of PEM blocks are as Go shows a list.
#[derive(Debug, thiserror::Error)]
enum PairFault {
    #[error("tls: failed to find any PEM data in certificate input")]
    NoCertificate,
    #[error(
        "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
    )]
    KeyAsCertificate,
    #[error(
        "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: {0}"
    )]
    OtherCertificate(String),
    #[error("tls: failed to find any PEM data in key input")]
    NoKey,
    #[error("tls: found a certificate rather than a key in the PEM for the private key")]
    CertificateAsKey,
    #[error(
        "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: {0}"
    )]
    OtherKey(String),
    #[error("x509: malformed certificate")]
    Malformed,
    #[error(transparent)]
    Mismatch(CertError),
    #[error("tls: failed to parse private key")]
    UnreadableKey,
}

fn blocks(text: &[u8]) -> Vec<Pem> {
    Pem::iter_from_buffer(text).map_while(Result::ok).collect()
}

/// Labels, as Go shows a list.
fn labels(blocks: &[Pem]) -> String {
    let all: Vec<&str> = blocks.iter().map(|b| b.label.as_str()).collect();
    format!("[{}]", all.join(" "))
}

fn is_key(block: &Pem) -> bool {
    block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY")
}

fn usable(certificate: &[u8], key: &[u8]) -> Result<(), PairFault> {
    let (certificates, keys) = (blocks(certificate), blocks(key));
    let Some(leaf) = certificates.iter().find(|b| b.label == "CERTIFICATE") else {
        return Err(match certificates.as_slice() {
            [] => PairFault::NoCertificate,
            [one] if one.label.ends_with("PRIVATE KEY") => PairFault::KeyAsCertificate,
            all => PairFault::OtherCertificate(labels(all)),
        });
    };
    if !keys.iter().any(is_key) {
        return Err(match keys.as_slice() {
            [] => PairFault::NoKey,
            [one] if one.label == "CERTIFICATE" => PairFault::CertificateAsKey,
            all => PairFault::OtherKey(labels(all)),
        });
    }
    if parse_x509_certificate(&leaf.contents).is_err() {
        return Err(PairFault::Malformed);
    }
    match cert::certified_key(certificate, key) {
        Ok(_) => Ok(()),
        Err(mismatch @ CertError::Mismatch) => Err(PairFault::Mismatch(mismatch)),
        Err(_) => Err(PairFault::UnreadableKey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_cannot_be_used() {
        let pair = || cert::self_signed("a", &[], &[]).expect("a pair");
        let (one, other) = (pair(), pair());
        let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for (certificate, key, why) in [
            (one.certificate.as_str(), one.key.as_str(), None),
            ("x", "y", Some("tls: failed to find any PEM data in certificate input")),
            (&one.certificate, "", Some("tls: failed to find any PEM data in key input")),
            (&one.certificate, &other.key, Some("tls: private key does not match public key")),
            (&one.certificate, no_key, Some("tls: failed to parse private key")),
            (odd, &one.key, Some("x509: malformed certificate")),
            (
                &one.key,
                &one.key,
                Some(
                    "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
                ),
            ),
            (
                &one.certificate,
                &one.certificate,
                Some("tls: found a certificate rather than a key in the PEM for the private key"),
            ),
        ] {
            let fault = usable(certificate.as_bytes(), key.as_bytes()).err().map(|e| e.to_string());
            assert_eq!(fault.as_deref(), why);
        }
    }
}
