//! Puts a set of files into a volume in one step, as readers see it: all files of a
//! version lie in a folder of their own, `..data` links to the folder, every visible name
//! links through `..data`, and switching versions is one rename.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use crate::trees;
use jiff::Timestamp;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Projection {
    /// Content.
    pub data: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner, when not root.
    pub uid: Option<u32>,
}

/// Files by their path relative to the volume.
pub(super) type Payload = BTreeMap<String, Projection>;

/// Brings `volume` to hold exactly `payload`. Does nothing when it already does.
///
/// # Errors
/// A path is not a relative one below the volume, or a file cannot be written; the old
/// version then stays.
pub(super) fn write(volume: &Path, payload: &Payload, now: Timestamp) -> io::Result<()> {
    for path in payload.keys() {
        check(path)?;
    }
    let old = fs::read_link(volume.join(DATA)).ok();
    if let Some(old) = &old
        && current(&volume.join(old))? == *payload
    {
        return link_names(volume, payload);
    }
    let version = version_name(volume, now);
    if let Err(error) = write_version(&volume.join(&version), payload) {
        // Each attempt would leave another one, in memory that nobody is charged for.
        trees::remove(&volume.join(&version)).ok();
        return Err(error);
    }
    fs::remove_file(volume.join(NEW_DATA)).ok();
    symlink(&version, volume.join(NEW_DATA))?;
    fs::rename(volume.join(NEW_DATA), volume.join(DATA))?;
    link_names(volume, payload)?;
    remove_stale(volume, payload, &version)
}

fn check(path: &str) -> io::Result<()> {
    let invalid =
        |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path {path:?}: {reason}")));
    if path.is_empty() {
        return invalid("must not be empty");
    }
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if !plain {
        return invalid("must be relative and stay below the volume");
    }
    if path.starts_with("..") {
        return invalid("must not start with '..'");
    }
    Ok(())
}

/// `..2006_01_02_15_04_05.` and a number that is free.
fn version_name(volume: &Path, now: Timestamp) -> String {
    let stamp = now.strftime("..%Y_%m_%d_%H_%M_%S");
    let nanos = now.subsec_nanosecond().unsigned_abs();
    let free = |number: &u32| !volume.join(format!("{stamp}.{number:09}")).exists();
    let number = (nanos..).find(free).unwrap_or(nanos);
    format!("{stamp}.{number:09}")
}

fn write_version(folder: &Path, payload: &Payload) -> io::Result<()> {
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for (path, projection) in payload {
        let file = folder.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&file, &projection.data)?;
        // Not by the open mode: that one is cut by the umask.
        fs::set_permissions(&file, fs::Permissions::from_mode(projection.mode))?;
        if projection.uid.is_some() {
            chown(&file, projection.uid, None)?;
        }
    }
    Ok(())
}

/// Reads the contents of the current version; ownership is not compared, it follows the pod.
fn current(folder: &Path) -> io::Result<Payload> {
    let mut payload = Payload::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(relative) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder.join(&relative)) else { return Ok(Payload::new()) };
        for entry in entries {
            let entry = entry?;
            let path = relative.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
                continue;
            }
            let metadata = entry.metadata()?;
            let uid = Some(std::os::unix::fs::MetadataExt::uid(&metadata)).filter(|uid| *uid != 0);
            let mode = metadata.permissions().mode() & 0o777;
            let projection = Projection { data: fs::read(entry.path())?, mode, uid };
            payload.insert(path.to_string_lossy().into_owned(), projection);
        }
    }
    Ok(payload)
}

fn visible(payload: &Payload) -> impl Iterator<Item = &str> {
    payload.keys().map(|path| path.split('/').next().unwrap_or(path))
}

fn link_names(volume: &Path, payload: &Payload) -> io::Result<()> {
    for name in visible(payload) {
        let link = volume.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), link)?;
        }
    }
    Ok(())
}

fn remove_stale(volume: &Path, payload: &Payload, version: &str) -> io::Result<()> {
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let kind = entry.file_type()?;
        if name.starts_with("..") {
            if kind.is_dir() && name != version {
                trees::remove(&entry.path())?;
            }
        } else if kind.is_symlink() && !visible(payload).any(|known| known == name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |data: &str| Projection { data: data.into(), mode: 0o644, uid: None };
        files.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect()
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ironclad-writer-{name}-{}", std::process::id()));
        crate::trees::remove(&folder).ok();
        fs::create_dir_all(&folder).expect("folder");
        folder
    }

    #[test]
    fn a_new_version_replaces_the_old_one_as_a_whole() {
        let volume = folder("switch");
        let now = Timestamp::UNIX_EPOCH;
        write(&volume, &payload(&[("a", "1"), ("sub/b", "2")]), now).expect("first");
        assert_eq!(fs::read_to_string(volume.join("sub/b")).expect("b"), "2");
        let first = fs::read_link(volume.join(DATA)).expect("link");
        assert_eq!(first, Path::new("..1970_01_01_00_00_00.000000000"));

        write(&volume, &payload(&[("a", "1"), ("sub/b", "2")]), now).expect("same");
        assert_eq!(fs::read_link(volume.join(DATA)).expect("link"), first, "an equal payload changes nothing");

        write(&volume, &payload(&[("a", "3")]), now).expect("second");
        assert_eq!(fs::read_to_string(volume.join("a")).expect("a"), "3");
        assert!(!volume.join("sub").exists() && !volume.join(&first).exists());
        crate::trees::remove(&volume).expect("clean");
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        let volume = folder("paths");
        for path in ["", "/etc/passwd", "../x", "a/../../x", "..data"] {
            assert!(write(&volume, &payload(&[(path, "x")]), Timestamp::UNIX_EPOCH).is_err(), "{path}");
        }
        crate::trees::remove(&volume).expect("clean");
    }
}
