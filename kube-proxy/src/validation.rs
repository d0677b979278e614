//! Refusals of a `KubeProxyConfiguration`: upstream's `pkg/proxy/apis/config/validation`, with its paths and texts.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;
use shared::config::Settings as Fields;
use shared::flags::{FeatureGates, parse_duration};
use shared::status::go_quote;

use crate::mode::{self, MODES};

const ROOT: &str = "KubeProxyConfiguration";
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";
const NETWORK: &str = "must be a valid CIDR";
const NETWORK_BLOCK: &str = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
const TWO_NETWORKS: &str =
    "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";

/// Collects what is wrong.
struct Checker<'a> {
    fields: &'a Fields,
    errors: Vec<String>,
}

/// The errors of a configuration whose defaults are filled in.
#[must_use]
pub(crate) fn errors(fields: &Fields) -> Vec<String> {
    let mut checker = Checker { fields, errors: Vec::new() };
    checker.gates();
    checker.bit("KubeProxyIPTablesConfiguration", "iptables.masqueradeBit");
    let mode = fields.string("mode");
    match mode.as_str() {
        "ipvs" => checker.ipvs("KubeProxyIPVSConfiguration"),
        "nftables" => checker.bit("KubeProxyNFTablesConfiguration", "nftables.masqueradeBit"),
        _ => {}
    }
    checker.linux("KubeProxyLinuxConfiguration");
    checker.mode(&mode);
    if fields.integer("clientConnection.burst") < 0 {
        checker.number("ClientConnection.Burst", "clientConnection.burst", NOT_NEGATIVE);
    }
    checker.time("ConfigSyncPeriod", "configSyncPeriod", |time| time > 0, POSITIVE);
    checker.periods(mode::named(&mode).unwrap_or(MODES[0]).periods);
    checker.addresses();
    checker.node_port_addresses();
    checker.local_mode();
    checker.errors
}

