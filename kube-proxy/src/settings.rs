//! Settings of a `KubeProxyConfiguration`: parsed once, checked, and never looked at again as text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use shared::config::Settings as Fields;
use shared::flags::{FeatureGates, FlagSet, format_duration};

use crate::addresses::NodePortAddresses;
use crate::backend::Mode;
use crate::kernel::Conntrack;
use crate::mode::{self, MODES};
use crate::validation;

const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;

/// Modes of recognising traffic of local pods; resolved to a [`crate::detect::LocalDetector`] once the node is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// By the cluster's pod networks.
    ClusterCidr(Vec<IpNet>),
    /// By the node's own pod networks.
    NodeCidr,
    /// By the bridge that pods are behind.
    Bridge(String),
    /// By the prefix of pods' interface names.
    Prefix(String),
}

/// Everything the proxy was told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Proxy mode.
    pub mode: &'static Mode,
    /// Kubeconfig path.
    pub kubeconfig: String,
    /// Overrides the server address.
    pub master: String,
    /// Requests a second.
    pub qps: f32,
    /// Requests at once.
    pub burst: u32,
    /// The node's name.
    pub node_name: String,
    /// Preferred family: that of this address.
    pub bind_address: IpAddr,
    /// Address of `/healthz` and `/livez`; not served when absent.
    pub healthz: Option<SocketAddr>,
    /// Address of `/metrics`; not served when absent.
    pub metrics: Option<SocketAddr>,
    /// Media type to watch in.
    pub content_type: String,
    /// Profiles and the level of logs are served there, too.
    pub profiling: bool,
    /// Fail when an address cannot be bound.
    pub bind_hard_fail: bool,
    /// Masquerade all service traffic.
    pub masquerade_all: bool,
    /// The packet mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// Node ports answer on 127.0.0.1 (iptables mode).
    pub localhost_node_ports: bool,
    /// Node port addresses.
    pub node_port_addresses: NodePortAddresses,
    /// Rules are checked and, if damaged, rewritten this often.
    pub sync_period: Duration,
    /// Shortest time between two changes of rules.
    pub min_sync_period: Duration,
    /// Local traffic detection.
    pub local: LocalMode,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// Our own `oom_score_adj`.
    pub oom_score_adj: Option<i64>,
    /// Feature gates of the file and the command line.
    pub gates: FeatureGates,
    /// The configuration with its defaults, for `/configz` and for what one mode alone reads.
    pub configuration: Fields,
}

/// A configuration that cannot be used: its errors, in the form of upstream's aggregates.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{}", aggregate(.0))]
pub struct Invalid(Vec<String>);

fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

