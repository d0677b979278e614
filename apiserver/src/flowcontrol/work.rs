//! Work estimate of a request: seats while it runs, and seats for a while after it when many watchers receive its
//! event. Pure: counts come in as arguments. Answers for upstream's `pkg/util/flowcontrol/request`
//! (`listWorkEstimator`, `mutatingWorkEstimator`).

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::api::{RequestInfo, Stored};
use crate::machinery::query::Query;
use crate::registry::core::service_account::SERVICE_ACCOUNTS;

/// Bytes a list may hold in memory for one seat.
const BYTES_PER_SEAT: u64 = 100_000;
/// Estimated memory of a streamed list from the cache, in bytes.
const STREAMED: u64 = 1_000_000;
/// The size taken for objects of unknown size, in bytes: the largest etcd takes.
const LARGEST_OBJECT: u64 = 1_500_000;
/// Most seats of a list, and of a write.
const MOST_LIST_SEATS: u32 = 100;
/// Maximum of seats where lists are estimated by the number of objects.
const MOST_COUNTED_SEATS: u32 = 10;
const OBJECTS_PER_SEAT: u64 = 100;
const MOST_WRITE_SEATS: u32 = 10;
/// Watchers served by one seat, and how long a seat is busy with one event.
const WATCHERS_PER_SEAT: u32 = 10;
const EVENT: Duration = Duration::from_millis(5);
/// Assumed duration of a request that has not finished.
pub(super) const GUESS: Duration = Duration::from_millis(3);

/// An estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    /// Seats while the request is executed.
    pub(super) seats: u32,
    /// Seats after that.
    pub(super) last_seats: u32,
    /// Duration of the final seats.
    pub(super) tail: Duration,
}

impl Work {
    /// So many seats and nothing afterwards.
    pub(super) fn of(seats: u32) -> Self {
        Self { seats, last_seats: 0, tail: Duration::ZERO }
    }

    /// Seats that must be free for the request to begin.
    pub(super) fn widest(&self) -> u32 {
        self.seats.max(self.last_seats)
    }

    /// One seat, and none afterwards.
    pub(super) fn is_narrow(&self) -> bool {
        *self == Self::of(1)
    }

    /// Seat-seconds, taking the execution to last as long as most do.
    pub(super) fn cost(&self) -> f64 {
        f64::from(self.seats) * GUESS.as_secs_f64() + f64::from(self.last_seats) * self.tail.as_secs_f64()
    }

    /// No more seats after the execution than there are; the work stays the same, so it lasts longer.
    pub(super) fn fitted(mut self, limit: u32) -> Self {
        if self.last_seats > limit && limit > 0 {
            self.tail = self.tail.mul_f64(f64::from(self.last_seats) / f64::from(limit));
            self.last_seats = limit;
        }
        self
    }
}

/// Counts of watches by what they watch.
#[derive(Default)]
pub(super) struct Watchers(Mutex<HashMap<WatchKey, u32>>);

/// A resource (group and plural), a namespace or "", a name or "".
type WatchKey = (String, String, String, String);

impl Watchers {
    fn key(info: &RequestInfo) -> WatchKey {
        (info.api_group.clone(), info.resource.clone(), info.namespace.clone(), info.name.clone())
    }

    /// Counts a watch; give what it returns to [`Watchers::remove`].
    pub(super) fn register(&self, info: &RequestInfo) -> WatchKey {
        let key = Self::key(info);
        *self.0.lock().entry(key.clone()).or_default() += 1;
        key
    }

    pub(super) fn remove(&self, key: &WatchKey) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(key);
            }
        }
    }

    /// Watches that may hear of a write.
    pub(super) fn interested(&self, info: &RequestInfo) -> u32 {
        let counts = self.0.lock();
        if counts.is_empty() {
            return 0;
        }
        let (group, resource, namespace, name) = Self::key(info);
        let of = |namespace: &str, name: &str| {
            let key = (group.clone(), resource.clone(), namespace.to_owned(), name.to_owned());
            counts.get(&key).copied().unwrap_or(0)
        };
        let mut sum = of("", "");
        if !namespace.is_empty() {
            sum += of(&namespace, "");
        }
        if !name.is_empty() {
            sum += of(&namespace, &name);
        }
        sum
    }
}

