//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/authentication`.

pub(crate) mod self_subject_review;
pub(crate) mod token_review;
