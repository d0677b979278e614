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
mod definition;
mod definition_parts;
mod devices;
mod discovery;
mod events;
mod fields;
mod flowcontrol;
mod internal;
mod issuance;
mod lines;
mod mutating_policy;
mod networking;
mod node;
mod node_config;
mod old_annotations;
mod options;
mod pem;
mod pod;
mod pod_certificate;
mod policy;
mod possession;
mod privileged;
mod quota;
mod rbac;
mod scheduling;
mod schemas_shown;
mod selectors;
pub mod service;
mod shown;
mod signature;
mod storage;
mod storage_migration;
mod storage_version;
pub mod strict_addresses;
mod trust_bundle;
mod volume;
mod warnings;
mod workloads;

#[cfg(test)]
mod tests;

use proto::Value;
use proto::resources::Resource;
use shared::status::field::{Error, Path};

use crate::rules::names::NameRule;
use crate::rules::options::FieldErrors;
pub use crate::rules::options::ValidationOptions;
use crate::rules::{meta, names, tree};
pub(crate) use coordination::order as semantic_order;
pub use devices::admin::{admin_access, may_administer};
pub(crate) use networking::domain_path;
pub use options::PODS;
pub(crate) use pod::annotations as pod_annotations;
pub use pod::qos_class;
pub use privileged::privileged;
pub use shown::in_order;
pub(crate) use storage::csi::counts_stay;

type Create = fn(&Value, &mut FieldErrors);
type Update = fn(&Value, &Value, &mut FieldErrors);

/// Validation rules of a kind.
#[derive(Clone, Copy)]
struct Rules {
    group: &'static str,
    plural: &'static str,
    name: NameRule,
    create: Create,
    /// Steps for a new object.
    created: &'static [Phase],
    update: Update,
    /// Steps for an updated object.
    changed: &'static [Phase],
    status: Update,
    /// Steps for an update of the status subresource.
    status_changed: &'static [Phase],
}

/// A part of the judgement of an object. Upstream's kinds differ in what they look at, how often and in which
/// order, and clients see it: causes are told as often as they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Metadata as of a new object.
    ObjectMeta,
    /// Metadata, beside what it was.
    ObjectMetaUpdate,
    /// The rules for new objects.
    Spec,
    /// The rules for updates: immutable fields.
    Immutable,
    /// No further if something was wrong so far.
    StopOnError,
}

use Phase::{Immutable, ObjectMeta, ObjectMetaUpdate, Spec, StopOnError};

/// The whole object as if it were new, and what may not change.
const CREATE_AND_UPDATE: &[Phase] = &[ObjectMeta, Spec, ObjectMetaUpdate, Immutable];
/// Steps of kinds whose spec is validated twice on update.
const SPEC_TWICE: &[Phase] = &[ObjectMeta, Spec, ObjectMetaUpdate, Spec, Immutable];
/// Steps of kinds whose update validation includes the whole of create validation.
const CREATE_WITHIN_UPDATE: &[Phase] = &[ObjectMetaUpdate, ObjectMeta, Spec, Immutable];
/// Steps of kinds that check immutable fields first, and then validate like a new object.
const IMMUTABLE_FIRST: &[Phase] = &[ObjectMetaUpdate, Immutable, ObjectMeta, Spec];
const META_AND_SPEC: &[Phase] = &[ObjectMetaUpdate, Spec, Immutable];
/// All of it twice, as roles of the whole cluster and their bindings are judged.
const CLUSTER_ROLES: &[Phase] = &[ObjectMeta, Spec, ObjectMeta, Spec, ObjectMetaUpdate, Immutable];

/// The drivers of a node as if they were new, twice; its metadata is never compared.
const CSI_NODES: &[Phase] = &[ObjectMeta, Spec, ObjectMeta, Spec, Immutable];
/// Requests for certificates, through each of their ways in.
const CERTIFICATE_REQUESTS: &[Phase] = &[ObjectMeta, Immutable, ObjectMetaUpdate];

fn nothing(_: &Value, _: &Value, _: &mut FieldErrors) {}

