//! The kernel's table over `NETLINK_NETFILTER`: one dump, and a delete for each entry by its whole original tuple, so
//! that nothing but that entry goes.

use std::io;
use std::net::SocketAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Nla};
use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol, Tuple};

use crate::netlink::Netfilter;
use crate::plan::Family;

/// Attributes beside the tuple that name an entry: the zone (`CTA_ZONE`) and its id (`CTA_ID`).
const NAMING: [u16; 2] = [18, 12];

/// Ends of a UDP flow that rules decide about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Destination that the client chose.
    pub destination: SocketAddr,
    /// Source of the answers: the endpoint, or the destination itself if nothing was translated.
    pub answers: SocketAddr,
}

/// Outcome of one pass over the table of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// Stale entries that were found, as many as the limit where there may be more.
    pub found: usize,
    /// Entries of these that were deleted; others had ended by themselves meanwhile.
    pub deleted: usize,
}

/// Deletes up to `limit` entries of UDP flows for which `stale` says so.
///
/// # Errors
/// The kernel has no connection tracking, or refuses.
pub(super) fn delete(family: Family, stale: impl Fn(&Flow) -> bool, limit: usize) -> io::Result<Pass> {
    let kernel = Netfilter::open(family)?;
    let mut found = Vec::new();
    dump(&kernel, |attributes| {
        if found.len() < limit && flow(&attributes).is_some_and(|flow| stale(&flow)) {
            found.push(naming(attributes));
        }
    })?;
    let mut pass = Pass { found: found.len(), deleted: 0 };
    for entry in found {
        kernel.send(NLM_F_REQUEST | NLM_F_ACK, ConntrackMessage::Delete(entry))?;
        pass.deleted += usize::from(kernel.acknowledged()?);
    }
    Ok(pass)
}

fn dump(kernel: &Netfilter, mut each: impl FnMut(Vec<ConntrackAttribute>)) -> io::Result<()> {
    kernel.send(NLM_F_REQUEST | NLM_F_DUMP, ConntrackMessage::Get(Vec::new()))?;
    kernel.receive_all(|message| {
        if let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message {
            each(attributes);
        }
    })
}

/// None for what is not UDP or lacks an end.
fn flow(attributes: &[ConntrackAttribute]) -> Option<Flow> {
    let original = attributes.iter().find_map(|attribute| match attribute {
        ConntrackAttribute::CtaTupleOrig(tuple) => Some(tuple),
        _ => None,
    })?;
    let reply = attributes.iter().find_map(|attribute| match attribute {
        ConntrackAttribute::CtaTupleReply(tuple) => Some(tuple),
        _ => None,
    })?;
    if !protocols(original).any(|part| matches!(part, ProtoTuple::Protocol(Protocol::Udp))) {
        return None;
    }
    let destination = SocketAddr::new(
        addresses(original).find_map(|part| match part {
            IPTuple::DestinationAddress(address) => Some(*address),
            _ => None,
        })?,
        protocols(original).find_map(|part| match part {
            ProtoTuple::DestinationPort(port) => Some(*port),
            _ => None,
        })?,
    );
    let answers = SocketAddr::new(
        addresses(reply).find_map(|part| match part {
            IPTuple::SourceAddress(address) => Some(*address),
            _ => None,
        })?,
        protocols(reply).find_map(|part| match part {
            ProtoTuple::SourcePort(port) => Some(*port),
            _ => None,
        })?,
    );
    Some(Flow { destination, answers })
}

fn addresses(tuple: &[Tuple]) -> impl Iterator<Item = &IPTuple> {
    tuple.iter().flat_map(|part| if let Tuple::Ip(parts) = part { parts.as_slice() } else { &[] })
}

fn protocols(tuple: &[Tuple]) -> impl Iterator<Item = &ProtoTuple> {
    tuple.iter().flat_map(|part| if let Tuple::Proto(parts) = part { parts.as_slice() } else { &[] })
}

