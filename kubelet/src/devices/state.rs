//! Devices of the node and who has them. Pure: upstream's `devicemanager` without its calls.

use super::v1beta1::{self as api, ContainerAllocateResponse};
use crate::pods;
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
}

impl From<&api::Device> for Device {
    fn from(device: &api::Device) -> Self {
        let nodes = device.topology.iter().flat_map(|topology| &topology.nodes);
        Self { is_healthy: device.health == HEALTHY, nodes: nodes.map(|node| node.id).collect() }
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

    /// Devices that a pod's containers need and do not have, in order.
    pub(super) fn wanted(&self, pod: &Pod) -> Vec<(String, String, usize)> {
        let uid = pods::uid(pod);
        let mut wanted = Vec::new();
        for (container, _) in pods::by_start(pod) {
            for (resource, number) in limits(container).filter(|(name, _)| self.devices.contains_key(*name)) {
                let owner = (uid.to_owned(), container.name.clone(), resource.clone());
                if number > 0 && !self.allocations.contains_key(&owner) {
                    wanted.push((
                        container.name.clone(),
                        resource.clone(),
                        usize::try_from(number).unwrap_or(usize::MAX),
                    ));
                }
            }
        }
        wanted
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

    /// Devices that a container can be given: those that it should take over, and those that nobody has.
    ///
    /// # Errors
    /// There are not enough; upstream's texts.
    pub(super) fn choices(
        &self,
        pod: &Pod,
        (container, resource, number): (&str, &str, usize),
    ) -> Result<Choices, String> {
        let Some(devices) = self.devices.get(resource).filter(|devices| !devices.is_empty()) else {
            return Err(format!("cannot allocate unregistered device {resource}"));
        };
        let healthy: BTreeSet<String> =
            devices.iter().filter(|(_, device)| device.is_healthy).map(|(id, _)| id.clone()).collect();
        if healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
        }
        let reusable = self.reusable(pod, container, resource);
        let own: Vec<String> = reusable.intersection(&healthy).take(number).cloned().collect();
        let taken = self.allocations.iter().filter(|((_, _, of), _)| of == resource);
        let taken: BTreeSet<&String> = taken.flat_map(|(_, allocation)| allocation.ids()).collect();
        let free: Vec<String> = healthy.iter().filter(|id| !taken.contains(id)).cloned().collect();
        let needed = number - own.len();
        if free.len() < needed {
            let free = free.len();
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {free}"
            ));
        }
        Ok(Choices { own, free, needed })
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
    /// Devices that the container takes over: they are not chosen from.
    pub(super) own: Vec<String>,
    pub(super) free: Vec<String>,
    /// Number of free devices that are needed.
    pub(super) needed: usize,
}

impl Choices {
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
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GPU: &str = "vendor.test/gpu";

    fn state(devices: &[(&str, bool)]) -> State {
        let devices = devices
            .iter()
            .map(|(id, is_healthy)| ((*id).to_owned(), Device { is_healthy: *is_healthy, nodes: Vec::new() }));
        let mut state = State::default();
        state.update(GPU, devices.collect());
        state
    }

    fn pod(uid: &str, spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": spec})).expect("a pod")
    }

    fn container(name: &str, number: u32) -> Value {
        json!({"name": name, "resources": {"limits": {GPU: number.to_string(), "cpu": "1", "foreign.test/x": "1"}}})
    }

    /// Gives every container of a pod what it wants; the devices that each has, or the first error.
    fn allocate(state: &mut State, pod: &Pod) -> Result<Vec<(String, Vec<String>)>, String> {
        let mut given = Vec::new();
        for (container, resource, number) in state.wanted(pod) {
            let ids = state.choices(pod, (&container, &resource, number))?.pick(&[]);
            state.take(&(pods::uid(pod).to_owned(), container.clone(), resource), &ids);
            given.push((container, ids));
        }
        Ok(given)
    }

