//! Consistency check of the watch caches against etcd (`DetectCacheInconsistency`). Answers for upstream's
//! `consistencyChecker`.
//!
//! Every cache is compared with etcd at one revision, every few minutes. Keys and revisions decide: values are never
//! fetched. A cache that differs is read anew; its watches end, and its readers wait for that.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use shared::metrics;

use super::cache_registry::{CacheRegistry, ResourceCache};
use super::cacher::ListScope;
use super::entry::Entry;
use crate::storage;

/// Least time between two rounds; up to half as much again is added, so that servers do not ask together.
const PERIOD: Duration = Duration::from_secs(5 * 60);
/// Keys fetched at once.
const PAGE: i64 = 10_000;

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Same,
    Different,
    /// There was nothing to compare: the cache is being read, or knows of values that it could not read.
    Unknown,
}

impl CacheRegistry {
    /// Compares the caches that run with etcd, again and again, until dropped.
    pub async fn check_forever(self: Arc<Self>) {
        loop {
            let jitter = rand::rng().random_range(1.0..1.5);
            tokio::time::sleep(PERIOD.mul_f64(jitter)).await;
            self.check().await;
        }
    }

    /// Compares the caches that run with etcd once.
    pub async fn check(self: &Arc<Self>) {
        for (prefix, slot) in self.slots() {
            let row = &slot.resource;
            let status = match self.compare(&prefix, &slot).await {
                Ok(Comparison::Unknown) => continue,
                Ok(Comparison::Same) => "success",
                Ok(Comparison::Different) => "failure",
                Err(error) => {
                    tracing::warn!(%error, %prefix, "Cache consistency check error");
                    "error"
                }
            };
            metrics::counter(
                "apiserver_storage_consistency_checks_total",
                "[ALPHA] Number of consistency checks of the watch cache against etcd, by resource and status.",
                &["group", "resource", "status"],
            )
            .with_label_values(&[&*row.group, &*row.plural, status])
            .inc();
            if status == "failure" {
                tracing::error!(%prefix, "Cache consistency check failed, reinitializing the cache");
                self.restart(&slot);
            }
        }
    }

    async fn compare(&self, prefix: &str, slot: &ResourceCache) -> Result<Comparison, storage::Error> {
        let revision = self.progress(&slot.resource).processed();
        if revision == 0 || !slot.cacher.is_ready() || slot.has_unreadable() {
            return Ok(Comparison::Unknown);
        }
        let Ok(cached) = slot.cacher.list_at(&ListScope::default(), revision) else { return Ok(Comparison::Unknown) };
        let mut cached = cached.items.iter();
        let mut start = prefix.to_owned();
        loop {
            let page = self.store.keys(prefix, &start, PAGE, revision).await?;
            if !agree(&page.keys, prefix.len(), &mut cached) {
                return Ok(Comparison::Different);
            }
            if !page.more {
                return Ok(if cached.next().is_none() { Comparison::Same } else { Comparison::Different });
            }
            start = page.keys.last().map(|(key, _)| format!("{key}\0")).unwrap_or_default();
        }
    }
}

/// Reports whether a page of etcd's keys and revisions matches the next entries of a cache.
fn agree<'e>(keys: &[(String, i64)], prefix: usize, cached: &mut impl Iterator<Item = &'e Arc<Entry>>) -> bool {
    keys.iter().all(|(key, revision)| {
        cached.next().is_some_and(|entry| *entry.key == key[prefix..] && entry.revision == *revision)
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::storage::Raw;

    #[test]
    fn differences_from_etcd_are_detected() {
        let entry = |key: &str, revision| {
            Arc::new(Entry::new(key, revision, Raw::Json(Bytes::from_static(b"{}")), vec![], std::iter::empty()))
        };
        let cached = [entry("a/x", 3), entry("b/y", 5)];
        let page = |keys: &[(&str, i64)]| keys.iter().map(|(k, r)| (format!("/r/{k}"), *r)).collect::<Vec<_>>();
        for (keys, same) in [
            (page(&[("a/x", 3), ("b/y", 5)]), true),
            (page(&[("a/x", 3)]), true),
            (page(&[("a/x", 4), ("b/y", 5)]), false),
            (page(&[("a/y", 3), ("b/y", 5)]), false),
            (page(&[("a/x", 3), ("b/y", 5), ("c/z", 6)]), false),
        ] {
            assert_eq!(agree(&keys, 3, &mut cached.iter()), same, "{keys:?}");
        }
    }
}
