//! Rules for the values of a configuration, with upstream's texts. Pure. Answers for
//! `pkg/kubelet/apis/config/validation`.

use super::KubeletConfiguration;
use crate::cpus::CpuSet;
use crate::memory;
use crate::resources::CgroupVersion;
use k8s_openapi::api::core::v1::Taint;
use proto::selector::format::{label_value, qualified_name};
use serde_json::Value;
use shared::flags::{FeatureGates, format_nanos, parse_nanos};
use shared::status::field::Path;
use shared::status::go_quote;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

const SECOND: i64 = 1_000_000_000;
const MILLISECOND: i64 = 1_000_000;
const CFS_PERIOD: i64 = 100 * MILLISECOND;
/// Default of `crashLoopBackOff.maxContainerRestartPeriod`.
const LONGEST_BACK_OFF: i64 = 300 * SECOND;
const PORTS: RangeInclusive<i64> = 1..=65535;
const TOPOLOGY_POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
const HAIRPIN_MODES: [&str; 3] = ["none", "hairpin-veth", "promiscuous-bridge"];
/// Ids of a user namespace come in blocks of this size.
const USER_NAMESPACE_UNIT: i64 = 65536;
/// The release before this one, whose hidden metrics may be asked for.
const HIDDEN_METRICS: &str = "1.34";

/// Returns the faults of a configuration, in upstream's order; `document` is the configuration as it was written, with the
/// signs that durations have. Answers for `ValidateKubeletConfiguration`.
pub(super) fn problems(
    kubelet: &KubeletConfiguration,
    document: &Value,
    gates: &FeatureGates,
    version: CgroupVersion,
) -> Vec<String> {
    let duration = |name: &str| document[name].as_str().and_then(|text| parse_nanos(text).ok()).unwrap_or(0);
    let mut all = numbers(kubelet);
    all.extend(cfs_period(duration("cpuCFSQuotaPeriod"), gates));
    all.extend(image_ages(duration("imageMinimumGCAge"), duration("imageMaximumGCAge")));
    all.extend(pulls(kubelet));
    all.extend(registration(kubelet, gates));
    all.extend(topology(kubelet));
    all.extend(shutdown(kubelet, &duration, gates));
    all.extend(swap_and_back_off(kubelet, document, gates));
    all.extend(enforcement(kubelet));
    all.extend(verification(kubelet, gates));
    all.extend(reserved_cpus(kubelet));
    let reservations = memory::validate(&kubelet.reserved_memory);
    all.extend(reservations.into_iter().map(|problem| format!("{VERBATIM}{problem}")));
    all.extend(of_linux(kubelet, version));
    all.extend(observation(kubelet, gates));
    all.extend(runtime_and_logs(kubelet, duration("containerLogMonitorInterval"), gates));
    all.extend(kubelet.tls_options().err().map(|error| error.to_string()));
    all.into_iter().map(prefixed).collect()
}

/// Marks texts that upstream does not begin with `invalid configuration`.
const VERBATIM: char = '\u{1}';

fn prefixed(problem: String) -> String {
    problem.strip_prefix(VERBATIM).map_or_else(|| format!("invalid configuration: {problem}"), str::to_owned)
}

fn when(wrong: bool, text: impl FnOnce() -> String) -> Option<String> {
    wrong.then(text)
}

fn between(name: &str, value: i64, range: RangeInclusive<i64>, least: i64) -> Option<String> {
    when(!range.contains(&value), || format!("{name} {value} must be between {least} and {}, inclusive", range.end()))
}

fn not_negative(name: &str, value: i64) -> Option<String> {
    when(value < 0, || format!("{name} {value} must not be a negative number"))
}

