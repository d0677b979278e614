//! PriorityLevelConfiguration. Answers for upstream's `pkg/registry/flowcontrol/prioritylevelconfiguration`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{METADATA, Strategy, WITH_GENERATION};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

pub(crate) const PRIORITY_LEVEL_CONFIGURATIONS: GroupResource<'static> =
    GroupResource::new("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations");

pub(crate) static KIND: KindDefinition = KindDefinition::new(PRIORITY_LEVEL_CONFIGURATIONS)
    .strategy(Strategy { status_restores: METADATA, ..WITH_GENERATION })
    .rules(
        rules(validation::flowcontrol::level)
            .changed(&[ObjectMeta, Spec])
            .status(validation::flowcontrol::status)
            .status_changed(&[Immutable]),
    )
    .cells(printers::policy::priority_level);
