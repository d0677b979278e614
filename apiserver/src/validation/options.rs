//! Validation options: rules that feature gates and stored objects relax.
//!
//! A gate is a row of [`TABLE`]: its name, and how a stored object shows that it uses already what the gate is about,
//! which it may keep while the gate is disabled. A rule asks the list of findings before it refuses.

use proto::Value;
use proto::resources::Resource;
use shared::flags::FeatureGates;

use super::pod::stored;
use super::tree::{flag, get, int, list, text};
use super::volume::claim;
use super::{admissionregistration, batch, networking, selectors};
use crate::rules::options::{ValidationOption, ValidationOptions};

/// Kinds with the spec of a pod: `plural.group`, and its path.
pub const PODS: &[(&str, &str)] = &[
    ("pods", "spec"),
    ("podtemplates", "template.spec"),
    ("replicationcontrollers", "spec.template.spec"),
    ("daemonsets.apps", "spec.template.spec"),
    ("deployments.apps", "spec.template.spec"),
    ("replicasets.apps", "spec.template.spec"),
    ("statefulsets.apps", "spec.template.spec"),
    ("jobs.batch", "spec.template.spec"),
    ("cronjobs.batch", "spec.jobTemplate.spec.template.spec"),
];
const AUTOSCALERS: &[(&str, &str)] = &[("horizontalpodautoscalers.autoscaling", "spec")];
const VOLUMES: &[(&str, &str)] = &[("persistentvolumes", "spec")];
const CLAIMS: &[(&str, &str)] = &[("persistentvolumeclaims", "spec")];
/// The metadata of whoever [`PODS`] are about.
const METADATA: &[(&str, &str)] = &[
    ("pods", "metadata"),
    ("podtemplates", "template.metadata"),
    ("replicationcontrollers", "spec.template.metadata"),
    ("daemonsets.apps", "spec.template.metadata"),
    ("deployments.apps", "spec.template.metadata"),
    ("replicasets.apps", "spec.template.metadata"),
    ("statefulsets.apps", "spec.template.metadata"),
    ("jobs.batch", "spec.template.metadata"),
    ("cronjobs.batch", "spec.jobTemplate.spec.template.metadata"),
];
const INGRESSES: &[(&str, &str)] = &[("ingresses.networking.k8s.io", "spec")];
/// Kinds with a label selector whose invalid values are kept when stored; other workloads never allowed any.
const SELECTING: &[(&str, &str)] = &[
    ("poddisruptionbudgets.policy", "spec.selector"),
    ("networkpolicies.networking.k8s.io", "spec.podSelector"),
    ("csistoragecapacities.storage.k8s.io", "nodeTopology"),
    ("daemonsets.apps", "spec.selector"),
    ("jobs.batch", "spec.selector"),
];
const LABELS_OF_JOBS: &[(&str, &str)] = &[("jobs.batch", "spec.template.metadata.labels")];
const AGGREGATING: &[(&str, &str)] = &[("clusterroles.rbac.authorization.k8s.io", "aggregationRule")];
const WEBHOOKS: &[(&str, &str)] = &[
    ("mutatingwebhookconfigurations.admissionregistration.k8s.io", "webhooks"),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io", "webhooks"),
];

/// Reports whether a row is that of `plural.group`.
pub(super) fn is_of(row: &Resource, of: &str) -> bool {
    of.split_once('.').unwrap_or((of, "")) == (&*row.plural, &*row.group)
}

struct Row {
    option: ValidationOption,
    /// Feature gate; `!` in front when the option needs it disabled.
    name: &'static str,
    /// Kinds whose stored objects may use the rule already, with the path to look at.
    within: &'static [(&'static str, &'static str)],
    used: fn(&Value) -> bool,
}

const fn row(
    option: ValidationOption,
    name: &'static str,
    within: &'static [(&'static str, &'static str)],
    used: fn(&Value) -> bool,
) -> Row {
    Row { option, name, within, used }
}

/// In place of a gate: earlier releases allowed it, and stored objects may keep it.
const STORED: &str = "";

fn never(_: &Value) -> bool {
    false
}

