//! Certificates to trust, as clients' configurations name them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Why these (in base64) are no certificates to trust; those that are empty are the system's.
pub(super) fn refused(encoded: &str) -> Option<String> {
    let pem = STANDARD.decode(encoded).unwrap_or_default();
    let why = (!pem.is_empty()).then(|| untrusted(&pem)).flatten()?;
    Some(format!("unable to load root certificates: {why}"))
}

/// One good certificate is enough; without any the first thing that is wrong counts.
fn untrusted(pem: &[u8]) -> Option<&'static str> {
    let blocks = x509_parser::pem::Pem::iter_from_buffer(pem);
    let mut why = None;
    for block in blocks {
        let found = match &block {
            Err(_) => "unable to parse bytes as PEM block",
            Ok(block) if block.label != "CERTIFICATE" => continue,
            Ok(block) if block.parse_x509().is_ok() => return None,
            Ok(_) => "failed to parse certificate: x509: malformed certificate",
        };
        why = why.or(Some(found));
    }
    let empty = !pem.windows(11).any(|at| at == b"-----BEGIN ");
    why.or(Some(if empty { "unable to parse bytes as PEM block" } else { "no valid certificate authority data seen" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_that_are_none() {
        let block = |label: &str, inside: &str| format!("-----BEGIN {label}-----\n{inside}\n-----END {label}-----\n");
        let good = shared::cert::self_signed("ca", &[], &[]).expect("a pair").certificate;
        for (pem, want) in [
            (good.clone(), None),
            (format!("{}{good}", block("CERTIFICATE", "AAAA")), None),
            ("some".to_owned(), Some("unable to parse bytes as PEM block")),
            (block("CERTIFICATE", "AAAA"), Some("failed to parse certificate: x509: malformed certificate")),
            (block("PRIVATE KEY", "AAAA"), Some("no valid certificate authority data seen")),
        ] {
            let want = want.map(|why| format!("unable to load root certificates: {why}"));
            assert_eq!(refused(&STANDARD.encode(&pem)), want, "{pem}");
        }
        assert_eq!(refused(""), None);
    }
}
