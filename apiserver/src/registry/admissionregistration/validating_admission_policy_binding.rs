//! ValidatingAdmissionPolicyBinding. Answers for upstream's
//! `pkg/registry/admissionregistration/validatingadmissionpolicybinding`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::CONDITIONAL_GENERATION;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{ObjectMeta, Spec};
use crate::validation::kind_rules::rules;

pub(crate) const VALIDATING_ADMISSION_POLICY_BINDINGS: GroupResource<'static> =
    GroupResource::new("admissionregistration.k8s.io", "validatingadmissionpolicybindings");

pub(crate) static KIND: KindDefinition = KindDefinition::new(VALIDATING_ADMISSION_POLICY_BINDINGS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1", "v1alpha1"]))
    .strategy(CONDITIONAL_GENERATION)
    .rules(rules(validation::admission_policy::binding).changed(&[ObjectMeta, Spec]))
    .cells(printers::policy::admission_policy_binding);
