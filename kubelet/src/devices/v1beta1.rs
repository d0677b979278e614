//! The interface of device plugins: messages and services.

#![allow(
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    clippy::all,
    missing_docs,
    reason = "generated from the device plugins' API"
)]
tonic::include_proto!("v1beta1");

/// Version of the interface.
pub(super) const VERSION: &str = "v1beta1";
