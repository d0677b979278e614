//! Clients that write, list and watch through several servers on one etcd while something breaks, and remember what
//! they saw. What they do follows from a seed; when, from the machine.

pub mod check;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::client::Client;
use crate::dice::Dice;
use check::{Event, History, List, Outcome, Wish, Write};

const NAMESPACE: &str = "default";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LABEL: &str = "labelSelector=history%3Dyes";
/// Objects that are fought over.
const NAMES: u64 = 6;
/// The last object written.
const END: &str = "end";
/// A request that is not answered in this time has no known outcome.
const PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(20);
/// Time that a watch is followed on one connection: servers end it before that, unless they are out of reach.
const WATCH: Duration = Duration::from_secs(25);
/// Time after the damage in which all must have been seen.
const LATE: Duration = Duration::from_secs(300);

fn revision(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|r| r.parse().ok()).unwrap_or(0)
}

fn mark(object: &Value) -> String {
    object["data"]["mark"].as_str().unwrap_or("").to_owned()
}

fn object(name: &str, mark: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"history": "yes"}}, "data": {"mark": mark}})
}

/// Writes and lists of one client.
struct Worker {
    id: usize,
    client: Client,
    dice: Dice,
    start: Instant,
    writes: Vec<Write>,
    lists: Vec<List>,
}

impl Worker {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    async fn ask(&self, method: &str, path: &str, kind: &str, body: Option<Value>) -> Option<(u16, Value)> {
        let body = body.map(|b| Bytes::from(b.to_string()));
        let headers = [("Content-Type", kind)];
        let headers = if kind.is_empty() { &headers[..0] } else { &headers[..] };
        let answer =
            tokio::time::timeout(PATIENCE, self.client.try_call(method, path, headers, body)).await.ok()?.ok()?;
        Some((answer.code, answer.json()))
    }

