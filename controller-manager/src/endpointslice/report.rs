//! Metrics of slices: what one sync changes, and what there is in all. For this controller and the one that mirrors.
//! Answers for upstream's `k8s.io/endpointslice/metrics`.
//!
//! In: the slices of a service before a sync and the writes that follow. Out: numbers. Nothing here is decided upon.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::write::Write;
use crate::engine::metrics::{self, float};
use crate::engine::object::Key;
use crate::engine::slice::{self, Slice};

/// Names of a controller's families.
#[derive(Debug)]
pub struct Names {
    /// Endpoints that a sync added.
    pub added: &'static str,
    /// Endpoints that a sync removed.
    pub removed: &'static str,
    /// All endpoints.
    pub endpoints: &'static str,
    /// All slices.
    pub slices: &'static str,
    /// Slices there would be if each were full.
    pub packed: &'static str,
}

/// Totals of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Endpoints in all slices.
    pub endpoints: usize,
    /// Slices.
    pub slices: usize,
    /// Slices there would be if each were full.
    pub packed: usize,
}

/// One sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sync {
    /// Endpoints that were not there.
    pub added: usize,
    /// Endpoints that are not what they were.
    pub updated: usize,
    /// Endpoints that are not there any more.
    pub removed: usize,
    /// Slices written or deleted.
    pub changed: usize,
    /// Totals afterwards.
    pub totals: Totals,
}

/// Read a sync from what was and what is to be written.
#[must_use]
pub fn read(before: &[Arc<Slice>], writes: &[Write], max: usize) -> Sync {
    let changed = writes.iter().filter(|w| w.changes()).count();
    let old: Vec<&Slice> = before.iter().map(AsRef::as_ref).collect();
    if changed == 0 {
        return Sync { totals: totals(&old, max), ..Sync::default() };
    }
    let mut after = Vec::with_capacity(old.len() + changed);
    let (mut before, mut new) = (Vec::new(), Vec::new());
    let replaced = writes.iter().filter_map(|write| match write {
        Write::Update(slice) => Some(slice.meta().name()),
        Write::Delete(slice) => Some(slice.meta().name()),
        Write::Create(_) | Write::Tell(_) => None,
    });
    let replaced: HashSet<&str> = replaced.collect();
    for slice in old {
        if replaced.contains(slice.meta().name()) { before.push(slice) } else { after.push(slice) }
    }
    for write in writes {
        if let Write::Create(slice) | Write::Update(slice) = write {
            new.push(slice);
            after.push(slice);
        }
    }
    let compared = in_place(&before, &new).unwrap_or_else(|| compare(&by_address(&before), &by_address(&new)));
    Sync { changed, totals: totals(&after, max), ..compared }
}

/// Counts the changes of a sync to one slice whose endpoints stay where they are, as it is with most.
fn in_place(before: &[&Slice], new: &[&Slice]) -> Option<Sync> {
    let ([before], [new]) = (before, new) else { return None };
    let mut updated = 0;
    let (mut was, mut is) = (before.endpoints(), new.endpoints());
    loop {
        match (was.next(), is.next()) {
            (None, None) => return Some(Sync { updated, ..Sync::default() }),
            (Some(was), Some(is)) if was == is => {}
            (Some(was), Some(is)) if slice::addresses(was).next() == slice::addresses(is).next() => updated += 1,
            _ => return None,
        }
    }
}

/// Endpoints as they are written, in the order of their first addresses.
fn by_address<'a>(slices: &[&'a Slice]) -> Vec<(&'a [u8], &'a [u8])> {
    let endpoints = slices.iter().flat_map(|s| s.endpoints());
    let mut all: Vec<_> = endpoints.filter_map(|e| Some((slice::addresses(e).next()?, e))).collect();
    all.sort_unstable();
    all.dedup_by_key(|(address, _)| *address);
    all
}

fn compare(was: &[(&[u8], &[u8])], is: &[(&[u8], &[u8])]) -> Sync {
    let mut sync = Sync { removed: was.len(), ..Sync::default() };
    for (address, endpoint) in is {
        match was.binary_search_by_key(address, |(address, _)| address) {
            Ok(at) => {
                sync.removed -= 1;
                sync.updated += usize::from(was[at].1 != *endpoint);
            }
            Err(_) => sync.added += 1,
        }
    }
    sync
}

fn totals(slices: &[&Slice], max: usize) -> Totals {
    // Slices of the same family and ports could be one.
    let mut groups: HashMap<(&str, Vec<&[u8]>), usize> = HashMap::default();
    for slice in slices {
        *groups.entry((slice.address_type(), slice.ports().collect())).or_default() += slice.endpoints().count();
    }
    Totals {
        endpoints: groups.values().sum(),
        slices: slices.len(),
        packed: groups.values().map(|count| count.div_ceil(max.max(1)).max(1)).sum(),
    }
}

