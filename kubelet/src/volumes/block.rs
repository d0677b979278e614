//! Devices that pods use as such: each is bound over a file of the pod in the plugin's folder, and opened by a loop device as
//! long as the pod has it. So another device that comes to have its name is never taken for it. Answers for upstream's
//! `MapBlockVolume`, `UnmapBlockVolume` and `volumepathhandler`.

use super::disks::{Ended, Host, ProgramError};
use super::mounts;
use crate::blocking::{UNMOUNTING, WorkError, blocking};
use crate::files::make_private;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const LOSETUP: &str = "losetup";
/// Mark of a backing file whose name is gone.
const DELETED: &str = " (deleted)";

/// Devices of one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockDevices {
    pub(crate) host: Host,
}

/// Failures of holding a device and of letting it go, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The device cannot be bound.
    #[error(
        "blkUtil.MapDevice failed. devicePath: {}, globalMapPath:{}, podUID: {uid}, bindMount: true: {cause}",
        .device.display(),
        .folder.display()
    )]
    Map {
        /// The device.
        device: PathBuf,
        /// Folder of the plugin.
        folder: PathBuf,
        /// Uid of the pod.
        uid: String,
        /// Cause.
        #[source]
        cause: WorkError,
    },
    /// The device cannot be opened.
    #[error("blkUtil.AttachFileDevice failed. globalMapPath:{}, podUID: {uid}: {cause}", .folder.display())]
    Open {
        /// Folder of the plugin.
        folder: PathBuf,
        /// Uid of the pod.
        uid: String,
        /// Cause.
        #[source]
        cause: Box<OpenError>,
    },
    /// The device cannot be closed.
    #[error(
        "blkUtil.DetachFileDevice failed. path: {}: failed to remove loopback device {device}: {}\n{}",
        .bound.display(),
        .ended.status(),
        .ended.output
    )]
    Close {
        /// The file that it is bound over.
        bound: PathBuf,
        /// The loop device.
        device: String,
        /// End of `losetup`.
        ended: Ended,
    },
    /// A program cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's folders, or the files, are out of reach.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// Failures of making a loop device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `losetup` failed.
    #[error("makeLoopDevice failed for path {path}: losetup -f {path} failed: {}\n{}", .ended.status(), .ended.output)]
    Make {
        /// The file.
        path: String,
        /// End of the program.
        ended: Ended,
    },
    /// No loop device is to be found.
    #[error("device not found")]
    NotFound,
    /// A program cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's folders are out of reach.
    #[error(transparent)]
    Work(#[from] WorkError),
}

