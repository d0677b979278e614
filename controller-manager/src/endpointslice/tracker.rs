//! Writes of slices that were not yet seen: a sync on a stale cache would create slices twice. Answers for upstream's
//! `EndpointSliceTracker`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::Mutex;
use shared::informer::Event;

use crate::engine::object::Key;
use crate::engine::rest::Written as Answer;
use crate::engine::slice::{MANAGED_BY, SERVICE_NAME, Slice};

/// Time after which a write that the cache does not show was lost.
const UNSEEN: Duration = Duration::from_mins(5);

/// Writes for one owner.
#[derive(Debug, Default)]
struct WrittenSlices {
    /// uid → (generation, deleted).
    slices: HashMap<String, (i64, bool)>,
    /// Since when a look is put off until the cache shows it.
    awaited: Option<Instant>,
    /// Slices that the watch shows while a write is under way: its own result may come that way before the answer does,
    /// and so may its end.
    under_way: Option<Box<UnderWay>>,
    /// Some of that was not the result.
    missed: bool,
}

/// By uid.
#[derive(Debug, Default)]
struct UnderWay {
    /// With their generations.
    seen: Vec<(String, i64)>,
    gone: Vec<String>,
}

/// Generations of slices as last written, by owner.
#[derive(Debug, Default)]
pub struct Tracker {
    written: Mutex<HashMap<Key, WrittenSlices>>,
}

impl Tracker {
    /// A slice is about to be created or updated.
    pub fn writes(&self, key: &Key) {
        self.written.lock().entry(key.clone()).or_default().under_way = Some(Box::default());
    }

    /// Takes note that a write ended; `answer` is what the server stored. None when it did not say.
    pub fn wrote(&self, key: &Key, answer: Option<Answer>) {
        let mut all = self.written.lock();
        let written = all.entry(key.clone()).or_default();
        let own = |(uid, generation): &(String, i64)| {
            answer.as_ref().is_some_and(|a| a.uid == *uid && a.generation == *generation)
        };
        let UnderWay { seen, gone } = *written.under_way.take().unwrap_or_default();
        written.missed |= !seen.iter().all(own);
        // What has gone since would be waited for in vain.
        if let Some(answer) = answer.filter(|answer| !gone.contains(&answer.uid)) {
            written.slices.insert(answer.uid, (answer.generation, false));
        }
    }

    /// Reports whether another look is due, because of news that came during a write.
    #[must_use]
    pub fn missed(&self, key: &Key) -> bool {
        self.written.lock().get_mut(key).is_some_and(|written| std::mem::take(&mut written.missed))
    }

    /// A slice was deleted.
    pub fn deleted(&self, key: &Key, uid: &str) {
        self.written.lock().entry(key.clone()).or_default().slices.insert(uid.to_owned(), (0, true));
    }

    /// The watch showed that a slice is gone.
    fn gone(&self, key: &Key, uid: &str) {
        if let Some(written) = self.written.lock().get_mut(key) {
            written.slices.remove(uid);
            if let Some(under_way) = &mut written.under_way {
                under_way.gone.push(uid.to_owned());
            }
        }
    }

    /// The owner is gone.
    pub fn forget(&self, key: &Key) {
        self.written.lock().remove(key);
    }

    /// The owners whom news of a slice concern, where `controller` marks the slices that are tracked here.
    #[must_use]
    pub fn concerned(&self, event: &Event<Slice>, controller: &str) -> Vec<Key> {
        let of = |slice: &Slice| {
            let tracked = slice.meta().label(MANAGED_BY) == Some(controller);
            let name = slice.meta().label(SERVICE_NAME).filter(|_| tracked);
            name.map(|name| Key::new(slice.meta().namespace(), name))
        };
        let (slice, owner) = (event.object(), of(event.object()));
        if let Event::Updated { old, .. } = event
            && !old.meta().labelled_as(slice.meta())
            && of(old) != owner
        {
            // Somebody gave it away or took it: who had it is not to wait for it any more.
            let before = of(old).inspect(|key| self.gone(key, slice.meta().uid()));
            return before.into_iter().chain(owner).collect();
        }
        let news = |key: &Key| match event {
            Event::Deleted(_) => {
                self.gone(key, slice.meta().uid());
                true
            }
            _ => self.news(key, slice),
        };
        owner.into_iter().filter(news).collect()
    }

    /// Reports whether a slice that the watch shows calls for a look: not when it is what was written here, unless a
    /// look was put off for it. During a write that is not known yet: see [`Tracker::missed`].
    #[must_use]
    fn news(&self, key: &Key, slice: &Slice) -> bool {
        let mut all = self.written.lock();
        let Some(written) = all.get_mut(key) else { return true };
        let (uid, generation) = (slice.meta().uid(), slice.meta().generation());
        if written.slices.get(uid) == Some(&(generation, false)) {
            return written.awaited.take().is_some();
        }
        match &mut written.under_way {
            Some(under_way) => under_way.seen.push((uid.to_owned(), generation)),
            None => return true,
        }
        false
    }

