//! The cells of one row: a function per kind, chosen by group and plural. A kind without one gets its name and age.
//! Answers for upstream's `pkg/printers/internalversion/printers.go`.

use jiff::Timestamp;
use proto::Value;
use proto::resources::Resource;
use serde_json::json;

use super::Column;
use super::text::{age, name};
use super::{cluster, network, policy, workloads};

/// Makes the cells of one kind.
pub(super) type Cells = fn(&Value, Timestamp) -> Vec<Value>;

const ROWS: &[(&str, &str, Cells)] = &[
    ("", "pods", workloads::pod),
    ("", "podtemplates", workloads::pod_template),
    ("", "replicationcontrollers", workloads::replication_controller),
    ("apps", "replicasets", workloads::replica_set),
    ("apps", "daemonsets", workloads::daemon_set),
    ("apps", "deployments", workloads::deployment),
    ("apps", "statefulsets", workloads::stateful_set),
    ("apps", "controllerrevisions", workloads::controller_revision),
    ("batch", "jobs", workloads::job),
    ("batch", "cronjobs", workloads::cron_job),
    ("", "nodes", cluster::node),
    ("", "namespaces", cluster::namespace),
    ("", "componentstatuses", cluster::component_status),
    ("", "configmaps", cluster::config_map),
    ("", "secrets", cluster::secret),
    ("", "events", cluster::event),
    ("events.k8s.io", "events", cluster::event_v1),
    ("", "persistentvolumes", cluster::volume),
    ("", "persistentvolumeclaims", cluster::claim),
    ("storage.k8s.io", "storageclasses", cluster::storage_class),
    ("storage.k8s.io", "csidrivers", cluster::csi_driver),
    ("storage.k8s.io", "csinodes", cluster::csi_node),
    ("storage.k8s.io", "volumeattachments", cluster::volume_attachment),
    ("storage.k8s.io", "volumeattributesclasses", cluster::volume_attributes_class),
    ("coordination.k8s.io", "leases", cluster::lease),
    ("coordination.k8s.io", "leasecandidates", cluster::lease_candidate),
    ("apiregistration.k8s.io", "apiservices", cluster::api_service),
    ("storagemigration.k8s.io", "storageversionmigrations", cluster::storage_migration),
    ("node.k8s.io", "runtimeclasses", cluster::runtime_class),
    ("scheduling.k8s.io", "priorityclasses", cluster::priority_class),
    ("", "services", network::service),
    ("", "endpoints", network::endpoints),
    ("discovery.k8s.io", "endpointslices", network::endpoint_slice),
    ("networking.k8s.io", "ingresses", network::ingress),
    ("networking.k8s.io", "ingressclasses", network::ingress_class),
    ("networking.k8s.io", "networkpolicies", network::network_policy),
    ("networking.k8s.io", "servicecidrs", network::service_cidr),
    ("networking.k8s.io", "ipaddresses", network::ip_address),
    ("", "resourcequotas", policy::resource_quota),
    ("policy", "poddisruptionbudgets", policy::disruption_budget),
    ("autoscaling", "horizontalpodautoscalers", policy::autoscaler),
    ("rbac.authorization.k8s.io", "rolebindings", policy::binding),
    ("rbac.authorization.k8s.io", "clusterrolebindings", policy::binding),
    ("certificates.k8s.io", "certificatesigningrequests", policy::signing_request),
    ("certificates.k8s.io", "clustertrustbundles", policy::trust_bundle),
    ("certificates.k8s.io", "podcertificaterequests", policy::pod_certificate_request),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", policy::webhooks),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", policy::webhooks),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies", policy::mutating_policy),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", policy::admission_policy_binding),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", policy::validating_policy),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", policy::admission_policy_binding),
    ("flowcontrol.apiserver.k8s.io", "flowschemas", policy::flow_schema),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", policy::priority_level),
    ("internal.apiserver.k8s.io", "storageversions", cluster::storage_version),
    ("resource.k8s.io", "resourceclaims", cluster::resource_claim),
    ("resource.k8s.io", "resourceslices", cluster::resource_slice),
    ("resource.k8s.io", "devicetaintrules", cluster::device_taint_rule),
];

/// The cells of an object.
pub(super) fn cells_of(row: &Resource, object: &Value, columns: &[Column], now: Timestamp) -> Vec<Value> {
    if let Some((_, _, cells)) = ROWS.iter().find(|(g, p, _)| *g == row.group && *p == row.plural) {
        return cells(object, now);
    }
    let meta = &object["metadata"];
    columns
        .iter()
        .map(|c| match c.name.as_str() {
            "Name" => name(object),
            "Created At" => meta["creationTimestamp"].clone(),
            "Age" => age(object, now),
            _ => json!("<unknown>"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::resources;

    #[test]
    fn every_row_has_a_cell_per_column() {
        let empty =
            json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}, "status": {}});
        for r in resources::all().iter().chain(resources::optional()).filter(|r| r.is_stored()) {
            let columns = super::super::columns(r);
            let cells = cells_of(r, &empty, columns, Timestamp::UNIX_EPOCH);
            assert_eq!(cells.len(), columns.len(), "{}/{}", r.group, r.plural);
            if columns[0].name == "Name" {
                assert_eq!(cells[0], "x", "{}", r.plural);
                assert_eq!(
                    cells_of(r, &json!({"metadata": {}}), columns, Timestamp::UNIX_EPOCH)[0],
                    "",
                    "{}",
                    r.plural
                );
            }
        }
    }
}
