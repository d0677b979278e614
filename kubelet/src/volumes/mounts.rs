//! Mounts below the kubelet's root directory: tmpfs volumes, sub-path binds, tear-down.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::trees;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use rustix::fs::{AtFlags, FileType, Gid, OFlags};
use rustix::io::Errno;

/// Of a file that is read for its variables, so much is taken.
const LARGEST_FILE: u64 = 1 << 20;

/// Mount points at or below `folder`, deepest first, by their resolved paths: the kernel's table knows no others, and
/// `folder` may lie behind a link.
///
/// # Errors
/// The table cannot be read, so nothing is known of what is mounted.
pub(crate) fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    mount_points(folder, |point, folder| point.starts_with(folder))
}

/// Mount points that `wanted` takes, given `folder` by its resolved path; deepest first.
fn mount_points(folder: &Path, wanted: fn(&Path, &Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let folder = match fs::canonicalize(folder) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut points: Vec<PathBuf> = table.lines().filter_map(mount_point).filter(|at| wanted(at, &folder)).collect();
    points.reverse();
    Ok(points)
}

/// The fifth column, with its octal escapes undone.
fn mount_point(line: &str) -> Option<PathBuf> {
    line.split(' ').nth(4).map(|field| unescaped(field).into())
}

/// Device or other source that is mounted at a place; none where nothing is.
pub(crate) fn source(place: &Path) -> io::Result<Option<String>> {
    let place = match fs::canonicalize(place) {
        Ok(place) => place,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let line = table.lines().rfind(|line| mount_point(line).is_some_and(|point| point == place));
    // Optional columns end with a dash.
    let source = line.and_then(|line| line.split_once(" - ")?.1.split(' ').nth(1));
    Ok(source.map(unescaped))
}

fn unescaped(field: &str) -> String {
    let mut point = String::new();
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        point.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => point.push(char::from(code)),
            None => point.push('\\'),
        }
        rest = if code.is_some() { &after[3..] } else { after };
    }
    point.push_str(rest);
    point
}

pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    Ok(!mount_points(path, |point, path| point == path)?.is_empty())
}

/// Mounts a tmpfs (or another memory file system) unless something is mounted there.
pub(crate) fn memory(target: &Path, kind: &str, options: &str) -> io::Result<()> {
    if is_mount_point(target)? {
        return Ok(());
    }
    let mounted = |options: &str| {
        let options = (!options.is_empty()).then_some(options);
        mount(Some(kind), target, Some(kind), MsFlags::empty(), options).map_err(io::Error::from)
    };
    if kind != "tmpfs" {
        return mounted(options);
    }
    // What is in memory is not to be written to a swap device. Kernels before 6.4 do not know the option.
    let unswapped = if options.is_empty() { "noswap".to_owned() } else { format!("{options},noswap") };
    match mounted(&unswapped) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => mounted(options),
        other => other,
    }
}

/// Number of mount points below a folder of the file system that is mounted at another place; none where nothing is.
pub(crate) fn mounts_of_the_same(place: &Path, folder: &Path) -> io::Result<usize> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let resolved = |path: &Path| match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    };
    let (Some(place), Some(folder)) = (resolved(place)?, resolved(folder)?) else { return Ok(0) };
    let device = |line: &str| line.split(' ').nth(2).map(str::to_owned);
    let mounted = |line: &&str| mount_point(line).is_some_and(|point| point == place);
    let Some(wanted) = table.lines().rfind(mounted).and_then(device) else { return Ok(0) };
    let is_same = |line: &&str| device(line).as_ref() == Some(&wanted);
    let points = table.lines().filter(is_same).filter_map(mount_point);
    Ok(points.filter(|point| point.starts_with(&folder)).count())
}

