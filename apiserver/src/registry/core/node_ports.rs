//! Node ports: one bitmap in etcd (`/registry/ranges/servicenodeports`), changed under its revision.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proto::resources::Resource;
use proto::{Value, protobuf, schema};
use rand::Rng;
use serde_json::json;
use shared::metrics;

use super::allocator_meters::{self, Chosen};
use crate::storage::Written;
use crate::verbs::engine::Engine;

/// Rounds of a change that keeps losing races.
const ROUNDS: usize = 32;

/// Why a port was not allocated. The texts end up in the `nodePort` error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Outside the range.
    #[error("provided port is not in the valid range. The range of valid ports is {0}-{1}")]
    Range(u16, u16),
    /// Taken.
    #[error("provided port is already allocated")]
    Taken,
    /// Nothing left.
    #[error("range is full")]
    Full,
    /// etcd failed.
    #[error("{0}")]
    Storage(String),
}

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// Reads `30000-32767`, `30000+2767` or a single port.
    pub fn parse(text: &str) -> Option<Self> {
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
}

/// Which ports of a range are taken. Bit `i` of the number stands for port `first + i`.
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

    /// A free bit, from above the static band first.
    fn pick(&self) -> Option<usize> {
        let band = match self.0.len() {
            n if n <= 16 => 0,
            n => (n / 32).clamp(16, 128),
        };
        for range in [band..self.0.len(), 0..band] {
            let free = range.clone().filter(|i| !self.0[*i]).count();
            if free > 0 {
                let n = rand::rng().random_range(0..free);
                return range.filter(|i| !self.0[*i]).nth(n);
            }
        }
        None
    }
}

/// What was taken, in another range. Ports outside of that are nobody's business.
fn moved(bits: &Bitmap, from: PortRange, to: PortRange) -> Bitmap {
    let taken = |port: u16| {
        let at = port.checked_sub(from.first).map(usize::from);
        at.and_then(|at| bits.0.get(at)).is_some_and(|taken| *taken)
    };
    Bitmap((to.first..=to.last).map(taken).collect())
}

fn decode(stored: &[u8], range: PortRange) -> Result<(Bitmap, Value), PortError> {
    let fail = |e: String| PortError::Storage(e);
    let schema = schema::kind("", "v1", "RangeAllocation").ok_or_else(|| fail("no RangeAllocation".to_owned()))?;
    let value = if stored.starts_with(b"k8s\0") {
        let envelope = protobuf::unwrap(stored).map_err(|e| fail(e.to_string()))?;
        protobuf::decode(schema, envelope.raw).map_err(|e| fail(e.to_string()))?
    } else {
        serde_json::from_slice(stored).map_err(|e| fail(e.to_string()))?
    };
    let data = BASE64.decode(value["data"].as_str().unwrap_or("")).map_err(|e| fail(e.to_string()))?;
    // It may have been written when the flags said something else.
    let written = value["range"].as_str().and_then(PortRange::parse).unwrap_or(range);
    Ok((moved(&Bitmap::parse(&data, written.len()), written, range), value))
}

async fn change<T>(
    engine: &Engine,
    range: PortRange,
    mut f: impl FnMut(&mut Bitmap) -> Result<T, PortError>,
) -> Result<T, PortError> {
    let fail = |e: String| PortError::Storage(e);
    let schema = schema::kind("", "v1", "RangeAllocation").ok_or_else(|| fail("no RangeAllocation".to_owned()))?;
    let key = engine.store.key("/registry/ranges/servicenodeports");
    let (mut found, _) = engine.store.get(&key).await.map_err(|e| fail(e.to_string()))?;
    for _ in 0..ROUNDS {
        let (mut bitmap, mut value, revision) = match &found {
            Some(s) => {
                let (b, v) = decode(&s.value, range)?;
                (b, v, s.revision)
            }
            None => (Bitmap::parse(&[], range.len()), json!({}), 0),
        };
        let before = bitmap.clone();
        let result = f(&mut bitmap)?;
        if bitmap == before && found.is_some() {
            return Ok(result);
        }
        value["range"] = Value::from(format!("{}-{}", range.first, range.last));
        value["data"] = Value::from(BASE64.encode(bitmap.bytes()));
        let bytes = protobuf::wrap("v1", "RangeAllocation", &protobuf::encode(schema, &value));
        match engine.store.put_if(&key, bytes, revision, None).await.map_err(|e| fail(e.to_string()))? {
            Written::Done(_) => {
                let taken = bitmap.0.iter().filter(|taken| **taken).count();
                allocator_meters::ports(taken, range.len() - taken);
                return Ok(result);
            }
            Written::Lost(there) => found = there,
        }
    }
    Err(fail("the node port range is too busy".to_owned()))
}

/// Takes a given port.
pub async fn allocate(engine: &Engine, range: PortRange, port: u16) -> Result<(), PortError> {
    let taken = take(engine, range, port).await;
    allocator_meters::port(Chosen::Static, taken.is_ok());
    taken
}

