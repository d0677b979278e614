//! Validation of scheduling fields: tolerations, affinity, topology spread, scheduling gates. Answers for upstream's
//! `ValidateTolerations`, `validateAffinity`, `validateTopologySpreadConstraints`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use crate::rules::names::{complain, dns1123_label, label_key, label_value, qualified_name};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{entries, get, has, int, list, text, texts};
use crate::validation::selectors::{label_selector, label_selector_of, node_selector, node_selector_term};

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// `tolerations`.
pub(in crate::validation) fn tolerations(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let compares = out.allows(ValidationOption::TaintTolerationComparisonOperators);
    for (i, toleration) in list(spec, "tolerations").iter().enumerate() {
        let path = path.index(i);
        let (key, operator, effect) =
            (text(toleration, "key"), text(toleration, "operator"), text(toleration, "effect"));
        let value = text(toleration, "value");
        if !key.is_empty() {
            complain(out, &path.child("key"), key, label_key(key));
        } else if operator != "Exists" {
            let message = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            out.push(Error::invalid(path.child("operator"), operator, message));
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            let message = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            out.push(Error::invalid(path.child("effect"), effect, message));
        }
        match operator {
            "" | "Equal" => {
                let complaints = label_value(value);
                if !complaints.is_empty() {
                    out.push(Error::invalid(path.child("operator"), value, &complaints.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let message = "value must be empty when `operator` is 'Exists'";
                out.push(Error::invalid(path.child("operator"), value, message));
            }
            "Exists" => {}
            "Lt" | "Gt" if compares => complain(out, &path.child("value"), value, decimal(value)),
            // Where they are refused, upstream tells of them.
            "Lt" | "Gt" => {
                out.push(Error::not_supported(path.child("operator"), operator, &["Equal", "Exists", "Lt", "Gt"]));
            }
            other => out.push(Error::not_supported(path.child("operator"), other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            taint_effect(effect, &path.child("effect"), out);
        }
    }
}

/// A whole number as people write it, which Go can count to.
fn decimal(value: &str) -> Vec<String> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let plain =
        digits.bytes().all(|b| b.is_ascii_digit()) && (b'1'..=b'9').contains(digits.as_bytes().first().unwrap_or(&0));
    let mut out = Vec::new();
    match value {
        "" => out.push("must be non-empty".to_owned()),
        "0" => {}
        _ if plain => {}
        _ => out.push("must be a valid decimal integer in canonical form".to_owned()),
    }
    if value.parse::<i64>().is_err() {
        let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
        let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let why = if number { "value out of range" } else { "invalid syntax" };
        out.push(format!("strconv.ParseInt: parsing {}: {why}", shared::status::go_quote(value)));
    }
    out
}

/// An effect of a taint or toleration.
pub(in crate::validation) fn taint_effect(effect: &str, path: &Path, out: &mut FieldErrors) {
    if !EFFECTS.contains(&effect) {
        out.push(Error::not_supported(path, effect, EFFECTS));
    }
}

/// `affinity`.
pub(super) fn affinity(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let affinity = get(spec, "affinity");
    let (node, node_path) = (get(affinity, "nodeAffinity"), path.child("nodeAffinity"));
    let required = get(node, "requiredDuringSchedulingIgnoredDuringExecution");
    if !required.is_null() {
        let strict = !out.allows(ValidationOption::InvalidLabelValueInRequiredNodeAffinity);
        node_selector(required, strict, &node_path.child("requiredDuringSchedulingIgnoredDuringExecution"), out);
    }
    for (i, term) in list(node, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
        let path = node_path.child("preferredDuringSchedulingIgnoredDuringExecution").index(i);
        weight(term, &path, out);
        node_selector_term(get(term, "preference"), false, &path.child("preference"), out);
    }
    for key in ["podAffinity", "podAntiAffinity"] {
        let (pod, path) = (get(affinity, key), path.child(key));
        for (i, term) in list(pod, "requiredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
            pod_term(term, &path.child("requiredDuringSchedulingIgnoredDuringExecution").index(i), out);
        }
        for (i, weighted) in list(pod, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
            let path = path.child("preferredDuringSchedulingIgnoredDuringExecution").index(i);
            weight(weighted, &path, out);
            pod_term(get(weighted, "podAffinityTerm"), &path.child("podAffinityTerm"), out);
        }
    }
}

fn weight(term: &Value, path: &Path, out: &mut FieldErrors) {
    let weight = int(term, "weight").unwrap_or_default();
    if !(1..=100).contains(&weight) {
        out.push(Error::invalid(path.child("weight"), weight, "must be in the range 1-100"));
    }
}

/// Validates the label and namespace selectors of an affinity term; label values only when strict.
pub(super) fn selectors(term: &Value, strict: bool, path: &Path, out: &mut FieldErrors) {
    for key in ["labelSelector", "namespaceSelector"] {
        label_selector_of(get(term, key), strict, &path.child(key), out);
    }
}

fn pod_term(term: &Value, path: &Path, out: &mut FieldErrors) {
    selectors(term, !out.allows(ValidationOption::InvalidLabelValueInSelector), path, out);
    for namespace in texts(term, "namespaces") {
        complain(out, &path.child("namespace"), namespace, dns1123_label(namespace));
    }
    label_keys(term, path, out);
    let key = text(term, "topologyKey");
    if key.is_empty() {
        out.push(Error::required(path.child("topologyKey"), "can not be empty"));
    }
    complain(out, &path.child("topologyKey"), key, label_key(key));
}

/// Keys of labels that pods have to share, or may not; they come on top of a selector.
pub(super) fn label_keys(holder: &Value, path: &Path, out: &mut FieldErrors) {
    const SAME: &str = "matchLabelKeys";
    const OTHER: &str = "mismatchLabelKeys";
    let selector = get(holder, "labelSelector");
    for field in [SAME, OTHER] {
        let (keys, path) = (texts(holder, field), path.child(field));
        if selector.is_null() && !keys.is_empty() {
            out.push(Error::forbidden(&path, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            complain(out, &path.index(i), key, label_key(key));
        }
    }
    let (same, differing) = (texts(holder, SAME), texts(holder, OTHER));
    // Once is where the key was merged into the selector.
    let mut chosen: BTreeSet<&str> = entries(selector, "matchLabels").map(|(k, _)| k.as_str()).collect();
    for key in list(selector, "matchExpressions").iter().map(|r| text(r, "key")) {
        if let (false, Some(i)) = (chosen.insert(key), same.iter().rposition(|k| *k == key)) {
            out.push(Error::invalid(path.index(i), key, "exists in both matchLabelKeys and labelSelector"));
        }
    }
    for (i, key) in same.iter().enumerate().filter(|(_, k)| differing.contains(k)) {
        let why = "exists in both matchLabelKeys and mismatchLabelKeys";
        out.push(Error::invalid(path.child(SAME).index(i), *key, why));
    }
}

/// Keys of labels that the scheduler adds to a selector by itself: they may not be in it.
pub(super) fn unmerged_keys(holder: &Value, path: &Path, out: &mut FieldErrors) {
    let (keys, selector, path) =
        (texts(holder, "matchLabelKeys"), get(holder, "labelSelector"), path.child("matchLabelKeys"));
    if !keys.is_empty() && selector.is_null() {
        out.push(Error::forbidden(&path, "must not be specified when labelSelector is not set"));
    }
    for (i, key) in keys.iter().enumerate() {
        complain(out, &path.index(i), key, label_key(key));
        let expressions = list(selector, "matchExpressions");
        if has(get(selector, "matchLabels"), key) || expressions.iter().any(|r| text(r, "key") == *key) {
            out.push(Error::invalid(path.index(i), *key, "exists in both matchLabelKeys and labelSelector"));
        }
    }
}

/// `topologySpreadConstraints`.
pub(super) fn spread(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let all = list(spec, "topologySpreadConstraints");
    let pair = |c: &Value| format!("{{{}, {}}}", text(c, "topologyKey"), text(c, "whenUnsatisfiable"));
    for (i, constraint) in all.iter().enumerate() {
        let path = path.index(i);
        let skew = int(constraint, "maxSkew").unwrap_or_default();
        if skew <= 0 {
            out.push(Error::invalid(path.child("maxSkew"), skew, "must be greater than zero"));
        }
        if text(constraint, "topologyKey").is_empty() {
            out.push(Error::required(path.child("topologyKey"), "can not be empty"));
        }
        let action = text(constraint, "whenUnsatisfiable");
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            let supported = ["DoNotSchedule", "ScheduleAnyway"];
            out.push(Error::not_supported(path.child("whenUnsatisfiable"), action, &supported));
        }
        let this = pair(constraint);
        if all[i + 1..].iter().any(|c| pair(c) == this) {
            out.push(Error::duplicate(path.child("{topologyKey, whenUnsatisfiable}"), this));
        }
        if let Some(domains) = int(constraint, "minDomains") {
            let path = path.child("minDomains");
            if domains <= 0 {
                out.push(Error::invalid(&path, domains, "must be greater than zero"));
            }
            if action != "DoNotSchedule" {
                let message = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                out.push(Error::invalid(&path, domains, &message));
            }
        }
        for key in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let policy = text(constraint, key);
            if has(constraint, key) && !matches!(policy, "Honor" | "Ignore") {
                out.push(Error::not_supported(path.child(key), policy, &["Honor", "Ignore"]));
            }
        }
        // What is stored and breaks the one rule has to keep the other.
        let unmerged = if out.allows(ValidationOption::LegacyMatchLabelKeysValidation) {
            !out.allows(ValidationOption::OldPodViolatesLegacyMatchLabelKeysValidation)
        } else {
            out.allows(ValidationOption::OldPodViolatesMatchLabelKeysValidation)
        };
        let judge = if unmerged { unmerged_keys } else { label_keys };
        judge(constraint, &path, out);
        if !out.allows(ValidationOption::InvalidTopologySpreadConstraintLabelSelector) {
            label_selector(get(constraint, "labelSelector"), &path.child("labelSelector"), out);
        }
    }
}

/// `readinessGates` and `schedulingGates`.
pub(super) fn gates(spec: &Value, path: &Path, out: &mut FieldErrors) {
    for (i, gate) in list(spec, "readinessGates").iter().enumerate() {
        let kind = text(gate, "conditionType");
        complain(out, &path.child("readinessGates").index(i).child("conditionType"), kind, qualified_name(kind));
    }
    let mut seen = BTreeSet::new();
    for (i, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let path = path.child("schedulingGates").index(i);
        let name = text(gate, "name");
        complain(out, &path, name, qualified_name(name));
        if !seen.insert(name) {
            out.push(Error::duplicate(&path, name));
        }
    }
}
