//! Cluster addresses. An address is taken by creating an IPAddress object of its name: etcd decides who was first, so
//! any number of servers may allocate from the same ranges ([`super::address_ranges`]). Answers for upstream's
//! `pkg/registry/core/service/ipallocator` (`allocateNextService`).

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use ipnet::IpNet;
use parking_lot::Mutex;
use proto::Value;
use rand::Rng;
use serde_json::json;
use shared::address;
use shared::address::may_be_given;

use super::address_ranges::{self, Range};
use super::allocator_meters::{self, AllocationScope};
use crate::cache::ChangesSince;
use crate::machinery::meta;
use crate::negotiate::Media;
use crate::registry::core::service::SERVICES;
use crate::registry::networking::ip_address::IP_ADDRESSES;
use crate::rest::AllocationStorage;
use crate::storage::{WriteResult, codec};
use crate::verbs::{MANAGER, get, managers};

/// Reasons for which an address was not allocated. The texts end up in the `spec.clusterIPs` error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IpError {
    /// In no range.
    #[error("the provided network does not match the current range")]
    Range,
    /// Outside the range that a dry run looks at.
    #[error("the provided IP ({0}) is not in the valid range. The range of valid IPs is {1}")]
    Outside(IpAddr, IpNet),
    /// Taken.
    #[error("provided IP is already allocated")]
    AllocatedAddresses,
    /// The range is full.
    #[error("range is full")]
    Full,
    /// etcd failed.
    #[error("{0}")]
    Storage(String),
}

/// Number of addresses of a range that may be given out, capped at 2^62.
fn size(net: &IpNet) -> u64 {
    let bits = u32::from(net.max_prefix_len() - net.prefix_len()).min(62);
    let all = 1u64 << bits;
    // The network address is never given out, nor is IPv4's broadcast address.
    all.saturating_sub(if net.addr().is_ipv4() { 2 } else { 1 })
}

/// Addresses at the start of the range that are preferably left to static assignment.
fn static_band(size: u64) -> u64 {
    if size <= 16 { 0 } else { (size / 16).clamp(16, 256) }
}

fn nth(net: &IpNet, n: u64) -> IpAddr {
    match net.network() {
        IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from(u32::from(a).wrapping_add(u32::try_from(n).unwrap_or(u32::MAX)))),
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from(u128::from(a).wrapping_add(u128::from(n)))),
    }
}

/// The name of an address's family.
pub(super) fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Label with the family of an address.
pub(super) const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
/// Label with who looks after an address.
pub(super) const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Value of the managed-by label of IPAddresses of services.
pub(super) const ALLOCATOR: &str = "ipallocator.k8s.io";

/// An address that a service has.
pub(super) fn object(ip: IpAddr, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": ip.to_string(), "labels": {FAMILY: family(ip), MANAGED_BY: ALLOCATOR}},
        "spec": {"parentRef": {"resource": SERVICES.plural, "namespace": namespace, "name": name}},
    })
}

async fn allocate_address(
    backend: &AllocationStorage,
    ip: IpAddr,
    namespace: &str,
    name: &str,
) -> Result<bool, IpError> {
    let storage = |e: String| IpError::Storage(e);
    let row = backend.rows.storage(IP_ADDRESSES).ok_or(IpError::Full)?;
    let mut object = object(ip, namespace, name);
    managers::created(&row, "", &mut object, MANAGER);
    meta::fill(&mut object);
    let bytes = codec::encode(&row, &object, Media::default()).map_err(|e| storage(e.to_string()))?;
    let written = backend
        .store
        .create(&backend.key(&row, &ip.to_string()), bytes, None)
        .await
        .map_err(|e| storage(e.to_string()))?;
    match written {
        WriteResult::Done(_) => Ok(true),
        // A service that is created again may find its own address.
        WriteResult::Lost(Some(there)) => {
            let parent =
                codec::decode(&row, &there.value, 0).map_err(|e| storage(e.to_string()))?["spec"]["parentRef"].take();
            Ok(parent["namespace"] == namespace && parent["name"] == name && name == "kubernetes")
        }
        WriteResult::Lost(None) => Ok(false),
    }
}

/// The ranges to look at; what nothing is found in is read anew before anybody is refused.
async fn ranges(backend: &AllocationStorage, now: bool) -> Result<Vec<Range>, IpError> {
    let all = address_ranges::known(backend, now).await.map_err(|e| IpError::Storage(e.message))?;
    Ok(all.into_iter().filter(|range| range.ready).collect())
}

/// Takes a given address.
pub(crate) async fn allocate(
    backend: &AllocationStorage,
    ip: IpAddr,
    namespace: &str,
    name: &str,
) -> Result<(), IpError> {
    for now in [false, true] {
        let since = Instant::now();
        let Some(range) = ranges(backend, now).await?.into_iter().find(|r| may_be_given(&r.net, ip)) else { continue };
        let taken = allocate_address(backend, ip, namespace, name).await;
        allocator_meters::address(&range.net, AllocationScope::Static, since, taken == Ok(true));
        return if taken? { Ok(()) } else { Err(IpError::AllocatedAddresses) };
    }
    Err(IpError::Range)
}

/// Takes any address of a family, from the first range that has one.
pub(crate) async fn allocate_next(
    backend: &AllocationStorage,
    of: &str,
    namespace: &str,
    name: &str,
) -> Result<IpAddr, IpError> {
    let mut full: Vec<Range> = Vec::new();
    for now in [false, true] {
        for range in ranges(backend, now).await?.into_iter().filter(|r| family(r.net.addr()) == of) {
            if full.contains(&range) {
                continue;
            }
            let since = Instant::now();
            let found = free(backend, &range.net, namespace, name).await;
            allocator_meters::address(&range.net, AllocationScope::Dynamic, since, found.is_ok());
            match found {
                Err(IpError::Full) => full.push(range),
                other => return other,
            }
        }
    }
    Err(IpError::Full)
}