/// The configuration object that the command line describes, used when there is no `--config`.
#[must_use]
pub fn from_flags(flags: &FlagSet) -> Fields {
    let mut fields = Fields(shared::config::defaults("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration"));
    let time = |name| Value::from(format_duration(flags.duration(name)));
    let text = |name| Value::from(flags.string(name));
    let number = |name| Value::from(flags.integer(name));
    let flag = |name| Value::from(flags.boolean(name));
    let address = |name| match flags.string(name).as_str() {
        "0" => Value::from(""),
        text => Value::from(text),
    };
    // Upstream's flag for the bit is iptables' alone.
    let set = [
        ("bindAddress", text("bind-address")),
        ("bindAddressHardFail", flag("bind-address-hard-fail")),
        ("clientConnection.kubeconfig", text("kubeconfig")),
        ("clientConnection.qps", json!(flags.float("kube-api-qps"))),
        ("clientConnection.burst", number("kube-api-burst")),
        ("clientConnection.contentType", text("kube-api-content-type")),
        ("clusterCIDR", text("cluster-cidr")),
        ("configSyncPeriod", time("config-sync-period")),
        ("conntrack.maxPerCore", number("conntrack-max-per-core")),
        ("conntrack.min", number("conntrack-min")),
        ("conntrack.tcpBeLiberal", flag("conntrack-tcp-be-liberal")),
        ("conntrack.tcpCloseWaitTimeout", time("conntrack-tcp-timeout-close-wait")),
        ("conntrack.tcpEstablishedTimeout", time("conntrack-tcp-timeout-established")),
        ("conntrack.udpTimeout", time("conntrack-udp-timeout")),
        ("conntrack.udpStreamTimeout", time("conntrack-udp-timeout-stream")),
        ("detectLocal.bridgeInterface", text("pod-bridge-interface")),
        ("detectLocal.interfaceNamePrefix", text("pod-interface-name-prefix")),
        ("detectLocalMode", text("detect-local-mode")),
        ("enableProfiling", flag("profiling")),
        ("healthzBindAddress", address("healthz-bind-address")),
        ("hostnameOverride", text("hostname-override")),
        ("iptables.localhostNodePorts", flag("iptables-localhost-nodeports")),
        ("iptables.masqueradeAll", flag("masquerade-all")),
        ("iptables.masqueradeBit", number("iptables-masquerade-bit")),
        ("iptables.minSyncPeriod", time("iptables-min-sync-period")),
        ("iptables.syncPeriod", time("iptables-sync-period")),
        ("ipvs.excludeCIDRs", json!(flags.list("ipvs-exclude-cidrs"))),
        ("ipvs.minSyncPeriod", time("ipvs-min-sync-period")),
        ("ipvs.scheduler", text("ipvs-scheduler")),
        ("ipvs.strictARP", flag("ipvs-strict-arp")),
        ("ipvs.syncPeriod", time("ipvs-sync-period")),
        ("ipvs.tcpFinTimeout", time("ipvs-tcpfin-timeout")),
        ("ipvs.tcpTimeout", time("ipvs-tcp-timeout")),
        ("ipvs.udpTimeout", time("ipvs-udp-timeout")),
        ("nftables.masqueradeAll", flag("masquerade-all")),
        ("nftables.minSyncPeriod", time("iptables-min-sync-period")),
        ("nftables.syncPeriod", time("iptables-sync-period")),
        ("metricsBindAddress", address("metrics-bind-address")),
        ("mode", text("proxy-mode")),
        ("nodePortAddresses", json!(flags.list("nodeport-addresses"))),
        ("oomScoreAdj", number("oom-score-adj")),
        ("showHiddenMetricsForVersion", text("show-hidden-metrics-for-version")),
    ];
    set.into_iter().for_each(|(path, value)| fields.set(path, value));
    fields
}

impl Settings {
    /// Warns of fields that are set and have no effect.
    pub fn warn_ignored(&self) {
        let read = json!({
            "featureGates": 0, "clientConnection": {"kubeconfig": 0, "qps": 0, "burst": 0, "contentType": 0,
            "acceptContentTypes": 0}, "logging": 0, "hostnameOverride": 0, "bindAddress": 0, "healthzBindAddress": 0,
            "metricsBindAddress": 0, "enableProfiling": 0, "bindAddressHardFail": 0, "mode": 0, "iptables": 0, "nftables": 0, "ipvs": 0,
            "winkernel": 0, "detectLocalMode": 0, "detectLocal": 0, "clusterCIDR": 0, "nodePortAddresses": 0,
            "oomScoreAdj": 0, "conntrack": 0, "portRange": 0, "windowsRunAsService": 0,
        });
        let ignored = self.configuration.ignored(&read);
        if !ignored.is_empty() {
            tracing::warn!(
                fields = ignored.join(","),
                "Configuration fields that have no effect in this kube-proxy are set"
            );
        }
    }
}

/// A time that is left to the kernel where it is zero.
fn optional(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| !time.is_zero())
}

fn conntrack(fields: &Fields) -> Conntrack {
    let time = |field: &str| optional(fields.duration(&format!("conntrack.{field}")));
    let number = |field: &str| u64::try_from(fields.integer(&format!("conntrack.{field}"))).unwrap_or(0);
    Conntrack {
        max_per_core: number("maxPerCore"),
        min: number("min"),
        tcp_established: time("tcpEstablishedTimeout"),
        tcp_close_wait: time("tcpCloseWaitTimeout"),
        tcp_be_liberal: fields.boolean("conntrack.tcpBeLiberal"),
        udp: time("udpTimeout"),
        udp_stream: time("udpStreamTimeout"),
    }
}

