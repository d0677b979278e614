//! Plan for one object, given the states of its owners. Answers for upstream's `attemptToDeleteItem`,
//! `classifyReferences`.

use serde_json::{Value, json};

use crate::engine::metadata::Owner;

/// States of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner exists.
    Solid,
    /// The owner does not exist, or its uid is another's.
    Dangling,
    /// The owner is waiting for its dependents to go.
    WaitingForDependents,
}

/// Known facts about the object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject {
    /// Deletion was asked for.
    pub deleting: bool,
    /// The object waits for its own dependents.
    pub deleting_dependents: bool,
    /// The object has dependents.
    pub has_dependents: bool,
    /// One of them waits for its own dependents.
    pub dependents_waiting: bool,
    /// Dependents that block it.
    pub blocked: bool,
    /// Finalizers ask for orphaning.
    pub orphan_finalizer: bool,
    /// Finalizers ask for foreground deletion.
    pub foreground_finalizer: bool,
}

/// The step to take.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields of variants say by their names what they are")]
pub enum CollectStep {
    /// Leave it.
    Nothing,
    /// Nothing blocks it any more: take the finalizer off.
    RemoveForegroundFinalizer,
    /// Dependents have to go first.
    LookAtDependents,
    /// Forget these owners.
    DropOwners(Vec<String>),
    /// Delete it; `unblock` says to stop blocking its owners first, which would otherwise wait for each other.
    Delete { propagation: &'static str, unblock: bool },
}

/// Decide for one object.
#[must_use]
pub fn plan(s: Subject, owners: &[(Owner, OwnerState)]) -> CollectStep {
    if s.deleting && !s.deleting_dependents {
        return CollectStep::Nothing;
    }
    if s.deleting_dependents {
        return if s.blocked { CollectStep::LookAtDependents } else { CollectStep::RemoveForegroundFinalizer };
    }
    if owners.is_empty() {
        return CollectStep::Nothing;
    }
    let of = |state: OwnerState| owners.iter().filter(move |o| o.1 == state).map(|o| o.0.uid.to_string());
    if of(OwnerState::Solid).next().is_some() {
        let drop: Vec<String> = of(OwnerState::Dangling).chain(of(OwnerState::WaitingForDependents)).collect();
        return if drop.is_empty() { CollectStep::Nothing } else { CollectStep::DropOwners(drop) };
    }
    if of(OwnerState::WaitingForDependents).next().is_some() && s.has_dependents {
        return CollectStep::Delete { propagation: "Foreground", unblock: s.dependents_waiting };
    }
    let propagation = if s.orphan_finalizer {
        "Orphan"
    } else if s.foreground_finalizer {
        "Foreground"
    } else {
        "Background"
    };
    CollectStep::Delete { propagation, unblock: false }
}

/// A strategic patch that takes owners off.
#[must_use]
pub fn drop_owners_patch(uid: &str, owners: &[String]) -> Value {
    let list: Vec<Value> = owners.iter().map(|o| json!({"$patch": "delete", "uid": o})).collect();
    json!({"metadata": {"ownerReferences": list, "uid": uid}})
}

/// A merge patch that does so, for resources without strategic ones: the list that remains.
#[must_use]
pub fn drop_owners_merge(live: &Value, owners: &[String]) -> Value {
    let meta = &live["metadata"];
    let left: Vec<&Value> = meta["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|r| !owners.iter().any(|o| r["uid"] == o.as_str()))
        .collect();
    json!({"metadata": {"ownerReferences": left, "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}})
}

/// A patch that makes the object block none of its owners; None if it blocks none.
#[must_use]
pub fn unblock(live: &Value) -> Option<Value> {
    let meta = &live["metadata"];
    let mut owners = meta["ownerReferences"].as_array()?.clone();
    let mut changed = false;
    for owner in &mut owners {
        if owner["blockOwnerDeletion"] == true {
            owner["blockOwnerDeletion"] = json!(false);
            changed = true;
        }
    }
    changed.then(|| json!({"metadata": {"ownerReferences": owners, "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}))
}

/// A patch that takes a finalizer off; None if it is not there.
#[must_use]
pub fn remove_finalizer(live: &Value, finalizer: &str) -> Option<Value> {
    let meta = &live["metadata"];
    let have = meta["finalizers"].as_array()?;
    let left: Vec<&Value> = have.iter().filter(|f| *f != finalizer).collect();
    (left.len() < have.len()).then(
        || json!({"metadata": {"finalizers": left, "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions() {
        use OwnerState::{Dangling, Solid, WaitingForDependents};
        let owner = |uid: &str, state| {
            (
                Owner {
                    api_version: "v1".into(),
                    kind: "X".into(),
                    name: uid.into(),
                    uid: uid.into(),
                    block_owner_deletion: None,
                },
                state,
            )
        };
        let delete = |propagation| CollectStep::Delete { propagation, unblock: false };
        let cases = [
            ("no owners", Subject::default(), vec![], CollectStep::Nothing),
            ("a live owner keeps it", Subject::default(), vec![owner("a", Solid)], CollectStep::Nothing),
            (
                "a live owner keeps it, dead ones are dropped",
                Subject::default(),
                vec![owner("a", Solid), owner("b", Dangling)],
                CollectStep::DropOwners(vec!["b".into()]),
            ),
            ("all owners gone", Subject::default(), vec![owner("a", Dangling)], delete("Background")),
            ("a waiting owner", Subject::default(), vec![owner("a", WaitingForDependents)], delete("Background")),
            (
                "a waiting owner and own dependents",
                Subject { has_dependents: true, ..Subject::default() },
                vec![owner("a", WaitingForDependents)],
                delete("Foreground"),
            ),
            (
                "its orphan finalizer is respected",
                Subject { orphan_finalizer: true, ..Subject::default() },
                vec![owner("a", Dangling)],
                delete("Orphan"),
            ),
            (
                "on its way out",
                Subject { deleting: true, ..Subject::default() },
                vec![owner("a", Dangling)],
                CollectStep::Nothing,
            ),
            (
                "waits for its dependents",
                Subject { deleting: true, deleting_dependents: true, blocked: true, ..Subject::default() },
                vec![],
                CollectStep::LookAtDependents,
            ),
            (
                "waited long enough",
                Subject { deleting: true, deleting_dependents: true, ..Subject::default() },
                vec![],
                CollectStep::RemoveForegroundFinalizer,
            ),
        ];
        for (name, subject, owners, want) in cases {
            assert_eq!(plan(subject, &owners), want, "{name}");
        }
    }

    #[test]
    fn patches() {
        let live = json!({"metadata": {"uid": "u", "resourceVersion": "5", "finalizers": ["orphan", "x"], "ownerReferences": [{"uid": "a"}, {"uid": "b"}]}});
        assert_eq!(
            remove_finalizer(&live, "orphan"),
            Some(json!({"metadata": {"finalizers": ["x"], "uid": "u", "resourceVersion": "5"}}))
        );
        assert_eq!(remove_finalizer(&live, "none"), None);
        assert_eq!(unblock(&live), None);
        let blocking = json!({"metadata": {"ownerReferences": [{"uid": "a", "blockOwnerDeletion": true}]}});
        assert_eq!(
            unblock(&blocking).map(|p| p["metadata"]["ownerReferences"].clone()),
            Some(json!([{"uid": "a", "blockOwnerDeletion": false}]))
        );
        assert_eq!(drop_owners_merge(&live, &["a".into()])["metadata"]["ownerReferences"], json!([{"uid": "b"}]));
    }
}
