//! WATCH: initial state or replay, then changes as they happen, with bookmarks, until the deadline.
//!
//! Hot path: the frame of a change is made once for all watchers that see it alike. A watcher that does not keep up is closed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use proto::resources::Row;
use proto::{Value, cbor, protobuf, schema};
use rand::Rng as _;
use serde_json::json;
use shared::status::Status;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::engine::{Engine, storage_status};
use super::list::{Asked, begins_with_state, check, put, scope};
use super::select::Selection;
use super::table::{self, Include};
use super::watch_meters::Sent;
use super::{Body, Reply, Request, accepted, get, namespace_of};
use crate::cache::{Begin, Change, Entry, Filter, Message, Progress, Raw, Seen, Start, Watch};
use crate::negotiate::{self, Accepted, Format, Shape};
use crate::serve::info::names_object;
use crate::storage::codec;

/// Bytes after which a batch of frames is sent, where frames may be sent together.
const BATCH: usize = 64 << 10;
/// Time between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Time before its end at which a watch says how far it got, so that its client need not go back to go on.
const BEFORE_THE_END: Duration = Duration::from_secs(2);
/// Marks the bookmark after the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Turns changes into frames of one watch.
struct Framer {
    engine: Arc<Engine>,
    row: Row,
    accepted: Accepted,
    include: Include,
    headers_sent: bool,
}

impl Framer {
    fn progress(&self) -> &Progress {
        self.engine.hub.progress(&self.row.storage())
    }

    fn own(&self) -> bool {
        // Custom resources are brought into the row's version before they are framed.
        self.row.custom.is_some() || self.row.is_storage()
    }

