use super::*;
use serde_json::json;
use std::collections::BTreeMap;

fn told(changes: &Value, gates: &[(&str, bool)], version: CgroupVersion) -> Vec<String> {
    let mut document = shared::config::defaults("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");
    for (name, value) in changes.as_object().into_iter().flatten() {
        document[name] = value.clone();
    }
    let set: BTreeMap<String, bool> = gates.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
    let gates = FeatureGates::default().with(&set).expect("gates");
    let kubelet = serde_json::from_value(document.clone()).expect("a configuration");
    problems(&kubelet, &document, &gates, version)
}

#[test]
fn defaults_are_valid() {
    assert_eq!(told(&json!({}), &[], CgroupVersion::V2), Vec::<String>::new());
}

#[test]
fn rules_have_upstreams_texts() {
    let long = "/var/log/päds";
    let enforced = "enforceNodeAllocatable (--enforce-node-allocatable)";
    let taint = json!([{"key": "a b", "value": "v", "effect": "NoSchedule"}]);
    let rows: Vec<(Value, String)> = vec![
        (json!({"nodeLeaseDurationSeconds": 0}), "nodeLeaseDurationSeconds must be greater than 0".into()),
        (
            json!({"systemCgroups": "/x"}),
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified".into(),
        ),
        (json!({"eventBurst": -1}), "eventBurst (--event-burst) -1 must not be a negative number".into()),
        (json!({"eventRecordQPS": -1}), "eventRecordQPS (--event-qps) -1 must not be a negative number".into()),
        (
            json!({"healthzPort": 65536}),
            "healthzPort (--healthz-port) 65536 must be between 1 and 65535, inclusive".into(),
        ),
        (
            json!({"cpuCFSQuotaPeriod": "200ms"}),
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {200ms} requires feature gate CustomCPUCFSQuotaPeriod".into(),
        ),
        (
            json!({"imageGCHighThresholdPercent": 101}),
            "imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, inclusive".into(),
        ),
        (
            json!({"imageGCLowThresholdPercent": -1}),
            "imageGCLowThresholdPercent (--image-gc-low-threshold) -1 must be between 0 and 100, inclusive".into(),
        ),
        (
            json!({"imageGCLowThresholdPercent": 85}),
            "imageGCLowThresholdPercent (--image-gc-low-threshold) 85 must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) 85".into(),
        ),
        (json!({"imageMaximumGCAge": "-1s"}), "imageMaximumGCAge -1s must not be negative".into()),
        (
            json!({"imageMaximumGCAge": "1s"}),
            "imageMaximumGCAge 1s must be greater than imageMinimumGCAge 2m0s".into(),
        ),
        (
            json!({"iptablesDropBit": 32}),
            "iptablesDropBit (--iptables-drop-bit) 32 must be between 0 and 31, inclusive".into(),
        ),
        (
            json!({"iptablesMasqueradeBit": -1}),
            "iptablesMasqueradeBit (--iptables-masquerade-bit) -1 must be between 0 and 31, inclusive".into(),
        ),
        (json!({"kubeAPIBurst": -1}), "kubeAPIBurst (--kube-api-burst) -1 must not be a negative number".into()),
        (json!({"kubeAPIQPS": -1}), "kubeAPIQPS (--kube-api-qps) -1 must not be a negative number".into()),
        (
            json!({"nodeStatusMaxImages": -2}),
            "nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater".into(),
        ),
        (json!({"maxOpenFiles": -1}), "maxOpenFiles (--max-open-files) -1 must not be a negative number".into()),
        (json!({"maxPods": -1}), "maxPods (--max-pods) -1 must not be a negative number".into()),
        (
            json!({"oomScoreAdj": 1001}),
            "oomScoreAdj (--oom-score-adj) 1001 must be between -1000 and 1000, inclusive".into(),
        ),
        (json!({"podsPerCore": -1}), "podsPerCore (--pods-per-core) -1 must not be a negative number".into()),
        (json!({"port": 0}), "port (--port) 0 must be between 1 and 65535, inclusive".into()),
        (
            json!({"readOnlyPort": 65536}),
            "readOnlyPort (--read-only-port) 65536 must be between 0 and 65535, inclusive".into(),
        ),
        (json!({"registryBurst": -1}), "registryBurst (--registry-burst) -1 must not be a negative number".into()),
        (json!({"registryPullQPS": -1}), "registryPullQPS (--registry-qps) -1 must not be a negative number".into()),
        (json!({"maxParallelImagePulls": 0}), "maxParallelImagePulls 0 must be a positive number".into()),
        (
            json!({"maxParallelImagePulls": 2}),
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false".into(),
        ),
        (
            json!({"runOnce": true}),
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set".into(),
        ),
        (json!({"registerWithTaints": taint}), "\u{1}invalid taint: {a b v NoSchedule <nil>}".into()),
        (
            json!({"topologyManagerPolicy": "x"}),
            r#"topologyManagerPolicy (--topology-manager-policy) "x" must be one of: ["none" "best-effort" "restricted" "single-numa-node"]"#.into(),
        ),
        (
            json!({"topologyManagerScope": "x"}),
            r#"topologyManagerScope (--topology-manager-scope) "x" must be one of: "container", or "pod""#.into(),
        ),
        (
            json!({"shutdownGracePeriod": "10s", "shutdownGracePeriodCriticalPods": "20s"}),
            "shutdownGracePeriodCriticalPods {20s} must be <= shutdownGracePeriod {10s}".into(),
        ),
        (
            json!({"shutdownGracePeriod": "500ms"}),
            "shutdownGracePeriod {500ms} must be either zero or otherwise >= 1 sec".into(),
        ),
        (
            json!({"shutdownGracePeriodCriticalPods": "-2s"}),
            "shutdownGracePeriodCriticalPods {-2s} must be either zero or otherwise >= 1 sec".into(),
        ),
        (
            json!({"shutdownGracePeriod": "10s", "shutdownGracePeriodByPodPriority": [{"priority": 0, "shutdownGracePeriodSeconds": 1}]}),
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time".into(),
        ),
        (
            json!({"memorySwap": {"swapBehavior": "UnlimitedSwap"}}),
            r#"memorySwap.swapBehavior "UnlimitedSwap" must be one of: "", "LimitedSwap" or "NoSwap""#.into(),
        ),
        (
            json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "0.5s"}}),
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: 0.5 seconds) must be set between 1s and 300s".into(),
        ),
        (
            json!({"enforceNodeAllocatable": ["system-reserved"]}),
            format!(r#"systemReservedCgroup (--system-reserved-cgroup) must be specified when "system-reserved" or "system-reserved-compressible" included in {enforced}"#),
        ),
        (
            json!({"enforceNodeAllocatable": ["kube-reserved-compressible"]}),
            format!(r#"kubeReservedCgroup (--kube-reserved-cgroup) must be specified when "kube-reserved" or "kube-reserved-compressible" included in {enforced}"#),
        ),
        (
            json!({"enforceNodeAllocatable": ["kube-reserved", "kube-reserved-compressible"], "kubeReservedCgroup": "/k"}),
            format!(r#"both "kube-reserved" and "kube-reserved-compressible" cannot be specified together in {enforced}"#),
        ),
        (
            json!({"enforceNodeAllocatable": ["pods", "pods"]}),
            format!(r#"duplicated enforcements "pods" in {enforced}"#),
        ),
        (
            json!({"enforceNodeAllocatable": ["pods", "none"]}),
            format!(r#"{enforced} may not contain additional enforcements when "none" is specified"#),
        ),
        (
            json!({"enforceNodeAllocatable": ["x"]}),
            format!(r#"option "x" specified for {enforced}. Valid options are "pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible" or "none""#),
        ),
        (
            json!({"cgroupsPerQOS": false}),
            format!(r#"cgroupsPerQOS (--cgroups-per-qos) must be set to true when "pods" contained in {enforced}"#),
        ),
        (
            json!({"hairpinMode": "x"}),
            r#"option "x" specified for hairpinMode (--hairpin-mode). Valid options are "none", "hairpin-veth" or "promiscuous-bridge""#.into(),
        ),
        (
            json!({"imagePullCredentialsVerificationPolicy": "x"}),
            r#"option "x" specified for imagePullCredentialsVerificationPolicy. Valid options are "NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages" or "AlwaysVerify""#.into(),
        ),
        (
            json!({"preloadedImagesVerificationAllowlist": ["a"]}),
            r#"can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not "NeverVerifyAllowlistedImages""#.into(),
        ),
        (
            json!({"reservedSystemCPUs": "0", "kubeReservedCgroup": "/k"}),
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)".into(),
        ),
        (
            json!({"reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}]}),
            r#"the limit type "cpu" for NUMA node 0 is not supported, only [memory hugepages-<HugePageSize>] is accepted"#.into(),
        ),
        (
            json!({"reservedMemory": [{"numaNode": 1, "limits": {"memory": "0"}}]}),
            r#"reserved memory may not be zero for NUMA node 1 and resource "memory""#.into(),
        ),
        (
            json!({"reservedMemory": [{"numaNode": 1, "limits": {"memory": "1"}}, {"numaNode": 1, "limits": {"memory": "2"}}]}),
            r#"the reserved memory has a duplicate value for NUMA node 1 and resource "memory""#.into(),
        ),
        (
            json!({"userNamespaces": {"idsPerPod": 1}}),
            "userNamespaces.idsPerPod must not be less than 65536".into(),
        ),
        (
            json!({"userNamespaces": {"idsPerPod": 65537}}),
            "userNamespaces.idsPerPod must be a multiple of 65536".into(),
        ),
        (
            json!({"userNamespaces": {"idsPerPod": 4_294_967_296_i64}}),
            "userNamespaces.idsPerPod must not be more than 4294967295".into(),
        ),
        (
            json!({"showHiddenMetricsForVersion": "1.30"}),
            "\u{1}--show-hidden-metrics-for-version must be omitted or have the value '1.34'. Only the previous minor version is allowed".into(),
        ),
        (
            json!({"memoryThrottlingFactor": 1.5}),
            "memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0".into(),
        ),
        (json!({"containerRuntimeEndpoint": ""}), "the containerRuntimeEndpoint was not specified or empty".into()),
        (
            json!({"enableSystemLogQuery": true}),
            "NodeLogQuery feature gate is required for enableSystemLogQuery".into(),
        ),
        (
            json!({"containerLogMaxWorkers": 0}),
            "containerLogMaxWorkers must be greater than or equal to 1".into(),
        ),
        (
            json!({"containerLogMonitorInterval": "2s"}),
            "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s".into(),
        ),
        (json!({"containerLogMaxFiles": 1}), "containerLogMaxFiles must be greater than 1".into()),
        (json!({"podLogsDir": "logs"}), r#"pod logs path "logs" must be absolute path"#.into()),
        (json!({"podLogsDir": "/a/../b"}), r#"pod logs path "/a/../b" must be normalized"#.into()),
        (json!({"podLogsDir": long}), format!("pod logs path \"{long}\" mut contains ASCII characters only")),
        (json!({"cgroupDriver": "x"}), r#"cgroupDriver (--cgroup-driver) "x" must be one of [cgroupfs systemd]"#.into()),
    ];
    for (changes, text) in rows {
        assert_eq!(told(&changes, &[], CgroupVersion::V2), [prefixed(text)], "{changes}");
    }
}

#[test]
fn several_problems_are_told_together() {
    let all = told(&json!({"podLogsDir": "", "maxPods": -1}), &[], CgroupVersion::V2);
    let texts = ["maxPods (--max-pods) -1 must", "podLogsDir was not", "must be absolute path", "must be normalized"];
    assert_eq!(all.len(), texts.len(), "{all:?}");
    assert!(texts.iter().zip(&all).all(|(text, problem)| problem.contains(text)), "{all:?}");
    let bad = told(&json!({"reservedSystemCPUs": "3-1"}), &[], CgroupVersion::V2);
    assert!(
        bad[0].starts_with("invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus) 3-1, error: ")
    );
}

#[test]
fn gates_decide_what_may_be_set() {
    let rows = [
        (
            json!({"cpuCFSQuotaPeriod": "2s"}),
            ("CustomCPUCFSQuotaPeriod", true),
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {2s} must be between 1ms and 1sec, inclusive",
        ),
        (
            json!({"serverTLSBootstrap": true}),
            ("RotateKubeletServerCertificate", false),
            "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate",
        ),
        (
            json!({"shutdownGracePeriod": "2s"}),
            ("GracefulNodeShutdown", false),
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown",
        ),
        (
            json!({"shutdownGracePeriodByPodPriority": [{"priority": 0, "shutdownGracePeriodSeconds": 1}]}),
            ("GracefulNodeShutdownBasedOnPodPriority", false),
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
        (
            json!({"preloadedImagesVerificationAllowlist": ["a"]}),
            ("KubeletEnsureSecretPulledImages", false),
            "`preloadedImagesVerificationAllowlist` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled",
        ),
        (
            json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "10s"}}),
            ("KubeletCrashLoopBackOffMax", false),
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
        ),
        (
            json!({"crashLoopBackOff": {}}),
            ("KubeletCrashLoopBackOffMax", true),
            "FeatureGate KubeletCrashLoopBackOffMax is enabled, CrashLoopBackOff.MaxContainerRestartPeriod must be set",
        ),
        (
            json!({"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}),
            ("KubeletEnsureSecretPulledImages", false),
            "`imagePullCredentialsVerificationPolicy` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled",
        ),
        (
            json!({"memoryThrottlingFactor": null}),
            ("MemoryQoS", true),
            "memoryThrottlingFactor is required when MemoryQoS feature flag is enabled",
        ),
        (
            json!({"enableSystemLogQuery": true, "enableSystemLogHandler": false}),
            ("NodeLogQuery", true),
            "enableSystemLogHandler is required for enableSystemLogQuery",
        ),
    ];
    for (changes, gate, text) in rows {
        assert_eq!(told(&changes, &[gate], CgroupVersion::V2), [prefixed(text.to_owned())], "{changes}");
    }
}

#[test]
fn the_old_version_of_cgroups_is_refused_or_limits_what_may_be_set() {
    let refused = told(&json!({}), &[], CgroupVersion::V1);
    assert!(refused[0].starts_with("kubelet is configured to not run on a host using cgroup v1."), "{refused:?}");
    let changes = json!({"failCgroupV1": false, "singleProcessOOMKill": false});
    let text = "invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1";
    assert_eq!(told(&changes, &[], CgroupVersion::V1), [text]);
}
