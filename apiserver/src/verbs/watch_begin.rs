//! Start of a watch: from the watch cache of its resource, or from etcd where that has none.

use std::sync::Arc;

use proto::resources::Row;
use shared::status::Status;

use super::engine::{Engine, storage_status};
use super::get;
use super::select::Selection;
use crate::cache::{Begin, CacheError, Cacher, Entry, Filter, Start, Watch};
use crate::storage;

/// Parameters that decide where a watch starts.
pub(super) struct Wish<'a> {
    pub(super) engine: &'a Engine,
    pub(super) storage: &'a Row,
    /// Prefix of the keys.
    pub(super) scope: String,
    pub(super) send_initial: Option<bool>,
    /// The revision to begin after.
    pub(super) at: Option<i64>,
}

/// A running watch.
pub(super) struct Begun {
    pub(super) watch: Watch,
    /// Changes up to here are known to the client.
    pub(super) after: i64,
    /// Filter of the objects.
    pub(super) filter: Filter,
}

/// Failure to start a watch, by where it is reported.
pub(super) enum Refused {
    AtOnce(Status),
    InTheStream(Status),
}

impl Wish<'_> {
    fn filter(&self, selection: &Selection) -> Filter {
        let (scope, selection) = (self.scope.clone(), selection.clone());
        Arc::new(move |e: &Entry| e.key.starts_with(&scope) && selection.matches(e))
    }

    /// From the cache.
    pub(super) async fn cached(&self, selection: &Selection) -> Result<Begun, Refused> {
        let (engine, storage) = (self.engine, self.storage);
        let (cacher, progress) = (engine.hub.cacher(storage), engine.hub.progress(storage));
        get::ready(&cacher).await.map_err(Refused::AtOnce)?;
        let (start, after) = self.beginning(&cacher).await.map_err(Refused::AtOnce)?;
        let (term, trigger, filter) = (selection.term(), selection.trigger(), self.filter(selection));
        let processed = progress.processed();
        if let Start::After(n) = start {
            let recalled = engine.hub.recall(storage, n).await;
            recalled.map_err(|e| Refused::AtOnce(storage_status(&e)))?;
        }
        let from = Begin { scope: &self.scope, start, at_least: processed, term: term.as_ref(), trigger };
        let mut watch = cacher.watch(from, filter.clone()).map_err(|e| match e {
            e @ CacheError::Restarting => Refused::AtOnce(get::again(e)),
            e @ CacheError::TooOld { .. } => Refused::InTheStream(Status::expired(&e.to_string())),
        })?;
        cacher.reads(storage).begun(watch.initial.len() + watch.replay.len());
        watch.replay.reverse();
        let after = if start == Start::State { watch.revision.min(processed).max(after) } else { after };
        Ok(Begun { watch, after, filter })
    }

    /// The place, once the cache has got there, and the revision up to which changes are known to the client.
    async fn beginning(&self, cacher: &Cacher) -> Result<(Start, i64), Status> {
        let (engine, storage) = (self.engine, self.storage);
        let now = async || get::catch_up(engine, cacher, storage).await.map_err(|e| storage_status(&e));
        match (self.send_initial, self.at) {
            (Some(true), Some(n)) if n > 0 => {
                get::reach(engine, cacher, storage, n).await?;
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
    pub(super) async fn uncached(&self, selection: &Selection) -> Result<Begun, Refused> {
        let (hub, filter) = (&self.engine.hub, self.filter(selection));
        let start = match (self.send_initial, self.at.unwrap_or(0)) {
            (Some(true), at) => {
                if at > 0 {
                    let now = self.now().await?;
                    get::not_older(now, at).map_err(Refused::InTheStream)?;
                }
                Start::State
            }
            (None, 0) => Start::State,
            (Some(false), 0) => Start::After(self.now().await?),
            (_, at) => Start::After(at),
        };
        let watch = hub.watch_etcd(self.storage, &self.scope, start, filter.clone()).await.map_err(|e| {
            Refused::InTheStream(match e {
                storage::Error::Compacted => Status::expired("The resourceVersion for the provided watch is too old."),
                other => storage_status(&other),
            })
        })?;
        Ok(Begun { after: watch.revision, watch, filter })
    }

    async fn now(&self) -> Result<i64, Refused> {
        let now = self.engine.hub.revision(self.storage).await;
        now.map_err(|e| Refused::InTheStream(storage_status(&e)))
    }
}