/// Reads a configuration object whose defaults are filled in.
///
/// # Errors
/// All that is wrong with it.
pub fn parse(fields: Fields, gates: &FeatureGates, master: String, host: &str) -> Result<Settings, Invalid> {
    let errors = validation::errors(&fields);
    let mode = mode::named(&fields.string("mode")).unwrap_or(MODES[0]);
    let Some(bind_address) = shared::address::ip(&fields.string("bindAddress")).filter(|_| errors.is_empty()) else {
        return Err(Invalid(errors));
    };
    let gates = fields.feature_gates(gates).map_err(|error| Invalid(vec![error.to_string()]))?;
    let override_name = fields.string("hostnameOverride");
    let node_name = if override_name.is_empty() { host } else { &override_name };
    #[allow(clippy::cast_possible_truncation, reason = "a rate limit needs no more precision than the flag's float32")]
    let qps = fields.float("clientConnection.qps") as f32;
    let node_ports = node_port_addresses(&fields.list("nodePortAddresses"), mode);
    let all = if bind_address.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) };
    let socket = |field: &str, port| validation::socket(&fields.string(field), all, port);
    let metrics = socket("metricsBindAddress", METRICS_PORT).map(|address| match bind_address {
        // The default is the loopback address of the family that is bound.
        IpAddr::V6(_) if address == (Ipv4Addr::LOCALHOST, METRICS_PORT).into() => {
            (Ipv6Addr::LOCALHOST, METRICS_PORT).into()
        }
        _ => address,
    });
    let period = |field: &str| fields.duration(&format!("{}.{field}", mode.periods));
    Ok(Settings {
        mode,
        kubeconfig: fields.string("clientConnection.kubeconfig"),
        master,
        qps,
        burst: u32::try_from(fields.integer("clientConnection.burst")).unwrap_or(u32::MAX),
        node_name: node_name.trim().to_lowercase(),
        bind_address,
        healthz: socket("healthzBindAddress", HEALTHZ_PORT),
        metrics,
        content_type: fields.string("clientConnection.contentType"),
        profiling: fields.boolean("enableProfiling"),
        bind_hard_fail: fields.boolean("bindAddressHardFail"),
        masquerade_all: fields.boolean(&format!("{}.masqueradeAll", mode.masquerading)),
        // Within 0 to 31: checked above.
        masquerade_mark: 1 << (fields.integer(&format!("{}.masqueradeBit", mode.masquerading)) & 31),
        localhost_node_ports: mode.localhost_node_ports
            && fields.boolean("iptables.localhostNodePorts")
            && node_ports.contains_loopback(),
        node_port_addresses: node_ports,
        sync_period: period("syncPeriod"),
        min_sync_period: period("minSyncPeriod"),
        local: local_mode(&fields),
        conntrack: conntrack(&fields),
        oom_score_adj: fields.get("oomScoreAdj").and_then(Value::as_i64),
        gates,
        configuration: fields,
    })
}

fn networks<'a>(list: impl Iterator<Item = &'a str>) -> Vec<IpNet> {
    list.filter_map(shared::address::network).map(|network| network.trunc()).collect()
}

fn node_port_addresses(list: &[String], mode: &Mode) -> NodePortAddresses {
    match list {
        [] if mode.primary_node_ports => NodePortAddresses::Primary,
        [] => NodePortAddresses::All,
        [primary] if primary == "primary" => NodePortAddresses::Primary,
        list => NodePortAddresses::Networks(networks(list.iter().map(String::as_str))),
    }
}

