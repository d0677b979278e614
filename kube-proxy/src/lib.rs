//! kube-proxy: Services as kernel rules, on every node.
//!
//! `changes` names the services that events are about, `plan` decides what traffic for them should go where, `iptables` and
//! `nftables` bring the kernel there, `proxier` runs them in turn, `component` is the process around it.

mod addresses;
pub mod backend;
mod changes;
mod component;
pub mod conntrack;
pub mod detect;
mod health;
mod http;
pub mod iptables;
mod kernel;
mod metrics;
mod netlink;
pub mod nftables;
pub mod plan;
mod proxier;
pub mod settings;

pub use component::run;
