//! kube-proxy: makes services reachable on a node.

pub mod backend;
pub mod conntrack;
pub mod detect;
pub mod iptables;
pub mod nftables;
pub mod plan;
