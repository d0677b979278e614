//! ValidatingWebhookConfiguration. Answers for upstream's
//! `pkg/registry/admissionregistration/validatingwebhookconfiguration`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition =
    KindDefinition::new("admissionregistration.k8s.io", "validatingwebhookconfigurations")
        .strategy(CONDITIONAL_GENERATION)
        .rules(
            rules(validation::admissionregistration::validating)
                .update(validation::admissionregistration::validating_update)
                .changed(&[ObjectMeta, Immutable]),
        )
        .cells(printers::policy::webhooks);
