//! Metrics that monitoring files name are metrics that a component defines.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Finding;
use crate::tree::Tree;

/// Suffixes that Prometheus adds to the names of histograms and summaries.
const SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];
/// Beginnings of names of metrics; other words of expressions are functions and labels.
const PREFIXES: [&str; 12] = [
    "aggregator_",
    "apiserver_",
    "container_",
    "etcd_",
    "kubelet_",
    "kubeproxy_",
    "leader_election_",
    "node_collector_",
    "process_",
    "rest_client_",
    "scheduler_",
    "workqueue_",
];

/// Counts, for each file of `manifests/monitoring` and for its document, metrics that no source has as a literal.
pub fn unknown_metrics(tree: &Tree) -> Vec<Finding> {
    let literals = literals(tree);
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, text) in &tree.monitoring {
        for name in metrics(text) {
            let base = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            if !literals.contains(name) && !literals.contains(base) {
                found.entry(path).or_default().push(name.to_owned());
            }
        }
    }
    found.into_iter().map(|(path, names)| Finding { key: path.to_owned(), count: names.len(), places: names }).collect()
}

/// The words of a text that are names of metrics.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| PREFIXES.iter().any(|prefix| word.len() > prefix.len() && word.starts_with(prefix))).collect()
}

/// The words between quotes in production code that could be names. A module of tests in a file of its own may be
/// declared at the top.
fn literals(tree: &Tree) -> BTreeSet<&str> {
    let code = tree.sources.iter().filter(|source| source.is_production());
    let production = code.map(|source| source.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
    production.flat_map(str::lines).flat_map(|line| line.split('"').skip(1).step_by(2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Source;

    fn tree(monitoring: &str) -> Tree {
        let source = Source {
            path: "apiserver/src/meters.rs".into(),
            text: "histogram(\"apiserver_request_duration_seconds\"); counter(\"apiserver_request_total\");\n".into(),
        };
        Tree {
            sources: vec![source],
            monitoring: vec![("manifests/monitoring/alerts.yaml".into(), monitoring.into())],
            ..Tree::default()
        }
    }

    #[test]
    fn metrics_that_nobody_defines_are_found() {
        let text = "expr: sum by (le) (rate(apiserver_request_duration_seconds_bucket[5m])) / apiserver_request_totals";
        let found = unknown_metrics(&tree(text));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].places, ["apiserver_request_totals"]);
        assert!(unknown_metrics(&tree("rate(apiserver_request_total{code=\"500\"}[5m])")).is_empty());
    }
}
