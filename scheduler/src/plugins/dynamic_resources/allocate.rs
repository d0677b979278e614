//! Finding devices for all claims of a pod on one node: an exhaustive search that takes the first full solution.
//! Answers for upstream's `Allocator.Allocate`, `allocateOne`.
//!
//! Devices are tried in the order of pools, slices and devices. A device that did not lead to a solution stands for all
//! that are alike. Pure but for the clock that ends a search that takes too long.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use k8s_openapi::api::resource::v1::DeviceAttribute;
use parking_lot::Mutex;
use proto::quantity::Quantity;

use super::capacity;
use super::claims::full_name;
use super::request::{Amount, MAX_RESULTS, Want, Wanted};
use super::selectors::{SelectorFailure, Selectors};
use crate::framework::ledger::InUse;
use crate::model::devices::{Amounts, Counters, Device, DeviceId, Fault, Pool, Slice, add_counters, take_counters};
use crate::model::{Inventory, NodeBase};

/// The clock is looked at once in so many steps.
const STEPS_PER_LOOK: u32 = 64;

/// Inputs of an allocation that do not depend on the node.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) wanted: Vec<Wanted>,
    pub(super) inventory: Arc<Inventory>,
    pub(super) in_use: Arc<InUse>,
    /// Devices may be given to several claims.
    pub(super) sharing: bool,
    /// Taints keep claims away from devices.
    pub(super) taints: bool,
    /// Rest of counters, by pool; found out when first asked for, by one thread, for which those wait that ask for the same.
    pub(super) left: Mutex<HashMap<usize, Arc<OnceLock<Arc<Counters>>>>>,
}

impl Setup {
    fn left(&self, pool: usize) -> Arc<Counters> {
        let known = Arc::clone(self.left.lock().entry(pool).or_default());
        let in_use = |device: &DeviceId| self.in_use.whole(device);
        Arc::clone(known.get_or_init(|| Arc::new(self.inventory.counters_left(pool, in_use))))
    }
}

/// Reasons why a search ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// The search took too long.
    Timeout,
    /// Nothing can be had on this node, for this reason.
    Node(String),
    /// Something is wrong with a claim or a class.
    Broken(String),
}

/// A device for a request.
#[derive(Debug, Clone)]
pub(super) struct Picked<'a> {
    pub(super) want: &'a Want,
    pub(super) slice: &'a Slice,
    pub(super) device: &'a Device,
    /// Share that is taken of the device, if others may take of it, too.
    pub(super) share: Option<Amounts>,
}

/// The devices of one claim, and which alternative each of its requests got.
#[derive(Debug, Clone, Default)]
pub(super) struct Share<'a> {
    pub(super) devices: Vec<Picked<'a>>,
    pub(super) chosen: Vec<usize>,
}

/// Position of the search: claim, request, alternative, and the number of devices that the alternative has got.
#[derive(Clone, Copy)]
struct At {
    claim: usize,
    request: usize,
    alternative: usize,
    got: usize,
}

/// A device that was taken for a request.
#[derive(Clone, Copy)]
struct Taken<'a> {
    want: &'a Want,
    slice: &'a Slice,
    device: &'a Device,
}

/// The search for any device that will do.
struct Any<'a> {
    at: At,
    want: &'a Want,
    /// Of the next device to be tried: its pool, its slice, and itself.
    place: (usize, usize, usize),
    /// Kinds of devices that led to nothing.
    hopeless: HashSet<u64>,
    taken: Option<Taken<'a>>,
}

