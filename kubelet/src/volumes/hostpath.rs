//! `hostPath` volumes: the type check, and the creation that two of the types ask for.

use super::MountedVolume;
use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Checks `path` against the declared type and makes it where the type says so.
pub(super) fn check(path: &Path, kind: &str) -> io::Result<MountedVolume> {
    if kind.is_empty() {
        let is_file = fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir());
        return Ok(mounted(path, is_file));
    }
    create(path, kind)?;
    let (matches, what): (fn(&FileType) -> bool, &str) = match kind {
        "Directory" | "DirectoryOrCreate" => (FileType::is_dir, "a directory"),
        "File" | "FileOrCreate" => (FileType::is_file, "a file"),
        "Socket" => (FileType::is_socket, "a socket file"),
        "CharDevice" => (FileType::is_char_device, "a character device"),
        "BlockDevice" => (FileType::is_block_device, "a block device"),
        other => return Err(io::Error::other(format!("{other} is an invalid volume type"))),
    };
    let kind_found = fs::metadata(path).map(|metadata| metadata.file_type());
    match kind_found {
        Ok(found) if matches(&found) => Ok(mounted(path, !found.is_dir())),
        _ => Err(io::Error::other(format!("hostPath type check failed: {} is not {what}", path.display()))),
    }
}

fn create(path: &Path, kind: &str) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    match kind {
        "DirectoryOrCreate" => {
            fs::create_dir_all(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        }
        "FileOrCreate" => {
            fs::File::create(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o644))
        }
        _ => Ok(()),
    }
}

fn mounted(path: &Path, is_file: bool) -> MountedVolume {
    MountedVolume { host_path: path.to_path_buf(), read_only: false, selinux_relabel: false, is_file, is_block: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_created_as_declared() {
        let folder = std::env::temp_dir().join(format!("ironclad-hostpath-{}", std::process::id()));
        let file = folder.join("file");
        check(&folder, "Directory").expect_err("is not there");
        check(&folder, "DirectoryOrCreate").expect("made");
        check(&file, "FileOrCreate").expect("made");
        assert!(check(&file, "").expect("any").is_file);
        let error = check(&file, "Directory").expect_err("a file is no directory");
        assert_eq!(error.to_string(), format!("hostPath type check failed: {} is not a directory", file.display()));
        check(&file, "Socket").expect_err("a file is no socket");
        crate::trees::remove(&folder).expect("clean");
    }
}
