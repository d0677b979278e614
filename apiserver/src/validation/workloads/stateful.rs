//! Stateful sets, whose pods have names, hosts and claims of their own. Answers for upstream's `ValidateStatefulSet`,
//! `ValidateStatefulSetUpdate`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::{amount, at_most_all, counts, mismatch, only_lasting, selector, size};
use crate::rules::names::{complain, dns1123_label};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{get, list, same, text, without};
use crate::validation::pod;
use crate::validation::selectors::{picks, template_labels};
use crate::validation::volume::claim;

/// A new stateful set.
pub(crate) fn create(object: &Value, out: &mut FieldErrors) {
    spec(get(object, "spec"), true, true, out);
}

/// A changed one. What cannot change is not judged again, and a template only where the one that is there was sound.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    const MUTABLE: &[&str] = &[
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let mut before = FieldErrors::new(out.options());
    spec(get(old, "spec"), false, true, &mut before);
    spec(get(new, "spec"), false, before.is_empty(), out);
    if !same(&without(get(new, "spec"), MUTABLE), &without(get(old, "spec"), MUTABLE)) {
        let message = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        out.push(Error::forbidden(super::spec_path(), message));
    }
}

fn spec(spec: &Value, is_new: bool, judge_template: bool, out: &mut FieldErrors) {
    let path = super::spec_path();
    match text(spec, "podManagementPolicy") {
        "" => out.push(Error::required(path.child("podManagementPolicy"), "")),
        "OrderedReady" | "Parallel" => {}
        other => {
            let message = "must be 'OrderedReady' or 'Parallel'";
            out.push(Error::invalid(path.child("podManagementPolicy"), other, message));
        }
    }
    stateful_strategy(get(spec, "updateStrategy"), &path.child("updateStrategy"), out);
    let retention = get(spec, "persistentVolumeClaimRetentionPolicy");
    for key in ["whenDeleted", "whenScaled"] {
        let policy = text(retention, key);
        if !retention.is_null() && !matches!(policy, "Retain" | "Delete") {
            let path = path.child("persistentVolumeClaimRetentionPolicy").child(key);
            out.push(Error::not_supported(path, policy, &["Retain", "Delete"]));
        }
    }
    for (i, template) in list(spec, "volumeClaimTemplates").iter().enumerate().filter(|_| is_new) {
        claim::spec(get(template, "spec"), &path.child("volumeClaimTemplates").index(i).child("spec"), out);
    }
    counts(spec, &["replicas", "minReadySeconds"], &path, out);
    counts(get(spec, "ordinals"), &["start"], &path.child("ordinals"), out);
    let service = text(spec, "serviceName");
    if is_new && !service.is_empty() {
        complain(out, &path.child("serviceName"), service, dns1123_label(service));
    }
    counts(spec, &["revisionHistoryLimit"], &path, out);
    selector(spec, "statefulset", &path, out);
    let (template, wanted) = (get(spec, "template"), get(spec, "selector"));
    match picks(wanted, template_labels(template)) {
        Some(picked) => picked_template(spec, picked, judge_template, &path.child("template"), out),
        None => out.push(Error::invalid(path.child("selector"), wanted.clone(), "")),
    }
    only_lasting(template, "StatefulSet", &path.child("template"), out);
}

fn picked_template(spec: &Value, picked: bool, judge: bool, path: &Path, out: &mut FieldErrors) {
    let template = get(spec, "template");
    if !picked {
        mismatch(template, path, out);
    }
    let made = made(spec, template);
    if judge {
        pod::template(&made, path, out);
    }
    // Upstream looks at these a second time.
    pod::template_metadata(&made, path, out);
}

/// The template as pods are made of it: host and subdomain are the controller's to say, and claims are volumes.
fn made(spec: &Value, template: &Value) -> Value {
    let mut made = template.clone();
    let Some(pod) = made.get_mut("spec").and_then(Value::as_object_mut) else { return made };
    pod.remove("hostname");
    pod.remove("subdomain");
    let name = |claim: &Value| text(get(claim, "metadata"), "name").to_owned();
    let mut volumes: Vec<Value> = Vec::new();
    for name in list(spec, "volumeClaimTemplates").iter().map(name) {
        // Of claims of one name there is one volume.
        volumes.retain(|v| text(v, "name") != name);
        volumes.push(serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    }
    if !volumes.is_empty() {
        let own = list(get(template, "spec"), "volumes");
        let others: Vec<&Value> =
            own.iter().filter(|v| volumes.iter().all(|c| text(c, "name") != text(v, "name"))).collect();
        let others: Vec<Value> = others.into_iter().cloned().collect();
        volumes.extend(others);
        pod.insert("volumes".to_owned(), Value::Array(volumes));
    }
    made
}

fn stateful_strategy(strategy: &Value, path: &Path, out: &mut FieldErrors) {
    let rolling = get(strategy, "rollingUpdate");
    match text(strategy, "type") {
        "" => out.push(Error::required(path, "")),
        "OnDelete" => {
            if !rolling.is_null() {
                let message = "only allowed for updateStrategy 'RollingUpdate'";
                out.push(Error::invalid(path.child("rollingUpdate"), rolling.clone(), message));
            }
        }
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            counts(rolling, &["partition"], &path, out);
            let most = get(rolling, "maxUnavailable");
            if !most.is_null() {
                amount(most, &path.child("maxUnavailable"), out);
                if size(most) == 0 {
                    out.push(Error::invalid(path.child("maxUnavailable"), most.clone(), "cannot be 0"));
                }
                at_most_all(most, &path.child("maxUnavailable"), out);
            }
        }
        _ => out.push(Error::invalid(path, strategy.clone(), "must be 'RollingUpdate' or 'OnDelete'")),
    }
}
