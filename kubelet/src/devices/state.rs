//! Devices of the node and who has them. Pure: upstream's `devicemanager` without its calls.

use super::error::DeviceError;
use super::v1beta1::{self as api, ContainerAllocateResponse};
use crate::pods;
use crate::resource_health::{ResourceHealths, health_of};
use crate::resources::at_peak;
use crate::topology::{Hint, Hints, NodeMask, prefer};
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::quantity::Quantity;
use std::collections::{BTreeMap, BTreeSet};

/// Key of devices that are near no NUMA node in particular.
const NOWHERE: i64 = -1;
const HEALTHY: &str = "Healthy";

/// A device of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) is_healthy: bool,
    /// NUMA nodes that it is near.
    pub(super) nodes: Vec<i64>,
    /// The plugin has told that it is ill, and not merely gone away.
    pub(super) is_told_ill: bool,
}

impl Device {
    fn is_near(&self, mask: NodeMask) -> bool {
        self.nodes.iter().any(|node| u32::try_from(*node).is_ok_and(|node| mask.contains(node)))
    }
}

impl From<&api::Device> for Device {
    fn from(device: &api::Device) -> Self {
        let nodes = device.topology.iter().flat_map(|topology| &topology.nodes);
        let is_healthy = device.health == HEALTHY;
        Self { is_healthy, nodes: nodes.map(|node| node.id).collect(), is_told_ill: !is_healthy }
    }
}

/// Devices that a container has of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Allocation {
    /// Ids by NUMA node, as upstream's checkpoint has them.
    pub(super) by_node: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer; none as long as it is waited for.
    pub(super) response: Option<ContainerAllocateResponse>,
}

impl Allocation {
    pub(super) fn ids(&self) -> BTreeSet<&String> {
        self.by_node.values().flatten().collect()
    }
}

/// Owner of devices: pod's uid, container, resource.
pub(super) type Owner = (String, String, String);

/// Devices and allocations of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Devices by resource. A resource that is gone is kept without devices: the node says that it has none.
    pub(super) devices: BTreeMap<String, BTreeMap<String, Device>>,
    pub(super) allocations: BTreeMap<Owner, Allocation>,
}

/// Numbers of devices: all, and those that pods can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of devices, healthy or not.
    pub capacity: usize,
    /// Healthy devices.
    pub allocatable: usize,
}

/// Limits of a container, in units.
fn limits(container: &Container) -> impl Iterator<Item = (&String, i64)> {
    let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    limits.filter_map(|(name, quantity)| Some((name, quantity.0.parse::<Quantity>().ok()?.value())))
}

impl State {
    /// Takes in a plugin's list. Reports whether the numbers changed.
    pub(super) fn update(&mut self, resource: &str, devices: BTreeMap<String, Device>) -> bool {
        let before = self.count(resource);
        self.devices.insert(resource.to_owned(), devices);
        self.count(resource) != before
    }

    /// Uids of the pods that have devices of which a list tells another health, or that were not known. Upstream's
    /// `podsToUpdate`.
    pub(super) fn pods_told_of(&self, resource: &str, devices: &BTreeMap<String, Device>) -> BTreeSet<String> {
        let known = self.devices.get(resource);
        let is_other = |id: &&String| {
            let before = known.and_then(|known| known.get(*id));
            devices.get(*id).is_some_and(|now| before.is_none_or(|before| before.is_told_ill != now.is_told_ill))
        };
        let own = self.allocations.iter().filter(|((_, _, of), _)| of == resource);
        let told = own.filter(|(_, allocation)| allocation.ids().iter().any(is_other));
        told.map(|((uid, _, _), _)| uid.clone()).collect()
    }

    /// Health of the devices that a container has, as their plugins have told it. Upstream's
    /// `UpdateAllocatedResourcesStatus`.
    pub(super) fn health(&self, uid: &str, container: &str) -> ResourceHealths {
        let of_resource = |(resource, allocation): (&str, &Allocation)| {
            let known = self.devices.get(resource);
            let is_ill = |id: &String| known.and_then(|known| known.get(id)).is_some_and(|device| device.is_told_ill);
            let health = |id: &String| health_of(id, if is_ill(id) { "Unhealthy" } else { HEALTHY });
            (resource.to_owned(), allocation.ids().into_iter().map(health).collect())
        };
        self.of_container(uid, container).map(of_resource).collect()
    }

