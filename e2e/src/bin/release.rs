//! `release`: makes images, tarballs, sums and a bill of materials from built binaries. `hack/release.sh` calls it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Command};
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
        .arg(path("binaries", "the folder of the binaries"))
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

fn run(given: &ArgMatches) -> Result<()> {
    let path = |name: &str| given.get_one::<PathBuf>(name).with_context(|| format!("no {name}"));
    let text = |name: &str| given.get_one::<String>(name).cloned().unwrap_or_default();
    let dist = path("dist")?;
    let identity = ReleaseIdentity { version: text("release-version"), commit: text("commit"), date: text("date") };
    identity.check()?;
    let mut sources = Sources {
        binaries: path("binaries")?.clone(),
        cache: path("cache")?.clone(),
        repository: text("repository"),
        identity,
    };
    let chosen: Vec<&str> = given.get_many::<String>("image").unwrap_or_default().map(String::as_str).collect();
    if !chosen.is_empty() {
        return some(&mut sources, dist, &chosen, given.get_flag("strip"));
    }
    let (binaries, images) = (dist.join("bin"), dist.join("images"));
    clean(&[&binaries, &images])?;
    finish(&mut sources, &binaries, given.get_flag("strip"))?;
    tell(&release::images(&sources, &images, &IMAGES)?);
    if given.get_flag("bundle") {
        release::sbom(&sources, &dist.join("sbom.spdx.json"))?;
        release::bundle(&sources, &images, dist)?;
    }
    Ok(())
}

/// Makes some images alone; the binaries in them are left nowhere else.
fn some(sources: &mut Sources, dist: &Path, names: &[&str], strip: bool) -> Result<()> {
    let binaries = dist.join(".bin");
    clean(&[&binaries])?;
    finish(sources, &binaries, strip)?;
    let made = release::images(sources, dist, names);
    fs::remove_dir_all(&binaries).with_context(|| format!("cannot remove {}", binaries.display()))?;
    tell(&made?);
    Ok(())
}

/// Puts the binaries as they are released into `folder`, where all that follows takes them from.
fn finish(sources: &mut Sources, folder: &Path, strip: bool) -> Result<()> {
    release::stamp(sources, folder)?;
    if strip {
        release::strip(folder)?;
    }
    folder.clone_into(&mut sources.binaries);
    Ok(())
}

fn tell(archives: &[PathBuf]) {
    archives.iter().for_each(|archive| println!("{}", archive.display()));
}

/// Empties folders, and makes them.
fn clean(folders: &[&Path]) -> Result<()> {
    for folder in folders {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    Ok(())
}
