//! kube-scheduler: places pods on nodes.
//!
//! `model` is what it knows, `framework` how it decides, `plugins` by what rules, `queue` in which order; all four are
//! pure. `settings` is the configuration, `driver` connects all of it to the API server; `simulation` does without one.
//! `explain` tells why a pod goes where it goes, `replay` where all of them would.

pub mod driver;
pub mod explain;
pub mod framework;
pub mod metrics;
pub mod model;
pub mod plugins;
pub mod queue;
#[cfg(test)]
mod reference;
pub mod replay;
pub mod settings;
pub mod simulation;
pub mod testing;

pub use driver::run;
