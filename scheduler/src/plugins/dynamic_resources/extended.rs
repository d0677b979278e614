//! Extended resources that devices stand for (DRAExtendedResource): a claim that the scheduler makes for a pod.
//!
//! A node that has none of a resource in its own books has to provide it by devices of the class that stands for it.
//! So the claim differs from node to node: the same nodes share a [`Variant`]. It exists in memory until PreBind, which
//! makes it and writes its name into the pod's status. A claim that an earlier attempt has left behind is deleted, and
//! the pod tried again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::allocate::Setup;
use super::request::{self, Wanted};
use crate::framework::{Features, Listers, Status};
use crate::model::extended::{ANNOTATION, ContainerRequests, may_be_devices};
use crate::model::{NodeInfo, PodInfo};

/// Name of a claim that exists in memory only; no object can have it.
const IN_MEMORY: &str = "<extended-resources>";

/// A container, a resource of it, and the request of the claim whose devices it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    container: String,
    resource: String,
    request: String,
}

/// The claim as it is on some nodes, beside the pod's other claims.
pub(super) struct Variant {
    pub(super) claim: Arc<ResourceClaim>,
    pub(super) mappings: Vec<Mapping>,
    pub(super) setup: Arc<Setup>,
}

/// Extended resources of a pod that devices may stand for.
pub(super) struct Extended {
    /// Claim of an earlier attempt.
    pub(super) left: Option<Arc<ResourceClaim>>,
    claim: ResourceClaim,
    containers: Vec<ContainerRequests>,
    amounts: Vec<(Arc<str>, i64)>,
    /// Names of the classes, by resource.
    classes: BTreeMap<String, String>,
    /// The other claims.
    base: Setup,
    features: Features,
    /// Position of the claim among the pod's.
    at: usize,
    /// By the resources that devices stand for on a node.
    variants: Mutex<HashMap<Vec<String>, Arc<Variant>>>,
}

impl Extended {
    /// Of a pod; `None` when no class stands for what it asks for. `base` is about its other claims.
    pub(super) fn of(
        listers: &dyn Listers,
        pod: &PodInfo,
        features: Features,
        at: usize,
        base: impl FnOnce() -> Setup,
    ) -> Option<Self> {
        if !features.extended_resources || pod.extended.is_empty() {
            return None;
        }
        let amounts: Vec<(Arc<str>, i64)> =
            pod.requests.scalar.iter().filter(|(name, n)| *n != 0 && may_be_devices(name)).cloned().collect();
        let class = |name: &str| Some((name.to_owned(), listers.class_of_resource(name)?.metadata.name.clone()?));
        let classes: BTreeMap<String, String> = amounts.iter().filter_map(|(name, _)| class(name)).collect();
        if classes.is_empty() {
            return None;
        }
        Some(Self {
            left: listers.extended_claim(pod),
            claim: template(pod),
            containers: pod.extended.clone(),
            amounts,
            classes,
            base: base(),
            features,
            at,
            variants: Mutex::default(),
        })
    }

    /// The claim on a node; `None` where the node has the resources in its own books.
    ///
    /// # Errors
    /// Reason why the pod cannot go to the node.
    pub(super) fn on(&self, listers: &dyn Listers, node: &NodeInfo) -> Result<Option<Arc<Variant>>, Status> {
        if self.left.is_some() {
            return Err(Status::unresolvable("cannot schedule extended resource claim"));
        }
        let has = |name: &str| node.base.allocatable.scalar.iter().find(|(n, _)| &**n == name).map(|(_, n)| *n);
        let mut by_devices = Vec::new();
        for (name, _) in &self.amounts {
            match has(name) {
                None | Some(0) if self.classes.contains_key(&**name) => by_devices.push(name.to_string()),
                None => return Err(Status::unresolvable("cannot fit resource")),
                Some(_) => {}
            }
        }
        if by_devices.is_empty() {
            return Ok(None);
        }
        if let Some(known) = self.variants.lock().get(&by_devices) {
            return Ok(Some(Arc::clone(known)));
        }
        let made = Arc::new(self.variant(listers, &by_devices)?);
        self.variants.lock().insert(by_devices, Arc::clone(&made));
        Ok(Some(made))
    }

