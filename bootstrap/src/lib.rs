//! `control-plane-bootstrap`: what the chart `manifests/charts/control-plane` runs as Jobs in the cluster that hosts a
//! control plane.
//!
//! Comes in: the names and addresses of the control plane, as flags, and the Secrets that are there. Goes out: Secrets
//! with authorities, certificates and kubeconfigs ([`certificates`]), and in the new cluster itself what `kubeadm init`
//! puts there after its control plane is up ([`cluster`]): bootstrap roles, `cluster-info`, a token, the endpoints of
//! the Service `kubernetes`. What certificates are like, and when they are renewed, is for [`::pki::secret`] to say.
//!
//! Must not: replace an authority that is there, print a key or a token, or touch a Secret that is not of its name.

#![warn(missing_docs, unreachable_pub)]

pub mod certificates;
pub mod check;
pub mod cluster;
pub mod command;
pub mod manifests;
pub mod objects;
pub mod plan;
pub mod restart;
pub mod token;
