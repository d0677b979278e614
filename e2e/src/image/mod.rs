//! Images made offline: of programs and folders of this machine ([`Layer`]), or of a root file system's tar.

mod architecture;
mod archive;
mod layer;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use architecture::Architecture;
pub use archive::{join, write};
pub use layer::Layer;

use crate::layout::PAUSE_IMAGE;
use crate::shell::run;

const PAUSE_SOURCE: &str = include_str!("../../images/pause/pause.c");

/// Configuration of an image, beside its files.
#[derive(Debug, Default)]
pub struct Config {
    /// `name:tag`.
    pub reference: String,
    /// The process that is run when a pod names none.
    pub entrypoint: Vec<String>,
    /// Default arguments of the image.
    pub command: Vec<String>,
    /// Environment, as `NAME=value`.
    pub environment: Vec<String>,
    /// The user that it runs as unless a pod says otherwise, as `uid:gid`; empty for root.
    pub user: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The time of its making, as in RFC 3339; the beginning of 1970 unless said.
    pub created: Option<String>,
    /// The processors that its programs are for.
    pub architecture: Architecture,
}

/// Builds the pause image unless it is there, and returns its archive.
///
/// # Errors
/// When the C compiler fails or a file cannot be written.
pub fn pause(folder: &Path) -> Result<PathBuf> {
    let archive = folder.join("pause.tar");
    if archive.exists() {
        return Ok(archive);
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let program = pause_program(folder, Architecture::default())?;
    let mut layer = Layer::default();
    layer.program("/pause", &program);
    let config = Config {
        reference: PAUSE_IMAGE.into(),
        entrypoint: vec!["/pause".into()],
        user: PAUSE_USER.into(),
        ..Config::default()
    };
    write(&config, &[&layer], &archive)?;
    Ok(archive)
}

/// The user that upstream's pause runs as.
pub const PAUSE_USER: &str = "65535:65535";

/// Compiles pause into `folder`.
///
/// # Errors
/// When the C compiler fails.
pub fn pause_program(folder: &Path, architecture: Architecture) -> Result<PathBuf> {
    let version = PAUSE_IMAGE.rsplit_once(':').map_or("", |(_, version)| version);
    static_program(folder, "pause", &format!("#define VERSION \"{version}\"\n{PAUSE_SOURCE}"), architecture)
}

/// Compiles a static C program into `folder`.
pub(crate) fn static_program(folder: &Path, name: &str, source: &str, architecture: Architecture) -> Result<PathBuf> {
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&file, source).with_context(|| format!("cannot write {}", file.display()))?;
    let text = |path: &Path| path.display().to_string();
    run(&architecture.tool("gcc"), &["-static", "-Os", "-s", "-Wall", "-Werror", "-o", &text(&program), &text(&file)])?;
    Ok(program)
}

/// An image of one program and the libraries it is linked to, unless it is there already.
///
/// # Errors
/// When a file cannot be read or written.
pub fn program(folder: &Path, name: &str, program: &Path, reference: &str) -> Result<PathBuf> {
    let archive = folder.join(format!("{name}.tar"));
    if archive.exists() {
        return Ok(archive);
    }
    let mut layer = Layer::default();
    layer.linked_program(&format!("/usr/local/bin/{name}"), program)?;
    let environment = vec!["PATH=/usr/local/bin".into()];
    write(&Config { reference: reference.into(), environment, ..Config::default() }, &[&layer], &archive)?;
    Ok(archive)
}

/// Wraps one layer, a tar archive, into an image's archive; the layer's file is gone then.
///
/// # Errors
/// When a file cannot be read or written.
pub fn wrap(layer: &Path, config: &Config, archive: &Path) -> Result<()> {
    archive::wrap(config, layer, archive)?;
    fs::remove_file(layer).with_context(|| format!("cannot remove {}", layer.display()))
}
