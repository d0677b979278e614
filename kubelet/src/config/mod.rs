//! The kubelet's configuration: the configuration file over upstream's defaults, command-line flags over both.
//!
//! In: flags and the file. Out: [`Config`], which the driver turns into the settings of the rooms. Reads nothing but
//! the files it is told of.

mod duration;

use crate::cpus::{CpuConfig, CpuSet};
use crate::images::pulled::Verification;
use crate::memory::{self, MemoryConfig, MemoryReservation};
use crate::resources::ResourceConfig;
use crate::settings::Settings;
use crate::topology::TopologyConfig;
use anyhow::bail;
use duration::GoDuration;
use k8s_openapi::api::core::v1::Taint;
use proto::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::cert::{OptionError, TlsOptions};
use shared::flags::{FeatureGates, FlagSet};
use shared::status::field::{Path, aggregate};
use shared::traces;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Hard eviction thresholds when neither file nor flags name any.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// The fields of `KubeletConfiguration` that this kubelet reads.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
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
    pub enable_system_log_handler: bool,
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
    pub cpu_manager_policy: String,
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_reconcile_period: GoDuration,
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub memory_manager_policy: String,
    pub reserved_memory: Vec<MemoryReservation>,
    pub topology_manager_policy: String,
    pub topology_manager_policy_options: BTreeMap<String, String>,
    pub topology_manager_scope: String,
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
#[allow(missing_docs)]
pub struct Authentication {
    pub x509: X509,
    pub webhook: Webhook,
    pub anonymous: Anonymous,
}

/// `authentication.x509`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct X509 {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// `authentication.webhook`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Webhook {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// `authentication.anonymous`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Anonymous {
    pub enabled: bool,
}

/// `authorization`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Authorization {
    pub mode: String,
    pub webhook: AuthorizationWebhook,
}

/// `authorization.webhook`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct AuthorizationWebhook {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// `crashLoopBackOff`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: GoDuration,
}

/// What only flags say.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct CommandLine {
    pub kubeconfig: String,
    pub bootstrap_kubeconfig: String,
    pub hostname_override: String,
    pub node_ips: Vec<IpAddr>,
    pub node_labels: BTreeMap<String, String>,
    pub root_dir: PathBuf,
    pub cert_dir: PathBuf,
}

/// The whole configuration.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// File and flags over defaults.
    pub kubelet: KubeletConfiguration,
    /// The same as a document, for `/configz`.
    pub document: Value,
    /// What only flags say.
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
    let ignored = settings.ignored(&serde_json::to_value(KubeletConfiguration::default())?);
    if !ignored.is_empty() {
        tracing::warn!(fields = ignored.join(","), "Configuration fields that have no effect in this kubelet are set");
    }
    let mut document = settings.0;
    let kubelet = typed(document.clone())?;
    document["evictionHard"] = serde_json::to_value(&kubelet.eviction_hard)?;
    Ok(Config { kubelet, document, command_line: command_line(flags), gates })
}

fn typed(document: Value) -> anyhow::Result<KubeletConfiguration> {
    let mut kubelet: KubeletConfiguration =
        serde_json::from_value(document).map_err(|e| anyhow::anyhow!("failed to decode kubelet configuration: {e}"))?;
    eviction_defaults(&mut kubelet);
    reserve_named(&mut kubelet)?;
    check(&kubelet)?;
    Ok(kubelet)
}

fn command_line(flags: &FlagSet) -> CommandLine {
    let addresses = flags.string("node-ip");
    CommandLine {
        kubeconfig: flags.string("kubeconfig"),
        bootstrap_kubeconfig: flags.string("bootstrap-kubeconfig"),
        hostname_override: flags.string("hostname-override"),
        node_ips: addresses.split(',').filter_map(|text| text.trim().parse().ok()).collect(),
        node_labels: flags.map("node-labels"),
        root_dir: flags.string("root-dir").into(),
        cert_dir: flags.string("cert-dir").into(),
    }
}

fn eviction_defaults(kubelet: &mut KubeletConfiguration) {
    let defaults = EVICTION_HARD.iter().map(|(signal, value)| ((*signal).to_owned(), (*value).to_owned()));
    if kubelet.eviction_hard.is_empty() {
        kubelet.eviction_hard = defaults.collect();
    } else if kubelet.merge_default_eviction_settings {
        for (signal, value) in defaults {
            kubelet.eviction_hard.entry(signal).or_insert(value);
        }
    } else {
        for (signal, _) in EVICTION_HARD {
            kubelet.eviction_hard.entry(signal.to_owned()).or_insert_with(|| "0%".to_owned());
        }
    }
}

/// Reserves as many processors as are named: amounts count no more then.
fn reserve_named(kubelet: &mut KubeletConfiguration) -> anyhow::Result<()> {
    if kubelet.reserved_system_cpus.is_empty() {
        return Ok(());
    }
    let named = kubelet.reserved_system_cpus.parse::<CpuSet>();
    let named =
        named.map_err(|error| anyhow::anyhow!("unable to parse reservedSystemCPUs (--reserved-cpus): {error}"))?;
    kubelet.kube_reserved.remove("cpu");
    kubelet.system_reserved.insert("cpu".to_owned(), named.ids().count().to_string());
    Ok(())
}

