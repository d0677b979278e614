//! kube-apiserver: the only component that talks to etcd.
//!
//! `serve` takes connections, `access` lets requests in, `negotiate` and `verbs` turn them into operations on the rows
//! of `registry`, `admission` and `validation` judge what is written, `storage` writes it, `cache` is what reads and
//! watches are served from. The ports between the rooms are in [`api`].

#![warn(missing_docs, unreachable_pub)]
// A Status is the error of almost everything here; boxing it everywhere would only hide that.
#![allow(clippy::result_large_err, reason = "a refusal is an answer like any other")]

pub mod access;
pub mod admission;
pub mod aggregate;
pub mod api;
pub mod audit;
pub mod authn;
pub mod authz;
mod backoff;
pub mod bootstrap;
pub mod cache;
pub mod connect;
pub mod crd;
pub mod definitions;
pub mod egress;
mod election;
pub mod expressions;
pub mod flowcontrol;
pub mod machinery;
pub mod negotiate;
pub mod openapi;
pub mod peers;
pub mod printers;
pub mod registry;
mod reloads;
mod rest;
pub mod rows;
pub mod rules;
mod run;
pub mod serve;
pub mod storage;
pub mod tokens;
pub mod validation;
pub mod verbs;

pub use run::run;
