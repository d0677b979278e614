//! Devices that nodes can reach: resource slices, read once, grouped to pools and found by node. Answers for upstream's
//! `k8s.io/dynamic-resource-allocation/structured` (`GatherPools`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{self as api, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use parking_lot::Mutex;
use proto::quantity::Quantity;

use super::node::NodeBase;
use super::selector::NodeTerm;

/// `driver/pool/device`; the first and the last part hold no slash.
pub type DeviceId = Arc<str>;

/// Expressions whose answers are remembered.
const MAX_EXPRESSIONS: usize = 256;

fn id(driver: &str, pool: &str, device: &str) -> DeviceId {
    format!("{driver}/{pool}/{device}").into()
}

/// Amounts of capacities by name.
pub type Amounts = BTreeMap<String, Quantity>;

/// An amount as the API has it; zero for what is none.
pub fn quantity(stored: &Stored) -> Quantity {
    Quantity::parse(&stored.0).unwrap_or_default()
}

/// Amounts of counters, by counter set and name.
pub type Counters = BTreeMap<String, Amounts>;

/// Objects that an inventory is made of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sources<'a> {
    /// Slices of all drivers.
    pub slices: &'a [Arc<ResourceSlice>],
    /// Rules that taint devices (DRADeviceTaintRules).
    pub rules: &'a [Arc<DeviceTaintRule>],
    /// Devices may share counters, and be reached each from nodes of its own (DRAPartitionableDevices).
    pub partitions: bool,
    /// Devices may have conditions for the binding of their pods (DRADeviceBindingConditions).
    pub bindings: bool,
}

/// A device that a claim holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Holding {
    /// The device.
    pub id: DeviceId,
    /// Share that the claim takes of the device, if others may take of it, too.
    pub share: Option<Amounts>,
}

/// Devices that a claim holds; access for administrators takes nothing from others.
pub fn allocated(claim: &ResourceClaim) -> Vec<Holding> {
    let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
    let results = allocation.and_then(|a| a.devices.as_ref()).and_then(|d| d.results.as_ref());
    let own = results.into_iter().flatten().filter(|r| r.admin_access != Some(true));
    let holding = |r: &api::DeviceRequestAllocationResult| {
        let consumed = r.consumed_capacity.iter().flatten().map(|(name, q)| (name.clone(), quantity(q)));
        let share = r.share_id.is_some().then(|| consumed.collect());
        Holding { id: id(&r.driver, &r.pool, &r.device), share }
    };
    own.map(holding).collect()
}

/// From where the devices of a slice can be reached.
#[derive(Debug, Clone, PartialEq)]
pub enum Reach {
    /// One node.
    Node(String),
    /// Nodes by label or name.
    Selected(NodeSelector, Vec<NodeTerm>),
    /// Every node.
    Everywhere,
    /// Each device says for itself.
    PerDevice,
}

impl Reach {
    fn of_slice(spec: &api::ResourceSliceSpec, partitions: bool) -> Option<Self> {
        if spec.per_device_node_selection.is_some() && !partitions {
            return None;
        }
        let own = Self::of(spec.node_name.as_ref(), spec.all_nodes, spec.node_selector.as_ref());
        own.or((spec.per_device_node_selection == Some(true)).then_some(Self::PerDevice))
    }

    fn of(name: Option<&String>, all: Option<bool>, selector: Option<&NodeSelector>) -> Option<Self> {
        if let Some(name) = name.filter(|n| !n.is_empty()) {
            return Some(Self::Node(name.clone()));
        }
        if all == Some(true) {
            return Some(Self::Everywhere);
        }
        let terms = selector?.node_selector_terms.iter().map(NodeTerm::from_api).collect();
        Some(Self::Selected(selector?.clone(), terms))
    }

    fn covers(&self, node: &NodeBase) -> bool {
        match self {
            Self::Node(name) => **name == *node.name,
            Self::Everywhere => true,
            Self::PerDevice => false,
            Self::Selected(_, terms) => terms.iter().any(|t| t.matches(&node.name, &node.labels)),
        }
    }
}

/// One device.
#[derive(Debug, Clone)]
pub struct Device {
    /// Position in the whole inventory.
    pub number: usize,
    /// Full name of the device.
    pub id: DeviceId,
    /// Name of the device in the pool.
    pub name: String,
    /// Attributes by domain and name; the driver is the domain of names without one.
    pub attributes: BTreeMap<String, BTreeMap<String, api::DeviceAttribute>>,
    /// Capacities likewise.
    pub capacity: BTreeMap<String, BTreeMap<String, api::DeviceCapacity>>,
    /// The device may be given to several claims at a time.
    pub multiple: bool,
    /// Taints that keep claims away which do not tolerate them.
    pub taints: Vec<api::DeviceTaint>,
    /// Devices with the same number are alike in everything but the name.
    pub kind: u64,
    /// The device needs what is switched off: shared counters or binding conditions.
    pub unsupported: bool,
    /// Amounts that it takes of its pool's counters.
    pub counters: Counters,
    /// Reach of the device itself, where the slice leaves that to devices.
    pub reach: Option<Reach>,
    /// Conditions for the binding of pods that use it, if it has any.
    pub binding: Option<Box<Binding>>,
}

