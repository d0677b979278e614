//! The static policy: containers of guaranteed pods have memory and huge pages of NUMA nodes to themselves. Pure; upstream's
//! `policy_static.go`.
//!
//! A node gives memory alone or together with the same other nodes, not both: the kernel keeps a container's memory on nodes
//! only as a set.

use super::error::{ReservationError, StateError};
use super::reserved::{MEMORY, Reserved, is_memory};
use super::state::{Block, NumaNode, Owner, State, Table};
use crate::pods;
use crate::resources::{QosClass, at_peak, page_size, qos_class};
use crate::topology::{Hint, Hints, NodeMask, NumaNodes, Refusal, metrics, prefer};
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::quantity::Quantity;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Bytes by kind of memory.
type Amounts = BTreeMap<String, u64>;

/// The policy on one machine.
#[derive(Clone, Debug)]
pub(super) struct StaticPolicy {
    machine: NumaNodes,
    reserved: Reserved,
}

/// Memory that a container asks for. Upstream's `getRequestedResources`.
fn requested(container: &Container) -> Amounts {
    let requests = container.resources.iter().flat_map(|resources| resources.requests.iter().flatten());
    let bytes = |text: &str| text.parse::<Quantity>().ok().and_then(|amount| u64::try_from(amount.value()).ok());
    let memory = requests.filter(|(kind, _)| is_memory(kind));
    memory.filter_map(|(kind, amount)| Some((kind.clone(), bytes(&amount.0)?))).collect()
}

/// Memory that a pod's containers ask for together. Upstream's `getPodRequestedResources`.
fn requested_together(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let kinds = spec.containers.iter().flat_map(|container| requested(container).into_keys());
    let peak = |kind: String| {
        let of = |container: &Container| requested(container).get(&kind).copied().unwrap_or(0);
        let bytes = at_peak(spec, of, u64::saturating_add, u64::max);
        (kind, bytes)
    };
    kinds.map(peak).collect()
}

/// Reports whether a pod has memory to itself at all.
fn is_exclusive(pod: &Pod) -> bool {
    qos_class(pod) == QosClass::Guaranteed && pod.spec.as_ref().is_some_and(|spec| spec.resources.is_none())
}

fn owner(pod: &Pod, container: &Container) -> Owner {
    (pods::uid(pod).to_owned(), container.name.clone())
}

fn sum(state: &State, mask: NodeMask, kind: &str, of: impl Fn(&Table) -> u64) -> u64 {
    let tables = mask.nodes().filter_map(|node| state.machine.get(&node)?.memory_map.get(kind));
    tables.map(of).fold(0, u64::saturating_add)
}

/// Memory of nodes that a container can take over from the pod's init containers.
fn reusable(state: &State, pod: &Pod, container: Option<&str>, mask: NodeMask, kind: &str) -> u64 {
    let before = pods::by_start(pod).take_while(|(other, _)| container != Some(other.name.as_str()));
    let ended = before.filter(|(_, is_passed_on)| *is_passed_on);
    let blocks = ended.filter_map(|(other, _)| state.blocks.get(&owner(pod, other))).flatten();
    let own = blocks.filter(|block| block.kind == kind && nodes(block) == mask);
    own.map(|block| block.size).fold(0, u64::saturating_add)
}

fn nodes(block: &Block) -> NodeMask {
    block.numa_affinity.iter().copied().collect()
}

/// Reports whether some nodes may give memory together, or one alone, besides what they give already. Upstream's
/// `isAffinityViolatingNUMAAllocations`, without single nodes.
fn may_group(state: &State, mask: NodeMask) -> bool {
    let used = mask.nodes().filter_map(|node| state.machine.get(&node)).filter(|node| node.number_of_assignments > 0);
    let group = |node: &NumaNode| node.cells.iter().copied().collect::<NodeMask>();
    mask.count() == 1 || used.into_iter().all(|node| node.cells.len() > 1 && group(node) == mask)
}

/// The best of some placements: a preferred one, then the narrowest.
fn best(hints: impl IntoIterator<Item = Hint>) -> Option<(NodeMask, bool)> {
    let placed = hints.into_iter().filter_map(|hint| Some((hint.affinity?, hint.preferred)));
    placed.min_by(|one, other| Reverse(one.1).cmp(&Reverse(other.1)).then_with(|| one.0.by_width(&other.0)))
}

