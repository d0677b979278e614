//! The kubelet's configuration: `--config`, drop-ins of `--config-dir`, and the flags, which win.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{ConfigError, Settings, Unknown, decode, decode::parse, read};
use crate::flags::{FlagSet, format_duration};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// Form of a flag's value in the file.
#[derive(Clone, Copy)]
enum As {
    Text,
    Bool,
    Int,
    Duration,
    List,
    Map,
    /// `name:value` pairs to a list of values per name.
    Headers,
    /// `key=value:effect`
    Taints,
    /// `node:resource=quantity,…;…`
    Memory,
}

/// Flags and the fields they override.
const FLAGS: [(&str, &str, As); 101] = [
    ("address", "address", As::Text),
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", As::List),
    ("anonymous-auth", "authentication.anonymous.enabled", As::Bool),
    ("authentication-token-webhook", "authentication.webhook.enabled", As::Bool),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", As::Duration),
    ("authorization-mode", "authorization.mode", As::Text),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", As::Duration),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", As::Duration),
    ("cgroup-driver", "cgroupDriver", As::Text),
    ("cgroup-root", "cgroupRoot", As::Text),
    ("cgroups-per-qos", "cgroupsPerQOS", As::Bool),
    ("client-ca-file", "authentication.x509.clientCAFile", As::Text),
    ("cluster-dns", "clusterDNS", As::List),
    ("cluster-domain", "clusterDomain", As::Text),
    ("container-log-max-files", "containerLogMaxFiles", As::Int),
    ("container-log-max-size", "containerLogMaxSize", As::Text),
    ("container-runtime-endpoint", "containerRuntimeEndpoint", As::Text),
    ("contention-profiling", "enableContentionProfiling", As::Bool),
    ("cpu-cfs-quota", "cpuCFSQuota", As::Bool),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", As::Duration),
    ("cpu-manager-policy", "cpuManagerPolicy", As::Text),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", As::Map),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", As::Duration),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", As::Bool),
    ("enable-debugging-handlers", "enableDebuggingHandlers", As::Bool),
    ("enable-server", "enableServer", As::Bool),
    ("enforce-node-allocatable", "enforceNodeAllocatable", As::List),
    ("event-burst", "eventBurst", As::Int),
    ("event-qps", "eventRecordQPS", As::Int),
    ("eviction-hard", "evictionHard", As::Map),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", As::Int),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", As::Map),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", As::Duration),
    ("eviction-soft", "evictionSoft", As::Map),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", As::Map),
    ("fail-cgroupv1", "failCgroupV1", As::Bool),
    ("fail-swap-on", "failSwapOn", As::Bool),
    ("file-check-frequency", "fileCheckFrequency", As::Duration),
    ("hairpin-mode", "hairpinMode", As::Text),
    ("healthz-bind-address", "healthzBindAddress", As::Text),
    ("healthz-port", "healthzPort", As::Int),
    ("http-check-frequency", "httpCheckFrequency", As::Duration),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", As::Int),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", As::Int),
    ("image-service-endpoint", "imageServiceEndpoint", As::Text),
    ("kernel-memcg-notification", "kernelMemcgNotification", As::Bool),
    ("kube-api-burst", "kubeAPIBurst", As::Int),
    ("kube-api-content-type", "contentType", As::Text),
    ("kube-api-qps", "kubeAPIQPS", As::Int),
    ("kube-reserved", "kubeReserved", As::Map),
    ("kube-reserved-cgroup", "kubeReservedCgroup", As::Text),
    ("kubelet-cgroups", "kubeletCgroups", As::Text),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", As::Bool),
    ("log-flush-frequency", "logging.flushFrequency", As::Duration),
    ("logging-format", "logging.format", As::Text),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", As::Bool),
    ("manifest-url", "staticPodURL", As::Text),
    ("manifest-url-header", "staticPodURLHeader", As::Headers),
    ("max-open-files", "maxOpenFiles", As::Int),
    ("max-pods", "maxPods", As::Int),
    ("memory-manager-policy", "memoryManagerPolicy", As::Text),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", As::Duration),
    ("node-status-max-images", "nodeStatusMaxImages", As::Int),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", As::Duration),
    ("oom-score-adj", "oomScoreAdj", As::Int),
    ("pod-cidr", "podCIDR", As::Text),
    ("pod-manifest-path", "staticPodPath", As::Text),
    ("pod-max-pids", "podPidsLimit", As::Int),
    ("pods-per-core", "podsPerCore", As::Int),
    ("port", "port", As::Int),
    ("protect-kernel-defaults", "protectKernelDefaults", As::Bool),
    ("provider-id", "providerID", As::Text),
    ("qos-reserved", "qosReserved", As::Map),
    ("read-only-port", "readOnlyPort", As::Int),
    ("register-node", "registerNode", As::Bool),
    ("register-with-taints", "registerWithTaints", As::Taints),
    ("registry-burst", "registryBurst", As::Int),
    ("registry-qps", "registryPullQPS", As::Int),
    ("reserved-cpus", "reservedSystemCPUs", As::Text),
    ("reserved-memory", "reservedMemory", As::Memory),
    ("resolv-conf", "resolvConf", As::Text),
    ("rotate-certificates", "rotateCertificates", As::Bool),
    ("rotate-server-certificates", "serverTLSBootstrap", As::Bool),
    ("runonce", "runOnce", As::Bool),
    ("runtime-request-timeout", "runtimeRequestTimeout", As::Duration),
    ("seccomp-default", "seccompDefault", As::Bool),
    ("serialize-image-pulls", "serializeImagePulls", As::Bool),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", As::Duration),
    ("sync-frequency", "syncFrequency", As::Duration),
    ("system-cgroups", "systemCgroups", As::Text),
    ("system-reserved", "systemReserved", As::Map),
    ("system-reserved-cgroup", "systemReservedCgroup", As::Text),
    ("tls-cert-file", "tlsCertFile", As::Text),
    ("tls-cipher-suites", "tlsCipherSuites", As::List),
    ("tls-min-version", "tlsMinVersion", As::Text),
    ("tls-private-key-file", "tlsPrivateKeyFile", As::Text),
    ("topology-manager-policy", "topologyManagerPolicy", As::Text),
    ("volume-plugin-dir", "volumePluginDir", As::Text),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions", As::Map),
    ("topology-manager-scope", "topologyManagerScope", As::Text),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", As::Duration),
];

