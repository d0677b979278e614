//! Pairs in files: `<name>-<time>.pem` holds a certificate and its key, `<name>-current.pem` leads to the newest.

use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use x509_parser::extensions::GeneralName;

/// Writes a file that only its owner may read.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("failed to write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("failed to write {}", path.display()))
}

/// Names and validity of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaf {
    /// Seconds since 1970.
    pub(super) not_before: i64,
    /// Seconds since 1970.
    pub(super) not_after: i64,
    /// Sorted.
    pub(super) names: Vec<String>,
    /// Sorted.
    pub(super) addresses: Vec<IpAddr>,
}

/// Reads the first certificate of a PEM text.
pub(super) fn leaf(pem: &[u8]) -> Option<Leaf> {
    let chain = shared::cert::certificates(pem).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let validity = certificate.validity();
    let mut leaf = Leaf {
        not_before: validity.not_before.timestamp(),
        not_after: validity.not_after.timestamp(),
        ..Leaf::default()
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.map(|names| names.value.general_names.as_slice()).unwrap_or_default() {
        match name {
            GeneralName::DNSName(name) => leaf.names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => leaf.addresses.extend(address(bytes)),
            _ => {}
        }
    }
    leaf.names.sort();
    leaf.addresses.sort();
    Some(leaf)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The pairs of one name in a folder.
#[derive(Clone, Debug)]
pub(super) struct Store {
    folder: PathBuf,
    name: &'static str,
}

impl Store {
    pub(super) fn new(folder: &Path, name: &'static str) -> Self {
        Self { folder: folder.to_owned(), name }
    }

    /// The file that always leads to the newest pair.
    pub(super) fn current(&self) -> PathBuf {
        self.folder.join(format!("{}-current.pem", self.name))
    }

    /// The newest certificate; nothing where it or its key cannot be used.
    pub(super) fn load(&self) -> Option<Leaf> {
        let pem = std::fs::read(self.current()).ok()?;
        shared::cert::certified_key(&pem, &pem).ok()?;
        leaf(&pem)
    }

    /// Makes this the newest pair.
    ///
    /// # Errors
    /// It is no pair, or cannot be written.
    pub(super) fn update(&self, certificate: &str, key: &str, now: jiff::Timestamp) -> anyhow::Result<()> {
        shared::cert::certified_key(certificate.as_bytes(), key.as_bytes()).context("the issued certificate")?;
        std::fs::create_dir_all(&self.folder).with_context(|| format!("failed to create {}", self.folder.display()))?;
        let pair = self.folder.join(format!("{}-{}.pem", self.name, now.strftime("%Y-%m-%d-%H-%M-%S")));
        write_private(&pair, &format!("{certificate}{key}"))?;
        // In one step, so that whoever reads sees the old pair or the new one.
        let (link, fresh) = (self.current(), self.current().with_extension("updated.pem"));
        std::fs::remove_file(&fresh).ok();
        std::os::unix::fs::symlink(&pair, &fresh)?;
        std::fs::rename(&fresh, &link)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_pair_is_current() {
        let folder = std::env::temp_dir().join(format!("pairs-{}", uuid::Uuid::new_v4()));
        let store = Store::new(&folder, "kubelet-client");
        assert_eq!(store.load(), None);
        let mut now: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().expect("a time");
        for name in ["a", "b"] {
            let pair = shared::cert::self_signed(name, &["192.0.2.1".parse().expect("ip")], &[]).expect("a pair");
            store.update(&pair.certificate, &pair.key, now).expect("stored");
            let leaf = store.load().expect("a certificate");
            assert_eq!((leaf.names.as_slice(), leaf.addresses.len()), (&[name.to_owned()][..], 1));
            let file = std::fs::read_link(store.current()).expect("a link");
            let stamp = now.strftime("%Y-%m-%d-%H-%M-%S");
            assert_eq!(file, folder.join(format!("kubelet-client-{stamp}.pem")));
            now += std::time::Duration::from_secs(60);
        }
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 3, "two pairs and a link");
        let other = shared::cert::self_signed("x", &[], &[]).expect("a pair");
        assert!(store.update("nonsense", &other.key, now).is_err());
        assert_eq!(store.load().expect("the good one stays").names, ["b"]);
        std::fs::remove_dir_all(folder).expect("clean");
    }
}
