//! MutatingAdmissionPolicyBinding. Answers for upstream's
//! `pkg/registry/admissionregistration/mutatingadmissionpolicybinding`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition =
    KindDefinition::new("admissionregistration.k8s.io", "mutatingadmissionpolicybindings")
        .strategy(CONDITIONAL_GENERATION)
        .rules(rules(validation::mutating_policy::binding).changed(&[ObjectMeta, Spec]))
        .cells(printers::policy::admission_policy_binding);
