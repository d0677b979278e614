//! The life of a process: command line, logging, runtime, signals, exit code. The same in all five components.

mod blocks;
mod log;
mod memory;
mod names;
pub mod systemd;
mod tasks;
mod watchdog;

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::flags::{FlagSet, Stop};
pub use blocks::Blocks;
pub use log::{set_logging, set_verbosity, verbosity};
pub use memory::release_memory;
pub use names::settle_names;
pub use tasks::{Panic, TaskGroup, contained, contained_async, panic_text};
pub use watchdog::{Polls, apart, measure_polls, measured, measured_polls, process_time};

/// Most threads for work that blocks.
pub const BLOCKING_THREADS: usize = 32;
const BLOCKING_IDLE: Duration = Duration::from_secs(5);

/// Tells everything that runs when to stop. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// One that nobody triggered.
    pub fn new() -> Self {
        Self::default()
    }

    /// The token below, for `select!` and foreign interfaces.
    pub fn token(&self) -> &CancellationToken {
        &self.0
    }

    /// Triggered with its parent or on its own.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Begins the end.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Reports whether shutdown has begun.
    pub fn is_triggered(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it begins.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }
}

impl From<CancellationToken> for Shutdown {
    fn from(token: CancellationToken) -> Self {
        Self(token)
    }
}

/// Threads beyond which a process gains nothing from more.
const MOST_THREADS: usize = 32;

/// Threads for a component whose work spreads over processors: as many as the process may use, by its affinity and the quota
/// of its cgroup, or as `GOMAXPROCS` says, which is what limits upstream's components; at least `least`.
#[must_use]
pub fn worker_threads(least: usize) -> usize {
    let machine = || std::thread::available_parallelism().map_or(least, usize::from);
    threads_for(std::env::var("GOMAXPROCS").ok().as_deref(), machine, least)
}

fn threads_for(wanted: Option<&str>, machine: impl FnOnce() -> usize, least: usize) -> usize {
    let wanted = wanted.and_then(|text| text.parse().ok()).filter(|threads: &usize| *threads > 0);
    wanted.unwrap_or_else(machine).clamp(least, MOST_THREADS.max(least))
}

/// Runs a component: parses the command line, starts logging and the runtime, awaits `work` and turns its result
/// into an exit code. SIGTERM and SIGINT trigger the shutdown, a second one ends the process at once.
///
/// Tasks run on so many `threads`. Tasks that are short and wake each other want one: waking a second thread costs more
/// than what it could take over.
pub fn main<F, Fut>(component: &'static str, threads: usize, work: F) -> ExitCode
where
    F: FnOnce(FlagSet, Shutdown) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    settle_names();
    let flags = match FlagSet::parse(component, std::env::args_os().skip(1)) {
        Ok(flags) => flags,
        Err(stop) => return ended_early(component, &stop),
    };
    for line in flags.deprecations() {
        eprintln!("{line}");
    }
    if let Err(e) = log::start(&flags) {
        eprintln!("Error: {e}");
        return ExitCode::FAILURE;
    }
    memory::settle_allocator(threads);
    crate::connections::raise_open_files();
    // Fails only when one is installed already, and then there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let Err(e) = crate::metrics::start(&flags) {
        eprintln!("Error: {e}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_IDLE)
        .thread_name(component)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return failed(&anyhow::Error::new(e).context("unable to start the runtime")),
    };
    let shutdown = Shutdown::new();
    let result = runtime.block_on(async {
        tokio::spawn(signals(shutdown.clone()));
        tokio::spawn(memory::tidy());
        work(flags, shutdown).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(&e),
    }
}

fn ended_early(component: &str, stop: &Stop) -> ExitCode {
    match stop {
        Stop::Help(text) | Stop::Version(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Stop::Usage { message, .. } if component == "kubelet" => {
            // By then upstream's kubelet has its logging up.
            eprint!("{}", log::plain_error("Command failed", message));
            ExitCode::FAILURE
        }
        Stop::Usage { message, usage } => {
            if !usage.is_empty() {
                eprintln!("{usage}");
            }
            eprintln!("Error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    tracing::error!(err = story(error), "Command failed");
    ExitCode::FAILURE
}

/// The error and its causes, each said once: some errors repeat their cause in their own text.
fn story(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The process-wide signal task; it outlives everything by design.
async fn signals(shutdown: Shutdown) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::error!("Failed to listen for signals");
        return;
    };
    let mut seen = 0;
    loop {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        seen += 1;
        if seen > 1 {
            std::process::exit(1);
        }
        tracing::info!("Shutting down on signal");
        shutdown.trigger();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once() {
        let inner = anyhow::anyhow!("no such file").context("reading x: no such file").context("starting");
        assert_eq!(story(&inner), "starting: reading x: no such file");
    }

    #[test]
    fn threads_follow_the_processors_and_gomaxprocs() {
        for (wanted, machine, expected) in
            [(None, 1, 2), (None, 8, 8), (None, 500, 32), (Some("4"), 64, 4), (Some("0"), 3, 3), (Some("x"), 3, 3)]
        {
            assert_eq!(threads_for(wanted, || machine, 2), expected, "{wanted:?} {machine}");
        }
    }

    #[tokio::test]
    async fn shutdown_reaches_children_only_downwards() {
        let parent = Shutdown::new();
        let (one, two) = (parent.child(), parent.child());
        one.trigger();
        assert!(one.is_triggered() && !parent.is_triggered() && !two.is_triggered());
        parent.trigger();
        two.wait().await;
        assert!(two.is_triggered());
    }
}