    /// Reports whether the cache lags behind what was written. Slices that came and went while no watch told of them
    /// are not waited for without end.
    #[must_use]
    pub fn stale(&self, key: &Key, cached: &[Arc<Slice>], now: Instant) -> bool {
        let mut all = self.written.lock();
        let Some(written) = all.get_mut(key) else { return false };
        if written.slices.is_empty() {
            written.awaited = None;
            return false;
        }
        let by_uid: HashMap<&str, &Arc<Slice>> = cached.iter().map(|s| (s.meta().uid(), s)).collect();
        // The watch may have told of it before it was noted.
        written.slices.retain(|uid, (_, deleted)| !*deleted || by_uid.contains_key(uid.as_str()));
        let lags = written.slices.iter().any(|(uid, (generation, deleted))| match by_uid.get(uid.as_str()) {
            None => true,
            Some(s) => *deleted || s.meta().generation() < *generation,
        });
        if !lags {
            written.awaited = None;
            return false;
        }
        let since = *written.awaited.get_or_insert(now);
        let waits = now.saturating_duration_since(since) < UNSEEN;
        if !waits {
            (written.awaited, written.slices) = (None, HashMap::default());
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(uid: &str, generation: i64) -> Option<Answer> {
        Some(Answer { uid: uid.to_owned(), generation, ..Answer::default() })
    }

    #[test]
    fn what_was_written_may_be_seen_before_the_answer() {
        let (t, key) = (Tracker::default(), Key::new("ns", "svc"));
        let slice = |uid: &str, generation: i64| -> Arc<Slice> {
            let object = json!({"metadata": {"uid": uid, "generation": generation}, "addressType": "IPv4"});
            Arc::new(Slice::of_json(&object).expect("slice"))
        };
        for (seen, said, missed) in [
            (&[][..], answer("u", 2), false),
            (&[("u", 2)], answer("u", 2), false),
            (&[("u", 2), ("u", 3)], answer("u", 3), true),
            (&[("v", 3)], answer("u", 3), true),
            (&[("u", 3)], None, true),
            (&[], None, false),
        ] {
            t.forget(&key);
            t.writes(&key);
            for (uid, generation) in seen {
                assert!(!t.news(&key, &slice(uid, *generation)), "it is not known yet");
            }
            assert!(!t.missed(&key));
            t.wrote(&key, said.clone());
            assert_eq!((t.missed(&key), t.missed(&key)), (missed, false), "{seen:?} {said:?}");
            assert!(t.news(&key, &slice("u", 9)), "no write is under way any more");
        }
    }

    #[test]
    fn what_was_written_may_be_gone_before_the_answer() {
        let (t, key, now) = (Tracker::default(), Key::new("ns", "svc"), Instant::now());
        t.writes(&key);
        t.gone(&key, "u");
        t.gone(&key, "v");
        t.wrote(&key, answer("u", 2));
        assert!(!t.stale(&key, &[], now), "nobody will ever show it again");
        t.wrote(&key, answer("v", 3));
        assert!(t.stale(&key, &[], now), "what went before the write is not what was written");
        t.gone(&key, "v");
        t.deleted(&key, "v");
        assert!(!t.stale(&key, &[], now));
        assert!(t.written.lock()[&key].slices.is_empty(), "nothing is kept of what is gone");
    }

    #[test]
    fn waits_for_the_cache() {
        let (t, key, now) = (Tracker::default(), Key::new("ns", "svc"), Instant::now());
        let slice = |generation: i64| -> Arc<Slice> {
            let object =
                json!({"metadata": {"uid": "u", "generation": generation}, "addressType": "IPv4", "endpoints": []});
            Arc::new(Slice::of_json(&object).expect("slice"))
        };
        assert!(!t.stale(&key, &[], now));
        t.wrote(&key, answer("u", 2));
        assert!(t.stale(&key, &[], now));
        assert!(t.stale(&key, &[slice(1)], now));
        assert!(t.news(&key, &slice(2)), "a look was put off for it");
        assert!(!t.stale(&key, &[slice(2)], now));
        assert!(!t.news(&key, &slice(2)), "nobody waits for what was written here");
        assert!(t.news(&key, &slice(3)), "somebody else wrote it");
        t.deleted(&key, "u");
        assert!(t.stale(&key, &[slice(2)], now));
        assert!(!t.stale(&key, &[], now));
        t.wrote(&key, answer("v", 1));
        t.gone(&key, "v");
        assert!(!t.stale(&key, &[], now), "deleted by somebody else before we saw it");
        t.wrote(&key, answer("w", 1));
        assert!(t.stale(&key, &[], now) && t.stale(&key, &[], now + UNSEEN / 2));
        assert!(!t.stale(&key, &[], now + UNSEEN), "it came and went while no watch told of it");
        assert!(!t.stale(&key, &[], now + UNSEEN), "nor is it waited for again");
    }

    #[test]
    fn whom_a_slice_concerns() {
        let (t, web, now) = (Tracker::default(), Key::new("ns", "web"), Instant::now());
        let slice = |generation: i64, service: &str, mark: &str| -> Arc<Slice> {
            let labels = json!({SERVICE_NAME: service, MANAGED_BY: mark});
            let meta = json!({"uid": "u", "namespace": "ns", "generation": generation, "labels": labels});
            Arc::new(Slice::of_json(&json!({"metadata": meta, "addressType": "IPv4"})).expect("slice"))
        };
        let changed = |old: Arc<Slice>, new: Arc<Slice>| t.concerned(&Event::Updated { old, new }, "me");
        let own = || slice(1, "web", "me");
        assert_eq!(t.concerned(&Event::Added(own()), "me"), std::slice::from_ref(&web));
        assert_eq!(t.concerned(&Event::Added(own()), "other"), []);
        t.wrote(&web, answer("u", 2));
        assert_eq!(changed(own(), slice(2, "web", "me")), [], "written here");
        assert_eq!(changed(own(), slice(2, "shop", "me")), [web.clone(), Key::new("ns", "shop")]);
        assert!(!t.stale(&web, &[], now), "it is not waited for");
        assert_eq!(changed(own(), slice(2, "web", "other")), std::slice::from_ref(&web));
        assert_eq!(changed(slice(2, "web", "other"), own()), [web]);
    }
}
