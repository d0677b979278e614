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
mod certificates;
mod config;
mod core;
mod cron;
mod definition;
mod discovery;
mod events;
mod flowcontrol;
mod internal;
mod lines;
mod meta;
mod mutating_policy;
mod names;
mod networking;
mod node;
mod pod;
mod policy;
mod privileged;
mod quota;
mod rbac;
mod reviews;
mod scheduling;
mod selectors;
mod service;
mod shown;
mod storage;
mod tree;
mod volume;
mod warnings;
mod workloads;

#[cfg(test)]
mod tests;

use proto::Value;
use proto::resources::Resource;
use shared::status::field::{Error, Path};

use crate::crd;
use names::NameRule;
pub use privileged::privileged;
pub use shown::in_order;

type Create = fn(&Value, &mut Vec<Error>);
type Update = fn(&Value, &Value, &mut Vec<Error>);

/// What is particular about a kind.
struct Rules {
    group: &'static str,
    plural: &'static str,
    name: NameRule,
    create: Create,
    update: Update,
}

const fn rules(group: &'static str, plural: &'static str, name: NameRule, create: Create, update: Update) -> Rules {
    Rules { group, plural, name, create, update }
}

/// Updates are judged like new objects, nothing more.
fn nothing(_: &Value, _: &Value, _: &mut Vec<Error>) {}

use NameRule::{Dns1035, Label, PathSegment, Subdomain};

const APPS: &str = "apps";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const WEBHOOKS: &str = "admissionregistration.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// Rules by group and plural. Kinds without a row have the generic rules only.
static RULES: &[Rules] = &[
    rules("", "pods", Subdomain, pod::create, pod::update::update),
    rules("", "podtemplates", Subdomain, pod::template_object, nothing),
    rules("", "replicationcontrollers", Subdomain, workloads::replication_controller, nothing),
    rules("", "services", Dns1035, service::create, service::update),
    rules("", "endpoints", Subdomain, discovery::endpoints, nothing),
    rules("", "nodes", Subdomain, node::create, node::update),
    rules("", "namespaces", Label, core::namespace, nothing),
    rules("", "configmaps", Subdomain, config::config_map, config::config_map_update),
    rules("", "secrets", Subdomain, config::secret, config::secret_update),
    rules("", "serviceaccounts", Subdomain, core::any, nothing),
    rules("", "persistentvolumes", Subdomain, storage::volume, storage::volume_update),
    rules("", "persistentvolumeclaims", Subdomain, storage::claim, storage::claim_update),
    rules("", "resourcequotas", Subdomain, quota::quota, quota::quota_update),
    rules("", "limitranges", Subdomain, quota::limit_range, nothing),
    rules("", "events", Subdomain, events::create, nothing),
    rules(APPS, "replicasets", Subdomain, workloads::replica_set, workloads::selector_stays),
    rules(APPS, "deployments", Subdomain, workloads::deployment, workloads::selector_stays),
    rules(APPS, "daemonsets", Subdomain, workloads::daemon_set, workloads::daemon_set_update),
    rules(APPS, "statefulsets", Subdomain, workloads::stateful_set, workloads::stateful_set_update),
    rules(APPS, "controllerrevisions", Subdomain, workloads::revision, workloads::revision_update),
    rules("batch", "jobs", Subdomain, batch::job, batch::job_update),
    rules("batch", "cronjobs", Subdomain, batch::cron_job, nothing),
    rules("discovery.k8s.io", "endpointslices", Subdomain, discovery::slice, discovery::slice_update),
    rules("coordination.k8s.io", "leases", Subdomain, core::lease, nothing),
    rules("policy", "poddisruptionbudgets", Subdomain, policy::budget, nothing),
    rules("autoscaling", "horizontalpodautoscalers", Subdomain, autoscaling::autoscaler, nothing),
    rules("scheduling.k8s.io", "priorityclasses", Subdomain, scheduling::class, scheduling::class_update),
    rules(STORAGE, "storageclasses", Subdomain, storage::class, storage::class_update),
    rules(STORAGE, "volumeattachments", Subdomain, storage::attachment, storage::attachment_update),
    rules(STORAGE, "csidrivers", Subdomain, storage::csi_driver, nothing),
    rules(STORAGE, "csinodes", Subdomain, storage::csi_node, nothing),
    rules(NETWORKING, "ingresses", Subdomain, networking::ingress, nothing),
    rules(NETWORKING, "ingressclasses", Subdomain, networking::ingress_class, networking::ingress_class_update),
    rules(NETWORKING, "networkpolicies", Subdomain, networking::policy, nothing),
    rules(NETWORKING, "ipaddresses", PathSegment, core::address, nothing),
    rules(RBAC, "roles", PathSegment, rbac::role, nothing),
    rules(RBAC, "clusterroles", PathSegment, rbac::cluster_role, nothing),
    rules(RBAC, "rolebindings", PathSegment, rbac::role_binding, rbac::reference_stays),
    rules(RBAC, "clusterrolebindings", PathSegment, rbac::cluster_role_binding, rbac::reference_stays),
    rules(
        "certificates.k8s.io",
        "certificatesigningrequests",
        Subdomain,
        certificates::request,
        certificates::request_update,
    ),
    rules(WEBHOOKS, "validatingwebhookconfigurations", Subdomain, admissionregistration::validating, nothing),
    rules(WEBHOOKS, "mutatingwebhookconfigurations", Subdomain, admissionregistration::mutating, nothing),
    rules(WEBHOOKS, "mutatingadmissionpolicies", Subdomain, mutating_policy::policy, nothing),
    rules(WEBHOOKS, "mutatingadmissionpolicybindings", Subdomain, mutating_policy::binding, nothing),
    rules(WEBHOOKS, "validatingadmissionpolicies", Subdomain, admission_policy::policy, nothing),
    rules(WEBHOOKS, "validatingadmissionpolicybindings", Subdomain, admission_policy::binding, nothing),
    rules(FLOW, "flowschemas", Subdomain, flowcontrol::schema, nothing),
    rules(FLOW, "prioritylevelconfigurations", Subdomain, flowcontrol::level, nothing),
    rules(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        Subdomain,
        definition::definition,
        definition::definition_update,
    ),
    rules("apiregistration.k8s.io", "apiservices", PathSegment, api_service::service, nothing),
    rules(AUTHORIZATION, "subjectaccessreviews", Subdomain, reviews::subject, nothing),
    rules(AUTHORIZATION, "localsubjectaccessreviews", Subdomain, reviews::local, nothing),
    rules(AUTHORIZATION, "selfsubjectaccessreviews", Subdomain, reviews::own, nothing),
];