    fn frame(&self, kind: &str, object: &[u8], out: &mut Vec<u8>) {
        if self.accepted.format == Format::Protobuf {
            let mut raw = Vec::with_capacity(object.len() + 8);
            put(&mut raw, 0x0a, object);
            let mut event = Vec::with_capacity(raw.len() + 24);
            put(&mut event, 0x0a, kind.as_bytes());
            put(&mut event, 0x12, &raw);
            out.extend_from_slice(&u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(&event);
            return;
        }
        if self.accepted.format == Format::Cbor {
            out.extend_from_slice(&cbor::event(kind, object));
            return;
        }
        out.extend_from_slice(br#"{"type":""#);
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(br#"","object":"#);
        out.extend_from_slice(object.trim_ascii_end());
        out.extend_from_slice(b"}\n");
    }

    /// Encodes a tree with type metadata, in the client's form.
    fn tree(&mut self, object: &Value) -> Vec<u8> {
        let tree;
        let (schema, value) = match self.accepted.shape {
            // A change is about one object, which has no form as a list: it is sent as it is.
            Shape::Object | Shape::MetadataList(_) => (codec::served_schema(&self.row).ok(), object),
            Shape::Metadata(version) => {
                tree = negotiate::metadata_of(object, version);
                (schema::kind("meta.k8s.io", "v1", "PartialObjectMetadata"), &tree)
            }
            Shape::Table(version) => {
                let meta = json!({"resourceVersion": crate::registry::meta::text(object, "resourceVersion")});
                let headers = !std::mem::replace(&mut self.headers_sent, true);
                tree = table::tabulate(&self.row, version, std::iter::once(object), self.include, meta, headers);
                (negotiate::table_kind("v1"), &tree)
            }
        };
        negotiate::envelope(self.accepted.format, false, schema, value)
    }

    fn object(&mut self, raw: &Raw) -> Vec<u8> {
        if self.accepted.shape == Shape::Object && self.own() {
            match (self.accepted.format, raw) {
                (Format::Protobuf, Raw::Proto(bytes)) => {
                    return protobuf::wrap(&self.row.api_version(), &self.row.kind, bytes);
                }
                (Format::Json, _) => {
                    let mut out = Vec::with_capacity(raw.size() * 2);
                    if codec::to_json(&self.row, raw, &mut out).is_ok() {
                        return out;
                    }
                }
                _ => {}
            }
        }
        match get::served(&self.engine, &self.row, raw) {
            Ok(tree) => self.tree(&tree),
            // What entered the cache was readable then.
            Err(_) => b"null".to_vec(),
        }
    }

    /// A frame for an entry; `revision` is that of the change it is shown for.
    fn entry(&mut self, seen: Seen, entry: &Entry, revision: i64, out: &mut Vec<u8>) {
        if entry.revision != revision {
            let object = self.object(&codec::restamp(&entry.raw, revision));
            return self.frame(seen.as_str(), &object, out);
        }
        let plain = self.accepted.shape == Shape::Object && self.accepted.format == Format::Json && self.own();
        if plain && entry.encoded.json.get().is_some() {
            let mut object = Vec::with_capacity(entry.raw.size() * 2);
            if table::typed_json(&self.row, entry, &mut object).is_ok() {
                return self.frame(seen.as_str(), &object, out);
            }
        }
        let object = self.object(&entry.raw);
        self.frame(seen.as_str(), &object, out);
    }

    /// The frame of a change, made once for all watchers that see it alike.
    fn live(&mut self, m: &Message) -> Bytes {
        let change = &m.live.change;
        let shared = match self.accepted.format {
            Format::Json => Some(&m.live.json),
            Format::Protobuf => Some(&m.live.protobuf),
            _ => None,
        };
        let alike = self.accepted.shape == Shape::Object && self.own() && change.natural() == Some(m.seen);
        let mut make = || {
            let mut out = Vec::with_capacity(m.entry.raw.size() * 2 + 64);
            self.entry(m.seen, &m.entry, change.revision, &mut out);
            Bytes::from(out)
        };
        match shared.filter(|_| alike) {
            Some(slot) => slot.get_or_init(make).clone(),
            None => make(),
        }
    }

    fn bookmark(&mut self, revision: i64, initial_end: bool, out: &mut Vec<u8>) {
        let mut meta = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            meta["annotations"] = json!({INITIAL_END: "true"});
        }
        let object = json!({"kind": self.row.kind, "apiVersion": self.row.api_version(), "metadata": meta});
        let bytes = match self.accepted.shape {
            Shape::Table(version) => {
                let headers = !std::mem::replace(&mut self.headers_sent, true);
                let one = initial_end.then_some(&object);
                let tree = table::tabulate(&self.row, version, one.into_iter(), self.include, meta, headers);
                negotiate::envelope(self.accepted.format, false, negotiate::table_kind("v1"), &tree)
            }
            _ => self.tree(&object),
        };
        self.frame("BOOKMARK", &bytes, out);
    }

    fn error(&self, status: &Status, out: &mut Vec<u8>) {
        let bytes = negotiate::status(self.accepted.format, false, status);
        self.frame("ERROR", &bytes, out);
    }
}

struct Session {
    framer: Framer,
    watch: Watch,
    initial: VecDeque<Arc<Entry>>,
    /// A bookmark is due after the initial events.
    initial_end: bool,
    bookmarks: bool,
    /// Changes up to here are known to the client.
    after: i64,
    next_bookmark: Pin<Box<Sleep>>,
    deadline: Pin<Box<Sleep>>,
    filter: Filter,
    /// What has to be judged in the row's version.
    apart: Option<Selection>,
    /// What was sent.
    sent: Sent,
    /// Bytes after which a batch of frames is sent.
    batch: usize,
    closing: CancellationToken,
    /// Waits for it; made once, for everybody who waits for it stands in one line.
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Frames about to be sent: a single one is not copied.
#[derive(Default)]
struct Batch {
    only: Option<Bytes>,
    more: Vec<u8>,
    frames: u32,
}

impl Batch {
    fn push(&mut self, frame: Bytes) {
        self.frames += 1;
        match self.only.take() {
            None if self.more.is_empty() => self.only = Some(frame),
            first => {
                self.more.extend_from_slice(first.as_deref().unwrap_or_default());
                self.more.extend_from_slice(&frame);
            }
        }
    }

    fn len(&self) -> usize {
        self.only.as_ref().map_or(self.more.len(), Bytes::len)
    }

    fn take(&mut self) -> Option<Bytes> {
        let more = std::mem::take(&mut self.more);
        self.only.take().or_else(|| (!more.is_empty()).then(|| Bytes::from(more)))
    }
}

impl Session {
    /// The next batch of frames; `None` ends the watch.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first().await {
            return Some(first);
        }
        let mut batch = Batch::default();
        // Changes that keep coming put nothing off.
        let now = Instant::now();
        if self.closing.is_cancelled() || now >= self.deadline.deadline() {
            return None;
        }
        if self.bookmarks && now >= self.next_bookmark.deadline() {
            self.bookmark(&mut batch).await;
        }
        loop {
            if let Some(bytes) = batch.take() {
                self.sent.events(batch.frames);
                return Some(bytes);
            }
            tokio::select! {
                biased;
                message = self.watch.receiver.recv() => {
                    self.one(&message?, &mut batch).await;
                    while batch.len() < self.batch {
                        let Ok(m) = self.watch.receiver.try_recv() else { break };
                        self.one(&m, &mut batch).await;
                    }
                }
                () = self.closed.as_mut() => return None,
                () = self.deadline.as_mut() => return None,
                () = self.next_bookmark.as_mut(), if self.bookmarks => self.bookmark(&mut batch).await,
            }
        }
    }

    async fn bookmark(&mut self, batch: &mut Batch) {
        // Everything up to this revision is in the channel already.
        let revision = self.framer.progress().processed();
        if self.batch == 1 && !self.watch.receiver.is_empty() {
            // Its turn comes after theirs.
            return;
        }
        while let Ok(m) = self.watch.receiver.try_recv() {
            self.one(&m, batch).await;
        }
        if revision > self.after {
            let mut out = Vec::new();
            self.framer.bookmark(revision, false, &mut out);
            batch.push(Bytes::from(out));
        }
        let due = bookmark_due(Instant::now(), self.deadline.deadline());
        self.next_bookmark.as_mut().reset(due);
    }

    /// What comes before live changes: the state, its end, the replay.
    async fn first(&mut self) -> Option<Bytes> {
        if self.initial.is_empty() && !self.initial_end && self.watch.replay.is_empty() {
            return None;
        }
        let mut out = Vec::new();
        while let Some(e) = self.initial.pop_front() {
            let before = out.len();
            match self.apart.is_some() {
                true => {
                    self.judged(&Change { before: None, after: Some(e.clone()), revision: e.revision }, &mut out).await
                }
                false => self.entry(Seen::Added, &e, e.revision, &mut out).await,
            }
            self.sent.events(1);
            self.sent.sized(out.len() - before);
            if out.len() >= self.batch {
                return Some(Bytes::from(out));
            }
        }
        if std::mem::take(&mut self.initial_end) {
            self.framer.bookmark(self.watch.revision, true, &mut out);
            self.sent.listed();
            if out.len() >= self.batch {
                return Some(Bytes::from(out));
            }
        }
        // Oldest last, so that those that are sent can be let go.
        while let Some(change) = self.watch.replay.pop() {
            if self.apart.is_some() {
                self.judged(&change, &mut out).await;
            } else if let Some((seen, entry)) = change.seen(&*self.filter) {
                self.entry(seen, entry, change.revision, &mut out).await;
            }
            if out.len() >= self.batch {
                break;
            }
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }

    async fn one(&mut self, m: &Message, batch: &mut Batch) {
        let revision = m.live.change.revision;
        if revision <= self.after {
            return;
        }
        if !crate::crd::changes_version(&self.framer.row) {
            let frame = self.framer.live(m);
            self.sent.sized(frame.len());
            batch.push(frame);
            return;
        }
        let mut out = Vec::new();
        if self.apart.is_some() {
            self.judged(&m.live.change, &mut out).await;
        } else {
            self.entry(m.seen, &m.entry, revision, &mut out).await;
        }
        if !out.is_empty() {
            self.sent.sized(out.len());
            batch.push(Bytes::from(out));
        }
    }

    /// A frame for a change of which only the row's version tells how it looks.
    async fn judged(&mut self, change: &Change, out: &mut Vec<u8>) {
        let Some(selection) = &self.apart else { return };
        let mut sides = [None, None];
        for (side, entry) in sides.iter_mut().zip([&change.before, &change.after]) {
            let Some(entry) = entry.as_ref().filter(|e| (self.filter)(e)) else { continue };
            match self.framer.engine.in_version(&self.framer.row, vec![entry.clone()]).await {
                Ok(mut converted) => *side = converted.pop(),
                Err(status) => return self.framer.error(&status, out),
            }
        }
        let [before, after] = sides;
        let converted = Change { before, after, revision: change.revision };
        if let Some((seen, entry)) = converted.seen(|e| selection.matches(e)) {
            self.framer.entry(seen, entry, change.revision, out);
        }
    }

    /// A frame for an entry, in the row's version.
    async fn entry(&mut self, seen: Seen, entry: &Arc<Entry>, revision: i64, out: &mut Vec<u8>) {
        if !crate::crd::changes_version(&self.framer.row) {
            return self.framer.entry(seen, entry, revision, out);
        }
        match self.framer.engine.in_version(&self.framer.row, vec![entry.clone()]).await {
            Ok(converted) => converted.iter().for_each(|e| self.framer.entry(seen, e, revision, out)),
            Err(status) => self.framer.error(&status, out),
        }
    }
}

/// When the next bookmark is due in a watch that ends at `deadline`.
fn bookmark_due(now: Instant, deadline: Instant) -> Instant {
    let (regular, last) = (now + BOOKMARK_EVERY, deadline.checked_sub(BEFORE_THE_END));
    last.filter(|last| now < *last && *last < regular).unwrap_or(regular)
}

/// A watch that nothing ends but its client.
const ENDLESS: Duration = Duration::from_secs(365 * 86_400);

/// How much a watch is about.
fn word_of_scope(r: &Request, namespace: &str) -> &'static str {
    match (r.info.name.is_empty(), namespace.is_empty()) {
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    }
}

/// The verb.
pub async fn watch(engine: &Arc<Engine>, r: &Request, row: &Row) -> Result<Reply, Status> {
    let (accepted, since) = (accepted(r, true)?, std::time::Instant::now());
    check(&r.query, Asked::Watch(engine.policy.watch_lists))?;
    let include = if matches!(accepted.shape, Shape::Table(_)) { Include::read(&r.query)? } else { Include::Metadata };
    let mut selection = Selection::read(&r.query, row)?;
    if names_object(&r.info) && !r.info.name.is_empty() {
        selection = selection.named(&r.info.name);
    }
    let at = get::revision(r.query.get("resourceVersion").unwrap_or("")).map_err(|e| Status::unknown(&e))?;
    let seconds = r.query.int("timeoutSeconds")?.filter(|n| *n > 0);
    let timeout = seconds.map_or_else(
        || match engine.policy.shortest_watch {
            0 => ENDLESS,
            least => Duration::from_secs(rand::rng().random_range(least..least.saturating_mul(2))),
        },
        |n| Duration::from_secs(n.unsigned_abs()),
    );
    let bookmarks = r.query.flag("allowWatchBookmarks");
    let begins = engine.policy.watch_lists && begins_with_state(&r.query);
    let send_initial = r.query.maybe_flag("sendInitialEvents").or(begins.then_some(true));
    let namespace = namespace_of(&r.info, row);
    let scope = scope(namespace);

    let storage = row.storage();
    let (cacher, progress) = (engine.hub.cacher(&storage), engine.hub.progress(&storage));
    get::ready(&cacher).await?;
    let mut after = 0;
    let start = match (send_initial, at) {
        (Some(true), Some(n)) if n > 0 => {
            get::reach(engine, &cacher, &storage, n).await?;
            Start::State
        }
        (Some(true) | None, None) => {
            get::catch_up(engine, &cacher, &storage).await.map_err(|e| storage_status(&e))?;
            Start::State
        }
        (_, Some(0)) if send_initial != Some(false) => Start::State,
        (_, Some(n)) if n > 0 => {
            after = n;
            Start::After(n)
        }
        _ => {
            after = get::catch_up(engine, &cacher, &storage).await.map_err(|e| storage_status(&e))?;
            Start::After(after)
        }
    };
    let apart = selection.needs_version(row).then(|| selection.clone());
    if apart.is_some() {
        selection = selection.of_any_version();
    }
    let (term, trigger) = (selection.term(), selection.trigger());
    let filter: Filter = {
        let scope = scope.clone();
        Arc::new(move |e: &Entry| e.key.starts_with(&scope) && selection.matches(e))
    };
    let framer = Framer { engine: engine.clone(), row: row.clone(), accepted, include, headers_sent: false };
    let content_type = accepted.format.stream_content_type();
    let processed = progress.processed();
    if let Start::After(n) = start {
        engine.hub.recall(&storage, n).await;
    }
    let from = Begin { scope: &scope, start, at_least: processed, term: term.as_ref(), trigger };
    let mut watch = match cacher.watch(from, filter.clone()) {
        Ok(w) => w,
        Err(e) => {
            let mut out = Vec::new();
            framer.error(&Status::expired(&e.to_string()), &mut out);
            return Ok(Reply::new(200, content_type, out));
        }
    };
    cacher.reads(&storage).begun(watch.initial.len() + watch.replay.len());
    watch.replay.reverse();
    if start == Start::State {
        after = watch.revision.min(processed).max(after);
    }
    let session = Session {
        initial: std::mem::take(&mut watch.initial).into(),
        initial_end: send_initial == Some(true) && bookmarks,
        bookmarks,
        after,
        next_bookmark: Box::pin(tokio::time::sleep_until(bookmark_due(Instant::now(), Instant::now() + timeout))),
        deadline: Box::pin(tokio::time::sleep(timeout)),
        filter,
        apart,
        sent: Sent::new(row, word_of_scope(r, namespace), (send_initial == Some(true) && bookmarks).then_some(since)),
        batch: if r.messages { 1 } else { BATCH },
        closed: Box::pin(engine.closing.clone().cancelled_owned()),
        closing: engine.closing.clone(),
        framer,
        watch,
    };
    let stream = futures::stream::unfold(session, |mut s| async move { s.next().await.map(|b| (Ok(b), s)) });
    Ok(Reply {
        code: 200,
        content_type: content_type.to_owned(),
        warnings: Vec::new(),
        body: Body::Stream(stream.boxed_local()),
        packed: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmarks_come_every_minute_and_before_the_end() {
        let now = Instant::now();
        for (ends_in, due_in) in [(300, 60), (62, 60), (61, 59), (10, 8), (2, 60), (1, 60)] {
            let due = bookmark_due(now, now + Duration::from_secs(ends_in));
            assert_eq!(due - now, Duration::from_secs(due_in), "{ends_in}");
        }
    }
}
