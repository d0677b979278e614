//! Which flag stands for which field of the configuration file.

use super::CommandLine;
use anyhow::Context;
use serde_json::{Value, json};
use shared::flags::FlagSet;

/// How a flag's value is written into the document.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Flag,
    Number,
    Duration,
    List,
    Map,
}
use Form::{Duration, Flag, List, Map, Number, Text};

/// Flag, path in the document, form.
const FIELDS: [(&str, &str, Form); 84] = [
    ("address", "address", Text),
    ("anonymous-auth", "authentication.anonymous.enabled", Flag),
    ("authentication-token-webhook", "authentication.webhook.enabled", Flag),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Duration),
    ("authorization-mode", "authorization.mode", Text),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Duration),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Duration),
    ("cgroup-driver", "cgroupDriver", Text),
    ("cgroup-root", "cgroupRoot", Text),
    ("cgroups-per-qos", "cgroupsPerQOS", Flag),
    ("client-ca-file", "authentication.x509.clientCAFile", Text),
    ("cluster-dns", "clusterDNS", List),
    ("cluster-domain", "clusterDomain", Text),
    ("container-log-max-files", "containerLogMaxFiles", Number),
    ("container-log-max-size", "containerLogMaxSize", Text),
    ("container-runtime-endpoint", "containerRuntimeEndpoint", Text),
    ("contention-profiling", "enableContentionProfiling", Flag),
    ("cpu-cfs-quota", "cpuCFSQuota", Flag),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Duration),
    ("cpu-manager-policy", "cpuManagerPolicy", Text),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Duration),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", Flag),
    ("enable-debugging-handlers", "enableDebuggingHandlers", Flag),
    ("enable-server", "enableServer", Flag),
    ("enforce-node-allocatable", "enforceNodeAllocatable", List),
    ("event-burst", "eventBurst", Number),
    ("event-qps", "eventRecordQPS", Number),
    ("eviction-hard", "evictionHard", Map),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Number),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Map),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Duration),
    ("eviction-soft", "evictionSoft", Map),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Map),
    ("fail-cgroupv1", "failCgroupV1", Flag),
    ("fail-swap-on", "failSwapOn", Flag),
    ("file-check-frequency", "fileCheckFrequency", Duration),
    ("hairpin-mode", "hairpinMode", Text),
    ("healthz-bind-address", "healthzBindAddress", Text),
    ("healthz-port", "healthzPort", Number),
    ("http-check-frequency", "httpCheckFrequency", Duration),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Number),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Number),
    ("image-service-endpoint", "imageServiceEndpoint", Text),
    ("kube-api-burst", "kubeAPIBurst", Number),
    ("kube-api-content-type", "contentType", Text),
    ("kube-api-qps", "kubeAPIQPS", Number),
    ("kube-reserved", "kubeReserved", Map),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Text),
    ("kubelet-cgroups", "kubeletCgroups", Text),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Flag),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", Flag),
    ("manifest-url", "staticPodURL", Text),
    ("max-open-files", "maxOpenFiles", Number),
    ("max-pods", "maxPods", Number),
    ("memory-manager-policy", "memoryManagerPolicy", Text),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Duration),
    ("node-status-max-images", "nodeStatusMaxImages", Number),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Duration),
    ("oom-score-adj", "oomScoreAdj", Number),
    ("pod-cidr", "podCIDR", Text),
    ("pod-manifest-path", "staticPodPath", Text),
    ("pod-max-pids", "podPidsLimit", Number),
    ("pods-per-core", "podsPerCore", Number),
    ("port", "port", Number),
    ("protect-kernel-defaults", "protectKernelDefaults", Flag),
    ("provider-id", "providerID", Text),
    ("read-only-port", "readOnlyPort", Number),
    ("register-node", "registerNode", Flag),
    ("resolv-conf", "resolvConf", Text),
    ("rotate-certificates", "rotateCertificates", Flag),
    ("rotate-server-certificates", "serverTLSBootstrap", Flag),
    ("runtime-request-timeout", "runtimeRequestTimeout", Duration),
    ("seccomp-default", "seccompDefault", Flag),
    ("serialize-image-pulls", "serializeImagePulls", Flag),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Duration),
    ("sync-frequency", "syncFrequency", Duration),
    ("system-reserved", "systemReserved", Map),
    ("system-reserved-cgroup", "systemReservedCgroup", Text),
    ("tls-cert-file", "tlsCertFile", Text),
    ("tls-cipher-suites", "tlsCipherSuites", List),
    ("tls-min-version", "tlsMinVersion", Text),
    ("tls-private-key-file", "tlsPrivateKeyFile", Text),
    ("topology-manager-policy", "topologyManagerPolicy", Text),
    ("topology-manager-scope", "topologyManagerScope", Text),
];

