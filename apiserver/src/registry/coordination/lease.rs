//! Lease. Answers for upstream's `pkg/registry/coordination/lease`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL_CREATES;
use crate::validation;
use crate::validation::kind_rules::rules;

pub(crate) const LEASES: GroupResource<'static> = GroupResource::new("coordination.k8s.io", "leases");

pub(crate) static KIND: KindDefinition = KindDefinition::new(LEASES)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .gated(&[gated("CoordinatedLeaderElection", "spec", &["strategy", "preferredHolder"])])
    .strategy(CONDITIONAL_CREATES)
    .rules(rules(validation::coordination::lease))
    .cells(printers::cluster::lease);