fn numbers(kubelet: &KubeletConfiguration) -> Vec<String> {
    let port = |name: &str, value: i32, least: i64| between(name, value.into(), PORTS, least).filter(|_| value != 0);
    let (high, low) =
        (i64::from(kubelet.image_gc_high_threshold_percent), i64::from(kubelet.image_gc_low_threshold_percent));
    let all = [
        when(kubelet.node_lease_duration_seconds <= 0, || "nodeLeaseDurationSeconds must be greater than 0".to_owned()),
        when(!kubelet.system_cgroups.is_empty() && kubelet.cgroup_root.is_empty(), || {
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified".to_owned()
        }),
        not_negative("eventBurst (--event-burst)", kubelet.event_burst.into()),
        not_negative("eventRecordQPS (--event-qps)", kubelet.event_record_qps.into()),
        port("healthzPort (--healthz-port)", kubelet.healthz_port, 1),
        between("imageGCHighThresholdPercent (--image-gc-high-threshold)", high, 0..=100, 0),
        between("imageGCLowThresholdPercent (--image-gc-low-threshold)", low, 0..=100, 0),
        when(low >= high, || {
            format!(
                "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
            )
        }),
        between("iptablesDropBit (--iptables-drop-bit)", kubelet.iptables_drop_bit.into(), 0..=31, 0),
        between("iptablesMasqueradeBit (--iptables-masquerade-bit)", kubelet.iptables_masquerade_bit.into(), 0..=31, 0),
        not_negative("kubeAPIBurst (--kube-api-burst)", kubelet.kube_api_burst.into()),
        not_negative("kubeAPIQPS (--kube-api-qps)", kubelet.kube_api_qps.into()),
        when(kubelet.node_status_max_images < -1, || {
            format!(
                "nodeStatusMaxImages (--node-status-max-images) {} must be -1 or greater",
                kubelet.node_status_max_images
            )
        }),
        not_negative("maxOpenFiles (--max-open-files)", kubelet.max_open_files),
        not_negative("maxPods (--max-pods)", kubelet.max_pods),
        between("oomScoreAdj (--oom-score-adj)", kubelet.oom_score_adj.into(), -1000..=1000, -1000),
        not_negative("podsPerCore (--pods-per-core)", kubelet.pods_per_core),
        between("port (--port)", kubelet.port.into(), PORTS, 1),
        port("readOnlyPort (--read-only-port)", kubelet.read_only_port, 0),
        not_negative("registryBurst (--registry-burst)", kubelet.registry_burst.into()),
        not_negative("registryPullQPS (--registry-qps)", kubelet.registry_pull_qps.into()),
    ];
    all.into_iter().flatten().collect()
}

fn cfs_period(period: i64, gates: &FeatureGates) -> Option<String> {
    let name = "cpuCFSQuotaPeriod (--cpu-cfs-quota-period)";
    let shown = format!("{{{}}}", format_nanos(period));
    if gates.enabled("CustomCPUCFSQuotaPeriod") {
        return when(!(MILLISECOND..=SECOND).contains(&period), || {
            format!("{name} {shown} must be between 1ms and 1sec, inclusive")
        });
    }
    when(period != CFS_PERIOD, || format!("{name} {shown} requires feature gate CustomCPUCFSQuotaPeriod"))
}

fn image_ages(least: i64, most: i64) -> Vec<String> {
    let shown = format_nanos;
    let all = [
        when(most < 0, || format!("imageMaximumGCAge {} must not be negative", shown(most))),
        when(most > 0 && most <= least, || {
            format!("imageMaximumGCAge {} must be greater than imageMinimumGCAge {}", shown(most), shown(least))
        }),
    ];
    all.into_iter().flatten().collect()
}

fn pulls(kubelet: &KubeletConfiguration) -> Vec<String> {
    let Some(most) = kubelet.max_parallel_image_pulls else { return Vec::new() };
    let all = [
        when(most < 1, || format!("maxParallelImagePulls {most} must be a positive number")),
        when(kubelet.serialize_image_pulls && most > 1, || {
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false".to_owned()
        }),
    ];
    all.into_iter().flatten().collect()
}

fn registration(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> Vec<String> {
    let bootstrap = kubelet.server_tls_bootstrap && !gates.enabled("RotateKubeletServerCertificate");
    let mut all: Vec<String> = Vec::new();
    all.extend(when(bootstrap, || {
        "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate".to_owned()
    }));
    all.extend(when(kubelet.run_once, || {
        "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set".to_owned()
    }));
    for taint in &kubelet.register_with_taints {
        all.extend(when(!is_taint(taint), || {
            let value = taint.value.as_deref().unwrap_or_default();
            format!("{VERBATIM}invalid taint: {{{} {value} {} <nil>}}", taint.key, taint.effect)
        }));
        all.extend(when(taint.time_added.is_some(), || "taint.TimeAdded is not nil".to_owned()));
    }
    all
}

fn is_taint(taint: &Taint) -> bool {
    let value = taint.value.as_deref().unwrap_or_default();
    qualified_name(&taint.key).is_empty()
        && label_value(value).is_empty()
        && matches!(taint.effect.as_str(), "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute")
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| go_quote(name)).collect::<Vec<_>>().join(" ")
}

