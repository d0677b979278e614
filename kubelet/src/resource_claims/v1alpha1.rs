//! The interface to devices' health: messages and services.

#![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated from the API of DRA drivers")]
#![allow(clippy::allow_attributes_without_reason, reason = "generated from the API of DRA drivers")]
tonic::include_proto!("v1alpha1");