impl Checker<'_> {
    fn invalid(&mut self, path: &str, value: impl std::fmt::Display, why: &str) {
        self.errors.push(format!("{ROOT}.{path}: Invalid value: {value}: {why}"));
    }

    fn text(&mut self, path: &str, value: &str, why: &str) {
        self.invalid(path, go_quote(value), why);
    }

    fn number(&mut self, path: &str, field: &str, why: &str) {
        self.invalid(path, self.fields.integer(field), why);
    }

    /// Checks a time, in nanoseconds.
    fn time(&mut self, path: &str, field: &str, is_valid: fn(i128) -> bool, why: &str) -> i128 {
        let text = self.fields.string(field);
        let time = nanoseconds(&text);
        if !is_valid(time) {
            self.invalid(path, if text.is_empty() { "0s" } else { &text }, why);
        }
        time
    }

    fn gates(&mut self) {
        if let Err(error) = self.fields.feature_gates(&FeatureGates::default()) {
            let set = self.fields.get("featureGates").and_then(Value::as_object).into_iter().flatten();
            let set: Vec<String> = set.map(|(gate, on)| format!("{}:{on}", go_quote(gate))).collect();
            self.invalid("featureGates", format!("map[string]bool{{{}}}", set.join(", ")), &error.to_string());
        }
    }

    fn bit(&mut self, section: &str, field: &str) {
        if !(0..=31).contains(&self.fields.integer(field)) {
            self.number(&format!("{section}.MasqueradeBit"), field, "must be within the range [0, 31]");
        }
    }

    fn ipvs(&mut self, section: &str) {
        for (name, field) in
            [("TCPTimeout", "tcpTimeout"), ("TCPFinTimeout", "tcpFinTimeout"), ("UDPTimeout", "udpTimeout")]
        {
            self.time(&format!("{section}.{name}"), &format!("ipvs.{field}"), |time| time >= 0, NOT_NEGATIVE);
        }
        for (at, network) in self.fields.list("ipvs.excludeCIDRs").iter().enumerate() {
            if shared::address::network(network).is_none() {
                self.text(&format!("{section}.ExcludeCidrs[{at}]"), network, NETWORK);
            }
        }
    }

    fn linux(&mut self, section: &str) {
        let conntrack = format!("{section}.KubeProxyConntrackConfiguration");
        for (name, field) in [("MaxPerCore", "conntrack.maxPerCore"), ("Min", "conntrack.min")] {
            if self.fields.integer(field) < 0 {
                self.number(&format!("{conntrack}.{name}"), field, NOT_NEGATIVE);
            }
        }
        let times = [
            ("TCPEstablishedTimeout", "tcpEstablishedTimeout"),
            ("TCPCloseWaitTimeout", "tcpCloseWaitTimeout"),
            ("UDPTimeout", "udpTimeout"),
            ("UDPStreamTimeout", "udpStreamTimeout"),
        ];
        for (name, field) in times {
            let path = format!("{conntrack}.{name}");
            self.time(&path, &format!("conntrack.{field}"), |time| time >= 0, NOT_NEGATIVE);
        }
        if !(-1000..=1000).contains(&self.fields.integer("oomScoreAdj")) {
            self.number(&format!("{section}.OOMScoreAdj"), "oomScoreAdj", "must be within the range [-1000, 1000]");
        }
    }

    fn mode(&mut self, name: &str) {
        if mode::named(name).is_some() {
            return;
        }
        let mut names: Vec<_> = MODES.iter().filter(|mode| !mode.is_historic).map(|mode| mode.name).collect();
        names.sort_unstable();
        let why = format!(
            "must be {} or blank (blank means the best-available proxy [currently {}])",
            names.join(", "),
            MODES[0].name
        );
        self.text("Mode.ProxyMode", name, &why);
    }

    fn periods(&mut self, section: &str) {
        let period = self.time("SyncPeriod", &format!("{section}.syncPeriod"), |time| time > 0, POSITIVE);
        let least = format!("{section}.minSyncPeriod");
        let min = self.time("MinSyncPeriod", &least, |time| time >= 0, NOT_NEGATIVE);
        if min > period {
            let why = format!("must be greater than or equal to {ROOT}.MinSyncPeriod");
            self.invalid("SyncPeriod", self.fields.string(&least), &why);
        }
    }

    fn addresses(&mut self) {
        let bind = self.fields.string("bindAddress");
        if shared::address::ip(&bind).is_none() {
            self.text("BindAddress", &bind, "not a valid textual representation of an IP address");
        }
        for (name, field) in
            [("HealthzBindAddress", "healthzBindAddress"), ("MetricsBindAddress", "metricsBindAddress")]
        {
            let text = self.fields.string(field);
            if !text.is_empty() {
                self.host_port(name, &text);
            }
        }
    }

    /// A bare address stands for itself and the default port.
    fn host_port(&mut self, name: &str, text: &str) {
        if shared::address::ip(text.trim_start_matches('[').trim_end_matches(']')).is_some() {
            return;
        }
        let Some((host, port)) = split_host_port(text) else {
            return self.text(name, text, "must be IP:port");
        };
        // A port alone is on all addresses.
        if !host.is_empty() && shared::address::ip(host).is_none() {
            self.text(name, host, "must be a valid IP");
        }
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            self.text(name, port, "must be a valid port");
        }
    }

    fn node_port_addresses(&mut self) {
        let all = self.fields.list("nodePortAddresses");
        for (at, text) in all.iter().enumerate() {
            let path = format!("NodePortAddresses[{at}]");
            if text == "primary" {
                if all.len() != 1 {
                    self.text(&path, text, "can't use both 'primary' and CIDRs");
                }
                return;
            }
            if shared::address::network(text).is_none() {
                self.text(&path, text, NETWORK);
            }
        }
    }

    fn local_mode(&mut self) {
        const MODES: [&str; 5] = ["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""];
        let mode = self.fields.string("detectLocalMode");
        let section = "DetectLocalConfiguration";
        match mode.as_str() {
            "ClusterCIDR" | "" => self.cluster_networks(&format!("{section}.ClusterCIDRs")),
            "BridgeInterface" => self.interface(&format!("{section}.InterfaceName"), "detectLocal.bridgeInterface"),
            "InterfaceNamePrefix" => {
                self.interface(&format!("{section}.InterfacePrefix"), "detectLocal.interfaceNamePrefix");
            }
            "NodeCIDR" => {}
            unknown => {
                let known = MODES.map(go_quote).join(", ");
                self.errors.push(format!(
                    "{ROOT}.DetectLocalMode: Unsupported value: {}: supported values: {known}",
                    go_quote(unknown)
                ));
            }
        }
    }

    fn interface(&mut self, path: &str, field: &str) {
        if self.fields.string(field).is_empty() {
            self.text(path, "", "must not be empty");
        }
    }

    fn cluster_networks(&mut self, path: &str) {
        let text = self.fields.string("clusterCIDR");
        let all: Vec<&str> = text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
        let listed = || format!("[]string{{{}}}", all.iter().map(|text| go_quote(text)).collect::<Vec<_>>().join(", "));
        if all.len() > 2 {
            return self.invalid(path, listed(), TWO_NETWORKS);
        }
        let networks: Vec<_> = all.iter().map(|text| shared::address::network(text)).collect();
        for (at, _) in networks.iter().enumerate().filter(|(_, network)| network.is_none()) {
            self.text(&format!("{path}[{at}]"), all[at], NETWORK_BLOCK);
        }
        if let [Some(one), Some(other)] = networks.as_slice()
            && one.addr().is_ipv4() == other.addr().is_ipv4()
        {
            self.invalid(path, listed(), TWO_NETWORKS);
        }
    }
}

