//! Loop devices of files in a run directory: a node that goes leaves those of the volumes that its pods had mounted, and those
//! by which its kubelet kept devices open.

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

/// A loop device and the file behind it, which may be the node of another device.
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

/// Loop devices of files below a folder, after those that were made of them. A file is known by its number: its name is that of
/// the container that opened it.
fn below(folder: &Path) -> Result<Vec<Loop>> {
    let device = fs::metadata(folder).with_context(|| format!("cannot look at {}", folder.display()))?.dev();
    let all = all()?;
    let near: Vec<Loop> = all.iter().filter(|found| found.device == device).cloned().collect();
    if near.is_empty() {
        return Ok(near);
    }
    let files = inodes(folder, device);
    let near = near.into_iter().filter(|found| files.contains(&found.inode)).collect();
    let node = |name: &str| fs::metadata(name).ok().map(|node| (node.ino(), node.dev()));
    Ok(with_those_made_of_them(near, &all, node))
}

/// Puts before loop devices those whose file is the node of one of them, and so on. `node` is number and device of a node.
fn with_those_made_of_them(mut found: Vec<Loop>, all: &[Loop], node: impl Fn(&str) -> Option<(u64, u64)>) -> Vec<Loop> {
    loop {
        let nodes: Vec<(u64, u64)> = found.iter().filter_map(|device| node(&device.name)).collect();
        let is_of_them = |device: &&Loop| nodes.contains(&(device.inode, device.device)) && !found.contains(device);
        let more: Vec<Loop> = all.iter().filter(is_of_them).cloned().collect();
        if more.is_empty() {
            return found;
        }
        found.splice(..0, more);
    }
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
    fn devices_that_are_made_of_others_go_first() {
        let device = |name: &str, inode| Loop { name: name.to_owned(), inode, device: 6 };
        let (file, other) = (device("/dev/loop0", 12), device("/dev/loop9", 13));
        let (held, held_again) = (device("/dev/loop1", 100), device("/dev/loop2", 101));
        let all = [file.clone(), held.clone(), held_again.clone(), other.clone()];
        let node = |name: &str| Some((100 + name.strip_prefix("/dev/loop")?.parse::<u64>().ok()?, 6));
        assert_eq!(with_those_made_of_them(vec![file.clone()], &all, node), [held_again, held, file]);
        assert_eq!(with_those_made_of_them(vec![other.clone()], &all, node), [other]);
        assert_eq!(with_those_made_of_them(Vec::new(), &all, node), []);
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
        // As a kubelet keeps a device open that a pod has.
        let held = run("losetup", &["--find", "--show", name.trim()]).expect("a device of the device");
        let names: Vec<String> = below(&folder).expect("a list").into_iter().map(|device| device.name).collect();
        assert_eq!(names, [held.trim(), name.trim()]);
        detach(&folder).expect("detached");
        assert_eq!(below(&folder).expect("a list"), []);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
