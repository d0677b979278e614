//! Statuses of pods, from the pod, the runtime's state and probe results ([`generate`]). Pure.

pub mod conditions;
pub mod containers;
pub mod generate;
mod inputs;
