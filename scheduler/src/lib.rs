//! kube-scheduler: places pods on nodes.
//!
//! `model` is what it knows, `framework` how it decides, `plugins` by what rules, `queue` in which order; all four are
//! pure. `settings` is the configuration, `driver` connects all of it to the API server, and `explain` tells why a pod
//! goes where it goes.

pub mod driver;
pub mod explain;
pub mod framework;
pub mod metrics;
pub mod model;
pub mod plugins;
pub mod queue;
pub mod settings;
pub mod testing;

pub use driver::run;