/// Every field that the file may have at its top.
const KNOWN: &[&str] = &[
    "kind", "apiVersion", "enableServer", "staticPodPath", "podLogsDir", "syncFrequency", "fileCheckFrequency",
    "httpCheckFrequency", "staticPodURL", "staticPodURLHeader", "address", "port", "readOnlyPort", "tlsCertFile",
    "tlsPrivateKeyFile", "tlsCipherSuites", "tlsMinVersion", "rotateCertificates", "serverTLSBootstrap",
    "authentication", "authorization", "registryPullQPS", "registryBurst", "imagePullCredentialsVerificationPolicy",
    "preloadedImagesVerificationAllowlist", "eventRecordQPS", "eventBurst", "enableDebuggingHandlers",
    "enableContentionProfiling", "healthzPort", "healthzBindAddress", "oomScoreAdj", "clusterDomain", "clusterDNS",
    "streamingConnectionIdleTimeout", "nodeStatusUpdateFrequency", "nodeStatusReportFrequency",
    "nodeLeaseDurationSeconds", "imageMinimumGCAge", "imageMaximumGCAge", "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent", "volumeStatsAggPeriod", "kubeletCgroups", "systemCgroups", "cgroupRoot",
    "cgroupsPerQOS", "cgroupDriver", "cpuManagerPolicy", "singleProcessOOMKill", "cpuManagerPolicyOptions",
    "cpuManagerReconcilePeriod", "memoryManagerPolicy", "topologyManagerPolicy", "topologyManagerScope",
    "topologyManagerPolicyOptions", "qosReserved", "runtimeRequestTimeout", "hairpinMode", "maxPods", "podCIDR",
    "podPidsLimit", "resolvConf", "runOnce", "cpuCFSQuota", "cpuCFSQuotaPeriod", "nodeStatusMaxImages",
    "maxOpenFiles", "contentType", "kubeAPIQPS", "kubeAPIBurst", "serializeImagePulls", "maxParallelImagePulls",
    "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionPressureTransitionPeriod",
    "evictionMaxPodGracePeriod", "evictionMinimumReclaim", "mergeDefaultEvictionSettings", "podsPerCore",
    "enableControllerAttachDetach", "protectKernelDefaults", "makeIPTablesUtilChains", "iptablesMasqueradeBit",
    "iptablesDropBit", "featureGates", "failSwapOn", "memorySwap", "containerLogMaxSize", "containerLogMaxFiles",
    "containerLogMaxWorkers", "containerLogMonitorInterval", "configMapAndSecretChangeDetectionStrategy",
    "systemReserved", "kubeReserved", "reservedSystemCPUs", "showHiddenMetricsForVersion", "systemReservedCgroup",
    "kubeReservedCgroup", "enforceNodeAllocatable", "allowedUnsafeSysctls", "volumePluginDir", "providerID",
    "kernelMemcgNotification", "logging", "enableSystemLogHandler", "enableSystemLogQuery", "shutdownGracePeriod",
    "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority", "crashLoopBackOff", "reservedMemory",
    "enableProfilingHandler", "enableDebugFlagsHandler", "seccompDefault", "memoryThrottlingFactor",
    "registerWithTaints", "registerNode", "tracing", "localStorageCapacityIsolation", "containerRuntimeEndpoint",
    "imageServiceEndpoint", "failCgroupV1", "userNamespaces",
];