/// Facts for an estimate beyond the request.
pub(super) struct EstimateFacts<'a> {
    /// Most seats a request of this priority level may have; 0 is no bound.
    pub(super) most: u32,
    /// Storage statistics of a resource; `None` for one that is not served here.
    pub(super) stored: &'a dyn Fn(&RequestInfo) -> Option<Stored>,
    /// Watches that may hear of a write.
    pub(super) watchers: u32,
    /// Lists cost what their objects take in memory (`SizeBasedListCostEstimate`), and not by their number.
    pub(super) sizes: bool,
}

/// The estimate of a request.
pub(super) fn estimate(info: &RequestInfo, query: &str, facts: &EstimateFacts<'_>) -> Work {
    match info.verb.as_str() {
        "list" | "watch" => Work::of(list_seats(info, &Query::parse(query), facts)),
        "create" | "update" | "patch" | "delete" => write(info, facts),
        _ => Work::of(1),
    }
}

fn bounded(most: u32, limit: u32) -> u32 {
    if most == 0 { limit } else { most.min(limit) }
}

fn list_seats(info: &RequestInfo, query: &Query, facts: &EstimateFacts<'_>) -> u32 {
    let most = bounded(facts.most, if facts.sizes { MOST_LIST_SEATS } else { MOST_COUNTED_SEATS });
    let watch = info.verb == "watch";
    // A watch is as dear as a list only when it begins with one.
    if watch && !query.flag("sendInitialEvents") {
        return 1;
    }
    let Ok(limit) = query.int("limit") else { return most };
    let Some(stored) = (facts.stored)(info) else { return 1 };
    let limited = match limit.and_then(|n| u64::try_from(n).ok()) {
        Some(n) if n > 0 => stored.objects.min(n),
        _ => stored.objects,
    };
    let selective = ["fieldSelector", "labelSelector"].iter().any(|s| query.get(s).is_some_and(|v| !v.is_empty()));
    let list = List {
        objects: stored.objects,
        limited,
        single: !info.name.is_empty(),
        cached: watch || !from_storage(query),
        selective,
    };
    let seats = if facts.sizes { list.seats_by_size(stored.size) } else { list.seats_by_count() };
    u32::try_from(seats).unwrap_or(u32::MAX).clamp(1, most.max(1))
}

/// Size of a list.
struct List {
    objects: u64,
    /// Number of objects within the limit.
    limited: u64,
    /// The list selects a single object.
    single: bool,
    cached: bool,
    selective: bool,
}

impl List {
    fn seats_by_size(&self, size: u64) -> u64 {
        let size = if size == 0 && self.objects > 0 { LARGEST_OBJECT } else { size };
        let loaded = match self {
            Self { single: true, .. } => 1,
            Self { cached: false, selective: true, .. } => self.limited.max(self.objects / 2),
            _ => self.limited,
        };
        let bytes = loaded.saturating_mul(size);
        (if self.cached { bytes.min(STREAMED) } else { bytes }).div_ceil(BYTES_PER_SEAT)
    }

    fn seats_by_count(&self) -> u64 {
        let looked_at = match self {
            Self { single: true, .. } => 1,
            Self { cached: true, .. } => self.objects,
            Self { selective: true, .. } => self.objects.saturating_add(self.limited),
            _ => self.limited.saturating_mul(2),
        };
        looked_at.div_ceil(OBJECTS_PER_SEAT)
    }
}

/// Lists at an exact older revision are the dear ones.
fn from_storage(query: &Query) -> bool {
    let given = |name: &str| query.get(name).filter(|v| !v.is_empty());
    match given("resourceVersionMatch") {
        Some("Exact") => true,
        Some(_) => false,
        None if given("continue").is_some() => true,
        None => {
            let limited = query.int("limit").is_ok_and(|n| n.is_some_and(|n| n > 0));
            limited && given("resourceVersion").is_some_and(|v| v != "0")
        }
    }
}

