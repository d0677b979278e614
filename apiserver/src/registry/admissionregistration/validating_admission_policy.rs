//! ValidatingAdmissionPolicy. Answers for upstream's `pkg/registry/admissionregistration/validatingadmissionpolicy`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CONDITIONAL_GENERATION, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition =
    KindDefinition::new("admissionregistration.k8s.io", "validatingadmissionpolicies")
        .strategy(Strategy { status_restores: METADATA, ..CONDITIONAL_GENERATION })
        .rules(
            rules(validation::admission_policy::policy)
                .update(validation::admission_policy::policy_update)
                .changed(&[ObjectMeta, Immutable])
                .status(validation::admission_policy::status)
                .status_changed(&[Immutable]),
        )
        .cells(printers::policy::validating_policy);
