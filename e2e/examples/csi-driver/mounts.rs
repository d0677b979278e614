//! Mounts and loop devices, by the programs of the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tonic::Status;

/// An error of the system, told to the caller.
pub fn failed(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

/// Runs a program that must succeed, and returns what it prints.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, Status> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| failed(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{program} {arguments:?}: {}: {}", output.status, said.trim())))
}

/// Reports whether something is mounted on a path.
pub fn is_mounted(path: &str) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

/// Shows `from` at `to` too, unless something is mounted there.
pub fn bind(from: &Path, to: &str, read_only: bool) -> Result<(), Status> {
    if is_mounted(to) {
        return Ok(());
    }
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(failed)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, to, None::<&str>, flags, None::<&str>).map_err(failed)?;
    }
    Ok(())
}

/// Mounts the XFS of a device, which is made where the device is empty, unless something is mounted there.
pub fn mount_device(device: &Path, to: &str, options: &[String]) -> Result<(), Status> {
    if is_mounted(to) {
        return Ok(());
    }
    let device = device.display().to_string();
    // A copy has the identity of what it is a copy of.
    let options = [&["rw".to_owned(), "nouuid".to_owned()], options].concat().join(",");
    // The program ends with 2 where it finds nothing.
    if run("blkid", &["--probe", "--match-tag", "TYPE", &device]).is_err() {
        run("mkfs.xfs", &["-q", &device])?;
    }
    run("mount", &["--types", "xfs", "--options", &options, &device, to])?;
    // A copy of a smaller volume grows to the size of its device.
    grow(to)
}

/// Grows a mounted file system to the size of its device.
pub fn grow(path: &str) -> Result<(), Status> {
    run("xfs_growfs", &[path]).map(drop)
}

/// Takes all mounts from a path.
pub fn unbind(path: &str) -> Result<(), Status> {
    while is_mounted(path) {
        umount2(path, MntFlags::UMOUNT_NOFOLLOW).map_err(failed)?;
    }
    Ok(())
}

/// Loop devices of a file.
pub fn devices(image: &Path) -> Result<Vec<PathBuf>, Status> {
    if !image.exists() {
        return Ok(Vec::new());
    }
    let said = run("losetup", &["--noheadings", "--output", "NAME", "--associated", &image.display().to_string()])?;
    Ok(said.split_whitespace().map(PathBuf::from).collect())
}

/// The loop device of a file, attached where it has none.
pub fn attach(image: &Path) -> Result<PathBuf, Status> {
    if let Some(device) = devices(image)?.into_iter().next() {
        return Ok(device);
    }
    let device = run("losetup", &["--find", "--show", &image.display().to_string()])?;
    if device.is_empty() { Err(failed("no loop device")) } else { Ok(device.into()) }
}

/// Takes the loop devices of a file away.
pub fn detach(image: &Path) -> Result<(), Status> {
    for device in devices(image)? {
        run("losetup", &["--detach", &device.display().to_string()])?;
    }
    Ok(())
}
