//! A pair that is read again when its files change, for either end of a connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::time::Instant;

use super::{CertError, PemPair, certified_key, read};

const LOOK_EVERY: Duration = Duration::from_secs(10);

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    stamp: Option<(SystemTime, SystemTime)>,
    looked: Instant,
    every: Duration,
}

/// Presents the current pair; looks at the files on a handshake, at most every ten seconds unless made otherwise.
pub struct ReloadingKey {
    current: ArcSwapOption<CertifiedKey>,
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
        let mut files = Files { certificate, key, stamp: None, looked: Instant::now(), every: LOOK_EVERY };
        files.stamp = files.stamps();
        Ok(Self { current: ArcSwapOption::from_pointee(current), files: Some(Mutex::new(files)) })
    }

    /// Reads the files at every handshake: for a client with few handshakes.
    ///
    /// # Errors
    /// As [`ReloadingKey::from_files`].
    pub fn looking_always(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, CertError> {
        let made = Self::from_files(certificate, key)?;
        if let Some(files) = &made.files {
            files.lock().every = Duration::ZERO;
        }
        Ok(made)
    }

    /// From files that may not be there yet, or not be good; nobody is shown anything until they are.
    pub fn awaited(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let (certificate, key) = (certificate.into(), key.into());
        let files = Files { certificate, key, stamp: None, looked: Instant::now(), every: LOOK_EVERY };
        Self { current: ArcSwapOption::empty(), files: Some(Mutex::new(files)) }
    }

    /// From memory.
    pub fn from_pem(pair: &PemPair) -> Result<Self, CertError> {
        let current = certified_key(pair.certificate.as_bytes(), pair.key.as_bytes())?;
        Ok(Self { current: ArcSwapOption::from_pointee(current), files: None })
    }

    /// Puts another pair in place, as certificate rotation does.
    pub fn replace(&self, pair: &PemPair) -> Result<(), CertError> {
        self.current.store(Some(Arc::new(certified_key(pair.certificate.as_bytes(), pair.key.as_bytes())?)));
        Ok(())
    }

    /// The pair as it is now; another one after a change. None only before the files that are awaited are there.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.look();
        self.current.load_full()
    }

    fn look(&self) {
        let Some(files) = &self.files else { return };
        let Some(mut files) = files.try_lock() else { return };
        if files.stamp.is_some() && files.looked.elapsed() < files.every {
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
                self.current.store(Some(Arc::new(key)));
            }
            Err(e) => tracing::warn!("Keeping the previous certificate: {e}"),
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
        self.current()
    }
}

impl ResolvesClientCert for ReloadingKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::self_signed;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changed_files_are_taken_over_and_bad_ones_are_not() {
        let folder = std::env::temp_dir().join(format!("reload-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("folder");
        let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        let mut age = 100;
        let mut put = |pair: &PemPair| {
            // Modification times must differ, however fast this runs.
            age -= 10;
            for (path, text) in [(&certificate, &pair.certificate), (&key, &pair.key)] {
                std::fs::write(path, text).expect("write");
                let file = std::fs::File::options().write(true).open(path).expect("open");
                file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).expect("time");
            }
        };
        put(&self_signed("a", &[], &[]).expect("pair"));
        let reloading = ReloadingKey::from_files(&certificate, &key).expect("loads");
        let leaf = || reloading.current.load().as_ref().and_then(|pair| pair.cert.first().cloned());
        let first = leaf();
        put(&self_signed("b", &[], &[]).expect("pair"));
        reloading.look();
        assert_eq!(leaf(), first, "too early to look");
        tokio::time::advance(LOOK_EVERY * 2).await;
        reloading.look();
        let second = leaf();
        assert_ne!(second, first);
        let half_written = PemPair { key: "nonsense".into(), ..self_signed("c", &[], &[]).expect("pair") };
        let half_rotated = PemPair { key: self_signed("d", &[], &[]).expect("pair").key, ..half_written.clone() };
        for bad in [half_written, half_rotated] {
            put(&bad);
            tokio::time::advance(LOOK_EVERY * 2).await;
            reloading.look();
            assert_eq!(leaf(), second, "the good pair stays");
        }
        std::fs::remove_dir_all(folder).expect("clean");
    }

    #[test]
    fn awaited_files_are_shown_as_soon_as_they_are_there() {
        let file = std::env::temp_dir().join(format!("awaited-{}.pem", uuid::Uuid::new_v4()));
        let awaited = ReloadingKey::awaited(&file, &file);
        assert!(awaited.current().is_none());
        let pair = self_signed("a", &[], &[]).expect("pair");
        std::fs::write(&file, &pair.certificate).expect("write");
        assert!(awaited.current().is_none(), "the key is not there yet");
        std::fs::write(&file, format!("{}{}", pair.certificate, pair.key)).expect("write");
        assert!(awaited.current().is_some());
        std::fs::remove_file(&file).expect("clean");
        assert!(awaited.current().is_some(), "the good pair stays");
    }
}
