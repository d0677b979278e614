//! Parts that tests and benchmarks of several crates share.
//!
//! In: nothing but free ports, folders and namespaces of their own. Out: certificates, clients, servers, processes and
//! networks that end with the values that stand for them. Never: a dependency of a component; expectations of one test.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test panics to say what is wrong")]

pub mod client;
pub mod collector;
pub mod connections;
pub mod dice;
pub mod figures;
pub mod histories;
pub mod http2;
pub mod manager;
pub mod network;
pub mod objects;
pub mod pki;
pub mod pods;
pub mod process;
pub mod remote;
pub mod scheduling;
pub mod server;
pub mod webhook;
pub mod world;
