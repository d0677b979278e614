//! Identity of a stateful pod: its ordinal, name, host name and claims. Answers for upstream's
//! `getParentNameAndOrdinal`, `identityMatches`, `updateStorage`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod as NewPod, PodTemplateSpec, Volume,
};

use crate::engine::pod::Pod;
use crate::engine::{history, object, pods};

/// The label with the pod's name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// The label with the pod's ordinal.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The first ordinal.
#[must_use]
pub fn start(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.ordinals.as_ref()).and_then(|o| o.start).unwrap_or(0)
}

/// Returns the desired number of pods.
#[must_use]
pub fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// The ordinals of the pods there shall be.
#[must_use]
pub fn range(set: &StatefulSet) -> std::ops::Range<i32> {
    let first = start(set);
    first..first.saturating_add(replicas(set).max(0))
}

/// The set's name and the ordinal in a pod's name.
#[must_use]
pub fn parse(name: &str) -> Option<(&str, i32)> {
    let (parent, ordinal) = name.rsplit_once('-')?;
    let digits = !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit());
    Some((parent, ordinal.parse().ok().filter(|_| digits)?))
}

/// The pod's ordinal, if its name says that it belongs to the set.
#[must_use]
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    parse(object::name(&pod.metadata)).filter(|(parent, _)| *parent == object::name(&set.metadata)).map(|p| p.1)
}

/// The name of the pod with this ordinal.
#[must_use]
pub fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", object::name(&set.metadata))
}

/// The name of the claim that a claim template makes for an ordinal.
#[must_use]
pub fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", object::name(&template.metadata), object::name(&set.metadata))
}

/// The names of the claims of an ordinal.
pub fn claim_names(set: &StatefulSet, ordinal: i32) -> impl Iterator<Item = String> {
    let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    templates.map(move |template| claim_name(set, template, ordinal))
}

/// The claims of an ordinal.
#[must_use]
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let Some(spec) = set.spec.as_ref() else { return Vec::new() };
    spec.volume_claim_templates
        .iter()
        .flatten()
        .map(|template| {
            let mut claim = template.clone();
            claim.metadata.name = Some(claim_name(set, template, ordinal));
            claim.metadata.namespace.clone_from(&set.metadata.namespace);
            if let Some(labels) = spec.selector.match_labels.clone() {
                claim.metadata.labels.get_or_insert_default().extend(labels);
            }
            claim.status = None;
            claim
        })
        .collect()
}

/// The pod with this ordinal from a template of this revision.
#[must_use]
pub fn pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> NewPod {
    let owner = object::controller_ref::<StatefulSet>(&set.metadata);
    let mut pod = pods::from_template(template, object::namespace(&set.metadata), &owner);
    let name = pod_name(set, ordinal);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.into(), name.clone());
    labels.insert(POD_INDEX.into(), ordinal.to_string());
    labels.insert(history::HASH_LABEL.into(), revision.to_owned());
    if let (Some(spec), Some(set_spec)) = (pod.spec.as_mut(), set.spec.as_ref()) {
        spec.hostname = Some(name.clone());
        spec.subdomain = set_spec.service_name.clone().filter(|s| !s.is_empty());
        let claims = volumes(set, ordinal);
        let others = spec.volumes.take().unwrap_or_default();
        let others = others.into_iter().filter(|v| !claims.iter().any(|c| c.name == v.name));
        let all: Vec<Volume> = claims.iter().cloned().chain(others).collect();
        spec.volumes = Some(all).filter(|v| !v.is_empty());
    }
    pod.metadata.name = Some(name);
    pod
}

/// The volumes that the claims of an ordinal are.
#[must_use]
pub fn volumes(set: &StatefulSet, ordinal: i32) -> Vec<Volume> {
    let templates = set.spec.iter().flat_map(|s| s.volume_claim_templates.iter().flatten());
    let volume = |t: &PersistentVolumeClaim| Volume {
        name: object::name(&t.metadata).to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, t, ordinal),
            read_only: None,
        }),
        ..Volume::default()
    };
    templates.map(volume).collect()
}

/// Reports whether the claims of its ordinal are volumes of the pod.
#[must_use]
pub fn has_volumes(set: &StatefulSet, pod: &Pod, ordinal: i32) -> bool {
    let claim = |name: &str| {
        let volume = pods::volumes(pod).find(|v| v.name == name)?;
        volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.as_str())
    };
    volumes(set, ordinal)
        .iter()
        .all(|v| claim(&v.name) == v.persistent_volume_claim.as_ref().map(|c| c.claim_name.as_str()))
}

/// Reports whether the pod carries the labels that name it.
#[must_use]
pub fn matches(set: &StatefulSet, pod: &Pod) -> bool {
    let name = object::name(&pod.metadata);
    ordinal(set, pod).is_some() && object::label(&pod.metadata, POD_NAME) == Some(name)
}

/// The revision a pod was made from.
#[must_use]
pub fn revision(pod: &Arc<Pod>) -> &str {
    object::label(&pod.metadata, history::HASH_LABEL).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names() {
        assert_eq!(parse("web-0"), Some(("web", 0)));
        assert_eq!(parse("my-web-12"), Some(("my-web", 12)));
        for bad in ["web", "web-", "web--1x", "web-+1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_pod_with_its_claim() {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"serviceName": "nginx", "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]}}))
        .expect("set");
        let template = set.spec.as_ref().expect("spec").template.clone();
        let got = serde_json::to_value(pod(&set, &template, "web-abc", 2)).expect("json");
        assert_eq!(got["metadata"]["name"], "web-2");
        assert_eq!(
            got["metadata"]["labels"],
            json!({"app": "web", POD_NAME: "web-2", POD_INDEX: "2", "controller-revision-hash": "web-abc"})
        );
        assert_eq!(got["spec"]["hostname"], "web-2");
        assert_eq!(got["spec"]["subdomain"], "nginx");
        assert_eq!(
            got["spec"]["volumes"],
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-2"}}, {"name": "tmp", "emptyDir": {}}])
        );
        let claim = serde_json::to_value(&claims(&set, 2)[0]).expect("json");
        assert_eq!(claim["metadata"], json!({"name": "data-web-2", "namespace": "ns", "labels": {"app": "web"}}));
    }
}
