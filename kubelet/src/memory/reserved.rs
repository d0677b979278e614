//! Memory of NUMA nodes that is the system's and the kubelet's: `reservedMemory`.
//! Answers for `getSystemReservedMemory` and `validateReservedMemory` of upstream's memory manager.

use super::error::ReservationError;
use crate::topology::NumaNodes;
use proto::quantity::Quantity;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const MEMORY: &str = "memory";
const HUGE: &str = "hugepages-";

/// Reports whether a resource is memory.
pub(super) fn is_memory(resource: &str) -> bool {
    resource == MEMORY || resource.starts_with(HUGE)
}

/// An entry of `reservedMemory`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryReservation {
    /// NUMA node.
    pub numa_node: i32,
    /// Amounts by kind of memory.
    pub limits: BTreeMap<String, String>,
}

/// Bytes by node and kind.
pub(super) type Reserved = BTreeMap<u32, BTreeMap<String, u64>>;

fn amount(text: &str) -> Quantity {
    text.parse().unwrap_or_default()
}

/// Checks the entries by themselves. Upstream's `validateReservedMemoryConfiguration`.
pub fn validate(reservations: &[MemoryReservation]) -> Vec<String> {
    let (mut problems, mut known) = (Vec::new(), BTreeSet::new());
    for MemoryReservation { numa_node, limits } in reservations {
        for (kind, text) in limits {
            if !is_memory(kind) {
                problems.push(format!(
                    "invalid configuration: the limit type {kind:?} for NUMA node {numa_node} is not supported, only \
                     [{MEMORY} {HUGE}<HugePageSize>] is accepted"
                ));
            }
            if amount(text).is_zero() {
                problems.push(format!(
                    "invalid configuration: reserved memory may not be zero for NUMA node {numa_node} and resource {kind:?}"
                ));
            }
            if !known.insert((numa_node, kind)) {
                problems.push(format!(
                    "invalid configuration: the reserved memory has a duplicate value for NUMA node {numa_node} and \
                     resource {kind:?}"
                ));
            }
        }
    }
    problems
}

/// Checks the entries against the machine, and their sums against what the node keeps from pods in all. Upstream's
/// `getSystemReservedMemory`.
///
/// # Errors
/// A node is not there, or the sums differ; upstream's texts.
pub(super) fn reserved(
    machine: &NumaNodes,
    kept: &BTreeMap<String, Quantity>,
    reservations: &[MemoryReservation],
) -> Result<Reserved, ReservationError> {
    let mut reserved: Reserved = machine.ids().into_iter().map(|id| (id, BTreeMap::new())).collect();
    let mut sums: BTreeMap<&str, Quantity> = BTreeMap::new();
    for MemoryReservation { numa_node, limits } in reservations {
        let node = u32::try_from(*numa_node).ok().and_then(|id| reserved.get_mut(&id));
        let node = node.ok_or(ReservationError::NoNode(*numa_node))?;
        for (kind, text) in limits {
            let amount = amount(text);
            sums.entry(kind).or_default().add(&amount);
            let bytes = amount.as_i64().and_then(|bytes| u64::try_from(bytes).ok());
            node.insert(kind.clone(), bytes.ok_or(ReservationError::Amount)?);
        }
    }
    let kinds: BTreeSet<&str> =
        sums.keys().copied().chain(kept.keys().map(String::as_str).filter(|kind| is_memory(kind))).collect();
    for kind in kinds {
        let of = |amount: Option<&Quantity>| amount.cloned().unwrap_or_default();
        let (sum, expected) = (of(sums.get(kind)), of(kept.get(kind)));
        if sum != expected {
            let (sum, expected) = (sum.canonical(), expected.canonical());
            return Err(ReservationError::Sum { kind: kind.to_owned(), sum, expected });
        }
    }
    Ok(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(numa_node: i32, limits: &[(&str, &str)]) -> MemoryReservation {
        let limits = limits.iter().map(|(kind, text)| ((*kind).to_owned(), (*text).to_owned())).collect();
        MemoryReservation { numa_node, limits }
    }

    #[test]
    fn entries_are_checked_by_themselves() {
        assert_eq!(validate(&[reservation(0, &[("memory", "1Gi"), ("hugepages-2Mi", "4Mi")])]), Vec::<String>::new());
        let wrong = [reservation(0, &[("cpu", "1"), ("memory", "0")]), reservation(0, &[("memory", "1Gi")])];
        let expected = [
            "invalid configuration: the limit type \"cpu\" for NUMA node 0 is not supported, only [memory \
             hugepages-<HugePageSize>] is accepted",
            "invalid configuration: reserved memory may not be zero for NUMA node 0 and resource \"memory\"",
            "invalid configuration: the reserved memory has a duplicate value for NUMA node 0 and resource \"memory\"",
        ];
        assert_eq!(validate(&wrong), expected);
    }

    #[test]
    fn sums_are_what_the_node_keeps_from_pods() {
        let machine = NumaNodes([(0, Default::default()), (1, Default::default())].into());
        let kept = |text: &str| BTreeMap::from([("memory".to_owned(), amount(text)), ("cpu".to_owned(), amount("1"))]);
        let both = [reservation(0, &[("memory", "1Gi")]), reservation(1, &[("memory", "100Mi")])];
        let found = reserved(&machine, &kept("1124Mi"), &both).expect("as much");
        assert_eq!((found[&0]["memory"], found[&1]["memory"]), (1 << 30, 100 << 20));
        for (kept, entries, expected) in [
            (
                kept("1Gi"),
                &both[..],
                "the total amount \"1124Mi\" of type \"memory\" is not equal to the value \"1Gi\" determined by Node \
                 Allocatable feature",
            ),
            (
                kept("1Gi"),
                &[],
                "the total amount \"0\" of type \"memory\" is not equal to the value \"1Gi\" determined by Node Allocatable \
                 feature",
            ),
            (
                kept("1Gi"),
                &[reservation(2, &[("memory", "1Gi")])],
                "the reserved memory configuration references a NUMA node 2 that does not exist on this machine",
            ),
        ] {
            assert_eq!(reserved(&machine, &kept, entries).expect_err("refused").to_string(), expected);
        }
    }
}
