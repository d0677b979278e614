//! ReplicaSet. Answers for upstream's `pkg/registry/apps/replicaset`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};
use crate::validation::warnings;

pub(crate) const REPLICA_SETS: GroupResource<'static> = GroupResource::new("apps", "replicasets");

pub(crate) static KIND: KindDefinition = KindDefinition::new(REPLICA_SETS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta2"]))
    .gated(&[gated("DeploymentReplicaSetTerminatingReplicas", "status", &["terminatingReplicas"])])
    .describes_pods(&["spec", "template"])
    .strategy(WITH_GENERATION)
    .rules(
        rules(validation::workloads::replica_set)
            .update(validation::workloads::selector_stays)
            .changed(META_AND_SPEC)
            .status(validation::workloads::status::replicas),
    )
    .warns(warnings::named_workload)
    .cells(printers::workloads::replica_set);
