//! Document of `/configz`: the configuration in force, as upstream's internal `KubeControllerManagerConfiguration`
//! prints. Answers for upstream's `k8s.io/component-base/configz`.

use serde_json::{Value, json};
use shared::flags::FlagSet;

use crate::controllers::TABLE;
use crate::engine::registry::known;

/// The name the configuration has on the page.
pub const NAME: &str = "kubecontrollermanager.config.k8s.io";

/// Field of the document in which each flag appears.
const FLAGS: &[(&str, &str)] = &[
    ("AttachDetachController.DisableAttachDetachReconcilerSync", "disable-attach-detach-reconcile-sync"),
    ("AttachDetachController.ReconcilerSyncLoopPeriod", "attach-detach-reconcile-sync-period"),
    ("AttachDetachController.DisableForceDetachOnTimeout", "disable-force-detach-on-timeout"),
    ("CSRSigningController.ClusterSigningCertFile", "cluster-signing-cert-file"),
    ("CSRSigningController.ClusterSigningKeyFile", "cluster-signing-key-file"),
    ("CSRSigningController.ClusterSigningDuration", "cluster-signing-duration"),
    (
        "CSRSigningController.KubeAPIServerClientSignerConfiguration.CertFile",
        "cluster-signing-kube-apiserver-client-cert-file",
    ),
    (
        "CSRSigningController.KubeAPIServerClientSignerConfiguration.KeyFile",
        "cluster-signing-kube-apiserver-client-key-file",
    ),
    ("CSRSigningController.KubeletClientSignerConfiguration.CertFile", "cluster-signing-kubelet-client-cert-file"),
    ("CSRSigningController.KubeletClientSignerConfiguration.KeyFile", "cluster-signing-kubelet-client-key-file"),
    ("CSRSigningController.KubeletServingSignerConfiguration.CertFile", "cluster-signing-kubelet-serving-cert-file"),
    ("CSRSigningController.KubeletServingSignerConfiguration.KeyFile", "cluster-signing-kubelet-serving-key-file"),
    ("CSRSigningController.LegacyUnknownSignerConfiguration.CertFile", "cluster-signing-legacy-unknown-cert-file"),
    ("CSRSigningController.LegacyUnknownSignerConfiguration.KeyFile", "cluster-signing-legacy-unknown-key-file"),
    ("CronJobController.ConcurrentCronJobSyncs", "concurrent-cron-job-syncs"),
    ("DaemonSetController.ConcurrentDaemonSetSyncs", "concurrent-daemonset-syncs"),
    ("DeploymentController.ConcurrentDeploymentSyncs", "concurrent-deployment-syncs"),
    ("DeviceTaintEvictionController.ConcurrentSyncs", "concurrent-device-taint-eviction-syncs"),
    ("EndpointController.ConcurrentEndpointSyncs", "concurrent-endpoint-syncs"),
    ("EndpointController.EndpointUpdatesBatchPeriod", "endpoint-updates-batch-period"),
    ("EndpointSliceController.ConcurrentServiceEndpointSyncs", "concurrent-service-endpoint-syncs"),
    ("EndpointSliceController.EndpointUpdatesBatchPeriod", "endpointslice-updates-batch-period"),
    ("EndpointSliceController.MaxEndpointsPerSlice", "max-endpoints-per-slice"),
    (
        "EndpointSliceMirroringController.MirroringConcurrentServiceEndpointSyncs",
        "mirroring-concurrent-service-endpoint-syncs",
    ),
    (
        "EndpointSliceMirroringController.MirroringEndpointUpdatesBatchPeriod",
        "mirroring-endpointslice-updates-batch-period",
    ),
    ("EndpointSliceMirroringController.MirroringMaxEndpointsPerSubset", "mirroring-max-endpoints-per-subset"),
    ("EphemeralVolumeController.ConcurrentEphemeralVolumeSyncs", "concurrent-ephemeralvolume-syncs"),
    ("GarbageCollectorController.ConcurrentGCSyncs", "concurrent-gc-syncs"),
    ("GarbageCollectorController.EnableGarbageCollector", "enable-garbage-collector"),
    ("Generic.ClientConnection.AcceptContentTypes", ""),
    ("Generic.ClientConnection.Burst", "kube-api-burst"),
    ("Generic.ClientConnection.ContentType", "kube-api-content-type"),
    ("Generic.ClientConnection.Kubeconfig", "kubeconfig"),
    ("Generic.ClientConnection.QPS", "kube-api-qps"),
    ("Generic.ControllerStartInterval", "controller-start-interval"),
    ("Generic.Controllers", "controllers"),
    ("Generic.Debugging.EnableContentionProfiling", "contention-profiling"),
    ("Generic.Debugging.EnableProfiling", "profiling"),
    ("Generic.LeaderElection.LeaderElect", "leader-elect"),
    ("Generic.LeaderElection.LeaseDuration", "leader-elect-lease-duration"),
    ("Generic.LeaderElection.RenewDeadline", "leader-elect-renew-deadline"),
    ("Generic.LeaderElection.ResourceLock", "leader-elect-resource-lock"),
    ("Generic.LeaderElection.ResourceName", "leader-elect-resource-name"),
    ("Generic.LeaderElection.ResourceNamespace", "leader-elect-resource-namespace"),
    ("Generic.LeaderElection.RetryPeriod", "leader-elect-retry-period"),
    ("Generic.LeaderMigrationEnabled", "enable-leader-migration"),
    ("Generic.MinResyncPeriod", "min-resync-period"),
    ("HPAController.ConcurrentHorizontalPodAutoscalerSyncs", "concurrent-horizontal-pod-autoscaler-syncs"),
    (
        "HPAController.HorizontalPodAutoscalerCPUInitializationPeriod",
        "horizontal-pod-autoscaler-cpu-initialization-period",
    ),
    (
        "HPAController.HorizontalPodAutoscalerDownscaleStabilizationWindow",
        "horizontal-pod-autoscaler-downscale-stabilization",
    ),
    ("HPAController.HorizontalPodAutoscalerInitialReadinessDelay", "horizontal-pod-autoscaler-initial-readiness-delay"),
    ("HPAController.HorizontalPodAutoscalerSyncPeriod", "horizontal-pod-autoscaler-sync-period"),
    ("HPAController.HorizontalPodAutoscalerTolerance", "horizontal-pod-autoscaler-tolerance"),
    ("JobController.ConcurrentJobSyncs", "concurrent-job-syncs"),
    ("KubeCloudShared.AllocateNodeCIDRs", "allocate-node-cidrs"),
    ("KubeCloudShared.CIDRAllocatorType", "cidr-allocator-type"),
    ("KubeCloudShared.CloudProvider.CloudConfigFile", "cloud-config"),
    ("KubeCloudShared.CloudProvider.Name", "cloud-provider"),
    ("KubeCloudShared.ClusterCIDR", "cluster-cidr"),
    ("KubeCloudShared.ClusterName", "cluster-name"),
    ("KubeCloudShared.ConfigureCloudRoutes", "configure-cloud-routes"),
    ("KubeCloudShared.ExternalCloudVolumePlugin", "external-cloud-volume-plugin"),
    ("KubeCloudShared.NodeMonitorPeriod", "node-monitor-period"),
    ("KubeCloudShared.RouteReconciliationPeriod", "route-reconciliation-period"),
    ("KubeCloudShared.UseServiceAccountCredentials", "use-service-account-credentials"),
    ("LegacySATokenCleaner.CleanUpPeriod", "legacy-service-account-token-clean-up-period"),
    ("NamespaceController.ConcurrentNamespaceSyncs", "concurrent-namespace-syncs"),
    ("NamespaceController.NamespaceSyncPeriod", "namespace-sync-period"),
    ("NodeIPAMController.NodeCIDRMaskSize", "node-cidr-mask-size"),
    ("NodeIPAMController.NodeCIDRMaskSizeIPv4", "node-cidr-mask-size-ipv4"),
    ("NodeIPAMController.NodeCIDRMaskSizeIPv6", "node-cidr-mask-size-ipv6"),
    ("NodeLifecycleController.LargeClusterSizeThreshold", "large-cluster-size-threshold"),
    ("NodeLifecycleController.NodeEvictionRate", "node-eviction-rate"),
    ("NodeLifecycleController.NodeMonitorGracePeriod", "node-monitor-grace-period"),
    ("NodeLifecycleController.NodeStartupGracePeriod", "node-startup-grace-period"),
    ("NodeLifecycleController.SecondaryNodeEvictionRate", "secondary-node-eviction-rate"),
    ("NodeLifecycleController.UnhealthyZoneThreshold", "unhealthy-zone-threshold"),
    ("PersistentVolumeBinderController.PVClaimBinderSyncPeriod", "pvclaimbinder-sync-period"),
    ("PersistentVolumeBinderController.VolumeConfiguration.EnableDynamicProvisioning", "enable-dynamic-provisioning"),
    ("PersistentVolumeBinderController.VolumeConfiguration.EnableHostPathProvisioning", "enable-hostpath-provisioner"),
    ("PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir", "flex-volume-plugin-dir"),
    (
        "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.IncrementTimeoutHostPath",
        "pv-recycler-timeout-increment-hostpath",
    ),
    (
        "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.IncrementTimeoutNFS",
        "pv-recycler-increment-timeout-nfs",
    ),
    (
        "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MinimumTimeoutHostPath",
        "pv-recycler-minimum-timeout-hostpath",
    ),
    (
        "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MinimumTimeoutNFS",
        "pv-recycler-minimum-timeout-nfs",
    ),
    (
        "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.PodTemplateFilePathHostPath",
        "pv-recycler-pod-template-filepath-hostpath",
    ),
    (
        "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.PodTemplateFilePathNFS",
        "pv-recycler-pod-template-filepath-nfs",
    ),
    ("PodGCController.TerminatedPodGCThreshold", "terminated-pod-gc-threshold"),
    ("ReplicaSetController.ConcurrentRSSyncs", "concurrent-replicaset-syncs"),
    ("ReplicationController.ConcurrentRCSyncs", "concurrent-rc-syncs"),
    ("ResourceQuotaController.ConcurrentResourceQuotaSyncs", "concurrent-resource-quota-syncs"),
    ("ResourceQuotaController.ResourceQuotaSyncPeriod", "resource-quota-sync-period"),
    ("SAController.ConcurrentSATokenSyncs", "concurrent-serviceaccount-token-syncs"),
    ("SAController.RootCAFile", "root-ca-file"),
    ("SAController.ServiceAccountKeyFile", "service-account-private-key-file"),
    ("ServiceController.ConcurrentServiceSyncs", "concurrent-service-syncs"),
    ("StatefulSetController.ConcurrentStatefulSetSyncs", "concurrent-statefulset-syncs"),
    ("TTLAfterFinishedController.ConcurrentTTLSyncs", "concurrent-ttl-after-finished-syncs"),
    (
        "ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs",
        "concurrent-validating-admission-policy-status-syncs",
    ),
];

