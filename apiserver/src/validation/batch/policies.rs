//! Validation of pod failure policies and success policies of jobs. Answers for upstream's `validatePodFailurePolicy`,
//! `validateSuccessPolicy`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::indexes;
use crate::rules::names::{complain, not_negative, qualified_name};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{at, get, has, int, list, text};

const MAX_RULES: usize = 20;
const MAX_CODES: usize = 255;
/// Bytes of a list of indexes.
const MAX_INDEXES: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];

/// `podFailurePolicy`.
pub(super) fn failure(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let path = path.child("podFailurePolicy").child("rules");
    let rules = list(get(spec, "podFailurePolicy"), "rules");
    if rules.len() > MAX_RULES {
        out.push(Error::too_many(&path, rules.len(), MAX_RULES));
    }
    let pod = at(spec, &["template", "spec"]);
    let containers: Vec<&str> =
        list(pod, "containers").iter().chain(list(pod, "initContainers")).map(|c| text(c, "name")).collect();
    for (i, rule) in rules.iter().enumerate() {
        failure_rule(spec, rule, &containers, &path.index(i), out);
    }
}

fn failure_rule(spec: &Value, rule: &Value, containers: &[&str], path: &Path, out: &mut FieldErrors) {
    let (action, action_path) = (text(rule, "action"), path.child("action"));
    if action.is_empty() {
        out.push(Error::required(action_path, r#"valid values: ["Count" "FailIndex" "FailJob" "Ignore"]"#));
    } else if action == "FailIndex" && !has(spec, "backoffLimitPerIndex") {
        out.push(Error::invalid(action_path, action, "requires the backoffLimitPerIndex to be set"));
    } else if !ACTIONS.contains(&action) {
        out.push(Error::not_supported(action_path, action, &ACTIONS));
    }
    let codes = get(rule, "onExitCodes");
    if !codes.is_null() {
        exit_codes(codes, containers, &path.child("onExitCodes"), out);
    }
    let conditions = list(rule, "onPodConditions");
    if !conditions.is_empty() {
        pod_conditions(conditions, &path.child("onPodConditions"), out);
    }
    match (codes.is_null(), conditions.is_empty()) {
        (false, false) => {
            out.push(Error::unfit(path, "specifying both OnExitCodes and OnPodConditions is not supported"));
        }
        (true, true) => {
            out.push(Error::unfit(path, "specifying one of OnExitCodes and OnPodConditions is required"));
        }
        _ => {}
    }
}

fn exit_codes(codes: &Value, containers: &[&str], path: &Path, out: &mut FieldErrors) {
    let operator = text(codes, "operator");
    match operator {
        "" => out.push(Error::required(path.child("operator"), r#"valid values: ["In" "NotIn"]"#)),
        "In" | "NotIn" => {}
        other => out.push(Error::not_supported(path.child("operator"), other, &["In", "NotIn"])),
    }
    let container = text(codes, "containerName");
    if has(codes, "containerName") && !containers.contains(&container) {
        let why = "must be one of the container or initContainer names in the pod template";
        out.push(Error::invalid(path.child("containerName"), container, why));
    }
    let path = path.child("values");
    let values: Vec<i64> = list(codes, "values").iter().filter_map(Value::as_i64).collect();
    if values.is_empty() {
        out.push(Error::invalid(&path, get(codes, "values").clone(), "at least one value is required"));
    } else if values.len() > MAX_CODES {
        out.push(Error::too_many(&path, values.len(), MAX_CODES));
    }
    let (mut seen, mut ordered) = (BTreeSet::new(), true);
    for (i, value) in values.iter().enumerate() {
        if operator == "In" && *value == 0 {
            out.push(Error::invalid(path.index(i), *value, "must not be 0 for the In operator"));
        }
        if !seen.insert(value) {
            out.push(Error::duplicate(path.index(i), *value));
        }
        ordered &= i == 0 || values[i - 1] <= *value;
    }
    if !ordered {
        out.push(Error::invalid(&path, get(codes, "values").clone(), "must be ordered"));
    }
}

fn pod_conditions(conditions: &[Value], path: &Path, out: &mut FieldErrors) {
    if conditions.len() > MAX_RULES {
        out.push(Error::too_many(path, conditions.len(), MAX_RULES));
    }
    for (i, condition) in conditions.iter().enumerate() {
        let (path, kind, status) = (path.index(i), text(condition, "type"), text(condition, "status"));
        complain(out, &path.child("type"), kind, qualified_name(kind));
        if status.is_empty() {
            out.push(Error::required(path.child("status"), r#"valid values: ["False" "True" "Unknown"]"#));
        } else if !STATUSES.contains(&status) {
            out.push(Error::not_supported(path.child("status"), status, &STATUSES));
        }
    }
}

/// `successPolicy`.
pub(super) fn success(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let (policy, path) = (get(spec, "successPolicy"), path.child("successPolicy"));
    if policy.is_null() {
        return;
    }
    if text(spec, "completionMode") != "Indexed" {
        out.push(Error::invalid(path, policy.clone(), "requires indexed completion mode"));
        return;
    }
    let (rules, path) = (list(policy, "rules"), path.child("rules"));
    if rules.is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        out.push(Error::required(&path, why));
    }
    if rules.len() > MAX_RULES {
        out.push(Error::too_many(&path, rules.len(), MAX_RULES));
    }
    for (i, rule) in rules.iter().enumerate() {
        success_rule(rule, int(spec, "completions").unwrap_or_default(), &path.index(i), out);
    }
}

fn success_rule(rule: &Value, completions: i64, path: &Path, out: &mut FieldErrors) {
    let (count, wanted) = (int(rule, "succeededCount"), text(rule, "succeededIndexes"));
    if count.is_none() && !has(rule, "succeededIndexes") {
        out.push(Error::required(path, "at least one of succeededCount or succeededIndexes must be specified"));
    }
    let mut indexes = 0;
    if has(rule, "succeededIndexes") {
        if wanted.len() > MAX_INDEXES {
            out.push(Error::too_long(path.child("succeededIndexes"), MAX_INDEXES));
        }
        match indexes::parse(wanted, completions) {
            Ok(all) => indexes = indexes::count(&all),
            Err(e) => {
                let why = format!("error parsing succeededIndexes: {e}");
                out.push(Error::invalid(path.child("succeededIndexes"), wanted, &why));
            }
        }
    }
    let Some(count) = count else { return };
    let path = path.child("succeededCount");
    not_negative(out, path.clone(), Some(count));
    if count > completions {
        let why = format!("must be less than or equal to {completions} (the number of specified completions)");
        out.push(Error::invalid(&path, count, &why));
    }
    if has(rule, "succeededIndexes") && count > indexes {
        let why = format!(
            "must be less than or equal to {indexes} (the number of indexes in the specified succeededIndexes field)"
        );
        out.push(Error::invalid(&path, count, &why));
    }
}
