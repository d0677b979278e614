//! Horizontal pod autoscalers (v2). Answers for upstream's `ValidateHorizontalPodAutoscaler`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::fields::{one_of, shaped};
use super::names::{complain, dns1123_label, path_segment};
use super::pod::resources::container_resource_name;
use super::tree::{get, has, int, list, quantity, text};
use super::workloads::counts;
use crate::rules::options::{FieldErrors, ValidationOption};

/// `status`.
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    counts(get(new, "status"), &["currentReplicas", "desiredReplicas"], &Path::new("status"), out);
}

/// A new autoscaler.
pub(crate) fn autoscaler(object: &Value, out: &mut FieldErrors) {
    let spec = get(object, "spec");
    let in_core = text(get(spec, "scaleTargetRef"), "kind") == "ReplicationController";
    let target = if in_core { Versions::Any } else { Versions::OfGroups };
    self::spec(spec, target, Versions::Any, out);
}

/// A changed autoscaler: versions were not looked at once. That of a target stays as it was, and those of objects may
/// be odd where one was.
pub(crate) fn autoscaler_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let target = get(spec, "scaleTargetRef");
    let same = |key: &str| text(target, key) == text(get(before, "scaleTargetRef"), key);
    let versions = match text(target, "kind") {
        _ if same("apiVersion") && same("kind") => Versions::Unknown,
        "ReplicationController" => Versions::Any,
        _ => Versions::OfGroups,
    };
    let odd = |metric: &Value| {
        let object = get(get(metric, "object"), "describedObject");
        text(metric, "type") == "Object" && Versions::Any.unfit(object).is_some()
    };
    let objects = if list(before, "metrics").iter().any(odd) { Versions::Unknown } else { Versions::Any };
    self::spec(spec, versions, objects, out);
}

/// API versions that a scale target reference may name.
#[derive(Clone, Copy)]
enum Versions {
    Any,
    /// Versions of named groups only.
    OfGroups,
    /// Any text.
    Unknown,
}

impl Versions {
    /// Explains why the version that a reference names is not allowed.
    fn unfit(self, reference: &Value) -> Option<String> {
        let version = text(reference, "apiVersion");
        match (self, version.split('/').collect::<Vec<_>>().as_slice()) {
            (Self::Unknown, _) => None,
            (_, [_, _, _, ..]) => Some(format!("unexpected GroupVersion string: {version}")),
            (Self::OfGroups, [_] | ["", _]) => Some("apiVersion must specify API group".to_owned()),
            _ => None,
        }
    }
}

fn spec(spec: &Value, target: Versions, objects: Versions, out: &mut FieldErrors) {
    let path = Path::new("spec");
    let lowest = i64::from(!out.allows(ValidationOption::MinReplicasZero));
    let least = int(spec, "minReplicas");
    let most = int(spec, "maxReplicas").unwrap_or_default();
    if let Some(least) = least.filter(|l| *l < lowest) {
        let message = format!("must be greater than or equal to {lowest}");
        out.push(Error::invalid(path.child("minReplicas"), least, &message));
    }
    if most < 1 {
        out.push(Error::invalid(path.child("maxReplicas"), most, "must be greater than 0"));
    }
    if least.is_some_and(|l| most < l) {
        let message = "must be greater than or equal to `minReplicas`";
        out.push(Error::invalid(path.child("maxReplicas"), most, message));
    }
    reference(get(spec, "scaleTargetRef"), target, &path.child("scaleTargetRef"), out);
    let metrics = list(spec, "metrics");
    for (i, metric) in metrics.iter().enumerate() {
        one_metric(metric, objects, &path.child("metrics").index(i), out);
    }
    if least == Some(0) && !metrics.iter().any(|m| matches!(text(m, "type"), "Object" | "External")) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        out.push(Error::forbidden(path.child("metrics"), why));
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = get(get(spec, "behavior"), direction);
        if !rules.is_null() {
            scaling_rules(rules, &path.child("behavior").child(direction), out);
        }
    }
}

fn reference(target: &Value, versions: Versions, path: &Path, out: &mut FieldErrors) {
    for key in ["kind", "name"] {
        shaped(target, key, |name| path_segment(name, false), path, out);
    }
    if let Some(why) = versions.unfit(target) {
        out.push(Error::invalid(path.child("apiVersion"), text(target, "apiVersion"), &why));
    }
}

/// Types of metrics and the fields with their sources, in the order in which those are judged.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

fn one_metric(metric: &Value, objects: Versions, path: &Path, out: &mut FieldErrors) {
    let types = ["ContainerResource", "External", "Object", "Pods", "Resource"];
    let kind = text(metric, "type");
    if kind.is_empty() {
        out.push(Error::required(path.child("type"), "must specify a metric source type"));
    }
    if !types.contains(&kind) {
        out.push(Error::not_supported(path.child("type"), kind, &types));
    }
    let present: Vec<&str> = SOURCES.iter().map(|(_, key)| *key).filter(|key| has(metric, key)).collect();
    if let Some(key) = present.first() {
        metric_source(key, get(metric, key), objects, &path.child(key), out);
    }
    let wanted = SOURCES.iter().find(|(k, _)| *k == kind).map(|(_, key)| *key);
    match wanted {
        None => out.push(Error::not_supported(path.child("type"), kind, &types)),
        Some(wanted) if !present.contains(&wanted) => {
            out.push(Error::required(path.child(wanted), "must populate information for the given metric source"));
        }
        Some(_) => {}
    }
    // One that is not the wanted one is not told of: that the wanted one is missing says it all.
    if present.len() > 1 {
        for other in present.into_iter().filter(|key| Some(*key) != wanted) {
            out.push(Error::forbidden(path.child(other), "must populate the given metric source only"));
        }
    }
}

