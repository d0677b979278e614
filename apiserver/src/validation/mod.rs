//! Validation: objects against their kind's rules, as field errors with upstream's paths and texts.
//!
//! Answers for upstream's `pkg/apis/*/validation`. Pure: in come canonical, defaulted trees in the storage version,
//! out go field errors. The rules of a kind are one row of [`RULES`]; the generic part (metadata) is the same for all.
//! Any tree may come in; nothing here panics.

mod admission_policy;
mod admissionregistration;
mod api_service;
mod autoscaling;
mod batch;
mod bundle;
mod certificates;
mod conditions;
mod config;
mod coordination;
mod core;
mod cron;
mod definition;
mod definition_parts;
mod devices;
mod discovery;
mod events;
mod flowcontrol;
mod internal;
mod issuance;
mod lines;
mod meta;
mod mutating_policy;
mod names;
mod networking;
mod node;
mod old_annotations;
mod pem;
mod pod;
mod pod_certificate;
mod policy;
mod possession;
mod privileged;
mod quota;
mod rbac;
mod relaxed;
mod scheduling;
mod selectors;
pub mod service;
mod shown;
mod signature;
mod storage;
mod storage_migration;
mod storage_version;
pub mod strict_addresses;
mod tree;
mod trust_bundle;
mod volume;
mod warnings;
mod workloads;

#[cfg(test)]
mod tests;

use proto::Value;
use proto::resources::Resource;
use shared::status::field::{Error, Path};

use crate::crd;
pub use devices::admin::{admin_access, may_administer};
use names::NameRule;
pub(crate) use networking::domain_path;
pub use privileged::privileged;
pub use relaxed::{PODS, Relaxed};
pub use shown::in_order;
pub(crate) use storage::csi::counts_stay;

type Create = fn(&Value, &mut Vec<Error>);
type Update = fn(&Value, &Value, &mut Vec<Error>);

/// When a changed object is judged like a new one: upstream's errors come in that order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Never,
    Before,
    After,
}

/// What is particular about a kind.
#[derive(Clone, Copy)]
struct Rules {
    group: &'static str,
    plural: &'static str,
    name: NameRule,
    create: Create,
    update: Update,
    /// Whether a changed object is judged like a new one as well.
    again: Again,
    status: Update,
}

fn nothing(_: &Value, _: &Value, _: &mut Vec<Error>) {}

/// A kind's rules for new objects, which changed ones have to keep as well.
const fn rules(group: &'static str, plural: &'static str, create: Create) -> Rules {
    Rules { group, plural, name: NameRule::Subdomain, create, update: nothing, again: Again::After, status: nothing }
}

impl Rules {
    const fn named(mut self, name: NameRule) -> Self {
        self.name = name;
        self
    }

    /// What may not change.
    const fn update(mut self, update: Update) -> Self {
        self.update = update;
        self
    }

    /// What may not change, once the whole is judged.
    const fn then(mut self, update: Update) -> Self {
        self.again = Again::Before;
        self.update(update)
    }

    /// What may not change; the rest of a changed object was judged before.
    const fn update_only(mut self, update: Update) -> Self {
        self.again = Again::Never;
        self.update(update)
    }

    const fn status(mut self, status: Update) -> Self {
        self.status = status;
        self
    }
}

use NameRule::{ConfigKey, Label, PathSegment, Service, StorageVersion};

const APPS: &str = "apps";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const WEBHOOKS: &str = "admissionregistration.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const DEVICES: &str = "resource.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const COORDINATION: &str = "coordination.k8s.io";

