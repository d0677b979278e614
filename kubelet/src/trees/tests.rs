use super::*;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::mkdirat;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// Depth of which a recursive removal overflows the stack of a thread, and whose path is no path any more.
const DEEP: usize = 20_000;

/// Makes folders in folders, each called `d`, and a file in each of the last two.
fn deep(root: &Path, depth: usize) {
    let mut folder = openat(CWD, root, FOLDER, Mode::empty()).expect("the root");
    for number in 0..depth {
        mkdirat(&folder, c"d", Mode::RWXU).expect("made");
        folder = openat(&folder, c"d", FOLDER, Mode::empty()).expect("opened");
        if number + 2 >= depth {
            openat(&folder, c"file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).expect("a file");
        }
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("the descriptors").count()
}

#[test]
fn a_deep_tree_is_measured_and_removed_on_a_small_stack() {
    let root = tempfile::tempdir().expect("a folder");
    let tree = root.path().join("tree");
    fs::create_dir(&tree).expect("made");
    deep(&tree, DEEP);
    let work = move || {
        let before = descriptors();
        let mut most = 0;
        let mut folders = 0;
        walk_folders(&tree, |_| {
            folders += 1;
            if folders % 1000 == 0 {
                most = most.max(descriptors());
            }
        })
        .expect("walked");
        // Other tests of the process have descriptors, too.
        assert!(most < before + OPEN + 200, "{most} descriptors are open, {before} were before");
        let size = size(&tree).expect("measured");
        remove(&tree).expect("removed");
        (folders, size.inodes, tree.exists())
    };
    let small = std::thread::Builder::new().stack_size(128 * 1024).spawn(work).expect("a thread");
    assert_eq!(small.join().expect("ended"), (DEEP + 1, DEEP as u64 + 3, false));
}

#[test]
fn wide_trees_below_deep_ones_are_removed_whole() {
    let root = tempfile::tempdir().expect("a folder");
    let tree = root.path().join("tree");
    // Deeper than what is open, with more entries in a folder than are read at once.
    let bottom: PathBuf = tree.join(vec!["d"; 3 * OPEN].join("/"));
    for number in 0..300 {
        fs::create_dir_all(bottom.join(format!("{number}/{}", vec!["e"; OPEN + 4].join("/")))).expect("made");
        fs::write(bottom.join(format!("{number}/file")), "text").expect("written");
    }
    let expected = 1 + 3 * OPEN + 300 * (OPEN + 6);
    let mut names = 0;
    walk(&tree, Mounts::Skip, |_| {
        names += 1;
        Ok(())
    })
    .expect("walked");
    assert_eq!(names + 1, expected);
    assert_eq!(size(&tree).expect("measured").inodes, expected as u64);
    remove(&tree).expect("removed");
    assert!(!tree.exists());
}

#[test]
fn links_are_removed_and_not_followed() {
    let root = tempfile::tempdir().expect("a folder");
    let (tree, outside) = (root.path().join("tree"), root.path().join("outside"));
    fs::create_dir_all(tree.join("a")).expect("made");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("kept"), "text").expect("written");
    for link in [tree.join("link"), tree.join("a/link"), root.path().join("link")] {
        symlink(&outside, link).expect("a link");
    }
    fs::hard_link(outside.join("kept"), tree.join("one")).expect("a name");
    fs::hard_link(outside.join("kept"), tree.join("two")).expect("a name");
    assert_eq!(size(&tree).expect("measured").inodes, 5, "the root, a folder, two links, and a file with two names");
    size(&root.path().join("link")).expect_err("a link is no root");
    remove(&tree).expect("removed");
    remove(&root.path().join("link")).expect("a link alone");
    remove(&root.path().join("none/at/all")).expect("nothing is removed");
    remove(&tree).expect("removed already");
    remove(Path::new("/")).expect_err("no name");
    assert_eq!(fs::read_dir(root.path()).expect("read").count(), 1);
    assert!(outside.join("kept").exists());
}

/// Something mounted at a folder, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn at(folder: &Path) -> Option<Self> {
        fs::create_dir_all(folder).expect("made");
        match mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), None::<&str>) {
            Ok(()) => Some(Self(folder.to_owned())),
            Err(error) => {
                println!("skipped: nothing can be mounted here: {error}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).ok();
    }
}

#[test]
fn mounts_are_neither_emptied_nor_measured() {
    let root = tempfile::tempdir().expect("a folder");
    let tree = root.path().join("tree");
    let Some(mounted) = Mounted::at(&tree.join("a/mounted")) else { return };
    fs::write(mounted.0.join("kept"), vec![1; 100_000]).expect("written");
    fs::write(tree.join("file"), "text").expect("written");
    let mut seen = Vec::new();
    let walked = |mounts, seen: &mut Vec<String>| {
        seen.clear();
        walk(&tree, mounts, |found| {
            seen.push(found.name.to_string_lossy().into_owned());
            Ok(())
        })
        .expect("walked");
        seen.sort();
    };
    walked(Mounts::Skip, &mut seen);
    assert_eq!(seen, ["a", "file"]);
    walked(Mounts::Enter, &mut seen);
    assert_eq!(seen, ["a", "file", "kept", "mounted"]);
    assert_eq!(size(&tree).expect("measured").inodes, 3);
    let mut folders = 0;
    walk_folders(&tree, |_| folders += 1).expect("walked");
    assert_eq!(folders, 2);
    let refused = remove(&tree).expect_err("something is mounted");
    assert_eq!(refused.to_string(), "something is mounted at mounted");
    assert!(mounted.0.join("kept").exists());
    remove(&mounted.0).expect_err("a mount point");
    let parent = openat(CWD, tree.join("a"), FOLDER, Mode::empty()).expect("opened");
    assert_eq!(open_and_compare(parent.as_fd(), c"mounted").map(drop), Err(Errno::XDEV), "without openat2");
    drop(mounted);
    open_and_compare(parent.as_fd(), c"mounted").expect("an ordinary folder");
    remove(&tree).expect("removed");
}

#[test]
fn a_folder_that_is_moved_away_leads_nowhere_else() {
    let root = tempfile::tempdir().expect("a folder");
    let (tree, outside) = (root.path().join("tree"), root.path().join("outside"));
    let bottom = tree.join(vec!["d"; 2 * OPEN].join("/"));
    fs::create_dir_all(&bottom).expect("made");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("kept"), "text").expect("written");
    let mut descent = Descent::at(&tree, Mounts::Skip).expect("opened");
    while let Some((name, _)) = descent.next(Resume::AtEntry).expect("read") {
        descent.enter(&name).expect("entered");
    }
    // A container moves what is deeper than what is open to where the node has its own.
    let moved = tree.join(vec!["d"; OPEN + 1].join("/"));
    fs::rename(moved, outside.join("moved")).expect("moved");
    let failed = loop {
        match descent.leave() {
            Ok(Left::To(_)) => {}
            Ok(Left::Root) => panic!("it went back by what was moved"),
            Err(error) => break error,
        }
    };
    assert_eq!(failed.to_string(), "a folder was moved meanwhile");
}

#[test]
fn only_folders_go_where_files_go_with_them() {
    let root = tempfile::tempdir().expect("a folder");
    let tree = root.path().join("tree");
    fs::create_dir_all(tree.join("a/b/c")).expect("made");
    fs::create_dir_all(tree.join("d")).expect("made");
    remove_folders(&tree).expect("removed");
    fs::create_dir_all(tree.join("a")).expect("made");
    fs::write(tree.join("a/file"), "text").expect("written");
    let error = remove_folders(&tree).expect_err("an ordinary file stays");
    assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty);
    assert!(tree.join("a/file").exists());
}
