//! The flags that controllers read, read once at start.

use std::path::PathBuf;
use std::time::Duration;

use shared::flags::{FeatureGates, FlagSet};

use super::selection::Selection;

/// A certificate and its key, as file names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// PEM certificate.
    pub cert: String,
    /// PEM key.
    pub key: String,
}

impl KeyPairFiles {
    fn of(flags: &FlagSet, prefix: &str) -> Self {
        Self { cert: flags.string(&format!("{prefix}-cert-file")), key: flags.string(&format!("{prefix}-key-file")) }
    }

    /// Both files are named.
    #[must_use]
    pub fn given(&self) -> bool {
        !self.cert.is_empty() && !self.key.is_empty()
    }
}

/// Key pairs by signer.
#[derive(Clone, Debug, Default)]
pub struct Signing {
    /// For signers without a pair of their own.
    pub default: KeyPairFiles,
    /// kubernetes.io/kube-apiserver-client
    pub apiserver_client: KeyPairFiles,
    /// kubernetes.io/kube-apiserver-client-kubelet
    pub kubelet_client: KeyPairFiles,
    /// kubernetes.io/kubelet-serving
    pub kubelet_serving: KeyPairFiles,
    /// kubernetes.io/legacy-unknown
    pub legacy_unknown: KeyPairFiles,
    /// The longest validity given.
    pub duration: Duration,
}

/// Number of keys that each controller works on at once.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// `--concurrent-cron-job-syncs`
    pub cron_job: usize,
    /// `--concurrent-daemonset-syncs`
    pub daemonset: usize,
    /// `--concurrent-deployment-syncs`
    pub deployment: usize,
    /// `--concurrent-endpoint-syncs`
    pub endpoint: usize,
    /// `--concurrent-service-endpoint-syncs`
    pub endpointslice: usize,
    /// `--mirroring-concurrent-service-endpoint-syncs`
    pub mirroring: usize,
    /// `--concurrent-gc-syncs`
    pub gc: usize,
    /// `--concurrent-horizontal-pod-autoscaler-syncs`
    pub hpa: usize,
    /// `--concurrent-job-syncs`
    pub job: usize,
    /// `--concurrent-namespace-syncs`
    pub namespace: usize,
    /// `--concurrent-replicaset-syncs`
    pub replicaset: usize,
    /// `--concurrent-rc-syncs`
    pub replicationcontroller: usize,
    /// `--concurrent-resource-quota-syncs`
    pub resource_quota: usize,
    /// `--concurrent-serviceaccount-token-syncs`
    pub service_account_token: usize,
    /// `--concurrent-statefulset-syncs`
    pub statefulset: usize,
    /// `--concurrent-ttl-after-finished-syncs`
    pub ttl_after_finished: usize,
    /// `--concurrent-ephemeralvolume-syncs`
    pub ephemeral_volume: usize,
    /// `--concurrent-device-taint-eviction-syncs`
    pub device_taint_eviction: usize,
    /// `--concurrent-service-syncs`
    pub service: usize,
    /// `--concurrent-validating-admission-policy-status-syncs`
    pub admission_policy_status: usize,
}

/// Everything controllers take from the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--feature-gates`
    pub gates: FeatureGates,
    /// `--controllers`
    pub controllers: Selection,
    /// Concurrency.
    pub workers: Workers,
    /// `--use-service-account-credentials`
    pub own_accounts: bool,
    /// `--cidr-allocator-type`
    pub cidr_allocator: String,
    /// `--allocate-node-cidrs`
    pub allocate_node_cidrs: bool,
    /// `--cluster-cidr`
    pub cluster_cidrs: Vec<String>,
    /// `--service-cluster-ip-range`
    pub service_cidrs: Vec<String>,
    /// `--node-cidr-mask-size`, `-ipv4`, `-ipv6`; 0 is unset.
    pub mask_size: (u8, u8, u8),
    /// `--endpoint-updates-batch-period`
    pub endpoints_batch: Duration,
    /// `--endpointslice-updates-batch-period`
    pub endpointslice_batch: Duration,
    /// `--mirroring-endpointslice-updates-batch-period`
    pub mirroring_batch: Duration,
    /// `--max-endpoints-per-slice`
    pub max_endpoints_per_slice: usize,
    /// `--mirroring-max-endpoints-per-subset`
    pub mirroring_max_endpoints: usize,
    /// `--enable-garbage-collector`
    pub garbage_collector: bool,
    /// `--node-monitor-period`
    pub node_monitor_period: Duration,
    /// Node health and eviction.
    pub node_lifecycle: NodeLifecycle,
    /// `--terminated-pod-gc-threshold`
    pub terminated_pod_threshold: i32,
    /// `--resource-quota-sync-period`
    pub quota_period: Duration,
    /// `--namespace-sync-period`
    pub namespace_period: Duration,
    /// `--root-ca-file`
    pub root_ca_file: String,
    /// `--service-account-private-key-file`
    pub service_account_key: String,
    /// `--cluster-signing-*`
    pub signing: Signing,
    /// `--legacy-service-account-token-clean-up-period`
    pub legacy_token_period: Duration,
    /// `--horizontal-pod-autoscaler-*`
    pub hpa: Hpa,
    /// `--pvclaimbinder-sync-period`
    pub volume_period: Duration,
    /// `--pv-recycler-*`
    pub recyclers: Recyclers,
    /// `--enable-hostpath-provisioner`
    pub hostpath_provisioner: bool,
    /// `--enable-dynamic-provisioning`
    pub dynamic_provisioning: bool,
    /// `--disable-force-detach-on-timeout`
    pub never_force_detach: bool,
    /// `--attach-detach-reconcile-sync-period`: attachments are watched, but FlexVolumes are asked for.
    pub attach_period: Duration,
    /// `--disable-attach-detach-reconcile-sync`
    pub never_verify_attached: bool,
    /// `--flex-volume-plugin-dir`
    pub flex_folder: PathBuf,
    /// The cloud loops' flags.
    pub cloud: Cloud,
}

