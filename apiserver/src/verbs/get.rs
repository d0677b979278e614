//! GET of one object.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use proto::resources::Row;
use shared::flags::{NumberError, parse_unsigned_decimal};
use shared::status::{Status, go_quote};

use super::engine::Engine;
use super::{Reply, VerbRequest, accepted, namespace_of, spans, table};
use crate::cache::{CacheError, CacheRegistry, Cacher, Entry};
use crate::storage;

/// A `resourceVersion` parameter that is no number, in the words of GET and WATCH.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resourceVersion: Invalid value: {}: {source}", go_quote(.text))]
pub struct RevisionError {
    text: String,
    source: NumberError,
}

/// Reads a `resourceVersion` parameter.
pub fn revision(text: &str) -> Result<Option<i64>, RevisionError> {
    match text {
        "" => Ok(None),
        t => match parse_unsigned_decimal(t) {
            Ok(n) => Ok(Some(i64::try_from(n).unwrap_or(i64::MAX))),
            Err(source) => Err(RevisionError { text: t.to_owned(), source }),
        },
    }
}

/// Finds the entry of an object as fresh as asked: `None` is a quorum read, 0 whatever is known.
pub async fn entry(
    engine: &Arc<Engine>,
    row: &Row,
    namespace: &str,
    name: &str,
    at: Option<i64>,
) -> Result<Arc<Entry>, Status> {
    let storage = &row.storage();
    let missing = || Status::not_found(&row.group, &row.plural, name);
    let short = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    if !engine.caches.is_cached(storage) {
        let found = from_etcd(engine, storage, &short, row, name, at).await?;
        return single(engine.in_version(row, vec![found]).await?).ok_or_else(missing);
    }
    let Some(at) = at else {
        // A cache that is as new as etcd answers for it; where there is none, one object is not worth making it.
        if let Some(cacher) = engine.caches.running(storage)
            && catch_up(&engine.caches, &cacher, storage).await.is_ok()
        {
            match cacher.current(&short).map_err(restarting)? {
                Some(found) => return single(engine.in_version(row, vec![found]).await?).ok_or_else(missing),
                // It may be one that the cache could not read.
                None if engine.caches.has_unreadable(storage) => {}
                None => return Err(missing()),
            }
        }
        let found = from_etcd(engine, storage, &short, row, name, None).await?;
        return single(engine.in_version(row, vec![found]).await?).ok_or_else(missing);
    };
    let cacher = engine.caches.cacher(storage);
    ready(&cacher).await?;
    if at > 0 {
        wait_for_revision(engine, &cacher, storage, at).await?;
    }
    let found = cacher.current(&short).map_err(restarting)?.ok_or_else(missing)?;
    single(engine.in_version(row, vec![found]).await?).ok_or_else(missing)
}

fn single(mut entries: Vec<Arc<Entry>>) -> Option<Arc<Entry>> {
    entries.pop()
}

async fn from_etcd(
    engine: &Engine,
    storage: &Row,
    short: &str,
    row: &Row,
    name: &str,
    at: Option<i64>,
) -> Result<Arc<Entry>, Status> {
    let key = format!("{}/{short}", engine.store.key(&storage.etcd_prefix));
    let (found, revision) = engine.store.get(&key).await.map_err(|e| engine.read_error(&e))?;
    check_not_older(revision, at.unwrap_or(0))?;
    let stored = found.ok_or_else(|| Status::not_found(&row.group, &row.plural, name))?;
    let entry = Entry::from_stored(storage, short, &stored.value, stored.revision);
    entry.map(Arc::new).map_err(|e| engine.decode_error(&stored, &e))
}

/// Refuses what etcd answered at a revision before the one that was asked for.
pub fn check_not_older(revision: i64, asked: i64) -> Result<(), Status> {
    if revision >= asked { Ok(()) } else { Err(future_revision(asked, revision)) }
}

/// Error for a resource version that etcd has not reached. Without a retry delay, because nobody knows when it will.
pub fn future_revision(asked: i64, revision: i64) -> Status {
    let n = |v: i64| u64::try_from(v).unwrap_or(0);
    let mut status = Status::too_large_resource_version(n(asked), n(revision));
    status.details.get_or_insert_default().retry_after_seconds = 0;
    status
}

/// Waits a moment for a cache that is being filled.
pub async fn ready(cacher: &Cacher) -> Result<(), Status> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
    if cacher.is_ready() {
        return Ok(());
    }
    let waited = tokio::time::timeout(PATIENCE, cacher.wait_ready()).await;
    waited.map_err(|_| restarting(CacheError::Restarting))
}

/// Error for reads while a cache is reinitialized.
pub fn restarting(error: CacheError) -> Status {
    Status::too_many_requests(&error.to_string(), 1)
}

/// Waits until the cache of a resource knows a revision.
pub async fn wait_for_revision(engine: &Engine, cacher: &Cacher, storage: &Row, at: i64) -> Result<(), Status> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);
    let (progress, since) = (engine.caches.progress(storage), Instant::now());
    let reached = progress.wait_until(at, PATIENCE).await;
    cacher.reads(storage).observe_wait(since);
    reached.map_err(|_| {
        let n = |v: i64| u64::try_from(v).unwrap_or(0);
        Status::too_large_resource_version(n(at), n(progress.processed()))
    })
}

/// Waits until the cache of a resource is as new as etcd is now. Returns the revision reached.
pub async fn catch_up(caches: &CacheRegistry, cacher: &Cacher, storage: &Row) -> Result<i64, storage::Error> {
    let since = Instant::now();
    let reached = caches.progress(storage).catch_up().await;
    cacher.reads(storage).observe_wait(since);
    reached
}

/// The verb.
pub async fn get(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    if r.query.flag("export") {
        return Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported"));
    }
    let accepted = accepted(r, false)?;
    let at = revision(r.query.get("resourceVersion").unwrap_or("")).map_err(|e| Status::unknown(&e.to_string()))?;
    let reading = pin!(entry(engine, row, namespace_of(&r.info, row), &r.info.name, at));
    let entry = spans::getting(engine, r, row, reading).await?;
    // The common case needs no tree.
    if let Some(body) = table::direct(engine, row, &accepted, &entry)? {
        return Ok(Reply::new(200, accepted.format.content_type(), body));
    }
    let object = engine.served(row, &entry.raw)?;
    table::object_reply(engine, r, row, &accepted, 200, &object)
}