/// Reports whether a path below the folder of pods is on the kubelet's own file system or in memory, with all that is mounted
/// below it: no server and no process has to answer for it. Asks the kernel's table alone, not the path.
pub(crate) fn is_own(pods: &Path, path: &Path) -> io::Result<bool> {
    let Ok(rest) = path.strip_prefix(pods) else { return Ok(false) };
    let device = fs::metadata(pods)?.dev();
    let path = fs::canonicalize(pods)?.join(rest);
    let own = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Ok(are_own(&fs::read_to_string("/proc/self/mountinfo")?, &path, &own))
}

/// Reports whether the mount that a path is in, and those at and below it, are of one device or in memory.
fn are_own(table: &str, path: &Path, own: &str) -> bool {
    let is_own = |line: &str| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        line.split(' ').nth(2) == Some(own) || matches!(kind, Some("tmpfs" | "hugetlbfs"))
    };
    let lines = || table.lines().filter_map(|line| Some((mount_point(line)?, is_own(line))));
    // Of several mounts at one place the last is the one that is seen.
    let above = lines().filter(|(point, _)| path.starts_with(point) && point != path);
    let around = above.fold((0, true), |(length, found), (point, is_own)| {
        let own = point.components().count();
        if own >= length { (own, is_own) } else { (length, found) }
    });
    let mut at_or_below = lines().filter(|(point, _)| point.starts_with(path));
    let is_mount_point = lines().any(|(point, _)| point == path);
    at_or_below.all(|(_, is_own)| is_own) && (is_mount_point || around.1)
}

/// Unmounts everything at and below `folder`.
pub(crate) fn unmount_all(folder: &Path) -> io::Result<()> {
    for point in below(folder)? {
        if umount2(&point, MntFlags::UMOUNT_NOFOLLOW).is_err() {
            umount2(&point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)?;
        }
    }
    Ok(())
}

/// Sub-paths that are refused, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubPathError {
    /// An absolute path.
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    /// A path that leads up.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Up(String),
}

/// A sub-path leads down from its volume; the text is the user's.
pub(crate) fn check_sub_path(sub_path: &str) -> Result<(), SubPathError> {
    if sub_path.starts_with('/') {
        return Err(SubPathError::Absolute(sub_path.to_owned()));
    }
    if sub_path.split('/').any(|part| part == "..") {
        return Err(SubPathError::Up(sub_path.to_owned()));
    }
    Ok(())
}

