//! A cluster in one process, for tests: an API server without a network, nodes without containers, and this crate's
//! controllers between them, all on a clock that tests can turn.
//!
//! In: scenarios from `testdata/scenarios`, as data. Out: the objects and events the controllers left behind. Only what
//! controllers rely on is simulated: storage, versions, watches, patches, finalizers, defaults, and what kinds do on
//! their own. Faults can be switched on underneath any scenario.

mod clouds;
mod faults;
mod http;
mod kubelet;
mod manager;
mod measured;
mod scenario;
mod store;
mod strategy;
mod verbs;

mod adoption;
mod behind;
mod cost;
mod ends;
mod gates;
mod held;
mod properties;
mod silence;
mod tests;
