//! The few kernel settings that a proxy needs, below `/proc`. A setting that cannot be written is reported and left:
//! in a network namespace without rights to it, the rules work all the same.

use std::fs;
use std::time::Duration;

use crate::plan::Family;

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

fn write(path: &str, value: &str) {
    if fs::read_to_string(path).is_ok_and(|current| current.trim() == value) {
        return;
    }
    match fs::write(path, value) {
        Ok(()) => tracing::info!(path, value, "Setting kernel parameter"),
        Err(error) => tracing::warn!(path, value, %error, "Failed to set kernel parameter"),
    }
}

/// Lets node ports answer on 127.0.0.1 (iptables mode, IPv4 only).
pub(crate) fn allow_localhost_node_ports() {
    write("/proc/sys/net/ipv4/conf/all/route_localnet", "1");
}

/// Applies the `conntrack` part of the configuration.
pub(crate) fn tune_conntrack(conntrack: &Conntrack) {
    let cpus = processors();
    let wanted =
        conntrack.max_per_core.saturating_mul(cpus).max(if conntrack.max_per_core == 0 { 0 } else { conntrack.min });
    if wanted > 0 {
        write("/proc/sys/net/netfilter/nf_conntrack_max", &wanted.to_string());
        let buckets = fs::read_to_string("/sys/module/nf_conntrack/parameters/hashsize").unwrap_or_default();
        if buckets.trim().parse().is_ok_and(|buckets: u64| buckets < wanted / 4) {
            write("/sys/module/nf_conntrack/parameters/hashsize", &(wanted / 4).to_string());
        }
    }
    if conntrack.tcp_be_liberal {
        write("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "1");
    }
    let times = [
        ("tcp_timeout_established", conntrack.tcp_established),
        ("tcp_timeout_close_wait", conntrack.tcp_close_wait),
        ("udp_timeout", conntrack.udp),
        ("udp_timeout_stream", conntrack.udp_stream),
    ];
    for (name, time) in times {
        if let Some(time) = time {
            set_seconds(name, time);
        }
    }
}

/// Sets the kernel up for the IPVS mode: replies through connection tracking, real servers that are gone forgotten by their
/// clients, and with `strict_arp` no answers for addresses of services on other devices.
pub(crate) fn tune_ipvs(strict_arp: bool) {
    let common = [
        ("net/ipv4/vs/conntrack", "1"),
        ("net/ipv4/vs/expire_nodest_conn", "1"),
        ("net/ipv4/vs/expire_quiescent_template", "1"),
        ("net/ipv4/ip_forward", "1"),
    ];
    let arp = [("net/ipv4/conf/all/arp_ignore", "1"), ("net/ipv4/conf/all/arp_announce", "2")];
    let arp = arp.into_iter().filter(|_| strict_arp);
    common.into_iter().chain(arp).for_each(|(name, value)| write(&format!("/proc/sys/{name}"), value));
}

fn set_seconds(name: &str, time: Duration) {
    write(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"), &time.as_secs().to_string());
}

/// Reports whether the kernel takes packets of TCP connections that it lost count of for valid ones.
#[must_use]
pub(crate) fn is_liberal() -> bool {
    fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal").is_ok_and(|set| set.trim() == "1")
}

/// Processors of the machine, whatever part of them this process may use.
fn processors() -> u64 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = |range: &str| -> Option<u64> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (last.parse::<u64>().ok()? + 1).checked_sub(first.parse().ok()?)
    };
    match online.trim().split(',').map(count).sum::<Option<u64>>() {
        Some(count) if count > 0 => count,
        _ => std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
    }
}

/// Makes the kernel's out-of-memory killer spare us, or not.
pub(crate) fn set_oom_score_adj(value: i64) {
    if let Err(error) = fs::write("/proc/self/oom_score_adj", value.to_string()) {
        tracing::debug!(value, %error, "Failed to apply OOMScore");
    }
}

/// Reports whether this kernel has the family at all.
#[must_use]
pub(crate) fn has_family(family: Family) -> bool {
    match family {
        Family::V4 => true,
        Family::V6 => fs::read_to_string("/proc/net/if_inet6").is_ok_and(|interfaces| !interfaces.trim().is_empty()),
    }
}
