//! Checks a history: one order of writes must explain every response, every list and every event. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Outcome of a write request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged, at this revision (0: the answer names none).
    Done(i64),
    /// Refused: nothing was written.
    Refused,
    /// No answer, or one that says nothing.
    Unknown,
}

/// Intent of a write request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Leave this mark in the object; marks are unique.
    Mark(String),
    /// Delete the object as it was at this revision.
    Delete(i64),
}

/// A request to write.
#[derive(Debug, Clone)]
pub struct Write {
    pub name: String,
    pub wish: Wish,
    pub outcome: Outcome,
    /// Time of the response, in microseconds.
    pub ended: u64,
}

/// A consistent list.
#[derive(Debug, Clone)]
pub struct List {
    pub began: u64,
    pub revision: i64,
    /// Marks and revisions by name.
    pub items: BTreeMap<String, (String, i64)>,
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `ADDED`, `MODIFIED`, `DELETED`; anything else is a violation.
    pub kind: String,
    pub name: String,
    pub mark: String,
    pub revision: i64,
}

/// All observations.
#[derive(Debug, Default)]
pub struct History {
    pub writes: Vec<Write>,
    pub lists: Vec<List>,
    /// One stream per watcher, resumed but never begun anew; all from the same revision to the same last event.
    pub watches: Vec<Vec<Event>>,
}

type State = BTreeMap<String, (String, i64)>;

/// Lists the violations; empty when the history is possible.
pub fn violations(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    for (n, events) in history.watches.iter().enumerate() {
        one_watch(n, events, &mut wrong);
    }
    let Some(events) = history.watches.first() else { return wrong };
    for (n, other) in history.watches.iter().enumerate().skip(1) {
        if let Some(at) = (0..events.len().max(other.len())).find(|i| events.get(*i) != other.get(*i)) {
            wrong.push(format!("watches 0 and {n} differ at {at}: {:?} and {:?}", events.get(at), other.get(at)));
        }
    }
    writes(&history.writes, events, &mut wrong);
    lists(history, events, &mut wrong);
    wrong
}

/// Revisions go up, and each event follows from the state before it.
fn one_watch(n: usize, events: &[Event], wrong: &mut Vec<String>) {
    let (mut last, mut there) = (0, BTreeSet::new());
    for event in events {
        if event.revision <= last {
            wrong.push(format!("watch {n}: {event:?} after revision {last}"));
        }
        last = event.revision;
        let follows = match event.kind.as_str() {
            "ADDED" => there.insert(event.name.clone()),
            "MODIFIED" => there.contains(&event.name),
            "DELETED" => there.remove(&event.name),
            _ => false,
        };
        if !follows {
            wrong.push(format!("watch {n}: {event:?} does not follow from what was told before"));
        }
    }
}

/// Acknowledged writes are seen once, refused ones never, others at most once; nothing else is seen.
fn writes(writes: &[Write], events: &[Event], wrong: &mut Vec<String>) {
    let mut seen: HashMap<&str, Vec<&Event>> = HashMap::new();
    // Which revision of an object a deletion took away.
    let mut gone: HashMap<(&str, i64), usize> = HashMap::new();
    let mut current: HashMap<&str, i64> = HashMap::new();
    for event in events {
        if event.kind == "DELETED" {
            *gone.entry((&event.name, current.get(event.name.as_str()).copied().unwrap_or(0))).or_default() += 1;
        } else {
            seen.entry(&event.mark).or_default().push(event);
            current.insert(&event.name, event.revision);
        }
    }
    for write in writes {
        let found: Vec<i64> = match &write.wish {
            Wish::Mark(mark) => {
                let events = seen.remove(mark.as_str()).unwrap_or_default();
                events.iter().filter(|e| e.name == write.name).map(|e| e.revision).collect()
            }
            Wish::Delete(revision) => {
                let times = gone.get(&(write.name.as_str(), *revision)).copied().unwrap_or(0);
                // Several may have asked to delete the same; only one was told that it did.
                if write.outcome != Outcome::Done(0) && times <= 1 {
                    continue;
                }
                vec![0; times]
            }
        };
        let fits = match write.outcome {
            Outcome::Done(revision) => found == [revision],
            Outcome::Refused => found.is_empty(),
            Outcome::Unknown => found.len() <= 1,
        };
        if !fits {
            wrong.push(format!("{write:?} is seen at {found:?}"));
        }
    }
    for (mark, events) in seen {
        wrong.push(format!("nobody wrote {mark:?}: {events:?}"));
    }
}

