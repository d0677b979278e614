//! Validation options: rules that feature gates and stored objects relax.
//!
//! A rule asks the list of findings before it refuses. A gate relaxes it for all objects ([`GATES`]). A stored object that
//! relies on it already may keep that while the gate is disabled: what pods rely on is said here, for all kinds that
//! describe pods, and the rest in the home of its kind.

use proto::Value;
use shared::flags::FeatureGates;

use super::pod::stored;
use super::tree::{flag, get, list, text};
use crate::rules::options::{KeptOption, ValidationOption, ValidationOptions, kept};

/// Rules that a feature gate relaxes; `!` in front of one that has to be disabled for it.
const GATES: &[(ValidationOption, &str)] = &[
    (ValidationOption::MinReplicasZero, "HPAScaleToZero"),
    (ValidationOption::RelaxedServiceNameValidation, "RelaxedServiceNameValidation"),
    (ValidationOption::MutableResourcesForSuspendedJobs, "MutablePodResourcesForSuspendedJobs"),
    (ValidationOption::MutableSchedulingDirectivesForSuspendedJobs, "MutableSchedulingDirectivesForSuspendedJobs"),
    (ValidationOption::MutablePvNodeAffinity, "MutablePVNodeAffinity"),
    (ValidationOption::TaintTolerationComparisonOperators, "TaintTolerationComparisonOperators"),
    (ValidationOption::RestartAllContainers, "RestartAllContainersOnContainerExits"),
    (ValidationOption::PodLevelResourcesResize, "InPlacePodLevelResourcesVerticalScaling"),
    (ValidationOption::UserNamespacesHostNetworkSupport, "UserNamespacesHostNetworkSupport"),
    (ValidationOption::MountOptionSELinuxChangePolicy, "SELinuxMount"),
    (ValidationOption::ConsumableCapacity, "DRAConsumableCapacity"),
    (ValidationOption::InvalidPodDeletionCost, "!PodDeletionCost"),
    (ValidationOption::UnsetSELinuxMount, "!SELinuxMountReadWriteOncePod"),
    (ValidationOption::OldPodViolatesMatchLabelKeysValidation, "!MatchLabelKeysInPodTopologySpread"),
    (ValidationOption::LegacyMatchLabelKeysValidation, "!MatchLabelKeysInPodTopologySpreadSelectorMerge"),
    (ValidationOption::NominatedNodeNameOfBoundPod, "!ClearingNominatedNodeNameAfterBinding"),
    (ValidationOption::ImmutableVolumeAttributesClass, "!VolumeAttributesClass"),
    (ValidationOption::NoEnvFiles, "!EnvFiles"),
    (ValidationOption::GitRepoVolumes, "GitRepoVolumeDriver"),
];

/// Rules that stay relaxed for the stored specs of pods.
pub(crate) const KEPT_IN_POD_SPECS: &[KeptOption] = &[
    kept(ValidationOption::TaintTolerationComparisonOperators, &[], compares),
    kept(ValidationOption::RestartAllContainers, &[], restarts_all),
    kept(ValidationOption::UserNamespacesHostNetworkSupport, &[], |spec| {
        get(spec, "hostUsers") == &Value::Bool(false) && flag(spec, "hostNetwork")
    }),
    kept(ValidationOption::MountOptionSELinuxChangePolicy, &[], |spec| {
        !text(get(spec, "securityContext"), "seLinuxChangePolicy").is_empty()
    }),
    kept(ValidationOption::IndivisibleHugePagesValues, &[], stored::has_indivisible_huge_pages),
    kept(ValidationOption::InvalidLabelValueInSelector, &[], stored::has_invalid_selectors),
    kept(ValidationOption::InvalidLabelValueInRequiredNodeAffinity, &[], stored::requires_invalid_label_values),
    kept(ValidationOption::InvalidTopologySpreadConstraintLabelSelector, &[], stored::has_invalid_spread_selectors),
    kept(ValidationOption::OldPodViolatesMatchLabelKeysValidation, &[], stored::has_invalid_spread_keys),
    kept(ValidationOption::OldPodViolatesLegacyMatchLabelKeysValidation, &[], stored::has_invalid_legacy_spread_keys),
    kept(ValidationOption::NonLocalProjectedTokenPath, &[], stored::has_non_local_token_paths),
    kept(ValidationOption::NamespacedSysctlsForHostNetAndHostIpc, &[], stored::has_host_namespaced_sysctls),
    kept(ValidationOption::VolumeDevicesWithUserNamespaces, &[], stored::has_volume_devices_with_user_namespaces),
];

/// Rules that stay relaxed for the stored metadata of pods.
pub(crate) const KEPT_IN_POD_METADATA: &[KeptOption] =
    &[kept(ValidationOption::InvalidPodDeletionCost, &[], stored::has_invalid_deletion_cost)];

fn compares(spec: &Value) -> bool {
    list(spec, "tolerations").iter().any(|t| matches!(text(t, "operator"), "Lt" | "Gt"))
}

fn restarts_all(spec: &Value) -> bool {
    let rules = |container| list(container, "restartPolicyRules");
    let acts = |container| rules(container).iter().any(|rule| text(rule, "action") == "RestartAllContainers");
    let sidecar = |container| text(container, "restartPolicy") == "Always" && !rules(container).is_empty();
    list(spec, "containers").iter().any(acts) || list(spec, "initContainers").iter().any(|c| acts(c) || sidecar(c))
}

impl ValidationOptions {
    /// Options of a server with these feature gates.
    pub fn new(gates: &FeatureGates) -> Self {
        let relaxes =
            |gate: &str| gate.strip_prefix('!').map_or_else(|| gates.enabled(gate), |name| !gates.enabled(name));
        GATES.iter().filter(|(_, gate)| relaxes(gate)).fold(Self::default(), |all, (option, _)| all.with(*option))
    }
}
