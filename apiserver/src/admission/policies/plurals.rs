//! Names of the policies' resources.

/// Group of policies and bindings.
pub(super) const GROUP: &str = "admissionregistration.k8s.io";
/// Plurals of a kind of policies and of its bindings.
pub(super) type Plurals = (&'static str, &'static str);
pub(super) const VALIDATING: Plurals = ("validatingadmissionpolicies", "validatingadmissionpolicybindings");
pub(super) const MUTATING: Plurals = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings");