fn bind(device: &Path, bound: &Path) -> io::Result<()> {
    bound.parent().map_or(Ok(()), make_private)?;
    if mounts::is_mount_point(bound)? {
        return Ok(());
    }
    fs::OpenOptions::new().create(true).append(true).open(bound)?;
    Ok(mount(Some(device), bound, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

fn unbind(bound: &Path) -> io::Result<()> {
    if mounts::is_mount_point(bound)? {
        umount2(bound, MntFlags::UMOUNT_NOFOLLOW)?;
    }
    match fs::remove_file(bound) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a link to a device, in the place of one to another.
pub(super) fn link(device: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|known| known == device) {
        return Ok(());
    }
    link.parent().map_or(Ok(()), make_private)?;
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(device, link)
}

impl BlockDevices {
    /// The loop device of a file. Upstream's `getLoopDeviceFromSysfs`.
    async fn loop_of(&self, file: &Path) -> Result<Option<String>, WorkError> {
        let (host, file) = (self.host.clone(), file.to_path_buf());
        blocking(move || {
            let real = fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
            let loops = host.names("sys/block")?.into_iter().filter(|name| name.starts_with("loop"));
            let is_of_file = |name: &String| {
                let backing = host.path(&format!("sys/block/{name}/loop/backing_file"));
                let backing = fs::read_to_string(backing).unwrap_or_default();
                let backing = Path::new(backing.trim().trim_end_matches(DELETED)).to_path_buf();
                backing == file || backing == real
            };
            Ok(loops.into_iter().find(is_of_file).map(|name| format!("/dev/{name}")))
        })
        .await
    }

    /// Binds a device for a pod below a plugin's folder and keeps it open: the loop device that does so.
    ///
    /// # Errors
    /// Upstream's texts.
    pub(crate) async fn hold(&self, device: &Path, folder: &Path, uid: &str) -> Result<String, BlockError> {
        let bound = folder.join(uid);
        let (from, to) = (device.to_path_buf(), bound.clone());
        let mapped = blocking(move || bind(&from, &to)).await;
        let (place, pod) = (|| folder.to_path_buf(), || uid.to_owned());
        mapped.map_err(|cause| BlockError::Map { device: device.to_path_buf(), folder: place(), uid: pod(), cause })?;
        let opened = self.open(&bound).await;
        opened.map_err(|cause| BlockError::Open { folder: place(), uid: pod(), cause: Box::new(cause) })
    }

    async fn open(&self, bound: &Path) -> Result<String, OpenError> {
        if let Some(known) = self.loop_of(bound).await? {
            return Ok(known);
        }
        let path = bound.display().to_string();
        let ended = self.host.run(LOSETUP, &["-f", &path]).await?;
        if !ended.is_success() {
            return Err(OpenError::Make { path, ended });
        }
        self.loop_of(bound).await?.ok_or(OpenError::NotFound)
    }

    /// Closes a device that a pod does not use any more, and takes it from the plugin's folder. What is not there is left.
    ///
    /// # Errors
    /// Upstream's texts.
    pub(crate) async fn let_go(&self, bound: &Path) -> Result<(), BlockError> {
        if let Some(device) = self.loop_of(bound).await? {
            let ended = self.host.run(LOSETUP, &["-d", &device]).await?;
            if !ended.is_success() {
                return Err(BlockError::Close { bound: bound.to_path_buf(), device, ended });
            }
        }
        let place = bound.to_path_buf();
        Ok(UNMOUNTING.run(move || unbind(&place)).await?)
    }

    /// Lets the devices below a volume's folder go that are of pods which are not on the disk any more. Reports whether a pod
    /// has one still.
    ///
    /// # Errors
    /// One could not be let go; the others were.
    pub(super) async fn let_go_of_gone(&self, folder: &Path, pods: &Path) -> Result<bool, BlockError> {
        let (place, pods) = (folder.to_path_buf(), pods.to_path_buf());
        let entries = blocking(move || names(&place)).await?;
        let (mut is_used, mut outcome) = (false, Ok(()));
        for uid in entries.into_iter().filter(|name| !name.contains('.')) {
            if pods.join(&uid).exists() {
                is_used = true;
            } else if let Err(error) = self.let_go(&folder.join(uid)).await {
                outcome = outcome.and(Err(error));
            }
        }
        outcome.map(|()| is_used)
    }

    /// Lets the devices of pods that are gone go, below the folder of a plugin's volumes, and removes what is left empty.
    pub(super) async fn sweep(&self, volumes: &Path, pods: &Path) {
        let place = volumes.to_path_buf();
        for name in blocking(move || names(&place)).await.unwrap_or_default() {
            let folder: PathBuf = volumes.join(name);
            match self.let_go_of_gone(&folder, pods).await {
                // A folder that is not empty stays.
                Ok(false) => _ = fs::remove_dir(&folder),
                Ok(true) => {}
                Err(error) => tracing::warn!(folder = %folder.display(), %error, "UnmapDevice failed"),
            }
        }
    }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    /// Devices of a node whose `losetup` makes and removes loop devices in a folder, and writes down that it did.
    pub(crate) fn faked(root: &Path) -> BlockDevices {
        let script = format!(
            "#!/bin/sh\ncd '{}' || exit 1\necho \"losetup $*\" >>loops\nif [ \"$1\" = -d ]; then rm -r \"sys/block/${{2#/dev/}}\"; \
             exit; fi\n[ ! -e busy ] || {{ echo no loop device; exit 1; }}\nfor n in 0 1 2 3 4 5 6 7 8 9; do\n  [ -e \
             sys/block/loop$n ] && continue\n  mkdir -p sys/block/loop$n/loop\n  echo \"$2\" >sys/block/loop$n/loop/backing_file\n  \
             exit\ndone\nexit 1\n",
            root.display()
        );
        let program = root.join("bin/losetup");
        fs::create_dir_all(root.join("bin")).expect("a folder");
        fs::write(&program, script).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
        let host = Host { programs: Some(root.join("bin")), root: root.to_path_buf(), pause: Duration::ZERO };
        BlockDevices { host }
    }

    #[tokio::test]
    async fn a_device_is_open_as_long_as_its_pod_has_it() {
        let root = tempfile::tempdir().expect("a folder");
        let (devices, root) = (faked(root.path()), root.path());
        let (device, folder, pods) = (root.join("device"), root.join("volumes/v"), root.join("pods"));
        fs::write(&device, "bytes").expect("written");
        fs::create_dir_all(pods.join("a")).expect("a pod");
        for uid in ["a", "b", "a"] {
            devices.hold(&device, &folder, uid).await.expect("held");
        }
        assert_eq!(fs::read_to_string(folder.join("a")).expect("bound"), "bytes");
        let calls = || fs::read_to_string(root.join("loops")).expect("calls").replace(&root.display().to_string(), "");
        assert_eq!(calls(), "losetup -f /volumes/v/a\nlosetup -f /volumes/v/b\n", "each once");
        // Another file of the name does not change what the pod has.
        fs::remove_file(&device).expect("removed");
        fs::write(&device, "other").expect("written");
        assert_eq!(fs::read_to_string(folder.join("a")).expect("bound"), "bytes");
        devices.sweep(&root.join("volumes"), &pods).await;
        assert!(folder.join("a").exists() && !folder.join("b").exists(), "the pod b is gone");
        assert!(calls().ends_with("losetup -d /dev/loop1\n"), "{}", calls());
        fs::remove_dir(pods.join("a")).expect("gone");
        devices.sweep(&root.join("volumes"), &pods).await;
        assert!(!folder.exists() && calls().ends_with("losetup -d /dev/loop0\n"), "{}", calls());
    }

    #[tokio::test]
    async fn failures_are_named_and_undone_later() {
        let root = tempfile::tempdir().expect("a folder");
        let (devices, root) = (faked(root.path()), root.path());
        let folder = root.join("v");
        let missing = devices.hold(&root.join("missing"), &folder, "u").await.expect_err("no device").to_string();
        assert!(missing.starts_with("blkUtil.MapDevice failed. devicePath: "), "{missing}");
        fs::write(root.join("device"), "").expect("written");
        fs::write(root.join("busy"), "").expect("written");
        let busy = devices.hold(&root.join("device"), &folder, "u").await.expect_err("no loop device").to_string();
        let is_named = busy.starts_with("blkUtil.AttachFileDevice failed. ") && busy.contains("no loop device");
        assert!(is_named, "{busy}");
        devices.let_go(&folder.join("u")).await.expect("let go");
        devices.let_go(&folder.join("u")).await.expect("it is gone");
        assert!(!folder.join("u").exists());
    }
}
