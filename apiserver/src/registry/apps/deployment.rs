//! Deployment. Answers for upstream's `pkg/registry/apps/deployment`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{Generation, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("apps", "deployments")
    .strategy(Strategy { generation: Generation::SpecAndAnnotations, status_restores: &["labels"], ..PLAIN })
    .rules(
        rules(validation::workloads::deployment)
            .update(validation::workloads::selector_stays)
            .changed(META_AND_SPEC)
            .status(validation::workloads::status::deployment),
    )
    .warns(warnings::named_workload)
    .cells(printers::workloads::deployment);
