//! The machinery below all rooms: fields of object trees and the name this server goes by.
//!
//! Answers for the parts of upstream's `apimachinery` and `apiserver/pkg/util` that know no kind. Nothing here imports
//! another room, does I/O or keeps state.

pub mod identity;
pub mod tree;