/// Paths in the file that are relative to it.
const RELATIVE: [&str; 7] = [
    "staticPodPath",
    "authentication.x509.clientCAFile",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "resolvConf",
    "volumePluginDir",
    "podLogsDir",
];

/// The flags that override a field, with its path.
pub fn kubelet_flags() -> impl Iterator<Item = (&'static str, &'static str)> {
    FLAGS.iter().map(|(flag, path, _)| (*flag, *path))
}

/// Loads the kubelet's configuration.
pub fn kubelet(flags: &FlagSet) -> Result<Settings, ConfigError> {
    let (file, folder) = (flags.string("config"), flags.string("config-dir"));
    let mut settings = if file.is_empty() && folder.is_empty() {
        let mut settings = Settings(super::defaults(API_VERSION, KIND));
        // Without a file the old, more open defaults of the flags hold.
        settings.set("authentication.anonymous.enabled", true.into());
        settings.set("authentication.webhook.enabled", false.into());
        settings.set("authorization.mode", "AlwaysAllow".into());
        settings.set("readOnlyPort", 10255.into());
        settings
    } else {
        let wrap = |e: ConfigError| in_file(&file, &e);
        load(&file, &folder).map_err(wrap)?
    };
    for (flag, path, form) in FLAGS {
        if flags.is_set(flag) {
            settings.set(path, value(flags, flag, form)?);
        }
    }
    if flags.is_set("v") {
        settings.set("logging.verbosity", flags.integer("v").into());
    }
    Ok(settings)
}

fn in_file(file: &str, error: &ConfigError) -> ConfigError {
    let why = match error {
        ConfigError::Read { .. } | ConfigError::Empty { .. } => error.to_string(),
        other => format!("failed to decode: {other}"),
    };
    ConfigError::Refused(format!(
        "failed to load kubelet config file, path: {file}, error: failed to load Kubelet config file {file}, error {why}"
    ))
}

