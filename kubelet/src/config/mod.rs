//! The kubelet's configuration: the configuration file over upstream's defaults, command-line flags over both.
//!
//! In: flags and the file. Out: [`Config`], which the driver turns into the settings of the rooms. Reads nothing but
//! the files it is told of.

mod duration;
mod effects;
mod limits;
mod pulls;
mod validation;

use crate::backoff::Backoff;
use crate::cpus::{CpuConfig, CpuSet};
use crate::images::pulled::Verification;
use crate::memory::{MemoryConfig, MemoryReservation};
use crate::resources::{CgroupVersion, ResourceConfig};
use crate::settings::{ContainerGcPolicy, ExclusiveResources, Settings};
use crate::topology::{TopologyConfig, TopologyError};
use anyhow::bail;
use duration::GoDuration;
use k8s_openapi::api::core::v1::Taint;
use proto::quantity::Quantity;
use proto::selector::format::{label_value, qualified_name};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::cert::{OptionError, TlsOptions};
use shared::declared_features::{self, RESIZES_GUARANTEED, RESIZES_WHOLE, RESTARTS_ALL};
use shared::flags::{FeatureGates, FlagSet};
use shared::status::field::aggregate;
use shared::traces;
use shared::types::KUBELET_LABELS;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// `KubeletConfiguration`. What each field does is told by [`effects`].
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct KubeletConfiguration {
    pub enable_server: bool,
    pub static_pod_path: String,
    pub pod_logs_dir: String,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    pub http_check_frequency: GoDuration,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    pub registry_burst: i32,
    pub address: String,
    pub port: i32,
    pub read_only_port: i32,
    pub tls_cert_file: String,
    pub tls_private_key_file: String,
    pub tls_cipher_suites: Vec<String>,
    pub tls_min_version: String,
    pub protect_kernel_defaults: bool,
    pub image_pull_credentials_verification_policy: String,
    pub preloaded_images_verification_allowlist: Vec<String>,
    pub feature_gates: BTreeMap<String, bool>,
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    pub event_burst: i32,
    pub enable_debugging_handlers: bool,
    pub enable_contention_profiling: bool,
    pub enable_profiling_handler: bool,
    pub enable_debug_flags_handler: bool,
    pub enable_system_log_handler: bool,
    pub enable_system_log_query: bool,
    pub streaming_connection_idle_timeout: GoDuration,
    pub volume_stats_agg_period: GoDuration,
    pub kubelet_cgroups: String,
    pub system_cgroups: String,
    pub healthz_port: i32,
    pub healthz_bind_address: String,
    pub oom_score_adj: i32,
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    pub cgroup_driver: String,
    pub memory_manager_policy: String,
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    pub topology_manager_policy_options: BTreeMap<String, String>,
    pub qos_reserved: BTreeMap<String, String>,
    pub reserved_memory: Vec<MemoryReservation>,
    pub hairpin_mode: String,
    pub run_once: bool,
    pub max_open_files: i64,
    pub content_type: String,
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: bool,
    pub iptables_masquerade_bit: i32,
    pub iptables_drop_bit: i32,
    pub memory_swap: MemorySwap,
    pub memory_throttling_factor: Option<f64>,
    pub kernel_memcg_notification: bool,
    pub container_log_max_workers: i32,
    pub config_map_and_secret_change_detection_strategy: String,
    pub show_hidden_metrics_for_version: String,
    pub system_reserved_cgroup: String,
    pub kube_reserved_cgroup: String,
    pub volume_plugin_dir: String,
    pub logging: Value,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    pub shutdown_grace_period_by_pod_priority: Vec<PriorityGracePeriod>,
    pub local_storage_capacity_isolation: bool,
    pub user_namespaces: Option<UserNamespaces>,
    pub cpu_manager_policy: String,
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_reconcile_period: GoDuration,
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub runtime_request_timeout: GoDuration,
    pub max_pods: i64,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    pub pod_pids_limit: i64,
    pub resolv_conf: String,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    pub node_status_max_images: i32,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: i32,
    pub serialize_image_pulls: bool,
    pub max_parallel_image_pulls: Option<i32>,
    pub eviction_hard: BTreeMap<String, String>,
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_pressure_transition_period: GoDuration,
    pub eviction_max_pod_grace_period: i64,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub merge_default_eviction_settings: bool,
    pub pods_per_core: i64,
    pub enable_controller_attach_detach: bool,
    pub fail_swap_on: bool,
    pub container_log_max_size: String,
    pub container_log_max_files: i64,
    pub container_log_monitor_interval: GoDuration,
    pub system_reserved: BTreeMap<String, String>,
    pub kube_reserved: BTreeMap<String, String>,
    pub enforce_node_allocatable: Vec<String>,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub crash_loop_back_off: CrashLoopBackOff,
    pub seccomp_default: bool,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub register_with_taints: Vec<Taint>,
    pub register_node: bool,
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    #[serde(skip_serializing)]
    pub tracing: Option<traces::Configuration>,
}

