//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/networking`.

pub(crate) mod ingress;
pub(crate) mod ingress_class;
pub(crate) mod ip_address;
pub(crate) mod network_policy;
pub(crate) mod service_cidr;