fn load(file: &str, folder: &str) -> Result<Settings, ConfigError> {
    let mut merged = Value::Object(Map::new());
    if !file.is_empty() {
        let bytes = read(file, "kubelet")?;
        if folder.is_empty() {
            return decode(&bytes, KIND, Unknown::Warn).map(|v| with_base(Settings(v), file));
        }
        merged = with_base(Settings(parse(&bytes)?.value), file).0;
    }
    for path in drop_ins(folder)? {
        let bytes = read(&path, "kubelet")?;
        let patch = with_base(Settings(parse(&bytes)?.value), &path).0;
        proto::merge::merge_patch::apply(&mut merged, patch);
    }
    if merged.get("kind").is_none() {
        merged["kind"] = KIND.into();
        merged["apiVersion"] = API_VERSION.into();
    }
    decode(merged.to_string().as_bytes(), KIND, Unknown::Warn).map(Settings)
}

/// The `.conf` files of a folder and below, in the order they apply.
fn drop_ins(folder: &str) -> Result<Vec<String>, ConfigError> {
    if folder.is_empty() {
        return Ok(Vec::new());
    }
    let fail =
        |e: std::io::Error| ConfigError::Read { what: "kubelet", path: folder.to_owned(), why: crate::os::explain(&e) };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() {
            files.extend(drop_ins(&path.to_string_lossy())?);
        } else if path.extension().is_some_and(|e| e == "conf") {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn with_base(mut settings: Settings, file: &str) -> Settings {
    let base = Path::new(file).parent().unwrap_or_else(|| Path::new(""));
    for field in RELATIVE {
        let given = settings.string(field);
        if !given.is_empty() && Path::new(&given).is_relative() {
            settings.set(field, base.join(given).to_string_lossy().into_owned().into());
        }
    }
    settings
}

fn value(flags: &FlagSet, flag: &str, form: As) -> Result<Value, ConfigError> {
    Ok(match form {
        As::Text => flags.string(flag).into(),
        As::Bool => flags.boolean(flag).into(),
        As::Int => flags.integer(flag).into(),
        As::Duration => format_duration(flags.duration(flag)).into(),
        As::List => flags.list(flag).into(),
        As::Map => flags.map(flag).into_iter().map(|(k, v)| (k, Value::from(v))).collect::<Map<_, _>>().into(),
        As::Headers => headers(&flags.list(flag)),
        As::Taints => Value::Array(flags.list(flag).iter().map(|t| taint(t)).collect::<Result<_, _>>()?),
        As::Memory => memory(&flags.string(flag)),
    })
}

fn headers(pairs: &[String]) -> Value {
    let mut all = Map::new();
    for (name, text) in pairs.iter().filter_map(|p| p.split_once(':')) {
        let values = all.entry(name.trim()).or_insert_with(|| json!([]));
        if let Some(values) = values.as_array_mut() {
            values.push(text.trim().into());
        }
    }
    Value::Object(all)
}

fn taint(text: &str) -> Result<Value, ConfigError> {
    let refuse = || ConfigError::Refused(format!("invalid taint spec: {text}"));
    let (pair, effect) = text.rsplit_once(':').ok_or_else(refuse)?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if key.is_empty() || !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(refuse());
    }
    let mut taint = json!({"key": key, "effect": effect});
    if !value.is_empty() {
        taint["value"] = value.into();
    }
    Ok(taint)
}

fn memory(text: &str) -> Value {
    let pair = |part: &str| part.split_once('=').map(|(k, v)| (k.trim().to_owned(), Value::from(v.trim())));
    let group = |part: &str| {
        let (node, limits) = part.split_once(':')?;
        let limits: Map<String, Value> = limits.split(',').filter_map(pair).collect();
        Some(json!({"numaNode": node.trim().parse::<i32>().ok()?, "limits": limits}))
    };
    Value::Array(text.split(';').filter_map(group).collect())
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::config::table::{Table, Type, parse_type};

    #[test]
    fn flags_and_fields_exist() {
        let table = Table::new();
        let flags = FlagSet::of("kubelet", &[]).expect("flags");
        for (flag, path, _) in FLAGS {
            assert!(flags.knows(flag), "{flag}");
            let mut kind = Type::Struct("KubeletConfiguration");
            for key in path.split('.') {
                let Type::Struct(name) = kind else { panic!("{path} goes through something else") };
                let owner = table.get(name).expect("struct");
                let field = owner.fields.iter().find(|f| f.name == key);
                kind = parse_type(field.unwrap_or_else(|| panic!("{path}: no {key}")).type_text);
            }
        }
    }
}
