//! One cache, fed by hand.

use bytes::Bytes;

use super::super::state::{RING, RING_BYTES};
use super::*;
use crate::cache::index::IndexKey;
use crate::storage::Raw;

fn entry(key: &str, revision: i64, label: &str) -> Entry {
    Entry::new(key, revision, Raw::Json(Bytes::from_static(b"{}")), vec![("l", label)], [label].into_iter())
}

fn all() -> Filter {
    Arc::new(|_| true)
}

fn cacher() -> Cacher {
    let c = Cacher::default();
    c.reset(vec![Arc::new(entry("a/x", 3, "1")), Arc::new(entry("b/y", 5, "1"))], 6, |_| {});
    c
}

fn watch(c: &Cacher, start: Start, filter: Filter) -> Result<Watch, CacheError> {
    c.watch(WatchStart { scope: "", start, at_least: 6, term: None, trigger: None }, filter)
}

fn shown(s: &Snapshot) -> Vec<(&str, i64)> {
    s.items.iter().map(|e| (&*e.key, e.revision)).collect()
}

#[test]
fn resumes_from_the_ring_in_order() {
    let c = cacher();
    c.put(entry("a/z", 7, "1"));
    c.put(entry("a/x", 8, "1"));
    c.delete("b/y", 9);
    let w = watch(&c, Start::After(6), all()).expect("in the ring");
    let seen: Vec<_> = w.replay.iter().filter_map(|c| c.event_for(|_| true).map(|(s, _)| (s, c.revision))).collect();
    assert_eq!(seen, [(EventType::Added, 7), (EventType::Modified, 8), (EventType::Deleted, 9)]);
    assert_eq!(watch(&c, Start::After(5), all()).err(), Some(CacheError::TooOld { asked: 5, oldest: 6 }));
}

#[test]
fn one_revision_can_delete_many_objects() {
    let c = cacher();
    c.delete("a/x", 7);
    c.delete("b/y", 7);
    assert!(c.is_empty());
}

#[test]
fn leaving_a_selector_is_a_delete() {
    let c = cacher();
    let only: Filter = Arc::new(|e| e.label("l") == Some("1"));
    let mut plain = watch(&c, Start::State, only.clone()).expect("state");
    let mut bound = {
        let trigger = Some((0, "1".into()));
        c.watch(WatchStart { scope: "", start: Start::State, at_least: 6, term: None, trigger }, only).expect("state")
    };
    assert_eq!(plain.initial.len(), 2);
    c.put(entry("a/x", 7, "2"));
    c.put(entry("a/x", 8, "2"));
    c.put(entry("a/x", 9, "1"));
    c.delete("a/x", 10);
    for w in [&mut plain, &mut bound] {
        let mut got = Vec::new();
        while let Ok(m) = w.receiver.try_recv() {
            got.push((m.seen, m.live.change.revision));
        }
        assert_eq!(got, [(EventType::Deleted, 7), (EventType::Added, 9), (EventType::Deleted, 10)]);
    }
}

#[test]
fn slow_watchers_are_closed_not_buffered() {
    let c = cacher();
    let mut w = watch(&c, Start::State, all()).expect("state");
    for i in 0..=i64::try_from(WATCHER_BUFFER).expect("small") {
        c.put(entry("a/x", 7 + i, "1"));
    }
    assert_eq!(c.watchers(), 0);
    let mut n = 0;
    while w.receiver.try_recv().is_ok() {
        n += 1;
    }
    assert_eq!(n, WATCHER_BUFFER);
}

#[test]
fn ring_is_bounded_and_moves_its_floor() {
    let c = cacher();
    let (ring, last) = (i64::try_from(RING).expect("small"), 30_000);
    for i in 7..=last {
        c.put(entry("a/x", i, "1"));
    }
    assert_eq!(watch(&c, Start::After(7), all()).err(), Some(CacheError::TooOld { asked: 7, oldest: last - ring }));
    assert!(watch(&c, Start::After(last - ring), all()).is_ok());
    // By bytes as well.
    let large = Bytes::from(vec![b' '; RING_BYTES / 4]);
    for i in last + 1..last + 20 {
        c.put(Entry::new("a/x", i, Raw::Json(large.clone()), vec![], std::iter::empty()));
    }
    assert!(c.floor() > last + 10, "{}", c.floor());
}

