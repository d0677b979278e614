//! Pairs in files: `<name>-<time>.pem` holds a certificate and its key, `<name>-current.pem` leads to the newest.
//! Answers for `NewFileStore` of upstream's `client-go/util/certificate`.

use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use x509_parser::extensions::GeneralName;

use crate::files::draft;

/// Mode of files that only their owner may read.
pub(super) const PRIVATE_FILE: u32 = 0o600;

/// Writes a file whole or not at all: what a full disk or a death in between cut short would be taken for the file by every
/// kubelet to come.
///
/// # Errors
/// The file cannot be written; one that was there stays as it was.
pub(super) fn write_whole(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    // A link stays one.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let draft = draft(path);
    let write = || {
        // One that a death left may be for everybody to read.
        std::fs::remove_file(&draft).ok();
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    };
    write()
        .inspect_err(|_| drop(std::fs::remove_file(&draft)))
        .with_context(|| format!("failed to write {}", path.display()))
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
        write_whole(&pair, &format!("{certificate}{key}"), PRIVATE_FILE)?;
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
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("kubelet.key");
        let mode = || std::fs::metadata(&path).expect("file").permissions().mode() & 0o777;
        // As a kubelet leaves it that dies while it writes.
        std::fs::write(draft(&path), "half").expect("written");
        std::fs::set_permissions(draft(&path), std::fs::Permissions::from_mode(0o644)).expect("mode");
        write_whole(&path, "old", PRIVATE_FILE).expect("written");
        assert_eq!((std::fs::read_to_string(&path).expect("file").as_str(), mode()), ("old", 0o600));
        // Nothing can be written in its place.
        std::fs::create_dir(draft(&path)).expect("folder");
        assert!(write_whole(&path, "new", PRIVATE_FILE).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("file"), "old");
        assert!(write_whole(&folder.path().join("no/file"), "new", PRIVATE_FILE).is_err());
    }

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
        crate::trees::remove(&folder).expect("clean");
    }
}
