//! kube-proxy: Services as kernel rules, on every node.
//!
//! `plan` decides what traffic should go where, `iptables` and `nftables` bring the kernel there, `proxier` runs the
//! two whenever something changed, `component` is the process around it.

pub mod backend;
mod component;
pub mod conntrack;
pub mod detect;
mod health;
mod http;
pub mod iptables;
mod kernel;
mod metrics;
pub mod nftables;
pub mod plan;
mod proxier;
pub mod settings;

pub use component::run;
