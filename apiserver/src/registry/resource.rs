//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/resource`.

pub(crate) mod device_class;
pub(crate) mod device_taint_rule;
pub(crate) mod resource_claim;
pub(crate) mod resource_claim_template;
pub(crate) mod resource_slice;