/// Binding conditions of a device (DRADeviceBindingConditions).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binding {
    /// Conditions that have to be true.
    pub conditions: Vec<String>,
    /// Conditions of which each means that it will not get ready.
    pub failures: Vec<String>,
    /// The claim is limited to the node that was chosen for it.
    pub to_node: bool,
}

impl Binding {
    fn of(device: &api::Device) -> Option<Box<Self>> {
        let list = |all: &Option<Vec<String>>| all.clone().unwrap_or_default();
        let it = Self {
            conditions: list(&device.binding_conditions),
            failures: list(&device.binding_failure_conditions),
            to_node: device.binds_to_node == Some(true),
        };
        (it != Self::default()).then(|| Box::new(it))
    }
}

/// One slice.
#[derive(Debug)]
pub struct Slice {
    /// Driver.
    pub driver: Arc<str>,
    /// Pool.
    pub pool: Arc<str>,
    /// Number of the pool in the inventory.
    pub pool_number: usize,
    /// From where its devices can be reached.
    pub reach: Reach,
    /// Devices in the order written.
    pub devices: Vec<Device>,
}

impl Slice {
    /// Reports whether a node can reach any of the devices.
    fn covers(&self, node: &NodeBase) -> bool {
        match self.reach {
            Reach::PerDevice => self.devices.iter().any(|device| self.device_covers(device, node)),
            _ => self.reach.covers(node),
        }
    }

    /// Reports whether a node can reach one of the devices, if it can reach the slice.
    pub fn device_covers(&self, device: &Device, node: &NodeBase) -> bool {
        self.reach != Reach::PerDevice || device.reach.as_ref().is_some_and(|reach| reach.covers(node))
    }

    /// From where one of the devices can be reached.
    pub fn reach_of<'a>(&'a self, device: &'a Device) -> &'a Reach {
        match &self.reach {
            Reach::PerDevice => device.reach.as_ref().unwrap_or(&self.reach),
            own => own,
        }
    }
}

/// Faults of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Not all slices of the newest generation are there.
    Incomplete,
    /// Two devices of the pool have one name, or its counters contradict themselves.
    Invalid,
}

/// The part of a pool that one node can reach.
#[derive(Debug)]
pub struct Pool<'a> {
    /// Driver.
    pub driver: &'a str,
    /// Name.
    pub name: &'a str,
    /// Fault of the pool.
    pub fault: &'a Fault,
    /// Slices.
    pub slices: Vec<&'a Slice>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Inventory {
    slices: Vec<Slice>,
    partitions: bool,
    bindings: bool,
    /// Counters of each pool, and the devices anywhere in it that take of them.
    counters: Vec<(Counters, Vec<(DeviceId, Counters)>)>,
    faults: Vec<Fault>,
    by_node: HashMap<String, Vec<usize>>,
    shared: Vec<usize>,
    devices: usize,
    /// Answers of expressions, by device number.
    answers: Mutex<HashMap<String, Vec<Option<bool>>>>,
}

fn qualified<V: Clone>(map: Option<&BTreeMap<String, V>>, driver: &str) -> BTreeMap<String, BTreeMap<String, V>> {
    let mut out: BTreeMap<String, BTreeMap<String, V>> = BTreeMap::new();
    for (name, value) in map.into_iter().flatten() {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        out.entry(domain.to_owned()).or_default().insert(id.to_owned(), value.clone());
    }
    out
}

/// Effects that are not known, and None, do nothing.
fn keeps_away(taint: &api::DeviceTaint) -> bool {
    matches!(taint.effect.as_str(), "NoExecute" | "NoSchedule")
}

/// A device's own taints, and those that rules put on it.
fn taints_of(slice: &ResourceSlice, device: &api::Device, rules: &[Arc<DeviceTaintRule>]) -> Vec<api::DeviceTaint> {
    let is = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|wanted| wanted == have);
    // A rule without a selector is about every device.
    let about = |rule: &&Arc<DeviceTaintRule>| {
        rule.spec.device_selector.as_ref().is_none_or(|s| {
            is(&s.driver, &slice.spec.driver) && is(&s.pool, &slice.spec.pool.name) && is(&s.device, &device.name)
        })
    };
    let by_rules = rules.iter().filter(about).map(|rule| {
        let taint = rule.spec.taint.clone();
        api::DeviceTaint { effect: taint.effect, key: taint.key, time_added: taint.time_added, value: taint.value }
    });
    device.taints.iter().flatten().cloned().chain(by_rules).filter(keeps_away).collect()
}

