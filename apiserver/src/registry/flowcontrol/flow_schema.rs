//! FlowSchema. Answers for upstream's `pkg/registry/flowcontrol/flowschema`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{METADATA, Strategy, WITH_GENERATION};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

pub(crate) const FLOW_SCHEMAS: GroupResource<'static> =
    GroupResource::new("flowcontrol.apiserver.k8s.io", "flowschemas");

pub(crate) static KIND: KindDefinition = KindDefinition::new(FLOW_SCHEMAS)
    .strategy(Strategy { status_restores: METADATA, ..WITH_GENERATION })
    .rules(
        rules(validation::flowcontrol::schema)
            .changed(&[ObjectMeta, Spec])
            .status(validation::flowcontrol::status)
            .status_changed(&[Immutable]),
    )
    .cells(printers::policy::flow_schema);
