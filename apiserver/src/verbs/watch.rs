//! WATCH: initial state or replay, then changes as they happen, with bookmarks, until the deadline. Answers for
//! upstream's `WatchServer`, `serveWatchHandler`.
//!
//! Hot path. A watcher that does not keep up is closed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use proto::resources::Row;
use rand::Rng as _;
use shared::status::Status;
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::closing::WatchTermination;
use super::engine::Engine;
use super::list::{ListVerb, begins_with_state, scope, selection};
use super::select::Selection;
use super::table::Include;
use super::watch_frames::Framer;
use super::watch_meters::WatchMetrics;
use super::watch_start::{StartError, StartedWatch, WatchRequest};
use super::{Body, Reply, VerbRequest, accepted, get, namespace_of};
use crate::cache::{Change, Entry, EventType, Filter, Message, Watch};
use crate::negotiate::{Accepted, ObjectForm};
use crate::registry::behavior;

/// Bytes after which a batch of frames is sent, where frames may be sent together.
const BATCH: usize = 64 << 10;
/// Time between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Time before its end at which a watch says how far it got, so that its client need not go back to go on.
const BEFORE_THE_END: Duration = Duration::from_secs(2);

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
    /// Selection that has to be applied in the row's version.
    apart: Option<Selection>,
    /// Metrics of what the watch sent.
    sent: WatchMetrics,
    /// Bytes after which a batch of frames is sent.
    batch: usize,
    closing: Arc<WatchTermination>,
    /// Waits for its beginning; made once, for everybody who waits for it stands in one line.
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Frames about to be sent: a single one is not copied.
#[derive(Default)]
struct FrameBatch {
    only: Option<Bytes>,
    more: Vec<u8>,
    frames: u32,
}

impl FrameBatch {
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
        if let Some(first) = self.initial_frames().await {
            return Some(first);
        }
        let mut batch = FrameBatch::default();
        // Changes that keep coming put nothing off.
        let now = Instant::now();
        if now >= self.deadline.deadline() {
            return None;
        }
        if self.closing.has_begun() {
            self.closing.wait_turn().await;
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
                    self.push_event(&message?, &mut batch).await;
                    while batch.len() < self.batch {
                        let Ok(m) = self.watch.receiver.try_recv() else { break };
                        self.push_event(&m, &mut batch).await;
                    }
                }
                () = self.closed.as_mut() => {
                    self.closing.wait_turn().await;
                    return None;
                }
                () = self.deadline.as_mut() => return None,
                () = self.next_bookmark.as_mut(), if self.bookmarks => self.bookmark(&mut batch).await,
            }
        }
    }

    async fn bookmark(&mut self, batch: &mut FrameBatch) {
        // Everything up to this revision is in the channel already.
        let revision = self.framer.progress().processed();
        if self.batch == 1 && !self.watch.receiver.is_empty() {
            // Its turn comes after theirs.
            return;
        }
        let (waiting, whole) = drain(&mut self.watch.receiver);
        for m in &waiting {
            self.push_event(m, batch).await;
        }
        // A client that was told of a revision does not ask again for what it missed before it.
        if !whole {
            return;
        }
        if revision > self.after {
            let mut out = Vec::new();
            self.framer.bookmark(revision, false, &mut out);
            batch.push(Bytes::from(out));
        }
        let due = bookmark_due(Instant::now(), self.deadline.deadline());
        self.next_bookmark.as_mut().reset(due);
    }

    /// Encodes the frames before live changes: initial events, their end bookmark, the replay.
    async fn initial_frames(&mut self) -> Option<Bytes> {
        if self.initial.is_empty() && !self.initial_end && self.watch.replay.is_empty() {
            return None;
        }
        let mut out = Vec::new();
        while let Some(e) = self.initial.pop_front() {
            let before = out.len();
            match self.apart.is_some() {
                true => {
                    self.push_converted(
                        &Change { before: None, after: Some(e.clone()), revision: e.revision },
                        &mut out,
                    )
                    .await
                }
                false => self.entry(EventType::Added, &e, e.revision, &mut out).await,
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
                self.push_converted(&change, &mut out).await;
            } else if let Some((seen, entry)) = change.event_for(&*self.filter) {
                self.entry(seen, entry, change.revision, &mut out).await;
            }
            if out.len() >= self.batch {
                break;
            }
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }

    async fn push_event(&mut self, m: &Message, batch: &mut FrameBatch) {
        let revision = m.live.change.revision;
        if revision <= self.after {
            return;
        }
        if !behavior(&self.framer.row).changes_version(&self.framer.row) {
            let frame = self.framer.live(m);
            self.sent.sized(frame.len());
            batch.push(frame);
            return;
        }
        let mut out = Vec::new();
        if self.apart.is_some() {
            self.push_converted(&m.live.change, &mut out).await;
        } else {
            self.entry(m.seen, &m.entry, revision, &mut out).await;
        }
        if !out.is_empty() {
            self.sent.sized(out.len());
            batch.push(Bytes::from(out));
        }
    }

    /// A frame for a change of which only the row's version tells how it looks.
    async fn push_converted(&mut self, change: &Change, out: &mut Vec<u8>) {
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
        if let Some((seen, entry)) = converted.event_for(|e| selection.matches(e)) {
            self.framer.entry(seen, entry, change.revision, out);
        }
    }

    /// A frame for an entry, in the row's version.
    async fn entry(&mut self, seen: EventType, entry: &Arc<Entry>, revision: i64, out: &mut Vec<u8>) {
        if !behavior(&self.framer.row).changes_version(&self.framer.row) {
            return self.framer.entry(seen, entry, revision, out);
        }
        match self.framer.engine.in_version(&self.framer.row, vec![entry.clone()]).await {
            Ok(converted) => converted.iter().for_each(|e| self.framer.entry(seen, e, revision, out)),
            Err(status) => self.framer.error(&status, out),
        }
    }
}

