//! IngressClass. Answers for upstream's `pkg/registry/networking/ingressclass`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate, Spec};
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition =
    KindDefinition::new("networking.k8s.io", "ingressclasses")
        .strategy(WITH_GENERATION)
        .rules(
            rules(validation::networking::ingress_class)
                .update(validation::networking::ingress_class_update)
                .changed(&[ObjectMetaUpdate, Immutable, ObjectMeta, Spec]),
        )
        .cells(printers::network::ingress_class);
