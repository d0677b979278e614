//! File systems on disks: looked for, made, checked and mounted by the distribution's programs, called as upstream's
//! `FormatAndMount` calls them.

use super::host::Host;
use std::collections::BTreeSet;
use std::path::Path;

/// The exit code of `blkid` for a disk without a file system.
const NOTHING: i32 = 2;
/// The exit codes of `fsck` for errors that it corrected, and that it could not correct.
const CORRECTED: i32 = 1;
const UNCORRECTED: i32 = 4;
/// Stands for a file system that there is, so that nothing is formatted.
const PARTITIONS: &str = "unknown data, probably partitions";

/// The file system on a disk; none where there is none.
async fn found(host: &Host, device: &str) -> Result<Option<String>, String> {
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device];
    let ended = host.run("blkid", &arguments).await?;
    if ended.code == Some(NOTHING) {
        return Ok(None);
    }
    if !ended.is_success() {
        return Err(ended.status());
    }
    let (mut kind, mut is_partitioned) = (None, false);
    for line in ended.output.lines().filter(|line| !line.is_empty()) {
        let (key, value) = line
            .split_once('=')
            .filter(|(_, value)| !value.contains('='))
            .ok_or_else(|| format!("blkid returns invalid output: {}", ended.output))?;
        match key {
            "TYPE" => kind = Some(value.to_owned()).filter(|kind| !kind.is_empty()),
            "PTTYPE" => is_partitioned |= !value.is_empty(),
            _ => {}
        }
    }
    Ok(if is_partitioned { Some(PARTITIONS.to_owned()) } else { kind })
}

async fn format(host: &Host, device: &str, kind: &str, about: (&Path, &str)) -> Result<(), String> {
    let arguments: &[&str] = match kind {
        "ext3" | "ext4" => &["-F", "-m0", device],
        "xfs" => &["-f", device],
        _ => &[device],
    };
    tracing::info!(device, kind, "Disk appears to be unformatted, attempting to format");
    let (errcode, output) = match host.run(&format!("mkfs.{kind}"), arguments).await {
        Ok(ended) if ended.is_success() => return Ok(()),
        Ok(ended) => (ended.status(), ended.output),
        Err(error) => (error, String::new()),
    };
    let (target, options) = (about.0.display().to_string(), about.1);
    Err(format!(
        "format of disk {device:?} failed: type:({kind:?}) target:({target:?}) options:({options:?}) errcode:({errcode}) \
         output:({output}) "
    ))
}

async fn check(host: &Host, device: &str) -> Result<(), String> {
    match host.run("fsck", &["-a", device]).await {
        Ok(ended) if ended.is_success() => Ok(()),
        Ok(ended) if ended.code == Some(UNCORRECTED) => {
            let output = ended.output;
            Err(format!("'fsck' found errors on device {device} but could not correct them: {output}"))
        }
        Ok(ended) => {
            let is_corrected = ended.code == Some(CORRECTED);
            tracing::info!(device, is_corrected, output = ended.output, "Device was checked by fsck");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(device, error, "Continuing mount without running fsck");
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
) -> Result<(), String> {
    let is_read_only = options.contains("ro");
    let options = options.iter().map(String::as_str).chain(["defaults"]).collect::<Vec<&str>>().join(",");
    let found = found(host, device).await;
    let found = found.map_err(|error| format!("failed to get disk format of disk {device}: {error}"))?;
    let kind = if kind.is_empty() { "ext4" } else { kind };
    match found {
        None if is_read_only => {
            return Err(format!("cannot mount unformatted disk {device} as we are manipulating it in read-only mode"));
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
    let ended = host.run("mount", &arguments).await.map_err(|error| format!("mount failed: {error}"))?;
    if ended.is_success() {
        return Ok(());
    }
    let (status, output, arguments) = (ended.status(), &ended.output, arguments.join(" "));
    Err(format!("mount failed: {status}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}\n"))
}

/// Grows a mounted file system to the size of its device. Upstream's `ResizeFs`.
///
/// # Errors
/// A program failed, or the file system is of a kind that does not grow; upstream's texts.
pub(in crate::volumes) async fn grow(host: &Host, device: &str, at: &Path) -> Result<(), String> {
    let found = found(host, device).await;
    let found =
        found.map_err(|error| format!("ResizeFS.Resize - error checking format for device {device}: {error}"))?;
    // One that is yet to be made has the whole device.
    let Some(kind) = found else { return Ok(()) };
    let at = at.display().to_string();
    let (program, arguments, about): (_, &[&str], _) = match kind.as_str() {
        "ext3" | "ext4" => ("resize2fs", &[device], device),
        "xfs" => ("xfs_growfs", &["-d", &at], at.as_str()),
        "btrfs" => ("btrfs", &["filesystem", "resize", "max", &at], at.as_str()),
        _ => {
            return Err(format!(
                "ResizeFS.Resize - resize of format {kind} is not supported for device {device} mounted at {at}"
            ));
        }
    };
    let ended = host.run(program, arguments).await?;
    if ended.is_success() {
        return Ok(());
    }
    let (status, output) = (ended.status(), ended.output);
    Err(format!("resize of device {about} failed: {status}. {program} output: {output}"))
}
