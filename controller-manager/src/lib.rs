//! kube-controller-manager: the control loops of Kubernetes v1.35, one folder each.

pub mod engine;

pub mod daemonset { pub mod plan; }
pub mod deployment { pub mod annotations; pub mod plan; pub mod status; pub mod strategy; }
pub mod endpoints { pub mod plan; }
pub mod endpointslice { pub mod plan; }
pub mod node_ipam { pub mod plan; }
pub mod node_lifecycle { pub mod plan; }
pub mod pod_gc { pub mod plan; }
pub mod replicaset { pub mod plan; }
pub mod taint_eviction { pub mod plan; }
