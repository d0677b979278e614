//! Mechanisms shared by all controllers: what a plan may ask for and how it is carried out.
//!
//! In: informers, queues and clients from `shared`. Out: writes to the API server and events. A controller's decisions
//! do not belong here; they are pure functions in its own `plan.rs`.

pub mod action;
pub mod claim;
pub mod expect;
pub mod hash;
pub mod history;
pub mod nodes;
pub mod object;
pub mod pods;
pub mod services;
