//! Devices that nodes can reach: resource slices, read once, grouped to pools and found by node.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{self as api, ResourceClaim, ResourceSlice};
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

/// A device that a claim holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Holding {
    /// The device.
    pub id: DeviceId,
    /// What the claim takes of it, if others may take of it, too.
    pub share: Option<Amounts>,
}

/// What a claim holds; access for administrators takes nothing from others.
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
}

impl Reach {
    fn of(spec: &api::ResourceSliceSpec) -> Option<Self> {
        // Reach per device belongs to partitionable devices, which are off.
        if spec.per_device_node_selection.is_some() {
            return None;
        }
        if let Some(name) = spec.node_name.as_ref().filter(|n| !n.is_empty()) {
            return Some(Self::Node(name.clone()));
        }
        if spec.all_nodes == Some(true) {
            return Some(Self::Everywhere);
        }
        let selector = spec.node_selector.clone()?;
        let terms = selector.node_selector_terms.iter().map(NodeTerm::from_api).collect();
        Some(Self::Selected(selector, terms))
    }

    fn covers(&self, node: &NodeBase) -> bool {
        match self {
            Self::Node(name) => **name == *node.name,
            Self::Everywhere => true,
            Self::Selected(_, terms) => terms.iter().any(|t| t.matches(&node.name, &node.labels)),
        }
    }
}

/// One device.
#[derive(Debug, Clone)]
pub struct Device {
    /// Position in the whole inventory.
    pub number: usize,
    /// Its full name.
    pub id: DeviceId,
    /// Its name in the pool.
    pub name: String,
    /// Attributes by domain and name; the driver is the domain of names without one.
    pub attributes: BTreeMap<String, BTreeMap<String, api::DeviceAttribute>>,
    /// Capacities likewise.
    pub capacity: BTreeMap<String, BTreeMap<String, api::DeviceCapacity>>,
    /// It may be given to several claims at a time.
    pub multiple: bool,
    /// What keeps claims away that do not tolerate it.
    pub taints: Vec<api::DeviceTaint>,
    /// Devices with the same number are alike in everything but the name.
    pub kind: u64,
    /// It needs what is switched off: shared counters or binding conditions.
    pub unsupported: bool,
}

/// One slice.
#[derive(Debug)]
pub struct Slice {
    /// Driver.
    pub driver: Arc<str>,
    /// Pool.
    pub pool: Arc<str>,
    /// From where its devices can be reached.
    pub reach: Reach,
    /// Devices in the order written.
    pub devices: Vec<Device>,
}

/// What is wrong with a pool, if anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Not all slices of the newest generation are there.
    Incomplete,
    /// Two devices of the pool have one name.
    Invalid,
}

/// The part of a pool that one node can reach.
#[derive(Debug)]
pub struct Pool<'a> {
    /// Driver.
    pub driver: &'a str,
    /// Name.
    pub name: &'a str,
    /// What is wrong.
    pub fault: &'a Fault,
    /// Slices.
    pub slices: Vec<&'a Slice>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Inventory {
    slices: Vec<Slice>,
    /// Position of each slice's pool.
    pool_of: Vec<usize>,
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

fn likeness(hasher: &RandomState, slice: &ResourceSlice, device: &api::Device) -> u64 {
    let mut h = hasher.build_hasher();
    (&slice.spec.driver, &slice.spec.pool.name, &slice.spec.node_name, slice.spec.all_nodes).hash(&mut h);
    // The rest has no hash of its own; its text is as good.
    let rest = (
        &slice.spec.node_selector,
        &device.attributes,
        &device.capacity,
        device.allow_multiple_allocations,
        &device.taints,
    );
    serde_json::to_string(&rest).unwrap_or_default().hash(&mut h);
    h.finish()
}

impl Inventory {
    /// Reads all slices.
    pub fn of(slices: &[Arc<ResourceSlice>]) -> Self {
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
        let mut out = Self::default();
        let mut pools: HashMap<(&str, &str), usize> = HashMap::new();
        let mut members: Vec<Members<'_>> = Vec::new();
        let hasher = RandomState::new();
        for s in current {
            let at = *pools.entry((&s.spec.driver, &s.spec.pool.name)).or_insert_with(|| {
                members.push(Members { wanted: s.spec.pool.resource_slice_count, ..Members::default() });
                members.len() - 1
            });
            members[at].take(s);
            if let Some(reach) = Reach::of(&s.spec) {
                out.add(s, reach, at, &hasher);
            }
        }
        out.faults = members.into_iter().map(Members::fault).collect();
        out
    }

    fn add(&mut self, slice: &ResourceSlice, reach: Reach, pool: usize, hasher: &RandomState) {
        let spec = &slice.spec;
        let devices = spec.devices.iter().flatten().map(|d| {
            self.devices += 1;
            Device {
                number: self.devices - 1,
                id: id(&spec.driver, &spec.pool.name, &d.name),
                name: d.name.clone(),
                attributes: qualified(d.attributes.as_ref(), &spec.driver),
                capacity: qualified(d.capacity.as_ref(), &spec.driver),
                multiple: d.allow_multiple_allocations == Some(true),
                taints: d.taints.iter().flatten().filter(|t| keeps_away(t)).cloned().collect(),
                kind: likeness(hasher, slice, d),
                unsupported: d.consumes_counters.as_ref().is_some_and(|c| !c.is_empty())
                    || d.binding_conditions.as_ref().is_some_and(|c| !c.is_empty()),
            }
        });
        let devices = devices.collect();
        let at = self.slices.len();
        match &reach {
            Reach::Node(name) => self.by_node.entry(name.clone()).or_default().push(at),
            Reach::Everywhere | Reach::Selected(..) => self.shared.push(at),
        }
        self.slices.push(Slice {
            driver: spec.driver.as_str().into(),
            pool: spec.pool.name.as_str().into(),
            reach,
            devices,
        });
        self.pool_of.push(pool);
    }

    /// The pools that a node can reach.
    pub fn pools(&self, node: &NodeBase) -> Vec<Pool<'_>> {
        let local = self.by_node.get(&*node.name).into_iter().flatten();
        let shared = self.shared.iter().filter(|at| self.slices[**at].reach.covers(node));
        let mut pools: Vec<(usize, Pool<'_>)> = Vec::new();
        for at in local.chain(shared) {
            let (slice, number) = (&self.slices[*at], self.pool_of[*at]);
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

/// What is known of a pool while its slices are gathered.
#[derive(Default)]
struct Members<'a> {
    wanted: i64,
    slices: i64,
    devices: HashSet<&'a str>,
    duplicate: bool,
}

impl<'a> Members<'a> {
    fn take(&mut self, slice: &'a ResourceSlice) {
        self.slices += 1;
        for device in slice.spec.devices.iter().flatten() {
            self.duplicate |= !self.devices.insert(&device.name);
        }
    }

    fn fault(self) -> Fault {
        match self.duplicate {
            true => Fault::Invalid,
            false if self.slices != self.wanted => Fault::Incomplete,
            false => Fault::None,
        }
    }
}