    /// No device of a resource can be had any more: its plugin is away.
    pub(super) fn fail(&mut self, resource: &str) {
        let devices = self.devices.entry(resource.to_owned()).or_default();
        devices.values_mut().for_each(|device| device.is_healthy = false);
    }

    fn count(&self, resource: &str) -> Option<Count> {
        let devices = self.devices.get(resource)?;
        let allocatable = devices.values().filter(|device| device.is_healthy).count();
        Some(Count { capacity: devices.len(), allocatable })
    }

    /// Numbers of devices by resource.
    pub(super) fn counts(&self) -> BTreeMap<String, Count> {
        self.devices.keys().filter_map(|resource| Some((resource.clone(), self.count(resource)?))).collect()
    }

    /// Forgets the devices of pods that are not there any more. Reports whether there were some.
    pub(super) fn retain(&mut self, is_active: impl Fn(&str) -> bool) -> bool {
        let before = self.allocations.len();
        self.allocations.retain(|(uid, _, _), _| is_active(uid));
        self.allocations.len() != before
    }

    /// Devices that a container asks for, by resource.
    fn asked<'a>(&'a self, container: &'a Container) -> impl Iterator<Item = (&'a String, usize)> {
        let known = limits(container).filter(|(name, number)| self.devices.contains_key(*name) && *number > 0);
        known.map(|(resource, number)| (resource, usize::try_from(number).unwrap_or(usize::MAX)))
    }

    /// Devices that a container needs and does not have, by resource.
    pub(super) fn wanted(&self, pod: &Pod, container: &Container) -> Vec<(String, usize)> {
        let owner = |resource: &String| (pods::uid(pod).to_owned(), container.name.clone(), resource.clone());
        let missing = self.asked(container).filter(|(resource, _)| !self.allocations.contains_key(&owner(resource)));
        missing.map(|(resource, number)| (resource.clone(), number)).collect()
    }

    /// Checks that a container can use the devices that it had before this kubelet was started: upstream's checks of
    /// `devicesToAllocate`, with its texts.
    ///
    /// # Errors
    /// The container asks for another number, or its plugin is away, or one of its devices is ill.
    pub(super) fn check_own(&self, pod: &Pod, container: &Container) -> Result<(), DeviceError> {
        let uid = pods::uid(pod);
        for (resource, number) in self.asked(container) {
            let owner = (uid.to_owned(), container.name.clone(), resource.clone());
            let Some(own) = self.allocations.get(&owner).map(Allocation::ids) else { continue };
            let had = own.len();
            if had != number {
                let (uid, container, resource) = (uid.to_owned(), container.name.clone(), resource.clone());
                return Err(DeviceError::Changed { uid, container, resource, had, number });
            }
            let devices = self.devices.get(resource).into_iter().flatten();
            let healthy: BTreeSet<&String> =
                devices.filter(|(_, device)| device.is_healthy).map(|(id, _)| id).collect();
            if healthy.is_empty() {
                return Err(DeviceError::NoneHealthy(resource.clone()));
            }
            if !own.is_subset(&healthy) {
                return Err(DeviceError::NotHealthyAnyMore(resource.clone()));
            }
        }
        Ok(())
    }

    /// Ids of a resource that somebody has.
    fn taken(&self, resource: &str) -> BTreeSet<&String> {
        let taken = self.allocations.iter().filter(|((_, _, of), _)| of == resource);
        taken.flat_map(|(_, allocation)| allocation.ids()).collect()
    }

    /// Ids that can be given away.
    fn free(&self, resource: &str) -> Vec<String> {
        let taken = self.taken(resource);
        let devices = self.devices.get(resource).into_iter().flatten();
        devices.filter(|(id, device)| device.is_healthy && !taken.contains(id)).map(|(id, _)| id.clone()).collect()
    }

    /// Devices of a resource that a container may take over from the pod's init containers. Upstream's `devicesToReuse`.
    fn reusable(&self, pod: &Pod, name: &str, resource: &str) -> BTreeSet<String> {
        let uid = pods::uid(pod);
        let mut reusable = BTreeSet::new();
        for (container, is_passed_on) in pods::by_start(pod) {
            if container.name == name {
                break;
            }
            let owner = (uid.to_owned(), container.name.clone(), resource.to_owned());
            let ids = self.allocations.get(&owner).into_iter().flat_map(Allocation::ids).cloned();
            if is_passed_on {
                reusable.extend(ids);
            } else {
                ids.for_each(|id| _ = reusable.remove(&id));
            }
        }
        reusable
    }

    /// Devices that a container can be given: those that it gets anyhow, as it takes them over or they are all that is near, and
    /// those that are chosen from. Upstream's `devicesToAllocate`.
    ///
    /// # Errors
    /// There are not enough; upstream's texts.
    pub(super) fn choices(
        &self,
        pod: &Pod,
        (container, resource, number): (&str, &str, usize),
        near: Option<NodeMask>,
    ) -> Result<Choices, DeviceError> {
        let Some(devices) = self.devices.get(resource).filter(|devices| !devices.is_empty()) else {
            return Err(DeviceError::Unregistered(resource.to_owned()));
        };
        let healthy: BTreeSet<String> =
            devices.iter().filter(|(_, device)| device.is_healthy).map(|(id, _)| id.clone()).collect();
        if healthy.is_empty() {
            return Err(DeviceError::NoneHealthy(resource.to_owned()));
        }
        let reusable = self.reusable(pod, container, resource);
        let own: Vec<String> = reusable.intersection(&healthy).take(number).cloned().collect();
        let free = self.free(resource);
        let needed = number - own.len();
        if free.len() < needed {
            return Err(DeviceError::TooFew { resource: resource.to_owned(), needed, free: free.len() });
        }
        Ok(Choices { own, free, needed }.keep_near(near, devices))
    }

    /// Reports whether the plugin says of a device where it is.
    fn is_placed(&self, resource: &str) -> bool {
        self.devices.get(resource).into_iter().flatten().any(|(_, device)| !device.nodes.is_empty())
    }

    /// Possible placements of a container's devices, on a machine of NUMA nodes. Upstream's `GetTopologyHints`.
    pub(super) fn hints(&self, nodes: &[u32], pod: &Pod, container: &Container) -> Hints {
        let list = |(resource, number): (&String, usize)| {
            if !self.is_placed(resource) {
                return (resource.clone(), None);
            }
            let owner = (pods::uid(pod).to_owned(), container.name.clone(), resource.clone());
            let own = self.allocations.get(&owner).map(Allocation::ids);
            let reusable = self.reusable(pod, &container.name, resource);
            (resource.clone(), Some(self.placements(nodes, resource, number, own, &reusable)))
        };
        self.asked(container).map(list).collect()
    }

    /// Possible placements of the devices of all of a pod's containers. Upstream's `GetPodTopologyHints`.
    pub(super) fn pod_hints(&self, nodes: &[u32], pod: &Pod) -> Hints {
        let Some(spec) = &pod.spec else { return Hints::new() };
        let resources: BTreeSet<&String> = pods::by_start(pod)
            .flat_map(|(container, _)| self.asked(container))
            .map(|(resource, _)| resource)
            .collect();
        let list = |resource: &String| {
            if !self.is_placed(resource) {
                return (resource.clone(), None);
            }
            let of = |container: &Container| {
                self.asked(container).find(|(name, _)| *name == resource).map_or(0, |(_, number)| number)
            };
            let number = at_peak(spec, of, usize::saturating_add, usize::max);
            let is_own = |owner: &Owner| owner.0 == pods::uid(pod) && owner.2 == *resource;
            let own = self.allocations.iter().filter(|(owner, _)| is_own(owner));
            let own: BTreeSet<&String> = own.flat_map(|(_, allocation)| allocation.ids()).collect();
            let own = Some(own).filter(|own| !own.is_empty());
            (resource.clone(), Some(self.placements(nodes, resource, number, own, &BTreeSet::new())))
        };
        resources.into_iter().map(list).collect()
    }

    /// Sets of nodes that have enough devices: of those that the owner has, or of those that can be given away. Upstream's
    /// `generateDeviceTopologyHints`.
    fn placements(
        &self,
        nodes: &[u32],
        resource: &str,
        number: usize,
        own: Option<BTreeSet<&String>>,
        reusable: &BTreeSet<String>,
    ) -> Vec<Hint> {
        let nothing = BTreeSet::new();
        let (available, kept) = match own {
            Some(own) if own.len() != number => return Vec::new(),
            Some(own) => (own.into_iter().cloned().collect(), &nothing),
            None => (self.free(resource), reusable),
        };
        if available.iter().chain(kept).collect::<BTreeSet<&String>>().len() < number {
            return Vec::new();
        }
        let Some(devices) = self.devices.get(resource) else { return Vec::new() };
        let is_within = |id: &String, mask: NodeMask| devices.get(id).is_some_and(|device| device.is_near(mask));
        let is_placed = |id: &&String| devices.get(*id).is_some_and(|device| !device.nodes.is_empty());
        let mut least = nodes.len();
        let mut masks = Vec::new();
        for mask in NodeMask::combinations(nodes) {
            if devices.keys().filter(|id| is_within(id, mask)).count() >= number {
                least = least.min(mask.nodes().count());
            }
            let mut kept = kept.iter().filter(is_placed);
            let (number_kept, all_within) = (kept.clone().count(), kept.all(|id| is_within(id, mask)));
            if all_within && number_kept + available.iter().filter(|id| is_within(id, mask)).count() >= number {
                masks.push(mask);
            }
        }
        prefer(masks, |mask| mask.nodes().count() == least)
    }

    /// Writes down who has devices, before their plugin is asked.
    pub(super) fn take(&mut self, owner: &Owner, ids: &[String]) {
        let known = self.devices.get(&owner.2);
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in ids {
            let nodes =
                known.and_then(|devices| devices.get(id)).map(|device| device.nodes.clone()).unwrap_or_default();
            let nodes = if nodes.is_empty() { vec![NOWHERE] } else { nodes };
            nodes.into_iter().for_each(|node| by_node.entry(node).or_default().push(id.clone()));
        }
        self.allocations.insert(owner.clone(), Allocation { by_node, response: None });
    }

    /// Allocations of a container.
    pub(super) fn of_container<'a>(
        &'a self,
        uid: &'a str,
        container: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Allocation)> {
        let is_own = move |owner: &Owner| owner.0 == uid && owner.1 == container;
        self.allocations.iter().filter(move |(owner, _)| is_own(owner)).map(|(owner, of)| (owner.2.as_str(), of))
    }
}

