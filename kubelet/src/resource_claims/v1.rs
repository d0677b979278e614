//! The interface of DRA drivers: messages and services.

#![allow(
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    clippy::all,
    missing_docs,
    reason = "generated from the API of DRA drivers"
)]
tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
