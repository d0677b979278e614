//! Workload. Answers for upstream's `pkg/registry/scheduling/workload`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};

pub(crate) const WORKLOADS: GroupResource<'static> = GroupResource::new("scheduling.k8s.io", "workloads");

pub(crate) static KIND: KindDefinition = KindDefinition::new(WORKLOADS)
    .life_cycle(LifeCycle::new().gate("GenericWorkload").introduced(&[("v1alpha1", 35)]).fixed_storage())
    .rules(
        rules(validation::scheduling::workload).update(validation::scheduling::workload_update).changed(META_AND_SPEC),
    );
