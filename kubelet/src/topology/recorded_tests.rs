//! Pods on recorded machines: where the topology manager and the CPU manager place them together, with each of their options.

use super::machine::tests::{EIGHT_SOCKETS, ONE_SOCKET, TWO_SOCKETS, recorded};
use super::*;
use crate::cpus::{CpuConfig, Cpus};
use serde_json::{Value, json};
use shared::flags::FeatureGates;
use std::sync::Arc;

/// An empty column.
const NONE: &str = "-";

/// A line of the table, without its last column.
struct Row<'a> {
    machine: &'a str,
    placement: TopologyConfig,
    options: BTreeMap<String, String>,
    reserved: &'a str,
    /// Processors of the containers of each pod.
    pods: Vec<Vec<&'a str>>,
}

impl<'a> Row<'a> {
    fn parse(columns: &[&'a str]) -> Self {
        let &[machine, placement, options, reserved, pods] = columns else { panic!("five columns: {columns:?}") };
        let (mut policy, mut scope, mut placing) = (String::new(), String::new(), BTreeMap::new());
        for word in placement.split_whitespace() {
            match word.split_once('=') {
                Some((option, value)) => _ = placing.insert(option.to_owned(), value.to_owned()),
                None if policy.is_empty() => word.clone_into(&mut policy),
                None => word.clone_into(&mut scope),
            }
        }
        let pods = pods.split(',').map(str::trim).filter(|pod| *pod != NONE);
        Self {
            machine,
            placement: TopologyConfig { policy, scope, options: placing },
            options: options
                .split_whitespace()
                .filter(|option| *option != NONE)
                .map(|option| (option.to_owned(), "true".to_owned()))
                .collect(),
            reserved,
            pods: pods.map(|pod| pod.split('+').collect()).collect(),
        }
    }

    /// Lets the pods come: what each of them gets, and what is left to the others.
    async fn run(&self) -> String {
        let machine = match self.machine {
            "one-socket" => ONE_SOCKET,
            "two-sockets" => TWO_SOCKETS,
            "eight-sockets" => EIGHT_SOCKETS,
            other => panic!("unknown machine {other}"),
        };
        let (system, root) = (recorded(machine), tempfile::tempdir().expect("a folder"));
        let nodes = NumaNodes::read(system.path()).expect("nodes");
        let topology = TopologyManager::new(&self.placement, &nodes).expect("a policy");
        let gates = BTreeMap::from([("CPUManagerPolicyAlphaOptions".to_owned(), true)]);
        let config = CpuConfig {
            policy: "static".to_owned(),
            options: self.options.clone(),
            reserved: self.reserved.to_owned(),
            gates: FeatureGates::default().with(&gates).expect("gates"),
            ..CpuConfig::default()
        };
        let cpus = Cpus::new(root.path(), system.path(), &config, topology.policy()).expect("a policy");
        let mut got = Vec::new();
        for (number, asked) in self.pods.iter().enumerate() {
            got.push(admit(&topology, &cpus, &number.to_string(), asked).await);
        }
        let others = cpus.of_container("another", "c").map(|cpus| cpus.to_string()).unwrap_or_default();
        format!("{} / {others}", got.join(", ")).trim().to_owned()
    }
}

/// Lets a pod come: the processors of its containers, or the reason of the refusal.
async fn admit(topology: &TopologyManager, cpus: &Arc<Cpus>, uid: &str, asked: &[&str]) -> String {
    let container = |(number, cpu): (usize, &&str)| {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
        json!({"name": number.to_string(), "resources": {"requests": amounts, "limits": amounts}})
    };
    let containers: Vec<Value> = asked.iter().enumerate().map(container).collect();
    let pod = json!({"metadata": {"name": "p", "uid": uid}, "spec": {"containers": containers}});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    if let Err(refusal) = topology.admit(&pod, &[cpus.as_ref()]).await {
        return refusal.reason.to_owned();
    }
    let own = |number: usize| cpus.exclusive(uid, &number.to_string()).map(|cpus| cpus.to_string().replace(',', " "));
    (0..asked.len()).map(|number| own(number).unwrap_or_default()).collect::<Vec<String>>().join(" + ")
}

#[tokio::test]
async fn pods_on_recorded_machines_get_what_the_options_promise() {
    const PLACEMENTS: &str = include_str!("testdata/placements.txt");
    let mut found = String::new();
    for line in PLACEMENTS.lines() {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        match columns.split_last() {
            Some((_, row)) if !line.starts_with('#') => {
                found += &format!("{} | {}\n", row.join(" | "), Row::parse(row).run().await);
            }
            _ => found += &format!("{line}\n"),
        }
    }
    assert!(found == PLACEMENTS, "{found}");
}
