//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/apiserverinternal`.

pub(crate) mod storage_version;
