//! The watch cache: what LIST, WATCH and the policies read. Answers for upstream's `pkg/storage/cacher`.
//!
//! In come etcd's events, out go snapshots and ordered streams of changes. Objects are kept as bytes with a small
//! index record; trees are made only where one is looked at. Never writes, and never answers with something older than
//! the caller allows.

mod cache_registry;
mod cacher;
mod consistency;
mod decode;
mod encoded;
mod entry;
pub mod gzip_chunks;
mod history;
mod index;
mod meters;
mod progress;
mod reader;
mod reads;
mod state;
mod uncached;

pub use crate::storage::Raw;
pub use cache_registry::CacheRegistry;
pub use cacher::{CacheError, Cacher, ChangesSince, Filter, ListScope, Message, Snapshot, Start, Watch, WatchStart};
pub use encoded::{Budget, Encoded};
pub use entry::{Change, Entry, EventType, SharedEvent};
pub use gzip_chunks::{GzipChunk, GzipChunkCache};
pub use index::{IndexKey, Term};
pub use meters::Metrics;
pub use progress::Progress;
pub use reader::CacheReader;
pub use reads::ReadMetrics;
pub use state::Trigger;
