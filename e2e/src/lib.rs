//! The cluster harness: a whole cluster on one machine, from real parts only.
//!
//! Comes in: the built binaries and Debian's etcd, containerd, runc and CNI plugins.
//! Goes out: a running cluster whose every trace lives in one run directory and one
//! cgroup, so that [`down`] can take all of it away again.
//!
//! A *machine* is a supervisor process with its children. The control plane is one
//! machine on the host's network; each node is a machine with a network namespace and a
//! mount namespace of its own, in which the standard paths (`/var/lib/kubelet`,
//! `/run/containerd`, …) are bind mounts into the run directory. A node therefore runs
//! with the flags and paths it would have on a server of its own.
//!
//! Must not: touch cgroups, processes, namespaces or rules that it did not make.

#![warn(missing_docs, unreachable_pub)]

pub mod backup;
pub mod bench;
pub mod clusters;
pub mod control_plane;
pub mod dns;
pub mod down;
pub mod ha;
pub mod image;
pub mod join;
pub mod layout;
pub mod load_balancer;
pub mod loops;
pub mod machine;
pub mod network;
pub mod node;
pub mod pki;
pub mod pod_watch;
pub mod preflight;
pub mod release;
pub mod shell;
pub mod status;
pub mod supervisor;
pub mod testing;
pub mod up;
