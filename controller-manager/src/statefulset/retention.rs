//! Retention of claims with their pod or their set: owner references by the retention policy. Answers for upstream's
//! `updateClaimOwnerRefForSetAndPod`.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use shared::informer::Store;

use super::identity::{claim_names, pod_name, range};
use crate::engine::action::Action;
use crate::engine::object;
use crate::engine::pod::Pod;

fn policy(set: &StatefulSet) -> (bool, bool) {
    let p = set.spec.as_ref().and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |v: Option<&str>| v == Some("Delete");
    (deletes(p.and_then(|p| p.when_deleted.as_deref())), deletes(p.and_then(|p| p.when_scaled.as_deref())))
}

/// Reports whether a claim of this ordinal still belongs to an earlier pod of the same name, which was scaled away with
/// it.
#[must_use]
pub fn stale(set: &StatefulSet, at: i32, there: &Store<PersistentVolumeClaim>) -> bool {
    let (_, when_scaled) = policy(set);
    let pod = pod_name(set, at);
    let owned = |c: &PersistentVolumeClaim| c.metadata.owner_references.iter().flatten().any(|r| of_pod(&pod, r));
    let namespace = object::namespace(&set.metadata);
    when_scaled && claim_names(set, at).any(|name| there.get(namespace, &name).is_some_and(|claim| owned(&claim)))
}

/// Changes of the owners of one pod's claims.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// Warnings of claims that somebody else controls, and updates of those whose owners are not right.
    pub actions: Vec<Action>,
    /// All owners are right as they are.
    pub right: bool,
}

/// Give the claims of an ordinal the owners that the policy asks for; `pod` is none as long as it is not made. A claim
/// that is not there yet gets its owner in a later round.
#[must_use]
pub fn upkeep(set: &StatefulSet, at: i32, pod: Option<&Pod>, there: &Store<PersistentVolumeClaim>) -> Upkeep {
    let mut out = Upkeep { actions: Vec::new(), right: true };
    let name = pod_name(set, at);
    let is = (name.as_str(), pod.map_or("", |p| object::uid(&p.metadata)));
    for claim in claim_names(set, at).filter_map(|name| there.get(object::namespace(&set.metadata), &name)) {
        let foreign = foreign(set, is, &claim);
        out.actions.extend(foreign.then(|| conflict(set, &claim)));
        let refs = claim.metadata.owner_references.clone().unwrap_or_default();
        if refs.iter().any(|r| bygone(set, is, r)) {
            // It goes with them.
            continue;
        }
        let mut after: Vec<OwnerReference> =
            refs.iter().filter(|r| !of_set(set, r) && !of_pod(&name, r)).cloned().collect();
        if !foreign {
            after.extend(owner(set, pod, at));
        }
        if !same_owners(&refs, &after) {
            let mut copy = PersistentVolumeClaim::clone(&claim);
            copy.metadata.owner_references = Some(after).filter(|a| !a.is_empty());
            out.actions.push(Action::update(&copy));
            out.right = false;
        }
    }
    out
}

fn conflict(set: &StatefulSet, claim: &PersistentVolumeClaim) -> Action {
    let text = format!(
        "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim",
        object::name(&claim.metadata)
    );
    Action::warning(&object::reference::<StatefulSet>(&set.metadata), "ConflictingController", text)
}

/// The owner that the policy asks for.
fn owner(set: &StatefulSet, pod: Option<&Pod>, at: i32) -> Option<OwnerReference> {
    let (when_deleted, when_scaled) = policy(set);
    match (when_scaled && !range(set).contains(&at), when_deleted) {
        (true, _) => pod.map(|p| object::controller_ref::<Pod>(&p.metadata)),
        (false, true) => Some(object::controller_ref::<StatefulSet>(&set.metadata)),
        (false, false) => None,
    }
}

fn of_set(set: &StatefulSet, r: &OwnerReference) -> bool {
    r.api_version == "apps/v1" && r.kind == "StatefulSet" && r.name == object::name(&set.metadata)
}

fn of_pod(pod: &str, r: &OwnerReference) -> bool {
    r.api_version == "v1" && r.kind == "Pod" && r.name == pod
}

/// Reports whether an owner is an earlier set or pod of the same name.
fn bygone(set: &StatefulSet, (pod, uid): (&str, &str), r: &OwnerReference) -> bool {
    (of_set(set, r) && r.uid != object::uid(&set.metadata)) || (of_pod(pod, r) && r.uid != uid)
}

