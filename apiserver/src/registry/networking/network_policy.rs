//! NetworkPolicy. Answers for upstream's `pkg/registry/networking/networkpolicy`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::validation;
use crate::validation::kind_rules::{SPEC_TWICE, rules};
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("networking.k8s.io", "networkpolicies")
    .strategy(WITH_GENERATION)
    .rules(rules(validation::networking::policy::policy).changed(SPEC_TWICE))
    .warns(|new, _, out| warnings::networking::policy(new, out))
    .cells(printers::network::network_policy);
