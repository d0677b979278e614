//! The template history of a daemon set: revisions without a hash, equal ones, and old ones. Answers for upstream's
//! `constructHistory`, `dedupCurHistories`.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::json;

use crate::engine::action::{Action, PatchKind};
use crate::engine::pod::Pod;
use crate::engine::{history, object};

type Revisions = [Arc<ControllerRevision>];

/// Label the revisions that have no hash with their name, which nothing else has.
pub(super) fn label(revisions: &Revisions) -> Vec<Action> {
    let without = |r: &&Arc<ControllerRevision>| object::label(&r.metadata, history::HASH_LABEL).is_none();
    let labelled = |r: &Arc<ControllerRevision>| {
        let mut copy = ControllerRevision::clone(r);
        let name = object::name(&r.metadata).to_owned();
        copy.metadata.labels.get_or_insert_default().insert(history::HASH_LABEL.into(), name);
        Action::update(&copy)
    };
    revisions.iter().filter(without).map(labelled).collect()
}

/// Splits revisions into those that hold the template, and the others.
pub(super) fn split<'a>(
    revisions: &'a Revisions,
    template: &PodTemplateSpec,
) -> (Vec<&'a Arc<ControllerRevision>>, Vec<&'a Arc<ControllerRevision>>) {
    revisions.iter().partition(|r| history::holds(r, template))
}

/// Of equal revisions only the one with this hash stays; it takes over the pods of the others.
pub(super) fn merge(same: &[&Arc<ControllerRevision>], hash: &str, pods: &[Arc<Pod>]) -> Vec<Action> {
    let others: Vec<_> = same.iter().filter(|r| history::hash_of(r) != hash).collect();
    let of_another = |pod: &&Arc<Pod>| {
        let own = object::label(&pod.metadata, history::HASH_LABEL);
        others.iter().any(|r| Some(history::hash_of(r)) == own)
    };
    let body = json!({"metadata": {"labels": {history::HASH_LABEL: hash}}});
    let relabelled =
        pods.iter().filter(of_another).map(|p| Action::patch::<Pod>(&p.metadata, PatchKind::Strategic, body.clone()));
    relabelled.chain(others.iter().map(|r| Action::delete::<ControllerRevision>(&r.metadata))).collect()
}

/// Delete the oldest of the old revisions until no more than `limit` are left; those that have pods stay.
pub(super) fn truncate(old: &[&Arc<ControllerRevision>], pods: &[Arc<Pod>], limit: i32) -> Vec<Action> {
    let live: HashSet<&str> = pods.iter().filter_map(|p| object::label(&p.metadata, history::HASH_LABEL)).collect();
    let excess = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    let dead = old.iter().filter(|r| !live.contains(history::hash_of(r)));
    dead.take(excess).map(|r| Action::delete::<ControllerRevision>(&r.metadata)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(name: &str, hash: Option<&str>) -> Arc<ControllerRevision> {
        let mut v = json!({"metadata": {"name": name, "namespace": "ns"}, "revision": 1});
        if let Some(hash) = hash {
            v["metadata"]["labels"] = json!({history::HASH_LABEL: hash});
        }
        Arc::new(serde_json::from_value(v).expect("revision"))
    }

    fn pod(name: &str, hash: &str) -> Arc<Pod> {
        let meta = json!({"name": name, "namespace": "ns", "labels": {history::HASH_LABEL: hash}});
        Arc::new(serde_json::from_value(json!({"metadata": meta})).expect("pod"))
    }

    fn shape(actions: &[Action]) -> Vec<String> {
        let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        actions
            .iter()
            .map(|a| match a {
                Action::Patch { path, body, .. } => {
                    format!("{} to {}", last(path), body["metadata"]["labels"][history::HASH_LABEL])
                }
                Action::Delete { path, .. } => format!("delete {}", last(path)),
                Action::Update { body, .. } => body["metadata"]["labels"].to_string(),
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_revision_without_hash_is_labelled_with_its_name() {
        let actions = label(&[revision("ds-a", None), revision("ds-b", Some("b"))]);
        assert_eq!(shape(&actions), [r#"{"controller-revision-hash":"ds-a"}"#]);
    }

    #[test]
    fn equal_revisions_become_one() {
        let (a, b) = (revision("ds-a", Some("a")), revision("ds-b", Some("b")));
        let pods = [pod("one", "a"), pod("two", "b"), pod("old", "z")];
        assert_eq!(shape(&merge(&[&a, &b], "b", &pods)), ["one to \"b\"", "delete ds-a"]);
        assert!(merge(&[&b], "b", &pods).is_empty());
    }

    #[test]
    fn old_revisions_with_pods_count_and_stay() {
        let all: Vec<_> = ["a", "b", "c"].map(|n| revision(&format!("ds-{n}"), Some(n))).into();
        let old: Vec<_> = all.iter().collect();
        for (limit, want) in [(3, vec![]), (2, vec!["delete ds-b"]), (0, vec!["delete ds-b", "delete ds-c"])] {
            assert_eq!(shape(&truncate(&old, &[pod("p", "a")], limit)), want, "{limit}");
        }
    }
}
