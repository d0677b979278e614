//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/autoscaling`.

pub(crate) mod horizontal_pod_autoscaler;
