//! Statuses of workloads: counts that fit together.

use proto::Value;
use shared::status::field::{Error, Path};

use super::counts;
use crate::rules::options::FieldErrors;
use crate::rules::tree::{get, int};

fn number(status: &Value, key: &str) -> i64 {
    int(status, key).unwrap_or_default()
}

/// Some counts may not be above another, which the complaint names.
fn at_most(status: &Value, keys: &[&str], bound: &str, shown: &str, out: &mut FieldErrors) {
    let most = number(status, bound);
    for key in keys {
        let value = number(status, key);
        if value > most {
            let why = format!("cannot be greater than {shown}");
            out.push(Error::invalid(Path::of(&["status", key]), value, &why));
        }
    }
}

fn collisions(new: &Value, old: &Value, path: &Path, out: &mut FieldErrors) {
    let path = path.child("collisionCount");
    let (now, was) = (int(get(new, "status"), "collisionCount"), int(get(old, "status"), "collisionCount"));
    if let Some(was) = was
        && now.is_none_or(|n| n < was)
    {
        out.push(Error::invalid(path, now.unwrap_or_default(), "cannot be decremented"));
    }
}

/// Of a replica set or replication controller.
pub(crate) fn replicas(new: &Value, _: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    counts(
        status,
        &[
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ],
        &path,
        out,
    );
    at_most(
        status,
        &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        "replicas",
        "status.replicas",
        out,
    );
    at_most(status, &["availableReplicas"], "readyReplicas", "readyReplicas", out);
}

/// Of a deployment.
pub(crate) fn deployment(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    let keys = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    counts(status, &keys, &path, out);
    at_most(status, &["updatedReplicas", "readyReplicas", "availableReplicas"], "replicas", "status.replicas", out);
    at_most(status, &["availableReplicas"], "readyReplicas", "readyReplicas", out);
    collisions(new, old, &path, out);
}

/// Of a daemon set.
pub(crate) fn daemon_set(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    let keys = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    counts(status, &keys, &path, out);
    collisions(new, old, &path, out);
}

/// Of a stateful set.
pub(crate) fn stateful_set(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    let keys = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    counts(status, &keys, &path, out);
    let within = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    at_most(status, &within, "replicas", "status.replicas", out);
    at_most(status, &["availableReplicas"], "readyReplicas", "status.readyReplicas", out);
    collisions(new, old, &path, out);
}
