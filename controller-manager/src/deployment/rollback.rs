//! Going back to an earlier template, asked for by the annotation that the first API versions had a field for. Answers
//! for upstream's `pkg/controller/deployment/rollback.go`.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::ObjectReference;

use super::annotations::{self, NOT_COPIED, ROLLBACK_TO};
use super::plan::{HASH_LABEL, same_template};
use crate::engine::action::Action;
use crate::engine::object;

/// The revision that is asked for; 0 means the one before the current.
#[must_use]
pub fn wanted(d: &Deployment) -> Option<i64> {
    object::annotation(&d.metadata, ROLLBACK_TO)?.parse().ok()
}

/// The deployment with the template of that revision, or with the wish dropped if there is no such revision.
#[must_use]
pub fn plan(d: &Deployment, sets: &[ReplicaSet], revision: i64, about: &ObjectReference) -> Vec<Action> {
    let not_found =
        |text: &str| vec![Action::warning(about, "DeploymentRollbackRevisionNotFound", text.into()), forget(d.clone())];
    let revision = if revision == 0 { last_but_one(sets) } else { revision };
    if revision == 0 {
        return not_found("Unable to find last revision.");
    }
    let Some(set) = sets.iter().find(|r| annotations::revision(r) == revision) else {
        return not_found("Unable to find the revision to rollback to.");
    };
    let name = object::name(&d.metadata);
    match back(d, set) {
        Some(rolled) => {
            let text = format!("Rolled back deployment \"{name}\" to revision {revision}");
            vec![forget(rolled), Action::normal(about, "DeploymentRollback", text)]
        }
        None => {
            let text = format!("The rollback revision contains the same template as current deployment \"{name}\"");
            vec![Action::warning(about, "DeploymentRollbackTemplateUnchanged", text), forget(d.clone())]
        }
    }
}

fn last_but_one(sets: &[ReplicaSet]) -> i64 {
    let mut all: Vec<i64> = sets.iter().map(annotations::revision).collect();
    all.sort_unstable();
    all.iter().rev().nth(1).copied().unwrap_or(0)
}

/// The deployment with the template and the annotations of a set, if the template is another.
fn back(d: &Deployment, set: &ReplicaSet) -> Option<Deployment> {
    let mut template = set.spec.as_ref()?.template.clone()?;
    if same_template(&d.spec.as_ref()?.template, &template) {
        return None;
    }
    if let Some(labels) = template.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
        labels.remove(HASH_LABEL);
    }
    let mut rolled = d.clone();
    rolled.spec.as_mut()?.template = template;
    // The new set's annotations are copied from the deployment: without this it would lose its own, like its cause.
    let notes = rolled.metadata.annotations.get_or_insert_default();
    notes.retain(|k, _| NOT_COPIED.contains(&k.as_str()));
    let copied = set.metadata.annotations.iter().flatten().filter(|(k, _)| !NOT_COPIED.contains(&k.as_str()));
    notes.extend(copied.map(|(k, v)| (k.clone(), v.clone())));
    Some(rolled)
}

fn forget(mut d: Deployment) -> Action {
    if let Some(notes) = d.metadata.annotations.as_mut() {
        notes.remove(ROLLBACK_TO);
    }
    Action::update(&d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn template(image: &str) -> Value {
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
    }

    fn set(revision: &str, image: &str) -> ReplicaSet {
        let mut t = template(image);
        t["metadata"]["labels"][HASH_LABEL] = json!(image);
        serde_json::from_value(json!({
            "metadata": {"name": image, "annotations": {annotations::REVISION: revision, "cause": image}},
            "spec": {"selector": {}, "template": t}}))
        .expect("set")
    }

    #[test]
    fn rollbacks() {
        let d: Deployment = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns",
                "annotations": {ROLLBACK_TO: "0", annotations::REVISION: "3", "cause": "v3", "other": "x"}},
            "spec": {"selector": {}, "template": template("v3")}}))
        .expect("deployment");
        assert_eq!(wanted(&d), Some(0));
        let sets = [set("1", "v1"), set("3", "v3"), set("2", "v2")];
        let none: &[ReplicaSet] = &[];
        let cases = [
            ("the one before", &sets[..], 0, "DeploymentRollback", "v2", "v2"),
            ("a certain one", &sets, 1, "DeploymentRollback", "v1", "v1"),
            ("the current", &sets, 3, "DeploymentRollbackTemplateUnchanged", "v3", "v3"),
            ("no such revision", &sets, 7, "DeploymentRollbackRevisionNotFound", "v3", "v3"),
            ("no revision before", none, 0, "DeploymentRollbackRevisionNotFound", "v3", "v3"),
        ];
        for (name, sets, revision, event, image, cause) in cases {
            let actions = plan(&d, sets, revision, &ObjectReference::default());
            let reasons: Vec<_> = actions
                .iter()
                .filter_map(|a| if let Action::Event { reason, .. } = a { Some(*reason) } else { None })
                .collect();
            assert_eq!(reasons, [event], "{name}");
            let body = actions.iter().find_map(|a| if let Action::Update { body, .. } = a { Some(body) } else { None });
            let body = body.expect("update");
            assert_eq!(body["spec"]["template"], template(image), "{name}");
            let notes = &body["metadata"]["annotations"];
            assert_eq!((&notes[ROLLBACK_TO], &notes["cause"]), (&Value::Null, &json!(cause)), "{name}");
            assert_eq!(notes[annotations::REVISION], "3", "{name}");
        }
    }
}
