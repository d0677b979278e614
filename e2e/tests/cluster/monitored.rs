//! Metrics and labels that `manifests/monitoring` names are served by the components of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use e2e::testing::{Cluster, run};
use serde_json::Value;

const ALERTS: &str = include_str!("../../../manifests/monitoring/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../manifests/monitoring/dashboard.json");

/// Labels that Prometheus adds.
const ADDED: [&str; 3] = ["instance", "job", "le"];
/// Metrics that have no sample before something fails, or before somebody registers what they are about; those of the first
/// node's certificates, which are not rotated; and of changes of endpoints before there are any.
const RARE: [&str; 10] = [
    "aggregator_unavailable_apiservice",
    "apiserver_admission_webhook_rejection_count",
    "apiserver_audit_error_total",
    "apiserver_flowcontrol_rejected_requests_total",
    "etcd_request_errors_total",
    "kubelet_certificate_manager_client_ttl_seconds",
    "kubelet_certificate_manager_server_ttl_seconds",
    "kubelet_evictions",
    "kubelet_runtime_operations_errors_total",
    "kubeproxy_network_programming_duration_seconds_bucket",
];
/// Words of expressions that are no metrics.
const OTHERS: [&str; 1] = ["up"];

/// Labels by metric.
type Labels<'t> = BTreeMap<&'t str, BTreeSet<&'t str>>;

/// Every expression finds what it asks for, once pods have run.
pub fn by_alerts_and_dashboards(cluster: &Cluster) {
    let expressions = [expressions_of_alerts(), expressions_of_dashboard()].concat();
    assert!(expressions.len() > 40, "expressions are found: {}", expressions.len());
    cluster.until("all that is monitored is there", 60, || {
        let pages = pages(cluster);
        let served = served(&pages);
        let missing: BTreeSet<String> = expressions.iter().flat_map(|one| missing(one, &served)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    });
}

fn pages(cluster: &Cluster) -> String {
    let mut pages = String::new();
    for path in ["/metrics", "/api/v1/nodes/node-1/proxy/metrics", "/api/v1/nodes/node-1/proxy/metrics/cadvisor"] {
        pages += &cluster.kubectl(&format!("get --raw {path}"));
    }
    let pki = cluster.layout().pki();
    let file = |extension: &str| pki.join(format!("apiserver-kubelet-client.{extension}")).display().to_string();
    let (certificate, key) = (file("crt"), file("key"));
    for port in ["10257", "10259"] {
        let url = format!("https://127.0.0.1:{port}/metrics");
        let arguments = ["-ksf", "--noproxy", "*", "--cert", &certificate, "--key", &key, &url];
        pages += &run("curl", &arguments, None).out;
    }
    pages + &cluster.on_node("node-1", &["curl", "-sf", "http://127.0.0.1:10249/metrics"])
}

/// Metrics of pages in the text format, with the labels that their samples have.
fn served(pages: &str) -> Labels<'_> {
    let mut found = Labels::new();
    for line in pages.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap_or(line.len()));
        let labels = found.entry(name).or_default();
        let mut rest = rest.strip_prefix('{').unwrap_or_default();
        while let Some((label, value)) = rest.split_once("=\"") {
            labels.insert(label);
            let mut escaped = false;
            let end = value.find(|c| {
                let closes = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                closes
            });
            rest = value.get(end.unwrap_or(value.len()) + 1..).unwrap_or_default().trim_start_matches(',');
        }
    }
    found
}

fn expressions_of_dashboard() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| collect(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(DASHBOARD).expect("a dashboard"), &mut found);
    found
}

/// The texts between `expr:` and the next field.
fn expressions_of_alerts() -> Vec<String> {
    let ends = ["\n    for:", "\n    labels:"];
    let until_end = |text: &str| ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    ALERTS.split("    expr:").skip(1).map(|text| text[..until_end(text)].trim_start_matches(" |").to_owned()).collect()
}

/// Metrics of an expression that nobody serves, and labels that they do not have.
fn missing(expression: &str, served: &Labels<'_>) -> Vec<String> {
    let (metrics, grouped) = (metrics(expression), grouped(expression));
    let mut missing = Vec::new();
    for (metric, matched) in &metrics {
        match served.get(metric.as_str()) {
            None if RARE.contains(&metric.as_str()) || OTHERS.contains(&metric.as_str()) => return missing,
            None => missing.push(metric.clone()),
            Some(labels) => {
                let unknown = matched.iter().filter(|label| !labels.contains(label.as_str()));
                missing.extend(
                    unknown.filter(|label| !ADDED.contains(&label.as_str())).map(|l| format!("{metric}{{{l}}}")),
                );
            }
        }
    }
    let any_has =
        |label: &str| metrics.keys().any(|metric| served.get(metric.as_str()).is_some_and(|l| l.contains(label)));
    let unknown = grouped.iter().filter(|label| !ADDED.contains(&label.as_str()) && !any_has(label));
    missing.extend(unknown.map(|label| format!("by ({label}) of {expression}")));
    missing
}

/// The metrics of an expression, with the labels by which it selects their samples.
fn metrics(expression: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|c: char| c.is_ascii_lowercase()) {
        let word = rest[start..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        rest = &rest[start + word.len()..];
        let mut matchers = "";
        if let Some(inside) = rest.strip_prefix('{') {
            (matchers, rest) = inside.split_once('}').expect("a closing brace");
        }
        if word.contains('_') && !["histogram_quantile", "rate_interval"].contains(&word) || word == "up" {
            let labels = matchers.split("\",").filter_map(|one| one.split(['=', '!']).next());
            let labels = labels.filter(|l| !l.is_empty()).map(|l| l.trim().to_owned());
            found.entry(word.to_owned()).or_default().extend(labels);
        }
        // Labels between parentheses are no metrics.
        if word == "by" {
            rest = rest.split_once(')').map_or("", |(_, after)| after);
        }
    }
    found
}

/// The labels by which an expression groups.
fn grouped(expression: &str) -> Vec<String> {
    let groups = expression.split("by (").skip(1).filter_map(|text| text.split(')').next());
    groups.flat_map(|labels| labels.split(',')).map(|label| label.trim().to_owned()).collect()
}
