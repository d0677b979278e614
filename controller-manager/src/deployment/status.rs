//! Status of a deployment: counts and the Available, Progressing and ReplicaFailure conditions. Answers for upstream's
//! `calculateStatus`, `syncRolloutStatus`.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

use super::strategy::{available, max_unavailable, replicas, size, status_replicas, stored};
use crate::engine::object;

/// The condition that tells whether the rollout advances.
pub const PROGRESSING: &str = "Progressing";
/// The rollout is complete.
pub const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
/// The rollout did not advance in time.
pub const TIMED_OUT: &str = "ProgressDeadlineExceeded";

/// The deadline, unless there is none (the largest value means none).
#[must_use]
pub fn deadline(d: &Deployment) -> Option<i32> {
    d.spec.as_ref().and_then(|s| s.progress_deadline_seconds).filter(|v| *v != i32::MAX)
}

/// A condition by type.
#[must_use]
pub fn condition<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// A fresh condition.
#[must_use]
pub fn new_condition(kind: &str, status: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(object::seconds(now)),
        last_transition_time: Some(object::seconds(now)),
    }
}

/// Put a condition in: unchanged status and reason leave the old one, an unchanged status keeps its transition time.
pub fn set_condition(status: &mut DeploymentStatus, mut new: DeploymentCondition) {
    if let Some(old) = condition(status, &new.type_) {
        if old.status == new.status && old.reason == new.reason {
            return;
        }
        if old.status == new.status {
            new.last_transition_time.clone_from(&old.last_transition_time);
        }
    }
    remove_condition(status, &new.type_);
    status.conditions.get_or_insert_default().push(new);
}

/// Take a condition out.
pub fn remove_condition(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = status.conditions.as_mut() {
        conditions.retain(|c| c.type_ != kind);
    }
    if status.conditions.as_ref().is_some_and(Vec::is_empty) {
        status.conditions = None;
    }
}

fn some(n: i64) -> Option<i32> {
    (n != 0).then_some(stored(n))
}

/// Counts and availability.
#[must_use]
pub fn calculate(d: &Deployment, all: &[ReplicaSet], new: Option<&ReplicaSet>, now: Timestamp) -> DeploymentStatus {
    let old = d.status.clone().unwrap_or_default();
    let total: i64 = all.iter().map(status_replicas).sum();
    let asked: i64 = all.iter().map(size).sum();
    let ready: i64 = all.iter().filter_map(|r| r.status.as_ref()?.ready_replicas).map(i64::from).sum();
    let up: i64 = all.iter().map(available).sum();
    let terminating = all
        .iter()
        .map(|r| r.status.as_ref().and_then(|s| s.terminating_replicas))
        .try_fold(0, |sum, n| n.map(|n| sum + i64::from(n)));
    let mut status = DeploymentStatus {
        observed_generation: d.metadata.generation,
        replicas: some(total),
        updated_replicas: some(new.map_or(0, status_replicas)),
        ready_replicas: some(ready),
        available_replicas: some(up),
        // Those that could not even be made are missed as well.
        unavailable_replicas: some((asked - up).max(0)),
        terminating_replicas: terminating.map(stored),
        collision_count: old.collision_count,
        conditions: old.conditions,
    };
    let enough = up >= replicas(d) - max_unavailable(d);
    set_condition(
        &mut status,
        if enough {
            new_condition(
                "Available",
                "True",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.".into(),
                now,
            )
        } else {
            new_condition(
                "Available",
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.".into(),
                now,
            )
        },
    );
    status
}

/// Everything is new, there and available.
#[must_use]
pub fn complete(d: &Deployment, status: &DeploymentStatus) -> bool {
    let want = some(replicas(d));
    status.updated_replicas == want
        && status.replicas == want
        && status.available_replicas == want
        && status.observed_generation >= d.metadata.generation
}

fn progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let n = |v: Option<i32>| v.unwrap_or(0);
    let outdated = |s: &DeploymentStatus| n(s.replicas) - n(s.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || outdated(new) < outdated(old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

fn timed_out(d: &Deployment, status: &DeploymentStatus, now: Timestamp) -> bool {
    let (Some(limit), Some(c)) = (deadline(d), condition(status, PROGRESSING)) else { return false };
    match c.reason.as_deref() {
        Some(NEW_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => {
            let from = c.last_update_time.as_ref().map_or(0, |t| t.0.as_second());
            from + i64::from(limit) < now.as_second()
        }
    }
}

/// The status during a rollout, with progress judged against the previous one.
#[must_use]
pub fn rollout(d: &Deployment, all: &[ReplicaSet], new: Option<&ReplicaSet>, now: Timestamp) -> DeploymentStatus {
    let old = d.status.clone().unwrap_or_default();
    let mut status = calculate(d, all, new, now);
    if deadline(d).is_none() {
        remove_condition(&mut status, PROGRESSING);
    }
    let subject = new.map_or_else(
        || format!("Deployment \"{}\"", object::name(&d.metadata)),
        |r| format!("ReplicaSet \"{}\"", object::name(&r.metadata)),
    );
    let current = condition(&status, PROGRESSING).cloned();
    let settled = status.replicas == status.updated_replicas
        && current.as_ref().is_some_and(|c| c.reason.as_deref() == Some(NEW_AVAILABLE));
    if deadline(d).is_some() && !settled {
        if complete(d, &status) {
            let message = format!("{subject} has successfully progressed.");
            set_condition(&mut status, new_condition(PROGRESSING, "True", NEW_AVAILABLE, message, now));
        } else if progressing(&old, &status) {
            // Renewed on every step, since the deadline counts from the last update.
            let mut c =
                new_condition(PROGRESSING, "True", "ReplicaSetUpdated", format!("{subject} is progressing."), now);
            if let Some(before) = current.filter(|b| b.status == c.status) {
                c.last_transition_time = before.last_transition_time;
            }
            remove_condition(&mut status, PROGRESSING);
            status.conditions.get_or_insert_default().push(c);
        } else if timed_out(d, &status, now) {
            let message = format!("{subject} has timed out progressing.");
            set_condition(&mut status, new_condition(PROGRESSING, "False", TIMED_OUT, message, now));
        }
    }
    // The new set's failure says more than those of the old.
    let failure = new
        .into_iter()
        .chain(all)
        .filter_map(|r| r.status.as_ref()?.conditions.as_ref())
        .flatten()
        .find(|c| c.type_ == "ReplicaFailure");
    match failure {
        Some(f) => {
            let c = DeploymentCondition {
                type_: f.type_.clone(),
                status: f.status.clone(),
                reason: f.reason.clone(),
                message: f.message.clone(),
                last_transition_time: f.last_transition_time.clone(),
                last_update_time: f.last_transition_time.clone(),
            };
            set_condition(&mut status, c);
        }
        None => remove_condition(&mut status, "ReplicaFailure"),
    }
    status
}

/// Returns the time until a rollout that may get stuck is looked at again.
#[must_use]
pub fn recheck(d: &Deployment, status: &DeploymentStatus, now: Timestamp) -> Option<Duration> {
    let (limit, c) = (deadline(d)?, condition(status, PROGRESSING)?);
    if complete(d, status) || c.reason.as_deref() == Some(TIMED_OUT) {
        return None;
    }
    let due = c.last_update_time.as_ref()?.0.as_second() + i64::from(limit) - now.as_second();
    Some(Duration::from_secs(u64::try_from(due).unwrap_or(0) + 1))
}
