//! ControllerRevisions: the template history of daemon sets and stateful sets. Answers for upstream's
//! `pkg/controller/history`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};
use shared::types::{from_tree, part_of_tree};

use super::action::{Action, body, join};
use super::executor::Executor;
use super::rest::RestError;
use super::worker::Synced;
use super::{hash, object};

/// The label with the hash on a stateful set's revisions.
pub const REVISION_LABEL: &str = "controller.kubernetes.io/hash";
/// The label with the revision's hash on pods, and on a daemon set's revisions.
pub const HASH_LABEL: &str = "controller-revision-hash";

/// Room for a hash is left after it.
const LONGEST_PREFIX: usize = 223;

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
    part_of_tree(&template).ok()
}

/// Reports whether a revision holds a template, however it was written down.
#[must_use]
pub fn holds(r: &ControllerRevision, template: &PodTemplateSpec) -> bool {
    template_of(r).is_some_and(|held| held == *template || alike(held) == alike(template.clone()))
}

/// The template with what may be left out written out.
fn alike(mut template: PodTemplateSpec) -> PodTemplateSpec {
    template.metadata.get_or_insert_default();
    if let Some(spec) = &mut template.spec {
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            container.resources.get_or_insert_default();
        }
    }
    template
}

/// The hash of a revision: its label, or its name, which nothing else has.
#[must_use]
pub fn hash_of(r: &ControllerRevision) -> &str {
    object::label(&r.metadata, HASH_LABEL).unwrap_or_else(|| object::name(&r.metadata))
}

/// The revision that is current, and the writes that make it so.
#[derive(Debug)]
pub struct Current {
    /// Name of the revision.
    pub name: String,
    /// Hash label of the revision.
    pub hash: String,
    /// A creation, a renumbering, or nothing.
    pub actions: Vec<Action>,
}

/// Owner of a history.
#[derive(Debug)]
pub struct Author<'a> {
    /// The set, as owner.
    pub owner: OwnerReference,
    /// Namespace of the owner.
    pub namespace: Option<&'a str>,
    /// Label that holds the hash of its revisions.
    pub hash_label: &'static str,
    /// Other labels of its revisions.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the set, which its revisions have, too: the cause of a change above all.
    pub annotations: Option<&'a BTreeMap<String, String>>,
    /// Number of name collisions.
    pub collisions: Option<i32>,
}

/// Oldest first.
#[must_use]
pub fn sorted(mut revisions: Vec<Arc<ControllerRevision>>) -> Vec<Arc<ControllerRevision>> {
    let order = |r: &ControllerRevision| (r.revision, object::created(&r.metadata));
    revisions.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name)));
    revisions
}

/// Find the revision that holds `template` among `revisions` (sorted), or make it. A rollback renumbers an old one.
#[must_use]
pub fn current(author: &Author<'_>, template: &PodTemplateSpec, revisions: &[Arc<ControllerRevision>]) -> Current {
    let (same, others): (Vec<_>, Vec<_>) = revisions.iter().partition(|r| holds(r, template));
    let next = others.iter().map(|r| r.revision).max().unwrap_or(0).saturating_add(1);
    if let Some(found) = same.last() {
        let mut actions = Vec::new();
        if found.revision < next {
            let mut renumbered = ControllerRevision::clone(found);
            renumbered.revision = next;
            actions.push(Action::update(&renumbered));
        }
        return Current { name: object::name(&found.metadata).to_owned(), hash: hash_of(found).to_owned(), actions };
    }
    let data = data(template);
    let hash = hash::of(&data, author.collisions);
    let name = format!("{}-{hash}", prefix(&author.owner.name));
    let mut labels = author.labels.clone();
    labels.insert(author.hash_label.into(), hash.clone());
    let revision = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: author.namespace.map(str::to_owned),
            labels: Some(labels),
            annotations: author.annotations.cloned(),
            owner_references: Some(vec![author.owner.clone()]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: next,
    };
    Current { name, hash, actions: vec![Action::create(&revision)] }
}

/// A name with a hash behind it is no longer than names may be.
fn prefix(name: &str) -> &str {
    name.get(..LONGEST_PREFIX).unwrap_or(name)
}

/// Results of making a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeRevision {
    /// The revision exists, though it may not be in a cache yet.
    There,
    /// Another template's revision has its name.
    Taken,
}

/// Make a revision as [`current`] wants it.
pub async fn make(executor: &Executor, path: &str, body: &Value) -> Result<MadeRevision, RestError> {
    match executor.rest.post(path, body).await {
        Err(e) if e.already_exists() => {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            let there = executor.rest.get(&join(path, name)).await?;
            Ok(if holds_same(&there, body) { MadeRevision::There } else { MadeRevision::Taken })
        }
        other => other.map(|_| MadeRevision::There),
    }
}

/// Kinds that have a history of templates.
pub trait Historied: kube::Resource<DynamicType = ()> + serde::Serialize + Clone {
    /// Field of the status with the number of name collisions.
    fn collisions(&mut self) -> &mut Option<i32>;
}

/// After [`Made::Taken`]: the next revision gets another hash.
pub async fn another_name<K: Historied>(executor: &Executor, set: &K) -> Synced {
    let mut copy = set.clone();
    *copy.collisions().get_or_insert(0) += 1;
    executor.one(Action::update_status(&copy)).await?;
    Err(RestError::other("the name of the revision belongs to another template"))
}