/// Fields that no flag sets.
const FIXED: &[(&str, &str)] = &[
    ("DeprecatedController", "{}"),
    (
        "GarbageCollectorController.GCIgnoredResources",
        r#"[{"Group": "", "Resource": "events"}, {"Group": "events.k8s.io", "Resource": "events"}]"#,
    ),
    ("Generic.Address", r#""0.0.0.0""#),
    ("Generic.LeaderMigration", r#"{"ControllerLeaders": null, "LeaderName": "", "ResourceLock": ""}"#),
    ("Generic.Port", "0"),
    ("KubeCloudShared.AllowUntaggedCloud", "false"),
    ("KubeCloudShared.NodeSyncPeriod", r#""0s""#),
    ("NodeLifecycleController.PodEvictionTimeout", r#""5m0s""#),
    ("PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MaximumRetry", "3"),
];

/// The configuration these flags make.
#[must_use]
pub fn document(flags: &FlagSet) -> Value {
    let given: std::collections::BTreeMap<String, String> = flags.all().into_iter().collect();
    let mut root = json!({});
    let mut put = |path: &str, value: Value| {
        let mut at = &mut root;
        for part in path.split('.') {
            // A null turns into an object when it is given a field.
            at = &mut at[part];
        }
        *at = value;
    };
    for (path, text) in FIXED {
        put(path, serde_json::from_str(text).unwrap_or_default());
    }
    for (path, flag) in FLAGS {
        put(path, value(flag, given.get(*flag).map(String::as_str).unwrap_or_default()));
    }
    let ranges = given.get("service-cluster-ip-range").map(String::as_str).unwrap_or_default();
    let (first, second) = ranges.split_once(',').unwrap_or((ranges, ""));
    put("NodeIPAMController.ServiceCIDR", json!(first));
    put("NodeIPAMController.SecondaryServiceCIDR", json!(second));
    root
}

/// Controllers by the names of today.
fn named(controllers: &str) -> Value {
    let known = known(TABLE);
    let bare = controllers.trim_start_matches('[').trim_end_matches(']');
    let each = bare.split([',', ' ']).filter(|c| !c.is_empty()).map(|controller| {
        let (sign, name) = controller.strip_prefix('-').map_or(("", controller), |name| ("-", name));
        format!("{sign}{}", known.get(name).copied().unwrap_or(name))
    });
    each.collect()
}

/// A flag's text as JSON: lists, numbers and truth values are what they look like, durations stay words.
fn value(flag: &str, text: &str) -> Value {
    if flag == "controllers" {
        return named(text);
    }
    match text {
        "true" => json!(true),
        "false" => json!(false),
        _ => text
            .parse::<i64>()
            .map(Value::from)
            .or_else(|_| text.parse::<f64>().map(Value::from))
            .unwrap_or_else(|_| json!(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_follows_the_flags() {
        let flags = FlagSet::of(
            "kube-controller-manager",
            &[
                "--concurrent-gc-syncs=7",
                "--controllers=*,-ttl,job-controller",
                "--node-eviction-rate=0.5",
                "--service-cluster-ip-range=10.0.0.0/16,fd00::/108",
            ],
        )
        .expect("flags");
        let got = document(&flags);
        let ignored = json!([{"Group": "", "Resource": "events"}, {"Group": "events.k8s.io", "Resource": "events"}]);
        let collector = json!({"ConcurrentGCSyncs": 7, "EnableGarbageCollector": true, "GCIgnoredResources": ignored});
        assert_eq!(got["GarbageCollectorController"], collector);
        assert_eq!(got["Generic"]["Controllers"], json!(["*", "-ttl-controller", "job-controller"]));
        let ranges = ["ServiceCIDR", "SecondaryServiceCIDR"].map(|which| got["NodeIPAMController"][which].clone());
        assert_eq!(ranges, [json!("10.0.0.0/16"), json!("fd00::/108")]);
        assert_eq!(got["KubeCloudShared"]["NodeSyncPeriod"], "0s");
        assert_eq!(got["Generic"]["LeaderElection"]["LeaseDuration"], "15s");
        assert_eq!(got["NodeLifecycleController"]["NodeEvictionRate"], 0.5);
        for (path, flag) in FLAGS.iter().filter(|(_, f)| !f.is_empty()) {
            assert!(flags.knows(flag), "{path}: no flag {flag}");
        }
    }
}
