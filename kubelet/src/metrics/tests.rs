//! Everything that is counted, compared with upstream's families.

use super::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Upstream's families: those that it shows on a node, and those that it registers.
const UPSTREAM: &str = include_str!("../../testdata/metrics.json");

/// A family that upstream makes at each scrape, and does not list.
const BY_COLLECTOR: &str = "kubelet_podcertificate_states";

/// A family as the page has it: stability, type, labels, buckets.
#[derive(Debug, Default)]
struct Family {
    stability: String,
    kind: String,
    labels: BTreeSet<String>,
    buckets: Vec<String>,
}

fn families(page: &str) -> BTreeMap<String, Family> {
    let mut all: BTreeMap<String, Family> = BTreeMap::new();
    for line in page.lines() {
        let declared = |mark: &str| line.strip_prefix(mark).and_then(|rest| rest.split_once(' '));
        if let Some((name, help)) = declared("# HELP ") {
            let stability = help.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or("", |(stage, _)| stage);
            all.entry(name.to_owned()).or_default().stability = stability.to_owned();
        } else if let Some((name, kind)) = declared("# TYPE ") {
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, labels)) = line.split_once('{') {
            let is_part = |end: &&str| name.ends_with(*end);
            let end = ["_bucket", "_sum", "_count"].into_iter().find(is_part).unwrap_or_default();
            let own = name.strip_suffix(end).filter(|own| all.contains_key(*own)).unwrap_or(name).to_owned();
            let family = all.entry(own).or_default();
            for (key, value) in labels.split(',').filter_map(|label| label.split_once("=\"")) {
                let value = value.split('"').next().unwrap_or_default();
                match key {
                    "le" if !family.buckets.iter().any(|known| known == value) => family.buckets.push(value.to_owned()),
                    "le" => {}
                    key => drop(family.labels.insert(key.to_owned())),
                }
            }
        }
    }
    all
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Counts everything that is counted here, once.
fn count_everything() {
    let (second, now) = (Duration::from_secs(1), Instant::now());
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"uid": "families", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "a"}], "hostUsers": false}}))
        .expect("pod");
    show();
    runtime_call("version", second, true);
    sandbox("", second, true);
    pod_start(&pod, true);
    container_start(&pod, "a", Some("ErrImagePull"));
    worker_round("sync", now);
    worker_start(&pod, Timestamp::now());
    pod_runs(&pod, Timestamp::now());
    status_told(second);
    certificate_replaced(Role::Serving, 60);
    certificate_failed(Role::Client);
    certificate_failed(Role::Serving);
    orphaned();
    pull(1, second);
    evicted("memory.available");
    pod_certificates::tell(&[(("s/s".to_owned(), "fresh"), 1)].into());
    eviction_stats_age("memory.available", second);
    refused("OutOfcpu");
    image_removed("age");
    events_opened(true);
    events_opened(false);
    event_seen(1);
    cgroup_operation("create", now);
    runtime_is_old();
    credential_plugin("p", second, true);
    credential_configuration("sha256:0");
    image_volumes(1, None);
    image_volumes(1, Some(true));
    image_volumes(1, Some(false));
    http_fallback();
    preempted("cpu");
    restarted(false);
    working("sync", "desired", "", 1);
    resizes::worked(second, true);
    resizes::infeasible("static_pod");
    resizes::accepted_late(resizes::RetryTrigger::PodUpdated);
    drop(CountedRequest::begin("GET", "/pods", false));
}

#[test]
fn families_have_upstreams_types_stages_labels_and_buckets() {
    count_everything();
    let page = families(&shared::metrics::gather());
    let upstream: Value = serde_json::from_str(UPSTREAM).expect("JSON");
    let (mut compared, mut wrong) = (0, Vec::new());
    for (name, want) in upstream.as_object().expect("families") {
        let Some(got) = page.get(name) else { continue };
        compared += 1;
        if want["stability"] != got.stability.as_str()
            || (want["type"] != got.kind.as_str() && want["type"] != "custom")
        {
            wrong.push(format!("{name}: {} {} instead of {want}", got.stability, got.kind));
        }
        let labels: Vec<&str> = got.labels.iter().map(String::as_str).collect();
        if !labels.is_empty() && labels != texts(&want["labels"]) {
            wrong.push(format!("{name}: {labels:?} instead of {want}"));
        }
        let number = |text: &str| text.parse::<f64>().ok().filter(|bucket| bucket.is_finite());
        let (mine, theirs): (Vec<f64>, Vec<f64>) = (
            got.buckets.iter().filter_map(|bucket| number(bucket)).collect(),
            texts(&want["buckets"]).into_iter().filter_map(number).collect(),
        );
        let same = mine.len() == theirs.len() && mine.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < a.abs() * 1e-4);
        if !mine.is_empty() && !theirs.is_empty() && !same {
            wrong.push(format!("{name}: {mine:?} instead of {theirs:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(compared > 45, "{compared} families");
    let own = page.keys().filter(|name| name.starts_with("kubelet_"));
    let is_unknown = |name: &&String| upstream.get(name.as_str()).is_none() && name.as_str() != BY_COLLECTOR;
    let unknown: Vec<&String> = own.filter(is_unknown).collect();
    assert_eq!(unknown, Vec::<&String>::new(), "upstream has no such family");
}

#[test]
fn requests_are_counted_under_few_names() {
    for (path, expected) in [
        ("/exec/ns/pod/c", "exec"),
        ("/metrics", "metrics"),
        ("/metrics/cadvisor/", "metrics/cadvisor"),
        ("/", ""),
        ("", ""),
    ] {
        assert_eq!(path_name(path), expected, "{path}");
    }
    drop(CountedRequest::begin("BREW", "/teapot/1", true));
    let wanted =
        r#"kubelet_http_requests_total{long_running="false",method="other",path="other",server_type="readonly"} 1"#;
    assert!(shared::metrics::gather().contains(wanted));
}

#[test]
fn time_to_run_is_told_with_and_without_pulls() {
    let at = |second: i64| Timestamp::from_second(second).expect("time");
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"creationTimestamp": at(1000).to_string()}})).expect("pod");
    let seconds = |pod: &Pod, pulling: u64| -> Vec<u64> {
        let times = start_times(pod, at(1002), Duration::from_secs(pulling), at(1040));
        times.into_iter().map(|(.., took)| took.as_secs()).collect()
    };
    assert_eq!(seconds(&pod, 30), [38, 40, 10]);
    assert_eq!(seconds(&pod, 90), [38, 40, 0]);
    assert_eq!(seconds(&Pod::default(), 30), [38]);
}

#[test]
fn certificates_tell_how_long_they_last() {
    let now = Timestamp::from_second(1000).expect("time");
    assert_eq!(seconds_left([Some(1060), Some(940)], now), [Some(60), Some(-60)]);
    assert_eq!(seconds_left([None, Some(i64::MIN)], now), [None, Some(i64::MIN)]);
}

#[test]
fn containers_are_counted_by_kind() {
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}],
        "initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}]}}))
    .expect("pod");
    let kinds = ["a", "i", "e"].map(|name| container_type(&pod, name));
    assert_eq!(kinds, ["container", "init_container", "ephemeral_container"]);
}
