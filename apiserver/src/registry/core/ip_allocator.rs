//! Cluster addresses. An address is taken by creating an IPAddress object of its name: etcd decides who was first, so
//! any number of servers may allocate from the same range.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use ipnet::IpNet;
use parking_lot::Mutex;
use proto::Value;
use rand::Rng;
use serde_json::json;
use shared::address;

use super::allocator_meters::{self, Chosen};
use crate::cache::Since;
use crate::negotiate::Media;
use crate::registry::{builtin, meta};
use crate::storage::{Written, codec};
use crate::verbs::engine::Engine;

/// Attempts to hit a free address by chance before giving up.
const ATTEMPTS: usize = 4096;

/// Says who took an address.
pub(super) const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// What this says of those that were taken for services.
pub(super) const MANAGER: &str = "ipallocator.k8s.io";

/// Why an address was not allocated. The texts end up in the `spec.clusterIPs` error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpError {
    /// Outside the range.
    #[error("the provided network does not match the current range")]
    Range,
    /// Taken.
    #[error("provided IP is already allocated")]
    Taken,
    /// Nothing left.
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

/// True when an address may be given out of a range.
fn contains(net: &IpNet, ip: IpAddr) -> bool {
    net.contains(&ip) && ip != net.network() && !(ip.is_ipv4() && ip == net.broadcast())
}

fn object(ip: IpAddr, namespace: &str, name: &str) -> Value {
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {
            "name": ip.to_string(), "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": meta::now(),
            "labels": {"ipaddress.kubernetes.io/ip-family": family, MANAGED_BY: MANAGER},
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
    })
}

/// Takes an address; false when it was.
pub(super) async fn take(engine: &Engine, ip: IpAddr, namespace: &str, name: &str) -> Result<bool, IpError> {
    let storage = |e: String| IpError::Storage(e);
    let row = builtin("networking.k8s.io", "ipaddresses").ok_or(IpError::Full)?;
    let bytes =
        codec::encode(&row, &object(ip, namespace, name), Media::default()).map_err(|e| storage(e.to_string()))?;
    let written = engine
        .store
        .create(&engine.key(&row, "", &ip.to_string()), bytes, None)
        .await
        .map_err(|e| storage(e.to_string()))?;
    match written {
        Written::Done(_) => Ok(true),
        // A service that is created again may find its own address.
        Written::Lost(Some(there)) => {
            let parent =
                codec::decode(&row, &there.value, 0).map_err(|e| storage(e.to_string()))?["spec"]["parentRef"].take();
            Ok(parent["namespace"] == namespace && parent["name"] == name && name == "kubernetes")
        }
        Written::Lost(None) => Ok(false),
    }
}

/// Takes a given address.
pub async fn allocate(engine: &Engine, net: &IpNet, ip: IpAddr, namespace: &str, name: &str) -> Result<(), IpError> {
    let since = Instant::now();
    let taken = if contains(net, ip) { take(engine, ip, namespace, name).await } else { Err(IpError::Range) };
    allocator_meters::address(net, Chosen::Static, since, taken == Ok(true));
    if taken? { Ok(()) } else { Err(IpError::Taken) }
}

/// Takes any address, from above the static band first.
pub async fn allocate_next(engine: &Engine, net: &IpNet, namespace: &str, name: &str) -> Result<IpAddr, IpError> {
    let since = Instant::now();
    let found = free(engine, net, namespace, name).await;
    allocator_meters::address(net, Chosen::Dynamic, since, found.is_ok());
    found
}

async fn free(engine: &Engine, net: &IpNet, namespace: &str, name: &str) -> Result<IpAddr, IpError> {
    let size = size(net);
    let band = static_band(size);
    for attempt in 0..ATTEMPTS {
        // Half of the attempts in the upper part; then anywhere, in order when the range is small.
        let n = if attempt < ATTEMPTS / 2 && size > band {
            rand::rng().random_range(band..size)
        } else if size <= ATTEMPTS as u64 / 2 {
            attempt as u64 % size.max(1)
        } else {
            rand::rng().random_range(0..size)
        };
        let ip = nth(net, n + 1);
        if contains(net, ip) && take(engine, ip, namespace, name).await? {
            return Ok(ip);
        }
    }
    Err(IpError::Full)
}

/// The addresses that are taken, as far as the cache has told.
#[derive(Debug, Default)]
pub struct Taken {
    sequence: u64,
    addresses: HashSet<IpAddr>,
}

impl Taken {
    /// Follows what has changed since the last time.
    fn follow(&mut self, news: Since) {
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
pub fn publish(engine: &Engine, ranges: &[IpNet], taken: &Mutex<Taken>) {
    let Some(cacher) = builtin("networking.k8s.io", "ipaddresses").and_then(|row| engine.hub.running(&row)) else {
        return;
    };
    let mut taken = taken.lock();
    let news = cacher.since(taken.sequence);
    if news.sequence == taken.sequence && !news.complete {
        return;
    }
    taken.follow(news);
    for range in ranges {
        allocator_meters::addresses(range, taken.within(range), size(range));
    }
}

/// The first address of a range: that of the Service `kubernetes`.
pub fn first(net: &IpNet) -> IpAddr {
    nth(net, 1)
}

/// An address as dry runs show it: plausible, not taken.
pub fn preview(net: &IpNet) -> IpAddr {
    let size = size(net).max(1);
    nth(net, rand::rng().random_range(static_band(size).min(size - 1)..size) + 1)
}

/// Gives an address back, however it is spelled.
pub async fn release(engine: &Engine, ip: &str) {
    let (Some(row), Some(address)) = (builtin("networking.k8s.io", "ipaddresses"), address::ip(ip)) else { return };
    let key = engine.key(&row, "", &address.to_string());
    if let Ok((Some(there), _)) = engine.store.get(&key).await
        && let Err(error) = engine.store.delete_if(&key, there.revision).await
    {
        tracing::warn!(%error, ip, "releasing a cluster address failed");
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
        assert!(!contains(&net, "10.96.0.0".parse().expect("ip")) && !contains(&net, "1.2.3.4".parse().expect("ip")));
        assert_eq!(static_band(14), 0);
        for _ in 0..100 {
            assert!(contains(&net, preview(&net)));
        }
    }

    #[test]
    fn taken_addresses_are_followed() {
        let entry = |name: &str| {
            let raw = crate::cache::Raw::Json(bytes::Bytes::new());
            std::sync::Arc::new(crate::cache::Entry::new(name, 1, raw, Vec::new(), std::iter::empty()))
        };
        let net: IpNet = "10.96.0.0/12".parse().expect("net");
        let mut taken = Taken::default();
        for (complete, entries, want) in [
            (true, vec![("10.96.0.1", false), ("10.97.0.1", false), ("192.0.2.1", false), ("odd", false)], 2),
            (false, vec![("10.96.0.1", false), ("10.96.0.9", false)], 3),
            (false, vec![("10.96.0.9", true), ("10.96.0.8", true)], 2),
            (true, vec![("10.96.0.1", false)], 1),
        ] {
            let entries = entries.into_iter().map(|(name, gone)| (entry(name), gone)).collect();
            taken.follow(Since { sequence: taken.sequence + 1, complete, entries });
            assert_eq!(taken.within(&net), want);
        }
    }
}
