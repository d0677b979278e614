//! What a `KubeProxyConfiguration` means: parsed once, checked, and never looked at again as text.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use shared::flags::{FlagSet, format_duration, parse_duration};

/// How rules get into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `iptables`, the default.
    Iptables,
    /// `nftables`.
    Nftables,
}

impl Mode {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Iptables, Self::Nftables];
}

/// How traffic of local pods is recognised; resolved to a [`crate::detect::LocalDetector`] once the node is known.
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

/// Which of the node's addresses answer on node ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All of them.
    #[default]
    All,
    /// Those that the Node object names (`primary`).
    Primary,
    /// Those in these networks.
    Networks(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Reports whether 127.0.0.0/8 may be among them: `ContainsIPv4Loopback` in upstream.
    fn contains_loopback(&self) -> bool {
        match self {
            Self::All => true,
            Self::Primary => false,
            Self::Networks(networks) => networks.iter().any(|network| match network {
                IpNet::V4(network) => network.network().is_loopback() || network.prefix_len() == 0,
                IpNet::V6(_) => false,
            }),
        }
    }
}

/// Kernel settings for connection tracking; `None` leaves the kernel's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries for each CPU.
    pub max_per_core: u64,
    /// Entries at least.
    pub min: u64,
    /// Life of an idle established TCP connection.
    pub tcp_established: Option<Duration>,
    /// Life of a half-closed TCP connection.
    pub tcp_close_wait: Option<Duration>,
    /// Accept out-of-window packets.
    pub tcp_be_liberal: bool,
    /// Life of a UDP flow without an answer.
    pub udp: Option<Duration>,
    /// Life of a UDP flow with answers.
    pub udp_stream: Option<Duration>,
}

/// Everything the proxy was told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Proxy mode.
    pub mode: Mode,
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
    /// Where `/healthz` and `/livez` are served; nowhere when absent.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` is served; nowhere when absent.
    pub metrics: Option<SocketAddr>,
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
    /// The configuration as given, for `/configz`.
    pub configuration: Value,
}

/// Why a configuration is unusable: field and message in upstream's form.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("KubeProxyConfiguration.{field}: Invalid value: {value}: {reason}")]
pub struct Invalid {
    field: String,
    value: String,
    reason: String,
}

fn invalid(field: &str, value: &Value, reason: impl Into<String>) -> Invalid {
    Invalid { field: field.to_owned(), value: value.to_string(), reason: reason.into() }
}

/// The configuration object that the command line describes, used when there is no `--config`.
#[must_use]
pub fn from_flags(flags: &FlagSet) -> Value {
    let time = |name| format_duration(flags.duration(name));
    let optional_port = |name| {
        let text = flags.string(name);
        if text == "0" { String::new() } else { text }
    };
    json!({
        "bindAddress": flags.string("bind-address"),
        "bindAddressHardFail": flags.boolean("bind-address-hard-fail"),
        "clientConnection": {
            "kubeconfig": flags.string("kubeconfig"),
            "qps": flags.float("kube-api-qps"),
            "burst": flags.integer("kube-api-burst"),
            "contentType": flags.string("kube-api-content-type"),
        },
        "clusterCIDR": flags.string("cluster-cidr"),
        "conntrack": {
            "maxPerCore": flags.integer("conntrack-max-per-core"),
            "min": flags.integer("conntrack-min"),
            "tcpBeLiberal": flags.boolean("conntrack-tcp-be-liberal"),
            "tcpCloseWaitTimeout": time("conntrack-tcp-timeout-close-wait"),
            "tcpEstablishedTimeout": time("conntrack-tcp-timeout-established"),
            "udpTimeout": time("conntrack-udp-timeout"),
            "udpStreamTimeout": time("conntrack-udp-timeout-stream"),
        },
        "detectLocal": {
            "bridgeInterface": flags.string("pod-bridge-interface"),
            "interfaceNamePrefix": flags.string("pod-interface-name-prefix"),
        },
        "detectLocalMode": flags.string("detect-local-mode"),
        "healthzBindAddress": optional_port("healthz-bind-address"),
        "hostnameOverride": flags.string("hostname-override"),
        "iptables": {
            "localhostNodePorts": flags.boolean("iptables-localhost-nodeports"),
            "masqueradeAll": flags.boolean("masquerade-all"),
            "masqueradeBit": flags.integer("iptables-masquerade-bit"),
            "minSyncPeriod": time("iptables-min-sync-period"),
            "syncPeriod": time("iptables-sync-period"),
        },
        "nftables": {
            "masqueradeAll": flags.boolean("masquerade-all"),
            "masqueradeBit": flags.integer("iptables-masquerade-bit"),
            "minSyncPeriod": time("iptables-min-sync-period"),
            "syncPeriod": time("iptables-sync-period"),
        },
        "metricsBindAddress": optional_port("metrics-bind-address"),
        "mode": flags.string("proxy-mode"),
        "nodePortAddresses": flags.list("nodeport-addresses"),
        "oomScoreAdj": flags.integer("oom-score-adj"),
    })
}

