//! `kube-scheduler explain`: why a pod is where it is, or nowhere; and where a pod would go that does not exist yet.
//!
//! Against a live cluster or a dump of one. Reads only, decides nothing, and asks the same plugins as the scheduler
//! (see [`crate::framework::explain`]).

mod print;
mod target;
mod world;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::Value;

use crate::framework::explain::Explanation;
use crate::framework::{Features, Profile};
use crate::settings;

pub use print::table;
pub use target::{Priorities, from_manifest, with_priority};
pub use world::{Dump, World, documents, listers, priorities};

const NAME: &str = "explain";

fn command() -> Command {
    Command::new("kube-scheduler explain")
        .about("Tells, node by node, why a pod fits or not, and how the nodes that fit score. Changes nothing.")
        .arg(Arg::new("pod").value_name("POD").help("Name of a pod that exists"))
        .arg(Arg::new("namespace").short('n').long("namespace").value_name("NAMESPACE").default_value("default"))
        .arg(
            path_arg(
                "filename",
                "YAML or JSON of a pod, or of what makes pods, that does not exist yet (- for standard input)",
            )
            .short('f')
            .conflicts_with("pod"),
        )
        .args(common_args())
}

pub(crate) fn path_arg(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).value_name("FILE").value_parser(value_parser!(PathBuf))
}

/// Where the cluster is, which profiles to ask, and how to print.
pub(crate) fn common_args() -> [Arg; 4] {
    [
        path_arg("kubeconfig", "Credentials for a live cluster"),
        path_arg("from-dump", "Objects from a file, or a folder of files, as kubectl get -o json or yaml writes them")
            .conflicts_with("kubeconfig"),
        path_arg("config", "KubeSchedulerConfiguration with the profiles to ask"),
        Arg::new("output")
            .short('o')
            .long("output")
            .value_parser(["table", "json"])
            .default_value("table")
            .action(ArgAction::Set),
    ]
}

/// The cluster and the profiles that the arguments name.
pub(crate) async fn cluster(matches: &ArgMatches) -> anyhow::Result<(Dump, Vec<Profile>)> {
    let path = |name: &str| matches.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let dump = match path("from-dump") {
        Some(path) => Dump::load(path)?,
        None => Dump::read(&connect(path("kubeconfig")).await?).await?,
    };
    Ok((dump, profiles(path("config"))?))
}

/// Runs the command if the arguments (without the program's name) ask for it.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    run_command(NAME, command, tell, args)
}

/// Runs a command that prints one text, if the arguments ask for it by name.
pub(crate) fn run_command(
    name: &str,
    command: fn() -> Command,
    tell: impl AsyncFnOnce(&ArgMatches) -> anyhow::Result<String>,
    args: impl IntoIterator<Item = OsString>,
) -> Option<ExitCode> {
    let mut args = args.into_iter().peekable();
    if args.peek().is_none_or(|first| first != name) {
        return None;
    }
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) => {
            let failed = e.use_stderr();
            // Nothing is left to do when even this cannot be said.
            let _ = e.print();
            return Some(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let told = runtime.map_err(anyhow::Error::new).and_then(|runtime| runtime.block_on(tell(&matches)));
    Some(match told {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("Error: {e:#}");
            ExitCode::FAILURE
        }
    })
}

async fn tell(matches: &ArgMatches) -> anyhow::Result<String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (dump, profiles) = cluster(matches).await?;
    let explanation = match matches.get_one::<PathBuf>("filename") {
        Some(file) => {
            let pod = from_manifest(&manifest(file)?, &text("namespace"))?;
            let pod = with_priority(pod, &dump.priorities());
            World::of(dump).explain(&profiles, &pod)?
        }
        None => {
            let name = text("pod");
            anyhow::ensure!(!name.is_empty(), "name a pod, or give one that does not exist yet with --filename");
            let world = World::of(dump);
            let pod = world.pod(&text("namespace"), &name)?;
            world.explain(&profiles, &pod)?
        }
    };
    output(&explanation, text("output") == "json")
}

/// The explanation as text.
fn output(explanation: &Explanation, json: bool) -> anyhow::Result<String> {
    if json { Ok(serde_json::to_string_pretty(explanation)? + "\n") } else { Ok(table(explanation)) }
}

async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<kube::Client> {
    // Fails only when one is installed already, and then there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fallback = || std::env::var("KUBECONFIG").unwrap_or_default();
    shared::client::new(&shared::client::Options {
        kubeconfig: kubeconfig.map_or_else(fallback, |p| p.to_string_lossy().into_owned()),
        master: String::new(),
        qps: 0.0,
        burst: 100,
        user_agent: shared::client::user_agent("kube-scheduler-explain"),
    })
    .await
}

pub(crate) fn profiles(config: Option<&Path>) -> anyhow::Result<Vec<Profile>> {
    const KIND: &str = "KubeSchedulerConfiguration";
    let tree: Value = match config {
        Some(path) => shared::config::load(&path.to_string_lossy(), KIND)?,
        None => shared::config::defaults("kubescheduler.config.k8s.io/v1", KIND),
    };
    let complete = settings::complete(&tree)?;
    settings::validate(&complete)?;
    Ok(settings::profiles(&complete, Features::default())?.1)
}

fn manifest(file: &Path) -> anyhow::Result<Value> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())?
    } else {
        std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?
    };
    proto::yaml::decode_any(text.as_bytes()).with_context(|| format!("reading {}", file.display()))
}

#[cfg(test)]
mod tests;
