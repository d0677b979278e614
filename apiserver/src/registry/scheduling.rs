//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/scheduling`.

pub(crate) mod priority_class;
pub(crate) mod workload;
