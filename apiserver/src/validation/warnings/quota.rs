//! Quotas that let pods request more than they may use.

use proto::Value;

use crate::rules::options::Warnings;
use crate::rules::tree::{at, has, quantity, text};

/// A new quota.
pub(super) fn quota(new: &Value, out: &mut Warnings) {
    let hard = at(new, &["spec", "hard"]);
    for resource in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let (mut request, limit) = (format!("requests.{resource}"), format!("limits.{resource}"));
        if !has(hard, &request) && matches!(resource, "cpu" | "memory") {
            resource.clone_into(&mut request);
        }
        let both = has(hard, &request) && has(hard, &limit);
        if both && quantity(&hard[&request]) > quantity(&hard[&limit]) {
            let (requested, limited) = (text(hard, &request), text(hard, &limit));
            out.push(format!("ResourceQuota {request} ({requested}) should be less than {limit} ({limited})"));
        }
    }
}
