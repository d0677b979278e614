//! ReplicaSet. Answers for upstream's `pkg/registry/apps/replicaset`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("apps", "replicasets")
    .strategy(WITH_GENERATION)
    .rules(
        rules(validation::workloads::replica_set)
            .update(validation::workloads::selector_stays)
            .changed(META_AND_SPEC)
            .status(validation::workloads::status::replicas),
    )
    .warns(warnings::named_workload)
    .cells(printers::workloads::replica_set);
