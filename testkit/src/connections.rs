//! Table of connections, with upstream's answer to each.

/// Origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod of the node.
    Pod,
    /// Pod `a`, which is an endpoint itself.
    Endpoint,
    /// The node.
    Node,
    /// A machine on the LAN.
    Outside,
    /// Another node.
    Remote,
}
use self::Client::{Endpoint, Node, Outside, Pod, Remote};

/// Destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Cluster IP of this number and a port.
    Cluster(u16, u16),
    /// External or load-balancer address of this number and a port.
    External(u16, u16),
    /// The load balancer that has its address for itself.
    Balancer,
    /// A port of the node's address on the LAN.
    NodePort(u16),
    /// A port of the node's loopback address.
    Loopback(u16),
}
use self::To::{Balancer, Cluster, External, Loopback, NodePort};

/// Expected outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Each of these servers answers now and then, and sees the client's own address.
    Kept(&'static str),
    /// Like [`Self::Kept`], but an address of the node is seen.
    Masqueraded(&'static str),
    /// Each of these servers answers now and then, whatever they see.
    Some(&'static str),
    /// One server out of these, always the same.
    Sticky(&'static str),
    /// Refused at once.
    Refused,
    /// No answer.
    Nothing,
    /// No answer, or refused.
    Away,
}
use self::Expect::{Away, Kept, Masqueraded, Nothing, Refused, Some, Sticky};

/// Modes that a case is for: a letter for each.
const ALL: &str = "tnvu";

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Tcp,
    Udp,
    /// Left out on a kernel without it.
    Sctp,
}

/// A case: who, where to, by which protocol, what is expected, in which modes (ip`t`ables, `n`ftables, ip`v`s, `u`serspace).
pub type Case = (Client, To, Via, Expect, &'static str);

const T: Via = Via::Tcp;
const U: Via = Via::Udp;
const S: Via = Via::Sctp;

/// The table, the same for both families but for loopback.
pub const CASES: &[Case] = &[
    // Cluster IPs.
    (Pod, Cluster(10, 80), T, Kept("a b c"), ALL),
    (Node, Cluster(10, 80), T, Some("a b c"), ALL),
    (Outside, Cluster(10, 80), T, Masqueraded("a b c"), ALL),
    (Remote, Cluster(10, 80), T, Some("a b c"), ALL),
    (Endpoint, Cluster(10, 80), T, Some("a b c"), ALL),
    (Pod, Cluster(10, 81), T, Refused, "nv"),
    (Pod, Cluster(10, 81), T, Away, "tu"),
    (Pod, Cluster(200, 80), T, Nothing, "n"),
    (Pod, Cluster(200, 80), T, Away, "tvu"),
    // Internal policy Local.
    (Pod, Cluster(11, 80), T, Kept("a"), ALL),
    (Node, Cluster(11, 80), T, Some("a"), ALL),
    (Outside, Cluster(11, 80), T, Masqueraded("a"), ALL),
    (Pod, Cluster(12, 80), T, Nothing, "tnu"),
    (Pod, Cluster(12, 80), T, Refused, "v"),
    (Node, Cluster(12, 80), T, Nothing, "tnu"),
    // No endpoints.
    (Pod, Cluster(13, 80), T, Refused, ALL),
    (Node, Cluster(13, 80), T, Refused, ALL),
    (Outside, Cluster(13, 80), T, Refused, ALL),
    (Outside, NodePort(30013), T, Refused, ALL),
    (Pod, NodePort(30013), T, Refused, ALL),
    (Outside, External(13, 80), T, Refused, ALL),
    (Outside, External(113, 80), T, Refused, ALL),
    // Upstream refuses what comes in and what is forwarded alone.
    (Node, External(13, 80), T, Refused, "nvu"),
    (Node, External(13, 80), T, Away, "t"),
    // Node ports.
    (Outside, NodePort(30014), T, Masqueraded("a c"), ALL),
    (Pod, NodePort(30014), T, Some("a c"), ALL),
    (Endpoint, NodePort(30014), T, Some("a c"), ALL),
    (Node, NodePort(30014), T, Some("a c"), ALL),
    (Remote, NodePort(30014), T, Some("a c"), ALL),
    (Node, Loopback(30014), T, Some("a c"), "tu"),
    (Node, Loopback(30014), T, Away, "nv"),
    // Node ports, external policy Local.
    (Outside, NodePort(30015), T, Kept("a"), ALL),
    (Remote, NodePort(30015), T, Some("a"), ALL),
    (Pod, NodePort(30015), T, Some("a c"), "tnu"),
    (Node, NodePort(30015), T, Some("a c"), "tnu"),
    (Node, NodePort(30015), T, Some("a"), "v"),
    (Pod, Cluster(15, 80), T, Kept("a c"), ALL),
    (Outside, NodePort(30016), T, Nothing, ALL),
    (Pod, NodePort(30016), T, Some("c"), "tnu"),
    (Node, NodePort(30016), T, Some("c"), ALL),
    (Outside, Cluster(16, 80), T, Masqueraded("c"), ALL),
    // External addresses.
    (Outside, External(17, 80), T, Masqueraded("a c"), ALL),
    (Pod, External(17, 80), T, Some("a c"), ALL),
    (Node, External(17, 80), T, Some("a c"), ALL),
    (Outside, External(17, 81), T, Masqueraded("a"), ALL),
    (Pod, Cluster(37, 81), T, Kept("a"), ALL),
    (Outside, External(18, 80), T, Kept("a"), ALL),
    (Pod, External(18, 80), T, Some("a c"), "tnu"),
    (Node, External(18, 80), T, Some("a c"), "tnu"),
    (Outside, NodePort(30018), T, Kept("a"), ALL),
    // Load balancers.
    (Outside, External(19, 80), T, Masqueraded("a c"), ALL),
    (Pod, External(19, 80), T, Some("a c"), ALL),
    (Node, External(19, 80), T, Some("a c"), ALL),
    (Outside, NodePort(30019), T, Masqueraded("a c"), ALL),
    (Outside, External(20, 80), T, Kept("a"), ALL),
    (Pod, External(20, 80), T, Some("a c"), "tnu"),
    (Node, External(20, 80), T, Some("a c"), "tnu"),
    (Outside, External(21, 80), T, Some("a"), ALL),
    (Remote, External(21, 80), T, Nothing, ALL),
    (Pod, External(21, 80), T, Nothing, ALL),
    (Outside, NodePort(30021), T, Masqueraded("a"), ALL),
    (Remote, NodePort(30021), T, Some("a"), ALL),
    (Outside, External(22, 80), T, Nothing, ALL),
    (Node, External(22, 80), T, Some("a"), "tnu"),
    (Pod, Balancer, T, Some("lb"), ALL),
    (Node, Balancer, T, Some("lb"), ALL),
    (Outside, NodePort(30023), T, Masqueraded("a"), ALL),
    // Affinity.
    (Pod, Cluster(24, 80), T, Sticky("a b c"), ALL),
    (Outside, NodePort(30024), T, Sticky("a b c"), ALL),
    (Node, Cluster(24, 80), T, Sticky("a b c"), ALL),
    (Pod, Cluster(38, 80), U, Sticky("a b"), ALL),
    // Terminating endpoints, and those that are not ready.
    (Pod, Cluster(25, 80), T, Kept("a"), ALL),
    (Pod, Cluster(26, 80), T, Kept("b"), ALL),
    (Outside, NodePort(30027), T, Kept("a"), ALL),
    (Pod, Cluster(27, 80), T, Kept("c"), ALL),
    (Pod, Cluster(28, 80), T, Refused, ALL),
    (Outside, NodePort(30028), T, Refused, ALL),
    (Outside, NodePort(30039), T, Masqueraded("c"), ALL),
    (Pod, Cluster(39, 80), T, Kept("c"), ALL),
    // Topology.
    (Pod, Cluster(29, 80), T, Kept("a"), ALL),
    (Pod, Cluster(30, 80), T, Kept("a c"), ALL),
    (Pod, Cluster(31, 80), T, Kept("a"), ALL),
    (Pod, Cluster(32, 80), T, Kept("a c"), ALL),
    // An endpoint in the node's network.
    (Pod, Cluster(33, 80), T, Kept("host"), ALL),
    (Node, Cluster(33, 80), T, Some("host"), ALL),
    (Outside, Cluster(33, 80), T, Some("host"), ALL),
    (Outside, NodePort(30033), T, Some("host"), ALL),
    // UDP.
    (Pod, Cluster(34, 80), U, Kept("a c"), ALL),
    (Node, Cluster(34, 80), U, Some("a c"), ALL),
    (Outside, NodePort(30034), U, Masqueraded("a c"), ALL),
    (Endpoint, Cluster(34, 80), U, Some("a c"), ALL),
    (Pod, Cluster(35, 80), U, Refused, ALL),
    (Outside, NodePort(30035), U, Refused, ALL),
    (Outside, NodePort(30036), U, Kept("a"), ALL),
    (Outside, External(43, 80), U, Masqueraded("a"), ALL),
    // SCTP, which is not carried in userspace.
    (Pod, Cluster(44, 80), S, Kept("a c"), "tnv"),
    (Node, Cluster(44, 80), S, Some("a c"), "tnv"),
    (Outside, NodePort(30044), S, Masqueraded("a c"), "tnv"),
    (Endpoint, Cluster(44, 80), S, Some("a c"), "tnv"),
    // A refusal is a hint alone for a client of SCTP.
    (Pod, Cluster(47, 80), S, Away, "tnv"),
    (Outside, NodePort(30045), S, Kept("a"), "tnv"),
    (Pod, Cluster(46, 80), S, Sticky("a b"), "tnv"),
    // Services that are not this proxy's.
    (Pod, Cluster(40, 80), T, Away, ALL),
    (Pod, Cluster(41, 80), T, Away, ALL),
    (Pod, Cluster(42, 80), T, Away, ALL),
];
