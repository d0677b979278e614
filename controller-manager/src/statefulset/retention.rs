//! Whether claims go with their pod or their set: owner references by the retention policy.

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

/// The updates that give the claims of each pod the owners that the policy asks for.
#[must_use]
pub fn plan(set: &StatefulSet, pods: &[Arc<Pod>], there: &[Arc<PersistentVolumeClaim>]) -> Vec<Action> {
    let (when_deleted, when_scaled) = policy(set);
    let first = start(set);
    let range = first..first + replicas(set).max(0);
    let mut actions = Vec::new();
    for pod in pods {
        let Some(at) = ordinal(set, pod) else { continue };
        let condemned = !range.contains(&at);
        for wanted in claims(set, at) {
            let Some(claim) = there.iter().find(|c| c.metadata.name == wanted.metadata.name) else { continue };
            let refs = claim.metadata.owner_references.clone().unwrap_or_default();
            let (set_uid, pod_uid) = (object::uid(&set.metadata), object::uid(&pod.metadata));
            let foreign = refs.iter().any(|r| r.controller == Some(true) && r.uid != set_uid && r.uid != pod_uid);
            if foreign {
                continue;
            }
            let by_pod = when_scaled && condemned;
            let by_set = when_deleted && !by_pod;
            let mut after: Vec<OwnerReference> =
                refs.iter().filter(|r| r.uid != set_uid && r.uid != pod_uid).cloned().collect();
            if by_set {
                after.push(object::controller_ref::<StatefulSet>(&set.metadata));
            }
            if by_pod {
                after.push(object::controller_ref::<Pod>(&pod.metadata));
            }
            let owners = |list: &[OwnerReference]| -> Vec<String> { list.iter().map(|r| r.uid.clone()).collect() };
            if owners(&after) != owners(&refs) {
                let mut copy = PersistentVolumeClaim::clone(claim);
                copy.metadata.owner_references = Some(after).filter(|a| !a.is_empty());
                actions.push(Action::update(&copy));
            }
        }
    }
    actions
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
        let owner = |uid: &str| json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true}]);
        let after = |actions: Vec<Action>| -> Option<Vec<String>> {
            match actions.as_slice() {
                [] => None,
                [Action::Update { body, .. }] => {
                    let refs = body["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
                    Some(refs.iter().map(|r| r["uid"].as_str().unwrap_or_default().to_owned()).collect())
                }
                other => panic!("{other:?}"),
            }
        };
        for (name, set, claim, want) in [
            ("retained", set("Retain", "Retain", 1), claim(json!([])), None),
            ("goes with the set", set("Delete", "Retain", 1), claim(json!([])), Some(vec!["set"])),
            ("policy taken back", set("Retain", "Retain", 1), claim(owner("set")), Some(vec![])),
            ("goes with the condemned pod", set("Delete", "Delete", 0), claim(owner("set")), Some(vec!["pod"])),
            ("somebody else's", set("Delete", "Delete", 1), claim(owner("other")), None),
        ] {
            assert_eq!(
                after(plan(&set, &pods, &claim)),
                want.map(|w| w.into_iter().map(str::to_owned).collect()),
                "{name}"
            );
        }
    }
}
