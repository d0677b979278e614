//! History from before the cache's initial list, read back from etcd. Answers for upstream's
//! `watchCache.getAllEventsSinceLocked`.
//!
//! All keys are followed, not only those of one resource: every revision has an event, so the one that was waited for
//! is seen, and with it is known that nothing before it is missing.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Event, EventType, WatchOptions};
use proto::resources::Row;
use tokio::time::timeout;

use super::entry::{Change, Entry};
use crate::storage::{self, Store};

/// Bytes of history that are read at most.
const MOST: usize = 64 << 20;
/// Longest silence of etcd before reading history is given up.
const SILENCE: Duration = Duration::from_secs(10);

/// All events after a revision up to another.
///
/// # Errors
/// [`storage::Error::Compacted`] when etcd does not know them, or they are too many; otherwise etcd could not be asked.
pub(super) async fn read(store: &Store, after: i64, upto: i64) -> Result<Vec<Event>, storage::Error> {
    let options = WatchOptions::new().with_start_revision(after + 1).with_prev_key();
    let mut stream = timeout(SILENCE, store.watch(options)).await.map_err(|_| storage::Error::Timeout)??;
    let (mut events, mut size) = (Vec::new(), 0);
    while let Some(response) = timeout(SILENCE, stream.message()).await.map_err(|_| storage::Error::Timeout)?? {
        if response.compact_revision() > 0 {
            return Err(storage::Error::Compacted);
        }
        if response.canceled() {
            return Err(storage::Error::Timeout);
        }
        for event in response.events() {
            let Some(kv) = event.kv() else { continue };
            if kv.mod_revision() > upto {
                return Ok(events);
            }
            size += kv.value().len() + event.prev_kv().map_or(0, |kv| kv.value().len());
            if size > MOST {
                return Err(storage::Error::Compacted);
            }
            events.push(event.clone());
        }
        // The events of one revision come together.
        if events.last().and_then(Event::kv).is_some_and(|kv| kv.mod_revision() >= upto) {
            return Ok(events);
        }
    }
    Err(storage::Error::Timeout)
}

/// Decodes the events of one resource into changes; `None` when an event cannot be read.
pub(super) async fn changes(store: &Store, events: &[Event], prefix: &str, resource: &Row) -> Option<Vec<Change>> {
    let entry = async |kv: &etcd_client::KeyValue| -> Option<Arc<Entry>> {
        let stored = store.transform_from_storage(kv.clone()).await.ok()?;
        let made = Entry::from_stored(resource, &stored.key[prefix.len()..], &stored.value, stored.revision).ok()?;
        Some(Arc::new(made.stored_as(stored.lease, stored.stale)))
    };
    let mut changes = Vec::new();
    for event in events {
        let kv = event.kv()?;
        if !kv.key().starts_with(prefix.as_bytes()) {
            continue;
        }
        let revision = kv.mod_revision();
        let created = event.event_type() == EventType::Put && kv.create_revision() == revision;
        let before = if created { None } else { Some(entry(event.prev_kv()?).await?) };
        let after = match event.event_type() {
            EventType::Put => Some(entry(kv).await?),
            EventType::Delete => None,
        };
        changes.push(Change { revision, after, before });
    }
    Some(changes)
}
