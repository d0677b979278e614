//! Rules of validation that may be relaxed, and which of them are in the validation that runs on this thread. Answers
//! for upstream's `PodValidationOptions` and its like.
//!
//! A rule asks [`allows`] before it refuses. The options are set for one validation on one thread, and not passed through
//! the rules: of several hundred, a dozen ask. Which gates and stored objects relax which rule `validation` says.

use std::cell::Cell;

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

thread_local! {
    static ALLOWED: Cell<u64> = const { Cell::new(0) };
}

/// Reports whether a rule is relaxed in the validation that runs on this thread.
pub(crate) fn allows(option: ValidationOption) -> bool {
    ALLOWED.get() & option.bit() != 0
}

/// Runs a validation with these rules relaxed, and restores those of before.
pub(crate) fn with<R>(relaxed: u64, validation: impl FnOnce() -> R) -> R {
    let _ends = OptionsGuard(ALLOWED.replace(relaxed));
    validation()
}

/// Guard of one validation; restores the relaxed rules of before when dropped.
struct OptionsGuard(u64);

impl Drop for OptionsGuard {
    fn drop(&mut self) {
        ALLOWED.set(self.0);
    }
}