/// The checks that keep a kubelet from doing harm.
fn check(kubelet: &KubeletConfiguration) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let port = |name: &str, value: i32, least: i32| {
        (!(least..=65535).contains(&value))
            .then(|| format!("invalid configuration: {name} {value} must be between {least} and 65535, inclusive"))
    };
    problems.extend(port("port (--port)", kubelet.port, 1));
    problems.extend(port("readOnlyPort (--read-only-port)", kubelet.read_only_port, 0));
    problems.extend(port("healthzPort (--healthz-port)", kubelet.healthz_port, 0));
    if kubelet.max_pods < 0 {
        problems.push(format!(
            "invalid configuration: maxPods (--max-pods) {} must be a non-negative number",
            kubelet.max_pods
        ));
    }
    if kubelet.image_gc_low_threshold_percent >= kubelet.image_gc_high_threshold_percent {
        problems.push(format!(
            "invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) {} must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) {}",
            kubelet.image_gc_low_threshold_percent, kubelet.image_gc_high_threshold_percent
        ));
    }
    if kubelet.container_log_max_files <= 1 {
        problems.push("invalid configuration: containerLogMaxFiles must be greater than 1".to_owned());
    }
    if !matches!(kubelet.cgroup_driver.as_str(), "cgroupfs" | "systemd") {
        problems.push(format!(
            "invalid configuration: cgroupDriver (--cgroup-driver) {:?} must be one of [cgroupfs systemd]",
            kubelet.cgroup_driver
        ));
    }
    problems.extend(placement_problems(kubelet));
    problems.extend(memory::validate(&kubelet.reserved_memory));
    problems.extend(kubelet.tls_options().err().map(|error| format!("invalid configuration: {error}")));
    problems.extend(kubelet.image_verification().err());
    let wrong =
        kubelet.tracing.as_ref().map(|tracing| tracing.validate(Some(&Path::new("tracing")))).unwrap_or_default();
    if !wrong.is_empty() {
        problems.push(aggregate(&wrong));
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!(
        "failed to validate kubelet configuration, error: {}, path: &TypeMeta{{Kind:,APIVersion:,}}",
        problems.join(", ")
    );
}

/// Values of the topology manager's settings that there are not.
fn placement_problems(kubelet: &KubeletConfiguration) -> Vec<String> {
    let mut problems = Vec::new();
    let policy = &kubelet.topology_manager_policy;
    if !matches!(policy.as_str(), "none" | "best-effort" | "restricted" | "single-numa-node") {
        let known = r#"["none" "best-effort" "restricted" "single-numa-node"]"#;
        problems.push(format!(
            "invalid configuration: topologyManagerPolicy (--topology-manager-policy) {policy:?} must be one of: {known}"
        ));
    }
    let scope = &kubelet.topology_manager_scope;
    if !matches!(scope.as_str(), "container" | "pod") {
        problems.push(format!(
            "invalid configuration: topologyManagerScope (--topology-manager-scope) {scope:?} must be one of: \"container\", \
             or \"pod\""
        ));
    }
    problems
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
    pub fn topology(&self, gates: &FeatureGates) -> Result<TopologyConfig, String> {
        let gate = "TopologyManagerPolicyOptions";
        let options = &self.topology_manager_policy_options;
        if !gates.enabled(gate) && !options.is_empty() {
            let options: Vec<String> = options.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            return Err(format!(
                "topology manager policy options map[{}] require feature gates \"{gate}\" enabled",
                options.join(" ")
            ));
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
    pub fn image_verification(&self) -> Result<Verification, String> {
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

    /// What the rooms need to know.
    pub fn settings(&self) -> Settings {
        let kubelet = &self.kubelet;
        let size = kubelet.container_log_max_size.parse::<proto::quantity::Quantity>();
        let crash = kubelet.crash_loop_back_off.max_container_restart_period.0;
        Settings {
            root_dir: self.command_line.root_dir.clone(),
            pod_logs_dir: kubelet.pod_logs_dir.clone().into(),
            container_logs_dir: "/var/log/containers".into(),
            node_name: self.node_name(),
            hostname: self.hostname(),
            cluster_dns: kubelet.cluster_dns.clone(),
            cluster_domain: kubelet.cluster_domain.clone(),
            resolv_conf: kubelet.resolv_conf.clone(),
            seccomp_default: kubelet.seccomp_default,
            serialize_image_pulls: kubelet.serialize_image_pulls,
            log_max_size: size.map_or(10 << 20, |size| u64::try_from(size.value()).unwrap_or(u64::MAX)),
            log_max_files: usize::try_from(kubelet.container_log_max_files).unwrap_or(5),
            log_monitor_interval: kubelet.container_log_monitor_interval.0.max(Duration::from_secs(3)),
            max_crash_backoff: jiff::SignedDuration::try_from(crash).unwrap_or(jiff::SignedDuration::from_mins(5)),
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
            },
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
        typed(document)
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

    #[test]
    fn bad_values_are_refused() {
        for (changes, part) in [
            (json!({"port": 0}), "port (--port) 0 must be between 1 and 65535"),
            (json!({"syncFrequency": "banana"}), "banana"),
            (json!({"containerLogMaxFiles": 1}), "containerLogMaxFiles"),
            (json!({"reservedSystemCPUs": "3-1"}), "reservedSystemCPUs"),
        ] {
            let error = with(changes).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
