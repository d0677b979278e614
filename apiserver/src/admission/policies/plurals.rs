//! Names of the policies' resources.

use crate::machinery::GroupResource;
use crate::registry::admissionregistration::mutating_admission_policy::MUTATING_ADMISSION_POLICIES;
use crate::registry::admissionregistration::mutating_admission_policy_binding::MUTATING_ADMISSION_POLICY_BINDINGS;
use crate::registry::admissionregistration::validating_admission_policy::VALIDATING_ADMISSION_POLICIES;
use crate::registry::admissionregistration::validating_admission_policy_binding::VALIDATING_ADMISSION_POLICY_BINDINGS;

/// Group of policies and bindings.
pub(super) const GROUP: &str = VALIDATING_ADMISSION_POLICIES.group;
/// Resources of a kind of policies and of its bindings.
pub(super) type Plurals = (GroupResource<'static>, GroupResource<'static>);
pub(super) const VALIDATING: Plurals = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS);
pub(super) const MUTATING: Plurals = (MUTATING_ADMISSION_POLICIES, MUTATING_ADMISSION_POLICY_BINDINGS);
