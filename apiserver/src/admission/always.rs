//! The plugins without conditions: AlwaysAdmit, AlwaysDeny, AlwaysPullImages, LimitPodHardAntiAffinityTopology
//! and ExtendedResourceToleration. Answers for upstream's
//! `plugin/pkg/admission/{admit`,deny,alwayspullimages,antiaffinity}.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::status::Status;
use shared::types::is_extended_resource;

use super::{Attributes, Plugin};
use crate::machinery::tree;
use crate::registry::core::pod::PODS;

/// Admits everything.
pub(super) struct AlwaysAdmit;

#[async_trait]
impl Plugin for AlwaysAdmit {}

/// Refuses everything.
pub(super) struct AlwaysDeny;

#[async_trait]
impl Plugin for AlwaysDeny {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        Err(a.forbidden("admission control is denying all modifications"))
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        Err(a.forbidden("admission control is denying all modifications"))
    }
}

/// Every image is pulled anew, so that its pull secrets are checked.
pub(super) struct AlwaysPullImages;

#[async_trait]
impl Plugin for AlwaysPullImages {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let judged = a.is(PODS) || (a.of(PODS) && a.subresource == "ephemeralcontainers");
        if !judged {
            return Ok(());
        }
        let Some(pod) = a.object.as_deref_mut() else { return Ok(()) };
        for list in ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"] {
            for container in tree::existing_list_mut(pod, list).into_iter().flatten() {
                *tree::field(container, &["imagePullPolicy"]) = json!("Always");
            }
        }
        for volume in tree::existing_list_mut(pod, "/spec/volumes").into_iter().flatten() {
            if tree::has(volume, "/image") {
                *tree::field(volume, &["image", "pullPolicy"]) = json!("Always");
            }
        }
        Ok(())
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(pod) = a.object() else { return Ok(()) };
        for list in ["containers", "initContainers"] {
            for (at, container) in tree::list(pod, &format!("/spec/{list}")).iter().enumerate() {
                let policy = tree::text(container, "/imagePullPolicy");
                if policy != "Always" {
                    return Err(a.forbidden(format!(
                        "spec.{list}[{at}].imagePullPolicy: Unsupported value: {policy:?}: supported values: \"Always\""
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Required anti-affinity only per host.
pub(super) struct LimitPodHardAntiAffinityTopology;

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(pod) = a.object() else { return Ok(()) };
        let terms = tree::list(pod, "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution");
        match terms.iter().map(|t| tree::text(t, "/topologyKey")).find(|k| *k != "kubernetes.io/hostname") {
            None => Ok(()),
            Some(key) => Err(a.forbidden(format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key kubernetes.io/hostname is allowed"
            ))),
        }
    }
}

/// Pods tolerate the taints named after the extended resources they ask for.
pub(super) struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(pod) = a.object.as_deref_mut() else { return Ok(()) };
        let wanted: BTreeSet<String> = ["/spec/containers", "/spec/initContainers"]
            .iter()
            .flat_map(|l| tree::list(pod, l))
            .filter_map(|c| tree::map(c, "/resources/requests"))
            .flat_map(|r| r.keys())
            .filter(|k| is_extended_resource(k))
            .cloned()
            .collect();
        for resource in wanted {
            add_toleration(pod, &json!({"key": resource, "operator": "Exists", "effect": "NoSchedule"}));
        }
        Ok(())
    }
}

/// Adds a toleration unless an equal one, or one that tolerates everything it does, is there.
pub(super) fn add_toleration(pod: &mut Value, toleration: &Value) {
    let same = |other: &Value| {
        ["/key", "/effect", "/value"].iter().all(|f| tree::text(other, f) == tree::text(toleration, f))
            && operator(other) == operator(toleration)
    };
    if let Some(list) = tree::list_mut(pod, &["spec", "tolerations"]) {
        match list.iter_mut().find(|t| same(t)) {
            Some(found) => *found = toleration.clone(),
            None => list.push(toleration.clone()),
        }
    }
}

fn operator(toleration: &Value) -> &str {
    match tree::text(toleration, "/operator") {
        "" => "Equal",
        other => other,
    }
}
