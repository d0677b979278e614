//! Certificate errors in the words of Go's crypto/tls: operators know those, and clients look for them.

use std::io;

use rustls::CertificateError as C;

/// Describes a failed handshake with `server`, the name that was dialed.
pub fn refused(server: &str, error: &io::Error) -> String {
    refusal(server, error).unwrap_or_else(|| error.to_string())
}

/// Describes why the certificate of `server` was refused; `None` where the error is about no certificate.
pub(crate) fn refusal(server: &str, error: &io::Error) -> Option<String> {
    // What an error of this kind was made of is not its source.
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.and_then(|inner| words(server, inner))
}

fn words(server: &str, error: &rustls::Error) -> Option<String> {
    let rustls::Error::InvalidCertificate(why) = error else { return None };
    let text = match why {
        C::UnknownIssuer => "x509: certificate signed by unknown authority".to_owned(),
        C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. } => {
            "x509: certificate has expired or is not yet valid".to_owned()
        }
        C::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!("x509: certificate is valid for {}, not {server}", names.join(", "))
        }
        C::NotValidForName | C::NotValidForNameContext { .. } => {
            format!("x509: certificate is not valid for any names, but wanted to match {server}")
        }
        other => format!("x509: {other}"),
    };
    Some(format!("tls: failed to verify certificate: {text}"))
}

/// `DnsName("a.b")` without what is around it.
fn bare(name: &str) -> &str {
    name.split_once("(\"").map_or(name, |(_, rest)| rest.trim_end_matches("\")"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_refused_in_gos_words() {
        let expected = rustls_pki_types::ServerName::try_from("web").expect("a name");
        let names = |presented: &[&str]| C::NotValidForNameContext {
            expected: expected.clone(),
            presented: presented.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (why, want) in [
            (C::UnknownIssuer, "certificate signed by unknown authority"),
            (C::Expired, "certificate has expired or is not yet valid"),
            (names(&["DnsName(\"a\")", "DnsName(\"b\")"]), "certificate is valid for a, b, not web"),
            (names(&[]), "certificate is not valid for any names, but wanted to match web"),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(why));
            assert_eq!(refused("web", &error), format!("tls: failed to verify certificate: x509: {want}"));
        }
        let other = io::Error::other("EOF");
        assert_eq!(refused("web", &other), "EOF");
    }
}
