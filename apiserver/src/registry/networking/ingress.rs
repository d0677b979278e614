//! Ingress. Answers for upstream's `pkg/registry/networking/ingress`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("networking.k8s.io", "ingresses")
    .strategy(WITH_GENERATION)
    .rules(
        rules(validation::networking::new_ingress)
            .update(validation::networking::ingress_update)
            .changed(&[ObjectMetaUpdate, ObjectMeta, Immutable])
            .status(validation::networking::ingress_status),
    )
    .warns(warnings::networking::ingress)
    .cells(printers::network::ingress);
