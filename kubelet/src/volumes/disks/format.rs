//! File systems on disks: looked for, made, checked and mounted by the distribution's programs, called as upstream's
//! `FormatAndMount` calls them.

use super::host::{Ended, Host, ProgramError};
use std::collections::BTreeSet;
use std::path::Path;

/// The exit code of `blkid` for a disk without a file system.
const NOTHING: i32 = 2;
/// The exit codes of `fsck` for errors that it corrected, and that it could not correct.
const CORRECTED: i32 = 1;
const UNCORRECTED: i32 = 4;
/// Stands for a file system that there is, so that nothing is formatted.
const PARTITIONS: &str = "unknown data, probably partitions";

/// Failures of file systems on disks, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Content of a disk that is to be mounted cannot be told.
    #[error("failed to get disk format of disk {device}: {cause}")]
    Look {
        /// The disk.
        device: String,
        /// Cause.
        #[source]
        cause: ProbeError,
    },
    /// Content of a disk that is to grow cannot be told.
    #[error("ResizeFS.Resize - error checking format for device {device}: {cause}")]
    LookToGrow {
        /// The disk.
        device: String,
        /// Cause.
        #[source]
        cause: ProbeError,
    },
    /// A disk without a file system must not be written to.
    #[error("cannot mount unformatted disk {0} as we are manipulating it in read-only mode")]
    ReadOnly(String),
    /// No file system can be made.
    #[error(transparent)]
    Make(#[from] Box<MakeError>),
    /// The file system is damaged.
    #[error("'fsck' found errors on device {device} but could not correct them: {output}")]
    Damaged {
        /// The disk.
        device: String,
        /// Standard output and standard error.
        output: String,
    },
    /// `mount` cannot be run.
    #[error("mount failed: {0}")]
    MountProgram(ProgramError),
    /// `mount` failed.
    #[error(
        "mount failed: {}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {}\n",
        .ended.status(),
        .ended.output
    )]
    Mount {
        /// Arguments of the program.
        arguments: String,
        /// End of the program.
        ended: Ended,
    },
    /// A file system of this kind does not grow.
    #[error("ResizeFS.Resize - resize of format {kind} is not supported for device {device} mounted at {at}")]
    Fixed {
        /// Kind of file system.
        kind: String,
        /// The disk.
        device: String,
        /// Place that it is mounted at.
        at: String,
    },
    /// The program that grows a file system cannot be run.
    #[error(transparent)]
    GrowProgram(#[from] ProgramError),
    /// The program that grows a file system failed.
    #[error("resize of device {about} failed: {}. {program} output: {}", .ended.status(), .ended.output)]
    Grow {
        /// The disk, or the place that it is mounted at.
        about: String,
        /// The program.
        program: &'static str,
        /// End of the program.
        ended: Ended,
    },
}

/// A disk that no file system can be made on.
#[derive(Debug, thiserror::Error)]
#[error(
    "format of disk {device:?} failed: type:({kind:?}) target:({target:?}) options:({options:?}) errcode:({status}) \
     output:({output}) "
)]
pub struct MakeError {
    device: String,
    kind: String,
    /// Place that it is for.
    target: String,
    /// Options of the mount.
    options: String,
    /// Go's text of the exit, or of the program that cannot be run.
    status: String,
    /// Standard output and standard error.
    output: String,
}

/// Failures of looking for a file system.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// `blkid` cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// `blkid` failed.
    #[error("{}", .0.status())]
    Ended(Ended),
    /// Output of `blkid` that has another form.
    #[error("blkid returns invalid output: {0}")]
    Output(String),
}

/// The file system on a disk; none where there is none.
async fn found(host: &Host, device: &str) -> Result<Option<String>, ProbeError> {
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device];
    let ended = host.run("blkid", &arguments).await?;
    if ended.code == Some(NOTHING) {
        return Ok(None);
    }
    if !ended.is_success() {
        return Err(ProbeError::Ended(ended));
    }
    let (mut kind, mut is_partitioned) = (None, false);
    for line in ended.output.lines().filter(|line| !line.is_empty()) {
        let (key, value) = line
            .split_once('=')
            .filter(|(_, value)| !value.contains('='))
            .ok_or_else(|| ProbeError::Output(ended.output.clone()))?;
        match key {
            "TYPE" => kind = Some(value.to_owned()).filter(|kind| !kind.is_empty()),
            "PTTYPE" => is_partitioned |= !value.is_empty(),
            _ => {}
        }
    }
    Ok(if is_partitioned { Some(PARTITIONS.to_owned()) } else { kind })
}