/// `authentication`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct Authentication {
    pub x509: X509,
    pub webhook: Webhook,
    pub anonymous: Anonymous,
}

/// `authentication.x509`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct X509 {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// `authentication.webhook`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct Webhook {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// `authentication.anonymous`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct Anonymous {
    pub enabled: bool,
}

/// `authorization`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct Authorization {
    pub mode: String,
    pub webhook: AuthorizationWebhook,
}

/// `authorization.webhook`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct AuthorizationWebhook {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// `memorySwap`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct MemorySwap {
    pub swap_behavior: String,
}

/// An item of `shutdownGracePeriodByPodPriority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct PriorityGracePeriod {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

/// `userNamespaces`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct UserNamespaces {
    #[serde(rename = "idsPerPod")]
    pub ids_per_pod: Option<i64>,
}

/// `crashLoopBackOff`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "fields are upstream's and described in its API reference")]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: GoDuration,
}

/// Settings that only flags have.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "flags are upstream's and described in the table of flags")]
pub struct CommandLine {
    pub kubeconfig: String,
    pub bootstrap_kubeconfig: String,
    pub hostname_override: String,
    pub node_ips: Vec<IpAddr>,
    pub node_labels: BTreeMap<String, String>,
    pub root_dir: PathBuf,
    pub cert_dir: PathBuf,
    /// `--cloud-provider=external`: a controller of the cloud makes the node ready for pods.
    pub external_cloud: bool,
    pub lock_file: String,
    pub exit_on_lock_contention: bool,
    pub image_credential_provider_config: PathBuf,
    pub image_credential_provider_bin_dir: PathBuf,
    pub dead_containers: ContainerGcPolicy,
}

/// The whole configuration.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// File and flags over defaults.
    pub kubelet: KubeletConfiguration,
    /// Configuration as a document, for `/configz`.
    pub document: Value,
    /// Settings that only flags have.
    pub command_line: CommandLine,
    /// Gates of the file and of the flags.
    pub gates: FeatureGates,
}

/// Reads flags and the files that they name.
///
/// # Errors
/// A file cannot be read or decoded, or a value is not usable.
pub fn load(flags: &FlagSet) -> anyhow::Result<Config> {
    let settings = shared::config::kubelet(flags)?;
    shared::run::set_logging(&settings, flags)?;
    let gates = settings.feature_gates(&flags.feature_gates())?;
    shared::metrics::set_feature_gates(gates.clone());
    let command_line = command_line(flags)?;
    let idle = effects::idle(&settings, flags);
    if !idle.is_empty() {
        tracing::warn!(fields = idle.join(","), "Configuration that has no effect in this kubelet is set");
    }
    let mut document = settings.0;
    let kubelet = typed(document.clone(), &gates, crate::resources::cgroup_version())?;
    document["evictionHard"] = serde_json::to_value(&kubelet.eviction_hard)?;
    Ok(Config { kubelet, document, command_line, gates })
}

fn typed(document: Value, gates: &FeatureGates, version: CgroupVersion) -> anyhow::Result<KubeletConfiguration> {
    let mut kubelet: KubeletConfiguration = serde_json::from_value(document.clone())
        .map_err(|e| anyhow::anyhow!("failed to decode kubelet configuration: {e}"))?;
    limits::eviction_defaults(&mut kubelet);
    let problems = validation::problems(&kubelet, &document, gates, version);
    if !problems.is_empty() {
        bail!(
            "failed to validate kubelet configuration, error: {}, path: &TypeMeta{{Kind:,APIVersion:,}}",
            aggregate(&problems)
        );
    }
    reserve_named(&mut kubelet)?;
    Ok(kubelet)
}

