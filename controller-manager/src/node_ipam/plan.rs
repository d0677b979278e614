//! Pod address ranges for nodes: equal blocks cut from the cluster's ranges.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::engine::action::{Action, PatchKind};
use crate::engine::object;

/// The blocks of one cluster range, with those in use marked.
#[derive(Debug)]
pub struct CidrSet {
    range: IpNet,
    mask: u8,
    used: Vec<bool>,
    next: usize,
    tries: usize,
}

/// Why a set cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CidrError {
    /// Blocks larger than the range, or more than can be tracked.
    #[error("New CIDR set failed; the node CIDR size is too big")]
    TooBig,
}

impl CidrSet {
    /// All blocks of `mask` bits in `range` are free.
    pub fn new(range: IpNet, mask: u8) -> Result<Self, CidrError> {
        let bits = mask.checked_sub(range.prefix_len()).filter(|b| *b <= 16 && mask <= range.max_prefix_len());
        let bits = bits.ok_or(CidrError::TooBig)?;
        Ok(Self { range: range.trunc(), mask, used: vec![false; 1 << bits], next: 0, tries: 0 })
    }

    /// How many blocks there are.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.used.len()
    }

    /// How many blocks are in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.used.iter().filter(|u| **u).count()
    }

    /// How many blocks in use the last allocation came across.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "at most 65,536 blocks")]
    pub fn tries(&self) -> f64 {
        self.tries as f64
    }

    /// The range the blocks are cut from.
    #[must_use]
    pub fn range(&self) -> IpNet {
        self.range
    }

    fn number(ip: IpAddr) -> u128 {
        match ip {
            IpAddr::V4(v4) => u128::from(u32::from(v4)),
            IpAddr::V6(v6) => u128::from(v6),
        }
    }

    fn block(&self, index: usize) -> Option<IpNet> {
        let step = u32::from(self.range.max_prefix_len() - self.mask);
        let at = Self::number(self.range.network()) + ((index as u128) << step);
        let ip = match self.range {
            IpNet::V4(_) => IpAddr::V4(u32::try_from(at).ok()?.into()),
            IpNet::V6(_) => IpAddr::V6(at.into()),
        };
        IpNet::new(ip, self.mask).ok()
    }

    /// Take the next free block, going round.
    pub fn allocate(&mut self) -> Option<IpNet> {
        let n = self.used.len();
        let looked = (0..n).find(|i| !self.used[(self.next + i) % n])?;
        let found = (self.next + looked) % n;
        self.tries = looked;
        self.used[found] = true;
        self.next = (found + 1) % n;
        self.block(found)
    }

    fn span(&self, cidr: &IpNet) -> std::ops::Range<usize> {
        let overlap = self.range.contains(cidr) || cidr.contains(&self.range);
        if !overlap {
            return 0..0;
        }
        let step = u32::from(self.range.max_prefix_len() - self.mask);
        let base = Self::number(self.range.network());
        let last = self.used.len() - 1;
        let index =
            |ip: IpAddr| usize::try_from(Self::number(ip).saturating_sub(base) >> step).unwrap_or(last).min(last);
        index(cidr.network())..index(cidr.broadcast()) + 1
    }

    /// Mark all blocks that a range touches as used.
    pub fn occupy(&mut self, cidr: &IpNet) {
        for i in self.span(cidr) {
            self.used[i] = true;
        }
    }

    /// Give the blocks of a range back.
    pub fn release(&mut self, cidr: &IpNet) {
        for i in self.span(cidr) {
            self.used[i] = false;
        }
    }
}

/// The ranges a node has.
#[must_use]
pub fn cidrs_of(node: &Node) -> Vec<IpNet> {
    let Some(spec) = node.spec.as_ref() else { return Vec::new() };
    let listed: Vec<IpNet> = spec.pod_cidrs.iter().flatten().filter_map(|c| c.parse().ok()).collect();
    if listed.is_empty() { spec.pod_cidr.iter().filter_map(|c| c.parse().ok()).collect() } else { listed }
}

/// Give a node one block of each set, if it has none. On exhaustion the node keeps none and is told.
pub fn plan(node: &Node, sets: &mut [CidrSet]) -> Vec<Action> {
    if object::deleting(&node.metadata) {
        return Vec::new();
    }
    let have = cidrs_of(node);
    if !have.is_empty() {
        for (cidr, set) in have.iter().zip(sets.iter_mut()) {
            set.occupy(cidr);
        }
        return Vec::new();
    }
    let mut taken: Vec<IpNet> = Vec::new();
    for i in 0..sets.len() {
        if let Some(cidr) = sets[i].allocate() {
            taken.push(cidr);
        } else {
            for (cidr, set) in taken.iter().zip(sets.iter_mut()) {
                set.release(cidr);
            }
            let name = object::name(&node.metadata);
            let about = object::reference::<Node>(&node.metadata);
            return vec![Action::normal(
                &about,
                "CIDRNotAvailable",
                format!("Node {name} status is now: CIDRNotAvailable"),
            )];
        }
    }
    let texts: Vec<String> = taken.iter().map(ToString::to_string).collect();
    vec![Action::patch::<Node>(
        &node.metadata,
        PatchKind::Strategic,
        json!({"spec": {"podCIDR": texts.first(), "podCIDRs": texts}}),
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(s: &str) -> IpNet {
        s.parse().expect("cidr")
    }

    fn node(name: &str, cidr: Option<&str>) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"podCIDR": cidr}})).expect("node")
    }

    #[test]
    fn blocks_go_round_and_come_back() {
        let mut set = CidrSet::new(net("10.244.0.0/22"), 24).expect("set");
        assert_eq!(set.capacity(), 4);
        assert_eq!(set.allocate(), Some(net("10.244.0.0/24")));
        assert_eq!(set.allocate(), Some(net("10.244.1.0/24")));
        set.release(&net("10.244.0.0/24"));
        assert_eq!(set.allocate(), Some(net("10.244.2.0/24")), "a returned block is not reused at once");
        set.occupy(&net("10.244.3.128/25"));
        assert_eq!(set.allocate(), Some(net("10.244.0.0/24")));
        assert_eq!(set.allocate(), None);
        let mut six = CidrSet::new(net("fd00::/56"), 64).expect("set");
        six.occupy(&net("fd00::/64"));
        assert_eq!(six.allocate(), Some(net("fd00:0:0:1::/64")));
        assert_eq!(CidrSet::new(net("10.0.0.0/24"), 16).err(), Some(CidrError::TooBig));
        assert_eq!(CidrSet::new(net("fd00::/40"), 64).err(), Some(CidrError::TooBig));
    }

    #[test]
    fn nodes_get_one_block_each() {
        let mut sets = [CidrSet::new(net("10.244.0.0/23"), 24).expect("set")];
        assert!(plan(&node("a", Some("10.244.0.0/24")), &mut sets).is_empty());
        let got = plan(&node("b", None), &mut sets);
        let [Action::Patch { path, body, .. }] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!(path, "/api/v1/nodes/b");
        assert_eq!(*body, json!({"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}}));
        let got = plan(&node("c", None), &mut sets);
        assert!(matches!(got.as_slice(), [Action::Event { reason: "CIDRNotAvailable", .. }]), "{got:?}");
    }
}
