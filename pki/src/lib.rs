//! A cluster's certificates, keys and kubeconfigs: on disk in kubeadm's layout, and as the data of Secrets ([`secret`]).
//!
//! Comes in: names and addresses, and whatever is there already. Goes out: files, keys readable by their owner alone; data
//! that whoever speaks to a cluster puts into it.
//! Answers for `cmd/kubeadm/app/phases/{certs,kubeconfig}` and `kubeadm certs`. An authority that is there is kept, and so
//! is a certificate that it signed: only [`renewal`] and [`secret`] replace one, and never an authority.
//!
//! Must not: speak to a cluster, or follow a file out of the folders it was given.

#![warn(missing_docs, unreachable_pub)]

pub mod authority;
pub mod cluster;
pub mod expiration;
pub mod files;
pub mod keys;
pub mod kubeconfig;
pub mod renewal;
pub mod secret;
