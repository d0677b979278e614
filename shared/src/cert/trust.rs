//! Trusted authorities of a client: the system's, or a bundle that is read again when its file changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::time::Instant;

use super::{Authorities, CertError, certificates, read};

/// Bundles of system authorities by distribution; the first that exists counts, as in Go's crypto/x509.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Interval at which a bundle file is checked, at handshakes.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The authorities of the system, or those in the file that `SSL_CERT_FILE` names. None when there is no such file:
/// then nobody is trusted.
pub(super) fn system_authorities() -> Authorities {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let file = named.or_else(|| SYSTEM_BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()));
    let pem = file.and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
    // A system's bundle may hold what rustls does not take; the others still count.
    Authorities::readable(certificates(&pem).unwrap_or_default())
}

/// Trusts a bundle's authorities, and looks at its file again once a minute. A bad file changes nothing.
pub struct ReloadingRoots {
    path: PathBuf,
    current: ArcSwap<Authorities>,
    looked: Mutex<Instant>,
}

impl std::fmt::Debug for ReloadingRoots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadingRoots").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ReloadingRoots {
    /// # Errors
    /// The file cannot be read or holds no certificates now.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, CertError> {
        let path = path.into();
        let current = ArcSwap::new(authorities(&path)?);
        Ok(Self { path, current, looked: Mutex::new(Instant::now()) })
    }

    fn look(&self) {
        let Some(mut looked) = self.looked.try_lock() else { return };
        if looked.elapsed() < LOOK_EVERY {
            return;
        }
        *looked = Instant::now();
        match authorities(&self.path) {
            Ok(fresh) => self.current.store(fresh),
            Err(e) => tracing::warn!("Keeping the previous certificate authorities: {e}"),
        }
    }
}

fn authorities(path: &Path) -> Result<Arc<Authorities>, CertError> {
    Ok(Arc::new(Authorities::from_pem(&read(path)?)?))
}

impl ServerCertVerifier for ReloadingRoots {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.look();
        self.current.load().verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::self_signed;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn another_bundle_counts_after_a_minute_and_a_bad_one_never() {
        let folder = std::env::temp_dir().join(format!("trust-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("ca.crt");
        let pair = || self_signed("server", &[], &["server".to_owned()]).expect("a pair");
        let (first, second) = (pair(), pair());
        std::fs::write(&path, &first.certificate).expect("written");
        let roots = ReloadingRoots::new(&path).expect("good now");
        let trusted = |pem: &str| {
            let leaf = certificates(pem.as_bytes()).expect("a certificate").remove(0);
            let name = ServerName::try_from("server").expect("a name");
            roots.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now()).is_ok()
        };
        assert_eq!((trusted(&first.certificate), trusted(&second.certificate)), (true, false));
        std::fs::write(&path, "nonsense").expect("written");
        tokio::time::advance(LOOK_EVERY).await;
        assert!(trusted(&first.certificate));
        std::fs::write(&path, &second.certificate).expect("written");
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!((trusted(&first.certificate), trusted(&second.certificate)), (false, true));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