impl StaticPolicy {
    /// The policy for a machine.
    ///
    /// # Errors
    /// No memory is reserved for the system; upstream's text.
    pub(super) fn new(machine: NumaNodes, reserved: Reserved) -> Result<Self, ReservationError> {
        if reserved.values().filter_map(|node| node.get(MEMORY)).all(|bytes| *bytes == 0) {
            return Err(ReservationError::Nothing);
        }
        Ok(Self { machine, reserved })
    }

    /// The machine with nothing given away. Upstream's `getDefaultMachineState`.
    fn untouched(&self) -> BTreeMap<u32, NumaNode> {
        let node = |(id, node): (&u32, &crate::topology::machine::NumaNode)| {
            let reserved = |kind: &str| self.reserved.get(id).and_then(|own| own.get(kind)).copied().unwrap_or(0);
            let table = |kind: &str, total: u64, usable: u64| {
                let system_reserved = reserved(kind);
                let allocatable = usable.saturating_sub(system_reserved);
                Table { total, system_reserved, allocatable, reserved: 0, free: allocatable }
            };
            let mut memory_map = BTreeMap::new();
            let mut huge = 0_u64;
            for (size, pages) in &node.hugepages {
                let (kind, bytes) = (format!("hugepages-{}", page_size(*size)), size.saturating_mul(*pages));
                huge = huge.saturating_add(bytes);
                memory_map.insert(kind.clone(), table(&kind, bytes, bytes));
            }
            memory_map.insert(MEMORY.to_owned(), table(MEMORY, node.memory, node.memory.saturating_sub(huge)));
            (*id, NumaNode { number_of_assignments: 0, memory_map, cells: vec![*id] })
        };
        self.machine.0.iter().map(node).collect()
    }

    /// The state to start with: as it was left, or with everything free. Upstream's `validateState`.
    ///
    /// # Errors
    /// It was left on another machine, or with another reservation; upstream's texts.
    pub(super) fn start(&self, left: Option<State>) -> Result<State, StateError> {
        let left = left.unwrap_or_default();
        let mut expected = State { machine: self.untouched(), blocks: BTreeMap::new() };
        if left.machine.is_empty() {
            if !left.blocks.is_empty() {
                return Err(StateError::NoMachine);
            }
            return Ok(expected);
        }
        for ((uid, container), blocks) in &left.blocks {
            for block in blocks {
                let unknown = |what| StateError::Unknown { uid: uid.clone(), container: container.clone(), what };
                for id in &block.numa_affinity {
                    let node = expected.machine.get(id).ok_or_else(|| unknown("the NUMA that does not exist"))?;
                    if !node.memory_map.contains_key(&block.kind) {
                        return Err(unknown("memory resource that does not exist"));
                    }
                }
                give(&mut expected, nodes(block), &block.kind, block.size);
            }
        }
        if !is_same_machine(&left.machine, &expected.machine) {
            return Err(StateError::OtherMachine);
        }
        Ok(left)
    }

    /// Sets of nodes that can give some memory. Upstream's `calculateHints`.
    fn placements(&self, state: &State, pod: &Pod, container: Option<&str>, wanted: &Amounts) -> Vec<Hint> {
        let ids: Vec<u32> = state.machine.keys().copied().collect();
        let mut least = ids.len();
        let mut masks = Vec::new();
        for mask in NodeMask::combinations(&ids) {
            let has = |(kind, bytes): (&String, &u64)| sum(state, mask, kind, |table| table.allocatable) >= *bytes;
            if !wanted.iter().all(has) {
                continue;
            }
            least = least.min(mask.nodes().count());
            let is_grouped = |node: u32| state.machine.get(&node).is_some_and(|node| node.cells.len() > 1);
            if mask.count() == 1 && mask.nodes().any(is_grouped) || !may_group(state, mask) {
                continue;
            }
            let is_free = |(kind, bytes): (&String, &u64)| {
                let own = reusable(state, pod, container, mask, kind);
                sum(state, mask, kind, |table| table.free).saturating_add(own) >= *bytes
            };
            if wanted.iter().all(is_free) {
                masks.push(mask);
            }
        }
        prefer(masks, |mask| mask.nodes().count() == least)
    }