#[test]
fn lists_by_scope_with_limit() {
    let c = cacher();
    c.put(entry("a/z", 7, "1"));
    let s = c.list(&ListScope { prefix: "a/", ..ListScope::default() }, 9).expect("ready");
    assert_eq!((s.items.len(), s.revision, s.more), (2, 9, false));
    let s = c.list(&ListScope { limit: 1, ..ListScope::default() }, 0).expect("ready");
    assert_eq!((s.items.len(), s.revision, s.more, s.remaining), (1, 7, true, 2));
    let s = c.list(&ListScope { start: "a/x\0", ..ListScope::default() }, 0).expect("ready");
    assert_eq!(s.items.len(), 2);
}

#[test]
fn list_at_an_old_revision_is_exact() {
    let c = cacher();
    c.put(entry("a/m", 7, "1"));
    c.put(entry("a/x", 8, "2"));
    c.put(entry("a/x", 9, "3"));
    c.delete("b/y", 10);
    c.delete("a/m", 11);
    c.put(entry("c/c", 12, "1"));
    let at = |revision| {
        c.list_at(&ListScope::default(), revision)
            .map(|s| shown(&s).into_iter().map(|(k, r)| (k.to_owned(), r)).collect::<Vec<_>>())
    };
    let own = |list: &[(&str, i64)]| Ok(list.iter().map(|(k, r)| ((*k).to_owned(), *r)).collect::<Vec<_>>());
    assert_eq!(at(6), own(&[("a/x", 3), ("b/y", 5)]));
    assert_eq!(at(7), own(&[("a/m", 7), ("a/x", 3), ("b/y", 5)]));
    assert_eq!(at(8), own(&[("a/m", 7), ("a/x", 8), ("b/y", 5)]));
    assert_eq!(at(10), own(&[("a/m", 7), ("a/x", 9)]));
    assert_eq!(at(12), own(&[("a/x", 9), ("c/c", 12)]));
    assert_eq!(at(99), own(&[("a/x", 9), ("c/c", 12)]));
    assert_eq!(at(5), Err(CacheError::TooOld { asked: 5, oldest: 6 }));
    let page =
        c.list_at(&ListScope { prefix: "a/", start: "a/m\0", limit: 1, ..ListScope::default() }, 8).expect("known");
    assert_eq!((shown(&page), page.more), (vec![("a/x", 8)], false));
}

#[test]
fn history_is_prepended() {
    let c = cacher();
    c.put(entry("a/x", 7, "2"));
    let (first, second) = (Arc::new(entry("a/x", 2, "0")), Arc::new(entry("a/x", 3, "1")));
    let changes = vec![
        Change { revision: 2, after: Some(first.clone()), before: None },
        Change { revision: 3, after: Some(second), before: Some(first) },
        Change { revision: 5, after: Some(Arc::new(entry("b/y", 5, "1"))), before: None },
    ];
    c.prepend_history(1, 6, changes);
    let w = watch(&c, Start::After(2), all()).expect("known now");
    assert_eq!(w.replay.iter().map(|c| c.revision).collect::<Vec<_>>(), [3, 5, 7]);
    assert_eq!(shown(&c.list_at(&ListScope::default(), 2).expect("known now")), [("a/x", 2)]);
    assert_eq!(watch(&c, Start::After(0), all()).err(), Some(CacheError::TooOld { asked: 0, oldest: 1 }));
}

#[test]
fn history_that_leaves_a_gap_is_not_added() {
    let c = cacher();
    let history = vec![Change { revision: 4, after: Some(Arc::new(entry("a/x", 4, "1"))), before: None }];
    // It was read up to where this began; meanwhile this knows no more from there.
    let ring = i64::try_from(RING).expect("small");
    for i in 7..=10 + ring {
        c.put(entry("a/x", i, "1"));
    }
    let floor = c.floor();
    assert!(floor > 6);
    c.prepend_history(3, 6, history);
    assert_eq!(c.floor(), floor);
}

