//! ValidatingAdmissionPolicy. Answers for upstream's `pkg/registry/admissionregistration/validatingadmissionpolicy`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{CONDITIONAL_GENERATION, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

pub(crate) const VALIDATING_ADMISSION_POLICIES: GroupResource<'static> =
    GroupResource::new("admissionregistration.k8s.io", "validatingadmissionpolicies");

pub(crate) static KIND: KindDefinition = KindDefinition::new(VALIDATING_ADMISSION_POLICIES)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1", "v1alpha1"]))
    .strategy(Strategy { status_restores: METADATA, ..CONDITIONAL_GENERATION })
    .rules(
        rules(validation::admission_policy::policy)
            .update(validation::admission_policy::policy_update)
            .changed(&[ObjectMeta, Immutable])
            .status(validation::admission_policy::status)
            .status_changed(&[Immutable]),
    )
    .cells(printers::policy::validating_policy);