/// Devices among which a choice is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choices {
    /// Devices that the container gets in any case: they are not chosen from.
    pub(super) own: Vec<String>,
    pub(super) free: Vec<String>,
    /// Number of free devices that are needed.
    pub(super) needed: usize,
}

impl Choices {
    /// Keeps to devices near NUMA nodes as far as there are enough of them. Upstream's `filterByAffinity`.
    fn keep_near(self, near: Option<NodeMask>, devices: &BTreeMap<String, Device>) -> Self {
        let Some(near) = near.filter(|_| devices.values().any(|device| !device.nodes.is_empty())) else { return self };
        let Self { mut own, free, needed } = self;
        let is_near = |id: &String| devices.get(id).is_some_and(|device| device.is_near(near));
        let (aligned, mut other): (Vec<String>, Vec<String>) = free.into_iter().partition(is_near);
        if needed < aligned.len() {
            return Self { own, free: aligned, needed };
        }
        // Devices that are near no node come last.
        other.sort_by_key(|id| devices.get(id).is_none_or(|device| device.nodes.is_empty()));
        let needed = needed - aligned.len();
        own.extend(aligned);
        Self { own, free: other, needed }
    }

    /// The devices: the plugin's choice as far as it is one, then whichever come first.
    pub(super) fn pick(self, preferred: &[String]) -> Vec<String> {
        let Self { own, free, needed } = self;
        let liked = preferred.iter().filter(|id| free.contains(id));
        let mut chosen: Vec<String> = Vec::new();
        for id in liked.chain(&free) {
            if chosen.len() < needed && !chosen.contains(id) {
                chosen.push(id.clone());
            }
        }
        own.into_iter().chain(chosen).collect()
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
