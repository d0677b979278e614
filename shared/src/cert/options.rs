//! `--tls-min-version` and `--tls-cipher-suites` in rustls' terms.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::provider;

/// A TLS setting that upstream refuses as well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such suite.
    #[error("Cipher suite {0} not supported or doesn't exist")]
    Suite(String),
    /// No such version.
    #[error("unknown tls version {}", crate::status::go_quote(.0))]
    Version(String),
}

/// Suites Go knows that are older than what rustls is willing to speak.
const OLD: [&str; 11] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

fn go_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
static NEWEST: [&SupportedProtocolVersion; 1] = [&TLS13];

/// TLS versions and cipher suites of a server.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self { provider: provider(), versions: &BOTH }
    }
}

impl TlsOptions {
    /// From the flags' values; empty ones mean the defaults. Suites of TLS 1.3 are always on, as in Go.
    pub fn new(min_version: &str, suites: &[String]) -> Result<Self, OptionError> {
        let versions: &'static [&'static SupportedProtocolVersion] = match min_version {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => &BOTH,
            "VersionTLS13" => &NEWEST,
            other => return Err(OptionError::Version(other.to_owned())),
        };
        let mut provider = rustls::crypto::ring::default_provider();
        if !suites.is_empty() {
            let wanted = |s: &SupportedCipherSuite| {
                let name = go_name(s);
                suites.iter().any(|w| {
                    *w == name || w.strip_suffix("_SHA256") == Some(&name) || name.strip_suffix("_SHA256") == Some(w)
                })
            };
            for name in suites {
                let known = provider.cipher_suites.iter().any(|s| {
                    let own = go_name(s);
                    own == *name || own.strip_suffix("_SHA256") == Some(name)
                });
                if !known && OLD.contains(&name.as_str()) {
                    tracing::warn!(suite = name.as_str(), "Cipher suite is insecure and not offered");
                } else if !known {
                    return Err(OptionError::Suite(name.clone()));
                }
            }
            provider.cipher_suites.retain(|s| s.tls13().is_some() || wanted(s));
        }
        Ok(Self { provider: Arc::new(provider), versions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let one = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()];
        let options = TlsOptions::new("VersionTLS12", &one).expect("options");
        let old: Vec<String> =
            options.provider.cipher_suites.iter().filter(|s| s.tls13().is_none()).map(go_name).collect();
        assert_eq!(old, one);
        assert_eq!(TlsOptions::new("VersionTLS13", &[]).expect("options").versions.len(), 1);
        assert_eq!(TlsOptions::new("x", &[]).err(), Some(OptionError::Version("x".into())));
        assert_eq!(TlsOptions::new("", &["X".into()]).err(), Some(OptionError::Suite("X".into())));
    }
}