/// Metadata that only the general rules look at, which come last and only for what is right otherwise.
const META_LAST: &[Phase] = &[Spec, StopOnError, ObjectMeta];

/// A kind's rules for new objects, which changed ones have to keep as well.
const fn rules(group: &'static str, plural: &'static str, create: Create) -> Rules {
    let (created, changed, status_changed) =
        (&[ObjectMeta, Spec], &[ObjectMetaUpdate, Immutable, Spec], &[ObjectMetaUpdate, Immutable]);
    let (name, update, status) = (NameRule::Subdomain, nothing, nothing);
    Rules { group, plural, name, create, created, update, changed, status, status_changed }
}

impl Rules {
    const fn named(mut self, name: NameRule) -> Self {
        self.name = name;
        self
    }

    /// Replaces the steps for a new object.
    const fn created(mut self, steps: &'static [Phase]) -> Self {
        self.created = steps;
        self
    }

    /// Sets the update rules.
    const fn update(mut self, update: Update) -> Self {
        self.update = update;
        self
    }

    /// Sets the update rules where the rest of an updated object is not validated again.
    const fn update_only(self, update: Update) -> Self {
        self.update(update).changed(&[ObjectMetaUpdate, Immutable])
    }

    /// Replaces the steps for an updated object.
    const fn changed(mut self, steps: &'static [Phase]) -> Self {
        self.changed = steps;
        self
    }

    const fn status(mut self, status: Update) -> Self {
        self.status = status;
        self
    }

    /// Replaces the steps for an update of the status.
    const fn status_changed(mut self, steps: &'static [Phase]) -> Self {
        self.status_changed = steps;
        self
    }
}

