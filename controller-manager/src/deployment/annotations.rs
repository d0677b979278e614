//! Revision and size bookkeeping in annotations, as `kubectl rollout` reads it. Answers for upstream's
//! `SetNewReplicaSetAnnotations`, `SetReplicasAnnotations`.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::strategy::{most_replicas, replicas};
use crate::engine::object;

/// Number of the rollout.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// Asks for the template of an earlier revision.
pub const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
const HISTORY_LIMIT: usize = 2000;

/// Annotations that stay with the object they are on.
pub const NOT_COPIED: [&str; 6] =
    ["kubectl.kubernetes.io/last-applied-configuration", REVISION, HISTORY, DESIRED, MAX, ROLLBACK_TO];

/// A set's revision; 0 if it has none.
#[must_use]
pub fn revision(r: &ReplicaSet) -> i64 {
    object::annotation(&r.metadata, REVISION).and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The size the deployment had when the set was last sized.
#[must_use]
pub fn desired(r: &ReplicaSet) -> Option<i64> {
    number(r, DESIRED)
}

/// The size with surge the deployment had when the set was last sized.
#[must_use]
pub fn max_replicas(r: &ReplicaSet) -> Option<i64> {
    number(r, MAX)
}

/// A number of pods in an annotation; as upstream reads it, none beyond 32 bits.
fn number(r: &ReplicaSet, annotation: &str) -> Option<i64> {
    object::annotation(&r.metadata, annotation)?.parse::<i32>().ok().map(i64::from)
}

/// Note the deployment's size on the set.
pub fn set_sizes(r: &mut ReplicaSet, d: &Deployment) {
    let notes = r.metadata.annotations.get_or_insert_default();
    notes.insert(DESIRED.into(), replicas(d).to_string());
    notes.insert(MAX.into(), most_replicas(d).to_string());
}

/// Bring the new set's annotations up to date: copies of the deployment's, the revision, the past revisions.
pub fn sync(r: &mut ReplicaSet, d: &Deployment, revision: i64, exists: bool) {
    let notes = r.metadata.annotations.get_or_insert_default();
    for (k, v) in d.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&k.as_str()) {
            notes.insert(k.clone(), v.clone());
        }
    }
    let old = notes.get(REVISION).cloned();
    let old_number: i64 = old.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
    if old_number < revision {
        notes.insert(REVISION.into(), revision.to_string());
        if let Some(old) = old.filter(|o| !o.is_empty()) {
            let mut past: Vec<String> = notes
                .get(HISTORY)
                .map(|h| h.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect())
                .unwrap_or_default();
            past.push(old);
            notes.insert(HISTORY.into(), past[first_kept(&past)..].join(","));
        }
    }
    if !exists {
        set_sizes(r, d);
    }
    if r.metadata.annotations.as_ref().is_some_and(std::collections::BTreeMap::is_empty) {
        r.metadata.annotations = None;
    }
}

/// Returns the index of the oldest revision that is kept: the newest is, and others as far as [`HISTORY_LIMIT`] has room.
fn first_kept(past: &[String]) -> usize {
    // One comma less than there are revisions.
    let mut room = HISTORY_LIMIT + 1;
    let fits = past.iter().rev().take_while(|revision| {
        let left = room.checked_sub(revision.len() + 1);
        room = left.unwrap_or_default();
        left.is_some()
    });
    past.len() - fits.count().clamp(1, past.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_history_of_many_revisions_is_cut_in_one_pass() {
        let past = vec!["1".to_owned(); 200_000];
        assert_eq!(past.len() - first_kept(&past), HISTORY_LIMIT.div_ceil(2));
        assert_eq!(first_kept(&["x".repeat(HISTORY_LIMIT * 2)]), 0, "the newest stays, however long");
        assert_eq!(first_kept(&["1".to_owned(), "x".repeat(HISTORY_LIMIT)]), 1);
    }

    #[test]
    fn past_revisions_have_room_to_the_last_character() {
        let d: Deployment =
            serde_json::from_value(json!({"spec": {"selector": {}, "template": {}}})).expect("deployment");
        let many = |n: usize| vec!["123"; n].join(",");
        for (name, past, want) in [
            ("the first", String::new(), "1000".to_owned()),
            ("one more", "7".to_owned(), "7,1000".to_owned()),
            ("all the room", many(499), format!("{},1000", many(499))),
            ("too much", format!("{},1234", many(498)), format!("{},1234,1000", many(497))),
        ] {
            let mut r: ReplicaSet = serde_json::from_value(
                json!({"metadata": {"annotations": {REVISION: "1000", HISTORY: past}}, "spec": {"selector": {}}}),
            )
            .expect("set");
            sync(&mut r, &d, 1001, true);
            let notes = r.metadata.annotations.expect("annotations");
            assert_eq!((notes[HISTORY].as_str(), notes[REVISION].as_str()), (want.as_str(), "1001"), "{name}");
        }
    }
}