async fn take(engine: &Engine, range: PortRange, port: u16) -> Result<(), PortError> {
    if !(range.first..=range.last).contains(&port) {
        return Err(PortError::Range(range.first, range.last));
    }
    change(engine, range, |b| {
        let i = usize::from(port - range.first);
        if std::mem::replace(&mut b.0[i], true) { Err(PortError::Taken) } else { Ok(()) }
    })
    .await
}

/// Takes any port.
pub async fn allocate_next(engine: &Engine, range: PortRange) -> Result<u16, PortError> {
    let taken = change(engine, range, |b| {
        let i = b.pick().ok_or(PortError::Full)?;
        b.0[i] = true;
        Ok(range.first + u16::try_from(i).unwrap_or(0))
    })
    .await;
    allocator_meters::port(Chosen::Dynamic, taken.is_ok());
    taken
}

/// Gives ports back.
pub async fn release(engine: &Engine, range: PortRange, ports: &[u16]) {
    if ports.is_empty() {
        return;
    }
    let outcome = change(engine, range, |b| {
        for p in ports.iter().filter(|p| (range.first..=range.last).contains(p)) {
            b.0[usize::from(p - range.first)] = false;
        }
        Ok(())
    })
    .await;
    if let Err(error) = outcome {
        tracing::warn!(%error, ?ports, "releasing node ports failed");
    }
}

/// Rounds in which a port that was taken was nobody's.
pub(super) type Leaks = BTreeMap<u16, u32>;
/// After so many of them it is free.
const LEAKED: u32 = 3;

/// What should be taken, by what services have, and what is nobody's so far.
fn repaired(taken: &Bitmap, range: PortRange, used: &BTreeSet<u16>, leaks: &Leaks) -> (Bitmap, Leaks) {
    let mut now = Leaks::new();
    let mut right = |port: u16| {
        if used.contains(&port) {
            return true;
        }
        if !taken.0.get(usize::from(port - range.first)).is_some_and(|taken| *taken) {
            return false;
        }
        // A service that is about to be written may have it.
        let rounds = leaks.get(&port).copied().unwrap_or(0) + 1;
        now.insert(port, rounds);
        rounds < LEAKED
    };
    let bits = Bitmap((range.first..=range.last).map(&mut right).collect());
    (bits, now)
}

/// Brings the taken ports in line with those that services have.
pub(super) async fn repair(
    engine: &Engine,
    range: PortRange,
    used: &BTreeSet<u16>,
    leaks: &mut Leaks,
) -> Result<(), PortError> {
    let help = "[ALPHA] Node ports that were not as they should be, by what was wrong.";
    let found = metrics::counter("apiserver_nodeport_repair_port_errors_total", help, &["type"]);
    *leaks = change(engine, range, |bits| {
        let (right, leaks) = repaired(bits, range, used, leaks);
        for (port, (had, has)) in
            (range.first..=range.last).zip(bits.0.iter().zip(&right.0)).filter(|(_, (a, b))| a != b)
        {
            tracing::warn!(port, had, has, "a node port was not taken by those who have it, this is put right");
            found.with_label_values(&[if *had { "leak" } else { "repair" }]).inc();
        }
        *bits = right;
        Ok(leaks)
    })
    .await?;
    Ok(())
}

/// The type of the row, so that callers can tell services apart.
pub fn is_service(row: &Resource) -> bool {
    row.group.is_empty() && row.plural == "services"
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

    fn map(taken: &[usize], len: usize) -> Bitmap {
        Bitmap((0..len).map(|i| taken.contains(&i)).collect())
    }

    #[test]
    fn what_was_taken_in_another_range_stays_taken() {
        let (from, to) = (PortRange { first: 100, last: 109 }, PortRange { first: 95, last: 104 });
        assert_eq!(moved(&map(&[0, 4, 9], 10), from, to), map(&[5, 9], 10));
        assert_eq!(moved(&map(&[0, 4, 9], 10), from, from), map(&[0, 4, 9], 10));
    }

    #[test]
    fn a_port_that_is_nobodys_time_and_again_is_free() {
        let range = PortRange { first: 100, last: 104 };
        let (mut taken, mut leaks) = (map(&[0, 1, 2], 5), Leaks::new());
        // Somebody has one that was never taken, one that was, and one that is not in the range.
        let used = BTreeSet::from([104, 100, 7]);
        for round in 1..=LEAKED {
            (taken, leaks) = repaired(&taken, range, &used, &leaks);
            let nobodys: &[usize] = if round < LEAKED { &[0, 1, 2, 4] } else { &[0, 4] };
            assert_eq!(taken, map(nobodys, 5), "{round}");
        }
        // Who gets one in time keeps it.
        let (kept, none) = repaired(&map(&[1], 5), range, &BTreeSet::from([101]), &Leaks::from([(101, 2)]));
        assert_eq!((kept, none), (map(&[1], 5), Leaks::new()));
    }

    #[test]
    fn picks_above_the_band_until_it_is_full() {
        let mut b = Bitmap::parse(&[], 100);
        for _ in 0..84 {
            let i = b.pick().expect("free");
            assert!(i >= 16);
            b.0[i] = true;
        }
        assert!(b.pick().expect("free") < 16);
    }
}