/// Reports whether somebody else controls the claim: earlier ones of the same name count, and claims that are retained
/// anyway do not.
fn foreign(set: &StatefulSet, pod: (&str, &str), claim: &PersistentVolumeClaim) -> bool {
    let ours = |r: &OwnerReference| of_set(set, r) || of_pod(pod.0, r);
    let others = |r: &OwnerReference| bygone(set, pod, r) || (!ours(r) && r.controller == Some(true));
    policy(set) != (false, false) && claim.metadata.owner_references.iter().flatten().any(others)
}

/// An owner that is not the controller is not the right one either.
fn same_owners(before: &[OwnerReference], after: &[OwnerReference]) -> bool {
    let of = |list: &[OwnerReference]| -> BTreeSet<(String, bool)> {
        list.iter().map(|r| (r.uid.clone(), r.controller == Some(true))).collect()
    };
    of(before) == of(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn owners_follow_the_policy() {
        let set = |deleted: &str, scaled: &str, replicas: i32| -> StatefulSet {
            serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns", "uid": "set"},
                "spec": {"replicas": replicas, "selector": {}, "template": {}, "serviceName": "",
                    "persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled},
                    "volumeClaimTemplates": [{"metadata": {"name": "d"}}]}}))
            .expect("set")
        };
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web-0", "uid": "pod"}})).expect("pod");
        let claim = |owners: Value| -> Store<PersistentVolumeClaim> {
            let claim = json!({"metadata": {"name": "d-web-0", "namespace": "ns", "ownerReferences": owners}});
            Store::of([serde_json::from_value(claim).expect("claim")])
        };
        let owned = |api: &str, kind: &str, name: &str, uid: &str, controls: bool| json!({"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": controls});
        let by_set = |uid: &str, controls: bool| owned("apps/v1", "StatefulSet", "web", uid, controls);
        let by_pod = |uid: &str| owned("v1", "Pod", "web-0", uid, true);
        let other = || owned("acme.io/v1", "X", "x", "other", true);
        let after = |upkeep: &Upkeep| -> Option<Vec<String>> {
            let body = upkeep
                .actions
                .iter()
                .find_map(|a| if let Action::Update { body, .. } = a { Some(body) } else { None })?;
            let refs = body["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            Some(refs.iter().map(|r| r["uid"].as_str().unwrap_or_default().to_owned()).collect())
        };
        let (keep, delete) = ("Retain", "Delete");
        for (name, set, owners, want, warns) in [
            ("retained", set(keep, keep, 1), json!([]), None, false),
            ("goes with the set", set(delete, keep, 1), json!([]), Some(vec!["set"]), false),
            ("is the set's already", set(delete, keep, 1), json!([by_set("set", true)]), None, false),
            ("owned but not controlled", set(delete, keep, 1), json!([by_set("set", false)]), Some(vec!["set"]), false),
            ("policy taken back", set(keep, keep, 1), json!([by_set("set", true)]), Some(vec![]), false),
            (
                "goes with the condemned pod",
                set(delete, delete, 0),
                json!([by_set("set", true)]),
                Some(vec!["pod"]),
                false,
            ),
            ("is wanted again", set(keep, delete, 1), json!([by_pod("pod")]), Some(vec![]), false),
            ("somebody else's", set(delete, delete, 1), json!([other()]), None, true),
            (
                "somebody else's beside ours",
                set(delete, delete, 1),
                json!([by_set("set", true), other()]),
                Some(vec!["other"]),
                true,
            ),
            ("of an earlier set of this name", set(delete, keep, 1), json!([by_set("old", true)]), None, true),
            ("of an earlier pod of this name", set(keep, delete, 0), json!([by_pod("old")]), None, true),
            ("somebody else's and retained", set(keep, keep, 1), json!([other()]), None, false),
        ] {
            let upkeep = upkeep(&set, 0, Some(&pod), &claim(owners));
            assert_eq!(after(&upkeep), want.map(|w| w.into_iter().map(str::to_owned).collect()), "{name}");
            assert_eq!(upkeep.right, after(&upkeep).is_none(), "{name}");
            let warned =
                upkeep.actions.iter().any(|a| matches!(a, Action::Event { reason: "ConflictingController", .. }));
            assert_eq!(warned, warns, "{name}");
        }
    }
}
