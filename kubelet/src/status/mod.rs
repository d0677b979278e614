//! Statuses of pods, written to the API server by [`writer`].

pub mod patch;
pub mod writer;