fn amounts(counters: &BTreeMap<String, api::Counter>) -> Amounts {
    counters.iter().map(|(name, counter)| (name.clone(), quantity(&counter.value))).collect()
}

/// Amounts that a device takes of counters; it may name a set more than once.
fn consumption(device: &api::Device) -> Counters {
    let mut out = Counters::new();
    for taken in device.consumes_counters.iter().flatten() {
        add_counters(&mut out, &[(taken.counter_set.clone(), amounts(&taken.counters))].into());
    }
    out
}

/// Adds amounts of counters.
pub fn add_counters(to: &mut Counters, more: &Counters) {
    for (set, amounts) in more {
        let sums = to.entry(set.clone()).or_default();
        for (name, amount) in amounts {
            sums.entry(name.clone()).or_default().add(amount);
        }
    }
}

/// Takes amounts of counters away, below zero if need be. Counters that are not there are left alone.
pub fn take_counters(from: &mut Counters, less: &Counters) {
    for (set, amounts) in less {
        for (name, amount) in amounts {
            if let Some(sum) = from.get_mut(set).and_then(|set| set.get_mut(name)) {
                sum.sub(amount);
            }
        }
    }
}

fn likeness(hasher: &RandomState, slice: &ResourceSlice, device: &api::Device, taints: &[api::DeviceTaint]) -> u64 {
    let mut h = hasher.build_hasher();
    (&slice.spec.driver, &slice.spec.pool.name, &slice.spec.node_name, slice.spec.all_nodes).hash(&mut h);
    // The rest has no hash of its own; its text is as good.
    let rest = (
        &slice.spec.node_selector,
        &device.attributes,
        &device.capacity,
        device.allow_multiple_allocations,
        taints,
        (&device.consumes_counters, &device.node_name, device.all_nodes, &device.node_selector),
        (&device.binding_conditions, &device.binding_failure_conditions, device.binds_to_node),
    );
    serde_json::to_string(&rest).unwrap_or_default().hash(&mut h);
    h.finish()
}

impl Inventory {
    /// Reads all slices.
    pub fn of(sources: Sources<'_>) -> Self {
        let slices = sources.slices;
        let mut newest: HashMap<(&str, &str), i64> = HashMap::new();
        for s in slices {
            let generation = newest.entry((&s.spec.driver, &s.spec.pool.name)).or_insert(i64::MIN);
            *generation = (*generation).max(s.spec.pool.generation);
        }
        let mut current: Vec<&Arc<ResourceSlice>> = slices
            .iter()
            .filter(|s| newest.get(&(&*s.spec.driver, &*s.spec.pool.name)) == Some(&s.spec.pool.generation))
            .collect();
        current.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let mut out = Self { partitions: sources.partitions, bindings: sources.bindings, ..Self::default() };
        let mut pools: HashMap<(&str, &str), usize> = HashMap::new();
        let mut members: Vec<Members<'_>> = Vec::new();
        let hasher = RandomState::new();
        for s in current {
            let at = *pools.entry((&s.spec.driver, &s.spec.pool.name)).or_insert_with(|| {
                members.push(Members { wanted: s.spec.pool.resource_slice_count, ..Members::default() });
                members.len() - 1
            });
            members[at].take(s);
            let has_counters = s.spec.shared_counters.as_ref().is_some_and(|sets| !sets.is_empty());
            match Reach::of_slice(&s.spec, sources.partitions) {
                Some(reach) if !has_counters => out.add(s, reach, at, &hasher, sources.rules),
                _ => {}
            }
        }
        for pool in members {
            out.faults.push(pool.fault(sources.partitions));
            out.counters.push((pool.counters, pool.consumers));
        }
        out
    }