fn command_line(flags: &FlagSet) -> anyhow::Result<CommandLine> {
    let addresses = flags.string("node-ip");
    let cloud = flags.string("cloud-provider");
    let line = CommandLine {
        kubeconfig: flags.string("kubeconfig"),
        bootstrap_kubeconfig: flags.string("bootstrap-kubeconfig"),
        hostname_override: flags.string("hostname-override"),
        node_ips: node_ips(&addresses).map_err(|error| anyhow::anyhow!("bad --node-ip {addresses:?}: {error}"))?,
        node_labels: flags.map("node-labels"),
        root_dir: flags.string("root-dir").into(),
        cert_dir: flags.string("cert-dir").into(),
        external_cloud: cloud == "external",
        lock_file: flags.string("lock-file"),
        exit_on_lock_contention: flags.boolean("exit-on-lock-contention"),
        image_credential_provider_config: flags.string("image-credential-provider-config").into(),
        image_credential_provider_bin_dir: flags.string("image-credential-provider-bin-dir").into(),
        dead_containers: limits::dead_containers(flags),
    };
    if !matches!(cloud.as_str(), "" | "external") {
        bail!("unsupported value {cloud:?} for --cloud-provider: the only values are \"\" and \"external\"");
    }
    if line.exit_on_lock_contention && line.lock_file.is_empty() {
        bail!("cannot exit on lock file contention: no lock file specified");
    }
    let invalid: Vec<String> = line.node_labels.iter().filter_map(|(key, value)| invalid_label(key, value)).collect();
    let unknown = unknown_labels(&line.node_labels);
    if !unknown.is_empty() {
        bail!(
            "failed to validate kubelet flags: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]\n--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix ({}) or be in the specifically allowed set ({})",
            unknown.join(" "),
            LABEL_PREFIXES.join(", "),
            sorted(&KUBELET_LABELS).join(", ")
        );
    }
    if !invalid.is_empty() {
        bail!("failed to validate kubelet flags: invalid node labels: {}", invalid.join("; "));
    }
    Ok(line)
}

/// Returns the fault of a label, if it has one.
fn invalid_label(key: &str, value: &str) -> Option<String> {
    let mut errors = qualified_name(key);
    errors.extend(label_value(value));
    (!errors.is_empty()).then(|| format!("'{key}' - {}", errors.join(", ")))
}

/// Namespaces in which nodes may label themselves.
const LABEL_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

fn sorted<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut names = names.to_vec();
    names.sort_unstable();
    names
}

/// Labels of Kubernetes that no node may give itself.
fn unknown_labels(labels: &BTreeMap<String, String>) -> Vec<&str> {
    let below = |namespace: &str, domain: &str| {
        namespace == domain || namespace.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    };
    let is_unknown = |key: &&str| {
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
        let is_ours = below(namespace, "kubernetes.io") || below(namespace, "k8s.io");
        is_ours && !KUBELET_LABELS.contains(key) && !LABEL_PREFIXES.iter().any(|prefix| below(namespace, prefix))
    };
    labels.keys().map(String::as_str).filter(is_unknown).collect()
}

/// Reads `--node-ip`: an address or one of each family; those that are none are left out, as upstream does.
fn node_ips(text: &str) -> Result<Vec<IpAddr>, &'static str> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let (mut addresses, mut invalid) = (Vec::new(), Vec::new());
    for part in parts {
        match part.parse::<IpAddr>() {
            Ok(address) => addresses.push(address),
            Err(_) => invalid.push(part),
        }
    }
    if !invalid.is_empty() {
        tracing::info!(ips = invalid.join(","), "Could not parse some node IP(s), ignoring them");
    }
    match addresses.as_slice() {
        [] | [_] => Ok(addresses),
        [first, second] if first.is_ipv4() == second.is_ipv4() => {
            Err("must contain either a single IP or a dual-stack pair of IPs")
        }
        [first, second] if first.is_unspecified() || second.is_unspecified() => {
            Err("dual-stack node IP cannot include '0.0.0.0' or '::'")
        }
        [_, _] => Ok(addresses),
        _ => Err("must contain either a single IP or a dual-stack pair of IPs"),
    }
}

