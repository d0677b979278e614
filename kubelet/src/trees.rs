//! Trees of files that containers may have made: their removal, and walks through them. Answers for Go's `os.RemoveAll` and
//! `filepath.Walk` as upstream uses them, for trees of any depth.
//!
//! Everything goes by descriptors, one name at a time, links are never followed, and nothing recurses: neither a tree's depth
//! nor what a container swaps meanwhile leads out of the tree, fills the stack, or holds more than [`OPEN`] descriptors.
//! Mount points are not entered unless a walk asks for it: what is mounted is not the pod's, and may be a server that is away.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, openat2, statx, unlinkat,
};
use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Most folders of one tree that are open at the same time: the deepest ones.
const OPEN: usize = 16;
/// Times that a folder in which nothing is found to remove is looked at again before it is given up.
const FRUITLESS: usize = 3;
/// Most files with several names that are told apart in one tree; further ones count by each name.
const LINKED: usize = 1 << 20;
/// Way in which folders are opened.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Mount points that a walk comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// Left out, with what is below them.
    Skip,
    /// Part of the tree.
    Enter,
}

/// Entry that a walk comes to.
#[derive(Debug)]
pub(crate) struct Visited<'a> {
    /// Folder that it is in.
    pub folder: BorrowedFd<'a>,
    /// Name in that folder.
    pub name: &'a CStr,
    /// Attributes of the entry: a link's own.
    pub about: &'a Statx,
}

/// Bytes and files of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes of the blocks that are taken.
    pub bytes: u64,
    /// Files, folders and links, the root included.
    pub inodes: u64,
}

/// Entries that a removal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entries {
    All,
    /// Folders alone: files go with them.
    Folders,
}

/// Result of the removal of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Gone,
    /// A folder that there is something in.
    Full,
    /// The removal is not about it.
    Ignored,
}

/// Removes a file or a tree; what is not there is removed.
///
/// # Errors
/// Something cannot be removed, or something is mounted in the tree: what was removed until then stays removed.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    remove_each(path, Entries::All)
}

/// Removes a tree of folders whose files go with them: cgroups.
///
/// # Errors
/// A folder cannot be removed.
pub(crate) fn remove_folders(path: &Path) -> io::Result<()> {
    remove_each(path, Entries::Folders)
}