/// The flags of node health and eviction.
#[derive(Clone, Copy, Debug)]
pub struct NodeLifecycle {
    /// Time for which a node may be silent.
    pub grace: Duration,
    /// Time for which a node that never reported may be silent.
    pub startup_grace: Duration,
    /// Nodes per second that may be emptied in a healthy zone.
    pub eviction_rate: f64,
    /// Evictions a second in a large zone that is partly down.
    pub secondary_rate: f64,
    /// Zones up to this size are not emptied at all while partly down.
    pub large_zone: usize,
    /// The share of unready nodes from which a zone counts as partly down.
    pub unhealthy_share: f64,
}

/// The `--pv-recycler-*` flags of one kind of volume.
#[derive(Clone, Debug, Default)]
pub struct Recycler {
    /// Seconds that a volume of any size may take.
    pub minimum: i64,
    /// Seconds more for each GiB.
    pub per_gib: i64,
    /// Path of the pod's description; empty for the standard one.
    pub path: String,
}

/// Recycler pods of volumes with the policy Recycle.
#[derive(Clone, Debug, Default)]
pub struct Recyclers {
    /// Directories of hosts.
    pub host_path: Recycler,
    /// NFS shares.
    pub nfs: Recycler,
}

impl Recyclers {
    fn of(flags: &FlagSet) -> Self {
        let one = |minimum: &str, per_gib: &str, path: &str| Recycler {
            minimum: flags.integer(minimum),
            per_gib: flags.integer(per_gib),
            path: flags.string(path),
        };
        Self {
            host_path: one(
                "pv-recycler-minimum-timeout-hostpath",
                "pv-recycler-timeout-increment-hostpath",
                "pv-recycler-pod-template-filepath-hostpath",
            ),
            nfs: one(
                "pv-recycler-minimum-timeout-nfs",
                "pv-recycler-increment-timeout-nfs",
                "pv-recycler-pod-template-filepath-nfs",
            ),
        }
    }
}

/// Settings of the cloud loops.
#[derive(Clone, Debug)]
pub struct Cloud {
    /// `--cloud-provider`: `external` or empty; no provider is built in.
    pub provider: String,
    /// `--configure-cloud-routes`
    pub routes: bool,
    /// `--route-reconciliation-period`
    pub route_period: Duration,
    /// `--cluster-name`
    pub cluster_name: String,
}

/// The autoscaler's flags.
#[derive(Clone, Copy, Debug)]
pub struct Hpa {
    /// Between two looks at the same object.
    pub sync_period: Duration,
    /// Time for which a lower recommendation must hold.
    pub downscale_stabilization: Duration,
    /// The deviation that is not worth a change.
    pub tolerance: f64,
    /// CPU samples this soon after a pod's start may be skipped.
    pub cpu_initialization: Duration,
    /// Readiness this soon after a pod's start is initial.
    pub initial_readiness: Duration,
}

