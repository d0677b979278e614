//! Warnings for clients whose object is accepted. Answers for upstream's `WarningsOnCreate`, `WarningsOnUpdate`.

pub(crate) mod definition;
pub(crate) mod networking;
mod paths;
mod pod;
mod ports;
mod quota;
pub(crate) mod secrets;
pub(crate) mod storage;

use proto::Value;
use shared::status::go_quote;

use super::names::{dns1123_label, label_value};
use super::tree::{at, entries, get, has, int, list, quantity, text, texts};
use crate::rules::options::Warnings;

/// Node labels that should not be used any more, and what to say of them.
const OLD_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#),
    ("beta.kubernetes.io/os", r#"deprecated since v1.14; use "kubernetes.io/os" instead"#),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    ("failure-domain.beta.kubernetes.io/zone", r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#),
    ("beta.kubernetes.io/instance-type", r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", r#"use "node-role.kubernetes.io/control-plane" instead"#),
];

/// Pods are mostly changed by programs, which nobody listens to.
pub(crate) fn of_pod(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    if old.is_none() {
        name_of(new, "the Pod's hostname", out);
        pod::spec_and_annotations(new, "", out);
    }
}

/// Warns of a workload's pod template, once for each generation of the spec.
fn workload(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    if respecified(new, old) {
        pod::template(at(new, &["spec", "template"]), "spec.template", out);
    }
}

/// Warns like [`workload`], and of the name where pods are named after the object.
pub(crate) fn named_workload(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    if old.is_none() {
        name_of(new, "Pod names and hostnames", out);
    }
    workload(new, old, out);
}

pub(crate) fn pod_template(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    if respecified(new, old) {
        pod::template(get(new, "template"), "template", out);
    }
}

/// Once for each template.
pub(crate) fn daemon_set(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    let template = at(new, &["spec", "template"]);
    if old.is_none_or(|old| at(old, &["spec", "template"]) != template) {
        pod::template(template, "spec.template", out);
    }
}

pub(crate) fn stateful_set(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    workload(new, old, out);
    let spec = get(new, "spec");
    // Upstream's paths differ so.
    let within = if old.is_some() { ".Spec" } else { "" };
    for (i, claim) in list(spec, "volumeClaimTemplates").iter().enumerate() {
        storage::requests(get(claim, "spec"), &format!("spec.volumeClaimTemplates[{i}]{within}"), out);
    }
    if int(spec, "revisionHistoryLimit").is_some_and(|limit| limit < 0) {
        out.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
}

pub(crate) fn job(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    if old.is_none() {
        name_of(new, "Pod names and hostnames", out);
    }
    if respecified(new, old) {
        job_spec(get(new, "spec"), "spec", out);
    }
}

pub(crate) fn cron_job(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    if old.is_none() {
        name_of(new, "Pod names and hostnames", out);
    }
    if respecified(new, old) {
        job_spec(at(new, &["spec", "jobTemplate", "spec"]), "spec.jobTemplate.spec", out);
    }
    if old.is_some() && text(get(new, "spec"), "schedule").contains("TZ") {
        out.push("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".to_owned());
    }
}

/// Very many indexes are hard to keep count of.
fn job_spec(spec: &Value, path: &str, out: &mut Warnings) {
    let more = |field: &str, than: i64| int(spec, field).is_some_and(|n| n > than);
    if text(spec, "completionMode") == "Indexed" && more("completions", 100_000) && more("parallelism", 10_000) {
        out.push(format!("{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"));
    }
    pod::template(get(spec, "template"), &format!("{path}.template"), out);
}

pub(crate) fn resource_quota(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    if old.is_none() {
        quota::quota(new, out);
    }
}

/// True for a new object and one whose specification changes.
fn respecified(new: &Value, old: Option<&Value>) -> bool {
    let generation = |object: &Value| int(get(object, "metadata"), "generation");
    old.is_none_or(|old| generation(old) != generation(new))
}

fn name_of(object: &Value, used_in: &str, out: &mut Warnings) {
    let name = text(get(object, "metadata"), "name");
    let complaints = dns1123_label(name);
    if !name.is_empty() && !complaints.is_empty() {
        out.push(format!(
            "metadata.name: this is used in {used_in}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            complaints.join(" ")
        ));
    }
}

/// Warning for a deprecated node label.
fn renamed(label: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(old, _)| *old == label).map(|(_, advice)| *advice)
}

/// A field that names a node label.
fn label_key(key: &str, path: &str, out: &mut Warnings) {
    if let Some(advice) = renamed(key) {
        out.push(format!("{path}: {key} is {advice}"));
    }
}

fn node_selector(holder: &Value, path: &str, out: &mut Warnings) {
    for (key, _) in entries(holder, "nodeSelector") {
        if let Some(advice) = renamed(key) {
            out.push(format!("{path}.nodeSelector[{key}]: {advice}"));
        }
    }
}

/// Drivers are told apart by the case of their names.
pub(crate) fn resource_slice(new: &Value, out: &mut Warnings) {
    let driver = text(get(new, "spec"), "driver");
    if driver != driver.to_lowercase() {
        let shown = go_quote(driver);
        out.push(format!("spec.driver: driver names should be lowercase; {shown} contains uppercase characters"));
    }
}

/// Warns like [`node_selector`]; upstream's path does not name the label.
pub(crate) fn runtime_class(new: &Value, out: &mut Warnings) {
    let labels = entries(get(new, "scheduling"), "nodeSelector").filter_map(|(key, _)| renamed(key));
    out.extend(labels.map(|advice| format!("scheduling.nodeSelector: {advice}")));
}

fn node_selector_term(term: &Value, path: &str, out: &mut Warnings) {
    for (i, expression) in list(term, "matchExpressions").iter().enumerate() {
        label_key(text(expression, "key"), &format!("{path}.matchExpressions[{i}].key"), out);
    }
}

/// Warns of a preferred node selector term: invalid label values are not refused there.
fn preferred_term(term: &Value, path: &str, out: &mut Warnings) {
    for (i, expression) in list(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{i}]");
        label_key(text(expression, "key"), &format!("{path}.key"), out);
        for (j, value) in texts(expression, "values").iter().enumerate() {
            out.extend(label_value(value).iter().map(|why| format!("{path}.values[{j}]: {value} is invalid, {why}")));
        }
    }
}

/// Bytes come whole.
fn fractional(value: &Value, path: &str, out: &mut Warnings) {
    if quantity(value).milli_value() % 1000 != 0 {
        let shown = go_quote(value.as_str().unwrap_or_default());
        out.push(format!("{path}: fractional byte value {shown} is invalid, must be an integer"));
    }
}

pub(crate) fn node(new: &Value, _: Option<&Value>, out: &mut Warnings) {
    let spec = get(new, "spec");
    if has(spec, "configSource") {
        out.push("spec.configSource: the feature is removed".to_owned());
    }
    if !text(spec, "externalID").is_empty() {
        out.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    for (i, range) in texts(spec, "podCIDRs").iter().enumerate() {
        networking::network(range, &format!("spec.podCIDRs[{i}]"), out);
    }
}

pub(crate) fn service_account(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
    let enforces = |account: &Value| has(at(account, &["metadata", "annotations"]), ENFORCE);
    if enforces(new) && !old.is_some_and(enforces) {
        out.push(format!("metadata.annotations[{ENFORCE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"));
    }
}
