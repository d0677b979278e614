//! Answers of metrics servers behind the simulated server, and the scales of objects.
//!
//! Pods say what they use themselves, in their annotations `sim/cpu` and `sim/memory` (each container as much); custom
//! and external metrics are what a scenario serves at a path.

use std::collections::BTreeMap;

use proto::selector::label::Selector;
use serde_json::{Value, json};

use super::store::Store;
use crate::engine::clock;
use crate::engine::object::seconds;

/// Groups that are served by others.
const GROUPS: [&str; 3] =
    ["/apis/metrics.k8s.io/v1beta1/", "/apis/custom.metrics.k8s.io/v1beta2/", "/apis/external.metrics.k8s.io/v1beta1/"];

/// Reports whether metrics servers answer for a path.
pub(super) fn answers(path: &str) -> bool {
    GROUPS.iter().any(|group| path.starts_with(group))
}

/// The answer, or none where nothing is measured.
pub(super) fn answer(store: &Store, served: &BTreeMap<String, Value>, path: &str, selector: &str) -> Option<Value> {
    if let Some(rest) = path.strip_prefix(GROUPS[0]) {
        let namespace = rest.strip_prefix("namespaces/")?.strip_suffix("/pods")?;
        return Some(pods(store, namespace, selector));
    }
    let items = served.get(path)?;
    let now = seconds(clock::now());
    let items: Vec<Value> = items
        .as_array()?
        .iter()
        .map(|item| {
            let mut item = item.clone();
            item["timestamp"] = json!(now);
            item
        })
        .collect();
    Some(json!({"kind": "MetricValueList", "metadata": {}, "items": items}))
}

fn pods(store: &Store, namespace: &str, selector: &str) -> Value {
    let selector = Selector::parse(&decoded(selector)).expect("a valid selector");
    let all = store.list(&(String::new(), "pods".to_owned()), namespace);
    let picked = all.iter().filter(|p| {
        let label = |key: &str| p["metadata"]["labels"][key].as_str();
        selector.requirements().iter().all(|r| r.matches(label(r.key())))
    });
    let items: Vec<Value> = picked
        .filter(|p| p["status"]["phase"] == "Running" && p["metadata"]["annotations"]["sim/cpu"].is_string())
        .map(|p| {
            let notes = &p["metadata"]["annotations"];
            let usage = json!({"cpu": notes["sim/cpu"], "memory": notes["sim/memory"].as_str().unwrap_or("64Mi")});
            let containers: Vec<Value> = p["spec"]["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|c| json!({"name": c["name"], "usage": usage}))
                .collect();
            json!({"metadata": {"name": p["metadata"]["name"], "namespace": namespace},
                "timestamp": seconds(clock::now()), "window": "10s", "containers": containers})
        })
        .collect();
    json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items})
}

fn decoded(text: &str) -> String {
    text.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/").replace("%20", " ")
}

/// The scale of an object.
pub(super) fn scale(object: &Value) -> Value {
    let selector = &object["spec"]["selector"];
    let pairs = selector.get("matchLabels").unwrap_or(selector).as_object();
    let pairs: Vec<String> =
        pairs.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": object["metadata"],
        "spec": {"replicas": object["spec"]["replicas"]},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0), "selector": pairs.join(",")}})
}

/// Discovery with the group of custom metrics.
pub(super) fn with_custom(mut discovery: Value) -> Value {
    if let Some(groups) = discovery["items"].as_array_mut() {
        groups.push(json!({"metadata": {"name": "custom.metrics.k8s.io"}, "versions": [{"version": "v1beta2",
            "freshness": "Current", "resources": [{"resource": "pods/requests", "scope": "Namespaced", "verbs": ["get"],
                "responseKind": {"group": "", "version": "", "kind": "MetricValueList"}}]}]}));
    }
    discovery
}
