//! Clusters side by side on one machine: each has a number, from which its names and addresses follow.
//!
//! A number belongs to a run directory from `up` to `down`: a file below [`CLAIMS`] names the directory. Never: a number of
//! a cluster whose run directory exists.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{Flock, FlockArg};

/// Folder with one file for each cluster, named by its number.
const CLAIMS: &str = "/run/ironclad";
/// Clusters that there can be at a time: their Services have ranges side by side.
const MOST: u8 = 7;
/// File of a run directory with the cluster's number.
const NUMBER: &str = "cluster-number";

/// The number that a run directory has; none for one that has not been up.
#[must_use]
pub fn number(root: &Path) -> Option<u8> {
    fs::read_to_string(root.join(NUMBER)).ok()?.trim().parse().ok()
}

/// Gives a run directory a number, the lowest that no other has, unless it has one.
///
/// # Errors
/// Too many clusters are up, or a file cannot be written.
pub fn claim(root: &Path) -> Result<u8> {
    claim_below(Path::new(CLAIMS), root)
}

/// Gives the number back. Does nothing where another cluster has it.
pub fn release(root: &Path) {
    release_below(Path::new(CLAIMS), root);
}

/// Run directories of the other clusters that are up.
#[must_use]
pub fn others(root: &Path) -> Vec<PathBuf> {
    claims(Path::new(CLAIMS)).into_iter().map(|(_, owner)| owner).filter(|owner| owner != root).collect()
}

/// Reports whether the names and addresses of a number are those of this cluster, or of one that is no more.
#[must_use]
pub fn owns(root: &Path, number: u8) -> bool {
    claims(Path::new(CLAIMS)).iter().all(|(claimed, owner)| *claimed != number || owner == root)
}

fn claim_below(folder: &Path, root: &Path) -> Result<u8> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
    let _alone = lock(folder)?;
    let claims = claims(folder);
    let is_free = |number: &u8| claims.iter().all(|(claimed, owner)| claimed != number || owner == root);
    let kept = number(root);
    let Some(number) = kept.or_else(|| (0..MOST).find(is_free)) else {
        let names: Vec<String> = claims.iter().map(|(_, owner)| owner.display().to_string()).collect();
        bail!("{MOST} clusters are up, and there can be no more: {}; take one down", names.join(", "));
    };
    if !is_free(&number) {
        bail!("another cluster has got the addresses of {}; take this one down first: make down", root.display());
    }
    let write = |file: PathBuf, text: String| {
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    write(folder.join(number.to_string()), root.display().to_string())?;
    write(root.join(NUMBER), number.to_string())?;
    Ok(number)
}

fn release_below(folder: &Path, root: &Path) {
    let Ok(_alone) = lock(folder) else { return };
    for (number, owner) in claims(folder) {
        if owner == root {
            fs::remove_file(folder.join(number.to_string())).ok();
        }
    }
    // Refused while there are others.
    fs::remove_dir(folder).ok();
}

/// Numbers, and the run directories that have them; those of directories that are gone are free.
fn claims(folder: &Path) -> Vec<(u8, PathBuf)> {
    let claim = |number: u8| {
        let owner = PathBuf::from(fs::read_to_string(folder.join(number.to_string())).ok()?);
        owner.exists().then_some((number, owner))
    };
    (0..MOST).filter_map(claim).collect()
}

/// Keeps others from claims while it is held.
fn lock(folder: &Path) -> Result<Flock<File>> {
    let file = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| anyhow!("cannot lock {}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of claims, and run directories beside it; both go with it.
    struct Scene(PathBuf);

    impl Scene {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("ironclad-clusters-{name}-{}", std::process::id())))
        }

        fn claims(&self) -> PathBuf {
            self.0.join("claims")
        }

        fn claim(&self, root: &str) -> Result<u8> {
            claim_below(&self.claims(), &self.0.join(root))
        }

        fn release(&self, root: &str) {
            release_below(&self.claims(), &self.0.join(root));
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn clusters_get_the_lowest_free_number_and_keep_it() {
        let scene = Scene::new("lowest");
        let claim = |root: &str| scene.claim(root).expect("a number");
        assert_eq!([claim("a"), claim("b"), claim("a"), claim("c")], [0, 1, 0, 2]);
        scene.release("b");
        fs::remove_dir_all(scene.0.join("b")).expect("it goes");
        assert_eq!([claim("d"), claim("b")], [1, 3]);
        assert_eq!(number(&scene.0.join("b")), Some(3));
    }

    #[test]
    fn number_of_a_removed_run_directory_is_free() {
        let scene = Scene::new("removed");
        scene.claim("a").expect("a number");
        fs::remove_dir_all(scene.0.join("a")).expect("it goes");
        assert_eq!(scene.claim("b").expect("a number"), 0);
    }

    #[test]
    fn cluster_whose_number_another_has_is_refused() {
        let scene = Scene::new("refused");
        scene.claim("a").expect("a number");
        // As after a restart of the machine, which empties /run.
        scene.release("a");
        scene.claim("b").expect("a number");
        let refused = scene.claim("a").expect_err("its number is taken").to_string();
        assert!(refused.starts_with("another cluster has got the addresses of "), "{refused}");
    }

    #[test]
    fn no_more_clusters_than_ranges() {
        let scene = Scene::new("most");
        (0..MOST).for_each(|at| assert_eq!(scene.claim(&at.to_string()).expect("a number"), at));
        let refused = scene.claim("one more").expect_err("all are taken").to_string();
        assert!(refused.starts_with("7 clusters are up, and there can be no more: "), "{refused}");
    }

    #[test]
    fn last_release_leaves_nothing() {
        let scene = Scene::new("last");
        scene.claim("a").expect("a number");
        scene.claim("b").expect("a number");
        scene.release("a");
        assert!(scene.claims().exists());
        scene.release("b");
        assert!(!scene.claims().exists());
    }
}
