//! MutatingAdmissionPolicyBinding. Answers for upstream's
//! `pkg/registry/admissionregistration/mutatingadmissionpolicybinding`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

pub(crate) const MUTATING_ADMISSION_POLICY_BINDINGS: GroupResource<'static> =
    GroupResource::new("admissionregistration.k8s.io", "mutatingadmissionpolicybindings");

pub(crate) static KIND: KindDefinition = KindDefinition::new(MUTATING_ADMISSION_POLICY_BINDINGS)
    .life_cycle(LifeCycle::new().gate("MutatingAdmissionPolicy").introduced(&[("v1beta1", 34)]).fixed_storage())
    .strategy(CONDITIONAL_GENERATION)
    .rules(rules(validation::mutating_policy::binding).changed(&[ObjectMeta, Spec]))
    .cells(printers::policy::admission_policy_binding);