use NameRule::{Address, ConfigKey, Label, PathSegment, Service, StorageVersion, WholeSubdomain};

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
    rules("", "pods", pod::create)
        .update(pod::update::update)
        .changed(&[ObjectMetaUpdate, ObjectMeta, Immutable])
        .status(pod::status::update),
    rules("", "podtemplates", pod::template_object),
    rules("", "replicationcontrollers", workloads::replication_controller)
        .named(WholeSubdomain)
        .update(workloads::convertible)
        .changed(SPEC_TWICE)
        .status(workloads::status::replicas),
    rules("", "services", service::create).named(Service).update(service::update).status(service::status),
    rules("", "endpoints", discovery::endpoints).update(discovery::endpoints_update).changed(&[
        ObjectMetaUpdate,
        ObjectMeta,
        Immutable,
    ]),
    rules("", "nodes", node::create).update(node::update).changed(CREATE_AND_UPDATE).status(node::update),
    rules("", "namespaces", core::namespace).named(Label).changed(CREATE_AND_UPDATE).status(core::namespace_status),
    rules("", "configmaps", config::config_map).update(config::config_map_update).changed(IMMUTABLE_FIRST),
    rules("", "secrets", config::secret).update(config::secret_update).changed(IMMUTABLE_FIRST),
    rules("", "serviceaccounts", core::any).changed(&[ObjectMetaUpdate, ObjectMeta]),
    rules("", "persistentvolumes", volume::persistent::new_volume)
        .update(volume::persistent::volume_update)
        .changed(&[ObjectMeta, Spec, ObjectMeta, Immutable]),
    rules("", "persistentvolumeclaims", volume::claim::claim)
        .update(volume::claim::update)
        .changed(CREATE_WITHIN_UPDATE)
        .status(volume::claim::status),
    rules("", "resourcequotas", quota::quota)
        .update(quota::quota_update)
        .changed(META_AND_SPEC)
        .status(quota::quota_status),
    rules("", "limitranges", quota::limit_range).changed(&[ObjectMeta, Spec]),
    rules("", "events", events::create).named(PathSegment).created(META_LAST).changed(&[Spec]),
    rules("events.k8s.io", "events", events::create_new).created(&[Spec, ObjectMeta]).update_only(events::update_new),
    rules(APPS, "replicasets", workloads::replica_set)
        .update(workloads::selector_stays)
        .changed(META_AND_SPEC)
        .status(workloads::status::replicas),
    rules(APPS, "deployments", workloads::deployment)
        .update(workloads::selector_stays)
        .changed(META_AND_SPEC)
        .status(workloads::status::deployment),
    rules(APPS, "daemonsets", workloads::daemon_set)
        .update(workloads::selector_stays)
        .changed(META_AND_SPEC)
        .status(workloads::status::daemon_set),
    rules(APPS, "statefulsets", workloads::stateful::create)
        .named(Label)
        .update_only(workloads::stateful::update)
        .status(workloads::status::stateful_set)
        .status_changed(&[Immutable, ObjectMetaUpdate]),
    rules(APPS, "controllerrevisions", workloads::revision)
        .update(workloads::revision_update)
        .changed(CREATE_WITHIN_UPDATE),
    rules("batch", "jobs", batch::job)
        .update(batch::job_update)
        .changed(CREATE_AND_UPDATE)
        .status(batch::status::update),
    rules("batch", "cronjobs", batch::cron_job).update_only(batch::cron_job_update),
    rules("discovery.k8s.io", "endpointslices", discovery::slice)
        .update(discovery::slice_update)
        .changed(&[ObjectMeta, Spec, Immutable]),
    rules(COORDINATION, "leases", coordination::lease),
    rules(COORDINATION, "leasecandidates", coordination::candidate)
        .named(ConfigKey)
        .update(coordination::candidate_update)
        .changed(META_AND_SPEC),
    rules("policy", "poddisruptionbudgets", policy::budget)
        .named(PathSegment)
        .created(META_LAST)
        .changed(&[Spec])
        .status(policy::status)
        .status_changed(&[Immutable]),
    rules("autoscaling", "horizontalpodautoscalers", autoscaling::autoscaler)
        .update_only(autoscaling::autoscaler_update)
        .status(autoscaling::status),
    rules("scheduling.k8s.io", "priorityclasses", scheduling::class).update_only(scheduling::class_update),
    rules("scheduling.k8s.io", "workloads", scheduling::workload)
        .update(scheduling::workload_update)
        .changed(META_AND_SPEC),
    rules("storagemigration.k8s.io", "storageversionmigrations", storage_migration::migration)
        .update(storage_migration::migration_update)
        .changed(CREATE_AND_UPDATE)
        .status(storage_migration::migration_status),
    rules("node.k8s.io", "runtimeclasses", node::runtime_class)
        .update(node::runtime_class_update)
        .changed(CREATE_AND_UPDATE),
    rules(STORAGE, "storageclasses", storage::class).update(storage::class_update).changed(CREATE_AND_UPDATE),
    rules(STORAGE, "volumeattributesclasses", storage::attributes_class)
        .update(storage::attributes_class_update)
        .changed(IMMUTABLE_FIRST),
    rules(STORAGE, "volumeattachments", storage::new_attachment)
        .update(storage::attachment_update)
        .changed(&[ObjectMeta, Immutable])
        .status(storage::attachment_update)
        .status_changed(&[ObjectMeta, Immutable]),
    rules(STORAGE, "csidrivers", storage::csi::driver).update(storage::csi::driver_update).changed(META_AND_SPEC),
    rules(STORAGE, "csinodes", storage::csi::node).update(storage::csi::node_update).changed(CSI_NODES),
    rules(STORAGE, "csistoragecapacities", storage::csi::capacity)
        .update(storage::csi::capacity_update)
        .changed(CREATE_AND_UPDATE),
    rules(NETWORKING, "ingresses", networking::new_ingress)
        .update(networking::ingress_update)
        .changed(&[ObjectMetaUpdate, ObjectMeta, Immutable])
        .status(networking::ingress_status),
    rules(NETWORKING, "ingressclasses", networking::ingress_class).update(networking::ingress_class_update).changed(&[
        ObjectMetaUpdate,
        Immutable,
        ObjectMeta,
        Spec,
    ]),
    rules(NETWORKING, "networkpolicies", networking::policy::policy).changed(SPEC_TWICE),
    rules(NETWORKING, "ipaddresses", networking::addresses::address)
        .named(Address)
        .update(networking::addresses::address_update)
        .changed(CREATE_AND_UPDATE),
    rules(NETWORKING, "servicecidrs", networking::addresses::ranges)
        .update(networking::addresses::ranges_update)
        .changed(CREATE_AND_UPDATE),
    rules(RBAC, "roles", rbac::role).named(PathSegment).changed(CREATE_AND_UPDATE),
    rules(RBAC, "clusterroles", rbac::cluster_role).named(PathSegment).changed(CLUSTER_ROLES),
    rules(RBAC, "rolebindings", rbac::role_binding)
        .named(PathSegment)
        .update(rbac::reference_stays)
        .changed(CREATE_AND_UPDATE),
    rules(RBAC, "clusterrolebindings", rbac::cluster_role_binding)
        .named(PathSegment)
        .update(rbac::reference_stays)
        .changed(CLUSTER_ROLES),
    rules(CERTIFICATES, "clustertrustbundles", trust_bundle::bundle)
        .named(PathSegment)
        .update(trust_bundle::bundle_update)
        .changed(&[ObjectMeta, ObjectMetaUpdate, Immutable]),
    rules(CERTIFICATES, "podcertificaterequests", pod_certificate::request)
        .update_only(pod_certificate::request_update)
        .status(issuance::status),
    rules(CERTIFICATES, "certificatesigningrequests", certificates::request)
        .named(PathSegment)
        .update(certificates::request_update)
        .changed(CERTIFICATE_REQUESTS)
        .status(certificates::request_status)
        .status_changed(CERTIFICATE_REQUESTS),
    rules(WEBHOOKS, "validatingwebhookconfigurations", admissionregistration::validating)
        .update(admissionregistration::validating_update)
        .changed(&[ObjectMeta, Immutable]),
    rules(WEBHOOKS, "mutatingwebhookconfigurations", admissionregistration::mutating)
        .update(admissionregistration::mutating_update)
        .changed(&[ObjectMeta, Immutable]),
    rules(WEBHOOKS, "mutatingadmissionpolicies", mutating_policy::policy)
        .update(mutating_policy::policy_update)
        .changed(&[ObjectMeta, Immutable]),
    rules(WEBHOOKS, "mutatingadmissionpolicybindings", mutating_policy::binding).changed(&[ObjectMeta, Spec]),
    rules(WEBHOOKS, "validatingadmissionpolicies", admission_policy::policy)
        .update(admission_policy::policy_update)
        .changed(&[ObjectMeta, Immutable])
        .status(admission_policy::status)
        .status_changed(&[Immutable]),
    rules(WEBHOOKS, "validatingadmissionpolicybindings", admission_policy::binding).changed(&[ObjectMeta, Spec]),
    rules(FLOW, "flowschemas", flowcontrol::schema)
        .changed(&[ObjectMeta, Spec])
        .status(flowcontrol::status)
        .status_changed(&[Immutable]),
    rules(FLOW, "prioritylevelconfigurations", flowcontrol::level)
        .changed(&[ObjectMeta, Spec])
        .status(flowcontrol::status)
        .status_changed(&[Immutable]),
    rules("apiextensions.k8s.io", "customresourcedefinitions", definition::definition)
        .update_only(definition::definition_update)
        .status(definition::definition_status),
    rules("apiregistration.k8s.io", "apiservices", api_service::service)
        .named(PathSegment)
        .changed(CREATE_WITHIN_UPDATE)
        .status(api_service::status),
    rules("internal.apiserver.k8s.io", "storageversions", storage_version::check)
        .named(StorageVersion)
        .changed(&[])
        .status(storage_version::status)
        .status_changed(&[Immutable]),
    rules(DEVICES, "deviceclasses", devices::class).named(WholeSubdomain).update(devices::class_update).changed(&[
        ObjectMeta,
        ObjectMetaUpdate,
        Immutable,
    ]),
    rules(DEVICES, "resourceclaims", devices::claim)
        .update(devices::spec_stays)
        .changed(&[ObjectMeta, ObjectMetaUpdate, Immutable])
        .status(devices::status::update),
    rules(DEVICES, "resourceclaimtemplates", devices::template).update(devices::spec_stays).changed(CREATE_AND_UPDATE),
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
pub fn validate_create(options: ValidationOptions, served: &Resource, row: &Resource, object: &Value) -> Vec<Error> {
    let rules = judged_by(served, row);
    let mut out = FieldErrors::new(options);
    steps(rules.created, rules, row, (object, object), &mut out);
    out.into_vec()
}