    fn by_kind(wanted: &Amounts, list: &[Hint]) -> Hints {
        if list.is_empty() {
            return Hints::new();
        }
        wanted.keys().map(|kind| (kind.clone(), Some(list.to_vec()))).collect()
    }

    /// Placements of what is given already; none in particular where it is not what is asked for. Upstream's
    /// `regenerateHints`.
    fn told(blocks: &[Block], wanted: &Amounts) -> Hints {
        if blocks.len() != wanted.len() || blocks.iter().any(|block| wanted.get(&block.kind) != Some(&block.size)) {
            return Hints::new();
        }
        let hint = |block: &Block| Some(vec![Hint { affinity: Some(nodes(block)), preferred: true }]);
        blocks.iter().map(|block| (block.kind.clone(), hint(block))).collect()
    }

    /// Possible placements of a container's memory. Upstream's `GetTopologyHints`.
    pub(super) fn hints(&self, state: &State, pod: &Pod, container: &Container) -> Hints {
        if !is_exclusive(pod) {
            return Hints::new();
        }
        let wanted = requested(container);
        match state.blocks.get(&owner(pod, container)) {
            Some(blocks) => Self::told(blocks, &wanted),
            None => Self::by_kind(&wanted, &self.placements(state, pod, Some(&container.name), &wanted)),
        }
    }

    /// Possible placements of the memory of all of a pod's containers. Upstream's `GetPodTopologyHints`.
    pub(super) fn pod_hints(&self, state: &State, pod: &Pod) -> Hints {
        if !is_exclusive(pod) {
            return Hints::new();
        }
        let wanted = requested_together(pod);
        let given = pods::by_start(pod).find_map(|(container, _)| state.blocks.get(&owner(pod, container)));
        match given {
            Some(blocks) => Self::told(blocks, &wanted),
            None => Self::by_kind(&wanted, &self.placements(state, pod, None, &wanted)),
        }
    }

    /// Gives a container of a guaranteed pod its memory; one that has some keeps it.
    ///
    /// # Errors
    /// The nodes have not enough; upstream's texts.
    pub(super) fn allocate(
        &self,
        state: &mut State,
        pod: &Pod,
        container: &Container,
        hint: Hint,
    ) -> Result<(), Refusal> {
        if !is_exclusive(pod) || state.blocks.contains_key(&owner(pod, container)) {
            return Ok(());
        }
        let wanted = requested(container);
        let chosen = self.choose(state, pod, &container.name, &wanted, hint);
        metrics::memory(chosen.is_err());
        let mask = chosen.map_err(|error| Refusal::unexpected(format!("[memorymanager] {error}")))?;
        let mut blocks = Vec::new();
        for (kind, bytes) in wanted {
            let own = reusable(state, pod, Some(&container.name), mask, &kind);
            give(state, mask, &kind, bytes.saturating_sub(own));
            blocks.push(Block { numa_affinity: mask.nodes().collect(), kind, size: bytes });
        }
        take_over(state, pod, container, &blocks);
        state.blocks.insert(owner(pod, container), blocks);
        Ok(())
    }

    /// The nodes that give a container its memory: those of the placement, with others where they have not enough.
    fn choose(
        &self,
        state: &State,
        pod: &Pod,
        container: &str,
        wanted: &Amounts,
        hint: Hint,
    ) -> Result<NodeMask, &'static str> {
        let placements = || self.placements(state, pod, Some(container), wanted);
        let (mut mask, mut is_preferred) = (hint.affinity.unwrap_or_default(), hint.preferred);
        if hint.affinity.is_none() {
            let found = best(placements());
            let none = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available";
            let found = found.ok_or(none)?;
            if is_preferred && !found.1 {
                return Err("failed to find the default preferred hint");
            }
            (mask, is_preferred) = found;
        }
        if wanted.iter().any(|(kind, bytes)| sum(state, mask, kind, |table| table.free) < *bytes) {
            let wider =
                best(placements().into_iter().filter(|hint| hint.affinity.is_some_and(|all| all.is_superset(mask))));
            let wider = wider.ok_or("failed to find NUMA nodes to extend the current topology hint")?;
            if is_preferred && !wider.1 {
                return Err("failed to find the extended preferred hint");
            }
            mask = wider.0;
        }
        if may_group(state, mask) { Ok(mask) } else { Err("preferred hint violates NUMA node allocation") }
    }

    /// Takes back what a pod has. Reports whether it had some.
    pub(super) fn release(state: &mut State, is_there: impl Fn(&str) -> bool) -> bool {
        let gone: Vec<Owner> = state.blocks.keys().filter(|(uid, _)| !is_there(uid)).cloned().collect();
        for owner in &gone {
            for block in state.blocks.remove(owner).unwrap_or_default() {
                take_back(state, &block);
            }
        }
        !gone.is_empty()
    }
}

