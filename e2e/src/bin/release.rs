//! `release`: makes images, tarballs, sums and a bill of materials from built binaries. `hack/release.sh` calls it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Command};
use e2e::image::{self, Architecture};
use e2e::release::{self, IMAGES, REGISTRY, ReleaseIdentity, Sources};

fn main() -> ExitCode {
    match run(&command().get_matches()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    let path = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).required(true).help(help).value_parser(clap::value_parser!(PathBuf))
    };
    let text = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).help(help).default_value(default)
    };
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    Command::new("release")
        .about("Makes a release of built binaries: DIST/{bin,images}, and with --bundle tarballs, sums and an SBOM")
        .arg(
            Arg::new("binaries")
                .long("binaries")
                .required(true)
                .action(ArgAction::Append)
                .value_parser(binaries)
                .help("the folder of the binaries, or ARCHITECTURE=FOLDER; several make images for several processors"),
        )
        .arg(path("cache", "what e2e/images/go.sh and e2e/images/debian.sh filled"))
        .arg(path("dist", "where the release goes; what is there is replaced"))
        .arg(text("repository", REGISTRY, "what images are named under"))
        .arg(text("release-version", version, "upstream's version, or one of it such as v1.35.4+ironclad.1"))
        .arg(text("commit", "0000000000000000000000000000000000000000", "the commit that the binaries are of"))
        .arg(text("date", "1970-01-01T00:00:00Z", "the date of the commit, in UTC"))
        .arg(Arg::new("strip").long("strip").action(ArgAction::SetTrue).help("without what debuggers need"))
        .arg(
            Arg::new("image")
                .long("image")
                .action(ArgAction::Append)
                .conflicts_with("bundle")
                .value_parser(IMAGES)
                .help("this image alone, as DIST/IMAGE.tar, and nothing else; may be repeated"),
        )
        .arg(Arg::new("bundle").long("bundle").action(ArgAction::SetTrue).help("tarballs, sums and an SBOM as well"))
}

/// A release for one kind of processor: where its parts come from, and the folder for what is made of them.
struct ReleasePart {
    sources: Sources,
    folder: PathBuf,
}

fn run(given: &ArgMatches) -> Result<()> {
    let dist = given.get_one::<PathBuf>("dist").context("no dist")?;
    let mut parts = parts(given, dist)?;
    let (strip, bundle) = (given.get_flag("strip"), given.get_flag("bundle"));
    let chosen: Vec<&str> = given.get_many::<String>("image").unwrap_or_default().map(String::as_str).collect();
    if !chosen.is_empty() {
        return some(&mut parts, dist, &chosen, strip);
    }
    // What a release for other processors left is not of this one.
    remove(&["bin", "images", "linux-amd64", "linux-arm64"].map(|name| dist.join(name)))?;
    for part in &mut parts {
        let (binaries, images) = (part.folder.join("bin"), part.folder.join("images"));
        finish(&mut part.sources, &binaries, strip)?;
        tell(&release::images(&part.sources, &images, &IMAGES)?);
        if bundle {
            release::bundle(&part.sources, &images, dist)?;
        }
    }
    if parts.len() > 1 {
        let folders: Vec<PathBuf> = parts.iter().map(|part| part.folder.join("images")).collect();
        join(&folders, &dist.join("images"), &IMAGES)?;
    }
    if bundle {
        let architectures: Vec<Architecture> = parts.iter().map(|part| part.sources.architecture).collect();
        let first = parts.first().context("no binaries")?;
        release::sbom(&first.sources, &architectures, &dist.join("sbom.spdx.json"))?;
        release::sum(dist)?;
    }
    Ok(())
}

/// Returns a part for each folder of binaries; several stand side by side.
fn parts(given: &ArgMatches, dist: &Path) -> Result<Vec<ReleasePart>> {
    let text = |name: &str| given.get_one::<String>(name).cloned().unwrap_or_default();
    let identity = ReleaseIdentity { version: text("release-version"), commit: text("commit"), date: text("date") };
    identity.check()?;
    let cache = given.get_one::<PathBuf>("cache").context("no cache")?;
    let folders: Vec<&(Architecture, PathBuf)> = given.get_many("binaries").unwrap_or_default().collect();
    let several = folders.len() > 1;
    let part = |(architecture, binaries): &(Architecture, PathBuf)| ReleasePart {
        sources: Sources {
            binaries: binaries.clone(),
            cache: cache.clone(),
            repository: text("repository"),
            identity: identity.clone(),
            architecture: *architecture,
        },
        folder: if several { dist.join(format!("linux-{}", architecture.image())) } else { dist.to_owned() },
    };
    Ok(folders.into_iter().map(part).collect())
}

/// Makes some images alone; the binaries in them are left nowhere else.
fn some(parts: &mut [ReleasePart], dist: &Path, names: &[&str], strip: bool) -> Result<()> {
    for part in &mut *parts {
        let binaries = part.folder.join(".bin");
        finish(&mut part.sources, &binaries, strip)?;
        let made = release::images(&part.sources, &part.folder, names);
        remove(&[binaries])?;
        tell(&made?);
    }
    if parts.len() > 1 {
        let folders: Vec<PathBuf> = parts.iter().map(|part| part.folder.clone()).collect();
        join(&folders, dist, names)?;
        remove(&folders)?;
    }
    Ok(())
}

/// Makes one image for all kinds of processors of each that every folder has for one.
fn join(folders: &[PathBuf], to: &Path, names: &[&str]) -> Result<()> {
    for name in names.iter().map(|name| format!("{name}.tar")) {
        let archives: Vec<PathBuf> = folders.iter().map(|folder| folder.join(&name)).collect();
        let archives: Vec<&Path> = archives.iter().map(PathBuf::as_path).collect();
        image::join(&archives, &to.join(&name))?;
        println!("{}", to.join(&name).display());
    }
    Ok(())
}

/// Puts the binaries as they are released into `folder`, where all that follows takes them from.
fn finish(sources: &mut Sources, folder: &Path, strip: bool) -> Result<()> {
    remove(&[folder.to_owned()])?;
    release::stamp(sources, folder)?;
    if strip {
        release::strip(folder, sources.architecture)?;
    }
    folder.clone_into(&mut sources.binaries);
    Ok(())
}

/// A folder of binaries, after `ARCHITECTURE=` where they are not for this machine's.
fn binaries(text: &str) -> Result<(Architecture, PathBuf)> {
    match text.split_once('=') {
        Some((architecture, folder)) if !architecture.contains('/') => Ok((architecture.parse()?, folder.into())),
        _ => Ok((Architecture::default(), text.into())),
    }
}

fn tell(archives: &[PathBuf]) {
    archives.iter().for_each(|archive| println!("{}", archive.display()));
}

/// Removes what is there of some folders.
fn remove(folders: &[PathBuf]) -> Result<()> {
    for folder in folders.iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}
