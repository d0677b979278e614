//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/rbac`.

pub(crate) mod cluster_role;
pub(crate) mod cluster_role_binding;
pub(crate) mod role;
pub(crate) mod role_binding;