/// A configuration object, by paths.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn at(&self, path: &str) -> Value {
        self.0.pointer(path).cloned().unwrap_or(Value::Null)
    }

    fn text(&self, path: &str) -> String {
        self.at(path).as_str().unwrap_or_default().to_owned()
    }

    fn flag(&self, path: &str, default: bool) -> bool {
        self.at(path).as_bool().unwrap_or(default)
    }

    fn number(&self, path: &str, default: u64) -> u64 {
        self.at(path).as_u64().unwrap_or(default)
    }

    fn time(&self, path: &str) -> Result<Duration, Invalid> {
        let value = self.at(path);
        let Some(text) = value.as_str().filter(|text| !text.is_empty()) else { return Ok(Duration::ZERO) };
        parse_duration(text).map_err(|error| invalid(path.trim_start_matches('/'), &value, error.to_string()))
    }

    /// A time that is left to the kernel where it is zero.
    fn optional_time(&self, path: &str) -> Result<Option<Duration>, Invalid> {
        self.time(path).map(|time| Some(time).filter(|time| !time.is_zero()))
    }

    fn mode(&self) -> Result<Mode, Invalid> {
        match self.text("/mode").as_str() {
            "" | "iptables" => Ok(Mode::Iptables),
            "nftables" => Ok(Mode::Nftables),
            _ => Err(invalid(
                "Mode",
                &self.at("/mode"),
                "must be iptables,nftables or blank (blank means the best-available proxy [currently iptables])",
            )),
        }
    }

    fn masquerade_mark(&self, backend: &str) -> Result<u32, Invalid> {
        let path = format!("{backend}/masqueradeBit");
        match self.number(&path, 14) {
            bit @ 0..=31 => Ok(1 << bit),
            _ => Err(invalid("MasqueradeBit", &self.at(&path), "must be within the range [0, 31]")),
        }
    }

    fn conntrack(&self) -> Result<Conntrack, Invalid> {
        Ok(Conntrack {
            max_per_core: self.number("/conntrack/maxPerCore", 0),
            min: self.number("/conntrack/min", 0),
            tcp_established: self.optional_time("/conntrack/tcpEstablishedTimeout")?,
            tcp_close_wait: self.optional_time("/conntrack/tcpCloseWaitTimeout")?,
            tcp_be_liberal: self.flag("/conntrack/tcpBeLiberal", false),
            udp: self.optional_time("/conntrack/udpTimeout")?,
            udp_stream: self.optional_time("/conntrack/udpStreamTimeout")?,
        })
    }
}

/// Reads a configuration object whose defaults are filled in.
///
/// # Errors
/// The first field that makes no sense.
pub fn parse(configuration: Value, master: String, host: &str) -> Result<Settings, Invalid> {
    let fields = Fields(&configuration);
    let mode = fields.mode()?;
    let backend = if mode == Mode::Iptables { "/iptables" } else { "/nftables" };
    let masquerade_mark = fields.masquerade_mark(backend)?;
    let override_name = fields.text("/hostnameOverride");
    let node_name = if override_name.is_empty() { host } else { &override_name };
    #[allow(clippy::cast_possible_truncation)] // a rate limit needs no more precision than the flag's float32
    let qps = fields.at("/clientConnection/qps").as_f64().unwrap_or(5.0) as f32;
    let node_ports = node_port_addresses(&fields.at("/nodePortAddresses"), mode)?;
    Ok(Settings {
        mode,
        kubeconfig: fields.text("/clientConnection/kubeconfig"),
        master,
        qps,
        burst: u32::try_from(fields.number("/clientConnection/burst", 10)).unwrap_or(u32::MAX),
        node_name: node_name.trim().to_lowercase(),
        bind_address: fields.text("/bindAddress").parse().map_err(|_| {
            invalid("BindAddress", &fields.at("/bindAddress"), "not a valid textual representation of an IP address")
        })?,
        healthz: socket("HealthzBindAddress", &fields.at("/healthzBindAddress"), 10256)?,
        metrics: socket("MetricsBindAddress", &fields.at("/metricsBindAddress"), 10249)?,
        bind_hard_fail: fields.flag("/bindAddressHardFail", false),
        masquerade_all: fields.flag(&format!("{backend}/masqueradeAll"), false),
        masquerade_mark,
        localhost_node_ports: mode == Mode::Iptables
            && fields.flag("/iptables/localhostNodePorts", true)
            && node_ports.contains_loopback(),
        node_port_addresses: node_ports,
        sync_period: fields.time(&format!("{backend}/syncPeriod"))?.max(Duration::from_secs(1)),
        min_sync_period: fields.time(&format!("{backend}/minSyncPeriod"))?,
        local: local_mode(&configuration)?,
        conntrack: fields.conntrack()?,
        oom_score_adj: fields.at("/oomScoreAdj").as_i64(),
        configuration,
    })
}