fn topology(kubelet: &KubeletConfiguration) -> Vec<String> {
    let (policy, scope) = (kubelet.topology_manager_policy.as_str(), kubelet.topology_manager_scope.as_str());
    let all = [
        when(!TOPOLOGY_POLICIES.contains(&policy), || {
            let all = quoted(&TOPOLOGY_POLICIES);
            format!("topologyManagerPolicy (--topology-manager-policy) {} must be one of: [{all}]", go_quote(policy))
        }),
        when(!matches!(scope, "container" | "pod"), || {
            format!(
                "topologyManagerScope (--topology-manager-scope) {} must be one of: \"container\", or \"pod\"",
                go_quote(scope)
            )
        }),
    ];
    all.into_iter().flatten().collect()
}

fn shutdown(kubelet: &KubeletConfiguration, duration: &dyn Fn(&str) -> i64, gates: &FeatureGates) -> Vec<String> {
    let [whole, critical] = ["shutdownGracePeriod", "shutdownGracePeriodCriticalPods"];
    let shown = |name: &str| format!("{{{}}}", format_nanos(duration(name)));
    let by_priority = !kubelet.shutdown_grace_period_by_pod_priority.is_empty();
    let set = duration(whole) > 0 || duration(critical) > 0;
    let mut all: Vec<String> = Vec::new();
    if gates.enabled("GracefulNodeShutdown") {
        all.extend(when(duration(critical) > duration(whole), || {
            format!("{critical} {} must be <= {whole} {}", shown(critical), shown(whole))
        }));
        all.extend([whole, critical].into_iter().filter_map(|name| {
            when(duration(name) != 0 && duration(name) < SECOND, || {
                format!("{name} {} must be either zero or otherwise >= 1 sec", shown(name))
            })
        }));
    } else if set {
        let text = "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown";
        all.push(text.to_owned());
    }
    if gates.enabled("GracefulNodeShutdownBasedOnPodPriority") {
        all.extend(when(by_priority && set, || {
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time".to_owned()
        }));
    } else if by_priority {
        let text =
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority";
        all.push(text.to_owned());
    }
    all
}

fn swap_and_back_off(kubelet: &KubeletConfiguration, document: &Value, gates: &FeatureGates) -> Vec<String> {
    let behavior = kubelet.memory_swap.swap_behavior.as_str();
    let longest = document["crashLoopBackOff"]["maxContainerRestartPeriod"].as_str();
    let longest = longest.and_then(|text| parse_nanos(text).ok());
    let limited = gates.enabled("KubeletCrashLoopBackOffMax");
    let seconds = |nanos: i64| {
        #[expect(clippy::cast_precision_loss, reason = "a duration in seconds for a message")]
        let seconds = nanos as f64 / SECOND as f64;
        seconds.to_string()
    };
    let all = [
        when(!matches!(behavior, "" | "NoSwap" | "LimitedSwap"), || {
            format!(
                "memorySwap.swapBehavior {} must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"",
                go_quote(behavior)
            )
        }),
        when(limited && longest.is_none(), || {
            "FeatureGate KubeletCrashLoopBackOffMax is enabled, CrashLoopBackOff.MaxContainerRestartPeriod must be set"
                .to_owned()
        }),
        // The default of the gate's field is not the user's word.
        when(!limited && longest.is_some_and(|longest| longest != LONGEST_BACK_OFF), || {
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set"
                .to_owned()
        }),
        longest.filter(|longest| limited && !(SECOND..=300 * SECOND).contains(longest)).map(|longest| {
            let got = seconds(longest);
            format!("CrashLoopBackOff.MaxContainerRestartPeriod (got: {got} seconds) must be set between 1s and 300s")
        }),
    ];
    all.into_iter().flatten().collect()
}

