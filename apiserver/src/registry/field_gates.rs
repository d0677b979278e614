//! Feature gates as they bear on fields and validation of objects.

use proto::Value;

use super::gated_fields::{GatedDefaults, UngatedRule};
use crate::machinery::GroupResource;
use crate::validation::ValidationOptions;

/// Rule for the spec of a new or updated pod (beside the stored one) where a gate is disabled.
pub(super) type PodRule = fn(&mut Value, Option<&Value>);

/// Fields of one gate in one resource.
pub(super) struct DisabledFields {
    pub(super) resource: GroupResource<'static>,
    pub(super) paths: Vec<Vec<String>>,
    /// Other fields whose use counts as use of the gate.
    pub(super) used_by: Vec<Vec<String>>,
    /// The fields are dropped even when in use.
    pub(super) always: bool,
}

/// The fields of the gates that are off, and what else the gates change.
#[derive(Default)]
pub struct FieldGates {
    pub(super) off: Vec<DisabledFields>,
    /// Further rules for pod specs.
    pub(super) pod_rules: Vec<PodRule>,
    /// Rules for updates of kinds whose gate is disabled.
    pub(super) rules: Vec<(GroupResource<'static>, UngatedRule)>,
    /// Defaults of kinds whose gate is enabled.
    pub(super) defaults: Vec<(GroupResource<'static>, GatedDefaults)>,
    /// `StrictIPCIDRValidation`
    pub(super) strict_addresses: bool,
    /// `MatchLabelKeysInPodTopologySpreadSelectorMerge` is off, or what it builds on: the keys by which pods are spread
    /// are not made part of the selector.
    pub unmerged_keys: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`: a resize may change what a pod has as a whole.
    pub whole_resize: bool,
    /// Validation rules that are relaxed.
    pub relaxed: ValidationOptions,
}
