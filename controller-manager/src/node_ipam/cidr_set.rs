//! Equal blocks cut from one range, with those in use marked. Answers for upstream's
//! `pkg/controller/nodeipam/ipam/cidrset` (`CidrSet`).

use std::net::IpAddr;

use ipnet::IpNet;

/// So many bits may number the blocks of a range: upstream has a bound for IPv6; for IPv4 a range as wide as can be
/// private is cut into single addresses.
const MOST_V6: u8 = 16;
const MOST_V4: u8 = 24;

/// The blocks of one cluster range, with those in use marked.
#[derive(Debug)]
pub struct CidrSet {
    range: IpNet,
    mask: u8,
    used: Vec<bool>,
    /// Number of blocks that are taken.
    taken: usize,
    next: usize,
    tries: usize,
}

/// Reasons why a set cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CidrError {
    /// Blocks larger than the range, or more than can be tracked.
    #[error("New CIDR set failed; the node CIDR size is too big")]
    TooBig,
}

impl CidrSet {
    /// All blocks of `mask` bits in `range` are free.
    pub fn new(range: IpNet, mask: u8) -> Result<Self, CidrError> {
        let most = if range.addr().is_ipv4() { MOST_V4 } else { MOST_V6 };
        let bits = mask.checked_sub(range.prefix_len()).filter(|b| *b <= most && mask <= range.max_prefix_len());
        let bits = bits.ok_or(CidrError::TooBig)?;
        Ok(Self { range: range.trunc(), mask, used: vec![false; 1 << bits], taken: 0, next: 0, tries: 0 })
    }

    /// Number of blocks.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.used.len()
    }

    /// Number of blocks in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.taken
    }

    /// Number of blocks in use that the last allocation came across.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "far fewer blocks than that")]
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
        self.mark(found, true);
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
            self.mark(i, true);
        }
    }

    /// Give the blocks of a range back.
    pub fn release(&mut self, cidr: &IpNet) {
        for i in self.span(cidr) {
            self.mark(i, false);
        }
    }

    fn mark(&mut self, at: usize, used: bool) {
        if std::mem::replace(&mut self.used[at], used) != used {
            self.taken = if used { self.taken + 1 } else { self.taken - 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(s: &str) -> IpNet {
        s.parse().expect("cidr")
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
        assert_eq!(set.in_use(), 4);
        set.occupy(&net("10.244.0.0/16"));
        set.release(&net("10.244.2.0/24"));
        assert_eq!(set.in_use(), 3);
        let mut six = CidrSet::new(net("fd00::/56"), 64).expect("set");
        six.occupy(&net("fd00::/64"));
        assert_eq!(six.allocate(), Some(net("fd00:0:0:1::/64")));
        assert_eq!(CidrSet::new(net("10.0.0.0/24"), 16).err(), Some(CidrError::TooBig));
        assert_eq!(CidrSet::new(net("fd00::/40"), 64).err(), Some(CidrError::TooBig));
        let mut fine = CidrSet::new(net("10.0.0.0/8"), 28).expect("only ranges of IPv6 are bounded by their blocks");
        assert_eq!((fine.capacity(), fine.allocate()), (1 << 20, Some(net("10.0.0.0/28"))));
    }
}