/// A time in nanoseconds, with its sign; zero for none.
fn nanoseconds(text: &str) -> i128 {
    let (sign, size) = text.strip_prefix('-').map_or((1, text), |size| (-1, size));
    sign * parse_duration(size).unwrap_or(Duration::ZERO).as_nanos().cast_signed()
}

/// Host and port, as Go's `net.SplitHostPort` has them.
fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    match host.strip_prefix('[') {
        Some(host) => Some((host.strip_suffix(']')?, port)),
        None => (!host.contains(':')).then_some((host, port)),
    }
}

/// An address with port out of a text that was checked. A bare port is on all addresses of `family`'s kind, a bare address
/// on the default port.
#[must_use]
pub(crate) fn socket(text: &str, all: IpAddr, default_port: u16) -> Option<std::net::SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Some(address) = shared::address::ip(bare) {
        return Some((address, default_port).into());
    }
    let (host, port) = split_host_port(text)?;
    let address = if host.is_empty() { all } else { shared::address::ip(host)? };
    Some((address, port.parse().ok()?).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(path: &str, value: Value) -> Vec<String> {
        let mut fields = Fields(shared::config::defaults("kubeproxy.config.k8s.io/v1alpha1", ROOT));
        fields.set(path, value);
        errors(&fields)
    }

    #[test]
    fn refusals_are_upstreams() {
        let mode =
            "must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently iptables])";
        let table: &[(&str, Value, &[&str])] = &[
            ("mode", json!("iptables"), &[]),
            ("mode", json!("magic"), &[&format!("Mode.ProxyMode: Invalid value: \"magic\": {mode}")]),
            (
                "bindAddress",
                json!("here"),
                &["BindAddress: Invalid value: \"here\": not a valid textual representation of an IP address"],
            ),
            ("healthzBindAddress", json!("10256"), &["HealthzBindAddress: Invalid value: \"10256\": must be IP:port"]),
            (
                "healthzBindAddress",
                json!("a:0"),
                &[
                    "HealthzBindAddress: Invalid value: \"a\": must be a valid IP",
                    "HealthzBindAddress: Invalid value: \"0\": must be a valid port",
                ],
            ),
            ("healthzBindAddress", json!("[::]:10256"), &[]),
            ("metricsBindAddress", json!("0.0.0.0"), &[]),
            ("metricsBindAddress", json!(""), &[]),
            (
                "iptables.masqueradeBit",
                json!(32),
                &["KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]"],
            ),
            (
                "iptables.masqueradeBit",
                json!(-1),
                &["KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: -1: must be within the range [0, 31]"],
            ),
            (
                "iptables.syncPeriod",
                json!("0s"),
                &[
                    "SyncPeriod: Invalid value: 0s: must be greater than 0",
                    "SyncPeriod: Invalid value: 1s: must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
                ],
            ),
            (
                "iptables.minSyncPeriod",
                json!("-1s"),
                &["MinSyncPeriod: Invalid value: -1s: must be greater than or equal to 0"],
            ),
            (
                "iptables.minSyncPeriod",
                json!("31s"),
                &[
                    "SyncPeriod: Invalid value: 31s: must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
                ],
            ),
            ("configSyncPeriod", json!("0s"), &["ConfigSyncPeriod: Invalid value: 0s: must be greater than 0"]),
            (
                "clientConnection.burst",
                json!(-5),
                &["ClientConnection.Burst: Invalid value: -5: must be greater than or equal to 0"],
            ),
            (
                "conntrack.maxPerCore",
                json!(-1),
                &[
                    "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.MaxPerCore: Invalid value: -1: must be greater than or equal to 0",
                ],
            ),
            (
                "conntrack.udpTimeout",
                json!("-2m0s"),
                &[
                    "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPTimeout: Invalid value: -2m0s: must be greater than or equal to 0",
                ],
            ),
            (
                "oomScoreAdj",
                json!(-1001),
                &[
                    "KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: -1001: must be within the range [-1000, 1000]",
                ],
            ),
            (
                "nodePortAddresses",
                json!(["10.0.0.1"]),
                &["NodePortAddresses[0]: Invalid value: \"10.0.0.1\": must be a valid CIDR"],
            ),
            (
                "nodePortAddresses",
                json!(["10.0.0.0/8", "primary"]),
                &["NodePortAddresses[1]: Invalid value: \"primary\": can't use both 'primary' and CIDRs"],
            ),
            ("nodePortAddresses", json!(["primary"]), &[]),
            (
                "clusterCIDR",
                json!("10.0.0.0"),
                &[&format!("DetectLocalConfiguration.ClusterCIDRs[0]: Invalid value: \"10.0.0.0\": {NETWORK_BLOCK}")],
            ),
            ("clusterCIDR", json!("10.0.0.0/8,fd00::/48"), &[]),
            (
                "clusterCIDR",
                json!("10.0.0.0/8,11.0.0.0/8"),
                &[&format!(
                    "DetectLocalConfiguration.ClusterCIDRs: Invalid value: []string{{\"10.0.0.0/8\", \"11.0.0.0/8\"}}: {TWO_NETWORKS}"
                )],
            ),
            (
                "detectLocalMode",
                json!("Guess"),
                &[
                    "DetectLocalMode: Unsupported value: \"Guess\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
                ],
            ),
            (
                "detectLocalMode",
                json!("BridgeInterface"),
                &["DetectLocalConfiguration.InterfaceName: Invalid value: \"\": must not be empty"],
            ),
            (
                "detectLocalMode",
                json!("InterfaceNamePrefix"),
                &["DetectLocalConfiguration.InterfacePrefix: Invalid value: \"\": must not be empty"],
            ),
            (
                "featureGates",
                json!({"Foo": true}),
                &["featureGates: Invalid value: map[string]bool{\"Foo\":true}: unrecognized feature gate: Foo"],
            ),
        ];
        for (path, value, expected) in table {
            let expected: Vec<String> = expected.iter().map(|error| format!("{ROOT}.{error}")).collect();
            assert_eq!(with(path, value.clone()), expected, "{path} {value}");
        }
    }
}
