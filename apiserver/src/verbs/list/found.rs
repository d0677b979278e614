//! The objects that a list is about, from the cache or from etcd.

use std::pin::pin;
use std::sync::Arc;

use proto::resources::Row;
use shared::status::Status;
use shared::traces;

use super::meters;
use super::options::{self, Freshness, Options};
use super::token::{cached_token, token};
use crate::cache::{CacheError, Cacher, Entry, ListScope};
use crate::storage;
use crate::verbs::engine::{Engine, storage_status};
use crate::verbs::select::Selection;
use crate::verbs::{VerbRequest, get, namespace_of, spans};

/// Objects read from etcd at a time.
const PAGE: i64 = 500;

/// Result of a list.
pub struct ListResult {
    /// Entries in the storage version.
    pub items: Vec<Arc<Entry>>,
    /// Revision they are exact at.
    pub revision: i64,
    /// Token and number of what is left.
    pub rest: Option<(String, Option<i64>)>,
}

fn expired(error: storage::Error, o: &Options, scope: &str, last_start: &str) -> Status {
    if !matches!(error, storage::Error::Compacted) {
        return storage_status(&error);
    }
    if !o.continued {
        return Status::expired("The resourceVersion for the provided list is too old.");
    }
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, \
         or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an \
         inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    status.metadata.continue_token = token(-1, scope, last_start.trim_end_matches('\0'));
    status
}

/// Beside what was found: how many entries were looked at.
fn from_cache(
    cacher: &Cacher,
    row: &Row,
    scope: &str,
    o: &Options,
    selection: &Selection,
    at_least: i64,
) -> Result<(ListResult, usize), CacheError> {
    if let Some(name) = selection.name()
        && !o.continued
        && (!row.namespaced || !scope.is_empty())
    {
        return one_of_that_name(cacher, &format!("{scope}{name}"), o, selection, at_least);
    }
    let plain = selection.is_everything();
    let filter = (!plain).then(|| selection.clone().filter());
    let term = selection.term();
    let wanted =
        ListScope { prefix: scope, start: &o.start, limit: o.limit, filter: filter.as_ref(), term: term.as_ref() };
    let snapshot = match o.moment {
        Freshness::Exact(n) => cacher.list_at(&wanted, n)?,
        _ => cacher.list(&wanted, at_least)?,
    };
    let rest = match (snapshot.more, snapshot.items.last()) {
        (true, Some(last)) => {
            Some((cached_token(snapshot.revision, scope, &last.key), plain.then_some(snapshot.remaining)))
        }
        _ => None,
    };
    Ok((ListResult { items: snapshot.items, revision: snapshot.revision, rest }, snapshot.fetched))
}

/// A list that can but have one object is never cut.
fn one_of_that_name(
    cacher: &Cacher,
    key: &str,
    o: &Options,
    selection: &Selection,
    at_least: i64,
) -> Result<(ListResult, usize), CacheError> {
    let (there, revision) = match o.moment {
        Freshness::Exact(n) => {
            let snapshot =
                cacher.list_at(&ListScope { prefix: key, start: key, limit: 1, ..ListScope::default() }, n)?;
            (snapshot.items.into_iter().find(|e| &*e.key == key), snapshot.revision)
        }
        _ => (cacher.current(key)?, at_least),
    };
    let fetched = usize::from(there.is_some());
    let items = there.into_iter().filter(|e| selection.matches(e)).collect();
    Ok((ListResult { items, revision, rest: None }, fetched))
}

