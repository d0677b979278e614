//! Event correlator: decides which core/v1 events are written, counted or dropped. Bounded: the state is a
//! least-recently-used map.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{EventKind, Record, object_key};

/// Objects and events remembered (client-go's cache size).
const REMEMBERED: usize = 4096;
/// Events about one object that may be written at once.
const BURST: f64 = 25.0;
/// One more after each of these.
const REFILL: Duration = Duration::from_secs(300);
/// From so many different messages with the same reason within [`SIMILAR_WITHIN`] on, they are combined.
const SIMILAR: usize = 10;
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);

/// Key of equal events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    object: String,
    kind: EventKind,
    reason: String,
    /// Field path and message; `None` for aggregated events, which are equal whatever they say.
    said: Option<(String, String)>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Too many about this object.
    Drop,
    /// A new event; tell [`Correlator::created`] its name.
    Create { message: String, key: EventKey },
    /// Event `name` happened for the `count`th time.
    Count { name: String, count: u32, message: String, key: EventKey },
}

struct Written {
    name: String,
    count: u32,
    used: Instant,
}

struct Budget {
    tokens: f64,
    at: Instant,
}

struct Similar {
    messages: HashSet<String>,
    last: Instant,
}

#[derive(Default)]
pub(super) struct Correlator {
    written: HashMap<EventKey, Written>,
    budgets: HashMap<String, Budget>,
    similar: HashMap<(String, EventKind, String), Similar>,
}

impl Correlator {
    pub(super) fn see(&mut self, record: &Record) -> Verdict {
        let now = Instant::now();
        let object = object_key(&record.about);
        let combined = self.combines(&object, record, now);
        let part = || record.about.field_path.clone().unwrap_or_default();
        let said = (!combined).then(|| (part(), record.message.clone()));
        let key = EventKey { object: object.clone(), kind: record.kind, reason: record.reason.clone(), said };
        let prefix = if combined { "(combined from similar events): " } else { "" };
        let message = format!("{prefix}{}", record.message);
        // What is not written is counted all the same.
        let known = self.written.get_mut(&key).map(|written| {
            written.count += 1;
            written.used = now;
            (written.name.clone(), written.count)
        });
        if !self.spend(object, now) {
            return Verdict::Drop;
        }
        match known {
            Some((name, count)) => Verdict::Count { name, count, message, key },
            None => Verdict::Create { message, key },
        }
    }

    pub(super) fn created(&mut self, key: EventKey, name: String) {
        if self.written.len() >= REMEMBERED {
            forget_older_half(&mut self.written, |written| written.used);
        }
        self.written.insert(key, Written { name, count: 1, used: Instant::now() });
    }

    /// Reports whether an event is aggregated, because too many similar ones had different messages.
    fn combines(&mut self, object: &str, record: &Record, now: Instant) -> bool {
        if self.similar.len() >= REMEMBERED {
            forget_older_half(&mut self.similar, |similar| similar.last);
        }
        let key = (object.to_owned(), record.kind, record.reason.clone());
        let similar = self.similar.entry(key).or_insert_with(|| Similar { messages: HashSet::new(), last: now });
        if now.duration_since(similar.last) > SIMILAR_WITHIN {
            similar.messages.clear();
        }
        similar.last = now;
        if similar.messages.contains(&record.message) {
            return false;
        }
        if similar.messages.len() + 1 < SIMILAR {
            similar.messages.insert(record.message.clone());
            return false;
        }
        true
    }

    fn spend(&mut self, object: String, now: Instant) -> bool {
        if self.budgets.len() >= REMEMBERED {
            forget_older_half(&mut self.budgets, |budget| budget.at);
        }
        let budget = self.budgets.entry(object).or_insert(Budget { tokens: BURST, at: now });
        let earned = now.duration_since(budget.at).as_secs_f64() / REFILL.as_secs_f64();
        budget.tokens = (budget.tokens + earned).min(BURST);
        budget.at = now;
        if budget.tokens < 1.0 {
            return false;
        }
        budget.tokens -= 1.0;
        true
    }
}

/// Makes room.
pub(super) fn forget_older_half<K: Clone + Eq + std::hash::Hash, V>(
    map: &mut HashMap<K, V>,
    used: impl Fn(&V) -> Instant,
) {
    let mut times: Vec<Instant> = map.values().map(&used).collect();
    let middle = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(middle);
    let median = *median;
    map.retain(|_, value| used(value) > median);
}