    fn remember(&mut self, name: &str, wish: Wish, answer: Option<(u16, Value)>) {
        let outcome = match &answer {
            Some((200 | 201, object)) => Outcome::Done(match wish {
                Wish::Mark(_) => revision(object),
                Wish::Delete(_) => 0,
            }),
            Some((code, _)) if (400..500).contains(code) && *code != 429 => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        let ended = self.now();
        self.writes.push(Write { name: name.to_owned(), wish, outcome, ended });
    }

    async fn step(&mut self) {
        let name = format!("n{}", self.dice.roll(NAMES));
        let path = format!("{MAPS}/{name}");
        let new = format!("{}-{}", self.id, self.writes.len());
        match self.dice.roll(10) {
            0..=2 => {
                let answer = self.ask("POST", MAPS, "application/json", Some(object(&name, &new))).await;
                self.remember(&name, Wish::Mark(new), answer);
            }
            3..=4 => {
                let Some((200, found)) = self.ask("GET", &path, "", None).await else { return };
                let mut changed = object(&name, &new);
                changed["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
                let answer = self.ask("PUT", &path, "application/json", Some(changed)).await;
                self.remember(&name, Wish::Mark(new), answer);
            }
            5..=6 => {
                let patch = json!({"data": {"mark": new}});
                let answer = self.ask("PATCH", &path, "application/merge-patch+json", Some(patch)).await;
                self.remember(&name, Wish::Mark(new), answer);
            }
            7 => {
                let Some((200, found)) = self.ask("GET", &path, "", None).await else { return };
                let at = revision(&found);
                let options = json!({"preconditions": {"resourceVersion": at.to_string()}});
                let answer = self.ask("DELETE", &path, "application/json", Some(options)).await;
                self.remember(&name, Wish::Delete(at), answer);
            }
            _ => {
                let began = self.now();
                let Some((200, list)) = self.ask("GET", &format!("{MAPS}?{LABEL}"), "", None).await else { return };
                let of = |o: &Value| (o["metadata"]["name"].as_str().unwrap_or("").to_owned(), (mark(o), revision(o)));
                let items = list["items"].as_array().into_iter().flatten().map(of).collect();
                self.lists.push(List { began, revision: revision(&list), items });
            }
        }
    }
}

/// Follows one server from a revision to the target, once there is one, resuming where it was whenever the stream ends.
async fn follow(client: Client, from: i64, target: Arc<AtomicI64>, given_up: Arc<AtomicBool>) -> Vec<Event> {
    let (mut events, mut last) = (Vec::new(), from);
    while !given_up.load(Ordering::Acquire) {
        let path = format!("{MAPS}?watch=1&{LABEL}&timeoutSeconds=20&resourceVersion={last}");
        let mut take = |frame: Value| {
            let object = &frame["object"];
            let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
            let mut event = Event {
                kind: text(&frame["type"]),
                name: text(&object["metadata"]["name"]),
                mark: mark(object),
                revision: revision(object),
            };
            if event.kind == "ERROR" {
                event.mark = text(&object["message"]);
            }
            // A server that has just begun may not know that moment yet, and says so.
            let later = event.kind == "ERROR" && matches!(object["code"].as_u64(), Some(429 | 500..=504));
            if !later {
                last = last.max(event.revision);
                events.push(event);
            }
            let target = target.load(Ordering::Acquire);
            (target > 0 && last >= target) || events.last().is_some_and(|e| e.kind == "ERROR")
        };
        if let Ok(Ok(true)) = tokio::time::timeout(WATCH, client.try_watch(&path, &mut take)).await {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    events
}

/// Runs `workers` clients and a watcher per server for as long as `breaking` takes, which does the damage and leaves
/// all servers running. `client(n)` connects to the server of that number.
pub async fn run(
    seed: u64,
    workers: usize,
    servers: usize,
    client: impl Fn(usize) -> Client,
    breaking: impl Future<Output = ()>,
) -> History {
    let first = client(0);
    let from = revision(&first.get(MAPS).await.ok());
    let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let (target, given_up) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
    let watches: Vec<_> =
        (0..servers).map(|n| tokio::spawn(follow(client(n), from, target.clone(), given_up.clone()))).collect();
    let running: Vec<_> = (0..workers)
        .map(|id| {
            let dice = Dice::new(seed ^ (id as u64).wrapping_mul(0x1234_5678_9abc_def1));
            let mut worker =
                Worker { id, client: client(id % servers), dice, start, writes: Vec::new(), lists: Vec::new() };
            let stop = stop.clone();
            tokio::spawn(async move {
                while !stop.load(Ordering::Acquire) {
                    worker.step().await;
                    // A server that is away refuses at once.
                    let refused = worker.writes.last().is_some_and(|write| write.outcome == Outcome::Unknown);
                    tokio::time::sleep(if refused { PAUSE } else { Duration::ZERO }).await;
                }
                worker
            })
        })
        .collect();
    breaking.await;
    let give_up = Instant::now() + LATE;
    stop.store(true, Ordering::Release);
    let mut history = History::default();
    for worker in running {
        let worker = worker.await.expect("a worker");
        history.writes.extend(worker.writes);
        history.lists.extend(worker.lists);
    }
    let mut last =
        Worker { id: workers, client: first, dice: Dice::new(0), start, writes: Vec::new(), lists: Vec::new() };
    while !last.writes.iter().any(|w| matches!(w.outcome, Outcome::Done(_))) && Instant::now() < give_up {
        let mark = format!("end-{}", last.writes.len());
        let answer =
            last.ask("PATCH", &format!("{MAPS}/{END}?fieldManager=h&force=true"), APPLY, Some(applied(&mark))).await;
        last.remember(END, Wish::Mark(mark), answer);
    }
    let end = last.writes.iter().find_map(|w| if let Outcome::Done(at) = w.outcome { Some(at) } else { None });
    let end = end.unwrap_or(i64::MAX);
    history.writes.append(&mut last.writes);
    target.store(end, Ordering::Release);
    // Those who were there already learn from one more change that they may go.
    while watches.iter().any(|w| !w.is_finished()) && Instant::now() < give_up {
        let nudge = format!("nudge-{}", last.now());
        last.ask("PATCH", &format!("{MAPS}/{END}?fieldManager=h&force=true"), APPLY, Some(applied(&nudge))).await;
        tokio::time::sleep(PAUSE).await;
    }
    given_up.store(true, Ordering::Release);
    for watch in watches {
        let mut events = watch.await.expect("a watcher");
        events.retain(|e| e.revision <= end);
        history.watches.push(events);
    }
    history
}

const APPLY: &str = "application/apply-patch+yaml";

/// The last object, made whether or not an earlier attempt did it.
fn applied(mark: &str) -> Value {
    let mut object = object(END, mark);
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("ConfigMap");
    object["metadata"]["namespace"] = json!(NAMESPACE);
    object
}

/// Number of writes by outcome, for the report.
pub fn summary(history: &History) -> BTreeMap<&'static str, usize> {
    let count = |wanted: fn(&Outcome) -> bool| history.writes.iter().filter(|w| wanted(&w.outcome)).count();
    BTreeMap::from([
        ("acknowledged", count(|o| matches!(o, Outcome::Done(_)))),
        ("refused", count(|o| *o == Outcome::Refused)),
        ("unknown", count(|o| *o == Outcome::Unknown)),
        ("lists", history.lists.len()),
        ("events", history.watches.iter().map(Vec::len).sum()),
    ])
}
