//! Interface of a proxy mode: brings the kernel to a [`Desired`] state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use parking_lot::Mutex;
use shared::config::Settings;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::detect::LocalDetector;
use crate::plan::{Desired, Family, PortName};

/// Deadline of one run of a tool.
const LIMIT: Duration = Duration::from_secs(60);

/// Failures to change rules. They are retried with the next sync.
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
        /// Output of the tool.
        message: String,
        /// Exit status.
        code: Option<i32>,
    },
    /// The kernel refused.
    #[error("{what}: {error}")]
    Kernel {
        /// The part of it that was asked.
        what: &'static str,
        /// Error that it returned.
        error: std::io::Error,
    },
    /// The machine lacks what the mode needs.
    #[error("{0}")]
    Unsupported(String),
    /// The tool did not finish in time.
    #[error("{0} did not finish in time")]
    Timeout(String),
}

/// One proxy mode for one IP family.
#[async_trait]
pub trait Backend: Send {
    /// Fails where the machine lacks what the mode needs for this family.
    async fn check_support(&self) -> Result<(), SyncError>;
    /// Brings the kernel to the desired state. `changed` are the ports that differ from the last call; without a good last
    /// call everything is written. The cost follows what is written.
    async fn sync(&mut self, desired: &Desired, changed: &BTreeSet<PortName>) -> Result<SyncExtent, SyncError>;
    /// Forgets what was applied: the next sync writes everything.
    fn forget(&mut self);
    /// Sets what rules depend on besides services. Where it differs the next sync writes everything.
    fn set_environment(&mut self, environment: &Environment);
    /// Does what has to be done later, and looks whether the kernel still has our rules, as far as a cheap look can tell.
    /// A look that fails tells nothing.
    async fn tend(&mut self) -> bool;
    /// Reports whether the kernel has rules of this mode that no other mode has.
    async fn is_present(&self) -> bool;
    /// Takes all of it away (`--cleanup`).
    async fn clean_up(&mut self) -> Result<(), SyncError>;
}

/// Extent of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncExtent {
    /// Every rule was written.
    Everything,
    /// Rules of ports that had changed were written.
    Changes,
    /// There was nothing to write.
    Nothing,
}

/// Settings of one family that change rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// IP family.
    pub family: Family,
    /// Masquerade everything that goes to a service.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// Match for traffic of pods of this cluster.
    pub detector: LocalDetector,
    /// Node ports answer on loopback, too; iptables mode alone.
    pub localhost_node_ports: bool,
    /// Addresses of this node, for source ranges that it is within.
    pub node_addresses: Vec<IpAddr>,
    /// Packets that belong to no connection are dropped: not where the kernel is told to be liberal about them.
    pub drop_invalid: bool,
    /// Parts of the machine and the cluster that change.
    pub environment: Environment,
    /// Counters of packets that rules may name; iptables mode finds out.
    pub counters: Counters,
    /// Record of what is done, in place of doing it.
    pub dry_run: Option<DryRun>,
}

impl Options {
    /// Options for a cluster about which nothing is known.
    #[must_use]
    pub fn new(family: Family) -> Self {
        Self {
            family,
            masquerade_all: false,
            masquerade_mark: 0x4000,
            detector: LocalDetector::None,
            localhost_node_ports: false,
            node_addresses: Vec::new(),
            drop_invalid: true,
            environment: Environment::default(),
            counters: Counters::default(),
            dry_run: None,
        }
    }

    /// Takes in what changed; true when node ports answer on other addresses than before.
    pub(crate) fn moves_node_ports(&mut self, environment: &Environment) -> bool {
        let moved = self.environment.node_ports != environment.node_ports;
        self.environment.clone_from(environment);
        moved
    }
}

/// Counters of packets that the kernel has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Of packets that are dropped since they belong to no connection.
    pub invalid: bool,
    /// Of packets for node ports on loopback.
    pub localhost: bool,
}

/// Commands that would be run, as a script. With one of these a back end takes the kernel to have nothing of it.
#[derive(Clone, Debug, Default)]
pub struct DryRun(Arc<Mutex<String>>);

impl DryRun {
    /// Adds a command.
    pub fn command(&self, program: &str, arguments: &[&str]) {
        let quoted = arguments.iter().map(|argument| match argument.contains(' ') {
            true => format!(" '{argument}'"),
            false => format!(" {argument}"),
        });
        let line = format!("{program}{}\n", quoted.collect::<String>());
        self.0.lock().push_str(&line);
    }

    /// Adds a command with its input.
    pub fn input(&self, command: &str, input: &str) {
        self.0.lock().push_str(&format!("{command} <<'EOF'\n{input}EOF\n"));
    }

    /// The script.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.lock().clone()
    }
}

/// Facts beside services that rules depend on and that change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Addresses that node ports answer on.
    pub node_ports: NodePorts,
    /// Networks that cluster IPs are out of (`ServiceCIDR` objects); none where that is not known.
    pub service_networks: BTreeSet<IpNet>,
}

/// Addresses of this node, of one family, that node ports answer on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePorts {
    /// Every address; loopback by the mode's own rule.
    #[default]
    All,
    /// Only these addresses.
    Addresses(BTreeSet<IpAddr>),
}

/// Chains of one port as they were written, with a number for the text of each instead of the text.
#[derive(Debug, Default)]
pub struct WrittenChains(BTreeMap<String, u64>);

impl WrittenChains {
    /// Of chains with their rules.
    #[must_use]
    pub fn of(chains: &[(String, Vec<impl Hash>)]) -> Self {
        Self(chains.iter().map(|(chain, rules)| (chain.clone(), fingerprint(rules))).collect())
    }

    /// True for a chain that was written with these rules.
    #[must_use]
    pub fn has(&self, chain: &str, rules: &[impl Hash]) -> bool {
        self.0.get(chain).is_some_and(|written| *written == fingerprint(rules))
    }

    /// The names of those that are not among the chains of `after`.
    pub fn gone<R>(mut self, after: &[(String, Vec<R>)]) -> impl Iterator<Item = String> {
        for (name, _) in after {
            self.0.remove(name);
        }
        self.0.into_keys()
    }
}

fn fingerprint(rules: &[impl Hash]) -> u64 {
    let mut hasher = DefaultHasher::new();
    rules.hash(&mut hasher);
    hasher.finish()
}

/// Runs what waits for the kernel on a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SyncError> + Send + 'static,
) -> Result<T, SyncError> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(SyncError::Kernel { what: "a thread", error: std::io::Error::other(error) }))
}

impl SyncError {
    /// True for a tool that looked and found that there is no such thing, and did not fail to look.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Refused { code: Some(1), .. })
    }
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
    Err(SyncError::Refused { program: program.to_owned(), message, code: output.status.code() })
}

/// A proxy mode.
pub struct Mode {
    /// Value of `mode` and `--proxy-mode`.
    pub name: &'static str,
    /// Upstream does not have it any more: its names of modes do not list it.
    pub is_historic: bool,
    /// Section of the configuration with its sync periods.
    pub periods: &'static str,
    /// Section of the configuration with what is masqueraded, and how it is marked.
    pub masquerading: &'static str,
    /// Node ports answer on loopback where the configuration says so.
    pub localhost_node_ports: bool,
    /// Node ports answer on the node's primary addresses alone where the configuration names none.
    pub primary_node_ports: bool,
    /// Makes the back end of one family; a mode reads sections of its own from the configuration.
    pub backend: fn(Options, &Settings) -> Box<dyn Backend>,
}

impl fmt::Debug for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}