fn metric_source(key: &str, source: &Value, objects: Versions, path: &Path, out: &mut FieldErrors) {
    let (target, target_path) = (get(source, "target"), path.child("target"));
    let (value, average) = (has(target, "value"), has(target, "averageValue"));
    match key {
        "object" => {
            reference(get(source, "describedObject"), objects, &path.child("describedObject"), out);
            identifier(get(source, "metric"), &path.child("metric"), out);
            metric_target(target, &target_path, out);
            if !value && !average {
                let why = "must set either a target value or averageValue";
                out.push(Error::required(target_path.child("averageValue"), why));
            }
        }
        "external" => {
            identifier(get(source, "metric"), &path.child("metric"), out);
            metric_target(target, &target_path, out);
            if !value && !average {
                let why = "must set either a target value for metric or a per-pod target";
                out.push(Error::required(target_path.child("averageValue"), why));
            }
            if value && average {
                let why = "may not set both a target value for metric and a per-pod target";
                out.push(Error::forbidden(target_path.child("value"), why));
            }
        }
        "pods" => {
            identifier(get(source, "metric"), &path.child("metric"), out);
            metric_target(target, &target_path, out);
            if !average {
                let why = "must specify a positive target averageValue";
                out.push(Error::required(target_path.child("averageValue"), why));
            }
        }
        _ => resource_source(key, source, path, out),
    }
}

fn resource_source(key: &str, source: &Value, path: &Path, out: &mut FieldErrors) {
    let (name, container) = (text(source, "name"), text(source, "container"));
    if name.is_empty() {
        out.push(Error::required(path.child("name"), "must specify a resource name"));
    }
    if key == "containerResource" {
        if !name.is_empty() {
            container_resource_name(name, &path.child("name"), out);
        }
        if container.is_empty() {
            out.push(Error::required(path.child("container"), "must specify a container"));
        } else {
            complain(out, &path.child("container"), container, dns1123_label(container));
        }
    }
    let (target, path) = (get(source, "target"), path.child("target"));
    metric_target(target, &path, out);
    let (utilization, average) = (has(target, "averageUtilization"), has(target, "averageValue"));
    if !utilization && !average {
        let why = "must set either a target raw value or a target utilization";
        out.push(Error::required(path.child("averageUtilization"), why));
    }
    if utilization && average {
        let why = "may not set both a target raw value and a target utilization";
        out.push(Error::forbidden(path.child("averageValue"), why));
    }
}

fn identifier(metric: &Value, path: &Path, out: &mut FieldErrors) {
    match text(metric, "name") {
        "" => out.push(Error::required(path.child("name"), "must specify a metric name")),
        name => complain(out, &path.child("name"), name, path_segment(name, false)),
    }
}

fn metric_target(target: &Value, path: &Path, out: &mut FieldErrors) {
    let kind = text(target, "type");
    if kind.is_empty() {
        out.push(Error::required(path.child("type"), "must specify a metric target type"));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let message = "must be either Utilization, Value, or AverageValue";
        out.push(Error::invalid(path.child("type"), kind, message));
    }
    for key in ["value", "averageValue"] {
        if has(target, key) && quantity(get(target, key)).sign() <= 0 {
            let shown = quantity(get(target, key)).to_string();
            out.push(Error::invalid(path.child(key), shown, "must be positive"));
        }
    }
    if let Some(percent) = int(target, "averageUtilization").filter(|p| *p < 1) {
        out.push(Error::invalid(path.child("averageUtilization"), percent, "must be greater than 0"));
    }
}

fn scaling_rules(rules: &Value, path: &Path, out: &mut FieldErrors) {
    if let Some(seconds) = int(rules, "stabilizationWindowSeconds") {
        let path = path.child("stabilizationWindowSeconds");
        if seconds < 0 {
            out.push(Error::invalid(path, seconds, "must be greater than or equal to zero"));
        } else if seconds > 3600 {
            out.push(Error::invalid(path, seconds, "must be less than or equal to 3600"));
        }
    }
    one_of(rules, "selectPolicy", &["Disabled", "Max", "Min"], path, out);
    let policies = list(rules, "policies");
    if policies.is_empty() && !has(rules, "tolerance") {
        out.push(Error::required(path.child("policies"), "must specify at least one Policy"));
    }
    for (i, policy) in policies.iter().enumerate() {
        let path = path.child("policies").index(i);
        if !matches!(text(policy, "type"), "Pods" | "Percent") {
            out.push(Error::not_supported(path.child("type"), text(policy, "type"), &["Percent", "Pods"]));
        }
        let value = int(policy, "value").unwrap_or_default();
        if value <= 0 {
            out.push(Error::invalid(path.child("value"), value, "must be greater than zero"));
        }
        let period = int(policy, "periodSeconds").unwrap_or_default();
        if period <= 0 {
            out.push(Error::invalid(path.child("periodSeconds"), period, "must be greater than zero"));
        } else if period > 1800 {
            out.push(Error::invalid(path.child("periodSeconds"), period, "must be less than or equal to 1800"));
        }
    }
    let tolerance = quantity(get(rules, "tolerance"));
    if tolerance.sign() < 0 {
        let why = "must be greater than or equal to 0";
        out.push(Error::invalid(path.child("tolerance"), tolerance.to_string(), why));
    }
}
