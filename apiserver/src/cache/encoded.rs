//! Encodings of objects that are kept: each is made at most once per revision, as long as all of them together stay
//! within a budget. What finds no room is made again where it is needed; what is kept goes with its object. Answers for
//! upstream's `cachingObject`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// Bytes that kept encodings may take, all together.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    /// Of so many bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Bytes of the budget in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// False when it is all but used up: then nothing is encoded for later.
    pub fn has_room(&self) -> bool {
        self.used() < self.limit - self.limit / 16
    }

    fn reserve(self: &Arc<Self>, bytes: usize) -> Option<BudgetShare> {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(BudgetShare { bytes, budget: self.clone() })
    }
}

/// A part of a budget in use. Dropping it returns it.
#[derive(Debug)]
struct BudgetShare {
    bytes: usize,
    budget: Arc<Budget>,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct KeptEncoding {
    bytes: Bytes,
    /// Offset at which the first value of the compressed element ends.
    first: u32,
    _share: BudgetShare,
}

/// Opening bytes of an element of a list.
const METADATA: &[u8] = br#"{"metadata":"#;

/// The end of the object that begins at `start` of some JSON text; 0 when there is none.
fn object_end(json: &[u8], start: usize) -> u32 {
    if json.get(start) != Some(&b'{') {
        return 0;
    }
    let (mut depth, mut text, mut at) = (0_usize, false, start);
    while let Some(b) = json.get(at) {
        match (b, text) {
            (b'\\', true) => at += 1,
            (b'"', _) => text = !text,
            (b'{', false) => depth += 1,
            (b'}', false) => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    u32::try_from(at.min(json.len())).unwrap_or(0)
}

/// One encoding.
#[derive(Debug, Default)]
pub struct EncodingSlot(OnceLock<Box<KeptEncoding>>);

impl EncodingSlot {
    /// Returns the bytes that were kept, if any.
    pub fn get(&self) -> Option<&Bytes> {
        self.0.get().map(|kept| &kept.bytes)
    }

    /// Keeps an encoding if there is room.
    pub fn fill(&self, budget: &Arc<Budget>, bytes: &[u8]) {
        if self.0.get().is_none()
            && let Some(share) = budget.reserve(bytes.len())
        {
            let first = if bytes.starts_with(METADATA) { object_end(bytes, METADATA.len()) } else { 0 };
            // Somebody else may have been first; theirs is the same.
            let _ = self.0.set(Box::new(KeptEncoding { bytes: Bytes::copy_from_slice(bytes), first, _share: share }));
        }
    }

    /// The JSON of the metadata that what is kept begins with.
    pub fn metadata(&self) -> Option<&[u8]> {
        let kept = self.0.get()?;
        kept.bytes.get(METADATA.len()..kept.first as usize)
    }
}

/// The encodings of one object at one revision.
#[derive(Debug, Default)]
pub struct Encoded {
    /// JSON as an element of a list.
    pub json: EncodingSlot,
    /// The cells of its table row, with the times of ages in place of ages.
    pub cells: EncodingSlot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_found_in_kept_encodings() {
        let budget = Budget::new(1000);
        for (json, metadata) in [
            (r#"{"metadata":{"name":"a\"}","x":{"y":{}}},"spec":{}}"#, Some(r#"{"name":"a\"}","x":{"y":{}}}"#)),
            (r#"{"metadata":{}}"#, Some("{}")),
            (r#"{"spec":{}}"#, None),
        ] {
            let slot = EncodingSlot::default();
            slot.fill(&budget, json.as_bytes());
            assert_eq!(slot.metadata(), metadata.map(str::as_bytes), "{json}");
        }
    }

    #[test]
    fn the_budget_holds_and_is_returned() {
        let budget = Budget::new(10);
        let (a, b) = (Encoded::default(), Encoded::default());
        a.json.fill(&budget, b"123456");
        b.json.fill(&budget, b"123456");
        assert_eq!((a.json.get().map(Bytes::len), b.json.get(), budget.used()), (Some(6), None, 6));
        drop(a);
        b.json.fill(&budget, b"123456");
        assert!(b.json.get().is_some());
    }
}