/// The steps of a judgement, of a new object beside itself.
fn steps(steps: &[Phase], rules: &Rules, row: &Resource, (new, old): (&Value, &Value), out: &mut FieldErrors) {
    for step in steps {
        match step {
            ObjectMeta => meta::create(new, rules.name.relaxed(out.options()), row, &metadata(), out),
            ObjectMetaUpdate => changed_metadata(row, new, old, out),
            Spec => (rules.create)(new, out),
            Immutable => (rules.update)(new, old, out),
            StopOnError if out.is_empty() => {}
            StopOnError => return,
        }
    }
}

/// The metadata of a Scale, which is judged like that of a new object.
pub fn scale_metadata(row: &Resource, scale: &Value) -> Vec<Error> {
    let mut out = Vec::new();
    meta::create(scale, NameRule::Subdomain, row, &metadata(), &mut out);
    out
}

/// The metadata of a changed object, as a kind judges it.
fn changed_metadata(row: &Resource, new: &Value, old: &Value, out: &mut FieldErrors) {
    meta::update(new, old, &metadata(), out);
    meta::core_finalizers(row, new, &metadata(), out);
}

/// Validates the metadata of a changed object of any resource, built in or custom. Answers for upstream's
/// `rest.BeforeUpdate`.
pub fn validate_metadata_update(options: ValidationOptions, row: &Resource, new: &Value, old: &Value) -> Vec<Error> {
    generic(options, row, new, old).into_vec()
}

