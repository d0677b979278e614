//! MutatingWebhookConfiguration. Answers for upstream's
//! `pkg/registry/admissionregistration/mutatingwebhookconfiguration`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

pub(crate) const MUTATING_WEBHOOK_CONFIGURATIONS: GroupResource<'static> =
    GroupResource::new("admissionregistration.k8s.io", "mutatingwebhookconfigurations");

pub(crate) static KIND: KindDefinition = KindDefinition::new(MUTATING_WEBHOOK_CONFIGURATIONS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .keeps(&[kept(
        ValidationOption::InvalidLabelValueInSelector,
        &["webhooks"],
        validation::admissionregistration::have_invalid_selectors,
    )])
    .strategy(CONDITIONAL_GENERATION)
    .rules(
        rules(validation::admissionregistration::mutating)
            .update(validation::admissionregistration::mutating_update)
            .changed(&[ObjectMeta, Immutable]),
    )
    .cells(printers::policy::webhooks);