impl Settings {
    /// Read the flags.
    #[must_use]
    pub fn of(flags: &FlagSet, controllers: Selection) -> Self {
        let workers = |name: &str| usize::try_from(flags.integer(name)).unwrap_or(1).max(1);
        let mask = |name: &str| u8::try_from(flags.integer(name)).unwrap_or(0);
        let ranges = |name: &str| -> Vec<String> {
            flags.string(name).split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
        };
        Self {
            gates: flags.feature_gates(),
            controllers,
            workers: Workers {
                cron_job: workers("concurrent-cron-job-syncs"),
                daemonset: workers("concurrent-daemonset-syncs"),
                deployment: workers("concurrent-deployment-syncs"),
                endpoint: workers("concurrent-endpoint-syncs"),
                endpointslice: workers("concurrent-service-endpoint-syncs"),
                mirroring: workers("mirroring-concurrent-service-endpoint-syncs"),
                gc: workers("concurrent-gc-syncs"),
                hpa: workers("concurrent-horizontal-pod-autoscaler-syncs"),
                job: workers("concurrent-job-syncs"),
                namespace: workers("concurrent-namespace-syncs"),
                replicaset: workers("concurrent-replicaset-syncs"),
                replicationcontroller: workers("concurrent-rc-syncs"),
                resource_quota: workers("concurrent-resource-quota-syncs"),
                service_account_token: workers("concurrent-serviceaccount-token-syncs"),
                statefulset: workers("concurrent-statefulset-syncs"),
                ttl_after_finished: workers("concurrent-ttl-after-finished-syncs"),
                ephemeral_volume: workers("concurrent-ephemeralvolume-syncs"),
                device_taint_eviction: workers("concurrent-device-taint-eviction-syncs"),
                service: workers("concurrent-service-syncs"),
                admission_policy_status: workers("concurrent-validating-admission-policy-status-syncs"),
            },
            own_accounts: flags.boolean("use-service-account-credentials"),
            cidr_allocator: flags.string("cidr-allocator-type"),
            allocate_node_cidrs: flags.boolean("allocate-node-cidrs"),
            cluster_cidrs: ranges("cluster-cidr"),
            service_cidrs: ranges("service-cluster-ip-range"),
            mask_size: (
                mask("node-cidr-mask-size"),
                mask("node-cidr-mask-size-ipv4"),
                mask("node-cidr-mask-size-ipv6"),
            ),
            endpoints_batch: flags.duration("endpoint-updates-batch-period"),
            endpointslice_batch: flags.duration("endpointslice-updates-batch-period"),
            mirroring_batch: flags.duration("mirroring-endpointslice-updates-batch-period"),
            max_endpoints_per_slice: workers("max-endpoints-per-slice"),
            mirroring_max_endpoints: workers("mirroring-max-endpoints-per-subset"),
            garbage_collector: flags.boolean("enable-garbage-collector"),
            node_monitor_period: flags.duration("node-monitor-period"),
            node_lifecycle: NodeLifecycle {
                grace: flags.duration("node-monitor-grace-period"),
                startup_grace: flags.duration("node-startup-grace-period"),
                eviction_rate: flags.float("node-eviction-rate"),
                secondary_rate: flags.float("secondary-node-eviction-rate"),
                large_zone: usize::try_from(flags.integer("large-cluster-size-threshold")).unwrap_or(0),
                unhealthy_share: flags.float("unhealthy-zone-threshold"),
            },
            terminated_pod_threshold: i32::try_from(flags.integer("terminated-pod-gc-threshold")).unwrap_or(i32::MAX),
            quota_period: flags.duration("resource-quota-sync-period"),
            namespace_period: flags.duration("namespace-sync-period"),
            root_ca_file: flags.string("root-ca-file"),
            service_account_key: flags.string("service-account-private-key-file"),
            signing: Signing {
                default: KeyPairFiles::of(flags, "cluster-signing"),
                apiserver_client: KeyPairFiles::of(flags, "cluster-signing-kube-apiserver-client"),
                kubelet_client: KeyPairFiles::of(flags, "cluster-signing-kubelet-client"),
                kubelet_serving: KeyPairFiles::of(flags, "cluster-signing-kubelet-serving"),
                legacy_unknown: KeyPairFiles::of(flags, "cluster-signing-legacy-unknown"),
                duration: flags.duration("cluster-signing-duration"),
            },
            legacy_token_period: flags.duration("legacy-service-account-token-clean-up-period"),
            hpa: Hpa {
                sync_period: flags.duration("horizontal-pod-autoscaler-sync-period"),
                downscale_stabilization: flags.duration("horizontal-pod-autoscaler-downscale-stabilization"),
                tolerance: flags.float("horizontal-pod-autoscaler-tolerance"),
                cpu_initialization: flags.duration("horizontal-pod-autoscaler-cpu-initialization-period"),
                initial_readiness: flags.duration("horizontal-pod-autoscaler-initial-readiness-delay"),
            },
            volume_period: flags.duration("pvclaimbinder-sync-period"),
            recyclers: Recyclers::of(flags),
            hostpath_provisioner: flags.boolean("enable-hostpath-provisioner"),
            dynamic_provisioning: flags.boolean("enable-dynamic-provisioning"),
            never_force_detach: flags.boolean("disable-force-detach-on-timeout"),
            attach_period: flags.duration("attach-detach-reconcile-sync-period"),
            never_verify_attached: flags.boolean("disable-attach-detach-reconcile-sync"),
            flex_folder: flags.string("flex-volume-plugin-dir").into(),
            cloud: Cloud {
                provider: flags.string("cloud-provider"),
                routes: flags.boolean("configure-cloud-routes"),
                route_period: flags.duration("route-reconciliation-period"),
                cluster_name: flags.string("cluster-name"),
            },
        }
    }
}