fn local_mode(fields: &Fields) -> LocalMode {
    match fields.string("detectLocalMode").as_str() {
        "NodeCIDR" => LocalMode::NodeCidr,
        "BridgeInterface" => LocalMode::Bridge(fields.string("detectLocal.bridgeInterface")),
        "InterfaceNamePrefix" => LocalMode::Prefix(fields.string("detectLocal.interfaceNamePrefix")),
        _ => LocalMode::ClusterCidr(networks(fields.string("clusterCIDR").split(',').map(str::trim))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_flags(arguments: &[&str]) -> Result<Settings, Invalid> {
        let flags = FlagSet::of("kube-proxy", arguments).expect("valid flags");
        parse(from_flags(&flags), &flags.feature_gates(), String::new(), "Node-1 ")
    }

    #[test]
    fn the_flags_defaults_are_upstreams() {
        let settings = of_flags(&["--cluster-cidr=10.244.0.0/16,fd00::/48"]).expect("defaults are valid");
        assert_eq!(settings.mode.name, "iptables");
        assert_eq!(settings.node_name, "node-1");
        assert_eq!(settings.masquerade_mark, 0x4000);
        assert_eq!(settings.healthz, Some("0.0.0.0:10256".parse().expect("address")));
        assert_eq!(settings.metrics, Some("127.0.0.1:10249".parse().expect("address")));
        assert_eq!((settings.sync_period.as_secs(), settings.min_sync_period.as_secs()), (30, 1));
        assert_eq!(settings.conntrack.tcp_established, Some(Duration::from_secs(86_400)));
        assert_eq!(settings.conntrack.udp, None);
        assert_eq!(settings.node_port_addresses, NodePortAddresses::All);
        assert!(matches!(settings.local, LocalMode::ClusterCidr(nets) if nets.len() == 2));
    }

    #[test]
    fn each_mode_reads_its_own_section() {
        let settings = of_flags(&["--proxy-mode=nftables", "--iptables-masquerade-bit=3", "--masquerade-all"]);
        let settings = settings.expect("valid");
        assert_eq!(settings.masquerade_mark, 0x4000, "the flag is iptables' alone");
        assert!(settings.masquerade_all && !settings.localhost_node_ports);
        assert_eq!(settings.node_port_addresses, NodePortAddresses::Primary);
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let error = of_flags(&["--iptables-masquerade-bit=32", "--oom-score-adj=2000"]).expect_err("invalid");
        let text = error.to_string();
        assert!(
            text.starts_with("[KubeProxyConfiguration.KubeProxyIPTables") && text.ends_with("[-1000, 1000]]"),
            "{text}"
        );
    }

    #[test]
    fn what_flags_describe_is_a_configuration_file() {
        let flags =
            FlagSet::of("kube-proxy", &["--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16"]).expect("flags");
        let mut fields = from_flags(&flags);
        fields.set("clientConnection.qps", 5.into());
        let text = proto::yaml::encode_any(&fields.0).expect("YAML");
        let read = shared::config::decode(text.as_bytes(), "KubeProxyConfiguration", shared::config::Unknown::Refuse);
        assert_eq!(read.expect("a configuration"), fields.0);
    }

    #[test]
    fn addresses_of_ports_follow_the_address_that_is_bound() {
        let ports = |set: &[(&str, &str)]| {
            let mut fields = from_flags(&FlagSet::of("kube-proxy", &[]).expect("flags"));
            set.iter().for_each(|(path, value)| fields.set(path, (*value).into()));
            let settings = parse(fields, &FeatureGates::default(), String::new(), "n").expect("valid");
            [settings.healthz, settings.metrics].map(|address| address.map_or("none".to_owned(), |at| at.to_string()))
        };
        assert_eq!(ports(&[]), ["0.0.0.0:10256", "127.0.0.1:10249"]);
        assert_eq!(ports(&[("bindAddress", "::"), ("healthzBindAddress", ":1")]), ["[::]:1", "[::1]:10249"]);
        assert_eq!(ports(&[("metricsBindAddress", ""), ("healthzBindAddress", "::")]), ["[::]:10256", "none"]);
        assert_eq!(ports(&[("metricsBindAddress", "192.0.2.1")]), ["0.0.0.0:10256", "192.0.2.1:10249"]);
    }
}
