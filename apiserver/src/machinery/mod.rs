//! The machinery below all rooms: fields of object trees, query parameters and the write options made
//! of them, names of resources, and who this server is.
//!
//! Answers for the parts of upstream's `apimachinery` and `apiserver/pkg/util` that know no kind. Nothing here imports
//! another room, does I/O or keeps state.

mod group_resource;
pub mod hex;
pub mod identity;
pub mod meta;
pub mod query;
pub mod table;
pub mod tree;

pub use group_resource::GroupResource;
