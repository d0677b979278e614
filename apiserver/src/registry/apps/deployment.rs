//! Deployment. Answers for upstream's `pkg/registry/apps/deployment`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::rollback::ROLLBACK;
use crate::registry::strategy::{Generation, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

pub(crate) const DEPLOYMENTS: GroupResource<'static> = GroupResource::new("apps", "deployments");

pub(crate) static KIND: KindDefinition = KindDefinition::new(DEPLOYMENTS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta2", "v1beta1"]))
    .number_annotation(ROLLBACK)
    .gated(&[gated("DeploymentReplicaSetTerminatingReplicas", "status", &["terminatingReplicas"])])
    .describes_pods(&["spec", "template"])
    .strategy(Strategy { generation: Generation::SpecAndAnnotations, status_restores: &["labels"], ..PLAIN })
    .rules(
        rules(validation::workloads::deployment)
            .update(validation::workloads::selector_stays)
            .changed(META_AND_SPEC)
            .status(validation::workloads::status::deployment),
    )
    .warns(warnings::named_workload)
    .cells(printers::workloads::deployment);