fn write(info: &RequestInfo, facts: &EstimateFacts<'_>) -> Work {
    let exempt = info.resource == SERVICE_ACCOUNTS.plural && info.subresource == "token";
    if exempt || facts.watchers < WATCHERS_PER_SEAT {
        return Work::of(1);
    }
    let wanted = facts.watchers.div_ceil(WATCHERS_PER_SEAT);
    let work = Work { seats: 1, last_seats: wanted, tail: EVENT };
    work.fitted(bounded(facts.most, MOST_WRITE_SEATS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(verb: &str, name: &str) -> RequestInfo {
        RequestInfo {
            is_resource: true,
            verb: verb.into(),
            resource: "pods".into(),
            namespace: "e".into(),
            name: name.into(),
            ..RequestInfo::default()
        }
    }

    fn seats(verb: &str, name: &str, query: &str, objects: u64, size: u64) -> u32 {
        let stored = |_: &RequestInfo| Some(Stored { objects, size });
        estimate(&info(verb, name), query, &EstimateFacts { most: 0, stored: &stored, watchers: 0, sizes: true }).seats
    }

    #[test]
    fn lists_by_size() {
        for (verb, name, query, objects, size, want) in [
            ("get", "p", "", 1000, 2000, 1),
            ("list", "", "", 0, 0, 1),
            ("list", "", "", 100, 2_000, 2),
            ("list", "", "", 1_000_000, 2_000, 10),
            ("list", "", "limit=500", 1_000_000, 1_000, 5),
            ("list", "", "limit=500&continue=x", 100_000, 2_000, 10),
            ("list", "", "limit=500&continue=x&labelSelector=a%3Db", 100_000, 1_000, 100),
            ("list", "", "resourceVersionMatch=Exact&resourceVersion=5", 100_000, 10_000, 100),
            ("list", "", "resourceVersionMatch=NotOlderThan&resourceVersion=5", 100_000, 10_000, 10),
            ("list", "p", "", 100_000, 10_000, 1),
            ("list", "", "limit=x", 1, 1, 100),
            ("watch", "", "", 100_000, 10_000, 1),
            ("watch", "", "sendInitialEvents=true", 100_000, 10_000, 10),
            ("list", "", "", 3, 0, 10),
        ] {
            assert_eq!(seats(verb, name, query, objects, size), want, "{verb} {query} of {objects}×{size}");
        }
    }

    #[test]
    fn lists_by_count() {
        for (name, query, objects, want) in [
            ("", "", 0, 1),
            ("", "", 399, 4),
            ("", "limit=1", 399, 4),
            ("", "", 100_000, 10),
            ("p", "", 100_000, 1),
            ("", "limit=101&continue=x", 100_000, 3),
            ("", "limit=1&continue=x&labelSelector=a%3Db", 400, 5),
        ] {
            let stored = |_: &RequestInfo| Some(Stored { objects, size: 1_000_000 });
            let facts = EstimateFacts { most: 0, stored: &stored, watchers: 0, sizes: false };
            assert_eq!(estimate(&info("list", name), query, &facts).seats, want, "{query} of {objects}");
        }
    }

    #[test]
    fn unknown_resources_cost_least() {
        let none = |_: &RequestInfo| None;
        let facts = EstimateFacts { most: 0, stored: &none, watchers: 0, sizes: true };
        assert_eq!(estimate(&info("list", ""), "", &facts), Work::of(1));
    }

    #[test]
    fn writes_by_watchers() {
        let none = |_: &RequestInfo| None;
        let of = |watchers: u32, most: u32| {
            estimate(&info("update", "p"), "", &EstimateFacts { most, stored: &none, watchers, sizes: true })
        };
        assert_eq!(of(9, 0), Work::of(1));
        assert_eq!(of(15, 0), Work { seats: 1, last_seats: 2, tail: EVENT });
        assert_eq!(of(200, 0), Work { seats: 1, last_seats: 10, tail: EVENT * 2 });
        assert_eq!(of(200, 5), Work { seats: 1, last_seats: 5, tail: EVENT * 4 });
        let token =
            RequestInfo { resource: "serviceaccounts".into(), subresource: "token".into(), ..info("create", "a") };
        assert_eq!(
            estimate(&token, "", &EstimateFacts { most: 0, stored: &none, watchers: 50, sizes: true }),
            Work::of(1)
        );
    }

    #[test]
    fn watches_are_counted_by_scope() {
        let watchers = Watchers::default();
        let all = RequestInfo { namespace: String::new(), ..info("watch", "") };
        let keys = [all, info("watch", ""), info("watch", "p"), info("watch", "q")].map(|i| watchers.register(&i));
        assert_eq!(watchers.interested(&info("update", "p")), 3);
        assert_eq!(watchers.interested(&info("create", "")), 2);
        for key in &keys {
            watchers.remove(key);
        }
        assert_eq!(watchers.interested(&info("update", "p")), 0);
    }
}
