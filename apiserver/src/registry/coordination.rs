//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/coordination`.

pub(crate) mod lease;
pub(crate) mod lease_candidate;