static TABLE: &[Row] = &[
    row(ValidationOption::MinReplicasZero, "HPAScaleToZero", AUTOSCALERS, |spec| int(spec, "minReplicas") == Some(0)),
    row(
        ValidationOption::RelaxedServiceNameValidation,
        "RelaxedServiceNameValidation",
        INGRESSES,
        networking::has_relaxed_names,
    ),
    row(ValidationOption::MutableResourcesForSuspendedJobs, "MutablePodResourcesForSuspendedJobs", &[], never),
    row(
        ValidationOption::MutableSchedulingDirectivesForSuspendedJobs,
        "MutableSchedulingDirectivesForSuspendedJobs",
        &[],
        never,
    ),
    row(ValidationOption::MutablePvNodeAffinity, "MutablePVNodeAffinity", &[], never),
    row(ValidationOption::TaintTolerationComparisonOperators, "TaintTolerationComparisonOperators", PODS, compares),
    row(ValidationOption::RestartAllContainers, "RestartAllContainersOnContainerExits", PODS, restarts_all),
    row(ValidationOption::PodLevelResourcesResize, "InPlacePodLevelResourcesVerticalScaling", &[], never),
    row(ValidationOption::UserNamespacesHostNetworkSupport, "UserNamespacesHostNetworkSupport", PODS, |spec| {
        get(spec, "hostUsers") == &Value::Bool(false) && flag(spec, "hostNetwork")
    }),
    row(ValidationOption::MountOptionSELinuxChangePolicy, "SELinuxMount", PODS, |spec| {
        !text(get(spec, "securityContext"), "seLinuxChangePolicy").is_empty()
    }),
    row(ValidationOption::ConsumableCapacity, "DRAConsumableCapacity", &[], never),
    row(ValidationOption::InvalidPodDeletionCost, "!PodDeletionCost", METADATA, stored::has_invalid_deletion_cost),
    row(ValidationOption::UnsetSELinuxMount, "!SELinuxMountReadWriteOncePod", &[], never),
    row(ValidationOption::IndivisibleHugePagesValues, STORED, PODS, stored::has_indivisible_huge_pages),
    row(ValidationOption::InvalidLabelValueInSelector, STORED, PODS, stored::has_invalid_selectors),
    row(ValidationOption::InvalidLabelValueInSelector, STORED, SELECTING, selectors::is_invalid),
    row(ValidationOption::InvalidLabelValueInSelector, STORED, AGGREGATING, |rule| {
        list(rule, "clusterRoleSelectors").iter().any(selectors::is_invalid)
    }),
    row(ValidationOption::InvalidLabelValueInSelector, STORED, WEBHOOKS, admissionregistration::have_invalid_selectors),
    row(ValidationOption::InvalidSecretName, STORED, INGRESSES, networking::has_invalid_secret_names),
    row(ValidationOption::InvalidWildcardHostRule, STORED, INGRESSES, networking::has_invalid_wildcard_host_rules),
    row(ValidationOption::UnprefixedJobLabels, STORED, LABELS_OF_JOBS, batch::lacks_prefixed_labels),
    row(ValidationOption::InvalidLabelValueInRequiredNodeAffinity, STORED, PODS, stored::requires_invalid_label_values),
    row(ValidationOption::InvalidLabelValueInRequiredNodeAffinity, STORED, VOLUMES, stored::has_invalid_node_affinity),
    row(
        ValidationOption::InvalidTopologySpreadConstraintLabelSelector,
        STORED,
        PODS,
        stored::has_invalid_spread_selectors,
    ),
    row(ValidationOption::OldPodViolatesMatchLabelKeysValidation, STORED, PODS, stored::has_invalid_spread_keys),
    row(ValidationOption::OldPodViolatesMatchLabelKeysValidation, "!MatchLabelKeysInPodTopologySpread", &[], never),
    row(
        ValidationOption::LegacyMatchLabelKeysValidation,
        "!MatchLabelKeysInPodTopologySpreadSelectorMerge",
        &[],
        never,
    ),
    row(
        ValidationOption::OldPodViolatesLegacyMatchLabelKeysValidation,
        STORED,
        PODS,
        stored::has_invalid_legacy_spread_keys,
    ),
    row(ValidationOption::NonLocalProjectedTokenPath, STORED, PODS, stored::has_non_local_token_paths),
    row(ValidationOption::NamespacedSysctlsForHostNetAndHostIpc, STORED, PODS, stored::has_host_namespaced_sysctls),
    row(
        ValidationOption::VolumeDevicesWithUserNamespaces,
        STORED,
        PODS,
        stored::has_volume_devices_with_user_namespaces,
    ),
    row(ValidationOption::InvalidLabelValueInClaimSelector, STORED, CLAIMS, claim::has_invalid_selector),
    row(ValidationOption::InvalidApiGroupInDataSourceOrRef, STORED, CLAIMS, claim::has_groups),
    row(ValidationOption::NominatedNodeNameOfBoundPod, "!ClearingNominatedNodeNameAfterBinding", &[], never),
    row(ValidationOption::ImmutableVolumeAttributesClass, "!VolumeAttributesClass", &[], never),
    row(ValidationOption::NoEnvFiles, "!EnvFiles", &[], never),
    row(ValidationOption::GitRepoVolumes, "GitRepoVolumeDriver", &[], never),
];

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
        TABLE.iter().filter(|row| row.allows(gates)).fold(Self::default(), |all, row| all.with(row.option))
    }

    /// Options for the validation of an object that replaces `old`: those of the gates, and those that the old object
    /// uses.
    #[must_use]
    pub fn for_update(self, row: &Resource, old: &Value) -> Self {
        let used = TABLE.iter().filter(|r| !self.allows(r.option) && r.is_used(row, old));
        used.fold(self, |all, row| all.with(row.option))
    }
}

impl Row {
    fn allows(&self, gates: &FeatureGates) -> bool {
        self.name.strip_prefix('!').map_or_else(|| gates.enabled(self.name), |name| !gates.enabled(name))
    }

    fn is_used(&self, row: &Resource, old: &Value) -> bool {
        let place = self.within.iter().find(|(of, _)| is_of(row, of));
        place.is_some_and(|(_, path)| {
            let holder = path.split('.').fold(old, get);
            (self.used)(holder)
        })
    }
}
