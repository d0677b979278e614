//! Kinds of the group, each in a file. Answers for upstream's `pkg/registry/policy`.

pub(crate) mod pod_disruption_budget;
