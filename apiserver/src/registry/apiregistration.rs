//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/apiregistration`.

pub(crate) mod api_service;
