//! Several serving pairs on one port, chosen by the name the client asks for.

use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{CertError, ReloadingKey, certificates, read};

/// The default pair and those for certain names (`--tls-sni-cert-key`).
#[derive(Debug)]
pub struct SniKeys {
    default: Arc<dyn ResolvesServerCert>,
    named: Vec<(Vec<String>, Arc<ReloadingKey>)>,
}

impl SniKeys {
    /// `named` holds certificate file, key file and names; without names the certificate's own are taken. Earlier
    /// entries win.
    pub fn new(
        default: Arc<dyn ResolvesServerCert>,
        named: &[(String, String, Vec<String>)],
    ) -> Result<Self, CertError> {
        let mut out = Vec::with_capacity(named.len());
        for (certificate, key, names) in named {
            let names = if names.is_empty() { own_names(&read(certificate)?)? } else { names.clone() };
            out.push((names, Arc::new(ReloadingKey::from_files(certificate, key)?)));
        }
        Ok(Self { default, named: out })
    }
}

fn own_names(pem: &[u8]) -> Result<Vec<String>, CertError> {
    let chain = certificates(pem)?;
    let Some(leaf) = chain.first() else { return Ok(Vec::new()) };
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|e| CertError::Pem(e.to_string()))?;
    let mut names: Vec<String> =
        parsed.subject().iter_common_name().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect();
    if let Ok(Some(alternatives)) = parsed.subject_alternative_name() {
        names.extend(alternatives.value.general_names.iter().filter_map(|n| match n {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    Ok(names)
}

/// Reports whether a name such as `a.example.com` is `pattern`, or below it when that is `*.example.com`.
fn covers(pattern: &str, name: &str) -> bool {
    if pattern.eq_ignore_ascii_case(name) {
        return true;
    }
    let (Some(suffix), Some((_, tail))) = (pattern.strip_prefix("*."), name.split_once('.')) else { return false };
    suffix.eq_ignore_ascii_case(tail)
}

impl ResolvesServerCert for SniKeys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = hello
            .server_name()
            .and_then(|asked| self.named.iter().find(|(names, _)| names.iter().any(|pattern| covers(pattern, asked))));
        match found {
            Some((_, key)) => key.resolve(hello),
            None => self.default.resolve(hello),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (pattern, name, want) in [
            ("a.b", "A.b", true),
            ("*.b", "a.b", true),
            ("*.b", "x.a.b", false),
            ("*.b", "b", false),
            ("a.b", "c.b", false),
        ] {
            assert_eq!(covers(pattern, name), want, "{pattern} {name}");
        }
    }
}
