//! The watch cache: what LIST, WATCH and the policies read.
//!
//! In come etcd's events, out go snapshots and ordered streams of changes. Objects are kept as bytes with a small
//! index record; trees are made only where one is looked at. Never writes, and never answers with something older than
//! the caller allows.

mod cacher;
mod consistency;
mod encoded;
mod entry;
mod history;
mod hub;
mod index;
mod meters;
pub mod packs;
mod progress;
mod reader;
mod reads;
mod state;
mod uncached;

pub use cacher::{Begin, CacheError, Cacher, Filter, Message, Scope, Since, Snapshot, Start, Watch};
pub use encoded::{Budget, Encoded};
pub use entry::{Change, Entry, Live, Raw, Seen};
pub use hub::Hub;
pub use index::{By, Term};
pub use meters::Meters;
pub use packs::{Pack, Packs};
pub use progress::Progress;
pub use reader::CacheReader;
pub use reads::Reads;
pub use state::Trigger;