/// Rules by group and plural. Kinds without a row have the generic rules only.
static RULES: &[Rules] = &[
    rules("", "pods", pod::create).update_only(pod::update::update).status(pod::status::update),
    rules("", "podtemplates", pod::template_object),
    rules("", "replicationcontrollers", workloads::replication_controller).status(workloads::status::replicas),
    rules("", "services", service::create).named(Service).update(service::update).status(service::status),
    rules("", "endpoints", discovery::endpoints).update_only(discovery::endpoints_update),
    rules("", "nodes", node::create).update_only(node::update).status(node::update),
    rules("", "namespaces", core::namespace).named(Label).update_only(nothing).status(core::namespace_status),
    rules("", "configmaps", config::config_map).update(config::config_map_update),
    rules("", "secrets", config::secret).update(config::secret_update),
    rules("", "persistentvolumes", volume::persistent::volume).then(volume::persistent::volume_update),
    rules("", "persistentvolumeclaims", volume::claim::claim).then(volume::claim::update).status(volume::claim::status),
    rules("", "resourcequotas", quota::quota).then(quota::quota_update).status(quota::quota_status),
    rules("", "limitranges", quota::limit_range),
    rules("", "events", events::create).named(PathSegment),
    rules("events.k8s.io", "events", events::create_new).update_only(events::update_new),
    rules(APPS, "replicasets", workloads::replica_set)
        .then(workloads::selector_stays)
        .status(workloads::status::replicas),
    rules(APPS, "deployments", workloads::deployment)
        .then(workloads::selector_stays)
        .status(workloads::status::deployment),
    rules(APPS, "daemonsets", workloads::daemon_set)
        .then(workloads::selector_stays)
        .status(workloads::status::daemon_set),
    rules(APPS, "statefulsets", workloads::stateful::create)
        .named(Label)
        .update_only(workloads::stateful::update)
        .status(workloads::status::stateful_set),
    rules(APPS, "controllerrevisions", workloads::revision).update(workloads::revision_update),
    rules("batch", "jobs", batch::job).update(batch::job_update).status(batch::status::update),
    rules("batch", "cronjobs", batch::cron_job).update_only(batch::cron_job_update),
    rules("discovery.k8s.io", "endpointslices", discovery::slice).update(discovery::slice_update),
    rules(COORDINATION, "leases", coordination::lease),
    rules(COORDINATION, "leasecandidates", coordination::candidate)
        .named(ConfigKey)
        .update(coordination::candidate_update),
    rules("policy", "poddisruptionbudgets", policy::budget).named(PathSegment).status(policy::status),
    rules("autoscaling", "horizontalpodautoscalers", autoscaling::autoscaler).status(autoscaling::status),
    rules("scheduling.k8s.io", "priorityclasses", scheduling::class).update_only(scheduling::class_update),
    rules("scheduling.k8s.io", "workloads", scheduling::workload).update(scheduling::workload_update),
    rules("storagemigration.k8s.io", "storageversionmigrations", storage_migration::migration)
        .update(storage_migration::migration_update)
        .status(storage_migration::migration_status),
    rules("node.k8s.io", "runtimeclasses", node::runtime_class).update_only(node::runtime_class_update),
    rules(STORAGE, "storageclasses", storage::class).update_only(storage::class_update),
    rules(STORAGE, "volumeattributesclasses", storage::attributes_class).update(storage::attributes_class_update),
    rules(STORAGE, "volumeattachments", storage::attachment)
        .update(storage::attachment_update)
        .status(storage::attachment_status),
    rules(STORAGE, "csidrivers", storage::csi::driver).update(storage::csi::driver_update),
    rules(STORAGE, "csinodes", storage::csi::node).update(storage::csi::node_update),
    rules(STORAGE, "csistoragecapacities", storage::csi::capacity).update_only(storage::csi::capacity_update),
    rules(NETWORKING, "ingresses", networking::new_ingress)
        .update_only(networking::ingress_update)
        .status(networking::ingress_status),
    rules(NETWORKING, "ingressclasses", networking::ingress_class).update(networking::ingress_class_update),
    rules(NETWORKING, "networkpolicies", networking::policy::policy),
    rules(NETWORKING, "ipaddresses", networking::addresses::address)
        .named(PathSegment)
        .update_only(networking::addresses::address_update),
    rules(NETWORKING, "servicecidrs", networking::addresses::ranges).update_only(networking::addresses::ranges_update),
    rules(RBAC, "roles", rbac::role).named(PathSegment),
    rules(RBAC, "clusterroles", rbac::cluster_role).named(PathSegment),
    rules(RBAC, "rolebindings", rbac::role_binding).named(PathSegment).update(rbac::reference_stays),
    rules(RBAC, "clusterrolebindings", rbac::cluster_role_binding).named(PathSegment).update(rbac::reference_stays),
    rules(CERTIFICATES, "clustertrustbundles", trust_bundle::bundle)
        .named(PathSegment)
        .update_only(trust_bundle::bundle_update),
    rules(CERTIFICATES, "podcertificaterequests", pod_certificate::request)
        .update_only(pod_certificate::request_update)
        .status(issuance::status),
    rules(CERTIFICATES, "certificatesigningrequests", certificates::request)
        .named(PathSegment)
        .update_only(certificates::request_update)
        .status(certificates::request_status),
    rules(WEBHOOKS, "validatingwebhookconfigurations", admissionregistration::validating),
    rules(WEBHOOKS, "mutatingwebhookconfigurations", admissionregistration::mutating),
    rules(WEBHOOKS, "mutatingadmissionpolicies", mutating_policy::policy),
    rules(WEBHOOKS, "mutatingadmissionpolicybindings", mutating_policy::binding),
    rules(WEBHOOKS, "validatingadmissionpolicies", admission_policy::policy),
    rules(WEBHOOKS, "validatingadmissionpolicybindings", admission_policy::binding),
    rules(FLOW, "flowschemas", flowcontrol::schema),
    rules(FLOW, "prioritylevelconfigurations", flowcontrol::level),
    rules("apiextensions.k8s.io", "customresourcedefinitions", definition::definition)
        .update_only(definition::definition_update)
        .status(definition::definition_status),
    rules("apiregistration.k8s.io", "apiservices", api_service::service).named(PathSegment).status(api_service::status),
    rules("internal.apiserver.k8s.io", "storageversions", storage_version::check)
        .named(StorageVersion)
        .status(storage_version::status),
    rules(DEVICES, "deviceclasses", devices::class).update_only(devices::class_update),
    rules(DEVICES, "resourceclaims", devices::claim).update_only(devices::spec_stays).status(devices::status::update),
    rules(DEVICES, "resourceclaimtemplates", devices::template).update_only(devices::spec_stays),
    rules(DEVICES, "devicetaintrules", devices::taint_rule::rule)
        .update_only(devices::taint_rule::update)
        .status(devices::taint_rule::status),
    rules(DEVICES, "resourceslices", devices::slice::slice).update_only(devices::slice::update),
];

