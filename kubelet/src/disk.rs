//! Numbers of file systems.

use std::path::Path;

/// A file system's size and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes.
    pub capacity: u64,
    /// Bytes that users may still write.
    pub available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes left.
    pub inodes_free: u64,
}

/// The file system that holds a path.
pub fn disk(path: &Path) -> Option<Disk> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    let block = stat.fragment_size();
    Some(Disk {
        capacity: stat.blocks() * block,
        available: stat.blocks_available() * block,
        inodes: stat.files(),
        inodes_free: stat.files_free(),
    })
}