/// Gives memory of nodes away, of each as much as it has, in order. Upstream's `updateMachineState`.
fn give(state: &mut State, mask: NodeMask, kind: &str, mut bytes: u64) {
    for id in mask.nodes() {
        let Some(node) = state.machine.get_mut(&id) else { continue };
        node.number_of_assignments += 1;
        node.cells = mask.nodes().collect();
        let Some(table) = node.memory_map.get_mut(kind) else { continue };
        let here = bytes.min(table.free);
        table.free -= here;
        table.reserved += here;
        bytes -= here;
    }
}

fn take_back(state: &mut State, block: &Block) {
    let mut bytes = block.size;
    for id in &block.numa_affinity {
        let Some(node) = state.machine.get_mut(id) else { continue };
        node.number_of_assignments -= 1;
        if node.number_of_assignments == 0 {
            node.cells = vec![*id];
        }
        let Some(table) = node.memory_map.get_mut(&block.kind) else { continue };
        let here = bytes.min(table.reserved);
        table.reserved -= here;
        table.free += here;
        bytes -= here;
    }
}

/// Makes the blocks of init containers smaller by what a container takes over, so that a pod's blocks together are what it
/// has. Upstream's `updateInitContainersMemoryBlocks`.
fn take_over(state: &mut State, pod: &Pod, container: &Container, blocks: &[Block]) {
    let before = pods::by_start(pod).take_while(|(other, _)| other.name != container.name);
    let ended: Vec<Owner> =
        before.filter(|(_, is_passed_on)| *is_passed_on).map(|(other, _)| owner(pod, other)).collect();
    for block in blocks {
        let mut bytes = block.size;
        for owner in &ended {
            for own in state.blocks.get_mut(owner).into_iter().flatten() {
                if own.kind == block.kind && nodes(own) == nodes(block) {
                    let here = bytes.min(own.size);
                    own.size -= here;
                    bytes -= here;
                }
            }
        }
    }
}

/// Reports whether two descriptions are of one machine with the same memory given away. Upstream's `areMachineStatesEqual`.
fn is_same_machine(one: &BTreeMap<u32, NumaNode>, other: &BTreeMap<u32, NumaNode>) -> bool {
    let cells = |node: &NumaNode| node.cells.iter().copied().collect::<NodeMask>();
    let given = |machine: &BTreeMap<u32, NumaNode>, node: &NumaNode, kind: &str| {
        let tables = node.cells.iter().filter_map(|id| machine.get(id)?.memory_map.get(kind));
        tables.fold((0_u64, 0_u64), |(free, reserved), table| {
            (free.saturating_add(table.free), reserved.saturating_add(table.reserved))
        })
    };
    let is_same = |(id, node): (&u32, &NumaNode)| {
        let Some(twin) = other.get(id) else { return false };
        let tables = node.memory_map.iter().all(|(kind, table)| {
            let fixed = |table: &Table| (table.total, table.system_reserved, table.allocatable);
            let is_alike = twin.memory_map.get(kind).is_some_and(|twin| fixed(twin) == fixed(table));
            is_alike && given(one, node, kind) == given(other, node, kind)
        });
        let is_alike = node.number_of_assignments == twin.number_of_assignments && cells(node) == cells(twin);
        is_alike && tables && node.memory_map.len() == twin.memory_map.len()
    };
    one.len() == other.len() && one.iter().all(is_same)
}

#[cfg(test)]
mod tests;
