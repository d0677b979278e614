//! Lease. Answers for upstream's `pkg/registry/coordination/lease`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL_CREATES;
use crate::validation;
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("coordination.k8s.io", "leases")
    .strategy(CONDITIONAL_CREATES)
    .rules(rules(validation::coordination::lease))
    .cells(printers::cluster::lease);