    fn add(
        &mut self,
        slice: &ResourceSlice,
        reach: Reach,
        pool: usize,
        hasher: &RandomState,
        rules: &[Arc<DeviceTaintRule>],
    ) {
        let spec = &slice.spec;
        let devices = spec.devices.iter().flatten().map(|d| {
            self.devices += 1;
            let taints = taints_of(slice, d, rules);
            let counts = d.consumes_counters.as_ref().is_some_and(|c| !c.is_empty());
            Device {
                number: self.devices - 1,
                id: id(&spec.driver, &spec.pool.name, &d.name),
                name: d.name.clone(),
                attributes: qualified(d.attributes.as_ref(), &spec.driver),
                capacity: qualified(d.capacity.as_ref(), &spec.driver),
                multiple: d.allow_multiple_allocations == Some(true),
                kind: likeness(hasher, slice, d, &taints),
                taints,
                unsupported: counts && !self.partitions
                    || !self.bindings && d.binding_conditions.as_ref().is_some_and(|c| !c.is_empty()),
                binding: if self.bindings { Binding::of(d) } else { None },
                counters: consumption(d),
                reach: Reach::of(d.node_name.as_ref(), d.all_nodes, d.node_selector.as_ref()),
            }
        });
        let devices = devices.collect();
        let at = self.slices.len();
        match &reach {
            Reach::Node(name) => self.by_node.entry(name.clone()).or_default().push(at),
            Reach::Everywhere | Reach::Selected(..) | Reach::PerDevice => self.shared.push(at),
        }
        self.slices.push(Slice {
            driver: spec.driver.as_str().into(),
            pool: spec.pool.name.as_str().into(),
            pool_number: pool,
            reach,
            devices,
        });
    }

    /// Rest of a pool's counters beside devices in use; may be less than nothing.
    pub fn counters_left(&self, pool: usize, in_use: impl Fn(&DeviceId) -> bool) -> Counters {
        let Some((counters, consumers)) = self.counters.get(pool) else { return Counters::new() };
        let mut left = counters.clone();
        for (_, taken) in consumers.iter().filter(|(device, _)| in_use(device)) {
            take_counters(&mut left, taken);
        }
        left
    }

    /// The pools that a node can reach.
    pub fn pools(&self, node: &NodeBase) -> Vec<Pool<'_>> {
        let local = self.by_node.get(&*node.name).into_iter().flatten();
        let shared = self.shared.iter().filter(|at| self.slices[**at].covers(node));
        let mut pools: Vec<(usize, Pool<'_>)> = Vec::new();
        for at in local.chain(shared) {
            let (slice, number) = (&self.slices[*at], self.slices[*at].pool_number);
            match pools.iter_mut().find(|(n, _)| *n == number) {
                Some((_, pool)) => pool.slices.push(slice),
                None => {
                    let fault = &self.faults[number];
                    let pool = Pool { driver: &slice.driver, name: &slice.pool, fault, slices: vec![slice] };
                    pools.push((number, pool));
                }
            }
        }
        pools.sort_by_key(|(number, _)| *number);
        pools.into_iter().map(|(_, pool)| pool).collect()
    }

    /// The answer of an expression for a device: remembered, or found by `ask`. Errors are not remembered.
    ///
    /// # Errors
    /// Those of `ask`.
    pub fn answer<E>(
        &self,
        expression: &str,
        device: &Device,
        ask: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let known = self.answers.lock().get(expression).and_then(|a| a[device.number]);
        if let Some(answer) = known {
            return Ok(answer);
        }
        let answer = ask()?;
        let mut answers = self.answers.lock();
        if answers.len() >= MAX_EXPRESSIONS && !answers.contains_key(expression) {
            answers.clear();
        }
        let of_all = answers.entry(expression.to_owned()).or_insert_with(|| vec![None; self.devices]);
        of_all[device.number] = Some(answer);
        Ok(answer)
    }
}

/// Facts of a pool while its slices are gathered.
#[derive(Default)]
struct Members<'a> {
    wanted: i64,
    slices: i64,
    devices: HashSet<&'a str>,
    duplicate: bool,
    counters: Counters,
    /// Two counter sets have one name.
    ambiguous: bool,
    consumers: Vec<(DeviceId, Counters)>,
}

impl<'a> Members<'a> {
    fn take(&mut self, slice: &'a ResourceSlice) {
        self.slices += 1;
        for device in slice.spec.devices.iter().flatten() {
            self.duplicate |= !self.devices.insert(&device.name);
            let taken = consumption(device);
            if !taken.is_empty() {
                self.consumers.push((id(&slice.spec.driver, &slice.spec.pool.name, &device.name), taken));
            }
        }
        for set in slice.spec.shared_counters.iter().flatten() {
            self.ambiguous |= self.counters.insert(set.name.clone(), amounts(&set.counters)).is_some();
        }
    }

    fn fault(&self, partitions: bool) -> Fault {
        match self.duplicate {
            true => Fault::Invalid,
            false if self.slices != self.wanted => Fault::Incomplete,
            false if partitions && (self.ambiguous || !self.all_counters_exist()) => Fault::Invalid,
            false => Fault::None,
        }
    }

    /// Reports whether devices take of nothing but counters that the pool has.
    fn all_counters_exist(&self) -> bool {
        let exist = |(set, taken): (&String, &Amounts)| {
            self.counters.get(set).is_some_and(|have| taken.keys().all(|name| have.contains_key(name)))
        };
        self.consumers.iter().all(|(_, taken)| taken.iter().all(exist))
    }
}