/// Choice to try next when everything after it has led to nothing.
enum Branch<'a> {
    /// The next alternative of a request.
    Alternatives { claim: usize, request: usize, next: usize },
    /// Nothing: the device is one of those that are all wanted.
    Fixed(At, Taken<'a>),
    /// The next device.
    Any(Any<'a>),
}

/// The next step of the search.
enum Next {
    Request {
        claim: usize,
        request: usize,
    },
    Device(At),
    /// The choice led to nothing.
    Back,
    /// All claims have what they want.
    Found,
}

/// The values of the devices under a constraint.
type Values<'a> = Vec<&'a DeviceAttribute>;

/// A claim, a request in it and an alternative of the request.
type Place = (usize, usize, usize);

struct Search<'a> {
    setup: &'a Setup,
    selectors: &'a Selectors,
    pools: Vec<Pool<'a>>,
    /// The devices of requests for all of them.
    all: HashMap<Place, Vec<(&'a Slice, &'a Device)>>,
    /// Devices taken in this search, and the claims that took them.
    taken: HashMap<&'a DeviceId, HashSet<usize>>,
    /// Amounts that this search has taken of shared devices.
    portions: HashMap<&'a DeviceId, Amounts>,
    /// Amounts of counters that this search has taken, by pool.
    spent: HashMap<usize, Counters>,
    /// Rest of counters that this search has asked for, by pool.
    left: HashMap<usize, Arc<Counters>>,
    node: &'a NodeBase,
    shares: Vec<Share<'a>>,
    constraints: Vec<Vec<Values<'a>>>,
    deadline: Option<Instant>,
    steps: Cell<u32>,
}

/// Looks for devices on a node; `None` when there are not enough.
///
/// # Errors
/// [`Stop`].
pub(super) fn allocate<'a>(
    setup: &'a Setup,
    selectors: &'a Selectors,
    node: &'a NodeBase,
    deadline: Option<Instant>,
) -> Result<Option<Vec<Share<'a>>>, Stop> {
    let mut search = Search {
        node,
        pools: setup.inventory.pools(node),
        spent: HashMap::new(),
        left: HashMap::new(),
        all: HashMap::new(),
        taken: HashMap::new(),
        portions: HashMap::new(),
        shares: setup.wanted.iter().map(|w| Share { chosen: vec![0; w.requests.len()], ..Share::default() }).collect(),
        constraints: setup.wanted.iter().map(|w| vec![Vec::new(); w.constraints.len()]).collect(),
        setup,
        selectors,
        deadline,
        steps: Cell::new(0),
    };
    search.prepare()?;
    if search.search()? {
        return Ok(Some(search.shares));
    }
    // Another pool might have had enough, so this is said at the end only.
    match search.pools.iter().any(|pool| *pool.fault == Fault::Invalid) {
        true => Err(Stop::Node("invalid resource pools were encountered".to_owned())),
        false => Ok(None),
    }
}

impl<'a> Search<'a> {
    /// Finds out how much "all" is, and refuses claims that ask for too much.
    fn prepare(&mut self) -> Result<(), Stop> {
        let setup = self.setup;
        for (c, wanted) in setup.wanted.iter().enumerate() {
            let mut least = 0_usize;
            for (r, request) in wanted.requests.iter().enumerate() {
                let mut fewest = usize::MAX;
                for (a, want) in request.alternatives.iter().enumerate() {
                    let n = match want.amount {
                        Amount::Exactly(n) => n,
                        Amount::All => {
                            let matching = self.matching(wanted, want)?;
                            let n = matching.len();
                            self.all.insert((c, r, a), matching);
                            n
                        }
                    };
                    fewest = fewest.min(n);
                }
                least = least.saturating_add(fewest);
            }
            if least > MAX_RESULTS {
                let name = full_name(&wanted.claim);
                return Err(Stop::Broken(format!(
                    "claim {name}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
                )));
            }
        }
        Ok(())
    }

    /// All devices that a request for all of them is about.
    fn matching(&self, wanted: &Wanted, want: &Want) -> Result<Vec<(&'a Slice, &'a Device)>, Stop> {
        let mut out = Vec::new();
        for pool in &self.pools {
            let is = match pool.fault {
                Fault::None => "",
                Fault::Incomplete => "being updated",
                Fault::Invalid => "invalid",
            };
            if !is.is_empty() {
                return Err(Stop::Node(format!(
                    "claim {}, request {}: asks for all devices, but resource pool {}/{} is currently {is}",
                    full_name(&wanted.claim),
                    want.short,
                    pool.driver,
                    pool.name
                )));
            }
            for slice in &pool.slices {
                for device in &slice.devices {
                    self.look_at_the_clock()?;
                    if self.selectable(wanted, want, slice, device)? && self.portion(want, slice, device).is_some() {
                        out.push((*slice, device));
                    }
                }
            }
        }
        Ok(out)
    }

