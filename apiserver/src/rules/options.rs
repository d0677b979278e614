//! Rules of validation that may be relaxed, and the list of findings that knows which of them are. Answers for
//! upstream's `PodValidationOptions` and its like.
//!
//! A rule asks the list that it adds to ([`Findings::allows`]) before it refuses. Which gates and stored objects relax
//! which rule `validation` says.

use std::ops::{Deref, DerefMut};

use proto::Value;
use shared::status::field::Error;

/// Relaxed validation rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValidationOption {
    /// HorizontalPodAutoscalers with `minReplicas: 0`.
    MinReplicasZero,
    /// Service names that are DNS-1123 labels, such as one that starts with a digit.
    RelaxedServiceNameValidation,
    /// Updates of the resources of suspended jobs.
    MutableResourcesForSuspendedJobs,
    /// Updates of the scheduling directives of suspended jobs that ran before.
    MutableSchedulingDirectivesForSuspendedJobs,
    /// Updates of a persistent volume's `nodeAffinity`.
    MutablePvNodeAffinity,
    /// Tolerations with the operators `Lt` and `Gt`.
    TaintTolerationComparisonOperators,
    /// Restart rules with `RestartAllContainers`, and restart rules of sidecars.
    RestartAllContainers,
    /// `hostNetwork` together with `hostUsers: false`.
    UserNamespacesHostNetworkSupport,
    /// Resizes of pod-level resources.
    PodLevelResourcesResize,
    /// `seLinuxChangePolicy: MountOption`.
    MountOptionSELinuxChangePolicy,
    /// Capacity requests of shared devices.
    ConsumableCapacity,
    /// Invalid values of the annotation `pod-deletion-cost`.
    InvalidPodDeletionCost,
    /// CSI drivers without `seLinuxMount`.
    UnsetSELinuxMount,
    /// Amounts of huge pages that are no multiple of the page size.
    IndivisibleHugePagesValues,
    /// Label selectors with invalid label values.
    InvalidLabelValueInSelector,
    /// Invalid label values in the required node affinity of pods or volumes.
    InvalidLabelValueInRequiredNodeAffinity,
    /// Invalid selectors of topology spread constraints.
    InvalidTopologySpreadConstraintLabelSelector,
    /// Invalid `matchLabelKeys` of topology spread constraints.
    OldPodViolatesMatchLabelKeysValidation,
    /// `matchLabelKeys` are not merged into the selectors of topology spread constraints.
    LegacyMatchLabelKeysValidation,
    /// Invalid `matchLabelKeys` where they are not merged: keys that the selector has as well.
    OldPodViolatesLegacyMatchLabelKeysValidation,
    /// Projected token paths that lead out of their volume.
    NonLocalProjectedTokenPath,
    /// Namespaced sysctls in pods that share the host's network or IPC namespace.
    NamespacedSysctlsForHostNetAndHostIpc,
    /// `volumeDevices` together with `hostUsers: false`.
    VolumeDevicesWithUserNamespaces,
    /// Invalid selectors of claims.
    InvalidLabelValueInClaimSelector,
    /// Invalid API groups in `dataSource` and `dataSourceRef` of claims.
    InvalidApiGroupInDataSourceOrRef,
    /// `nominatedNodeName` of pods that are bound.
    NominatedNodeNameOfBoundPod,
    /// The VolumeAttributesClass of volumes and claims is immutable.
    ImmutableVolumeAttributesClass,
    /// Environment variables from files are not among the supported sources.
    NoEnvFiles,
    /// Invalid secret names in the TLS of ingresses.
    InvalidSecretName,
    /// Invalid paths and backends in rules of wildcard hosts.
    InvalidWildcardHostRule,
    /// Jobs whose pod template lacks the prefixed labels.
    UnprefixedJobLabels,
    /// `gitRepo` volumes, which kubelets still mount.
    GitRepoVolumes,
}

impl ValidationOption {
    /// Bit of the rule in a set of relaxed rules.
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// Set of the rules that are relaxed for one validation. The default relaxes none.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValidationOptions(u64);

impl ValidationOptions {
    /// The set that relaxes no rule.
    pub const fn none() -> Self {
        Self(0)
    }

    /// The set with this rule relaxed, too.
    pub(crate) const fn with(self, option: ValidationOption) -> Self {
        Self(self.0 | option.bit())
    }

    /// Reports whether a rule is relaxed.
    pub(crate) const fn allows(self, option: ValidationOption) -> bool {
        self.0 & option.bit() != 0
    }
}

/// Rule that stays relaxed for a stored object that relies on that already.
pub(crate) struct KeptOption {
    pub(crate) option: ValidationOption,
    /// Keys of the part of the object to look at.
    pub(crate) within: &'static [&'static str],
    /// Reports whether that part relies on it.
    pub(crate) used: fn(&Value) -> bool,
}

/// A rule that stays relaxed for stored objects of which a part relies on it.
pub(crate) const fn kept(
    option: ValidationOption,
    within: &'static [&'static str],
    used: fn(&Value) -> bool,
) -> KeptOption {
    KeptOption { option, within, used }
}

/// Findings of one validation and the options it was asked to run with; otherwise a list.
#[derive(Debug)]
pub(crate) struct Findings<T> {
    found: Vec<T>,
    options: ValidationOptions,
}

/// Field errors of one validation.
pub(crate) type FieldErrors = Findings<Error>;

/// Warnings about one object.
pub(crate) type Warnings = Findings<String>;

impl<T> Findings<T> {
    /// Returns an empty list for a validation with these options.
    pub(crate) const fn new(options: ValidationOptions) -> Self {
        Self { found: Vec::new(), options }
    }

    /// The options of this validation.
    pub(crate) const fn options(&self) -> ValidationOptions {
        self.options
    }

    /// Reports whether a rule is relaxed in this validation.
    pub(crate) const fn allows(&self, option: ValidationOption) -> bool {
        self.options.allows(option)
    }

    /// The findings alone.
    pub(crate) fn into_vec(self) -> Vec<T> {
        self.found
    }
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Self::new(ValidationOptions::none())
    }
}

impl<T> Deref for Findings<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.found
    }
}

impl<T> DerefMut for Findings<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.found
    }
}
