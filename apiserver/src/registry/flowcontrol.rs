//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/flowcontrol`.

pub(crate) mod flow_schema;
pub(crate) mod priority_level_configuration;