fn remove_each(path: &Path, entries: Entries) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"));
    };
    let name = CString::new(name.as_bytes())?;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = match openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut fruitless = Fruitless::default();
    while remove_entry(parent.as_fd(), &name, FileType::Unknown, entries)? == Removal::Full {
        match Descent::below(parent.as_fd(), &name, Mounts::Skip) {
            Ok(mut descent) => empty(&mut descent, entries, &mut fruitless)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Folders left in a row without anything removed: a folder that is full and in which nothing is found cannot be removed.
#[derive(Default)]
struct Fruitless(usize);

impl Fruitless {
    fn count(&mut self) -> io::Result<()> {
        self.0 += 1;
        if self.0 > FRUITLESS { Err(Errno::NOTEMPTY.into()) } else { Ok(()) }
    }
}

/// Removes everything below the root of a descent.
fn empty(descent: &mut Descent, entries: Entries, fruitless: &mut Fruitless) -> io::Result<()> {
    loop {
        let (name, kind) = match descent.next(Resume::AtEntry)? {
            Some(entry) => entry,
            None => {
                fruitless.count()?;
                match descent.leave()? {
                    Left::To(Some(name)) => (name, FileType::Directory),
                    // The next look at the folder finds the one that was left.
                    Left::To(None) => continue,
                    Left::Root => return Ok(()),
                }
            }
        };
        match remove_entry(descent.folder()?, &name, kind, entries)? {
            Removal::Gone => fruitless.0 = 0,
            Removal::Ignored => {}
            Removal::Full => drop(descent.enter(&name)?),
        }
    }
}

/// Removes an entry, unless it is a folder with something in it.
fn remove_entry(folder: BorrowedFd<'_>, name: &CStr, kind: FileType, entries: Entries) -> io::Result<Removal> {
    let may_be_folder = matches!(kind, FileType::Directory | FileType::Unknown);
    if entries == Entries::Folders && !may_be_folder {
        return Ok(Removal::Ignored);
    }
    if entries == Entries::All && kind != FileType::Directory {
        match unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(Removal::Gone),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Removal::Gone),
        // One that is busy may be a cgroup with others in it, or a mount point: that is seen when it is entered.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => Ok(Removal::Full),
        Err(error) => Err(error.into()),
    }
}

/// Visits everything below a folder but the folder itself, each folder before what is in it. What goes meanwhile is left out.
///
/// # Errors
/// The folder cannot be opened, the visitor fails, or a folder deep in the tree was moved meanwhile: the rest is not visited.
pub(crate) fn walk(
    root: &Path,
    mounts: Mounts,
    mut visit: impl FnMut(&Visited<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut descent = Descent::at(root, mounts)?;
    let own = describe(descent.folder()?, c"", AtFlags::EMPTY_PATH)?;
    loop {
        let Some((name, _)) = descent.next(Resume::AfterEntry)? else {
            match descent.leave()? {
                Left::To(_) => continue,
                Left::Root => return Ok(()),
            }
        };
        let folder = descent.folder()?;
        let about = match describe(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => about,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        if mounts == Mounts::Skip && is_elsewhere(&own, &about) {
            continue;
        }
        visit(&Visited { folder, name: &name, about: &about })?;
        if FileType::from_raw_mode(about.stx_mode.into()) != FileType::Directory {
            continue;
        }
        match descent.enter(&name) {
            // Mounted since it was looked at.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
            entered => drop(entered?),
        }
    }
}

/// Visits a folder and those below it, opened; not those of other mounts.
///
/// # Errors
/// The folder cannot be opened, or one deep in the tree was moved meanwhile: the rest is not visited.
pub(crate) fn walk_folders(root: &Path, mut visit: impl FnMut(BorrowedFd<'_>)) -> io::Result<()> {
    let mut descent = Descent::at(root, Mounts::Skip)?;
    visit(descent.folder()?);
    loop {
        match descent.next(Resume::AfterEntry)? {
            Some((name, FileType::Directory | FileType::Unknown)) => match descent.enter(&name) {
                Ok(true) => visit(descent.folder()?),
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
                Err(error) => return Err(error),
            },
            Some(_) => {}
            None => match descent.leave()? {
                Left::To(_) => {}
                Left::Root => return Ok(()),
            },
        }
    }
}

/// Measures a tree without what is mounted in it; a file with several names counts once. A tree that is changed meanwhile may be
/// measured in part.
///
/// # Errors
/// The root cannot be opened.
pub(crate) fn size(root: &Path) -> io::Result<Size> {
    let own = describe(Descent::at(root, Mounts::Skip)?.folder()?, c"", AtFlags::EMPTY_PATH)?;
    let mut size = Size { bytes: own.stx_blocks.saturating_mul(512), inodes: 1 };
    let mut linked = HashSet::new();
    let walked = walk(root, Mounts::Skip, |found| {
        let about = found.about;
        let is_folder = FileType::from_raw_mode(about.stx_mode.into()) == FileType::Directory;
        let has_names = about.stx_nlink > 1 && !is_folder && linked.len() < LINKED;
        if has_names && !linked.insert((about.stx_dev_major, about.stx_dev_minor, about.stx_ino)) {
            return Ok(());
        }
        size.bytes = size.bytes.saturating_add(about.stx_blocks.saturating_mul(512));
        size.inodes += 1;
        Ok(())
    });
    if let Err(error) = walked {
        tracing::debug!(root = %root.display(), %error, "Measured a folder in part");
    }
    Ok(size)
}

/// Reads a file of a folder, links excepted.
///
/// # Errors
/// The file cannot be read, or is not text.
pub(crate) fn read(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    io::read_to_string(File::from(openat(folder, name, flags, Mode::empty())?))
}

/// Attributes of an entry, as they are known: a server that is away is not asked.
fn describe(folder: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Statx, Errno> {
    let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    statx(folder, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// Reports whether an entry is in another mount than the root. Kernels before 5.8 tell file systems apart and no more.
fn is_elsewhere(root: &Statx, entry: &Statx) -> bool {
    let has_mount = |about: &Statx| about.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if has_mount(root) && has_mount(entry) {
        return root.stx_mnt_id != entry.stx_mnt_id;
    }
    (root.stx_dev_major, root.stx_dev_minor) != (entry.stx_dev_major, entry.stx_dev_minor)
}

/// Place at which a folder is read on when it has been closed meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resume {
    /// At the entry that was read last.
    AtEntry,
    /// Behind it.
    AfterEntry,
}

/// Result of leaving a folder.
enum Left {
    /// The descent is in the folder above; the name of the one that was left, where it is still known.
    To(Option<CString>),
    /// The folder was the root.
    Root,
}

/// Device and inode.
type Identity = (u32, u32, u64);

/// Folder that is open.
struct OpenFolder {
    entries: Dir,
    identity: Identity,
    /// Name of the folder below it that was entered.
    entered: Option<CString>,
    /// Position in its list of entries to read on at.
    position: i64,
    /// Position behind the entry that was read last.
    behind: i64,
}

/// Way from the root of a tree to a folder in it: the deepest folders are open, of the others it is known what they are.
struct Descent {
    mounts: Mounts,
    open: VecDeque<OpenFolder>,
    closed: Vec<(Identity, i64)>,
}

impl Descent {
    /// At a root that is not a link.
    fn at(root: &Path, mounts: Mounts) -> io::Result<Self> {
        Self::of(openat(CWD, root, FOLDER, Mode::empty())?, mounts)
    }

    /// At an entry of a folder.
    fn below(folder: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> io::Result<Self> {
        Self::of(open(folder, name, mounts).map_err(|error| refused(name, error))?, mounts)
    }

    fn of(root: OwnedFd, mounts: Mounts) -> io::Result<Self> {
        let mut descent = Self { mounts, open: VecDeque::with_capacity(OPEN), closed: Vec::new() };
        descent.push(root, 0)?;
        Ok(descent)
    }

    fn push(&mut self, folder: OwnedFd, position: i64) -> io::Result<()> {
        let identity = identify(folder.as_fd())?;
        let mut entries = Dir::new(folder)?;
        if position != 0 {
            entries.seek(position)?;
        }
        if self.open.len() == OPEN
            && let Some(level) = self.open.pop_front()
        {
            self.closed.push((level.identity, level.position));
        }
        self.open.push_back(OpenFolder { entries, identity, entered: None, position, behind: position });
        Ok(())
    }

    fn level(&mut self) -> io::Result<&mut OpenFolder> {
        self.open.back_mut().ok_or_else(|| io::Error::other("no folder is open"))
    }

    /// The folder that the descent is in.
    fn folder(&self) -> io::Result<BorrowedFd<'_>> {
        let level = self.open.back().ok_or_else(|| io::Error::other("no folder is open"))?;
        Ok(level.entries.fd()?)
    }

    /// Reads the next entry of the folder; none at its end.
    fn next(&mut self, resume: Resume) -> io::Result<Option<(CString, FileType)>> {
        let level = self.level()?;
        while let Some(entry) = level.entries.read() {
            let entry = entry?;
            let before = std::mem::replace(&mut level.behind, entry.offset());
            level.position = if resume == Resume::AtEntry { before } else { level.behind };
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Ok(Some((entry.file_name().to_owned(), entry.file_type())));
            }
        }
        Ok(None)
    }

    /// Enters a folder. Reports whether it is there, and a folder.
    fn enter(&mut self, name: &CStr) -> io::Result<bool> {
        let folder = match open(self.folder()?, name, self.mounts) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(error) => return Err(refused(name, error)),
        };
        self.level()?.entered = Some(name.to_owned());
        self.push(folder, 0)?;
        Ok(true)
    }

    /// Goes back to the folder above.
    fn leave(&mut self) -> io::Result<Left> {
        let Some(left) = self.open.pop_back() else { return Ok(Left::Root) };
        if let Some(above) = self.open.back_mut() {
            return Ok(Left::To(above.entered.take()));
        }
        let Some((identity, position)) = self.closed.pop() else { return Ok(Left::Root) };
        let above = openat(left.entries.fd()?, c"..", FOLDER, Mode::empty())?;
        if identify(above.as_fd())? != identity {
            return Err(io::Error::other("a folder was moved meanwhile"));
        }
        self.push(above, position)?;
        Ok(Left::To(None))
    }
}

fn refused(name: &CStr, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    if error.kind() != io::ErrorKind::CrossesDevices {
        return error;
    }
    let text = format!("something is mounted at {}", name.to_string_lossy());
    io::Error::new(io::ErrorKind::CrossesDevices, text)
}

fn identify(folder: BorrowedFd<'_>) -> io::Result<Identity> {
    let about = describe(folder, c"", AtFlags::EMPTY_PATH)?;
    Ok((about.stx_dev_major, about.stx_dev_minor, about.stx_ino))
}

/// Opens a folder in a folder, links excepted.
fn open(folder: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<OwnedFd, Errno> {
    if mounts == Mounts::Enter {
        return openat(folder, name, FOLDER, Mode::empty());
    }
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match openat2(folder, name, FOLDER, Mode::empty(), resolve) {
        // Kernels before 5.6 have no such call, and some filters of system calls forbid what they do not know.
        Err(Errno::NOSYS | Errno::PERM) => open_and_compare(folder, name),
        opened => opened,
    }
}

/// Opens a folder, and refuses it if it is in another mount.
fn open_and_compare(folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let opened = openat(folder, name, FOLDER, Mode::empty())?;
    if mount_of(folder)? == mount_of(opened.as_fd())? { Ok(opened) } else { Err(Errno::XDEV) }
}

/// Number of the mount that a descriptor is in.
fn mount_of(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    use std::os::fd::AsRawFd as _;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    let text = text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or(Errno::IO)
}

#[cfg(test)]
mod tests;