#[test]
fn stale_cache_is_not_served_to_consistent_reads() {
    let c = cacher();
    let mut open = watch(&c, Start::After(6), all()).expect("in the ring");
    c.invalidate();
    assert_eq!(open.receiver.try_recv().expect_err("it ended"), mpsc::error::TryRecvError::Disconnected);
    let again = Some(CacheError::Restarting);
    assert_eq!(c.list(&ListScope::default(), 9).err(), again);
    assert_eq!(c.list_at(&ListScope::default(), 9).err(), again);
    assert_eq!(c.current("a/x").err(), again);
    assert_eq!(watch(&c, Start::State, all()).err(), again);
    // Policies go by what was known.
    assert_eq!((c.get("a/x").is_some(), c.cached_entries("").len()), (true, 2));
    c.reset(vec![Arc::new(entry("a/x", 9, "1"))], 9, |_| {});
    assert_eq!(c.current("a/x").map(|e| e.map(|e| e.revision)), Ok(Some(9)));
    assert!(watch(&c, Start::State, all()).is_ok());
}

#[test]
fn indexed_lists_equal_full_scans() {
    let c = Cacher::default();
    let label = |i: usize| ["1", "2", "3"][i % 3];
    c.reset((0..300).map(|i| Arc::new(entry(&format!("n{}/{i:03}", i % 2), 1, label(i)))).collect(), 6, |_| {});
    for values in [vec!["2".to_owned()], vec!["3".to_owned(), "1".to_owned()], vec!["4".to_owned()]] {
        let wanted = values.clone();
        let filter: Filter = Arc::new(move |e| e.label("l").is_some_and(|v| wanted.iter().any(|w| w == v)));
        let term = Term { by: IndexKey::Label("l".into()), values };
        let plain = ListScope { prefix: "n1/", start: "n1/100", limit: 20, filter: Some(&filter), term: None };
        let expected = c.list(&plain, 0).expect("ready");
        for _ in 0..3 {
            let found = c.list(&ListScope { term: Some(&term), ..plain }, 0).expect("ready");
            assert_eq!((shown(&found), found.more), (shown(&expected), expected.more));
        }
    }
}

#[test]
fn followers_receive_changes() {
    let c = cacher();
    let seen = |since: u64| {
        let s = c.since(since);
        let keys: Vec<String> =
            s.entries.iter().map(|(e, gone)| format!("{}{}", if *gone { "-" } else { "" }, e.key)).collect();
        (s.sequence, s.complete, keys.join(" "))
    };
    let (start, complete, keys) = seen(0);
    assert_eq!((complete, keys.as_str()), (true, "a/x b/y"));
    c.put(entry("a/z", 7, "1"));
    let between = c.sequence();
    // The end of a lease deletes several keys at one revision.
    c.delete("a/x", 8);
    let half = c.sequence();
    c.delete("b/y", 8);
    assert_eq!(seen(start), (c.sequence(), false, "a/z -a/x -b/y".to_owned()));
    assert_eq!(seen(between), (c.sequence(), false, "-a/x -b/y".to_owned()));
    assert_eq!(seen(half), (c.sequence(), false, "-b/y".to_owned()));
    c.reset(vec![Arc::new(entry("a/n", 9, "1"))], 9, |_| {});
    c.prepend_history(7, 9, vec![Change { revision: 8, after: None, before: Some(Arc::new(entry("b/y", 5, "1"))) }]);
    assert_eq!(seen(half), (c.sequence(), true, "a/n".to_owned()), "a new list replaces everything");
}

#[test]
fn changes_during_the_initial_list_are_applied() {
    let c = cacher();
    let before = c.sequence();
    let waiting = c.ready.subscribe();
    c.invalidate();
    c.reset(vec![Arc::new(entry("a/x", 9, "1")), Arc::new(entry("b/y", 5, "1"))], 9, |state| {
        assert!(!*waiting.borrow(), "nobody reads half of it");
        // Known from the list, or older than it.
        state.put(entry("a/x", 9, "2"));
        state.delete("b/y", 8);
        state.put(entry("a/x", 11, "3"));
        state.delete("b/y", 12);
        state.put(entry("c/z", 13, "1"));
    });
    // Whoever knows that the caches have got to 20 takes this for the list of that moment.
    let list = c.list(&ListScope::default(), 20).expect("ready");
    assert_eq!((shown(&list), list.revision), (vec![("a/x", 11), ("c/z", 13)], 20));
    let w = watch(&c, Start::After(9), all()).expect("what was read is the oldest that is known");
    assert_eq!(w.replay.iter().map(|c| c.revision).collect::<Vec<_>>(), [11, 12, 13]);
    assert!(c.since(before).complete, "who knew what was before learns all there is");
    assert_eq!(c.since(c.sequence() - 1).entries.len(), 1);
}
