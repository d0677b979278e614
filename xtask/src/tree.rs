//! The tracked Rust files and test data of the repository, read once.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::lock::{self, Package};

/// The map from upstream's tree.
pub const UPSTREAM_MAP: &str = "docs/UPSTREAM.md";

/// A Rust file.
pub struct Source {
    /// Path below the root of the repository.
    pub path: String,
    /// Text of the file.
    pub text: String,
}

impl Source {
    /// Returns the folder at the top of the repository, which is a crate.
    pub fn krate(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    /// Reports whether the file is part of a library or binary, and not a test, an example or a build script.
    pub fn is_production(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let tests = self
            .path
            .split('/')
            .any(|part| matches!(part, "tests" | "examples" | "benches" | "testing" | "sim" | "testkit" | "fuzz"));
        !tests && !matches!(name, "build.rs" | "tests.rs" | "testing.rs") && !name.ends_with("_tests.rs")
    }

    /// Returns the text before the first inline test module. A test module in a file of its own ends nothing.
    fn production_text(&self) -> &str {
        let mut tests = self.text.match_indices("#[cfg(test)]\n").map(|(at, attribute)| (at, at + attribute.len()));
        let inline = tests.find(|(_, next)| {
            let line = self.text[*next..].lines().next().unwrap_or_default();
            line.contains("mod ") && line.contains('{')
        });
        &self.text[..inline.map_or(self.text.len(), |(at, _)| at)]
    }

    /// Returns the production lines with their numbers, from 1.
    pub fn production_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.production_text().lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// Returns the production code without comments.
    pub fn production_code(&self) -> String {
        let lines = self.production_text().lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.map(|line| line.to_owned() + "\n").collect()
    }
}

/// Inputs of all checks.
#[derive(Default)]
pub struct Tree {
    /// Rust files, sorted by path.
    pub sources: Vec<Source>,
    /// Paths and contents of files in folders called `testdata`.
    pub testdata: Vec<(String, Vec<u8>)>,
    /// Paths and texts of files that name metrics.
    pub monitoring: Vec<(String, String)>,
    /// Paths and texts of the IDL of the API.
    pub idl: Vec<(String, String)>,
    /// Paths and texts of tables (JSON) that are part of a crate's source.
    pub data: Vec<(String, String)>,
    /// Text of CONTRIBUTING.md.
    pub contributing: String,
    /// Paths and texts of the crates' manifests.
    pub manifests: Vec<(String, String)>,
    /// Packages that are built, those of the workspace included.
    pub packages: Vec<Package>,
    /// Paths of all tracked files.
    pub paths: BTreeSet<String>,
    /// Text of the map from upstream's tree.
    pub upstream_map: String,
}

impl Tree {
    /// Reads the files that git tracks below `root`.
    ///
    /// # Errors
    /// When git or cargo cannot list them, or one cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let listed =
            Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().context("cannot run git")?;
        ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
        let mut tree = Self { packages: lock::read(root)?, ..Self::default() };
        for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            tree.add(root, path)?;
        }
        Ok(tree)
    }

    fn add(&mut self, root: &Path, path: &str) -> Result<()> {
        let file = root.join(path);
        // Removed and not yet committed.
        if !file.exists() {
            return Ok(());
        }
        self.paths.insert(path.to_owned());
        let text = || std::fs::read_to_string(&file).with_context(|| path.to_owned());
        if path.split('/').any(|part| part == "testdata") {
            self.testdata.push((path.to_owned(), std::fs::read(&file).with_context(|| path.to_owned())?));
        } else if path.ends_with(".rs") {
            self.sources.push(Source { path: path.to_owned(), text: text()? });
        } else if path.starts_with("manifests/monitoring/") || path == "docs/MONITORING.md" {
            self.monitoring.push((path.to_owned(), text()?));
        } else if path.starts_with("proto/k8s/") && path.ends_with(".proto") {
            self.idl.push((path.to_owned(), text()?));
        } else if path == UPSTREAM_MAP {
            self.upstream_map = text()?;
        } else if path.contains("/src/") && path.ends_with(".json") {
            self.data.push((path.to_owned(), text()?));
        } else if path == "CONTRIBUTING.md" {
            self.contributing = text()?;
        } else if path.ends_with("/Cargo.toml") {
            self.manifests.push((path.to_owned(), text()?));
        }
        Ok(())
    }
}