async fn format(host: &Host, device: &str, kind: &str, about: (&Path, &str)) -> Result<(), FormatError> {
    let arguments: &[&str] = match kind {
        "ext3" | "ext4" => &["-F", "-m0", device],
        "xfs" => &["-f", device],
        _ => &[device],
    };
    tracing::info!(device, kind, "Disk appears to be unformatted, attempting to format");
    let (status, output) = match host.run(&format!("mkfs.{kind}"), arguments).await {
        Ok(ended) if ended.is_success() => return Ok(()),
        Ok(ended) => (ended.status(), ended.output),
        Err(error) => (error.to_string(), String::new()),
    };
    let (target, options) = (about.0.display().to_string(), about.1.to_owned());
    let (device, kind) = (device.to_owned(), kind.to_owned());
    Err(Box::new(MakeError { device, kind, target, options, status, output }).into())
}

async fn check(host: &Host, device: &str) -> Result<(), FormatError> {
    match host.run("fsck", &["-a", device]).await {
        Ok(ended) if ended.is_success() => Ok(()),
        Ok(ended) if ended.code == Some(UNCORRECTED) => {
            Err(FormatError::Damaged { device: device.to_owned(), output: ended.output })
        }
        Ok(ended) => {
            let is_corrected = ended.code == Some(CORRECTED);
            tracing::info!(device, is_corrected, output = ended.output, "Device was checked by fsck");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(device, %error, "Continuing mount without running fsck");
            Ok(())
        }
    }
}

/// Mounts the file system of a disk, which gets one of the kind where it has none.
///
/// # Errors
/// A program failed; upstream's texts.
pub(in crate::volumes) async fn mount(
    host: &Host,
    device: &str,
    target: &Path,
    kind: &str,
    options: &BTreeSet<String>,
) -> Result<(), FormatError> {
    let is_read_only = options.contains("ro");
    let options = options.iter().map(String::as_str).chain(["defaults"]).collect::<Vec<&str>>().join(",");
    let found = found(host, device).await;
    let found = found.map_err(|cause| FormatError::Look { device: device.to_owned(), cause })?;
    let kind = if kind.is_empty() { "ext4" } else { kind };
    match found {
        None if is_read_only => {
            return Err(FormatError::ReadOnly(device.to_owned()));
        }
        None => format(host, device, kind, (target, &options)).await?,
        Some(found) => {
            if found != kind {
                tracing::warn!(device, kind, found, "Configured to mount disk as another kind, things might break");
            }
            if !is_read_only {
                check(host, device).await?;
            }
        }
    }
    let target = target.display().to_string();
    let arguments = ["-t", kind, "-o", &options, device, &target];
    let ended = host.run("mount", &arguments).await.map_err(FormatError::MountProgram)?;
    if ended.is_success() {
        return Ok(());
    }
    Err(FormatError::Mount { arguments: arguments.join(" "), ended })
}

/// Grows a mounted file system to the size of its device. Upstream's `ResizeFs`.
///
/// # Errors
/// A program failed, or the file system is of a kind that does not grow; upstream's texts.
pub(in crate::volumes) async fn grow(host: &Host, device: &str, at: &Path) -> Result<(), FormatError> {
    let found = found(host, device).await;
    let found = found.map_err(|cause| FormatError::LookToGrow { device: device.to_owned(), cause })?;
    // One that is yet to be made has the whole device.
    let Some(kind) = found else { return Ok(()) };
    let at = at.display().to_string();
    let (program, arguments, about): (_, &[&str], _) = match kind.as_str() {
        "ext3" | "ext4" => ("resize2fs", &[device], device),
        "xfs" => ("xfs_growfs", &["-d", &at], at.as_str()),
        "btrfs" => ("btrfs", &["filesystem", "resize", "max", &at], at.as_str()),
        _ => {
            return Err(FormatError::Fixed { kind, device: device.to_owned(), at });
        }
    };
    let ended = host.run(program, arguments).await?;
    if ended.is_success() {
        return Ok(());
    }
    Err(FormatError::Grow { about: about.to_owned(), program, ended })
}