/// Totals of each service, and their sum.
#[derive(Debug)]
pub struct Report {
    names: &'static Names,
    known: HashMap<Key, Totals>,
    sum: Totals,
}

impl Report {
    /// Of nothing yet.
    #[must_use]
    pub fn new(names: &'static Names) -> Self {
        Self { names, known: HashMap::default(), sum: Totals::default() }
    }

    /// A service was synced.
    pub fn synced(&mut self, key: &Key, sync: &Sync) {
        metrics::observe(self.names.added, &[], float(sync.added));
        metrics::observe(self.names.removed, &[], float(sync.removed));
        if self.known.get(key) != Some(&sync.totals) {
            let old = self.known.insert(key.clone(), sync.totals.clone());
            self.exchange(&old.unwrap_or_default(), &sync.totals);
        }
    }

    /// A service is gone.
    pub fn forget(&mut self, key: &Key) {
        if let Some(old) = self.known.remove(key) {
            self.exchange(&old, &Totals::default());
        }
    }

    fn exchange(&mut self, old: &Totals, new: &Totals) {
        let step = |sum: usize, old: usize, new: usize| (sum + new).saturating_sub(old);
        self.sum.endpoints = step(self.sum.endpoints, old.endpoints, new.endpoints);
        self.sum.slices = step(self.sum.slices, old.slices, new.slices);
        self.sum.packed = step(self.sum.packed, old.packed, new.packed);
        metrics::set(self.names.endpoints, &[], float(self.sum.endpoints));
        metrics::set(self.names.slices, &[], float(self.sum.slices));
        metrics::set(self.names.packed, &[], float(self.sum.packed));
    }
}

/// Number of services by traffic distribution.
#[derive(Debug, Default)]
pub struct Distributions {
    wishes: HashMap<Key, String>,
    counts: BTreeMap<String, usize>,
}

impl Distributions {
    /// Records the distribution of a service; nothing when it is gone.
    pub fn note(&mut self, key: &Key, wish: Option<&str>) {
        if self.wishes.get(key).map(String::as_str) == wish {
            return;
        }
        let old = match wish {
            Some(new) => {
                self.count(new, |n| n + 1);
                self.wishes.insert(key.clone(), new.to_owned())
            }
            None => self.wishes.remove(key),
        };
        if let Some(old) = old {
            self.count(&old, |n| n.saturating_sub(1));
        }
    }

    fn count(&mut self, wish: &str, step: impl FnOnce(usize) -> usize) {
        let count = self.counts.entry(wish.to_owned()).or_default();
        *count = step(*count);
        metrics::set("endpoint_slice_controller_services_count_by_traffic_distribution", &[wish], float(*count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpointslice::NAMES;
    use serde_json::{Value, json};

    fn slice(name: &str, endpoints: &Value) -> Slice {
        let object =
            json!({"metadata": {"name": name, "namespace": "ns"}, "addressType": "IPv4", "endpoints": endpoints});
        Slice::of_json(&object).expect("slice")
    }

    #[test]
    fn a_sync_is_read_from_its_writes() {
        let at = |address: &str| json!({"addresses": [address]});
        let before = [
            Arc::new(slice("a", &json!([at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.5")]))),
            Arc::new(slice("b", &json!([at("10.0.0.3")]))),
        ];
        let moved = json!({"addresses": ["10.0.0.5"], "nodeName": "n"});
        let writes = [
            Write::Update(slice("a", &json!([at("10.0.0.1"), at("10.0.0.4"), moved]))),
            Write::Delete(Arc::clone(&before[1])),
        ];
        let sync = read(&before, &writes, 100);
        let totals = Totals { endpoints: 3, slices: 1, packed: 1 };
        assert_eq!(sync, Sync { added: 1, updated: 1, removed: 2, changed: 2, totals: totals.clone() });
        let rest = read(&before, &[], 3);
        assert_eq!(rest, Sync { totals: Totals { endpoints: 4, slices: 2, packed: 2 }, ..Sync::default() });
        let mut report = Report::new(&NAMES);
        report.synced(&Key::new("ns", "s"), &sync);
        assert_eq!(report.sum, totals);
        report.synced(&Key::new("ns", "s"), &rest);
        assert_eq!(report.sum, rest.totals);
        report.forget(&Key::new("ns", "s"));
        assert_eq!(report.sum, Totals::default());
    }

    #[test]
    fn services_are_counted_by_their_wish() {
        let (mut all, a, b) = (Distributions::default(), Key::new("ns", "a"), Key::new("ns", "b"));
        all.note(&a, Some("PreferSameZone"));
        all.note(&b, Some("PreferSameZone"));
        all.note(&a, Some("PreferSameNode"));
        all.note(&a, Some("PreferSameNode"));
        assert_eq!(all.counts, [("PreferSameNode".to_owned(), 1), ("PreferSameZone".to_owned(), 1)].into());
        all.note(&b, None);
        assert_eq!(all.counts["PreferSameZone"], 0);
    }
}
