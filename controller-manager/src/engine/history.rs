//! ControllerRevisions: the template history of daemon sets and stateful sets.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};
use shared::types::from_tree;

use super::action::{Action, body};
use super::{hash, object};

/// The label with the revision's hash, on pods and revisions.
pub const HASH_LABEL: &str = "controller-revision-hash";

/// The stored form of a template: a patch that puts it back.
#[must_use]
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = body(template);
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The template a revision holds.
#[must_use]
pub fn template_of(r: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = r.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    from_tree(&template).ok()
}

/// The hash of a revision: its label, or what its name ends in.
#[must_use]
pub fn hash_of(r: &ControllerRevision) -> &str {
    object::label(&r.metadata, HASH_LABEL)
        .unwrap_or_else(|| object::name(&r.metadata).rsplit('-').next().unwrap_or_default())
}

/// The revision that is current, and the writes that make it so.
#[derive(Debug)]
pub struct Current {
    /// Its name.
    pub name: String,
    /// Its hash label.
    pub hash: String,
    /// A creation, a renumbering, or nothing.
    pub actions: Vec<Action>,
}

/// Find the revision that holds `template` among `revisions`, or make it. A rollback renumbers an old one.
#[must_use]
pub fn current(
    owner: &OwnerReference,
    namespace: Option<&str>,
    template: &PodTemplateSpec,
    labels: BTreeMap<String, String>,
    collisions: Option<i32>,
    revisions: &[Arc<ControllerRevision>],
) -> Current {
    let latest = revisions.iter().map(|r| r.revision).max().unwrap_or(0);
    let same = revisions.iter().filter(|r| template_of(r).as_ref() == Some(template)).max_by_key(|r| r.revision);
    if let Some(found) = same {
        let mut actions = Vec::new();
        if found.revision < latest {
            let mut renumbered = ControllerRevision::clone(found);
            renumbered.revision = latest + 1;
            actions.push(Action::update(&renumbered));
        }
        return Current { name: object::name(&found.metadata).to_owned(), hash: hash_of(found).to_owned(), actions };
    }
    let data = data(template);
    let hash = hash::of(&data, collisions);
    let name = format!("{}-{hash}", owner.name);
    let mut labels = labels;
    labels.insert(HASH_LABEL.into(), hash.clone());
    let revision = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: namespace.map(str::to_owned),
            labels: Some(labels),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: latest + 1,
    };
    Current { name, hash, actions: vec![Action::create(&revision)] }
}

/// Delete the oldest revisions beyond `limit` that no pod and no status refers to.
#[must_use]
pub fn truncate(revisions: &[Arc<ControllerRevision>], live: &HashSet<&str>, limit: i32) -> Vec<Action> {
    let limit = usize::try_from(limit).unwrap_or(0);
    let mut unused: Vec<_> =
        revisions.iter().filter(|r| !live.contains(hash_of(r)) && !live.contains(object::name(&r.metadata))).collect();
    unused.sort_by_key(|r| r.revision);
    let excess = unused.len().saturating_sub(limit);
    unused[..excess].iter().map(|r| Action::delete::<ControllerRevision>(&r.metadata)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        serde_json::from_value(
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}}),
        )
        .expect("template")
    }

    #[test]
    fn rollback_renumbers_and_limit_truncates() {
        let owner = OwnerReference { name: "ds".into(), ..OwnerReference::default() };
        let mut revisions: Vec<Arc<ControllerRevision>> = Vec::new();
        for (i, image) in ["v1", "v2", "v3"].into_iter().enumerate() {
            let got = current(&owner, Some("ns"), &template(image), BTreeMap::new(), None, &revisions);
            let Some(Action::Create { body, .. }) = got.actions.first() else { panic!("{got:?}") };
            let made: ControllerRevision = serde_json::from_value(body.clone()).expect("revision");
            assert_eq!(made.revision, i as i64 + 1);
            assert_eq!(got.name, format!("ds-{}", got.hash));
            revisions.push(Arc::new(made));
        }
        let back = current(&owner, Some("ns"), &template("v1"), BTreeMap::new(), None, &revisions);
        let Some(Action::Update { body, .. }) = back.actions.first() else { panic!("{back:?}") };
        assert_eq!(body["revision"], 4);
        let live = HashSet::from([hash_of(&revisions[0])]);
        assert_eq!(truncate(&revisions, &live, 1).len(), 1);
        assert_eq!(truncate(&revisions, &live, 2).len(), 0);
    }
}
