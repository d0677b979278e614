//! IngressClass. Answers for upstream's `pkg/registry/networking/ingressclass`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate, Spec};
use crate::validation::kind_rules::rules;

pub(crate) const INGRESS_CLASSES: GroupResource<'static> = GroupResource::new("networking.k8s.io", "ingressclasses");

pub(crate) static KIND: KindDefinition =
    KindDefinition::new(INGRESS_CLASSES)
        .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
        .strategy(WITH_GENERATION)
        .rules(
            rules(validation::networking::ingress_class)
                .update(validation::networking::ingress_class_update)
                .changed(&[ObjectMetaUpdate, Immutable, ObjectMeta, Spec]),
        )
        .cells(printers::network::ingress_class);
