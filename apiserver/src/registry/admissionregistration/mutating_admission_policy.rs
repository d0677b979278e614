//! MutatingAdmissionPolicy. Answers for upstream's `pkg/registry/admissionregistration/mutatingadmissionpolicy`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

pub(crate) const MUTATING_ADMISSION_POLICIES: GroupResource<'static> =
    GroupResource::new("admissionregistration.k8s.io", "mutatingadmissionpolicies");

pub(crate) static KIND: KindDefinition = KindDefinition::new(MUTATING_ADMISSION_POLICIES)
    .life_cycle(LifeCycle::new().gate("MutatingAdmissionPolicy").introduced(&[("v1beta1", 34)]).fixed_storage())
    .strategy(CONDITIONAL_GENERATION)
    .rules(
        rules(validation::mutating_policy::policy)
            .update(validation::mutating_policy::policy_update)
            .changed(&[ObjectMeta, Immutable]),
    )
    .cells(printers::policy::mutating_policy);