/// Any address of a range, from above the static band first: the first after one chosen by chance that is free.
async fn free(backend: &AllocationStorage, net: &IpNet, namespace: &str, name: &str) -> Result<IpAddr, IpError> {
    let row = backend.rows.storage(IP_ADDRESSES).ok_or(IpError::Full)?;
    let known = backend.caches.cacher(&row);
    get::ready(&known).await.map_err(|e| IpError::Storage(e.message))?;
    let size = size(net);
    let band = static_band(size);
    for (first, count) in [(band, size - band), (0, band)] {
        let chance = if count > 0 { rand::rng().random_range(0..count) } else { 0 };
        for i in 0..count {
            let ip = nth(net, first + (chance + i) % count + 1);
            if known.get(&ip.to_string()).is_none() && allocate_address(backend, ip, namespace, name).await? {
                return Ok(ip);
            }
        }
    }
    Err(IpError::Full)
}

/// Checks an address in a dry run, without looking whether it is allocated.
pub(crate) async fn would_allocate(backend: &AllocationStorage, ip: IpAddr) -> Result<(), IpError> {
    let all = ranges(backend, true).await?;
    let same = |r: &&Range| r.net.addr().is_ipv4() == ip.is_ipv4();
    match all.iter().filter(same).collect::<Vec<_>>().as_slice() {
        [] => Err(IpError::Range),
        some if some.iter().any(|r| may_be_given(&r.net, ip)) => Ok(()),
        [first, ..] => Err(IpError::Outside(ip, first.net)),
    }
}

/// The address that a dry run shows of a family: that of the network, which no service ever has.
pub(crate) async fn would_allocate_next(backend: &AllocationStorage, of: &str) -> Result<IpAddr, IpError> {
    let all = ranges(backend, true).await?;
    all.iter().find(|r| family(r.net.addr()) == of).map(|r| r.net.network()).ok_or(IpError::Full)
}

/// The addresses that are taken, as far as the cache has told.
#[derive(Debug, Default)]
pub(crate) struct AllocatedAddresses {
    sequence: u64,
    addresses: HashSet<IpAddr>,
}

impl AllocatedAddresses {
    /// Follows what has changed since the last time.
    fn apply_changes(&mut self, news: ChangesSince) {
        if news.complete {
            self.addresses.clear();
        }
        for (entry, gone) in news.entries {
            let Ok(address) = entry.name().parse() else { continue };
            if gone {
                self.addresses.remove(&address);
            } else {
                self.addresses.insert(address);
            }
        }
        self.sequence = news.sequence;
    }

    fn within(&self, range: &IpNet) -> u64 {
        self.addresses.iter().filter(|ip| range.contains(*ip)).count() as u64
    }
}

/// Shows how many addresses of the ranges are taken, as far as the cache knows.
pub(crate) fn publish(backend: &AllocationStorage, taken: &Mutex<AllocatedAddresses>) {
    let Some(cacher) = backend.rows.storage(IP_ADDRESSES).and_then(|row| backend.caches.running(&row)) else {
        return;
    };
    let mut taken = taken.lock();
    let news = cacher.since(taken.sequence);
    if news.sequence == taken.sequence && !news.complete {
        return;
    }
    taken.apply_changes(news);
    for Range { net, .. } in address_ranges::cached(backend) {
        allocator_meters::addresses(&net, taken.within(&net), size(&net));
    }
}

/// The first address of a range: that of the Service `kubernetes`.
pub(crate) fn first(net: &IpNet) -> IpAddr {
    nth(net, 1)
}

/// Gives an address back, however it is spelled.
pub(crate) async fn release(backend: &AllocationStorage, ip: &str) {
    let (Some(row), Some(address)) = (backend.rows.storage(IP_ADDRESSES), address::ip(ip)) else {
        return;
    };
    let key = backend.key(&row, &address.to_string());
    if let Ok((Some(there), _)) = backend.store.get(&key).await
        && let Err(error) = backend.store.delete_if(&key, there.revision).await
    {
        tracing::warn!(%error, ip, "Failed to release cluster IP");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let net: IpNet = "10.96.0.0/12".parse().expect("net");
        assert_eq!(size(&net), (1 << 20) - 2);
        assert_eq!(static_band(size(&net)), 256);
        assert_eq!(nth(&net, 1).to_string(), "10.96.0.1");
        assert_eq!(static_band(14), 0);
    }

    #[test]
    fn allocated_addresses_are_tracked() {
        let entry = |name: &str| {
            let raw = crate::cache::Raw::Json(bytes::Bytes::new());
            std::sync::Arc::new(crate::cache::Entry::new(name, 1, raw, Vec::new(), std::iter::empty()))
        };
        let net: IpNet = "10.96.0.0/12".parse().expect("net");
        let mut taken = AllocatedAddresses::default();
        for (complete, entries, want) in [
            (true, vec![("10.96.0.1", false), ("10.97.0.1", false), ("192.0.2.1", false), ("odd", false)], 2),
            (false, vec![("10.96.0.1", false), ("10.96.0.9", false)], 3),
            (false, vec![("10.96.0.9", true), ("10.96.0.8", true)], 2),
            (true, vec![("10.96.0.1", false)], 1),
        ] {
            let entries = entries.into_iter().map(|(name, gone)| (entry(name), gone)).collect();
            taken.apply_changes(ChangesSince { sequence: taken.sequence + 1, complete, entries });
            assert_eq!(taken.within(&net), want);
        }
    }
}