const ENFORCED: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";

fn enforcement(kubelet: &KubeletConfiguration) -> Vec<String> {
    let wanted = &kubelet.enforce_node_allocatable;
    let has = |key: &str| wanted.iter().any(|wanted| wanted == key);
    let mut all: Vec<String> = Vec::new();
    for whose in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{whose}-compressible");
        all.extend(when(has(whose) && has(&compressible), || {
            format!("both \"{whose}\" and \"{compressible}\" cannot be specified together in {ENFORCED}")
        }));
    }
    let mut seen = BTreeSet::new();
    for key in wanted {
        if !seen.insert(key) {
            all.push(format!("duplicated enforcements {} in {ENFORCED}", go_quote(key)));
            continue;
        }
        match enforced(kubelet, key) {
            Ok(missing) => all.extend(missing),
            Err(text) => {
                all.extend(text);
                continue;
            }
        }
        all.extend(when(!kubelet.cgroups_per_qos, || {
            format!(
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when {} contained in {ENFORCED}",
                go_quote(key)
            )
        }));
    }
    all
}

/// The problem of one enforcement; as an error where no others are looked for.
fn enforced(kubelet: &KubeletConfiguration, key: &str) -> Result<Option<String>, Option<String>> {
    let missing = |cgroup: &str, flag: &str, whose: &str| {
        format!(
            "{cgroup} (--{flag}) must be specified when \"{whose}\" or \"{whose}-compressible\" included in {ENFORCED}"
        )
    };
    match key {
        "pods" => Ok(None),
        "system-reserved" | "system-reserved-compressible" => {
            Ok(when(kubelet.system_reserved_cgroup.is_empty(), || {
                missing("systemReservedCgroup", "system-reserved-cgroup", "system-reserved")
            }))
        }
        "kube-reserved" | "kube-reserved-compressible" => Ok(when(kubelet.kube_reserved_cgroup.is_empty(), || {
            missing("kubeReservedCgroup", "kube-reserved-cgroup", "kube-reserved")
        })),
        "none" => Err(when(kubelet.enforce_node_allocatable.len() > 1, || {
            format!("{ENFORCED} may not contain additional enforcements when \"none\" is specified")
        })),
        other => Err(Some(format!(
            "option {} specified for {ENFORCED}. Valid options are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \"kube-reserved-compressible\" or \"none\"",
            go_quote(other)
        ))),
    }
}

