//! Node ports: one bitmap in etcd (`/registry/ranges/servicenodeports`), changed under its revision. Answers for
//! upstream's `pkg/registry/core/service/portallocator`.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proto::resources::Resource;
use proto::{Value, protobuf, schema};
use rand::Rng;
use serde_json::json;

use super::allocator_meters::{self, AllocationScope};
use crate::machinery::GroupResource;
use crate::registry::core::service::SERVICES;
use crate::rest::AllocationStorage;
use crate::storage::{Stored, WriteResult};

/// Rounds of a change that keeps losing races.
const ROUNDS: usize = 32;

/// Reasons for which a port was not allocated. The texts end up in the `nodePort` error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortError {
    /// Outside the range.
    #[error("provided port is not in the valid range. The range of valid ports is {0}")]
    Range(PortRange),
    /// Taken.
    #[error("provided port is already allocated")]
    AllocatedAddresses,
    /// The range is full.
    #[error("range is full")]
    Full,
    /// etcd failed.
    #[error("{0}")]
    Storage(String),
}

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// Reads `30000-32767`, `30000+2767` or a single port.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, last) = match (text.split_once('-'), text.split_once('+')) {
            (Some((a, b)), _) => (a.trim().parse().ok()?, b.trim().parse().ok()?),
            (None, Some((a, n))) => {
                let first: u16 = a.trim().parse().ok()?;
                (first, first.checked_add(n.trim().parse().ok()?)?)
            }
            (None, None) => (text.trim().parse().ok()?, text.trim().parse().ok()?),
        };
        (first <= last).then_some(Self { first, last })
    }

    fn len(self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// One of its ports.
    pub(super) fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn index(self, port: u16) -> usize {
        usize::from(port.saturating_sub(self.first))
    }

    fn port(self, index: usize) -> u16 {
        self.first.saturating_add(u16::try_from(index).unwrap_or(u16::MAX))
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Allocated ports of a range. Bit `i` of the number stands for port `first + i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bitmap(Vec<bool>);

impl Bitmap {
    /// From the bytes of a big-endian number.
    fn parse(bytes: &[u8], len: usize) -> Self {
        let mut bits: Vec<bool> = bytes.iter().rev().flat_map(|b| (0..8).map(move |i| b >> i & 1 == 1)).collect();
        bits.resize(len, false);
        Self(bits)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out: Vec<u8> =
            self.0.chunks(8).map(|c| c.iter().enumerate().fold(0, |b, (i, set)| b | u8::from(*set) << i)).collect();
        while out.last() == Some(&0) {
            out.pop();
        }
        out.reverse();
        out
    }
}

/// A free port, from above the static band first.
fn pick(taken: &BTreeSet<u16>, range: PortRange) -> Option<u16> {
    let band = match range.len() {
        n if n <= 16 => 0,
        n => (n / 32).clamp(16, 128),
    };
    for part in [band..range.len(), 0..band] {
        let free = || part.clone().map(|i| range.port(i)).filter(|port| !taken.contains(port));
        let count = free().count();
        if count > 0 {
            return free().nth(rand::rng().random_range(0..count));
        }
    }
    None
}

/// The ports that are taken, as they are stored.
pub(super) struct StoredPorts {
    pub(super) taken: BTreeSet<u16>,
    /// The object that says so, as it was.
    object: Value,
    /// Revision of the stored object; 0 where there is none yet.
    revision: i64,
}

fn failed(why: impl ToString) -> PortError {
    PortError::Storage(why.to_string())
}

fn schema() -> Result<&'static schema::Message, PortError> {
    schema::kind("", "v1", "RangeAllocation").ok_or_else(|| failed("no RangeAllocation"))
}

/// Ports of a stored bitmap; its range is `ours` unless it names another.
fn ports_in(object: &Value, ours: PortRange) -> Result<BTreeSet<u16>, PortError> {
    let range = object["range"].as_str().and_then(PortRange::parse).unwrap_or(ours);
    let data = BASE64.decode(object["data"].as_str().unwrap_or("")).map_err(failed)?;
    let bitmap = Bitmap::parse(&data, range.len());
    Ok(bitmap.0.iter().enumerate().filter(|(_, taken)| **taken).map(|(i, _)| range.port(i)).collect())
}

fn read(stored: Option<&Stored>, ours: PortRange) -> Result<StoredPorts, PortError> {
    let Some(stored) = stored else {
        return Ok(StoredPorts { taken: BTreeSet::new(), object: json!({}), revision: 0 });
    };
    let object = if stored.value.starts_with(b"k8s\0") {
        let envelope = protobuf::unwrap(&stored.value).map_err(failed)?;
        protobuf::decode(schema()?, envelope.raw).map_err(failed)?
    } else {
        serde_json::from_slice(&stored.value).map_err(failed)?
    };
    Ok(StoredPorts { taken: ports_in(&object, ours)?, object, revision: stored.revision })
}

fn key(backend: &AllocationStorage) -> String {
    backend.store.key("/registry/ranges/servicenodeports")
}

/// Reads the allocated ports.
pub(super) async fn stock(backend: &AllocationStorage, ours: PortRange) -> Result<StoredPorts, PortError> {
    let (found, _) = backend.store.get(&key(backend)).await.map_err(failed)?;
    read(found.as_ref(), ours)
}

/// Stores that these of our ports are taken, unless somebody else wrote since the stock was read: then what there is is
/// returned.
pub(super) async fn restock(
    backend: &AllocationStorage,
    ours: PortRange,
    stock: StoredPorts,
    taken: &BTreeSet<u16>,
) -> Result<Option<StoredPorts>, PortError> {
    let mut bitmap = Bitmap::parse(&[], ours.len());
    taken.iter().filter(|port| ours.contains(**port)).for_each(|port| bitmap.0[ours.index(*port)] = true);
    let mut object = stock.object.clone();
    object["range"] = Value::from(ours.to_string());
    object["data"] = Value::from(BASE64.encode(bitmap.bytes()));
    if object != stock.object || stock.revision == 0 {
        let bytes = protobuf::wrap("v1", "RangeAllocation", &protobuf::encode(schema()?, &object));
        let written = backend.store.put_if(&key(backend), bytes, stock.revision, None).await.map_err(failed)?;
        if let WriteResult::Lost(there) = written {
            return read(there.as_ref(), ours).map(Some);
        }
    }
    let count = bitmap.0.iter().filter(|taken| **taken).count();
    allocator_meters::ports(count, ours.len() - count);
    Ok(None)
}

async fn change<T>(
    backend: &AllocationStorage,
    ours: PortRange,
    mut f: impl FnMut(&mut BTreeSet<u16>) -> Result<T, PortError>,
) -> Result<T, PortError> {
    let mut there = stock(backend, ours).await?;
    for _ in 0..ROUNDS {
        let mut taken = there.taken.clone();
        let result = f(&mut taken)?;
        match restock(backend, ours, there, &taken).await? {
            None => return Ok(result),
            Some(now) => there = now,
        }
    }
    Err(failed("the node port range is too busy"))
}

/// Somebody has a port of the range.
pub(super) async fn is_taken(backend: &AllocationStorage, range: PortRange, port: i64) -> Result<bool, PortError> {
    let Some(port) = u16::try_from(port).ok().filter(|port| range.contains(*port)) else { return Ok(false) };
    Ok(stock(backend, range).await?.taken.contains(&port))
}

/// Takes a given port.
pub(crate) async fn allocate(backend: &AllocationStorage, range: PortRange, port: u16) -> Result<(), PortError> {
    let taken = allocate_port(backend, range, port).await;
    allocator_meters::port(AllocationScope::Static, taken.is_ok());
    taken
}

async fn allocate_port(backend: &AllocationStorage, range: PortRange, port: u16) -> Result<(), PortError> {
    if !range.contains(port) {
        return Err(PortError::Range(range));
    }
    change(backend, range, |taken| if taken.insert(port) { Ok(()) } else { Err(PortError::AllocatedAddresses) }).await
}

/// Takes any port.
pub(crate) async fn allocate_next(backend: &AllocationStorage, range: PortRange) -> Result<u16, PortError> {
    let taken = change(backend, range, |taken| {
        let port = pick(taken, range).ok_or(PortError::Full)?;
        taken.insert(port);
        Ok(port)
    })
    .await;
    allocator_meters::port(AllocationScope::Dynamic, taken.is_ok());
    taken
}

/// Gives ports back.
pub(crate) async fn release(backend: &AllocationStorage, range: PortRange, ports: &[u16]) {
    if ports.is_empty() {
        return;
    }
    let outcome = change(backend, range, |taken| {
        taken.retain(|port| !ports.contains(port));
        Ok(())
    })
    .await;
    if let Err(error) = outcome {
        tracing::warn!(%error, ?ports, "Failed to release node ports");
    }
}

/// The type of the row, so that callers can tell services apart.
pub(crate) fn is_service(row: &Resource) -> bool {
    GroupResource::of(row) == SERVICES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmap_is_a_big_endian_number() {
        let mut b = Bitmap::parse(&[], 2768);
        b.0[0] = true;
        b.0[9] = true;
        assert_eq!(b.bytes(), [0x02, 0x01]);
        assert_eq!(Bitmap::parse(&[0x02, 0x01], 2768), b);
    }

    #[test]
    fn ranges() {
        assert_eq!(PortRange::parse("30000-32767"), Some(PortRange { first: 30000, last: 32767 }));
        assert_eq!(PortRange::parse("30000+10"), Some(PortRange { first: 30000, last: 30010 }));
        assert_eq!(PortRange::parse("9-1"), None);
    }

    #[test]
    fn dynamic_ports_prefer_the_upper_band() {
        let (range, mut taken) = (PortRange { first: 100, last: 199 }, BTreeSet::new());
        for _ in 0..84 {
            let port = pick(&taken, range).expect("free");
            assert!(port >= 116 && taken.insert(port));
        }
        assert!(pick(&taken, range).expect("free") < 116);
        taken.extend(100..=199);
        assert_eq!(pick(&taken, range), None);
    }

    #[test]
    fn ports_of_another_range_are_the_same_ports() {
        let ours = PortRange { first: 30010, last: 30020 };
        let object = json!({"range": "30000-32767", "data": BASE64.encode([0x18, 0x01])});
        assert_eq!(ports_in(&object, ours), Ok([30000, 30011, 30012].into()));
        assert_eq!(ports_in(&json!({"data": BASE64.encode([0x01])}), ours), Ok([30010].into()));
        assert_eq!(ports_in(&json!({}), ours), Ok(BTreeSet::new()));
    }
}
