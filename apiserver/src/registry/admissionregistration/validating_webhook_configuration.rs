//! ValidatingWebhookConfiguration. Answers for upstream's
//! `pkg/registry/admissionregistration/validatingwebhookconfiguration`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

pub(crate) const VALIDATING_WEBHOOK_CONFIGURATIONS: GroupResource<'static> =
    GroupResource::new("admissionregistration.k8s.io", "validatingwebhookconfigurations");

pub(crate) static KIND: KindDefinition = KindDefinition::new(VALIDATING_WEBHOOK_CONFIGURATIONS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .keeps(&[kept(
        ValidationOption::InvalidLabelValueInSelector,
        &["webhooks"],
        validation::admissionregistration::have_invalid_selectors,
    )])
    .strategy(CONDITIONAL_GENERATION)
    .rules(
        rules(validation::admissionregistration::validating)
            .update(validation::admissionregistration::validating_update)
            .changed(&[ObjectMeta, Immutable]),
    )
    .cells(printers::policy::webhooks);
