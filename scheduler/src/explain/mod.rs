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
use clap::{Arg, ArgMatches, Command};
use serde_json::Value;
use shared::tool::{self, cluster_args, connect, output_arg, path_arg};

use crate::framework::explain::Explanation;
use crate::framework::{Features, Profile};
use crate::settings;

pub use print::table;
pub use target::{Priorities, from_manifest, with_priority};
pub use world::{Dump, DumpedWorld, listers, priorities};

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

/// Flags that say where the cluster is, which profiles to ask, and how to print.
pub(crate) fn common_args() -> [Arg; 4] {
    let [kubeconfig, dump] = cluster_args();
    let config = path_arg("config", "KubeSchedulerConfiguration with the profiles to ask");
    [kubeconfig, dump, config, output_arg()]
}

/// The cluster and the profiles that the arguments name.
pub(crate) async fn cluster(matches: &ArgMatches) -> anyhow::Result<(Dump, Vec<Profile>)> {
    let path = |name: &str| matches.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let dump = match path("from-dump") {
        Some(path) => Dump::load(path)?,
        None => Dump::read(&connect("kube-scheduler-explain", path("kubeconfig")).await?).await?,
    };
    Ok((dump, profiles(path("config"))?))
}

/// Runs the command if the arguments (without the program's name) ask for it.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    tool::run(NAME, command, tell, args)
}

async fn tell(matches: &ArgMatches) -> anyhow::Result<String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (dump, profiles) = cluster(matches).await?;
    let explanation = match matches.get_one::<PathBuf>("filename") {
        Some(file) => {
            let pod = from_manifest(&manifest(file)?, &text("namespace"))?;
            let pod = with_priority(pod, &dump.priorities());
            DumpedWorld::of(dump).explain(&profiles, &pod)?
        }
        None => {
            let name = text("pod");
            anyhow::ensure!(!name.is_empty(), "name a pod, or give one that does not exist yet with --filename");
            let world = DumpedWorld::of(dump);
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

pub(crate) fn profiles(config: Option<&Path>) -> anyhow::Result<Vec<Profile>> {
    const KIND: &str = "KubeSchedulerConfiguration";
    let tree: Value = match config {
        Some(path) => shared::config::load(&path.to_string_lossy(), KIND)?,
        None => shared::config::defaults("kubescheduler.config.k8s.io/v1", KIND),
    };
    let complete = settings::complete(&tree, Features::default())?;
    settings::validate(&complete, Features::default())?;
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
