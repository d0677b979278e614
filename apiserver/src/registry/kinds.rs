//! All built-in kinds with something particular, by group and plural.

use std::collections::HashMap;
use std::sync::LazyLock;

use proto::Value;
use proto::resources::{self, Resource};
use shared::status::field::Path;

use super::kind::KindDefinition;
use super::{
    admissionregistration, apiextensions, apiregistration, apiserverinternal, apps, authentication, authorization,
    autoscaling, batch, certificates, coordination, core, discovery, events, flowcontrol, networking, node, policy,
    rbac, resource, scheduling, storage, storagemigration,
};
use crate::machinery::GroupResource;
use crate::validation::pod_template::PodTemplate;

static ALL: &[&KindDefinition] = &[
    &admissionregistration::mutating_admission_policy::KIND,
    &admissionregistration::mutating_admission_policy_binding::KIND,
    &admissionregistration::mutating_webhook_configuration::KIND,
    &admissionregistration::validating_admission_policy::KIND,
    &admissionregistration::validating_admission_policy_binding::KIND,
    &admissionregistration::validating_webhook_configuration::KIND,
    &apiextensions::custom_resource_definition::KIND,
    &apiregistration::api_service::KIND,
    &apiserverinternal::storage_version::KIND,
    &apps::controller_revision::KIND,
    &apps::daemon_set::KIND,
    &apps::deployment::KIND,
    &apps::replica_set::KIND,
    &apps::stateful_set::KIND,
    &authentication::self_subject_review::KIND,
    &authentication::token_review::KIND,
    &authorization::local_subject_access_review::KIND,
    &authorization::self_subject_access_review::KIND,
    &authorization::self_subject_rules_review::KIND,
    &authorization::subject_access_review::KIND,
    &autoscaling::horizontal_pod_autoscaler::KIND,
    &batch::cron_job::KIND,
    &batch::job::KIND,
    &certificates::certificate_signing_request::KIND,
    &certificates::cluster_trust_bundle::KIND,
    &certificates::pod_certificate_request::KIND,
    &coordination::lease::KIND,
    &coordination::lease_candidate::KIND,
    &core::binding::KIND,
    &core::component_status::KIND,
    &core::config_map::KIND,
    &core::endpoints::KIND,
    &core::event::KIND,
    &core::limit_range::KIND,
    &core::namespace::KIND,
    &core::node::KIND,
    &core::persistent_volume::KIND,
    &core::persistent_volume_claim::KIND,
    &core::pod::KIND,
    &core::pod_template::KIND,
    &core::replication_controller::KIND,
    &core::resource_quota::KIND,
    &core::secret::KIND,
    &core::service::KIND,
    &core::service_account::KIND,
    &discovery::endpoint_slice::KIND,
    &events::event::KIND,
    &flowcontrol::flow_schema::KIND,
    &flowcontrol::priority_level_configuration::KIND,
    &networking::ingress::KIND,
    &networking::ingress_class::KIND,
    &networking::ip_address::KIND,
    &networking::network_policy::KIND,
    &networking::service_cidr::KIND,
    &node::runtime_class::KIND,
    &policy::pod_disruption_budget::KIND,
    &rbac::cluster_role::KIND,
    &rbac::cluster_role_binding::KIND,
    &rbac::role::KIND,
    &rbac::role_binding::KIND,
    &resource::device_class::KIND,
    &resource::device_taint_rule::KIND,
    &resource::resource_claim::KIND,
    &resource::resource_claim_template::KIND,
    &resource::resource_slice::KIND,
    &scheduling::priority_class::KIND,
    &scheduling::workload::KIND,
    &storage::csi_driver::KIND,
    &storage::csi_node::KIND,
    &storage::csi_storage_capacity::KIND,
    &storage::storage_class::KIND,
    &storage::volume_attachment::KIND,
    &storage::volume_attributes_class::KIND,
    &storagemigration::storage_version_migration::KIND,
];

/// Kinds by group and the name of the kind, which several resources may share.
static BY_KIND: LazyLock<HashMap<(&str, &str), &KindDefinition>> = LazyLock::new(|| {
    let rows = resources::all().iter().chain(resources::optional());
    rows.filter_map(|row| Some(((&*row.group, &*row.kind), find(GroupResource::of(row))?))).collect()
});

static BY_NAME: LazyLock<HashMap<GroupResource<'static>, &KindDefinition>> =
    LazyLock::new(|| ALL.iter().map(|kind| (kind.resource, *kind)).collect());

/// The definition of the kind of a row; `None` for plain kinds and custom resources.
pub(crate) fn kind_of(row: &Resource) -> Option<&'static KindDefinition> {
    if row.custom.is_some() { None } else { find(GroupResource::of(row)) }
}

/// The kind of a resource.
pub(crate) fn find(resource: GroupResource<'_>) -> Option<&'static KindDefinition> {
    BY_NAME.get(&resource).copied()
}

/// The definition of a kind by its group and name.
pub(crate) fn find_kind(group: &str, kind: &str) -> Option<&'static KindDefinition> {
    BY_KIND.get(&(group, kind)).copied()
}

/// Reports whether objects of a resource are questions, which change nothing.
pub(crate) fn is_question(resource: GroupResource<'_>) -> bool {
    find(resource).is_some_and(|kind| kind.question)
}

/// The template of a pod in objects of a row's resource.
pub(crate) fn pod_template(row: &Resource) -> Option<PodTemplate> {
    kind_of(row)?.pod_template
}

/// Administrative access to devices that a write requests.
pub(crate) fn admin_access(row: &Resource, subresource: &str, object: &Value, old: Option<&Value>) -> Option<Path> {
    kind_of(row)?.admin_access?(subresource, object, old)
}

/// All of them.
pub(crate) fn all() -> &'static [&'static KindDefinition] {
    ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind with another name than its resource would be taken for a plain one.
    #[test]
    fn every_kind_is_of_a_resource_and_defined_once() {
        for kind in ALL {
            let mut rows = resources::all().iter().chain(resources::optional());
            assert!(rows.any(|row| GroupResource::of(row) == kind.resource), "{}", kind.resource);
            assert!(find(kind.resource).is_some_and(|found| std::ptr::eq(found, *kind)), "{}", kind.resource);
        }
    }
}