/// Reserves as many processors as are named: amounts count no more then.
fn reserve_named(kubelet: &mut KubeletConfiguration) -> anyhow::Result<()> {
    if kubelet.reserved_system_cpus.is_empty() {
        return Ok(());
    }
    let named: CpuSet = kubelet.reserved_system_cpus.parse().map_err(anyhow::Error::msg)?;
    kubelet.kube_reserved.remove("cpu");
    kubelet.system_reserved.insert("cpu".to_owned(), named.ids().count().to_string());
    Ok(())
}

impl KubeletConfiguration {
    /// Versions and suites of the secure port.
    ///
    /// # Errors
    /// One that there is not.
    pub fn tls_options(&self) -> Result<TlsOptions, OptionError> {
        TlsOptions::new(&self.tls_min_version, &self.tls_cipher_suites)
    }

    /// Settings of processors.
    pub fn cpus(&self, gates: &FeatureGates) -> CpuConfig {
        CpuConfig {
            policy: self.cpu_manager_policy.clone(),
            options: self.cpu_manager_policy_options.clone(),
            reserved: self.reserved_system_cpus.clone(),
            amounts: [self.kube_reserved.clone(), self.system_reserved.clone()],
            period: self.cpu_manager_reconcile_period.0.max(Duration::from_secs(1)),
            gates: gates.clone(),
        }
    }

    /// Settings of memory, on a node that keeps some amounts from pods.
    pub fn memory(&self, kept: BTreeMap<String, Quantity>) -> MemoryConfig {
        let (policy, reservations) = (self.memory_manager_policy.clone(), self.reserved_memory.clone());
        MemoryConfig { policy, reservations, kept }
    }

    /// Settings of the topology manager.
    ///
    /// # Errors
    /// Options are set that a feature gate forbids; upstream's text.
    pub fn topology(&self, gates: &FeatureGates) -> Result<TopologyConfig, TopologyError> {
        let gate = "TopologyManagerPolicyOptions";
        let options = &self.topology_manager_policy_options;
        if !gates.enabled(gate) && !options.is_empty() {
            let options: Vec<String> = options.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            return Err(TopologyError::OptionsDisabled { options: options.join(" "), gate });
        }
        Ok(TopologyConfig {
            policy: self.topology_manager_policy.clone(),
            scope: self.topology_manager_scope.clone(),
            options: options.clone(),
        })
    }

    /// Policy for images that are there.
    ///
    /// # Errors
    /// As [`Verification::parse`].
    pub fn image_verification(&self) -> Result<Verification, Vec<String>> {
        let list = &self.preloaded_images_verification_allowlist;
        Verification::parse(&self.image_pull_credentials_verification_policy, list)
    }
}

impl Config {
    /// The name of the node object: `--hostname-override`, or the host's name, in lower case.
    pub fn node_name(&self) -> String {
        let name = &self.command_line.hostname_override;
        let name = if name.is_empty() { self.hostname() } else { name.trim().to_owned() };
        name.to_lowercase()
    }

