//! Admission: after authorisation and before storage, every write passes the plugins in upstream's order,
//! first to be changed ([`Chain::admit`]), then to be judged ([`Chain::validate`]). Answers for upstream's
//! `pkg/admission`.
//!
//! A plugin sees trees and the watch cache; it never talks to etcd and never writes but through the
//! in-process [`Api`](crate::api::Api). A new one is a file and a line in [`plugins`].

mod always;
mod certificates;
mod chain;
mod configuration;
mod default_toleration_seconds;
mod event_rate_limit;
mod image_policy;
mod ingress_class;
mod limit_ranger;
mod matching;
mod measure;
mod namespace_exists;
mod namespace_lifecycle;
mod namespaces;
mod node_certificates;
mod node_declared_features;
mod node_restriction;
mod owner_references;
mod plugin;
mod plugins;
mod pod_node_selector;
mod pod_security;
mod pod_tolerations;
mod pod_topology_labels;
mod policies;
mod priority;
mod reinvocation;
mod request_authorizer;
mod resource_list;
mod resource_quota;
mod runtime_class;
mod service_account;
mod service_external_ips;
mod storage;
mod taint_nodes_by_condition;
#[cfg(test)]
pub(crate) mod testing;
mod views;
mod webhooks;

pub use chain::Chain;
use plugin::NOTHING;
pub use plugin::{Attributes, Error, Operation, Plugin, Shared};
pub use plugins::Deps;
pub use pod_security::PolicyConfigError;
pub use reinvocation::Reinvocation;
pub use webhooks::{Caller, CredentialsError, ServiceAddressError, TargetError};
pub(crate) use webhooks::{PATCHES, WebhookAddress, count_outdated, dial_error, outdated};
