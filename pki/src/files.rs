//! Files that are whole or as they were: written beside their place and moved there.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Mode of keys and kubeconfigs.
pub const SECRET: u32 = 0o600;
/// Mode of certificates.
pub const PUBLIC: u32 = 0o644;

/// The most that a certificate, key or kubeconfig may have.
const LARGEST: u64 = 4 << 20;

/// The file of a certificate or key: `stem.extension`, where the stem may have dots of its own.
pub fn extended(stem: &Path, extension: &str) -> PathBuf {
    PathBuf::from(format!("{}.{extension}", stem.display()))
}

/// Reads a file of text of at most 4 MiB.
pub fn read(path: &Path) -> Result<String> {
    let length = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    anyhow::ensure!(length <= LARGEST, "{} is larger than {LARGEST} bytes", path.display());
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file with this mode in one step: a reader sees the old text or the new one.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let beside = extended(path, "new");
    // What an interrupted run left may have another mode.
    fs::remove_file(&beside).ok();
    write_all(&beside, text, mode)
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| drop(fs::remove_file(&beside)))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn write_all(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
