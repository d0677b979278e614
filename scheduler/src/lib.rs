//! kube-scheduler: places pods on nodes.
//!
//! `model` is what it knows, `framework` how it decides, `plugins` by what rules, `queue` in which order; all four are
//! pure. `settings` is the configuration, `driver` connects all of it to the API server; `simulation` does without one.
//! `explain` tells why a pod goes where it goes, `replay` where all of them would.

#![warn(missing_docs, unreachable_pub)]

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

/// Threads for tasks of a process with so many processors. On one or two, decisions and bindings take turns: waking a second
/// thread would cost more than it takes over, and the API server wants a processor, too. With more, bindings go on beside
/// decisions.
#[must_use]
pub fn threads(processors: usize) -> usize {
    if processors <= 2 { 1 } else { (processors / 2).clamp(2, 4) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn bindings_get_threads_where_there_are_processors() {
        assert_eq!([0, 1, 2, 3, 4, 6, 8, 64].map(super::threads), [1, 1, 1, 2, 2, 3, 4, 4]);
    }
}
