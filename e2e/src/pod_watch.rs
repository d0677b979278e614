//! Pods of a namespace as a watch tells of them: asked for once, however many pods there are. `kubectl wait` asks for each
//! pod by itself, and no oftener than a few times a second.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Name, phase and readiness of a pod in a line.
const LINE: &str = r#"jsonpath={.metadata.name} {.status.phase} {.status.conditions[?(@.type=="Ready")].status}{"\n"}"#;

/// Lines that are read ahead.
const MOST_LINES: usize = 1024;

/// State of a pod as it was told last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodState {
    /// `status.phase`.
    pub phase: String,
    /// The condition `Ready` is true.
    pub is_ready: bool,
}

/// See the module. The watch ends with it.
pub struct PodWatch {
    kubectl: Child,
    lines: Receiver<String>,
    pods: BTreeMap<String, PodState>,
}

impl PodWatch {
    /// Watches the pods of the namespace `default`.
    ///
    /// # Errors
    /// When `kubectl` cannot be started.
    pub fn begin(kubeconfig: &Path) -> Result<Self> {
        let mut kubectl = Command::new("kubectl")
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(["get", "pods", "--watch", "--output", LINE])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start kubectl; is it installed?")?;
        let (sender, lines) = mpsc::sync_channel(MOST_LINES);
        let output = kubectl.stdout.take().context("kubectl has no output")?;
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { kubectl, lines, pods: BTreeMap::new() })
    }

    /// Waits until what is known of the pods is enough.
    ///
    /// # Errors
    /// When that takes longer than `limit`, or the watch ends.
    pub fn until(
        &mut self,
        limit: Duration,
        mut enough: impl FnMut(&BTreeMap<String, PodState>) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        while !enough(&self.pods) {
            let line = match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(error) => bail!("{error}; the pods are {:?}", self.pods),
            };
            if let Some((name, state)) = state(&line) {
                self.pods.insert(name, state);
            }
        }
        Ok(())
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.kubectl.kill().ok();
        self.kubectl.wait().ok();
    }
}

/// Reads a line.
fn state(line: &str) -> Option<(String, PodState)> {
    let mut words = line.split_whitespace();
    let (name, phase) = (words.next()?, words.next()?);
    Some((name.to_owned(), PodState { phase: phase.to_owned(), is_ready: words.next() == Some("True") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_phase_and_readiness() {
        let told = |line: &str| state(line).map(|(name, state)| (name, state.phase, state.is_ready));
        let pod = |phase: &str, is_ready| Some(("p".to_owned(), phase.to_owned(), is_ready));
        assert_eq!(told("p Running True"), pod("Running", true));
        assert_eq!(told("p Running False"), pod("Running", false));
        assert_eq!(told("p Pending "), pod("Pending", false));
        assert_eq!(told(""), None);
    }
}
