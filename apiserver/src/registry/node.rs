//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/node`.

pub(crate) mod runtime_class;
