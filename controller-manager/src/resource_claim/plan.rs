//! The life of resource claims: made for pods from templates, reserved for them, freed after them. Answers for
//! upstream's `pkg/controller/resourceclaim` (`syncClaim`, `handleClaim`).
//!
//! In: a pod or a claim and what belongs to it. Out: claims to make, reservations that stay, whether a claim goes. No
//! I/O here.

use k8s_openapi::api::core::v1::PodResourceClaim;
use k8s_openapi::api::resource::v1::{
    DeviceRequest, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimSpec, ResourceClaimTemplate,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::engine::pod::Pod;
use crate::engine::{object, pods};

/// On generated claims: which of its pod's claims it is.
pub const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// On claims that the scheduler made for extended resources.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// On claims with an allocation.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// A claim may be reserved for so many.
const RESERVED_MAX: usize = 256;
/// Room for a hyphen and five random characters in a name of 63.
const NAME_BASE: usize = 57;

/// Claims that stand for an entry of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields of variants say by their names what they are")]
pub enum Named {
    /// This one; `own` says that it must belong to the pod.
    Claim { name: String, own: bool },
    /// None is needed.
    Nothing,
    /// The claim has still to be made from this template.
    Missing { template: String },
}

/// The claim of an entry, as spec and status tell.
#[must_use]
pub fn named(pod: &Pod, entry: &PodResourceClaim) -> Named {
    if let Some(name) = &entry.resource_claim_name {
        return Named::Claim { name: name.clone(), own: false };
    }
    let Some(template) = &entry.resource_claim_template_name else { return Named::Nothing };
    let statuses = pod.status.iter().flat_map(|s| s.resource_claim_statuses.iter().flatten());
    match statuses.into_iter().find(|s| s.name == entry.name) {
        None => Named::Missing { template: template.clone() },
        Some(status) => match &status.resource_claim_name {
            Some(name) => Named::Claim { name: name.clone(), own: true },
            None => Named::Nothing,
        },
    }
}

/// The claim that the scheduler made for the extended resources of a pod.
#[must_use]
pub fn extended(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(&*status.resource_claim_name)
}

/// Reports whether a claim was made for this very pod.
#[must_use]
pub fn belongs(claim: &ResourceClaim, pod: &Pod) -> bool {
    object::controller_of(&claim.metadata).is_some_and(|r| pod.metadata.uid.as_deref() == Some(&r.uid))
}

/// The claim that a template makes for an entry of a pod.
#[must_use]
pub fn from_template(pod: &Pod, entry: &PodResourceClaim, template: &ResourceClaimTemplate) -> ResourceClaim {
    let meta = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.into(), entry.name.clone());
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(base(object::name(&pod.metadata), &entry.name)),
            namespace: pod.metadata.namespace.as_deref().map(str::to_owned),
            labels: meta.labels,
            annotations: Some(annotations),
            // The pod's own deletion does not wait for it.
            owner_references: Some(vec![OwnerReference {
                block_owner_deletion: None,
                ..object::controller_ref::<Pod>(&pod.metadata)
            }]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// Both names, cut in proportion to their length when they do not fit.
fn base(pod: &str, claim: &str) -> String {
    let length = pod.len() + claim.len() + 2;
    if length <= NAME_BASE {
        return format!("{pod}-{claim}-");
    }
    let cut = |s: &str| s.get(..s.len() * NAME_BASE / length).unwrap_or(s).to_owned();
    format!("{}-{}", cut(pod), cut(claim))
}

/// Reports whether the pod is over, or will never begin.
#[must_use]
pub fn done(pod: &Pod) -> bool {
    pods::finished(pod) || (object::deleting(&pod.metadata) && pods::node(pod).is_empty())
}

/// Reports whether a pod still needs its claims.
#[must_use]
pub fn needs_claims(pod: &Pod) -> bool {
    !done(pod)
}

/// Reports whether the claim is to be reserved for a pod that was bound by somebody other than the scheduler.
#[must_use]
pub fn reservable(claim: &ResourceClaim, pod: &Pod) -> bool {
    let Some(status) = claim.status.as_ref().filter(|s| s.allocation.is_some()) else { return false };
    let reserved = status.reserved_for.as_deref().unwrap_or_default();
    let uid = object::uid(&pod.metadata);
    reserved.len() < RESERVED_MAX && !reserved.iter().any(|r| r.uid == uid)
}

/// A reservation for a pod.
#[must_use]
pub fn reservation(pod: &Pod) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".into(),
        name: object::name(&pod.metadata).into(),
        uid: object::uid(&pod.metadata).into(),
    }
}

/// Actions on a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upkeep {
    /// The claim with the status to write.
    pub status: Option<Box<ResourceClaim>>,
    /// The finalizer may go, once the status is written.
    pub release: bool,
    /// Nobody will need it again.
    pub delete: bool,
}

/// Look after a claim. `valid` are the reservations whose consumers are still there; `owner_done` says that the pod it
/// was made for is over.
#[must_use]
pub fn upkeep(claim: &ResourceClaim, valid: Vec<ResourceClaimConsumerReference>, owner_done: bool) -> Upkeep {
    let status = claim.status.clone().unwrap_or_default();
    let reserved = status.reserved_for.as_ref().map_or(0, Vec::len);
    let ours = claim.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
    let unused = valid.is_empty();
    let mut out = Upkeep { delete: unused && owner_done, ..Upkeep::default() };
    let mut new = status.clone();
    new.reserved_for = (!unused).then_some(valid);
    let fewer = new.reserved_for.as_ref().map_or(0, Vec::len) < reserved;
    let free = ours && unused && (fewer || object::deleting(&claim.metadata));
    if free {
        // The devices are free again for whoever comes next.
        new.allocation = None;
        new.devices = None;
        out.release = true;
    }
    if fewer || new != status {
        out.status = Some(Box::new(ResourceClaim { status: Some(new), ..claim.clone() }));
    }
    out
}

fn requests(spec: &ResourceClaimSpec) -> &[DeviceRequest] {
    spec.devices.as_ref().and_then(|d| d.requests.as_deref()).unwrap_or_default()
}

/// Reports whether any of its requests asks for administrative access.
#[must_use]
pub fn admin_access(claim: &ResourceClaim) -> bool {
    asks_for_admin(&claim.spec)
}

fn asks_for_admin(spec: &ResourceClaimSpec) -> bool {
    requests(spec).iter().any(|r| r.exactly.as_ref().and_then(|e| e.admin_access) == Some(true))
}

/// Returns why no claim may be made from a template, by the gates that are on.
#[must_use]
pub fn refused(template: &ResourceClaimTemplate, admin_access: bool, prioritized_list: bool) -> Option<&'static str> {
    let spec = &template.spec.spec;
    let listed = || requests(spec).iter().any(|r| r.first_available.as_ref().is_some_and(|l| !l.is_empty()));
    if !admin_access && asks_for_admin(spec) {
        return Some("admin access is requested, but the feature is disabled");
    }
    (!prioritized_list && listed())
        .then_some("template includes a prioritized list of subrequests, but the feature is disabled")
}

/// Returns the maker of a claim, as the metrics have it.
#[must_use]
pub fn source(claim: &ResourceClaim) -> &'static str {
    if object::annotation(&claim.metadata, EXTENDED) == Some("true") {
        return "extended_resource";
    }
    let made = object::annotation(&claim.metadata, POD_CLAIM).is_some_and(|entry| !entry.is_empty());
    if made { "resource_claim_template" } else { "" }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