fn verification(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> Vec<String> {
    let policy = kubelet.image_pull_credentials_verification_policy.as_str();
    let listed = !kubelet.preloaded_images_verification_allowlist.is_empty();
    let mut all: Vec<String> = Vec::new();
    all.extend(when(!HAIRPIN_MODES.contains(&kubelet.hairpin_mode.as_str()), || {
        format!(
            "option {} specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \"promiscuous-bridge\"",
            go_quote(&kubelet.hairpin_mode)
        )
    }));
    if gates.enabled("KubeletEnsureSecretPulledImages") {
        all.extend(kubelet.image_verification().err().into_iter().flatten());
        return all;
    }
    let gate = "must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled";
    // The default of the gate's field is not the user's word.
    all.extend(when(!matches!(policy, "" | "NeverVerifyPreloadedImages"), || {
        format!("`imagePullCredentialsVerificationPolicy` {gate}")
    }));
    all.extend(when(listed, || format!("`preloadedImagesVerificationAllowlist` {gate}")));
    all
}

fn reserved_cpus(kubelet: &KubeletConfiguration) -> Vec<String> {
    let named = &kubelet.reserved_system_cpus;
    if named.is_empty() {
        return Vec::new();
    }
    let by_cgroup = !kubelet.system_reserved_cgroup.is_empty() || !kubelet.kube_reserved_cgroup.is_empty();
    let mut all: Vec<String> = Vec::new();
    all.extend(when(by_cgroup, || {
        "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)".to_owned()
    }));
    all.extend(
        named
            .parse::<CpuSet>()
            .err()
            .map(|error| format!("unable to parse reservedSystemCPUs (--reserved-cpus) {named}, error: {error}")),
    );
    all
}

/// The first of what only Linux knows: upstream stops at it.
fn of_linux(kubelet: &KubeletConfiguration, version: CgroupVersion) -> Option<String> {
    let old = version == CgroupVersion::V1;
    if kubelet.fail_cgroup_v1 && old {
        return Some(format!(
            "{VERBATIM}kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release"
        ));
    }
    if old && kubelet.single_process_oom_kill == Some(false) {
        return Some("singleProcessOOMKill must not be explicitly set to false when using cgroup v1".to_owned());
    }
    let ids = kubelet.user_namespaces.as_ref()?.ids_per_pod?;
    let unit = USER_NAMESPACE_UNIT;
    let most = i64::from(u32::MAX);
    when(ids < unit, || format!("userNamespaces.idsPerPod must not be less than {unit}"))
        .or_else(|| when(ids % unit != 0, || format!("userNamespaces.idsPerPod must be a multiple of {unit}")))
        .or_else(|| when(ids > most, || format!("userNamespaces.idsPerPod must not be more than {most}")))
}

fn observation(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> Vec<String> {
    let hidden = kubelet.show_hidden_metrics_for_version.as_str();
    let mut all: Vec<String> = Vec::new();
    all.extend(when(!matches!(hidden, "" | HIDDEN_METRICS), || {
        format!(
            "{VERBATIM}--show-hidden-metrics-for-version must be omitted or have the value '{HIDDEN_METRICS}'. Only the previous minor version is allowed"
        )
    }));
    let tracing = kubelet.tracing.as_ref().map(|tracing| tracing.validate(Some(&Path::new("tracing"))));
    all.extend(tracing.into_iter().flatten().map(|error| format!("{VERBATIM}{error}")));
    let factor = kubelet.memory_throttling_factor;
    all.extend(when(gates.enabled("MemoryQoS") && factor.is_none(), || {
        "memoryThrottlingFactor is required when MemoryQoS feature flag is enabled".to_owned()
    }));
    all.extend(
        factor.filter(|factor| !(*factor > 0.0 && *factor <= 1.0)).map(|factor| {
            format!("memoryThrottlingFactor {factor} must be greater than 0 and less than or equal to 1.0")
        }),
    );
    all
}

fn runtime_and_logs(kubelet: &KubeletConfiguration, interval: i64, gates: &FeatureGates) -> Vec<String> {
    let folder = kubelet.pod_logs_dir.as_str();
    let quoted = go_quote(folder);
    let query = kubelet.enable_system_log_query;
    let text = |wrong: bool, text: &str| when(wrong, || text.to_owned());
    let all = [
        text(kubelet.container_runtime_endpoint.is_empty(), "the containerRuntimeEndpoint was not specified or empty"),
        text(query && !gates.enabled("NodeLogQuery"), "NodeLogQuery feature gate is required for enableSystemLogQuery"),
        text(
            query && !kubelet.enable_system_log_handler,
            "enableSystemLogHandler is required for enableSystemLogQuery",
        ),
        text(kubelet.container_log_max_workers < 1, "containerLogMaxWorkers must be greater than or equal to 1"),
        text(
            interval < 3 * SECOND,
            "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s",
        ),
        text(kubelet.container_log_max_files <= 1, "containerLogMaxFiles must be greater than 1"),
        text(folder.is_empty(), "podLogsDir was not specified"),
        when(!folder.starts_with('/'), || format!("pod logs path {quoted} must be absolute path")),
        when(!is_clean(folder), || format!("pod logs path {quoted} must be normalized")),
        when(!folder.is_ascii(), || format!("pod logs path {quoted} mut contains ASCII characters only")),
        when(!matches!(kubelet.cgroup_driver.as_str(), "cgroupfs" | "systemd"), || {
            format!(
                "cgroupDriver (--cgroup-driver) {} must be one of [cgroupfs systemd]",
                go_quote(&kubelet.cgroup_driver)
            )
        }),
    ];
    all.into_iter().flatten().collect()
}

/// Go's `filepath.Clean` leaves such a path as it is.
fn is_clean(path: &str) -> bool {
    let inner = path.strip_prefix('/').unwrap_or(path);
    path == "/" || (!path.is_empty() && inner.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