/// An address with port; empty means none. A bare port listens on all addresses, a bare address on the default port.
fn socket(field: &str, value: &Value, port: u16) -> Result<Option<SocketAddr>, Invalid> {
    let text = value.as_str().unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(Some(SocketAddr::new(address, port)));
    }
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse().map(Some).map_err(|_| invalid(field, value, "must be IP:port"))
}

fn networks(field: &str, list: &[&str]) -> Result<Vec<IpNet>, Invalid> {
    list.iter()
        .map(|text| {
            text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| {
                invalid(field, &json!(text), "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)")
            })
        })
        .collect()
}

fn node_port_addresses(value: &Value, mode: Mode) -> Result<NodePortAddresses, Invalid> {
    let list: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match list.as_slice() {
        [] if mode == Mode::Nftables => Ok(NodePortAddresses::Primary),
        [] => Ok(NodePortAddresses::All),
        ["primary"] => Ok(NodePortAddresses::Primary),
        list => networks("NodePortAddresses", list).map(NodePortAddresses::Networks),
    }
}

fn local_mode(configuration: &Value) -> Result<LocalMode, Invalid> {
    let text = |path: &str| configuration.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let mode = text("/detectLocalMode");
    match mode {
        "" | "ClusterCIDR" => {
            let list: Vec<&str> = text("/clusterCIDR").split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
            networks("ClusterCIDR", &list).map(LocalMode::ClusterCidr)
        }
        "NodeCIDR" => Ok(LocalMode::NodeCidr),
        "BridgeInterface" => Ok(LocalMode::Bridge(text("/detectLocal/bridgeInterface").to_owned())),
        "InterfaceNamePrefix" => Ok(LocalMode::Prefix(text("/detectLocal/interfaceNamePrefix").to_owned())),
        _ => Err(invalid(
            "DetectLocalMode",
            &json!(mode),
            "must be ClusterCIDR,NodeCIDR,BridgeInterface,InterfaceNamePrefix or blank (blank means the best-available mode [currently ClusterCIDR])",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Value {
        let flags = FlagSet::of("kube-proxy", &["--cluster-cidr=10.244.0.0/16,fd00::/48"]);
        from_flags(&flags.expect("valid flags"))
    }

    #[test]
    fn the_flags_defaults_are_upstreams() {
        let settings = parse(base(), String::new(), "Node-1 ").expect("defaults are valid");
        assert_eq!(settings.mode, Mode::Iptables);
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
    fn nonsense_is_named() {
        let table = [
            ("/mode", json!("magic"), "Mode"),
            ("/bindAddress", json!("here"), "BindAddress"),
            ("/clusterCIDR", json!("10.0.0.0"), "ClusterCIDR"),
            ("/iptables/masqueradeBit", json!(32), "MasqueradeBit"),
            ("/nodePortAddresses", json!(["10.0.0.1"]), "NodePortAddresses"),
            ("/detectLocalMode", json!("Guess"), "DetectLocalMode"),
            ("/healthzBindAddress", json!("10256"), "HealthzBindAddress"),
            ("/iptables/syncPeriod", json!("soon"), "syncPeriod"),
        ];
        for (path, value, field) in table {
            let mut configuration = base();
            *configuration.pointer_mut(path).expect("a known field") = value;
            let error = parse(configuration, String::new(), "node").expect_err(path);
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