/// Binds `sub_path` of `volume` to `target`. The path is resolved once, by the kernel, with
/// every link kept below the volume, and what was found is bound by its descriptor: what
/// the container swaps afterwards does not matter. Missing folders are made.
pub(crate) fn bind_sub_path(volume: &Path, sub_path: &str, target: &Path) -> io::Result<()> {
    let found = open_beneath(volume, sub_path)?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let wanted = fs::metadata(&source)?;
    if is_mount_point(target)? {
        let bound = fs::metadata(target)?;
        if (bound.dev(), bound.ino()) == (wanted.dev(), wanted.ino()) {
            return Ok(());
        }
        umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    if wanted.is_dir() {
        fs::create_dir_all(target)?;
    } else {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::OpenOptions::new().create(true).append(true).open(target)?;
    }
    mount(Some(&source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(io::Error::from)
}

/// A file of a volume, none when it is not there. A container may have put anything in its place.
pub(crate) fn read_beneath(volume: &Path, path: &str) -> io::Result<Option<String>> {
    let root: OwnedFd = fs::File::open(volume)?.into();
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file: fs::File = match openat2(&root, Path::new(path), how) {
        Ok(found) => found.into(),
        Err(nix::errno::Errno::ENOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(LARGEST_FILE).read_to_string(&mut text)?;
    Ok(Some(text))
}

fn open_beneath(volume: &Path, sub_path: &str) -> io::Result<OwnedFd> {
    let root: OwnedFd = fs::File::open(volume)?.into();
    let open = |path: &Path| {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&root, path, how)
    };
    match open(Path::new(sub_path)) {
        Err(nix::errno::Errno::ENOENT) => {}
        other => return other.map_err(io::Error::from),
    }
    // Who may use the volume may use what is made in it.
    let mode = fs::metadata(volume)?.permissions().mode() & 0o777;
    let mut prefix = PathBuf::new();
    for part in Path::new(sub_path).components() {
        let parent = if prefix.as_os_str().is_empty() { root.try_clone()? } else { open(&prefix)? };
        prefix.push(part);
        if matches!(open(&prefix), Err(nix::errno::Errno::ENOENT)) {
            mkdirat(&parent, Path::new(part.as_os_str()), Mode::from_bits_truncate(mode))?;
            // By its own descriptor: a container may have put a link in the folder's place meanwhile.
            let made = openat(
                &parent,
                Path::new(part.as_os_str()),
                OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
                Mode::empty(),
            )?;
            fchmod(&made, Mode::from_bits_truncate(mode))?;
        }
    }
    open(Path::new(sub_path)).map_err(io::Error::from)
}

/// Opens a file of any kind as it is, without reading it or following it.
const FIXED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Permissions of a group on the files of a read-only volume that it is given.
pub(crate) const GROUP_READS: u32 = 0o440;

/// Reports whether the root of a volume is as [`give_to_group`] leaves it, so that the rest need not be looked at.
pub(crate) fn is_of_group(path: &Path, group: u32) -> io::Result<bool> {
    const WANTED: u32 = 0o2770;
    let metadata = fs::symlink_metadata(path)?;
    Ok(metadata.gid() == group && metadata.permissions().mode() & WANTED == WANTED)
}

/// Gives a volume to a group (`fsGroup`): the group owns every file and may read it, and
/// write it unless the volume is read-only; new files inherit the group. What a container puts in a file's place meanwhile is
/// given to the group or left alone, and never followed.
pub(crate) fn give_to_group(path: &Path, group: u32, read_only: bool) -> io::Result<()> {
    let access = if read_only { GROUP_READS } else { 0o660 };
    let root = rustix::fs::open(path, FIXED, rustix::fs::Mode::empty())?;
    if !give_file(&root, group, access)? {
        return Ok(());
    }
    trees::walk(path, trees::Mounts::Enter, |found| {
        match rustix::fs::openat(found.folder, found.name, FIXED, rustix::fs::Mode::empty()) {
            Ok(file) => give_file(&file, group, access).map(drop),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}

/// Gives one file to a group. Reports whether it is a folder.
fn give_file(file: &OwnedFd, group: u32, access: u32) -> io::Result<bool> {
    rustix::fs::chownat(file, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    let mode = rustix::fs::fstat(file)?.st_mode;
    let kind = FileType::from_raw_mode(mode);
    if kind == FileType::Symlink {
        return Ok(false);
    }
    let is_folder = kind == FileType::Directory;
    let mode = (mode & 0o7777) | access | if is_folder { 0o2110 } else { 0 };
    // By the descriptor: a descriptor of a path alone cannot be changed itself.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(is_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let line = r"36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some(PathBuf::from(r"/a b\c")));
        assert_eq!(mount_point("short"), None);
    }

    #[test]
    fn file_systems_that_may_be_away_are_told_from_the_nodes_own() {
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:30 / /pods/a/volumes/memory rw - tmpfs tmpfs rw
3 1 0:31 / /pods/b/volumes/nfs rw - nfs4 server:/export rw
4 1 8:1 /x /pods/c/volumes/local rw - ext4 /dev/sda1 rw
5 1 0:32 / /pods/d/volumes/over rw - fuse.sshfs x rw
6 5 0:33 / /pods/d/volumes/over rw - tmpfs tmpfs rw
7 1 0:34 / /other rw - nfs4 server:/export rw";
        for (path, expected) in [
            ("/pods/a", true),
            ("/pods/a/volumes/memory/x", true),
            ("/pods/b", false),
            ("/pods/b/volumes/nfs", false),
            ("/pods/b/volumes/nfs/deep", false),
            ("/pods/b/volumes/nfs-like", true),
            ("/pods/c", true),
            ("/pods/d", false),
            ("/pods/d/volumes/over/x", true),
            ("/other", false),
        ] {
            assert_eq!(are_own(table, Path::new(path), "8:1"), expected, "{path}");
        }
        let root = tempfile::tempdir().expect("a folder");
        let pods = root.path().join("pods");
        fs::create_dir(&pods).expect("made");
        assert!(is_own(&pods, &pods.join("uid/volumes")).expect("read"));
        assert!(!is_own(&pods, Path::new("/proc")).expect("read"), "not below the pods");
    }

    /// A container that still runs may swap a file for a link while a volume is given to a group.
    #[test]
    fn giving_to_a_group_never_follows_links() {
        let root = tempfile::tempdir().expect("a folder");
        let (volume, outside) = (root.path().join("volume"), root.path().join("outside"));
        fs::create_dir_all(volume.join("deep")).expect("made");
        for file in [&outside, &volume.join("file"), &volume.join("deep/file")] {
            fs::write(file, "text").expect("written");
            fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("mode");
        }
        std::os::unix::fs::symlink(&outside, volume.join("link")).expect("a link");
        give_to_group(&volume, 1234, false).expect("given");
        let of = |path: &Path| {
            let about = fs::symlink_metadata(path).expect("there");
            (about.gid(), about.permissions().mode() & 0o7777)
        };
        assert_eq!(of(&volume.join("deep/file")), (1234, 0o660));
        assert_eq!(of(&volume.join("deep")).1 & 0o2770, 0o2770);
        assert_eq!(of(&volume.join("link")).0, 1234, "the link is the group's");
        assert_eq!(of(&outside).1, 0o600, "what it leads to is not");
        assert_ne!(of(&outside).0, 1234);
        give_to_group(&volume.join("link"), 1235, true).expect("a link alone");
        assert_ne!(of(&outside).0, 1235);
    }

    #[test]
    fn mount_points_are_found_behind_a_link() {
        let link = std::env::temp_dir().join(format!("ironclad-mounts-{}", std::process::id()));
        std::os::unix::fs::symlink("/proc", &link).expect("a link");
        let points = below(&link);
        fs::remove_file(&link).expect("removed");
        assert_eq!(points.expect("the table").last().map(PathBuf::as_path), Some(Path::new("/proc")));
        assert_eq!(below(&link).expect("the table"), Vec::<PathBuf>::new(), "nothing is mounted where nothing is");
    }

    #[test]
    fn sub_paths_are_checked_before_they_are_looked_for() {
        let absolute = Err("error SubPath `/tmp` must not be an absolute path".to_owned());
        let up = Err("unable to provision SubPath `a/../b`: must not contain '..'".to_owned());
        for (path, expected) in [("a/..b", Ok(())), ("/tmp", absolute), ("a/../b", up)] {
            assert_eq!(check_sub_path(path).map_err(|error| error.to_string()), expected);
        }
    }

    #[test]
    fn sub_paths_stay_below_the_volume() {
        let volume = std::env::temp_dir().join(format!("ironclad-subpath-{}", std::process::id()));
        fs::create_dir_all(volume.join("real")).expect("folder");
        std::os::unix::fs::symlink("/etc", volume.join("out")).ok();
        std::os::unix::fs::symlink("real", volume.join("inside")).ok();
        assert!(open_beneath(&volume, "out/passwd").is_err(), "a link must not lead out");
        assert!(open_beneath(&volume, "../x").is_err());
        open_beneath(&volume, "inside/new/deep").expect("made below the link's target");
        fs::write(volume.join("real/file"), "text").expect("written");
        assert_eq!(read_beneath(&volume, "inside/file").expect("read").as_deref(), Some("text"));
        assert_eq!(read_beneath(&volume, "inside/none").expect("looked for"), None);
        assert!(read_beneath(&volume, "out/passwd").is_err() && read_beneath(&volume, "real").is_err());
        assert!(volume.join("real/new/deep").is_dir());
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o777)).expect("mode");
        open_beneath(&volume, "made").expect("made");
        let mode = fs::metadata(volume.join("made")).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o777, "as open as the volume");
        crate::trees::remove(&volume).expect("clean");
    }
}
