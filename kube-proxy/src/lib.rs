//! kube-proxy: Services as kernel rules, on every node.
//!
//! `changes` names the services that events are about, `plan` decides what traffic for them should go where, the back ends of
//! the modes (`mode` lists them) bring the kernel there, `proxier` runs them in turn, `component` is the process around it.
//! `explain` and `dry_run` tell people the plan and the rules.

#![warn(missing_docs, unreachable_pub)]

mod addresses;
pub mod backend;
mod changes;
mod cluster;
mod component;
mod config_file;
pub mod conntrack;
mod debug;
pub mod detect;
pub mod dry_run;
mod events;
pub mod explain;
mod health;
mod http;
pub mod iptables;
mod ipvs;
mod kernel;
mod metrics;
pub mod mode;
mod netlink;
pub mod nftables;
pub mod plan;
mod proxier;
pub mod settings;
mod userspace;
mod validation;

pub use component::run;
