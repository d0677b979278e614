//! Extended resources that devices may stand for, container by container. Kept of pods that ask for any.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::api::resource::v1::ResourceClaim;
use shared::types::{is_extended_resource, is_sidecar};

use super::resource::{milli_value, value};

/// Prefix of the extended resource that every device class stands for.
pub const OF_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// On claims that were made for extended resources.
pub const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// The uid of the pod that a claim was made for, if it was made for extended resources.
pub fn pod_of(claim: &ResourceClaim) -> Option<&str> {
    let marked = claim.metadata.annotations.as_ref()?.get(ANNOTATION).is_some_and(|made| made == "true");
    let owner = shared::types::controller_of(&claim.metadata).filter(|_| marked)?;
    Some(&owner.uid)
}

/// Requests of a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContainerRequests {
    /// Name of the container.
    pub name: String,
    /// Init container that has ended before those after it start, which may have its devices then.
    pub short_lived: bool,
    /// All requests in the order of their names; 0 for amounts that are no whole numbers.
    pub requests: Vec<(String, i64)>,
}

impl ContainerRequests {
    /// The position of a resource among the requests, and its amount, if any is asked for.
    pub fn find(&self, resource: &str) -> Option<(usize, i64)> {
        let at = self.requests.iter().position(|(name, _)| name == resource)?;
        Some((at, self.requests[at].1)).filter(|(_, amount)| *amount != 0)
    }
}

/// Reports whether a device class may stand for a resource: upstream's `IsDRAExtendedResourceName`.
pub fn may_be_devices(resource: &str) -> bool {
    is_extended_resource(resource) || resource.starts_with(OF_CLASS)
}

/// The containers of a pod, init containers first; none where none asks for such a resource.
pub fn containers(spec: &PodSpec) -> Vec<ContainerRequests> {
    let init = spec.init_containers.iter().flatten().map(|c| (c, !is_sidecar(c)));
    let all = || init.clone().chain(spec.containers.iter().map(|c| (c, false)));
    let asks = |(container, _): (&Container, bool)| names(container).any(may_be_devices);
    if !all().any(asks) {
        return Vec::new();
    }
    all().map(|(container, short_lived)| read(container, short_lived)).collect()
}

fn names(container: &Container) -> impl Iterator<Item = &str> {
    let requests = container.resources.iter().flat_map(|r| r.requests.iter().flatten());
    requests.map(|(name, _)| name.as_str())
}

fn read(container: &Container, short_lived: bool) -> ContainerRequests {
    let requests = container.resources.iter().flat_map(|r| r.requests.iter().flatten());
    let whole = |amount| if milli_value(amount) % 1000 == 0 { value(amount) } else { 0 };
    ContainerRequests {
        name: container.name.clone(),
        short_lived,
        requests: requests.map(|(name, amount)| (name.clone(), whole(amount))).collect(),
    }
}
