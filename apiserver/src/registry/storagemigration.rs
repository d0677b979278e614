//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/storagemigration`.

pub(crate) mod storage_version_migration;
