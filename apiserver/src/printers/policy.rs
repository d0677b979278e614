//! Rows of limits, rights and rules. Answers for upstream's `printPodDisruptionBudget`, `printClusterRoleBinding`.

use jiff::Timestamp;
use proto::Value;
use serde_json::json;

use super::text::{age, name};
use super::text::{condition, duration, int, labels, list, some, text, text_or};

pub(crate) fn resource_quota(o: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (key, hard) in o.pointer("/status/hard").and_then(Value::as_object).into_iter().flatten() {
        let used = o.pointer("/status/used").and_then(|u| u.get(key)).and_then(Value::as_str).unwrap_or("0");
        let column = if key.starts_with("limits.") { &mut limits } else { &mut requests };
        column.push(format!("{key}: {used}/{}", hard.as_str().unwrap_or("0")));
    }
    vec![name(o), json!(requests.join(", ")), json!(limits.join(", ")), age(o, now)]
}

fn number_or_percent(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Number(n) => n.to_string(),
        _ => "N/A".to_owned(),
    }
}

pub(crate) fn disruption_budget(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        json!(number_or_percent(&o["spec"]["minAvailable"])),
        json!(number_or_percent(&o["spec"]["maxUnavailable"])),
        json!(int(o, "/status/disruptionsAllowed")),
        age(o, now),
    ]
}

/// One metric as `name: current/target`.
fn metric(spec: &Value, current: &Value) -> String {
    let (key, label) = match text(spec, "/type") {
        "Resource" => ("resource", format!("{}: ", text(spec, "/resource/name"))),
        "ContainerResource" => ("containerResource", format!("{}: ", text(spec, "/containerResource/name"))),
        "Pods" => ("pods", String::new()),
        "Object" => ("object", String::new()),
        "External" => ("external", String::new()),
        _ => return "<unknown type>".to_owned(),
    };
    let (target, now) = (&spec[key]["target"], &current[key]["current"]);
    let percent = |v: &Value, absent: &str| v.as_i64().map_or_else(|| absent.to_owned(), |n| format!("{n}%"));
    if let Some(average) = target["averageValue"].as_str() {
        let suffix = if matches!(key, "object" | "external") { " (avg)" } else { "" };
        return format!("{label}{}/{average}{suffix}", text_or(now, "/averageValue", "<unknown>"));
    }
    if let Some(value) = target["value"].as_str() {
        return format!("{label}{}/{value}", text_or(now, "/value", "<unknown>"));
    }
    format!(
        "{label}{}/{}",
        percent(&now["averageUtilization"], "<unknown>"),
        percent(&target["averageUtilization"], "<auto>")
    )
}

pub(crate) fn autoscaler(o: &Value, now: Timestamp) -> Vec<Value> {
    let reference = format!("{}/{}", text(o, "/spec/scaleTargetRef/kind"), text(o, "/spec/scaleTargetRef/name"));
    let mut targets: Vec<String> = list(o, "/spec/metrics")
        .iter()
        .enumerate()
        .map(|(i, m)| metric(m, o.pointer(&format!("/status/currentMetrics/{i}")).unwrap_or(&Value::Null)))
        .collect();
    // autoscaling/v1 has one target.
    if let Some(cpu) = o.pointer("/spec/targetCPUUtilizationPercentage").and_then(Value::as_i64) {
        let current = o.pointer("/status/currentCPUUtilizationPercentage").and_then(Value::as_i64);
        targets
            .insert(0, format!("cpu: {}/{cpu}%", current.map_or_else(|| "<unknown>".to_owned(), |n| format!("{n}%"))));
    }
    let shown = if targets.is_empty() { "<none>".to_owned() } else { some(&targets, 2, ", ") };
    let minimum =
        o.pointer("/spec/minReplicas").and_then(Value::as_i64).map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    vec![
        name(o),
        json!(reference),
        json!(shown),
        json!(minimum),
        json!(int(o, "/spec/maxReplicas")),
        json!(int(o, "/status/currentReplicas")),
        age(o, now),
    ]
}

pub(crate) fn binding(o: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| -> String {
        let named = list(o, "/subjects").iter().filter(|s| s["kind"] == kind).map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
            _ => text(s, "/name").to_owned(),
        });
        named.collect::<Vec<_>>().join(", ")
    };
    let role = format!("{}/{}", text(o, "/roleRef/kind"), text(o, "/roleRef/name"));
    vec![
        name(o),
        json!(role),
        age(o, now),
        json!(subjects("User")),
        json!(subjects("Group")),
        json!(subjects("ServiceAccount")),
    ]
}

