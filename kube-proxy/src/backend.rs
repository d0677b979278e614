//! What a proxy mode is: something that brings the kernel to a [`Desired`] state.

use crate::plan::Desired;
use async_trait::async_trait;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// How long one change of rules may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Why rules could not be changed. Retried with the next sync.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The program is not there or cannot be run.
    #[error("cannot run {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// The kernel's words.
        error: std::io::Error,
    },
    /// The program refused.
    #[error("{program} failed: {message}")]
    Refused {
        /// The program.
        program: String,
        /// What it said.
        message: String,
    },
    /// It did not finish.
    #[error("{0} did not finish in time")]
    Timeout(String),
}

/// One proxy mode for one IP family.
#[async_trait]
pub trait Backend: Send {
    /// The mode's name.
    fn name(&self) -> &'static str;
    /// The whole state as the kernel's tool reads it (`--dry-run`).
    fn render(&self, desired: &Desired) -> String;
    /// Brings the kernel there; costs what changed since the last call.
    async fn sync(&mut self, desired: &Desired) -> Result<(), SyncError>;
    /// Forgets what was applied: the next sync writes everything.
    fn forget(&mut self);
    /// Whether the kernel still has what was applied, as far as a cheap look can tell.
    async fn is_intact(&self) -> bool;
    /// Takes all of it away (`--cleanup`).
    async fn clean_up(&mut self) -> Result<(), SyncError>;
}

/// Runs a tool with `input`.
///
/// # Errors
/// It cannot be started, fails, or does not finish.
pub async fn feed(program: &str, arguments: &[&str], input: &str) -> Result<(), SyncError> {
    output(program, arguments, input).await.map(|_| ())
}

/// Runs a tool with `input` and returns what it prints.
///
/// # Errors
/// As [`feed`].
pub async fn output(program: &str, arguments: &[&str], input: &str) -> Result<String, SyncError> {
    let start = |error| SyncError::Start { program: program.to_owned(), error };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(start)?;
    let mut stdin = child.stdin.take();
    let text = input.as_bytes().to_vec();
    let write = async move {
        if let Some(stdin) = &mut stdin {
            // A tool that gives up early closes its input; why is on its standard error.
            stdin.write_all(&text).await.ok();
        }
        drop(stdin);
    };
    let work = async { tokio::join!(write, child.wait_with_output()).1 };
    let output = tokio::time::timeout(LIMIT, work).await.map_err(|_| SyncError::Timeout(program.to_owned()))?;
    let output = output.map_err(start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(SyncError::Refused { program: program.to_owned(), message })
}
