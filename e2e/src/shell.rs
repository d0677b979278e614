//! Running other programs, with errors that name the command and what it said.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::layout::Layout;

/// Time that anything has to come up.
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(120);

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// When it cannot be started or exits with another code than 0; the error carries what
/// the command printed on standard error.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}; is it installed?"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{program} {}: {}", args.join(" "), said.trim());
}

/// Runs kubectl against the cluster as its administrator.
///
/// # Errors
/// When kubectl fails; the error carries what it said.
pub fn kubectl(layout: &Layout, arguments: &[&str]) -> Result<String> {
    let config = format!("--kubeconfig={}", layout.admin_conf().display());
    run("kubectl", &[&[config.as_str()], arguments].concat())
}

/// Asks `ready` again and again until it says yes.
///
/// # Errors
/// When it has not said yes within `limit`; `what` names the thing waited for and `hint`
/// where to look.
pub fn wait_for(what: &str, limit: Duration, hint: &Path, mut ready: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > limit {
            bail!("{what} within {} s; see {}", limit.as_secs(), hint.display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A program found on the PATH or in the places Debian puts system programs.
#[must_use]
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin"])
        .map(|folder| Path::new(folder).join(program))
        .find(|candidate| candidate.is_file())
}
