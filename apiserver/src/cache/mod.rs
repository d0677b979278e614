//! The watch cache: what LIST, WATCH and the policies read.
//!
//! In come etcd's events, out go snapshots and ordered streams of changes. Objects are kept as bytes with a small
//! index record; trees are made only where one is looked at. Never writes, and never answers with something older than
//! the caller allows.

mod cacher;
mod entry;
mod hub;
mod reader;

pub use cacher::{CacheError, Cacher, Filter, Message, Snapshot, Start, Watch};
pub use entry::{Change, Entry, Live, Raw, Seen};
pub use hub::Hub;
pub use reader::CacheReader;
