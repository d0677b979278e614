//! Packet counters of the kernel (`nfacct`) that rules name, and the metrics that are read from them.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Metric, MetricFamily, MetricType};

use crate::netlink::{Kernel, RawMessage, Writer, find};

/// `NFNL_SUBSYS_ACCT`, and its messages.
const SUBSYSTEM: u16 = 7;
const NEW: u16 = 0;
const GET: u16 = 1;
/// `NFACCT_NAME` and `NFACCT_PKTS`.
const NAME: u16 = 1;
const PACKETS: u16 = 2;
/// Bytes of `struct nfgenmsg`, which attributes follow.
const HEADER: usize = 4;

/// A counter: its name in rules, the metric that tells it, and what that is.
struct Accounted {
    name: &'static str,
    metric: &'static str,
    help: &'static str,
}

/// Packets that were dropped since they belong to no connection.
pub(super) const INVALID: &str = "ct_state_invalid_dropped_pkts";
/// Packets for node ports on loopback.
pub(super) const LOCALHOST: &str = "localhost_nps_accepted_pkts";

const ALL: [Accounted; 2] = [
    Accounted {
        name: INVALID,
        metric: "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        help: "packets dropped by iptables to work around conntrack problems",
    },
    Accounted {
        name: LOCALHOST,
        metric: "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        help: "Number of packets accepted on nodeports of loopback interface",
    },
];

fn message(kind: u16, name: Option<&str>) -> RawMessage {
    let mut out = Writer::default();
    out.bytes(&[0; HEADER]);
    if let Some(name) = name {
        out.text(NAME, name);
    }
    RawMessage { kind: SUBSYSTEM << 8 | kind, bytes: out.into_bytes() }
}

/// Makes a counter, unless it is there. False where the kernel counts nothing.
pub(super) fn ensure(name: &str) -> bool {
    let made = || -> io::Result<bool> {
        let kernel = Kernel::open(NETLINK_NETFILTER)?;
        kernel.send(NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, message(NEW, Some(name)))?;
        kernel.acknowledged()
    };
    match made() {
        Ok(is_made) => is_made,
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => true,
        Err(error) => {
            tracing::warn!(name, %error, "Failed to create nfacct counter, packets are not counted");
            false
        }
    }
}

/// Packets that were counted, by the counter's name.
fn read() -> io::Result<Vec<(String, u64)>> {
    let kernel = Kernel::<RawMessage>::open(NETLINK_NETFILTER)?;
    kernel.send(NLM_F_REQUEST | NLM_F_DUMP, message(GET, None))?;
    let mut found = Vec::new();
    kernel.receive_all(|answer| {
        let attributes = answer.bytes.get(HEADER..).unwrap_or_default();
        let name = find(attributes, NAME).map(|name| String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned());
        let packets = find(attributes, PACKETS).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        found.extend(name.zip(packets));
    })?;
    Ok(found)
}

/// Tells the counters as metrics, as they are when they are asked for.
pub(super) struct Metrics(Vec<Desc>);

impl Metrics {
    pub(super) fn new() -> Self {
        let description = |counter: &Accounted| {
            Desc::new(counter.metric.to_owned(), counter.help.to_owned(), Vec::new(), Default::default()).ok()
        };
        Self(ALL.iter().filter_map(description).collect())
    }
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    fn collect(&self) -> Vec<MetricFamily> {
        let found = read().unwrap_or_default();
        let family = |counter: &Accounted| {
            let (_, packets) = found.iter().find(|(name, _)| name == counter.name)?;
            let mut value = Counter::default();
            value.set_value(*packets as f64);
            let mut metric = Metric::default();
            metric.set_counter(value);
            let mut family = MetricFamily::default();
            family.set_name(counter.metric.to_owned());
            family.set_help(counter.help.to_owned());
            family.set_field_type(MetricType::COUNTER);
            family.mut_metric().push(metric);
            Some(family)
        };
        ALL.iter().filter_map(family).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_name() {
        let counted = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            if !ensure(INVALID) {
                return None;
            }
            assert!(ensure(INVALID), "it is there already");
            let families = Metrics::new().collect();
            let names = families.iter().map(|family| family.name().to_owned()).collect::<Vec<_>>();
            Some((read().expect("an answer"), names))
        });
        match counted.join().expect("the thread ends") {
            Some((counters, metrics)) => {
                assert_eq!(counters, [(INVALID.to_owned(), 0)]);
                assert_eq!(metrics, ["kubeproxy_iptables_ct_state_invalid_dropped_packets_total"]);
            }
            None => eprintln!("skipped: no network namespace of one's own, or a kernel without nfacct"),
        }
    }
}
