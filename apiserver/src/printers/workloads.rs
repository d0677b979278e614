//! Rows of what runs: pods and their controllers. Answers for upstream's `printDeployment`, `printJob`,
//! `printDaemonSet`.

use jiff::Timestamp;
use proto::Value;
use serde_json::json;

use super::pods;
use super::text::{age, name};
use super::text::{condition, containers, duration, int, labels, list, selector, since, text, text_or, time};

const TEMPLATE: &str = "/spec/template/spec/containers";

pub(crate) fn pod(o: &Value, now: Timestamp) -> Vec<Value> {
    let s = pods::summary(o, now);
    let ip = list(o, "/status/podIPs").first().map_or_else(|| text(o, "/status/podIP"), |i| text(i, "/ip"));
    let or_none = |t: &str| if t.is_empty() { json!("<none>") } else { json!(t) };
    vec![
        name(o),
        json!(format!("{}/{}", s.ready, s.total)),
        json!(s.reason),
        json!(s.restarts),
        age(o, now),
        or_none(ip),
        or_none(text(o, "/spec/nodeName")),
        or_none(text(o, "/status/nominatedNodeName")),
        json!(pods::readiness_gates(o)),
    ]
}

pub(crate) fn pod_template(o: &Value, _: Timestamp) -> Vec<Value> {
    let (names, images) = containers(o, "/template/spec/containers");
    vec![name(o), json!(names), json!(images), json!(labels(o.pointer("/template/metadata/labels")))]
}

fn replicas(o: &Value, now: Timestamp, selected: String) -> Vec<Value> {
    let (names, images) = containers(o, TEMPLATE);
    vec![
        name(o),
        json!(int(o, "/spec/replicas")),
        json!(int(o, "/status/replicas")),
        json!(int(o, "/status/readyReplicas")),
        age(o, now),
        json!(names),
        json!(images),
        json!(selected),
    ]
}

pub(crate) fn replication_controller(o: &Value, now: Timestamp) -> Vec<Value> {
    replicas(o, now, labels(o.pointer("/spec/selector")))
}

pub(crate) fn replica_set(o: &Value, now: Timestamp) -> Vec<Value> {
    replicas(o, now, selector(o.pointer("/spec/selector")))
}

pub(crate) fn daemon_set(o: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(o, TEMPLATE);
    let n = |key: &str| json!(int(o, &format!("/status/{key}")));
    vec![
        name(o),
        n("desiredNumberScheduled"),
        n("currentNumberScheduled"),
        n("numberReady"),
        n("updatedNumberScheduled"),
        n("numberAvailable"),
        json!(labels(o.pointer("/spec/template/spec/nodeSelector"))),
        age(o, now),
        json!(names),
        json!(images),
        json!(selector(o.pointer("/spec/selector"))),
    ]
}

pub(crate) fn deployment(o: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(o, TEMPLATE);
    vec![
        name(o),
        json!(format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"))),
        json!(int(o, "/status/updatedReplicas")),
        json!(int(o, "/status/availableReplicas")),
        age(o, now),
        json!(names),
        json!(images),
        json!(selector(o.pointer("/spec/selector"))),
    ]
}

pub(crate) fn stateful_set(o: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(o, TEMPLATE);
    let ready = format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"));
    vec![name(o), json!(ready), age(o, now), json!(names), json!(images)]
}

pub(crate) fn controller_revision(o: &Value, now: Timestamp) -> Vec<Value> {
    let owner = list(o, "/metadata/ownerReferences").iter().find(|r| r["controller"] == true);
    let owner = owner.map_or_else(
        || "<none>".to_owned(),
        |r| {
            let group = text(r, "/apiVersion").split_once('/').map_or("", |(g, _)| g);
            let kind = text(r, "/kind").to_lowercase();
            if group.is_empty() {
                format!("{kind}/{}", text(r, "/name"))
            } else {
                format!("{kind}.{group}/{}", text(r, "/name"))
            }
        },
    );
    vec![name(o), json!(owner), json!(int(o, "/revision")), age(o, now)]
}

fn job_status(o: &Value) -> &'static str {
    let holds = |kind: &str| condition(o, kind) == "True";
    match () {
        () if holds("Complete") => "Complete",
        () if holds("Failed") => "Failed",
        () if !o["metadata"]["deletionTimestamp"].is_null() => "Terminating",
        () if holds("Suspended") => "Suspended",
        () if holds("FailureTarget") => "FailureTarget",
        () if holds("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

pub(crate) fn job(o: &Value, now: Timestamp) -> Vec<Value> {
    let succeeded = int(o, "/status/succeeded");
    let completions = match (o.pointer("/spec/completions").and_then(Value::as_i64), int(o, "/spec/parallelism")) {
        (Some(n), _) => format!("{succeeded}/{n}"),
        (None, p) if p > 1 => format!("{succeeded}/1 of {p}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let started = o.pointer("/status/startTime");
    let took = match (time(started), time(o.pointer("/status/completionTime"))) {
        (None, _) => String::new(),
        (Some(_), None) => since(started, now),
        (Some(start), Some(end)) => duration((end.as_millisecond() - start.as_millisecond()).div_euclid(1000)),
    };
    let (names, images) = containers(o, TEMPLATE);
    vec![
        name(o),
        json!(job_status(o)),
        json!(completions),
        json!(took),
        age(o, now),
        json!(names),
        json!(images),
        json!(selector(o.pointer("/spec/selector"))),
    ]
}

pub(crate) fn cron_job(o: &Value, now: Timestamp) -> Vec<Value> {
    let suspend = match o.pointer("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let last = o.pointer("/status/lastScheduleTime").filter(|t| !t.is_null());
    let (names, images) = containers(o, "/spec/jobTemplate/spec/template/spec/containers");
    vec![
        name(o),
        json!(text(o, "/spec/schedule")),
        json!(text_or(o, "/spec/timeZone", "<none>")),
        json!(suspend),
        json!(list(o, "/status/active").len()),
        json!(last.map_or_else(|| "<none>".to_owned(), |t| since(Some(t), now))),
        age(o, now),
        json!(names),
        json!(images),
        json!(selector(o.pointer("/spec/jobTemplate/spec/selector"))),
    ]
}