async fn from_etcd(
    engine: &Arc<Engine>,
    storage: &Row,
    scope: &str,
    o: &Options,
    selection: &Selection,
    revision: i64,
) -> Result<ListResult, storage::Error> {
    // A list of one page holds little; it need not wait for those of many.
    let long = o.limit == 0 || i64::try_from(o.limit).is_ok_and(|limit| limit > PAGE);
    let _turn = if long { engine.etcd_lists.acquire().await.ok() } else { None };
    let size = if o.limit > 0 && selection.is_everything() { i64::try_from(o.limit).unwrap_or(PAGE) } else { PAGE };
    let mut revision = revision;
    let base = format!("{}/", engine.store.key(&storage.etcd_prefix));
    let prefix = format!("{base}{scope}");
    let mut start = if o.start.is_empty() { prefix.clone() } else { format!("{base}{}", o.start) };
    let mut items: Vec<Arc<Entry>> = Vec::new();
    let (mut fetched, mut evaluated) = (0, 0);
    loop {
        let page = engine.store.page(&prefix, &start, size.min(PAGE), revision).await?;
        // The pages of a list are all of the same moment.
        if revision == 0 {
            revision = page.revision;
        }
        fetched += page.items.len();
        let (mut left, more) = (page.count, page.more);
        for stored in page.items {
            left -= 1;
            evaluated += 1;
            start = format!("{}\0", stored.key);
            match Entry::from_stored(storage, &stored.key[base.len()..], &stored.value, stored.revision) {
                Ok(e) if selection.matches(&e) => {
                    items.push(Arc::new(e));
                    if o.limit > 0 && items.len() == o.limit && left > 0 {
                        let rest = token(revision, scope, &stored.key[base.len()..]);
                        meters::read(storage, fetched, evaluated, items.len());
                        return Ok(ListResult {
                            items,
                            revision,
                            rest: Some((rest, selection.is_everything().then_some(left))),
                        });
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::error!(%error, key = stored.key, "Failed to decode object from etcd"),
            }
        }
        if !more {
            meters::read(storage, fetched, evaluated, items.len());
            return Ok(ListResult { items, revision, rest: None });
        }
    }
}

/// Prefix of a namespace's keys behind the resource's own; empty for all namespaces.
pub fn scope(namespace: &str) -> String {
    if namespace.is_empty() { String::new() } else { format!("{namespace}/") }
}

async fn find(
    engine: &Arc<Engine>,
    row: &Row,
    namespace: &str,
    o: &Options,
    selection: &Selection,
) -> Result<ListResult, Status> {
    let storage = &row.storage();
    let scope = scope(namespace);
    if !engine.caches.is_cached(storage) {
        return find_uncached(engine, storage, &scope, o, selection).await;
    }
    spans::listing(storage, pin!(find_cached(engine, row, &scope, o, selection))).await
}

async fn find_cached(
    engine: &Arc<Engine>,
    row: &Row,
    scope: &str,
    o: &Options,
    selection: &Selection,
) -> Result<ListResult, Status> {
    let storage = &row.storage();
    let cacher = engine.caches.cacher(storage);
    if engine.policy.deletes_corrupt && (!cacher.is_ready() || engine.caches.has_unreadable(storage)) {
        engine.reject_corrupt(storage, scope).await?;
    }
    get::ready(&cacher).await?;
    traces::step("Ready");
    let progress = engine.caches.progress(storage);
    let at_least = match o.moment {
        Freshness::Now => {
            let reached = get::catch_up(&engine.caches, &cacher, storage).await;
            cacher.reads(storage).observe_consistent_read(reached.is_ok());
            reached.map_err(|e| storage_status(&e))?
        }
        Freshness::Any => progress.processed(),
        Freshness::NotOlder(n) | Freshness::Exact(n) => {
            get::wait_for_revision(engine, &cacher, storage, n).await?;
            progress.processed()
        }
    };
    traces::step("watchCache fresh enough");
    // What etcd has forgotten is not shown either, although the cache may still know it. It is asked only about what
    // has changed since.
    if let Freshness::Exact(n) = o.moment {
        let remembered = match progress.is_compacted(n) {
            true => Err(storage::Error::Compacted),
            false if cacher.unchanged_since(n) => Ok(()),
            false => progress.check_not_compacted(n).await,
        };
        remembered.map_err(|e| expired(e, o, scope, &o.start))?;
    }
    match from_cache(&cacher, row, scope, o, selection, at_least) {
        Ok((found, fetched)) => {
            cacher.reads(storage).observe_list(fetched, found.items.len());
            traces::step_of("Listed items from cache", "count", fetched);
            traces::step_of("Filtered items", "count", found.items.len());
            Ok(found)
        }
        Err(CacheError::TooOld { asked, .. }) => {
            let found = from_etcd(engine, storage, scope, o, selection, asked).await;
            found.map_err(|e| expired(e, o, scope, &o.start))
        }
        Err(error) => Err(get::restarting(error)),
    }
}

/// Lists from etcd.
async fn find_uncached(
    engine: &Arc<Engine>,
    storage: &Row,
    scope: &str,
    o: &Options,
    selection: &Selection,
) -> Result<ListResult, Status> {
    if engine.policy.deletes_corrupt {
        engine.reject_corrupt(storage, scope).await?;
    }
    let exact = if let Freshness::Exact(n) = o.moment { n } else { 0 };
    // A list that can but have one object is never cut.
    let one = selection.name().filter(|_| !o.continued && (!storage.namespaced || !scope.is_empty()));
    let narrow = one.map(|name| (format!("{scope}{name}"), Options { limit: 0, start: String::new(), ..*o }));
    let (below, options) = narrow.as_ref().map_or((scope, o), |(key, options)| (key, options));
    let found = match from_etcd(engine, storage, below, options, selection, exact).await {
        Err(storage::Error::Future) => {
            let now = engine.caches.revision(storage).await.unwrap_or(0);
            return Err(get::future_revision(exact, now));
        }
        found => found.map_err(|e| expired(e, o, scope, &o.start))?,
    };
    if let Freshness::NotOlder(n) = o.moment {
        get::check_not_older(found.revision, n)?;
    }
    Ok(found)
}

/// Lists in the row's version, selecting in it where conversion may change the selected fields.
async fn find_converted(
    engine: &Arc<Engine>,
    row: &Row,
    namespace: &str,
    o: Options,
    selection: &Selection,
) -> Result<ListResult, Status> {
    if !selection.needs_version(row) {
        let mut found = find(engine, row, namespace, &o, selection).await?;
        found.items = engine.in_version(row, found.items).await?;
        return Ok(found);
    }
    let limit = o.limit;
    let mut found = find(engine, row, namespace, &Options { limit: 0, ..o }, &selection.of_any_version()).await?;
    found.items = engine.in_version(row, found.items).await?;
    found.items.retain(|e| selection.matches(e));
    if limit > 0 && found.items.len() > limit {
        found.items.truncate(limit);
        let scope = scope(namespace);
        found.rest = found.items.last().map(|last| (cached_token(found.revision, &scope, &last.key), None));
    }
    Ok(found)
}

/// The objects that a request for a collection is about, in the row's version.
pub async fn requested(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    row: &Row,
    selection: &Selection,
) -> Result<ListResult, Status> {
    let namespace = match namespace_of(&r.info, row) {
        // Who selects one namespace out of all asks for that one.
        "" if row.namespaced => selection.namespace().unwrap_or(""),
        namespace => namespace,
    };
    let scope = scope(namespace);
    find_converted(
        engine,
        row,
        namespace,
        options::read(&r.query, &scope, engine.caches.is_cached(&row.storage()))?,
        selection,
    )
    .await
}

/// All objects of a collection that match, as they are now, in the row's version.
pub async fn collect(
    engine: &Arc<Engine>,
    row: &Row,
    namespace: &str,
    selection: &Selection,
) -> Result<ListResult, Status> {
    let now = Options { moment: Freshness::Now, limit: 0, start: String::new(), continued: false };
    find_converted(engine, row, namespace, now, selection).await
}