    /// The host's name.
    pub fn hostname(&self) -> String {
        nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Returns the settings that the rooms need.
    pub fn settings(&self) -> Settings {
        let (kubelet, crash) = (&self.kubelet, self.kubelet.crash_loop_back_off.max_container_restart_period.0);
        let size = kubelet.container_log_max_size.parse::<proto::quantity::Quantity>();
        Settings {
            root_dir: self.command_line.root_dir.clone(),
            pod_logs_dir: kubelet.pod_logs_dir.clone().into(),
            container_logs_dir: "/var/log/containers".into(),
            gates: self.gates.clone(),
            volume_plugin_dir: kubelet.volume_plugin_dir.clone().into(),
            volume_stats_period: kubelet.volume_stats_agg_period.0,
            node_name: self.node_name(),
            hostname: self.hostname(),
            cluster_dns: kubelet.cluster_dns.clone(),
            cluster_domain: kubelet.cluster_domain.clone(),
            resolv_conf: kubelet.resolv_conf.clone(),
            seccomp_default: kubelet.seccomp_default,
            pulls: kubelet.into(),
            log_workers: usize::try_from(kubelet.container_log_max_workers).unwrap_or(1).max(1),
            log_max_size: size.map_or(10 << 20, |size| u64::try_from(size.value()).unwrap_or(u64::MAX)),
            log_max_files: usize::try_from(kubelet.container_log_max_files).unwrap_or(5),
            log_monitor_interval: kubelet.container_log_monitor_interval.0.max(Duration::from_secs(3)),
            crash_backoff: Backoff::of_crashes(&self.gates, crash),
            sync_frequency: kubelet.sync_frequency.0,
            allowed_unsafe_sysctls: kubelet.allowed_unsafe_sysctls.clone(),
            resources: ResourceConfig {
                kube_reserved: kubelet.kube_reserved.clone(),
                system_reserved: kubelet.system_reserved.clone(),
                eviction_hard: kubelet.eviction_hard.clone(),
                max_pods: kubelet.max_pods,
                pods_per_core: kubelet.pods_per_core,
                cpu_cfs_quota: kubelet.cpu_cfs_quota,
                cpu_cfs_quota_period_us: i64::try_from(kubelet.cpu_cfs_quota_period.0.as_micros()).unwrap_or(100_000),
                single_process_oom_kill: kubelet.single_process_oom_kill.unwrap_or(false),
                pod_pids_limit: kubelet.pod_pids_limit,
                local_storage: kubelet.local_storage_capacity_isolation,
                limited_swap: kubelet.memory_swap.swap_behavior == "LimitedSwap",
                memory_qos: limits::throttling_factor(kubelet, &self.gates),
                qos_reserved: limits::reserved(kubelet, &self.gates),
            },
            prevents_references: self.gates.enabled("PreventStaticPodAPIReferences"),
            declared_features: self.gates.enabled(declared_features::GATE).then(|| {
                declared_features::declared(
                    &[RESIZES_GUARANTEED, RESIZES_WHOLE, RESTARTS_ALL],
                    &self.gates,
                    &kubelet.cpu_manager_policy,
                )
            }),
            exclusive: ExclusiveResources::of(&kubelet.cpu_manager_policy, &kubelet.memory_manager_policy, &self.gates),
            enable_controller_attach_detach: kubelet.enable_controller_attach_detach,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(changes: Value) -> anyhow::Result<KubeletConfiguration> {
        let mut document = shared::config::defaults("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");
        for (name, value) in changes.as_object().into_iter().flatten() {
            document[name] = value.clone();
        }
        typed(document, &FeatureGates::default(), CgroupVersion::V2)
    }

    #[test]
    fn a_document_becomes_a_configuration() {
        let kubelet = with(json!({"clusterDNS": ["10.0.0.10"], "syncFrequency": "30s", "resolvConf": "", "evictionHard": {"memory.available": "5%"}})).expect("loads");
        assert_eq!(kubelet.cluster_dns, ["10.0.0.10"]);
        assert_eq!(kubelet.sync_frequency.0.as_secs(), 30);
        assert_eq!((kubelet.port, kubelet.healthz_port, kubelet.max_pods), (10250, 10248, 110));
        assert!(kubelet.authentication.webhook.enabled && !kubelet.authentication.anonymous.enabled);
        assert_eq!(kubelet.resolv_conf, "");
        assert_eq!(kubelet.eviction_hard["memory.available"], "5%");
        assert_eq!(kubelet.eviction_hard["nodefs.available"], "0%");
        assert_eq!(with(json!({})).expect("loads").eviction_hard["nodefs.available"], "10%");
    }

    #[test]
    fn processors_that_are_named_are_reserved() {
        let reserved = json!({"cpu": "3", "memory": "1Gi"});
        let changes = json!({"reservedSystemCPUs": "0,4-5", "kubeReserved": reserved, "systemReserved": reserved});
        let kubelet = with(changes).expect("loads");
        assert_eq!((kubelet.kube_reserved.get("cpu"), kubelet.system_reserved["cpu"].as_str()), (None, "3"));
        assert_eq!(kubelet.kube_reserved["memory"], "1Gi");
    }

    fn flags(given: &[&str]) -> anyhow::Result<CommandLine> {
        command_line(&FlagSet::of("kubelet", given).expect("flags"))
    }

    #[test]
    fn flags_that_contradict_upstreams_rules_are_refused() {
        for (given, text) in [
            ("--node-ip=1.1.1.1,2.2.2.2", "bad --node-ip \"1.1.1.1,2.2.2.2\": must contain either a single IP"),
            ("--node-ip=1.1.1.1,::", "dual-stack node IP cannot include '0.0.0.0' or '::'"),
            ("--node-ip=1.1.1.1,::1,::2", "must contain either a single IP or a dual-stack pair of IPs"),
            ("--cloud-provider=aws", "unsupported value \"aws\" for --cloud-provider"),
            ("--exit-on-lock-contention", "cannot exit on lock file contention: no lock file specified"),
            ("--node-labels=node-role.kubernetes.io/worker=", "[node-role.kubernetes.io/worker]"),
            ("--node-labels=a/b=c d", "invalid node labels: 'a/b' - "),
            (
                "--node-labels=a.k8s.io/b=c",
                "failed to validate kubelet flags: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels",
            ),
        ] {
            let error = flags(&[given]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(text), "{given}: {error}");
        }
        let labels = "--node-labels=a/b=c,kubernetes.io/os=x,x.node.kubernetes.io/y=z,notkubernetes.io/a=b";
        let line = flags(&[labels, "--node-ip=10.0.0.1,fd00::1,nonsense", "--cloud-provider=external"]).expect("line");
        assert_eq!((line.node_labels.len(), line.node_ips.len(), line.external_cloud), (4, 2, true));
    }

    #[test]
    fn the_file_that_kubeadm_writes_has_the_defaults() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("config.yaml");
        let zero = "0s";
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             authentication: {{anonymous: {{enabled: false}}, webhook: {{cacheTTL: {zero}, enabled: true}}}}\n\
             authorization: {{mode: Webhook, webhook: {{cacheAuthorizedTTL: {zero}, cacheUnauthorizedTTL: {zero}}}}}\n\
             cgroupDriver: systemd\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n\
             containerRuntimeEndpoint: \"\"\ncpuManagerReconcilePeriod: {zero}\ncrashLoopBackOff: {{}}\n\
             evictionPressureTransitionPeriod: {zero}\nfileCheckFrequency: {zero}\nfailCgroupV1: false\n\
             healthzBindAddress: 127.0.0.1\nhealthzPort: 10248\nhttpCheckFrequency: {zero}\nimageMaximumGCAge: {zero}\n\
             imageMinimumGCAge: {zero}\nlogging: {{flushFrequency: 0, options: {{json: {{infoBufferSize: \"0\"}}, text: \
             {{infoBufferSize: \"0\"}}}}, verbosity: 0}}\nmemorySwap: {{}}\nnodeStatusReportFrequency: {zero}\n\
             nodeStatusUpdateFrequency: {zero}\nrotateCertificates: true\nruntimeRequestTimeout: {zero}\n\
             shutdownGracePeriod: {zero}\nshutdownGracePeriodCriticalPods: {zero}\nsyncFrequency: {zero}\n\
             staticPodPath: /etc/kubernetes/manifests\nstreamingConnectionIdleTimeout: {zero}\nvolumeStatsAggPeriod: {zero}\n"
        );
        std::fs::write(&file, text).expect("file");
        let config = load(&FlagSet::of("kubelet", &[&format!("--config={}", file.display())]).expect("flags"));
        let kubelet = config.expect("loads").kubelet;
        assert_eq!((kubelet.sync_frequency.0.as_secs(), kubelet.node_status_update_frequency.0.as_secs()), (60, 10));
        assert_eq!((kubelet.cgroup_driver.as_str(), kubelet.runtime_request_timeout.0.as_secs()), ("systemd", 120));
        assert!(kubelet.container_runtime_endpoint.starts_with("unix://"));
        assert_eq!(kubelet.crash_loop_back_off.max_container_restart_period.0.as_secs(), 300);
    }

    #[test]
    fn bad_values_are_refused() {
        for (changes, part) in [
            (json!({"port": 0}), "port (--port) 0 must be between 1 and 65535"),
            (json!({"syncFrequency": "banana"}), "banana"),
            (json!({"containerLogMaxFiles": 1}), "containerLogMaxFiles"),
        ] {
            let error = with(changes).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
