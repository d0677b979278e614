//! File systems that the distribution's `mount` and its helpers mount, called as upstream calls them: NFS, and binds with
//! options.

use super::metrics::{self, Plugin, VolumeOperation};
use super::mounts;
use crate::blocking::{MOUNTING, WorkError};
use crate::files::make_private;
use k8s_openapi::api::core::v1::NFSVolumeSource;
use nix::mount::{MntFlags, umount2};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tokio::process::Command;

/// The program.
pub(super) const MOUNT: &str = "mount";
/// Longest time of a mount: a server may be away for ever.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Failures of mounting, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A source that the helper would read as an option.
    #[error("invalid source {0:?}")]
    Source(String),
    /// The place to mount at cannot be made.
    #[error(transparent)]
    Place(#[from] WorkError),
    /// The program cannot be run.
    #[error("mount failed: {0}")]
    Start(io::Error),
    /// The program takes too long.
    #[error("mount failed: {} did not end within {} s", .0, TIMEOUT.as_secs())]
    Late(String),
    /// The program failed.
    #[error("mount failed: {status}\nMounting command: {program}\nMounting arguments: {arguments}\nOutput: {output}\n")]
    Ended {
        /// Go's text of the exit.
        status: String,
        /// The program.
        program: String,
        /// Arguments of the program.
        arguments: String,
        /// Standard output and standard error.
        output: String,
    },
}

/// Gives what is mounted on a folder to a group, unless its root is the group's and that is enough.
pub(super) async fn give(
    plugin: &Plugin,
    folder: PathBuf,
    (group, on_root_mismatch): (u32, bool),
) -> Result<(), WorkError> {
    let begun = Instant::now();
    let given = MOUNTING.run(move || {
        let is_done = on_root_mismatch && mounts::is_of_group(&folder, group)?;
        if is_done { Ok(()) } else { mounts::give_to_group(&folder, group, false) }
    });
    let given = given.await;
    metrics::ended(plugin, VolumeOperation::GiveToGroup, begun, given.is_err());
    given
}

/// A file system to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountRequest {
    source: String,
    /// The file system's type; none for a bind.
    kind: Option<&'static str>,
    /// Sorted, each once, as upstream's `JoinMountOptions` has them.
    options: BTreeSet<String>,
}

fn options(own: &[&str], read_only: bool, more: &[String]) -> BTreeSet<String> {
    let own = own.iter().copied().chain(read_only.then_some("ro")).map(str::to_owned);
    own.chain(more.iter().cloned()).collect()
}

impl MountRequest {
    /// An export of an NFS server.
    pub(super) fn nfs(source: &NFSVolumeSource, read_only: bool, more: &[String]) -> Self {
        let is_v6 = source.server.parse::<Ipv6Addr>().is_ok();
        let server = if is_v6 { format!("[{}]", source.server) } else { source.server.clone() };
        let source = format!("{server}:{}", source.path);
        Self { source, kind: Some("nfs"), options: options(&[], read_only, more) }
    }

    /// A folder of the node.
    pub(super) fn bind(path: &Path, read_only: bool, more: &[String]) -> Self {
        Self { source: path.display().to_string(), kind: None, options: options(&["bind"], read_only, more) }
    }

    fn arguments(&self, target: &Path) -> Vec<String> {
        let mut arguments: Vec<String> = self.kind.iter().flat_map(|kind| ["-t", kind]).map(str::to_owned).collect();
        if !self.options.is_empty() {
            let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
            arguments.extend(["-o".to_owned(), options.join(",")]);
        }
        arguments.extend([self.source.clone(), target.display().to_string()]);
        arguments
    }

    /// Mounts it by `program`, unless something is mounted at `target`. Reports whether it was mounted now.
    pub(super) async fn mount(&self, program: &str, target: &Path) -> Result<bool, MountError> {
        // A pod's author names the server: the helper must not read it as an option.
        if self.source.starts_with('-') {
            return Err(MountError::Source(self.source.clone()));
        }
        let place = target.to_path_buf();
        if MOUNTING.run(move || prepare(&place)).await? {
            return Ok(false);
        }
        let arguments = self.arguments(target);
        let mut command = Command::new(program);
        command.args(&arguments).stdin(Stdio::null()).kill_on_drop(true);
        let failure = match tokio::time::timeout(TIMEOUT, command.output()).await {
            Ok(Ok(output)) if output.status.success() => return Ok(true),
            Ok(Ok(output)) => failure(program, &arguments, &output),
            Ok(Err(error)) => MountError::Start(error),
            Err(_) => MountError::Late(program.to_owned()),
        };
        let place = target.to_path_buf();
        if let Err(error) = MOUNTING.run(move || clean(&place)).await {
            tracing::warn!(target = %target.display(), %error, "Could not clean up after a mount that failed");
        }
        Err(failure)
    }
}

/// Makes the folder to mount at. Reports whether something is mounted there.
fn prepare(target: &Path) -> io::Result<bool> {
    make_private(target)?;
    mounts::is_mount_point(target)
}

fn clean(target: &PathBuf) -> io::Result<()> {
    if mounts::is_mount_point(target)? {
        umount2(target, MntFlags::UMOUNT_NOFOLLOW)?;
    }
    fs::remove_dir(target)
}

/// The failure of a program that has ended.
fn failure(program: &str, arguments: &[String], output: &Output) -> MountError {
    let status = match (output.status.code(), output.status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal: {}", signal.unwrap_or_default()),
    };
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let output = String::from_utf8_lossy(&text).into_owned();
    MountError::Ended { status, program: program.to_owned(), arguments: arguments.join(" "), output }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(server: &str) -> NFSVolumeSource {
        NFSVolumeSource { path: "/export".to_owned(), read_only: None, server: server.to_owned() }
    }

    #[test]
    fn helpers_are_called_as_upstream_calls_them() {
        let more = ["nfsvers=4.1".to_owned(), "hard".to_owned()];
        let folder = Path::new("/disk");
        for (request, expected) in [
            (MountRequest::nfs(&export("server"), false, &[]), "-t nfs server:/export /t"),
            (MountRequest::nfs(&export("server"), true, &more), "-t nfs -o hard,nfsvers=4.1,ro server:/export /t"),
            (MountRequest::nfs(&export("fd00::1"), false, &[]), "-t nfs [fd00::1]:/export /t"),
            (MountRequest::bind(folder, false, &[]), "-o bind /disk /t"),
            (MountRequest::bind(folder, true, &["bind".to_owned()]), "-o bind,ro /disk /t"),
        ] {
            assert_eq!(request.arguments(Path::new("/t")).join(" "), expected);
        }
    }

    #[tokio::test]
    async fn a_mount_that_fails_leaves_nothing_and_says_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("pod/volume");
        let request = MountRequest::nfs(&export("server"), false, &[]);
        let failure = request.mount("false", &target).await.expect_err("it fails");
        let at = target.display();
        let expected = format!(
            "mount failed: exit status 1\nMounting command: false\nMounting arguments: -t nfs server:/export {at}\nOutput: \n"
        );
        assert_eq!(failure.to_string(), expected);
        assert!(!target.exists());
        assert!(request.mount("no-such-program", &target).await.is_err());
        let option = MountRequest::nfs(&export("-osuid"), false, &[]).mount("true", &target).await;
        assert_eq!(option.expect_err("an option").to_string(), "invalid source \"-osuid:/export\"");
        assert!(request.mount("true", &target).await.expect("mounted"));
        // Where something is mounted, nothing is mounted again.
        assert!(!request.mount("false", Path::new("/proc")).await.expect("there"));
    }
}
