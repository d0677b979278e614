//! Loop devices of files in a run directory: a node that goes leaves those of the volumes that its pods had mounted.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::shell::{find, run, wait_for};

/// A device that is still mounted goes with its last mount.
const LIMIT: Duration = Duration::from_secs(20);
const COLUMNS: &str = "NAME,BACK-INO,BACK-MAJ:MIN";

/// A loop device and the file behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loop {
    name: String,
    inode: u64,
    /// Number of the device that the file is on.
    device: u64,
}

/// Reads a list of [`COLUMNS`]; lines of devices without a file are left out.
fn parse(list: &str) -> Vec<Loop> {
    let read = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, inode, (major, minor)) = (words.next()?, words.next()?, words.next()?.split_once(':')?);
        let device = nix::sys::stat::makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Loop { name: name.to_owned(), inode: inode.parse().ok()?, device })
    };
    list.lines().filter_map(read).collect()
}

fn all() -> Result<Vec<Loop>> {
    let Some(program) = find("losetup") else { return Ok(Vec::new()) };
    Ok(parse(&run(&program.display().to_string(), &["--list", "--noheadings", "--output", COLUMNS])?))
}

/// Inodes of the files below a folder, on its device alone. Containers made some of its trees, of any depth.
fn inodes(folder: &Path, device: u64) -> BTreeSet<u64> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                found.insert(metadata.ino());
            }
        }
    }
    found
}

/// Loop devices of files below a folder. A file is known by its number: its name is that of the container that opened it.
fn below(folder: &Path) -> Result<Vec<Loop>> {
    let device = fs::metadata(folder).with_context(|| format!("cannot look at {}", folder.display()))?.dev();
    let near: Vec<Loop> = all()?.into_iter().filter(|found| found.device == device).collect();
    if near.is_empty() {
        return Ok(near);
    }
    let files = inodes(folder, device);
    Ok(near.into_iter().filter(|found| files.contains(&found.inode)).collect())
}

/// Takes the loop devices of files below a folder away, and waits until they are gone.
///
/// # Errors
/// A device is still used.
pub fn detach(folder: &Path) -> Result<()> {
    let found = below(folder)?;
    if found.is_empty() {
        return Ok(());
    }
    for device in &found {
        // One that goes with its last mount is gone by itself.
        run("losetup", &["--detach", &device.name]).ok();
    }
    let names: Vec<&str> = found.iter().map(|device| device.name.as_str()).collect();
    wait_for(&format!("{} does not go", names.join(" ")), LIMIT, folder, || {
        all().is_ok_and(|left| !left.iter().any(|device| found.contains(device)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_their_files() {
        let list = "/dev/loop0 12      254:1  \n/dev/loop1\n/dev/loop2 x 254:1\n/dev/loop3  7   0:42\n";
        let named = |name: &str, inode, (major, minor)| Loop {
            name: name.to_owned(),
            inode,
            device: nix::sys::stat::makedev(major, minor),
        };
        assert_eq!(parse(list), [named("/dev/loop0", 12, (254, 1)), named("/dev/loop3", 7, (0, 42))]);
    }

    #[test]
    fn a_device_goes_with_the_folder_of_its_file() {
        let folder = std::env::temp_dir().join(format!("ironclad-loops-{}", std::process::id()));
        fs::create_dir_all(folder.join("volumes/v")).expect("a folder");
        let file = folder.join("volumes/v/image");
        fs::write(&file, vec![0; 1 << 20]).expect("a file");
        let attached = run("losetup", &["--find", "--show", &file.display().to_string()]);
        let Ok(name) = attached else {
            eprintln!("skipped: this machine lets us have no loop device: {attached:?}");
            fs::remove_dir_all(&folder).expect("removed");
            return;
        };
        let found = below(&folder).expect("a list");
        assert_eq!(found.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), [name.trim()]);
        assert_eq!(below(&folder.join("volumes/v/..").join("..").join("volumes")).expect("a list"), found);
        detach(&folder).expect("detached");
        assert_eq!(below(&folder).expect("a list"), []);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
