//! Pod disruption budgets. Answers for upstream's `ValidatePodDisruptionBudget`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::conditions::conditions;
use super::selectors::own_selector;
use super::tree::{get, has, text};
use super::workloads::{amount, at_most_all, counts};
use crate::rules::options::FieldErrors;

/// A disruption budget.
pub(crate) fn budget(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if has(spec, "minAvailable") && has(spec, "maxUnavailable") {
        out.push(Error::invalid(&path, spec.clone(), "minAvailable and maxUnavailable cannot be both set"));
    }
    for key in ["minAvailable", "maxUnavailable"] {
        amount(get(spec, key), &path.child(key), out);
        at_most_all(get(spec, key), &path.child(key), out);
    }
    own_selector(get(spec, "selector"), &path.child("selector"), out);
    let (key, supported) = ("unhealthyPodEvictionPolicy", ["AlwaysAllow", "IfHealthyBudget"]);
    if has(spec, key) && !supported.contains(&text(spec, key)) {
        out.push(Error::not_supported(path.child(key), text(spec, key), &supported));
    }
}

/// `status` of a disruption budget.
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    conditions(status, &path, out);
    counts(status, &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"], &path, out);
}