/// A list is the state at its revision, and knows what was acknowledged before it was asked for.
fn lists(history: &History, events: &[Event], wrong: &mut Vec<String>) {
    let mut acknowledged: Vec<(u64, i64)> = history
        .writes
        .iter()
        .filter_map(|w| match w.outcome {
            Outcome::Done(revision) if revision > 0 => Some((w.ended, revision)),
            _ => None,
        })
        .collect();
    acknowledged.sort_unstable();
    let mut lists: Vec<&List> = history.lists.iter().collect();
    lists.sort_by_key(|l| l.revision);
    let (mut state, mut next) = (State::new(), events.iter().peekable());
    for list in lists {
        while let Some(event) = next.next_if(|e| e.revision <= list.revision) {
            if event.kind == "DELETED" {
                state.remove(&event.name);
            } else {
                state.insert(event.name.clone(), (event.mark.clone(), event.revision));
            }
        }
        if state != list.items {
            wrong.push(format!("a list at {} shows {:?}, the watches say {state:?}", list.revision, list.items));
        }
        let before = acknowledged.iter().take_while(|(ended, _)| *ended < list.began);
        if let Some(newest) = before.map(|(_, revision)| *revision).max().filter(|n| *n > list.revision) {
            wrong.push(format!("a list at {} does not know the write at {newest} before it", list.revision));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, mark: &str, revision: i64) -> Event {
        Event { kind: kind.to_owned(), name: "a".to_owned(), mark: mark.to_owned(), revision }
    }

    fn write(mark: &str, outcome: Outcome) -> Write {
        Write { name: "a".to_owned(), wish: Wish::Mark(mark.to_owned()), outcome, ended: 10 }
    }

    fn good() -> History {
        let events = vec![event("ADDED", "1", 5), event("MODIFIED", "2", 6), event("DELETED", "2", 9)];
        let delete = Write { wish: Wish::Delete(6), outcome: Outcome::Done(0), ..write("", Outcome::Unknown) };
        let items = State::from([("a".to_owned(), ("2".to_owned(), 6))]);
        History {
            writes: vec![
                write("1", Outcome::Done(5)),
                write("2", Outcome::Unknown),
                write("3", Outcome::Refused),
                write("4", Outcome::Unknown),
                delete,
            ],
            lists: vec![List { began: 11, revision: 7, items }],
            watches: vec![events.clone(), events],
        }
    }

    #[test]
    fn possible_histories_pass() {
        assert_eq!(violations(&good()), Vec::<String>::new());
    }

    #[test]
    fn impossible_histories_fail() {
        let broken = |why: &str, change: &dyn Fn(&mut History)| {
            let mut history = good();
            change(&mut history);
            assert!(!violations(&history).is_empty(), "{why}");
        };
        broken("a gap", &|h| drop(h.watches[1].remove(1)));
        broken("a duplicate", &|h| h.watches.iter_mut().for_each(|w| w.insert(1, w[0].clone())));
        broken("out of order", &|h| h.watches.iter_mut().for_each(|w| w.swap(0, 1)));
        broken("an error event", &|h| h.watches[0].push(event("ERROR", "", 10)));
        broken("an acknowledged write is lost", &|h| h.writes.push(write("5", Outcome::Done(8))));
        broken("it is at another revision", &|h| h.writes[0].outcome = Outcome::Done(4));
        broken("a refused write is there", &|h| h.writes[0].outcome = Outcome::Refused);
        broken("nobody wrote it", &|h| drop(h.writes.remove(1)));
        broken("an acknowledged deletion did not happen", &|h| h.writes[4].wish = Wish::Delete(5));
        broken("a list shows what was not", &|h| h.lists[0].items.clear());
        broken("a list is old", &|h| {
            h.lists[0].revision = 4;
            h.lists[0].items.clear();
        });
    }
}
