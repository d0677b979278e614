//! Horizontal pod autoscalers (v2).

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{complain, path_segment};
use super::selectors::label_selector;
use super::tree::{get, has, int, list, quantity, text};

/// An autoscaler.
pub(super) fn autoscaler(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let least = int(spec, "minReplicas");
    let most = int(spec, "maxReplicas").unwrap_or_default();
    if let Some(least) = least.filter(|l| *l < 1) {
        let message = "must be greater than or equal to 1";
        out.push(Error::invalid(path.child("minReplicas"), least, message));
    }
    if most < 1 {
        out.push(Error::invalid(path.child("maxReplicas"), most, "must be greater than 0"));
    }
    if least.is_some_and(|l| most < l) {
        let message = "must be greater than or equal to `minReplicas`";
        out.push(Error::invalid(path.child("maxReplicas"), most, message));
    }
    reference(get(spec, "scaleTargetRef"), &path.child("scaleTargetRef"), out);
    for (i, metric) in list(spec, "metrics").iter().enumerate() {
        one_metric(metric, &path.child("metrics").index(i), out);
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = get(get(spec, "behavior"), direction);
        if !rules.is_null() {
            scaling_rules(rules, &path.child("behavior").child(direction), out);
        }
    }
}

fn reference(target: &Value, path: &Path, out: &mut Vec<Error>) {
    for key in ["kind", "name"] {
        match text(target, key) {
            "" => out.push(Error::required(path.child(key), "")),
            value => complain(out, &path.child(key), value, path_segment(value, false)),
        }
    }
}

fn one_metric(metric: &Value, path: &Path, out: &mut Vec<Error>) {
    let kinds = [
        ("ContainerResource", "containerResource"),
        ("External", "external"),
        ("Object", "object"),
        ("Pods", "pods"),
        ("Resource", "resource"),
    ];
    let kind = text(metric, "type");
    let Some((_, key)) = kinds.iter().find(|(k, _)| *k == kind) else {
        if kind.is_empty() {
            out.push(Error::required(path.child("type"), "must specify a metric source type"));
        } else {
            let names: Vec<&str> = kinds.iter().map(|(k, _)| *k).collect();
            out.push(Error::not_supported(path.child("type"), kind, &names));
        }
        return;
    };
    let (source, path) = (get(metric, key), path.child(key));
    if source.is_null() {
        out.push(Error::required(path, "must populate information for the given metric source"));
        return;
    }
    match *key {
        "resource" | "containerResource" => {
            if text(source, "name").is_empty() {
                out.push(Error::required(path.child("name"), "must specify a resource name"));
            }
            if *key == "containerResource" && text(source, "container").is_empty() {
                out.push(Error::required(path.child("container"), "must specify a container"));
            }
        }
        "object" => reference(get(source, "describedObject"), &path.child("describedObject"), out),
        _ => {}
    }
    if has(source, "metric") {
        let (metric, path) = (get(source, "metric"), path.child("metric"));
        match text(metric, "name") {
            "" => out.push(Error::required(path.child("name"), "must specify a metric name")),
            name => complain(out, &path.child("name"), name, path_segment(name, false)),
        }
        label_selector(get(metric, "selector"), &path.child("selector"), out);
    }
    metric_target(get(source, "target"), &path.child("target"), out);
}

fn metric_target(target: &Value, path: &Path, out: &mut Vec<Error>) {
    match text(target, "type") {
        "" => out.push(Error::required(path.child("type"), "must specify a metric target type")),
        "Utilization" | "Value" | "AverageValue" => {}
        other => {
            let message = "must be either Utilization, Value, or AverageValue";
            out.push(Error::invalid(path.child("type"), other, message));
        }
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

fn scaling_rules(rules: &Value, path: &Path, out: &mut Vec<Error>) {
    if let Some(seconds) = int(rules, "stabilizationWindowSeconds") {
        let path = path.child("stabilizationWindowSeconds");
        if seconds < 0 {
            out.push(Error::invalid(path, seconds, "must be greater than or equal to zero"));
        } else if seconds > 3600 {
            out.push(Error::invalid(path, seconds, "must be less than or equal to 3600"));
        }
    }
    let choice = text(rules, "selectPolicy");
    let choices = ["Disabled", "Max", "Min"];
    if !choice.is_empty() && !choices.contains(&choice) {
        out.push(Error::not_supported(path.child("selectPolicy"), choice, &choices));
    }
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
}
