//! Validation options: rules that feature gates and stored objects relax.
//!
//! A gate is a row of [`TABLE`]: its name, and how a stored object shows that it uses already what the gate is about,
//! which it then may go on with when the gate is off. A rule asks [`allows`] before it refuses. What is allowed is
//! settled for one judgement on one thread, and not handed through the rules: of several hundred, a dozen ask.

use std::cell::Cell;

use proto::Value;
use proto::resources::Resource;
use shared::flags::FeatureGates;

use super::pod::stored;
use super::tree::{flag, get, int, list, text};
use super::volume::claim;
use super::{admissionregistration, batch, networking, selectors};

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

/// One relaxed validation rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// Autoscalers that go down to nothing.
    NoReplicas,
    /// Names of services that begin with a digit.
    ServiceNames,
    /// Suspended jobs get other resources.
    JobResources,
    /// Suspended jobs that ran before get other places.
    JobPlaces,
    /// Volumes get other places.
    VolumePlaces,
    /// Tolerations that compare numbers.
    Comparisons,
    /// A container's exit restarts all, and sidecars have rules.
    RestartAll,
    /// Users of their own on the host's network.
    HostNetwork,
    /// Pods are resized as a whole.
    WholeResize,
    /// Volumes that are mounted with a label instead of being relabelled.
    MountOption,
    /// Selectors of devices that are given to several claims.
    SharedDevices,
    /// Costs of deletion that are no numbers.
    DeletionCosts,
    /// Drivers that do not say whether they mount with labels.
    UnsaidLabels,
    /// Huge pages in parts.
    PartsOfPages,
    /// Selectors of pods that name values no label has.
    OddSelectors,
    /// Invalid label values in the required node affinity of pods or volumes.
    OddNodeLabels,
    /// Invalid selectors of topology spread constraints.
    OddSelectorsOfSpread,
    /// Keys of labels that pods are spread by.
    OddKeysOfSpread,
    /// Keys of labels are not merged into the selectors of pods that are spread.
    UnmergedKeys,
    /// Such keys that are in the selector.
    OddUnmergedKeys,
    /// Tokens that lead out of their volume.
    TokensElsewhere,
    /// Sysctls of what is shared with the host.
    SysctlsOfHost,
    /// Block devices of pods with users of their own.
    DevicesOfOwnUsers,
    /// Invalid selectors of claims.
    OddSelectorsOfClaims,
    /// API groups that are none, of what claims are filled from.
    OddGroupsOfSources,
    /// Pods that have a node are nominated for one.
    NominationOfBound,
    /// Classes of attributes of volumes and claims stay what they are.
    AttributesStay,
    /// Variables come from nowhere but where they used to: files are not told of.
    NoFiles,
    /// Secrets of ingresses whose names are none.
    OddSecretNames,
    /// Paths and backends of any kind, for hosts with a wildcard.
    OddWildcardRules,
    /// Jobs without the labels whose keys have a prefix.
    BareLabels,
    /// Volumes that are repositories: kubelets still make them.
    Repositories,
}

struct Gate {
    leave: Leave,
    /// With `!` in front when it is the gate's being off that allows it.
    name: &'static str,
    /// Kinds whose stored objects may use the rule already, with the path to look at.
    within: &'static [(&'static str, &'static str)],
    used: fn(&Value) -> bool,
}

const fn gate(
    leave: Leave,
    name: &'static str,
    within: &'static [(&'static str, &'static str)],
    used: fn(&Value) -> bool,
) -> Gate {
    Gate { leave, name, within, used }
}

/// In place of a gate: it was allowed once, and what is stored may stay.
const STORED: &str = "";

fn never(_: &Value) -> bool {
    false
}