    fn variant(&self, listers: &dyn Listers, by_devices: &[String]) -> Result<Variant, Status> {
        let (requests, mappings) = requests(&self.containers, by_devices, &self.classes);
        let mut claim = self.claim.clone();
        claim.spec.devices = Some(DeviceClaim { requests: Some(requests), ..DeviceClaim::default() });
        let claim = Arc::new(claim);
        let mut wanted: Vec<Wanted> = self.base.wanted.clone();
        wanted.push(request::read(listers, (self.at, &claim), self.features)?);
        let setup = Setup {
            wanted,
            inventory: Arc::clone(&self.base.inventory),
            in_use: Arc::clone(&self.base.in_use),
            sharing: self.base.sharing,
            taints: self.base.taints,
            left: Mutex::default(),
        };
        Ok(Variant { claim, mappings, setup: Arc::new(setup) })
    }
}

fn template(pod: &PodInfo) -> ResourceClaim {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    ResourceClaim {
        metadata: ObjectMeta {
            namespace: Some(pod.namespace.to_string()),
            name: Some(IN_MEMORY.to_owned()),
            // The promise of its devices is filed under it.
            uid: Some(format!("{}/{IN_MEMORY}", pod.uid)),
            generate_name: Some(format!("{}-extended-resources-", pod.name)),
            owner_references: Some(vec![owner]),
            annotations: Some(BTreeMap::from([(ANNOTATION.to_owned(), "true".to_owned())])),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec::default(),
        status: None,
    }
}

/// The claim as it is sent to be made: the server names it.
pub(super) fn nameless(claim: &ResourceClaim) -> ResourceClaim {
    let mut claim = claim.clone();
    (claim.metadata.name, claim.metadata.uid, claim.status) = (None, None, None);
    claim
}

/// Claim as the pod's status names it.
pub(super) fn status(claim: &str, mappings: &[Mapping]) -> Value {
    let one = |m: &Mapping| json!({"containerName": m.container, "resourceName": m.resource, "requestName": m.request});
    let mappings: Vec<Value> = mappings.iter().map(one).collect();
    json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": mappings}}})
}

/// A request of the claim: its name, its class and the number of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    name: String,
    class: String,
    count: i64,
}

impl Wish {
    fn request(self) -> DeviceRequest {
        let exactly = ExactDeviceRequest {
            device_class_name: self.class,
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(self.count),
            ..ExactDeviceRequest::default()
        };
        DeviceRequest { name: self.name, exactly: Some(exactly), ..DeviceRequest::default() }
    }
}

/// The requests for resources that devices stand for, and which containers get which: as upstream's
/// `createRequestsAndMappings`. Containers that end before others start get the devices of those first, and all of them
/// share what they want beyond.
fn requests(
    containers: &[ContainerRequests],
    resources: &[String],
    classes: &BTreeMap<String, String>,
) -> (Vec<DeviceRequest>, Vec<Mapping>) {
    let (mut wishes, mut mappings): (Vec<Wish>, Vec<Mapping>) = Default::default();
    let mut resources: Vec<&String> = resources.iter().collect();
    resources.sort_unstable();
    for resource in resources {
        let Some(class) = classes.get(resource) else { continue };
        let mut long: Vec<Option<Wish>> = vec![None; containers.len()];
        for (at, container) in containers.iter().enumerate().filter(|(_, c)| !c.short_lived) {
            (long[at], _) = of_container((at, container), (resource, class), &[], &mut mappings);
        }
        wishes.extend(of_short_lived(containers, (resource, class), &long, &mut mappings));
        wishes.extend(long.into_iter().flatten());
    }
    wishes.sort_by(|a, b| a.name.cmp(&b.name));
    (wishes.into_iter().map(Wish::request).collect(), mappings)
}

/// The one request that all containers share which end before others start: the largest of theirs.
fn of_short_lived(
    containers: &[ContainerRequests],
    of: (&str, &str),
    long: &[Option<Wish>],
    mappings: &mut Vec<Mapping>,
) -> Option<Wish> {
    let (mut most, mut own): (Option<Wish>, Vec<usize>) = Default::default();
    for (at, container) in containers.iter().enumerate().filter(|(_, c)| c.short_lived) {
        let (wish, mapped) = of_container((at, container), of, &long[at..], mappings);
        let Some(wish) = wish else { continue };
        own.extend(mapped);
        if most.as_ref().is_none_or(|most| most.count < wish.count) {
            most = Some(wish);
        }
    }
    if let Some(most) = &most {
        own.into_iter().for_each(|at| mappings[at].request.clone_from(&most.name));
    }
    most
}

