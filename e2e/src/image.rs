//! Image archives made offline: a root file system as a tar, wrapped in the layout that
//! `docker save` writes and containerd imports.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::layout::PAUSE_IMAGE;
use crate::shell::run;

const PAUSE_SOURCE: &str = include_str!("../images/pause/pause.c");

/// What an image says of itself besides its files.
#[derive(Debug, Default)]
pub struct Config {
    /// `name:tag`.
    pub reference: String,
    /// The process that is run when a pod names none.
    pub entrypoint: Vec<String>,
    /// Its default arguments.
    pub command: Vec<String>,
    /// Environment, as `NAME=value`.
    pub environment: Vec<String>,
}

/// Builds the pause image unless it is there, and returns its archive.
///
/// # Errors
/// When the C compiler or tar fails.
pub fn pause(folder: &Path) -> Result<PathBuf> {
    let archive = folder.join("pause.tar");
    if archive.exists() {
        return Ok(archive);
    }
    let root = folder.join("pause");
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let (source, program) = (folder.join("pause.c"), root.join("pause"));
    fs::write(&source, PAUSE_SOURCE)?;
    run("gcc", &["-static", "-Os", "-s", "-o", &text(&program), &text(&source)])?;
    let layer = folder.join("pause-layer.tar");
    pack(&root, &layer)?;
    let config = Config { reference: PAUSE_IMAGE.into(), entrypoint: vec!["/pause".into()], ..Config::default() };
    wrap(&layer, &config, &archive)?;
    Ok(archive)
}

/// An image of one program and the libraries it is linked to, unless it is there already.
///
/// # Errors
/// When a file cannot be copied or tar fails.
pub fn program(folder: &Path, name: &str, program: &Path, reference: &str) -> Result<PathBuf> {
    let archive = folder.join(format!("{name}.tar"));
    if archive.exists() {
        return Ok(archive);
    }
    let root = folder.join(name);
    let place = |file: &Path, target: &str| -> Result<()> {
        let target = root.join(target.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap_or(&root))?;
        fs::copy(file, &target).with_context(|| format!("cannot copy {}", file.display()))?;
        Ok(())
    };
    place(program, &format!("/usr/local/bin/{name}"))?;
    // Says on its error stream that a static program is none of its business, and fails.
    for library in run("ldd", &[&text(program)]).unwrap_or_default().split_whitespace().filter(|w| w.starts_with('/')) {
        place(Path::new(library), library)?;
    }
    let layer = folder.join(format!("{name}-layer.tar"));
    pack(&root, &layer)?;
    let environment = vec!["PATH=/usr/local/bin".into()];
    wrap(&layer, &Config { reference: reference.into(), environment, ..Config::default() }, &archive)?;
    Ok(archive)
}

fn pack(root: &Path, layer: &Path) -> Result<()> {
    let owned = ["--create", "--numeric-owner", "--owner=0", "--group=0"];
    let paths = ["--file".to_owned(), text(layer), "--directory".to_owned(), text(root), ".".to_owned()];
    run("tar", &[&owned[..], &paths.each_ref().map(String::as_str)].concat()).map(|_| ())
}

/// Wraps one layer into an archive.
///
/// # Errors
/// When a file cannot be read or written.
pub fn wrap(layer: &Path, config: &Config, archive: &Path) -> Result<()> {
    let folder = archive.with_extension("parts");
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let digest = digest(layer)?;
    let document = json!({
        "architecture": architecture(std::env::consts::ARCH),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Entrypoint": config.entrypoint, "Cmd": config.command, "Env": config.environment, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "ironclad"}],
    });
    let document = serde_json::to_vec(&document)?;
    let name = format!("{:x}.json", Sha256::digest(&document));
    fs::write(folder.join(&name), &document)?;
    let manifest = json!([{"Config": name, "RepoTags": [config.reference], "Layers": ["layer.tar"]}]);
    fs::write(folder.join("manifest.json"), serde_json::to_vec(&manifest)?)?;
    fs::rename(layer, folder.join("layer.tar"))
        .with_context(|| format!("cannot move {} into the archive", layer.display()))?;
    let partial = archive.with_extension("partial");
    run(
        "tar",
        &["--create", "--file", &text(&partial), "--directory", &text(&folder), "manifest.json", &name, "layer.tar"],
    )?;
    fs::remove_dir_all(&folder)?;
    fs::rename(&partial, archive)?;
    Ok(())
}

/// What images call the architecture that Rust calls `machine`.
fn architecture(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn digest(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let mut file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    std::io::copy(&mut file, &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_name_architectures_as_containerd_does() {
        for (machine, named) in [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")] {
            assert_eq!(architecture(machine), named);
        }
    }
}
