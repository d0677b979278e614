//! Every controller this binary has, one line each.

use crate::engine::registry::Controller;

/// In the order in which they start.
pub const TABLE: &[Controller] = &[
    // First, as the others' identities rest on it.
    Controller::new("serviceaccount-token-controller", "serviceaccount-token", crate::service_account_token::start),
    Controller::new("endpoints-controller", "endpoint", crate::endpoints::start),
    Controller::new("endpointslice-controller", "endpointslice", crate::endpointslice::start),
    Controller::new(
        "replicationcontroller-controller",
        "replicationcontroller",
        crate::replicaset::start_replication_controllers,
    ),
    Controller::new("pod-garbage-collector-controller", "podgc", crate::pod_gc::start),
    Controller::new("namespace-controller", "namespace", crate::namespace::start),
    Controller::new("serviceaccount-controller", "serviceaccount", crate::service_account::start),
    Controller::new("garbage-collector-controller", "garbagecollector", crate::garbage_collector::start),
    Controller::new("daemonset-controller", "daemonset", crate::daemonset::start),
    Controller::new("job-controller", "job", crate::job::start),
    Controller::new("cronjob-controller", "cronjob", crate::cronjob::start),
    Controller::new("deployment-controller", "deployment", crate::deployment::start),
    Controller::new("replicaset-controller", "replicaset", crate::replicaset::start),
    Controller::new("statefulset-controller", "statefulset", crate::statefulset::start),
    Controller::new("node-ipam-controller", "nodeipam", crate::node_ipam::start),
    Controller::new("node-lifecycle-controller", "nodelifecycle", crate::node_lifecycle::start),
    Controller::new("taint-eviction-controller", "", crate::taint_eviction::start),
    Controller::new(
        "clusterrole-aggregation-controller",
        "clusterrole-aggregation",
        crate::clusterrole_aggregation::start,
    ),
    Controller::new("root-ca-certificate-publisher-controller", "root-ca-cert-publisher", crate::root_ca::start),
    Controller::new("resourcequota-controller", "resourcequota", crate::resource_quota::start),
    Controller::new("disruption-controller", "disruption", crate::disruption::start),
    Controller::new("ttl-controller", "ttl", crate::ttl::start),
    Controller::new("ttl-after-finished-controller", "ttl-after-finished", crate::ttl_after_finished::start),
    Controller::new("certificatesigningrequest-signing-controller", "csrsigning", crate::csr::start_signing),
    Controller::new("certificatesigningrequest-approving-controller", "csrapproving", crate::csr::start_approving),
    Controller::new("certificatesigningrequest-cleaner-controller", "csrcleaner", crate::csr::start_cleaning),
    Controller::new("persistentvolume-binder-controller", "persistentvolume-binder", crate::volume_binder::start),
    Controller::new("ephemeral-volume-controller", "ephemeral-volume", crate::ephemeral_volume::start),
    Controller::new("service-cidr-controller", "", crate::service_cidr::start),
    Controller::new("persistentvolumeclaim-protection-controller", "pvc-protection", crate::protection::start_claims),
    Controller::new("persistentvolume-protection-controller", "pv-protection", crate::protection::start_volumes),
    Controller::new(
        "endpointslice-mirroring-controller",
        "endpointslicemirroring",
        crate::endpointslice_mirroring::start,
    ),
    Controller::off("bootstrap-signer-controller", "bootstrapsigner", crate::bootstrap::start_signer),
    Controller::off("token-cleaner-controller", "tokencleaner", crate::bootstrap::start_cleaner),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::registry::{OTHER_NAMES, known};

    #[test]
    fn every_name_is_known_once() {
        let mut names: Vec<&str> = TABLE.iter().map(|c| c.name).chain(OTHER_NAMES.iter().map(|n| n.0)).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "a name is listed twice");
        assert_eq!(known(TABLE)["deployment"], "deployment-controller");
    }
}
