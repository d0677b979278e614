//! A serving pair that is read again when its files change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::time::Instant;

use super::{CertError, PemPair, certified_key, read};

const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(10);

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    stamp: Option<(SystemTime, SystemTime)>,
    looked: Instant,
}

/// Serves the current pair; looks at the files at most every ten seconds, on a handshake.
pub struct ReloadingKey {
    current: ArcSwap<CertifiedKey>,
    files: Option<Mutex<Files>>,
}

impl std::fmt::Debug for ReloadingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadingKey").finish_non_exhaustive()
    }
}

impl ReloadingKey {
    /// From files; both must be good now.
    pub fn from_files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, CertError> {
        let (certificate, key) = (certificate.into(), key.into());
        let current = certified_key(&read(&certificate)?, &read(&key)?)?;
        let mut files = Files { certificate, key, stamp: None, looked: Instant::now() };
        files.stamp = files.stamps();
        Ok(Self { current: ArcSwap::from_pointee(current), files: Some(Mutex::new(files)) })
    }

    /// From memory.
    pub fn from_pem(pair: &PemPair) -> Result<Self, CertError> {
        let current = certified_key(pair.certificate.as_bytes(), pair.key.as_bytes())?;
        Ok(Self { current: ArcSwap::from_pointee(current), files: None })
    }

    /// Puts another pair in place, as certificate rotation does.
    pub fn replace(&self, pair: &PemPair) -> Result<(), CertError> {
        self.current.store(Arc::new(certified_key(pair.certificate.as_bytes(), pair.key.as_bytes())?));
        Ok(())
    }

    fn look(&self) {
        let Some(files) = &self.files else { return };
        let Some(mut files) = files.try_lock() else { return };
        if files.looked.elapsed() < LOOK_EVERY {
            return;
        }
        files.looked = Instant::now();
        let stamp = files.stamps();
        if stamp.is_none() || stamp == files.stamp {
            return;
        }
        let fresh = read(&files.certificate).and_then(|c| certified_key(&c, &read(&files.key)?));
        match fresh {
            Ok(key) => {
                files.stamp = stamp;
                self.current.store(Arc::new(key));
            }
            Err(e) => tracing::warn!("Keeping the previous serving certificate: {e}"),
        }
    }
}

impl Files {
    fn stamps(&self) -> Option<(SystemTime, SystemTime)> {
        let changed = |p: &PathBuf| std::fs::metadata(p).and_then(|m| m.modified()).ok();
        Some((changed(&self.certificate)?, changed(&self.key)?))
    }
}

impl ResolvesServerCert for ReloadingKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.look();
        Some(self.current.load_full())
    }
}
