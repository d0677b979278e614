//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/events`.

pub(crate) mod event;