/// Top-level fields that upstream does not know.
pub(super) fn unknown_fields(document: &Value) -> Vec<String> {
    let fields = document.as_object().into_iter().flat_map(|map| map.keys());
    fields.filter(|name| !KNOWN.contains(&name.as_str())).cloned().collect()
}

/// Without a file, some defaults are those of the flags.
pub(super) fn legacy_defaults(document: &mut Value) {
    document["authentication"]["anonymous"]["enabled"] = json!(true);
    document["authentication"]["webhook"]["enabled"] = json!(false);
    document["authorization"]["mode"] = json!("AlwaysAllow");
    document["readOnlyPort"] = json!(10255);
}

fn set(document: &mut Value, path: &str, value: Value) {
    let mut place = document;
    for part in path.split('.') {
        place = &mut place[part];
    }
    *place = value;
}

/// Writes the flags that were given into the document.
pub(super) fn apply(flags: &FlagSet, document: &mut Value) -> anyhow::Result<()> {
    for (flag, path, form) in FIELDS {
        if !flags.is_set(flag) {
            continue;
        }
        let value = match form {
            Text => json!(flags.string(flag)),
            Flag => json!(flags.boolean(flag)),
            Number => json!(flags.integer(flag)),
            Duration => json!(shared::flags::format_duration(flags.duration(flag))),
            List => json!(flags.list(flag)),
            Map => json!(flags.map(flag)),
        };
        set(document, path, value);
    }
    if flags.is_set("feature-gates") {
        for (gate, on) in flags.map("feature-gates") {
            document["featureGates"][gate] = json!(on == "true");
        }
    }
    if flags.is_set("register-with-taints") {
        let taints: Result<Vec<Value>, _> = flags.string("register-with-taints").split(',').map(taint).collect();
        document["registerWithTaints"] = json!(taints.context("invalid argument for --register-with-taints")?);
    }
    Ok(())
}

/// `key=value:Effect` or `key:Effect`.
fn taint(text: &str) -> anyhow::Result<Value> {
    let (name, effect) = text.rsplit_once(':').with_context(|| format!("invalid taint spec: {text}"))?;
    anyhow::ensure!(
        matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute"),
        "invalid taint effect: {effect}, unsupported taint effect"
    );
    let (key, value) = name.split_once('=').unwrap_or((name, ""));
    let mut taint = json!({"key": key, "effect": effect});
    if !value.is_empty() {
        taint["value"] = json!(value);
    }
    Ok(taint)
}

/// What only flags say.
pub(super) fn command_line(flags: &FlagSet) -> CommandLine {
    let addresses = flags.string("node-ip");
    CommandLine {
        kubeconfig: flags.string("kubeconfig"),
        bootstrap_kubeconfig: flags.string("bootstrap-kubeconfig"),
        hostname_override: flags.string("hostname-override"),
        node_ips: addresses.split(',').filter_map(|text| text.trim().parse().ok()).collect(),
        node_labels: flags.map("node-labels"),
        root_dir: flags.string("root-dir").into(),
        cert_dir: flags.string("cert-dir").into(),
        cloud_provider: flags.string("cloud-provider"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints() {
        assert_eq!(taint("a=b:NoSchedule").expect("taint"), json!({"key": "a", "value": "b", "effect": "NoSchedule"}));
        assert_eq!(taint("a:NoExecute").expect("taint"), json!({"key": "a", "effect": "NoExecute"}));
        assert!(taint("a=b:Sometimes").is_err() && taint("a").is_err());
    }

    #[test]
    fn every_path_is_known() {
        for (_, path, _) in FIELDS {
            assert!(KNOWN.contains(&path.split('.').next().unwrap_or(path)), "{path}");
        }
    }
}
