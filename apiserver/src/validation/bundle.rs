//! Certificates to trust, as clients' configurations name them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Explains why a CA bundle (base64) is refused; an empty one means the system's.
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
            Ok(block) => malformed(&block.contents),
        };
        why = why.or(Some(found));
    }
    let empty = !pem.windows(11).any(|at| at == b"-----BEGIN ");
    why.or(Some(if empty { "unable to parse bytes as PEM block" } else { "no valid certificate authority data seen" }))
}

/// The first element of DER: its kind, what is in it, and what is behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, length, rest) = match der {
        [kind, short @ 0..=0x7f, rest @ ..] => (*kind, usize::from(*short), rest),
        [kind, long @ 0x81..=0x83, rest @ ..] => {
            let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (*kind, bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (inside, behind) = rest.split_at_checked(length)?;
    Some((kind, inside, behind))
}

/// Go's error for a malformed certificate: the first of its parts that cannot be parsed.
fn malformed(der: &[u8]) -> &'static str {
    const SEQUENCE: u8 = 0x30;
    const INTEGER: u8 = 2;
    const VERSION: u8 = 0xa0;
    let Some((SEQUENCE, certificate, behind)) = element(der) else {
        return "failed to parse certificate: x509: malformed certificate";
    };
    if !behind.is_empty() {
        return "failed to parse certificate: x509: trailing data";
    }
    let Some((SEQUENCE, mut rest, _)) = element(certificate) else {
        return "failed to parse certificate: x509: malformed tbs certificate";
    };
    if rest.first() == Some(&VERSION) {
        let Some((_, _, behind)) = element(rest) else {
            return "failed to parse certificate: x509: malformed version";
        };
        rest = behind;
    }
    for (kind, wrong) in [
        (INTEGER, "failed to parse certificate: x509: malformed serial number"),
        (SEQUENCE, "failed to parse certificate: x509: malformed signature algorithm identifier"),
        (SEQUENCE, "failed to parse certificate: x509: malformed issuer"),
        (SEQUENCE, "failed to parse certificate: x509: malformed validity"),
        (SEQUENCE, "failed to parse certificate: x509: malformed issuer"),
        (SEQUENCE, "failed to parse certificate: x509: malformed spki"),
    ] {
        match element(rest) {
            Some((found, _, behind)) if found == kind => rest = behind,
            _ => return wrong,
        }
    }
    "failed to parse certificate: x509: malformed certificate"
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

    #[test]
    fn the_part_that_is_wrong_is_named() {
        let pem = shared::cert::self_signed("ca", &[], &[]).expect("a pair").certificate;
        let der = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("a certificate").1.contents;
        assert_eq!(malformed(&der[..der.len() - 1]), "failed to parse certificate: x509: malformed certificate");
        assert_eq!(malformed(&[&der[..], &[0]].concat()), "failed to parse certificate: x509: trailing data");
        // The head, the first part's, the version.
        for (at, part) in [(4, "tbs certificate"), (13, "serial number")] {
            let mut der = der.clone();
            der[at] = 0;
            assert_eq!(malformed(&der), format!("failed to parse certificate: x509: malformed {part}"), "{at}");
        }
        for (der, part) in
            [(&[0x30, 0][..], "tbs certificate"), (&[0x30, 2, 0x30, 0], "serial number"), (&[], "certificate")]
        {
            assert_eq!(malformed(der), format!("failed to parse certificate: x509: malformed {part}"));
        }
    }
}