/// Drains a channel; the flag reports whether it was emptied. A closed one may have lost events.
fn drain<T>(receiver: &mut Receiver<T>) -> (Vec<T>, bool) {
    let mut waiting = Vec::new();
    loop {
        match receiver.try_recv() {
            Ok(one) => waiting.push(one),
            Err(why) => return (waiting, why == TryRecvError::Empty),
        }
    }
}

/// Time of the next bookmark of a watch that ends at `deadline`.
fn bookmark_due(now: Instant, deadline: Instant) -> Instant {
    let (regular, last) = (now + BOOKMARK_EVERY, deadline.checked_sub(BEFORE_THE_END));
    last.filter(|last| now < *last && *last < regular).unwrap_or(regular)
}

/// A watch that nothing ends but its client.
const ENDLESS: Duration = Duration::from_secs(365 * 86_400);

/// Duration of a watch: the seconds asked for, or at random between the minimum and twice that. Upstream counts
/// nanoseconds in 64 bits: negative values and those that overflow end at once.
fn duration(asked: i64, shortest: u64) -> Duration {
    let nanos = asked.wrapping_mul(1_000_000_000);
    let asked = match (u64::try_from(nanos), shortest) {
        (Err(_), _) => Duration::ZERO,
        (Ok(0), 0) => ENDLESS,
        (Ok(0), least) => Duration::from_secs(rand::rng().random_range(least..=least.saturating_mul(2))),
        (Ok(nanos), _) => Duration::from_nanos(nanos),
    };
    asked.min(ENDLESS)
}

/// Scope of a watch as a word: `resource`, `namespace` or `cluster`.
fn scope_label(r: &VerbRequest, namespace: &str) -> &'static str {
    match (r.info.name.is_empty(), namespace.is_empty()) {
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    }
}

/// Options of a watch request.
struct WatchOptions {
    accepted: Accepted,
    include: Include,
    selection: Selection,
    /// The revision to begin after.
    at: Option<i64>,
    timeout: Duration,
    bookmarks: bool,
    send_initial: Option<bool>,
}