pub(crate) fn signing_request(o: &Value, now: Timestamp) -> Vec<Value> {
    let has = |kind: &str| list(o, "/status/conditions").iter().any(|c| c["type"] == kind);
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !text(o, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    let asked =
        o.pointer("/spec/expirationSeconds").and_then(Value::as_i64).map_or_else(|| "<none>".to_owned(), duration);
    vec![
        name(o),
        age(o, now),
        json!(text_or(o, "/spec/signerName", "<none>")),
        json!(text(o, "/spec/username")),
        json!(asked),
        json!(status),
    ]
}

pub(crate) fn trust_bundle(o: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(o), json!(text_or(o, "/spec/signerName", "<none>"))]
}

pub(crate) fn pod_certificate_request(o: &Value, _: Timestamp) -> Vec<Value> {
    let of = |field: &str| json!(text(o, &format!("/spec/{field}")));
    let ends = ["Issued", "Denied", "Failed"];
    let state = ends.into_iter().find(|kind| condition(o, kind) == "True").unwrap_or("Pending");
    vec![
        name(o),
        of("podName"),
        of("serviceAccountName"),
        of("nodeName"),
        of("signerName"),
        json!(state),
        json!(labels(o.pointer("/spec/unverifiedUserAnnotations"))),
    ]
}

pub(crate) fn webhooks(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(list(o, "/webhooks").len()), age(o, now)]
}

pub(crate) fn validating_policy(o: &Value, now: Timestamp) -> Vec<Value> {
    admission_policy(o, "/spec/validations", now)
}

pub(crate) fn mutating_policy(o: &Value, now: Timestamp) -> Vec<Value> {
    admission_policy(o, "/spec/mutations", now)
}

fn admission_policy(o: &Value, rules: &str, now: Timestamp) -> Vec<Value> {
    let kind = match o.pointer("/spec/paramKind").filter(|k| k.is_object()) {
        Some(k) => format!("{}/{}", text(k, "/apiVersion"), text(k, "/kind")),
        None => "<unset>".to_owned(),
    };
    vec![name(o), json!(list(o, rules).len()), json!(kind), age(o, now)]
}

pub(crate) fn admission_policy_binding(o: &Value, now: Timestamp) -> Vec<Value> {
    let reference = match o.pointer("/spec/paramRef").filter(|r| r.is_object()) {
        None => "<unset>".to_owned(),
        Some(r) => {
            let namespace = match text(r, "/namespace") {
                "" => String::new(),
                n => format!("{n}/"),
            };
            let who = match text(r, "/name") {
                "" => "*",
                n => n,
            };
            format!("{namespace}{who}")
        }
    };
    vec![name(o), json!(text(o, "/spec/policyName")), json!(reference), age(o, now)]
}

pub(crate) fn flow_schema(o: &Value, now: Timestamp) -> Vec<Value> {
    let dangling = match condition(o, "Dangling") {
        "" => "?",
        status => status,
    };
    vec![
        name(o),
        json!(text(o, "/spec/priorityLevelConfiguration/name")),
        json!(int(o, "/spec/matchingPrecedence")),
        json!(text_or(o, "/spec/distinguisherMethod/type", "<none>")),
        age(o, now),
        json!(dangling),
    ]
}

pub(crate) fn priority_level(o: &Value, now: Timestamp) -> Vec<Value> {
    let n = |pointer: &str| o.pointer(pointer).and_then(Value::as_i64).map_or_else(|| json!("<none>"), |n| json!(n));
    let shares = o
        .pointer("/spec/limited/nominalConcurrencyShares")
        .or_else(|| o.pointer("/spec/exempt/nominalConcurrencyShares"));
    vec![
        name(o),
        json!(text(o, "/spec/type")),
        shares.and_then(Value::as_i64).map_or_else(|| json!("<none>"), |n| json!(n)),
        n("/spec/limited/limitResponse/queuing/queues"),
        n("/spec/limited/limitResponse/queuing/handSize"),
        n("/spec/limited/limitResponse/queuing/queueLengthLimit"),
        age(o, now),
    ]
}