fn holds_same(there: &Value, wanted: &Value) -> bool {
    let revision = |v: &Value| from_tree::<ControllerRevision>(v).ok();
    let template = revision(wanted).as_ref().and_then(template_of);
    revision(there).zip(template).is_some_and(|(r, template)| holds(&r, &template))
}

/// Delete the oldest revisions beyond `limit` that no pod and no status refers to. A negative limit is none.
#[must_use]
pub fn truncate(revisions: &[Arc<ControllerRevision>], live: &HashSet<&str>, limit: i32) -> Vec<Action> {
    let Ok(limit) = usize::try_from(limit) else { return Vec::new() };
    let unused: Vec<_> =
        revisions.iter().filter(|r| !live.contains(hash_of(r)) && !live.contains(object::name(&r.metadata))).collect();
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

    fn author() -> Author<'static> {
        Author {
            owner: OwnerReference { name: "ds".into(), ..OwnerReference::default() },
            namespace: Some("ns"),
            hash_label: HASH_LABEL,
            labels: BTreeMap::new(),
            annotations: None,
            collisions: None,
        }
    }

    fn revision(name: &str, number: i64, image: &str, created: &str) -> Arc<ControllerRevision> {
        let meta = json!({"name": name, "creationTimestamp": created});
        let text = json!({"metadata": meta, "data": data(&template(image)), "revision": number});
        Arc::new(serde_json::from_value(text).expect("revision"))
    }

    #[test]
    fn rollback_renumbers_and_limit_truncates() {
        let mut revisions: Vec<Arc<ControllerRevision>> = Vec::new();
        let notes = BTreeMap::from([("kubernetes.io/change-cause".to_owned(), "because".to_owned())]);
        let author = Author { annotations: Some(&notes), ..author() };
        for (revision, image) in (1..).zip(["v1", "v2", "v3"]) {
            let got = current(&author, &template(image), &revisions);
            let Some(Action::Create { body, .. }) = got.actions.first() else { panic!("{got:?}") };
            let made: ControllerRevision = serde_json::from_value(body.clone()).expect("revision");
            assert_eq!((made.revision, made.metadata.annotations.as_ref()), (revision, Some(&notes)));
            assert_eq!(got.name, format!("ds-{}", got.hash));
            revisions.push(Arc::new(made));
        }
        let back = current(&author, &template("v1"), &revisions);
        let Some(Action::Update { body, .. }) = back.actions.first() else { panic!("{back:?}") };
        assert_eq!(body["revision"], 4);
        let live = HashSet::from([hash_of(&revisions[0])]);
        for (limit, deleted) in [(0, 2), (1, 1), (2, 0), (-1, 0)] {
            assert_eq!(truncate(&revisions, &live, limit).len(), deleted, "{limit}");
        }
    }

    #[test]
    fn of_equal_revisions_the_newest_is_current() {
        let day = |n: u8| format!("2026-01-0{n}T00:00:00Z");
        for (case, revisions, want, renumbered) in [
            ("numbers", vec![revision("b", 1, "v1", &day(2)), revision("a", 2, "v1", &day(1))], "a", None),
            ("times", vec![revision("b", 1, "v1", &day(1)), revision("a", 1, "v1", &day(2))], "a", None),
            ("names", vec![revision("b", 1, "v1", &day(1)), revision("a", 1, "v1", &day(1))], "b", None),
            (
                "another in between",
                vec![revision("a", 1, "v1", &day(1)), revision("c", 3, "v2", &day(3)), revision("b", 2, "v1", &day(2))],
                "b",
                Some(4),
            ),
            (
                "another of its number",
                vec![revision("a", 1, "v1", &day(1)), revision("b", 1, "v2", &day(2))],
                "a",
                Some(2),
            ),
        ] {
            let got = current(&author(), &template("v1"), &sorted(revisions));
            let number = got.actions.iter().find_map(|a| match a {
                Action::Update { body, .. } => body["revision"].as_i64(),
                _ => None,
            });
            assert_eq!((got.name.as_str(), number), (want, renumbered), "{case}");
        }
    }

    #[test]
    fn what_is_left_out_is_the_same_as_empty() {
        let written = |text: Value| -> ControllerRevision {
            serde_json::from_value(json!({"metadata": {}, "revision": 1, "data": {"spec": {"template": text}}}))
                .expect("revision")
        };
        let with = |container: Value| {
            json!({"metadata": {"creationTimestamp": null, "labels": {"a": "b"}},
            "spec": {"containers": [container]}, "$patch": "replace"})
        };
        for (container, want) in [
            (json!({"name": "c", "image": "v1"}), true),
            (json!({"name": "c", "image": "v1", "resources": {}}), true),
            (json!({"name": "c", "image": "v1", "resources": {"limits": {"cpu": "1"}}}), false),
            (json!({"name": "c", "image": "v1", "securityContext": {}}), false),
        ] {
            assert_eq!(holds(&written(with(container.clone())), &template("v1")), want, "{container}");
        }
    }

    #[test]
    fn a_name_is_taken_by_another_template_only() {
        let made = |image: &str| json!({"metadata": {"name": "a"}, "revision": 1, "data": data(&template(image))});
        assert!(holds_same(&made("v1"), &made("v1")));
        assert!(!holds_same(&made("v2"), &made("v1")));
        assert!(!holds_same(&json!({"metadata": {"name": "a"}, "revision": 1}), &made("v1")));
        assert_eq!(prefix(&"x".repeat(250)).len(), LONGEST_PREFIX);
    }
}
