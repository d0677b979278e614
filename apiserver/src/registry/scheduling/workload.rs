//! Workload. Answers for upstream's `pkg/registry/scheduling/workload`.

use crate::registry::kind::KindDefinition;
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("scheduling.k8s.io", "workloads").rules(
    rules(validation::scheduling::workload).update(validation::scheduling::workload_update).changed(META_AND_SPEC),
);
