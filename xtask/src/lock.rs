//! Packages of the lock file that this machine builds.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A package that is built for this machine.
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Version of the package.
    pub version: String,
    /// The SPDX expression of its licence.
    pub licence: String,
    /// `None` for crates of the workspace.
    pub source: Option<String>,
}

/// Reads what is built, from the lock file, without the network.
///
/// # Errors
/// When cargo cannot say it.
pub fn read(root: &Path) -> Result<Vec<Package>> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = ["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", &target];
    let told = Command::new(env!("CARGO")).current_dir(root).args(arguments).output().context("cannot run cargo")?;
    ensure!(told.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&told.stderr));
    let metadata: Value = serde_json::from_slice(&told.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names packages")?;
    let text = |package: &Value, field: &str| package[field].as_str().map(str::to_owned);
    let package = |one: &Value| Package {
        name: text(one, "name").unwrap_or_default(),
        version: text(one, "version").unwrap_or_default(),
        licence: text(one, "license").unwrap_or_default(),
        source: text(one, "source"),
    };
    Ok(packages.iter().map(package).collect())
}