/// The part of an entry that a delete needs. [`flow`] has seen the original tuple: a delete without one would empty the
/// whole table.
fn naming(attributes: Vec<ConntrackAttribute>) -> Vec<ConntrackAttribute> {
    let names = |attribute: &ConntrackAttribute| match attribute {
        ConntrackAttribute::CtaTupleOrig(_) => true,
        other => NAMING.contains(&other.kind()),
    };
    attributes.into_iter().filter(names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
    use netlink_packet_netfilter::conntrack::Status;
    use nix::sched::{CloneFlags, unshare};

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn tuple(source: SocketAddr, destination: SocketAddr, protocol: Protocol) -> Vec<Tuple> {
        vec![
            Tuple::Ip(vec![IPTuple::SourceAddress(source.ip()), IPTuple::DestinationAddress(destination.ip())]),
            Tuple::Proto(vec![
                ProtoTuple::Protocol(protocol),
                ProtoTuple::SourcePort(source.port()),
                ProtoTuple::DestinationPort(destination.port()),
            ]),
        ]
    }

    /// Puts a flow from `client` into the table of this network namespace.
    fn track(kernel: &Netfilter, client: &str, flow: (&str, &str), protocol: Protocol) {
        let (client, destination, answers) = (at(client), at(flow.0), at(flow.1));
        let entry = vec![
            ConntrackAttribute::CtaTupleOrig(tuple(client, destination, protocol)),
            ConntrackAttribute::CtaTupleReply(tuple(answers, client, protocol)),
            ConntrackAttribute::CtaTimeout(600),
            ConntrackAttribute::CtaStatus(Status::Confirmed),
        ];
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        kernel.send(flags, ConntrackMessage::New(entry)).expect("sent");
        assert!(kernel.acknowledged().expect("no refusal"), "{client} {destination}");
    }

    fn tracked(kernel: &Netfilter) -> Vec<Flow> {
        let mut flows = Vec::new();
        dump(kernel, |attributes| flows.extend(flow(&attributes))).expect("a dump");
        flows.sort_by_key(|flow| (flow.destination, flow.answers));
        flows
    }

    fn in_own_network(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                eprintln!("skipped: no network namespace of one's own: {error}");
                return;
            }
            test();
        });
        thread.join().expect("the test passes");
    }

    #[test]
    fn entries_are_deleted_one_by_one() {
        in_own_network(|| {
            for (family, service, kept, gone) in [
                (Family::V4, "10.0.0.10:53", "10.1.0.1:53", "10.1.0.9:53"),
                (Family::V6, "[fd00::10]:53", "[fd01::1]:53", "[fd01::9]:53"),
            ] {
                let kernel = Netfilter::open(family).expect("a socket");
                let client = |port: u16| match family {
                    Family::V4 => format!("10.2.0.1:{port}"),
                    Family::V6 => format!("[fd02::1]:{port}"),
                };
                track(&kernel, &client(1000), (service, kept), Protocol::Udp);
                track(&kernel, &client(1001), (service, gone), Protocol::Udp);
                track(&kernel, &client(1002), (service, gone), Protocol::Udp);
                let stale = |flow: &Flow| flow.answers == at(gone);
                let pass = |limit| delete(family, stale, limit).expect("deleted");
                assert_eq!(pass(1), Pass { found: 1, deleted: 1 }, "no more than the limit");
                assert_eq!(pass(10), Pass { found: 1, deleted: 1 });
                assert_eq!(pass(10), Pass::default());
                assert_eq!(tracked(&kernel), [Flow { destination: at(service), answers: at(kept) }]);
            }
        });
    }

    #[test]
    fn many_entries_are_read_and_deleted_in_one_pass() {
        in_own_network(|| {
            let kernel = Netfilter::open(Family::V4).expect("a socket");
            for port in 0..5_000 {
                track(&kernel, &format!("10.2.0.1:{}", 1000 + port), ("10.0.0.10:53", "10.1.0.9:53"), Protocol::Udp);
            }
            let pass = delete(Family::V4, |_| true, 100_000).expect("deleted");
            assert_eq!(pass, Pass { found: 5_000, deleted: 5_000 });
            assert_eq!(tracked(&kernel), []);
        });
    }
}
