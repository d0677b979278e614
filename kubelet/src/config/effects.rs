//! Effect of every field of `KubeletConfiguration` and of every flag: what acts, what upstream does not look at either,
//! and what this kubelet cannot do, which one warning names at start. A field or flag that is in no table fails a test.

use shared::config::Settings;
use shared::flags::FlagSet;

/// Fields without effect here that have one upstream, with the reason why they cannot have it.
const IDLE: [(&str, &str); 2] = [
    // Upstream switches Go's profiles of blocked goroutines and contended mutexes on. There is no such runtime here; the
    // processor's profile is served (`/debug/pprof/profile`).
    ("enableContentionProfiling", "there is no profile of contention"),
    // Upstream's clients send and ask for bodies of this type. What is said is the same in JSON, which every API server
    // takes.
    ("contentType", "the API is spoken to in JSON"),
];

/// Flags without a field that have no effect upstream either: those of a library that it no longer uses in this way.
const MOOT_FLAGS: [&str; 26] = [
    "application-metrics-count-limit",
    "boot-id-file",
    "container-hints",
    "containerd",
    "containerd-namespace",
    "enable-load-reader",
    "event-storage-age-limit",
    "event-storage-event-limit",
    "experimental-allocatable-ignore-eviction",
    "experimental-mounter-path",
    "global-housekeeping-interval",
    "housekeeping-interval",
    "log-cadvisor-usage",
    "log-json-info-buffer-size",
    "log-json-split-stream",
    "log-text-info-buffer-size",
    "log-text-split-stream",
    "machine-id-file",
    "runtime-cgroups",
    "storage-driver-buffer-duration",
    "storage-driver-db",
    "storage-driver-host",
    "storage-driver-password",
    "storage-driver-secure",
    "storage-driver-table",
    "storage-driver-user",
];

/// Fields that are set to other than their defaults and flags that are given, which both have no effect.
pub(super) fn idle(settings: &Settings, flags: &FlagSet) -> Vec<String> {
    let defaults = Settings(shared::config::defaults(&settings.string("apiVersion"), &settings.string("kind")));
    let changed = |field: &&str| settings.get(field).is_some_and(|value| Some(value) != defaults.get(field));
    let fields = IDLE.iter().map(|(field, _)| *field).filter(changed).map(str::to_owned);
    let given = flags.unread().into_iter().filter(|flag| !MOOT_FLAGS.contains(flag));
    fields.chain(given.map(|flag| format!("--{flag}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Fields that have no effect upstream either, where a runtime of its own runs containers.
    const MOOT: [&str; 6] = [
        "hairpinMode",
        "iptablesDropBit",
        "iptablesMasqueradeBit",
        "runOnce",
        "showHiddenMetricsForVersion",
        "streamingConnectionIdleTimeout",
    ];

    /// Fields that act as upstream's.
    const ACT: &str = "
        address allowedUnsafeSysctls authentication authorization cgroupDriver cgroupRoot cgroupsPerQOS clusterDNS
        clusterDomain configMapAndSecretChangeDetectionStrategy containerLogMaxFiles containerLogMaxSize containerLogMaxWorkers containerLogMonitorInterval
        containerRuntimeEndpoint cpuCFSQuota cpuCFSQuotaPeriod cpuManagerPolicy cpuManagerPolicyOptions
        cpuManagerReconcilePeriod crashLoopBackOff enableControllerAttachDetach enableDebugFlagsHandler
        enableDebuggingHandlers enableProfilingHandler enableServer enableSystemLogHandler enableSystemLogQuery enforceNodeAllocatable
        eventBurst eventRecordQPS evictionHard evictionMaxPodGracePeriod evictionMinimumReclaim
        evictionPressureTransitionPeriod evictionSoft evictionSoftGracePeriod failCgroupV1 failSwapOn featureGates
        fileCheckFrequency healthzBindAddress healthzPort httpCheckFrequency imageGCHighThresholdPercent kernelMemcgNotification
        kubeletCgroups memoryThrottlingFactor qosReserved systemCgroups
        imageGCLowThresholdPercent imageMaximumGCAge imageMinimumGCAge imagePullCredentialsVerificationPolicy
        imageServiceEndpoint kubeAPIBurst kubeAPIQPS kubeReserved kubeReservedCgroup localStorageCapacityIsolation
        logging makeIPTablesUtilChains maxOpenFiles maxParallelImagePulls maxPods memoryManagerPolicy memorySwap mergeDefaultEvictionSettings
        nodeLeaseDurationSeconds nodeStatusMaxImages nodeStatusReportFrequency nodeStatusUpdateFrequency oomScoreAdj
        podCIDR podLogsDir podPidsLimit podsPerCore port preloadedImagesVerificationAllowlist protectKernelDefaults
        providerID readOnlyPort registerNode registerWithTaints registryBurst registryPullQPS reservedMemory
        reservedSystemCPUs resolvConf rotateCertificates runtimeRequestTimeout seccompDefault serializeImagePulls
        serverTLSBootstrap shutdownGracePeriod shutdownGracePeriodByPodPriority shutdownGracePeriodCriticalPods
        singleProcessOOMKill staticPodPath staticPodURL staticPodURLHeader syncFrequency
        systemReserved systemReservedCgroup tlsCertFile tlsCipherSuites tlsMinVersion tlsPrivateKeyFile
        topologyManagerPolicy topologyManagerPolicyOptions topologyManagerScope tracing volumePluginDir
        userNamespaces volumeStatsAggPeriod";

    /// Flags without a field that act as upstream's.
    const ACTING_FLAGS: &str = "
        bootstrap-kubeconfig cert-dir cloud-provider config config-dir exit-on-lock-contention feature-gates help
        hostname-override image-credential-provider-bin-dir image-credential-provider-config kubeconfig lock-file
        maximum-dead-containers maximum-dead-containers-per-container minimum-container-ttl-duration node-ip node-labels
        root-dir v version vmodule";

    #[test]
    fn every_field_has_an_effect_or_is_told() {
        let fields = shared::config::fields("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");
        let known = IDLE.iter().map(|(field, _)| *field).chain(MOOT).chain(ACT.split_whitespace());
        let mut seen = BTreeSet::new();
        for field in known {
            assert!(seen.insert(field), "{field} is in two tables");
        }
        assert_eq!(fields.into_iter().collect::<BTreeSet<_>>(), seen);
    }

    #[test]
    fn every_flag_has_an_effect_or_is_told() {
        let flags = FlagSet::of("kubelet", &[]).expect("flags");
        let mut seen: BTreeSet<&str> = MOOT_FLAGS.into_iter().chain(ACTING_FLAGS.split_whitespace()).collect();
        for (flag, field) in shared::config::kubelet_flags() {
            assert!(seen.insert(flag), "{flag} of {field} is in two tables");
        }
        let all: BTreeSet<String> = flags.all().into_iter().map(|(name, _)| name).collect();
        assert_eq!(all, seen.into_iter().map(str::to_owned).collect());
    }

    #[test]
    fn what_has_no_effect_is_named_once() {
        let flags = FlagSet::of("kubelet", &["--containerd=/x", "--contention-profiling"]).expect("flags");
        let mut settings = shared::config::kubelet(&flags).expect("settings");
        settings.set("contentType", "application/json".into());
        assert_eq!(idle(&settings, &flags), ["enableContentionProfiling", "contentType"]);
        let none = FlagSet::of("kubelet", &["--max-pods=5"]).expect("flags");
        assert!(idle(&shared::config::kubelet(&none).expect("settings"), &none).is_empty());
    }
}
