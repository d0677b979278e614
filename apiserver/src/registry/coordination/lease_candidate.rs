//! LeaseCandidate. Answers for upstream's `pkg/registry/coordination/leasecandidate`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL_CREATES;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{META_AND_SPEC, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("coordination.k8s.io", "leasecandidates")
    .strategy(CONDITIONAL_CREATES)
    .rules(
        rules(validation::coordination::candidate)
            .named(NameRule::ConfigKey)
            .update(validation::coordination::candidate_update)
            .changed(META_AND_SPEC),
    )
    .cells(printers::cluster::lease_candidate);
