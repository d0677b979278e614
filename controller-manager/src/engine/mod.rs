//! Mechanisms shared by all controllers: what a plan may ask for and how it is carried out.
//!
//! In: informers, queues and clients from `shared`. Out: writes to the API server and events. A controller's decisions
//! do not belong here; they are pure functions in its own `plan.rs`.

pub mod action;
pub mod assumed;
pub mod backoff;
pub mod claim;
pub mod clock;
pub mod cloud_provider;
pub mod context;
pub mod discovery;
pub mod endpoints;
pub mod events;
pub mod executor;
pub mod expect;
pub mod hash;
pub mod heartbeat;
pub mod history;
pub mod indices;
pub mod metadata;
pub mod metrics;
pub mod nodes;
pub mod object;
pub mod owned;
pub mod packed;
pub mod packed_of;
pub mod paged;
pub mod pod;
pub mod pod_reader;
pub mod pods;
pub mod registry;
pub mod rest;
pub mod selection;
pub mod selectors;
pub mod services;
pub mod settings;
pub mod slice;
pub mod slim;
pub mod tally;
pub mod wire;
pub mod worker;