static GENERIC: Rules = rules("", "", core::any);

fn rules_of(row: &Resource) -> Option<&'static Rules> {
    RULES.iter().find(|r| r.group == row.group && r.plural == row.plural)
}

/// The rules of a kind, which may depend on the API it is written through.
fn judged_by(served: &Resource, storage: &Resource) -> &'static Rules {
    rules_of(served).or_else(|| rules_of(storage)).unwrap_or(&GENERIC)
}

fn metadata() -> Path {
    Path::new("metadata")
}

/// A new object, as the last step before it is stored (its name is known, its namespace set).
pub fn validate_create(served: &Resource, row: &Resource, object: &Value) -> Vec<Error> {
    let rules = judged_by(served, row);
    let mut out = Vec::new();
    meta::create(object, rules.name, row, &metadata(), &mut out);
    match crd::served(row) {
        Some(served) => out.extend(crd::objects::create(row, served, object)),
        None => (rules.create)(object, &mut out),
    }
    out
}

/// Metadata of an object inside another.
pub fn embedded_metadata(metadata: &Value, path: &Path, out: &mut Vec<Error>) {
    meta::embedded(metadata, path, out);
}

/// The kind of an object inside another.
pub fn embedded_kind(kind: &str, path: &Path, out: &mut Vec<Error>) {
    let wrong = names::dns1035_label(&kind.to_lowercase());
    if !wrong.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        out.push(Error::invalid(path.clone(), kind, &why));
    }
}

/// Labels or annotations that a conversion changed; upstream's path of annotations lacks a letter.
pub fn converted_texts(field: &str, metadata: &Value) -> Vec<Error> {
    let mut out = Vec::new();
    match field {
        "labels" => meta::labels(metadata, field, &Path::of(&["metadata", "labels"]), &mut out),
        _ => meta::annotations(metadata, &Path::of(&["metadata", "annotation"]), &mut out),
    }
    out
}

/// The metadata of a changed object. Upstream judges it before and within the kind's rules: clients see causes twice.
fn changed_metadata(row: &Resource, new: &Value, old: &Value, out: &mut Vec<Error>) {
    meta::update(new, old, &metadata(), out);
    if crd::served(row).is_none() {
        out.extend_from_within(..);
        meta::core_finalizers(row, new, &metadata(), out);
    }
}

/// A changed object. Status and other subresources: [`validate_subresource`].
pub fn validate_update(served: &Resource, row: &Resource, new: &Value, old: &Value) -> Vec<Error> {
    let rules = judged_by(served, row);
    let mut out = Vec::new();
    changed_metadata(row, new, old, &mut out);
    if let Some(served) = crd::served(row) {
        out.extend(crd::objects::update(row, served, "", new, old));
        return out;
    }
    if rules.again == Again::Before {
        (rules.create)(new, &mut out);
    }
    (rules.update)(new, old, &mut out);
    if rules.again == Again::After {
        (rules.create)(new, &mut out);
    }
    out
}

/// An object changed through a subresource: `status`, `ephemeralcontainers`, `resize`, `finalize`, `approval`.
pub fn validate_subresource(row: &Resource, subresource: &str, new: &Value, old: &Value) -> Vec<Error> {
    let mut out = Vec::new();
    changed_metadata(row, new, old, &mut out);
    if let Some(served) = crd::served(row) {
        out.extend(crd::objects::update(row, served, subresource, new, old));
        return out;
    }
    match subresource {
        "ephemeralcontainers" => pod::update::ephemeral(new, old, &mut out),
        "resize" => pod::resize::resize(new, old, &mut out),
        "finalize" => core::finalizers(new, old, &mut out),
        "approval" => certificates::request_approval(new, old, &mut out),
        _ => (rules_of(row).unwrap_or(&GENERIC).status)(new, old, &mut out),
    }
    out
}

/// What a client should know about an object that is accepted, new or changed from `old` through a subresource.
pub fn warnings(row: &Resource, subresource: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    warnings::of(row, subresource, object, old)
}