/// The metadata of a changed object as upstream judges it of all kinds. Most kinds do so themselves, some more than
/// once: clients see causes that often.
fn generic(options: ValidationOptions, row: &Resource, new: &Value, old: &Value) -> FieldErrors {
    let mut out = FieldErrors::new(options);
    meta::any(new, PathSegment, row, &metadata(), &mut out);
    meta::update(new, old, &metadata(), &mut out);
    out
}

/// A changed object. Status and other subresources: [`validate_subresource`].
pub fn validate_update(
    options: ValidationOptions,
    served: &Resource,
    row: &Resource,
    new: &Value,
    old: &Value,
) -> Vec<Error> {
    let rules = judged_by(served, row);
    let mut out = generic(options, row, new, old);
    steps(rules.changed, rules, row, (new, old), &mut out);
    out.into_vec()
}

/// An object changed through a subresource: `status`, `ephemeralcontainers`, `resize`, `finalize`, `approval`.
pub fn validate_subresource(
    options: ValidationOptions,
    row: &Resource,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Vec<Error> {
    let mut out = generic(options, row, new, old);
    let rules = rules_of(row).unwrap_or(&GENERIC);
    let (through, update): (&[Phase], Update) = match subresource {
        // Here a pod is judged as a whole, as it is when it changes itself.
        "ephemeralcontainers" => (&[ObjectMetaUpdate, ObjectMeta, Immutable], pod::update::ephemeral),
        "resize" => (&[ObjectMetaUpdate, ObjectMeta, Immutable], pod::resize::resize),
        "finalize" => (&[ObjectMetaUpdate, Immutable], core::finalizers),
        "approval" => (CERTIFICATE_REQUESTS, certificates::request_approval),
        _ => (rules.status_changed, rules.status),
    };
    steps(through, &Rules { update, ..*rules }, row, (new, old), &mut out);
    out.into_vec()
}

/// Returns the warnings for an object that is accepted, new or updated from `old` through a subresource.
pub fn warnings(
    options: ValidationOptions,
    row: &Resource,
    subresource: &str,
    object: &Value,
    old: Option<&Value>,
) -> Vec<String> {
    warnings::warnings_for(options, row, subresource, object, old)
}