static TABLE: &[Gate] = &[
    gate(Leave::NoReplicas, "HPAScaleToZero", AUTOSCALERS, |spec| int(spec, "minReplicas") == Some(0)),
    gate(Leave::ServiceNames, "RelaxedServiceNameValidation", INGRESSES, networking::has_relaxed_names),
    gate(Leave::JobResources, "MutablePodResourcesForSuspendedJobs", &[], never),
    gate(Leave::JobPlaces, "MutableSchedulingDirectivesForSuspendedJobs", &[], never),
    gate(Leave::VolumePlaces, "MutablePVNodeAffinity", &[], never),
    gate(Leave::Comparisons, "TaintTolerationComparisonOperators", PODS, compares),
    gate(Leave::RestartAll, "RestartAllContainersOnContainerExits", PODS, restarts_all),
    gate(Leave::WholeResize, "InPlacePodLevelResourcesVerticalScaling", &[], never),
    gate(Leave::HostNetwork, "UserNamespacesHostNetworkSupport", PODS, |spec| {
        get(spec, "hostUsers") == &Value::Bool(false) && flag(spec, "hostNetwork")
    }),
    gate(Leave::MountOption, "SELinuxMount", PODS, |spec| {
        !text(get(spec, "securityContext"), "seLinuxChangePolicy").is_empty()
    }),
    gate(Leave::SharedDevices, "DRAConsumableCapacity", &[], never),
    gate(Leave::DeletionCosts, "!PodDeletionCost", METADATA, stored::has_odd_cost),
    gate(Leave::UnsaidLabels, "!SELinuxMountReadWriteOncePod", &[], never),
    gate(Leave::PartsOfPages, STORED, PODS, stored::has_parts_of_pages),
    gate(Leave::OddSelectors, STORED, PODS, stored::has_odd_selectors),
    gate(Leave::OddSelectors, STORED, SELECTING, selectors::is_odd),
    gate(Leave::OddSelectors, STORED, AGGREGATING, |rule| {
        list(rule, "clusterRoleSelectors").iter().any(selectors::is_odd)
    }),
    gate(Leave::OddSelectors, STORED, WEBHOOKS, admissionregistration::select_oddly),
    gate(Leave::OddSecretNames, STORED, INGRESSES, networking::has_odd_secrets),
    gate(Leave::OddWildcardRules, STORED, INGRESSES, networking::has_odd_wildcard_rules),
    gate(Leave::BareLabels, STORED, LABELS_OF_JOBS, batch::lacks_prefixed_labels),
    gate(Leave::OddNodeLabels, STORED, PODS, stored::requires_odd_labels),
    gate(Leave::OddNodeLabels, STORED, VOLUMES, stored::reached_by_odd_labels),
    gate(Leave::OddSelectorsOfSpread, STORED, PODS, stored::spreads_by_odd_selectors),
    gate(Leave::OddKeysOfSpread, STORED, PODS, stored::spreads_by_odd_keys),
    gate(Leave::OddKeysOfSpread, "!MatchLabelKeysInPodTopologySpread", &[], never),
    gate(Leave::UnmergedKeys, "!MatchLabelKeysInPodTopologySpreadSelectorMerge", &[], never),
    gate(Leave::OddUnmergedKeys, STORED, PODS, stored::spreads_by_odd_unmerged_keys),
    gate(Leave::TokensElsewhere, STORED, PODS, stored::has_tokens_elsewhere),
    gate(Leave::SysctlsOfHost, STORED, PODS, stored::has_sysctls_of_host),
    gate(Leave::DevicesOfOwnUsers, STORED, PODS, stored::has_devices_of_own_users),
    gate(Leave::OddSelectorsOfClaims, STORED, CLAIMS, claim::has_odd_selector),
    gate(Leave::OddGroupsOfSources, STORED, CLAIMS, claim::has_groups),
    gate(Leave::NominationOfBound, "!ClearingNominatedNodeNameAfterBinding", &[], never),
    gate(Leave::AttributesStay, "!VolumeAttributesClass", &[], never),
    gate(Leave::NoFiles, "!EnvFiles", &[], never),
    gate(Leave::Repositories, "GitRepoVolumeDriver", &[], never),
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

impl Leave {
    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

thread_local! {
    static ALLOWED: Cell<u64> = const { Cell::new(0) };
}

/// Reports whether a rule is relaxed in the validation that runs on this thread.
pub(super) fn allows(leave: Leave) -> bool {
    ALLOWED.get() & leave.bit() != 0
}

/// Rules that the feature gates of a server relax.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relaxed(u64);

impl Relaxed {
    /// Of a server with these gates.
    pub fn new(gates: &FeatureGates) -> Self {
        Self(TABLE.iter().filter(|gate| gate.allows(gates)).fold(0, |all, gate| all | gate.leave.bit()))
    }

    /// Judges an object of a kind that takes the place of `old`.
    pub fn judging<R>(self, row: &Resource, old: Option<&Value>, judge: impl FnOnce() -> R) -> R {
        let used =
            TABLE.iter().filter(|gate| self.0 & gate.leave.bit() == 0 && old.is_some_and(|old| gate.is_used(row, old)));
        let _ends = Judgement(ALLOWED.replace(used.fold(self.0, |all, gate| all | gate.leave.bit())));
        judge()
    }
}

/// Guard of one validation; restores the relaxed rules of before when dropped.
struct Judgement(u64);

impl Drop for Judgement {
    fn drop(&mut self) {
        ALLOWED.set(self.0);
    }
}

impl Gate {
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
