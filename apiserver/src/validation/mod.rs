//! Validation: objects against their kind's rules, as field errors with upstream's paths and texts.
//!
//! Answers for upstream's `pkg/apis/*/validation`. Pure: in come canonical, defaulted trees in the storage version,
//! out go field errors. The rules of a kind are handed in ([`kind_rules`]); the generic part
//! (metadata) is the same for all. Any tree may come in; nothing here panics.

pub(crate) mod admission_policy;
pub(crate) mod admissionregistration;
pub(crate) mod api_service;
pub(crate) mod autoscaling;
pub(crate) mod batch;
mod bundle;
pub(crate) mod certificates;
mod conditions;
pub(crate) mod config;
pub(crate) mod coordination;
pub(crate) mod core;
pub(crate) mod definition;
mod definition_parts;
pub(crate) mod devices;
pub(crate) mod discovery;
pub(crate) mod events;
mod fields;
pub(crate) mod flowcontrol;
mod internal;
pub(crate) mod issuance;
pub(crate) mod kind_rules;
mod lines;
pub(crate) mod mutating_policy;
pub(crate) mod networking;
pub(crate) mod node;
mod node_config;
mod old_annotations;
mod options;
mod pem;
pub(crate) mod pod;
pub(crate) mod pod_certificate;
pub(crate) mod pod_template;
pub(crate) mod policy;
mod possession;
mod privileged;
pub(crate) mod quota;
pub(crate) mod rbac;
pub(crate) mod scheduling;
mod schemas_shown;
pub(crate) mod selectors;
pub mod service;
mod shown;
mod signature;
pub(crate) mod storage;
pub(crate) mod storage_migration;
pub(crate) mod storage_version;
pub(crate) mod strict_addresses;
pub(crate) mod trust_bundle;
pub(crate) mod volume;
pub(crate) mod warnings;
pub(crate) mod workloads;

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
pub use devices::admin::may_administer;
use kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate, Spec, StopOnError};
use kind_rules::{CERTIFICATE_REQUESTS, KindRules, Update, ValidationPhase};
pub(crate) use networking::domain_path;
pub(crate) use options::{KEPT_IN_POD_METADATA, KEPT_IN_POD_SPECS};
pub(crate) use pod::annotations as pod_annotations;
pub use pod::qos_class;
pub(crate) use privileged::privileged;
pub use shown::in_order;
pub(crate) use storage::csi::counts_stay;

fn metadata() -> Path {
    Path::new("metadata")
}

/// A new object, as the last step before it is stored (its name is known, its namespace set).
pub(crate) fn validate_create(
    options: ValidationOptions,
    rules: &KindRules,
    row: &Resource,
    object: &Value,
) -> Vec<Error> {
    let mut out = FieldErrors::new(options);
    steps(rules.created, rules, row, (object, object), &mut out);
    out.into_vec()
}

/// The steps of a judgement, of a new object beside itself.
fn steps(
    steps: &[ValidationPhase],
    rules: &KindRules,
    row: &Resource,
    (new, old): (&Value, &Value),
    out: &mut FieldErrors,
) {
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
    meta::any(new, NameRule::PathSegment, row, &metadata(), &mut out);
    meta::update(new, old, &metadata(), &mut out);
    out
}

/// A changed object. Status and other subresources: [`validate_subresource`].
pub(crate) fn validate_update(
    options: ValidationOptions,
    rules: &KindRules,
    row: &Resource,
    new: &Value,
    old: &Value,
) -> Vec<Error> {
    let mut out = generic(options, row, new, old);
    steps(rules.changed, rules, row, (new, old), &mut out);
    out.into_vec()
}

/// An object changed through a subresource: `status`, `ephemeralcontainers`, `resize`, `finalize`, `approval`.
pub(crate) fn validate_subresource(
    options: ValidationOptions,
    rules: &KindRules,
    row: &Resource,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Vec<Error> {
    let mut out = generic(options, row, new, old);
    let (through, update): (&[ValidationPhase], Update) = match subresource {
        // Here a pod is judged as a whole, as it is when it changes itself.
        "ephemeralcontainers" => (&[ObjectMetaUpdate, ObjectMeta, Immutable], pod::update::ephemeral),
        "resize" => (&[ObjectMetaUpdate, ObjectMeta, Immutable], pod::resize::resize),
        "finalize" => (&[ObjectMetaUpdate, Immutable], core::finalizers),
        "approval" => (CERTIFICATE_REQUESTS, certificates::request_approval),
        _ => (rules.status_changed, rules.status),
    };
    steps(through, &KindRules { update, ..*rules }, row, (new, old), &mut out);
    out.into_vec()
}
