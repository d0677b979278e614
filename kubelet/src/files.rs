//! Files and folders below the root directory.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Mode of the root folder and of pods' folders, as upstream makes them.
pub(crate) const PRIVATE_FOLDER: u32 = 0o750;

/// Registers a file, which must not block, so that it can be waited for.
#[allow(unsafe_code, reason = "the descriptor's registration is an unsafe call")]
pub(crate) fn pollable(file: fs::File) -> io::Result<AsyncFd<fs::File>> {
    // SAFETY: a `File` has the same descriptor until it is dropped, and `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register(file) }?)
}

/// Makes a folder, with those that it is in, which is not for every user of the node.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(folder)
}

/// Path of what is not yet a file: what a death in between leaves.
pub(crate) fn draft(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

/// Writes a document whole or not at all, as far as the disk holds what it says it does.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let draft = draft(path);
    let mut file = fs::File::create(&draft)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(draft, path)
}

/// Reads a document; none where there is no file.
///
/// # Errors
/// The file cannot be read, or is no such document.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).map(Some)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn documents_replace_what_was_there_and_leave_no_draft() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("a/b");
        make_private(&folder).expect("made");
        make_private(&folder).expect("it is there");
        let mode = fs::metadata(&folder).expect("a folder").permissions().mode();
        assert_eq!(mode & 0o007, 0, "{mode:o}");
        let path = folder.join("document");
        for number in [1, 2] {
            write_json(&path, &number).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), number.to_string());
            assert_eq!(read_json(&path).expect("read"), Some(number));
        }
        assert!(!draft(&path).exists());
        write_json(&folder.join("none/document"), &1).expect_err("no folder");
        assert_eq!(read_json::<u32>(&folder.join("none/document")).expect("nothing"), None);
        read_json::<String>(&path).expect_err("a number");
        read_json::<u32>(&folder).expect_err("a folder");
    }
}
