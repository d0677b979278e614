//! The families of `/metrics`: what upstream has of the same name is of the same type, stability, labels and buckets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// A family as it is published.
#[derive(Default)]
struct Family {
    kind: String,
    stability: String,
    labels: BTreeSet<String>,
    buckets: BTreeSet<String>,
}

/// Names and values of labels: `a="b",c="d"`. No value here has a quote in it.
fn labels(text: &str) -> Vec<(String, String)> {
    let pairs = text.split("\",").filter_map(|pair| pair.split_once("=\""));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end_matches('"').to_owned())).collect()
}

fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut all: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let stability = help.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or("", |(stage, _)| stage);
            all.entry(name.to_owned()).or_default().stability = stability.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
            current = name.to_owned();
        } else if let Some((_, rest)) = line.split_once('{') {
            let family = all.entry(current.clone()).or_default();
            for (name, value) in labels(rest.rsplit_once('}').map_or("", |(inside, _)| inside)) {
                match name.as_str() {
                    "le" => family.buckets.insert(value),
                    "quantile" => true,
                    _ => family.labels.insert(name),
                };
            }
        }
    }
    all
}

fn texts(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn families_are_upstreams() {
    let Some((c, ns)) = crate::workspace("families").await else { return };
    let maps = format!("{ns}/configmaps");
    let policy = json!({"metadata": {"name": "families"}, "spec": {"validations": [{"expression": "true"}],
        "matchConstraints": {"resourceRules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"]}]}}});
    c.post("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", policy).await.ok();
    c.post(
        &format!("{ns}/pods"),
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
    .await
    .ok();
    c.post(&maps, json!({"metadata": {"name": "a"}})).await.ok();
    c.get(&maps).await.ok();
    c.watch(&format!("{maps}?watch=1&timeoutSeconds=1"), 1).await;
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    c.watch(&format!("{maps}?watch=1&timeoutSeconds=1&{state}"), 2).await;
    c.patch(&format!("{maps}/a"), "merge-patch+json", json!({"data": {"k": "v"}})).await.ok();
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    c.post(&format!("{ns}/services"), service).await.ok();
    c.get("/apis/networking.k8s.io/v1/ipaddresses").await.ok();
    c.delete(&format!("{maps}/a")).await.ok();
    let published = parse(&c.get("/metrics").await.text());
    let path = format!("{}/testdata/metrics.json", env!("CARGO_MANIFEST_DIR"));
    let upstream: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("test data")).expect("JSON");
    let mut wrong = Vec::new();
    for (name, want) in upstream.as_object().expect("families") {
        let Some(got) = published.get(name) else { continue };
        if want["type"] != got.kind || want["stability"].as_str().unwrap_or("") != got.stability {
            wrong.push(format!("{name}: {} {} instead of {want}", got.stability, got.kind));
        }
        // A vector shows its labels where it has a row.
        let named = texts(&want["labels"]);
        if !got.labels.is_empty() && got.labels != named {
            wrong.push(format!("{name}: labels {:?} instead of {named:?}", got.labels));
        }
        let buckets = texts(&want["buckets"]);
        if !got.buckets.is_empty() && got.buckets != buckets {
            wrong.push(format!("{name}: buckets {:?} instead of {buckets:?}", got.buckets));
        }
    }
    for name in [
        "apiextensions_apiserver_validation_ratcheting_seconds",
        "apiserver_admission_step_admission_duration_seconds_summary",
        "apiserver_audit_event_total",
        "apiserver_cache_list_fetched_objects_total",
        "apiserver_cache_list_returned_objects_total",
        "apiserver_cache_list_total",
        "apiserver_init_events_total",
        "apiserver_kube_aggregator_x509_insecure_sha1_total",
        "apiserver_kube_aggregator_x509_missing_san_total",
        "apiserver_request_body_size_bytes",
        "apiserver_request_timestamp_comparison_time",
        "apiserver_resource_size_estimate_bytes",
        "apiserver_storage_data_key_generation_duration_seconds",
        "apiserver_storage_data_key_generation_failures_total",
        "apiserver_request_filter_duration_seconds",
        "apiserver_selfrequest_total",
        "apiserver_storage_events_received_total",
        "apiserver_tls_handshake_errors_total",
        "apiserver_validation_declarative_validation_mismatch_total",
        "apiserver_watch_cache_consistent_read_total",
        "apiserver_watch_cache_read_wait_seconds",
        "apiserver_watch_events_sizes",
        "apiserver_watch_events_total",
        "apiserver_watch_list_duration_seconds",
        "apiserver_webhooks_x509_insecure_sha1_total",
        "apiserver_webhooks_x509_missing_san_total",
        "cardinality_enforcement_unexpected_categorizations_total",
        "apiserver_cel_compilation_duration_seconds",
        "etcd_lease_object_counts",
        "etcd_request_duration_seconds",
        "etcd_requests_total",
        "field_validation_request_duration_seconds",
        "kube_apiserver_clusterip_allocator_allocated_ips",
        "kube_apiserver_clusterip_allocator_allocation_duration_seconds",
        "kube_apiserver_clusterip_allocator_allocation_total",
        "kube_apiserver_clusterip_allocator_available_ips",
        "kube_apiserver_nodeport_allocator_allocated_ports",
        "kube_apiserver_nodeport_allocator_allocation_total",
        "kube_apiserver_nodeport_allocator_available_ports",
        "node_authorizer_graph_actions_duration_seconds",
        "registered_metrics_total",
        "serviceaccount_valid_tokens_total",
        "version_info",
        "watch_cache_capacity",
    ] {
        if !published.contains_key(name) {
            wrong.push(format!("{name} is missing"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
