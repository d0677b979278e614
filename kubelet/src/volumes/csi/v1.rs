//! Messages of the CSI interface, generated from its specification.

#![allow(
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    clippy::all,
    missing_docs,
    reason = "generated from the CSI specification"
)]
tonic::include_proto!("csi.v1");