impl WatchOptions {
    fn read(engine: &Engine, r: &VerbRequest, row: &Row) -> Result<Self, Status> {
        let mut selection = selection(&r.query, row, ListVerb::Watch(engine.policy.watch_lists))?;
        let accepted = accepted(r, true)?;
        let include =
            if matches!(accepted.shape, ObjectForm::Table(_)) { Include::read(&r.query)? } else { Include::Metadata };
        if r.info.names_object() && !r.info.name.is_empty() {
            selection = selection.named(&r.info.name)?;
        }
        let at =
            get::revision(r.query.get("resourceVersion").unwrap_or("")).map_err(|e| Status::unknown(&e.to_string()))?;
        let seconds = r.query.int("timeoutSeconds")?.unwrap_or(0);
        let begins = engine.policy.watch_lists && begins_with_state(&r.query);
        Ok(Self {
            accepted,
            include,
            selection,
            at,
            timeout: duration(seconds, engine.policy.shortest_watch),
            bookmarks: r.query.flag("allowWatchBookmarks"),
            send_initial: r.query.maybe_flag("sendInitialEvents").or(begins.then_some(true)),
        })
    }
}

/// The verb.
pub async fn watch(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let since = std::time::Instant::now();
    let WatchOptions { accepted, include, mut selection, at, timeout, bookmarks, send_initial } =
        WatchOptions::read(engine, r, row)?;
    let namespace = namespace_of(&r.info, row);
    let scope = scope(namespace);

    let storage = row.storage();
    let apart = selection.needs_version(row).then(|| selection.clone());
    if apart.is_some() {
        selection = selection.of_any_version();
    }
    let framer = Framer { engine: engine.clone(), row: row.clone(), accepted, include, headers_sent: false };
    let content_type = accepted.format.stream_content_type();
    let cached = engine.caches.is_cached(&storage);
    let wish = WatchRequest { engine, storage: &storage, scope, send_initial, at };
    let begun = if cached { wish.cached(&selection).await } else { wish.uncached(&selection).await };
    let StartedWatch { mut watch, after, filter } = match begun {
        Ok(begun) => begun,
        Err(StartError::Immediate(status)) => return Err(status),
        Err(StartError::InStream(status)) => {
            let mut out = Vec::new();
            framer.error(&status, &mut out);
            return Ok(Reply::new(200, content_type, out));
        }
    };
    let tells_end = send_initial == Some(true) && bookmarks;
    let session = Session {
        initial: std::mem::take(&mut watch.initial).into(),
        initial_end: tells_end,
        // What etcd tells of alone is not known to be all.
        bookmarks: bookmarks && cached,
        after,
        next_bookmark: Box::pin(tokio::time::sleep_until(bookmark_due(Instant::now(), Instant::now() + timeout))),
        deadline: Box::pin(tokio::time::sleep(timeout)),
        filter,
        apart,
        sent: WatchMetrics::new(row, scope_label(r, namespace), tells_end.then_some(since)),
        batch: if r.messages { 1 } else { BATCH },
        closed: Box::pin(engine.closing.begun()),
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
    fn cut_off_watch_sends_no_bookmark() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(2);
        for change in 1..=2 {
            sender.try_send(change).expect("room");
        }
        assert_eq!(drain(&mut receiver), (vec![1, 2], true));
        sender.try_send(3).expect("room");
        drop(sender);
        assert_eq!(drain(&mut receiver), (vec![3], false));
    }

    #[test]
    fn watch_duration_is_bounded() {
        let duration = |asked, shortest| Instant::now() + super::duration(asked, shortest) - Instant::now();
        assert!(duration(9_223_372_036, 1800) <= ENDLESS);
        assert!(duration(0, u64::MAX) <= ENDLESS);
        assert!((1799..=3600).contains(&duration(0, 1800).as_secs()));
        for over in [-1, i64::MAX, 9_223_372_037] {
            assert_eq!(super::duration(over, 1800), Duration::ZERO, "{over}");
        }
    }

    #[test]
    fn bookmarks_are_sent_every_minute_and_before_the_end() {
        let now = Instant::now();
        for (ends_in, due_in) in [(300, 60), (62, 60), (61, 59), (10, 8), (2, 60), (1, 60)] {
            let due = bookmark_due(now, now + Duration::from_secs(ends_in));
            assert_eq!(due - now, Duration::from_secs(due_in), "{ends_in}");
        }
    }
}
