//! Start of a watch: from the watch cache of its resource, or from etcd where that has none.

use std::sync::Arc;

use proto::resources::Row;
use shared::status::Status;

use super::engine::{Engine, storage_status};
use super::get;
use super::select::Selection;
use crate::cache::{CacheError, Cacher, Entry, Filter, Start, Watch, WatchStart};
use crate::storage;

/// Parameters that decide where a watch starts.
pub(super) struct WatchRequest<'a> {
    pub(super) engine: &'a Engine,
    pub(super) storage: &'a Row,
    /// Prefix of the keys.
    pub(super) scope: String,
    pub(super) send_initial: Option<bool>,
    /// The revision to begin after.
    pub(super) at: Option<i64>,
}

/// A running watch.
pub(super) struct StartedWatch {
    pub(super) watch: Watch,
    /// Changes up to here are known to the client.
    pub(super) after: i64,
    /// Filter of the objects.
    pub(super) filter: Filter,
}

/// Failure to start a watch, by where it is reported.
pub(super) enum StartError {
    Immediate(Status),
    InStream(Status),
}

impl WatchRequest<'_> {
    fn filter(&self, selection: &Selection) -> Filter {
        let (scope, selection) = (self.scope.clone(), selection.clone());
        Arc::new(move |e: &Entry| e.key.starts_with(&scope) && selection.matches(e))
    }

    /// From the cache.
    pub(super) async fn cached(&self, selection: &Selection) -> Result<StartedWatch, StartError> {
        let (engine, storage) = (self.engine, self.storage);
        let (cacher, progress) = (engine.caches.cacher(storage), engine.caches.progress(storage));
        get::ready(&cacher).await.map_err(StartError::Immediate)?;
        let (start, after) = self.start_at(&cacher).await.map_err(StartError::Immediate)?;
        let (term, trigger, filter) = (selection.term(), selection.trigger(), self.filter(selection));
        let processed = progress.processed();
        if let Start::After(n) = start {
            let recalled = engine.caches.backfill_history(storage, n).await;
            recalled.map_err(|e| StartError::Immediate(storage_status(&e)))?;
        }
        let from = WatchStart { scope: &self.scope, start, at_least: processed, term: term.as_ref(), trigger };
        let mut watch = cacher.watch(from, filter.clone()).map_err(|e| match e {
            e @ CacheError::Restarting => StartError::Immediate(get::restarting(e)),
            e @ CacheError::TooOld { .. } => StartError::InStream(Status::expired(&e.to_string())),
        })?;
        cacher.reads(storage).observe_initial_events(watch.initial.len() + watch.replay.len());
        watch.replay.reverse();
        let after = if start == Start::State { watch.revision.min(processed).max(after) } else { after };
        Ok(StartedWatch { watch, after, filter })
    }

    /// The place, once the cache has got there, and the revision up to which changes are known to the client.
    async fn start_at(&self, cacher: &Cacher) -> Result<(Start, i64), Status> {
        let (engine, storage) = (self.engine, self.storage);
        let now = async || get::catch_up(&engine.caches, cacher, storage).await.map_err(|e| storage_status(&e));
        match (self.send_initial, self.at) {
            (Some(true), Some(n)) if n > 0 => {
                get::wait_for_revision(engine, cacher, storage, n).await?;
                Ok((Start::State, 0))
            }
            (Some(true) | None, None) => {
                now().await?;
                Ok((Start::State, 0))
            }
            (_, Some(0)) if self.send_initial != Some(false) => Ok((Start::State, 0)),
            (_, Some(n)) if n > 0 => Ok((Start::After(n), n)),
            _ => {
                let reached = now().await?;
                Ok((Start::After(reached), reached))
            }
        }
    }

    /// From etcd.
    pub(super) async fn uncached(&self, selection: &Selection) -> Result<StartedWatch, StartError> {
        let (caches, filter) = (&self.engine.caches, self.filter(selection));
        let start = match (self.send_initial, self.at.unwrap_or(0)) {
            (Some(true), at) => {
                if at > 0 {
                    let now = self.current_revision().await?;
                    get::check_not_older(now, at).map_err(StartError::InStream)?;
                }
                Start::State
            }
            (None, 0) => Start::State,
            (Some(false), 0) => Start::After(self.current_revision().await?),
            (_, at) => Start::After(at),
        };
        let watch = caches.watch_etcd(self.storage, &self.scope, start, filter.clone()).await.map_err(|e| {
            StartError::InStream(match e {
                storage::Error::Compacted => Status::expired("The resourceVersion for the provided watch is too old."),
                other => storage_status(&other),
            })
        })?;
        Ok(StartedWatch { after: watch.revision, watch, filter })
    }

    async fn current_revision(&self) -> Result<i64, StartError> {
        let now = self.engine.caches.revision(self.storage).await;
        now.map_err(|e| StartError::InStream(storage_status(&e)))
    }
}