/// The request that a container needs of its own, where devices of `reusable` requests are not enough, and the position of
/// its mapping.
fn of_container(
    (at, container): (usize, &ContainerRequests),
    (resource, class): (&str, &str),
    reusable: &[Option<Wish>],
    mappings: &mut Vec<Mapping>,
) -> (Option<Wish>, Option<usize>) {
    let Some((position, amount)) = container.find(resource) else { return (None, None) };
    let mapping = |request: &str| Mapping {
        container: container.name.clone(),
        resource: resource.to_owned(),
        request: request.to_owned(),
    };
    let mut sum = 0_i64;
    for wish in reusable.iter().flatten() {
        sum = sum.saturating_add(wish.count);
        mappings.push(mapping(&wish.name));
        if sum >= amount {
            return (None, None);
        }
    }
    let name = format!("container-{at}-request-{position}");
    mappings.push(mapping(&name));
    let wish = Wish { name, class: class.to_owned(), count: amount.saturating_sub(sum) };
    (Some(wish), Some(mappings.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name:` or `name!` for a container that ends, then amounts of the resources a and b.
    fn containers(texts: &[(&str, i64, i64)]) -> Vec<ContainerRequests> {
        let one = |(name, a, b): &(&str, i64, i64)| ContainerRequests {
            name: name.trim_end_matches('!').to_owned(),
            short_lived: name.ends_with('!'),
            requests: [("cpu", 1), ("e.com/a", *a), ("e.com/b", *b)]
                .iter()
                .filter(|(_, n)| *n > 0)
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect(),
        };
        texts.iter().map(one).collect()
    }

    #[test]
    fn requests_and_who_gets_them() {
        let classes: BTreeMap<String, String> =
            [("e.com/a", "class-a"), ("e.com/b", "class-b")].map(|(r, c)| (r.to_owned(), c.to_owned())).into();
        for (what, all, resources, want, mapped) in [
            (
                "one container",
                vec![("c", 2, 0)],
                vec!["e.com/a"],
                vec!["container-0-request-1=class-a:2"],
                vec!["c/e.com/a=container-0-request-1"],
            ),
            (
                "only what devices stand for here",
                vec![("c", 2, 3)],
                vec!["e.com/b"],
                vec!["container-0-request-2=class-b:3"],
                vec!["c/e.com/b=container-0-request-2"],
            ),
            (
                "one that ends uses the devices of those after it",
                vec![("i!", 2, 0), ("c", 1, 0), ("d", 1, 0)],
                vec!["e.com/a"],
                vec!["container-1-request-1=class-a:1", "container-2-request-1=class-a:1"],
                vec![
                    "c/e.com/a=container-1-request-1",
                    "d/e.com/a=container-2-request-1",
                    "i/e.com/a=container-1-request-1",
                    "i/e.com/a=container-2-request-1",
                ],
            ),
            (
                "and has more of its own, which all of them share",
                vec![("i!", 3, 0), ("j!", 5, 0), ("c", 1, 0)],
                vec!["e.com/a"],
                vec!["container-1-request-1=class-a:4", "container-2-request-1=class-a:1"],
                vec![
                    "c/e.com/a=container-2-request-1",
                    "i/e.com/a=container-2-request-1",
                    "i/e.com/a=container-1-request-1",
                    "j/e.com/a=container-2-request-1",
                    "j/e.com/a=container-1-request-1",
                ],
            ),
            (
                "but not those of a sidecar that was there before",
                vec![("side", 1, 0), ("i!", 1, 0)],
                vec!["e.com/a"],
                vec!["container-0-request-1=class-a:1", "container-1-request-1=class-a:1"],
                vec!["side/e.com/a=container-0-request-1", "i/e.com/a=container-1-request-1"],
            ),
            (
                "two resources",
                vec![("c", 1, 1)],
                vec!["e.com/b", "e.com/a"],
                vec!["container-0-request-1=class-a:1", "container-0-request-2=class-b:1"],
                vec!["c/e.com/a=container-0-request-1", "c/e.com/b=container-0-request-2"],
            ),
        ] {
            let resources: Vec<String> = resources.into_iter().map(str::to_owned).collect();
            let (requests, mappings) = requests(&containers(&all), &resources, &classes);
            let shown = |r: &DeviceRequest| {
                let exactly = r.exactly.as_ref().expect("exactly");
                format!("{}={}:{}", r.name, exactly.device_class_name, exactly.count.unwrap_or(0))
            };
            assert_eq!(requests.iter().map(shown).collect::<Vec<_>>(), want, "{what}");
            let shown = |m: &Mapping| format!("{}/{}={}", m.container, m.resource, m.request);
            assert_eq!(mappings.iter().map(shown).collect::<Vec<_>>(), mapped, "{what}");
        }
    }
}
