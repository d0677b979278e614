//! Whether claims go with their pod or their set: owner references by the retention policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::identity::{claims, ordinal, pod_name, replicas, start};
use crate::engine::action::Action;
use crate::engine::object;
use crate::engine::pod::Pod;

fn policy(set: &StatefulSet) -> (bool, bool) {
    let p = set.spec.as_ref().and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |v: Option<&str>| v == Some("Delete");
    (deletes(p.and_then(|p| p.when_deleted.as_deref())), deletes(p.and_then(|p| p.when_scaled.as_deref())))
}

/// Give a new claim the owner it will keep.
pub fn own_new(set: &StatefulSet, claim: &mut PersistentVolumeClaim) {
    if policy(set).0 {
        claim.metadata.owner_references = Some(vec![object::controller_ref::<StatefulSet>(&set.metadata)]);
    }
}

/// Whether a claim of this ordinal still belongs to an earlier pod of the same name, which was scaled away with it.
#[must_use]
pub fn stale(set: &StatefulSet, at: i32, there: &[Arc<PersistentVolumeClaim>]) -> bool {
    let (_, when_scaled) = policy(set);
    let pod = pod_name(set, at);
    let of_pod = |r: &OwnerReference| r.kind == "Pod" && r.name == pod;
    let owned = |c: &PersistentVolumeClaim| c.metadata.owner_references.iter().flatten().any(of_pod);
    when_scaled
        && claims(set, at)
            .iter()
            .any(|wanted| there.iter().any(|c| c.metadata.name == wanted.metadata.name && owned(c)))
}

/// What there is to do about the claims of one pod.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// Warnings of claims that somebody else controls, and updates of those whose owners are not right.
    pub actions: Vec<Action>,
    /// Whether any claim is updated.
    pub updates: bool,
}

/// Give the claims of a pod the owners that the policy asks for.
#[must_use]
pub fn upkeep(set: &StatefulSet, pod: &Pod, there: &[Arc<PersistentVolumeClaim>]) -> Upkeep {
    let mut out = Upkeep::default();
    let Some(at) = ordinal(set, pod) else { return out };
    for wanted in claims(set, at) {
        let Some(claim) = there.iter().find(|c| c.metadata.name == wanted.metadata.name) else { continue };
        let (name, uid) = (object::name(&pod.metadata), object::uid(&pod.metadata));
        let refs = claim.metadata.owner_references.clone().unwrap_or_default();
        if refs.iter().any(|r| bygone(set, (name, uid), r)) {
            // It goes with them.
            continue;
        }
        let foreign = foreign(set, (name, uid), claim);
        let mut after: Vec<OwnerReference> =
            refs.iter().filter(|r| !of_set(set, r) && !of_pod(name, r)).cloned().collect();
        if !foreign {
            after.extend(owner(set, pod, at));
        }
        if !same_owners(&refs, &after) {
            let mut copy = PersistentVolumeClaim::clone(claim);
            copy.metadata.owner_references = Some(after).filter(|a| !a.is_empty());
            out.actions.extend(foreign.then(|| conflict(set, claim)));
            out.actions.push(Action::update(&copy));
            out.updates = true;
        }
    }
    out
}

/// Warnings of claims that the pod of an ordinal, which is about to be made, finds in the hands of somebody else.
pub fn conflicts(set: &StatefulSet, at: i32, there: &[Arc<PersistentVolumeClaim>]) -> impl Iterator<Item = Action> {
    let pod = pod_name(set, at);
    let names: BTreeSet<Option<String>> = claims(set, at).into_iter().map(|c| c.metadata.name).collect();
    let found = there.iter().filter(move |c| names.contains(&c.metadata.name) && foreign(set, (&pod, ""), c));
    found.map(|c| conflict(set, c))
}

fn conflict(set: &StatefulSet, claim: &PersistentVolumeClaim) -> Action {
    let text = format!(
        "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim",
        object::name(&claim.metadata)
    );
    Action::warning(&object::reference::<StatefulSet>(&set.metadata), "ConflictingController", text)
}

/// The owner that the policy asks for.
fn owner(set: &StatefulSet, pod: &Pod, at: i32) -> Option<OwnerReference> {
    let (when_deleted, when_scaled) = policy(set);
    let first = start(set);
    let condemned = !(first..first + replicas(set).max(0)).contains(&at);
    match (when_scaled && condemned, when_deleted) {
        (true, _) => Some(object::controller_ref::<Pod>(&pod.metadata)),
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

/// Whether an owner is an earlier set or pod of the same name.
fn bygone(set: &StatefulSet, (pod, uid): (&str, &str), r: &OwnerReference) -> bool {
    (of_set(set, r) && r.uid != object::uid(&set.metadata)) || (of_pod(pod, r) && r.uid != uid)
}

/// Whether somebody else controls the claim: earlier ones of the same name count, and claims that are retained anyway are
/// nobody's concern.
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
        let pods: Vec<Arc<Pod>> =
            vec![Arc::new(serde_json::from_value(json!({"metadata": {"name": "web-0", "uid": "pod"}})).expect("pod"))];
        let claim = |owners: Value| -> Vec<Arc<PersistentVolumeClaim>> {
            vec![Arc::new(
                serde_json::from_value(
                    json!({"metadata": {"name": "d-web-0", "namespace": "ns", "ownerReferences": owners}}),
                )
                .expect("claim"),
            )]
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
            ("somebody else's", set(delete, delete, 1), json!([other()]), None, false),
            (
                "somebody else's beside ours",
                set(delete, delete, 1),
                json!([by_set("set", true), other()]),
                Some(vec!["other"]),
                true,
            ),
            ("of an earlier set of this name", set(delete, keep, 1), json!([by_set("old", true)]), None, false),
            ("of an earlier pod of this name", set(keep, delete, 0), json!([by_pod("old")]), None, false),
            ("somebody else's and retained", set(keep, keep, 1), json!([other()]), None, false),
        ] {
            let upkeep = upkeep(&set, &pods[0], &claim(owners));
            assert_eq!(after(&upkeep), want.map(|w| w.into_iter().map(str::to_owned).collect()), "{name}");
            assert_eq!(upkeep.updates, after(&upkeep).is_some(), "{name}");
            let warned =
                upkeep.actions.iter().any(|a| matches!(a, Action::Event { reason: "ConflictingController", .. }));
            assert_eq!(warned, warns, "{name}");
        }
    }
}