    /// Reports whether a device matches the class and the request.
    fn selectable(&self, wanted: &Wanted, want: &Want, slice: &Slice, device: &Device) -> Result<bool, Stop> {
        if device.unsupported || !slice.device_covers(device, self.node) {
            return Ok(false);
        }
        let class = want.class.metadata.name.as_deref().unwrap_or_default();
        for (i, selector) in want.class.spec.selectors.iter().flatten().enumerate() {
            let who = || format!("class {class}: selector #{i}");
            let Some(cel) = &selector.cel else {
                return Err(Stop::Broken(format!("{}: CEL expression empty (unsupported selector type?)", who())));
            };
            if !self.asks(&cel.expression, slice, device, who)? {
                return Ok(false);
            }
        }
        for (i, expression) in want.selectors.iter().enumerate() {
            let who = || format!("claim {}: selector #{i}", full_name(&wanted.claim));
            if !self.asks(expression, slice, device, who)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn asks(&self, expression: &str, slice: &Slice, device: &Device, who: impl Fn() -> String) -> Result<bool, Stop> {
        let inventory = &self.setup.inventory;
        inventory.answer(expression, device, || {
            // An expression may take very many milliseconds.
            self.check_deadline()?;
            self.selectors.matches(expression, &slice.driver, device).map_err(|failed| match failed {
                SelectorFailure::Compile(e) => Stop::Broken(format!("{}: CEL compile error: {e}", who())),
                SelectorFailure::Run(e) => Stop::Node(format!("{}: CEL runtime error: {e}", who())),
            })
        })
    }

    fn look_at_the_clock(&self) -> Result<(), Stop> {
        self.steps.set(self.steps.get().wrapping_add(1));
        if self.steps.get().is_multiple_of(STEPS_PER_LOOK) { self.check_deadline() } else { Ok(()) }
    }

    fn check_deadline(&self) -> Result<(), Stop> {
        match self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            true => Err(Stop::Timeout),
            false => Ok(()),
        }
    }

    /// Searches depth first. The frames are on the heap: a pod may have tens of thousands of claims.
    fn search(&mut self) -> Result<bool, Stop> {
        let mut frames = Vec::new();
        let mut next = Next::Request { claim: 0, request: 0 };
        loop {
            next = match next {
                Next::Request { claim, request } => self.request(claim, request, &mut frames)?,
                Next::Device(at) => self.device(at, &mut frames)?,
                Next::Back => match frames.pop() {
                    Some(Branch::Alternatives { claim, request, next }) => {
                        self.alternative(claim, request, next, &mut frames)
                    }
                    Some(Branch::Fixed(at, taken)) => {
                        self.release(at, taken);
                        Next::Back
                    }
                    Some(Branch::Any(any)) => self.take_any(any, &mut frames)?,
                    None => return Ok(false),
                },
                Next::Found => {
                    for frame in frames {
                        if let Branch::Alternatives { claim, request, next } = frame {
                            self.shares[claim].chosen[request] = next - 1;
                        }
                    }
                    return Ok(true);
                }
            };
        }
    }

    /// Goes on with a request, or with the first of the next claim that has any.
    fn request(&mut self, mut claim: usize, mut request: usize, frames: &mut Vec<Branch<'a>>) -> Result<Next, Stop> {
        while let Some(wanted) = self.setup.wanted.get(claim) {
            self.look_at_the_clock()?;
            if request < wanted.requests.len() {
                return Ok(self.alternative(claim, request, 0, frames));
            }
            (claim, request) = (claim + 1, 0);
        }
        Ok(Next::Found)
    }

    fn alternative(&self, claim: usize, request: usize, alternative: usize, frames: &mut Vec<Branch<'a>>) -> Next {
        if alternative >= self.setup.wanted[claim].requests[request].alternatives.len() {
            return Next::Back;
        }
        frames.push(Branch::Alternatives { claim, request, next: alternative + 1 });
        Next::Device(At { claim, request, alternative, got: 0 })
    }

    /// One more device for an alternative.
    fn device(&mut self, at: At, frames: &mut Vec<Branch<'a>>) -> Result<Next, Stop> {
        self.look_at_the_clock()?;
        let setup = self.setup;
        let want = &setup.wanted[at.claim].requests[at.request].alternatives[at.alternative];
        let fixed = self.all.get(&(at.claim, at.request, at.alternative));
        let needed = match (want.amount, fixed) {
            (Amount::All, fixed) => match fixed.map_or(0, Vec::len) {
                0 => return Ok(Next::Back),
                n => n,
            },
            (Amount::Exactly(n), _) => n,
        };
        if at.got >= needed {
            return Ok(Next::Request { claim: at.claim, request: at.request + 1 });
        }
        if (self.shares[at.claim].devices.len() + needed).saturating_sub(at.got) > MAX_RESULTS {
            return Ok(Next::Back);
        }
        match fixed.map(|all| all[at.got]) {
            Some((slice, device)) => self.take_this(at, Taken { want, slice, device }, frames),
            None => self.take_any(Any { at, want, place: (0, 0, 0), hopeless: HashSet::new(), taken: None }, frames),
        }
    }

    fn take_this(&mut self, at: At, taken: Taken<'a>, frames: &mut Vec<Branch<'a>>) -> Result<Next, Stop> {
        let Taken { want, slice, device } = taken;
        if self.used(at, want, device) || self.portion(want, slice, device).is_none() || !self.affords(slice, device) {
            return Ok(Next::Back);
        }
        if !self.take(at, want, slice, device) {
            let name = full_name(&self.setup.wanted[at.claim].claim);
            return Err(Stop::Broken(format!(
                "claim {name}, request {}: cannot add device {} because a claim constraint would not be satisfied",
                want.short, device.id
            )));
        }
        frames.push(Branch::Fixed(at, taken));
        Ok(Next::Device(At { got: at.got + 1, ..at }))
    }

    /// Takes the next device that may do; the one before has led to nothing.
    fn take_any(&mut self, mut any: Any<'a>, frames: &mut Vec<Branch<'a>>) -> Result<Next, Stop> {
        let (at, want, setup) = (any.at, any.want, self.setup);
        if let Some(taken) = any.taken.take() {
            self.release(at, taken);
            // Of devices that are alike others may have been taken more or less of.
            if !self.shared(taken.device) {
                any.hopeless.insert(taken.device.kind);
            }
        }
        let wanted = &setup.wanted[at.claim];
        while let Some((slice, device)) = self.next_device(&mut any.place) {
            self.look_at_the_clock()?;
            if !any.hopeless.contains(&device.kind)
                && !self.used(at, want, device)
                && self.selectable(wanted, want, slice, device)?
                && self.take(at, want, slice, device)
            {
                any.taken = Some(Taken { want, slice, device });
                frames.push(Branch::Any(any));
                return Ok(Next::Device(At { got: at.got + 1, ..at }));
            }
        }
        Ok(Next::Back)
    }

    /// The device at a place (pool, slice, device) or behind it, and moves the place on. What an incomplete pool lacks may
    /// contradict what it shows, so it has none.
    fn next_device(&self, place: &mut (usize, usize, usize)) -> Option<(&'a Slice, &'a Device)> {
        loop {
            let pool = self.pools.get(place.0)?;
            let Some(slice) = pool.slices.get(place.1).copied().filter(|_| *pool.fault == Fault::None) else {
                *place = (place.0 + 1, 0, 0);
                continue;
            };
            let Some(device) = slice.devices.get(place.2) else {
                *place = (place.0, place.1 + 1, 0);
                continue;
            };
            place.2 += 1;
            return Some((slice, device));
        }
    }

    /// Reports whether a device is in use, or tainted. Administrators look into devices in use, but not twice for one
    /// claim.
    fn used(&self, at: At, want: &Want, device: &Device) -> bool {
        if self.setup.taints && !want.tolerates(device) {
            return true;
        }
        if self.shared(device) {
            // One request gets as many devices as it wants, and not one of them twice.
            let mut of_request = self.shares[at.claim].devices.iter().rev().take(at.got);
            let whole = !want.admin && self.setup.in_use.whole(&device.id);
            return whole || of_request.any(|p| p.device.id == device.id);
        }
        let taken = self.taken.get(&device.id);
        if want.admin {
            return taken.is_some_and(|by| by.contains(&at.claim));
        }
        let in_use = &self.setup.in_use;
        let held = in_use.whole(&device.id) || (!self.setup.sharing && in_use.shared(&device.id).is_some());
        held || taken.is_some_and(|by| !by.is_empty())
    }

    fn shared(&self, device: &Device) -> bool {
        self.setup.sharing && device.multiple
    }

    /// Returns what a request takes of a device's capacities; `None` when there is not enough left.
    fn portion(&self, want: &Want, slice: &Slice, device: &Device) -> Option<Amounts> {
        if !self.setup.sharing || (!device.multiple && want.capacity.is_empty()) {
            return Some(Amounts::new());
        }
        let taken = [self.setup.in_use.shared(&device.id), self.portions.get(&device.id)];
        capacity::share(capacity::named(&device.capacity, &slice.driver), &want.capacity, &taken)
    }

    /// Takes a device, if there is enough of it and the claim's constraints allow it.
    fn take(&mut self, at: At, want: &'a Want, slice: &'a Slice, device: &'a Device) -> bool {
        let Some(portion) = self.portion(want, slice, device) else { return false };
        let wanted = &self.setup.wanted[at.claim];
        let request = &wanted.requests[at.request].name;
        let mut found = Vec::new();
        for (i, c) in wanted.constraints.iter().enumerate().filter(|(_, c)| c.covers(request, want)) {
            let value = device.attributes.get(&c.attribute.0).and_then(|d| d.get(&c.attribute.1));
            let others = &self.constraints[at.claim][i];
            let fits = |value: &&DeviceAttribute| others.iter().all(|other| (other == value) != c.distinct);
            let Some(value) = value.filter(fits) else { return false };
            found.push((i, value));
        }
        if !self.charge(slice, device) {
            return false;
        }
        for (i, value) in found {
            self.constraints[at.claim][i].push(value);
        }
        let share = self.shared(device).then_some(portion);
        match &share {
            Some(portion) => capacity::add(self.portions.entry(&device.id).or_default(), portion),
            None => drop(self.taken.entry(&device.id).or_default().insert(at.claim)),
        }
        self.shares[at.claim].devices.push(Picked { want, slice, device, share });
        true
    }

    /// Takes what a device needs of its pool's counters, if that much is left of each.
    fn charge(&mut self, slice: &Slice, device: &Device) -> bool {
        if device.counters.is_empty() {
            return true;
        }
        let left = self.left.entry(slice.pool_number).or_insert_with_key(|pool| self.setup.left(*pool));
        let spent = self.spent.entry(slice.pool_number).or_default();
        add_counters(spent, &device.counters);
        let none = Quantity::default();
        let spent_of = |set: &str, name: &str| spent.get(set).and_then(|set| set.get(name)).unwrap_or(&none);
        let fits = left.iter().all(|(set, all)| all.iter().all(|(name, left)| *spent_of(set, name) <= *left));
        if !fits {
            take_counters(spent, &device.counters);
        }
        fits
    }

    fn refund(&mut self, slice: &Slice, device: &Device) {
        if let Some(spent) = self.spent.get_mut(&slice.pool_number) {
            take_counters(spent, &device.counters);
        }
    }

    fn affords(&mut self, slice: &Slice, device: &Device) -> bool {
        let affords = self.charge(slice, device);
        if affords {
            self.refund(slice, device);
        }
        affords
    }

    fn release(&mut self, at: At, taken: Taken<'a>) {
        let Taken { want, slice, device } = taken;
        self.refund(slice, device);
        let wanted = &self.setup.wanted[at.claim];
        let request = &wanted.requests[at.request].name;
        for (i, _) in wanted.constraints.iter().enumerate().filter(|(_, c)| c.covers(request, want)) {
            self.constraints[at.claim][i].pop();
        }
        if let Some(by) = self.taken.get_mut(&device.id) {
            by.remove(&at.claim);
        }
        let picked = self.shares[at.claim].devices.pop();
        if let (Some(share), Some(sum)) = (picked.and_then(|p| p.share), self.portions.get_mut(&device.id)) {
            capacity::give_back(sum, &share);
        }
    }
}
