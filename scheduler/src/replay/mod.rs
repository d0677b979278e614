//! `kube-scheduler replay`: where all pods of a list would go, one after the other, on a cluster as it was.
//!
//! The cluster is a dump or a live one, read as [`crate::explain`] reads it; the pods are those of the cluster that wait,
//! then those of the list. Every decision is printed. Runs in a [`Simulation`], where bindings and evictions succeed at
//! once: nothing is written anywhere. The same input and seed give the same decisions.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Arg, ArgMatches, Command, value_parser};
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde_json::Value;
use shared::tool::{self, documents, path_arg};

use crate::explain::{Dump, cluster, common_args, from_manifest, listers, with_priority};
use crate::framework::Profile;
use crate::model::{NodeBase, PodInfo};
use crate::simulation::{Attempt, Simulation};

const NAME: &str = "replay";
/// Pods made of one template at most.
const MAX_REPLICAS: u64 = 1_000_000;
/// Attempts per pod, on average, after which nothing more is expected.
const ATTEMPTS: usize = 16;

fn command() -> Command {
    Command::new("kube-scheduler replay")
        .about("Places the waiting pods of a cluster, and those of a list, one after the other, and prints where. Changes nothing.")
        .arg(path_arg("filename", "YAML or JSON of pods, or of what makes pods, to place after those that wait").short('f'))
        .arg(Arg::new("namespace").short('n').long("namespace").value_name("NAMESPACE").default_value("default"))
        .arg(
            Arg::new("seed")
                .long("seed")
                .help("Which of several best nodes is taken depends on it")
                .value_parser(value_parser!(u64))
                .default_value("1"),
        )
        .args(common_args())
}

/// Runs the command if the arguments (without the program's name) ask for it.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    tool::run(NAME, command, tell, args)
}

async fn tell(matches: &ArgMatches) -> anyhow::Result<String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (dump, profiles) = cluster(matches).await?;
    let pods = match matches.get_one::<PathBuf>("filename") {
        Some(file) => list(file, &text("namespace"), &dump)?,
        None => Vec::new(),
    };
    let seed = matches.get_one::<u64>("seed").copied().unwrap_or_default();
    let decisions = replay(&dump, profiles, &pods, seed);
    if text("output") == "json" {
        return Ok(serde_json::to_string_pretty(&decisions)? + "\n");
    }
    Ok(decisions.iter().map(Decision::line).collect())
}

/// Result of an attempt to place a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Namespace and name.
    pub pod: String,
    /// Node of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Reason why the pod goes nowhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The node where room is made for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominated: Option<String>,
    /// Pods that leave for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<String>,
}

impl Decision {
    fn of(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Bound(pod) => Self {
                pod: pod.to_string(),
                node: pod.node_name.as_ref().map(ToString::to_string),
                message: String::new(),
                nominated: None,
                victims: Vec::new(),
            },
            Attempt::Waits(pod, message, rescue) => Self {
                pod: pod.to_string(),
                node: None,
                message,
                nominated: rescue.nominate.map(|n| n.to_string()),
                victims: rescue.victims.iter().map(ToString::to_string).collect(),
            },
        }
    }

    fn line(&self) -> String {
        match (&self.node, &self.nominated) {
            (Some(node), _) => format!("{}\t{node}\n", self.pod),
            (None, Some(node)) => format!("{}\t-\tpreempts {} on {node}\n", self.pod, self.victims.join(", ")),
            (None, None) => format!("{}\t-\t{}\n", self.pod, self.message),
        }
    }
}

/// The pods of a file or folder.
///
/// # Errors
/// What cannot be read, and objects that make no pods.
pub fn list(path: &Path, namespace: &str, dump: &Dump) -> anyhow::Result<Vec<Pod>> {
    let priorities = dump.priorities();
    let mut pods = Vec::new();
    documents(path, &mut |document| {
        for manifest in items(document) {
            let made = with_priority(from_manifest(&manifest, namespace)?, &priorities);
            let replicas = match manifest.get("kind").and_then(Value::as_str) {
                Some("Pod") => 1,
                _ => manifest.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1).min(MAX_REPLICAS),
            };
            for number in 0..replicas {
                let mut pod = made.clone();
                if replicas > 1 {
                    let name = pod.metadata.name.get_or_insert_default();
                    name.push_str(&format!("-{number}"));
                }
                pods.push(pod);
            }
        }
        Ok(())
    })?;
    Ok(pods)
}

/// The objects of a list, or the one object.
fn items(document: Value) -> Vec<Value> {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    let Some(of) = kind.strip_suffix("List").map(str::to_owned) else { return vec![document] };
    let mut items = document.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    items.iter_mut().filter(|item| item.get("kind").is_none()).for_each(|item| item["kind"] = of.as_str().into());
    items
}

/// Places the waiting pods of a cluster, then others, and tells of every attempt.
pub fn replay(dump: &Dump, profiles: Vec<Profile>, pods: &[Pod], seed: u64) -> Vec<Decision> {
    let mut sim = Simulation::of(profiles, seed);
    sim.listers = listers(dump);
    dump.nodes.iter().for_each(|node| sim.set_node(NodeBase::from_api(node)));
    let mut taken = HashSet::new();
    let mut infos: Vec<Arc<PodInfo>> = Vec::new();
    for pod in dump.pods.iter().filter(|p| !shared::types::is_pod_terminal(p)).chain(pods) {
        let mut info = PodInfo::interned(pod, &mut sim.interner);
        // Pods that do not exist yet are told apart by their number.
        if !taken.insert(Arc::clone(&info.uid)) {
            info.uid = format!("{}-{}", info.uid, taken.len()).into();
            taken.insert(Arc::clone(&info.uid));
        }
        infos.push(Arc::new(info));
    }
    // Those on nodes first: whoever waits must find them there.
    let (bound, waiting): (Vec<_>, Vec<_>) = infos.into_iter().partition(|p| p.node_name.is_some());
    let most = waiting.len() * ATTEMPTS;
    bound.into_iter().chain(waiting).for_each(|p| sim.add_pod(p));
    let mut decisions = Vec::new();
    while decisions.len() < most {
        match sim.step() {
            Some(attempt) => decisions.push(Decision::of(attempt)),
            None if !sim.skip_backoff() => break,
            None => {}
        }
    }
    decisions
}

#[cfg(test)]
mod tests;
