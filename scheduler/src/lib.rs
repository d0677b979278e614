//! kube-scheduler: places pods on nodes.
//!
//! `model` is what it knows, `framework` how it decides, `plugins` by what rules, `queue` in which order; all four are
//! pure. `driver` connects them to the API server.

pub mod driver;
pub mod framework;
pub mod metrics;
pub mod model;
pub mod plugins;
pub mod queue;
pub mod settings;
pub mod testing;

pub use driver::run;