const GENERIC: Rules = rules("", "", Subdomain, core::any, nothing);

fn rules_of(row: &Resource) -> &'static Rules {
    RULES.iter().find(|r| r.group == row.group && r.plural == row.plural).unwrap_or(&GENERIC)
}

fn metadata() -> Path {
    Path::new("metadata")
}

/// A new object, as the last step before it is stored (its name is known, its namespace set).
pub fn validate_create(row: &Resource, object: &Value) -> Vec<Error> {
    let rules = rules_of(row);
    let mut out = Vec::new();
    // Reviews and bindings have no metadata to speak of.
    if row.is_stored() {
        meta::create(object, rules.name, row.namespaced, &metadata(), &mut out);
    }
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

/// A changed object. Status and other subresources: [`validate_subresource`].
pub fn validate_update(row: &Resource, new: &Value, old: &Value) -> Vec<Error> {
    let rules = rules_of(row);
    let mut out = Vec::new();
    meta::update(new, old, &metadata(), &mut out);
    let again = out.clone();
    if let Some(served) = crd::served(row) {
        out.extend(crd::objects::update(row, served, "", new, old));
        return out;
    }
    out.extend(again);
    (rules.update)(new, old, &mut out);
    // Pods and claims compare field by field; what did not change was judged before.
    if !matches!((&*row.group, &*row.plural), ("", "pods" | "persistentvolumeclaims" | "nodes")) {
        (rules.create)(new, &mut out);
    }
    out
}

/// An object changed through a subresource: `status`, `ephemeralcontainers`, `resize`, `finalize`, `approval`.
pub fn validate_subresource(row: &Resource, subresource: &str, new: &Value, old: &Value) -> Vec<Error> {
    let mut out = Vec::new();
    meta::update(new, old, &metadata(), &mut out);
    let again = out.clone();
    if let Some(served) = crd::served(row) {
        out.extend(crd::objects::update(row, served, subresource, new, old));
        return out;
    }
    out.extend(again);
    match (&*row.group, &*row.plural, subresource) {
        ("", "pods", "ephemeralcontainers") => pod::update::ephemeral(new, old, &mut out),
        ("", "pods", "resize") => pod::update::resize(new, old, &mut out),
        ("", "pods", "status") => pod::update::status(new, old, &mut out),
        ("certificates.k8s.io", "certificatesigningrequests", "status" | "approval") => {
            certificates::request_update(new, old, &mut out);
        }
        _ => {}
    }
    out
}

/// What a client should know about an object that is accepted.
pub fn warnings(row: &Resource, object: &Value) -> Vec<String> {
    warnings::of(row, object)
}
