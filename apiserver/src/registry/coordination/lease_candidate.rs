//! LeaseCandidate. Answers for upstream's `pkg/registry/coordination/leasecandidate`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL_CREATES;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};

pub(crate) const LEASE_CANDIDATES: GroupResource<'static> =
    GroupResource::new("coordination.k8s.io", "leasecandidates");

pub(crate) static KIND: KindDefinition = KindDefinition::new(LEASE_CANDIDATES)
    .life_cycle(LifeCycle::new().gate("CoordinatedLeaderElection").introduced(&[("v1beta1", 33)]).fixed_storage())
    .strategy(CONDITIONAL_CREATES)
    .rules(
        rules(validation::coordination::candidate)
            .named(NameRule::ConfigKey)
            .update(validation::coordination::candidate_update)
            .changed(META_AND_SPEC),
    )
    .cells(printers::cluster::lease_candidate);