    #[test]
    fn devices_are_given_once_and_come_back() {
        let mut state = state(&[("a", true), ("b", true), ("c", false), ("d", true)]);
        let two = |uid: &str| pod(uid, json!({"containers": [container("c", 2)]}));
        let given = allocate(&mut state, &two("u")).expect("devices");
        assert_eq!(given, [("c".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
        assert_eq!(state.wanted(&two("u")), [], "it has them");
        let short = format!("requested number of devices unavailable for {GPU}. Requested: 2, Available: 1");
        assert_eq!(allocate(&mut state, &two("v")), Err(short));
        assert!(state.retain(|uid| uid != "u") && !state.retain(|_| true));
        assert_eq!(allocate(&mut state, &two("v")).expect("devices")[0].1, ["a", "b"]);
    }

    #[test]
    fn init_containers_pass_their_devices_on_and_sidecars_keep_theirs() {
        let mut state = state(&[("a", true), ("b", true), ("c", true)]);
        let sidecar = json!({"name": "side", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}});
        let spec = json!({"initContainers": [container("first", 1), container("second", 2), sidecar],
            "containers": [container("one", 1), container("two", 1)]});
        let given = allocate(&mut state, &pod("u", spec)).expect("three are enough");
        let ids = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<Vec<String>>();
        let expected = [
            ("first".to_owned(), ids(&["a"])),
            ("second".to_owned(), ids(&["a", "b"])),
            ("side".to_owned(), ids(&["a"])),
            ("one".to_owned(), ids(&["b"])),
            ("two".to_owned(), ids(&["c"])),
        ];
        assert_eq!(given, expected);
    }

    #[test]
    fn devices_that_are_ill_or_gone_are_given_to_nobody() {
        let one = pod("u", json!({"containers": [container("c", 1)]}));
        let ill = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
        assert_eq!(allocate(&mut state(&[("a", false)]), &one), Err(ill.clone()));
        let mut away = state(&[("a", true)]);
        away.fail(GPU);
        assert_eq!(allocate(&mut away, &one), Err(ill));
        assert_eq!(away.counts()[GPU], Count { capacity: 1, allocatable: 0 });
        assert!(away.update(GPU, BTreeMap::new()));
        assert_eq!(allocate(&mut away, &one), Err(format!("cannot allocate unregistered device {GPU}")));
        assert_eq!(allocate(&mut State::default(), &one), Ok(Vec::new()), "nobody's devices are not the kubelet's");
    }

    #[test]
    fn plugins_choose_among_what_is_free() {
        let choices = |own: &[&str], needed| Choices {
            own: own.iter().map(|id| (*id).to_owned()).collect(),
            free: ["a", "b", "c"].map(str::to_owned).to_vec(),
            needed,
        };
        let preferred = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<String>>();
        assert_eq!(choices(&[], 2).pick(&preferred(&["c", "b"])), ["c", "b"]);
        assert_eq!(choices(&[], 2).pick(&preferred(&["x", "c", "c"])), ["c", "a"]);
        assert_eq!(choices(&["o"], 1).pick(&preferred(&["b", "a"])), ["o", "b"]);
        assert_eq!(choices(&["o"], 0).pick(&preferred(&["b"])), ["o"]);
    }

    #[test]
    fn devices_are_written_down_by_numa_node() {
        let near = |nodes: &[i64]| Device { is_healthy: true, nodes: nodes.to_vec() };
        let mut state = State::default();
        let devices = [("a", near(&[0])), ("b", near(&[0, 1])), ("c", near(&[]))];
        state.update(GPU, devices.map(|(id, device)| (id.to_owned(), device)).into());
        let owner = ("u".to_owned(), "c".to_owned(), GPU.to_owned());
        state.take(&owner, &["a", "b", "c"].map(str::to_owned));
        let expected = [(-1, vec!["c"]), (0, vec!["a", "b"]), (1, vec!["b"])];
        let by_node = &state.allocations[&owner].by_node;
        let found: Vec<(i64, Vec<&str>)> =
            by_node.iter().map(|(node, ids)| (*node, ids.iter().map(String::as_str).collect())).collect();
        assert_eq!(found, expected);
        assert_eq!(state.allocations[&owner].ids().len(), 3);
    }
}
