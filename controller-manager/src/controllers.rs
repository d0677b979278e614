//! Every controller this binary has, one line each. Answers for upstream's `NewControllerDescriptors`.

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
    Controller::new(
        "horizontal-pod-autoscaler-controller",
        "horizontalpodautoscaling",
        crate::horizontal_pod_autoscaler::start,
    ),
    Controller::new("ttl-controller", "ttl", crate::ttl::start),
    Controller::new("ttl-after-finished-controller", "ttl-after-finished", crate::ttl_after_finished::start),
    Controller::new("certificatesigningrequest-signing-controller", "csrsigning", crate::csr::start_signing),
    Controller::new("certificatesigningrequest-approving-controller", "csrapproving", crate::csr::start_approving),
    Controller::new("certificatesigningrequest-cleaner-controller", "csrcleaner", crate::csr::start_cleaning),
    Controller::new("persistentvolume-binder-controller", "persistentvolume-binder", crate::volume_binder::start),
    Controller::new("persistentvolume-attach-detach-controller", "attachdetach", crate::attach_detach::start),
    Controller::new("persistentvolume-expander-controller", "persistentvolume-expander", crate::volume_expander::start),
    Controller::new(
        "volumeattributesclass-protection-controller",
        "",
        crate::volume_attributes_class_protection::start,
    ),
    Controller::new("validatingadmissionpolicy-status-controller", "", crate::admission_policy_status::start),
    Controller::new("resourceclaim-controller", "resource-claim-controller", crate::resource_claim::start),
    Controller::new(
        "legacy-serviceaccount-token-cleaner-controller",
        "legacy-service-account-token-cleaner",
        crate::legacy_token_cleaner::start,
    ),
    Controller::new("ephemeral-volume-controller", "ephemeral-volume", crate::ephemeral_volume::start),
    Controller::new("service-cidr-controller", "", crate::service_cidr::start),
    Controller::new("persistentvolumeclaim-protection-controller", "pvc-protection", crate::protection::start_claims),
    Controller::new("persistentvolume-protection-controller", "pv-protection", crate::protection::start_volumes),
    Controller::new(
        "endpointslice-mirroring-controller",
        "endpointslicemirroring",
        crate::endpointslice_mirroring::start,
    ),
    Controller::new("device-taint-eviction-controller", "", crate::device_taint_eviction::start),
    Controller::new(
        "storageversion-garbage-collector-controller",
        "storage-version-gc",
        crate::storage_version_gc::start,
    ),
    Controller::new("storage-version-migrator-controller", "svm", crate::storage_version_migrator::start),
    Controller::new("podcertificaterequest-cleaner-controller", "", crate::pod_certificate_cleaner::start),
    Controller::new(
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
        "",
        crate::trust_bundle_publisher::start,
    ),
    Controller::new("service-lb-controller", "service", crate::cloud::start_load_balancers),
    Controller::new("node-route-controller", "route", crate::cloud::start_routes),
    Controller::new("cloud-node-lifecycle-controller", "cloud-node-lifecycle", crate::cloud::start_lifecycle),
    Controller::off("selinux-warning-controller", "", crate::selinux_warning::start),
    Controller::off("bootstrap-signer-controller", "bootstrapsigner", crate::bootstrap::start_signer),
    Controller::off("token-cleaner-controller", "tokencleaner", crate::bootstrap::start_cleaner),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::engine::registry::known;

    #[test]
    fn names_are_upstreams() {
        let facts: serde_json::Value =
            serde_json::from_str(include_str!("../testdata/controllers.json")).expect("facts");
        let texts = |v: &serde_json::Value| -> BTreeSet<String> {
            v.as_array().into_iter().flatten().filter_map(|n| n.as_str()).map(str::to_owned).collect()
        };
        let ours = |keep: &dyn Fn(&Controller) -> bool| -> BTreeSet<String> {
            TABLE.iter().filter(|c| keep(c)).map(|c| c.name.to_owned()).collect()
        };
        assert_eq!(ours(&|_| true), texts(&facts["names"]));
        assert_eq!(TABLE.len(), ours(&|_| true).len(), "a name is listed twice");
        assert_eq!(ours(&|c| !c.on_by_default), texts(&facts["disabledByDefault"]));
        let known = known(TABLE);
        for (alias, name) in facts["aliases"].as_object().expect("aliases") {
            assert_eq!(known.get(alias.as_str()).copied(), name.as_str(), "{alias}");
        }
    }
}
