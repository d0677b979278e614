//! Validation rules of a kind as data: what is validated of new and of updated objects, in which order.

use proto::Value;

use super::core;
use crate::rules::names::NameRule;
use crate::rules::options::FieldErrors;

pub(super) type Create = fn(&Value, &mut FieldErrors);
pub(super) type Update = fn(&Value, &Value, &mut FieldErrors);

/// Validation rules of a kind.
#[derive(Clone, Copy)]
pub(crate) struct KindRules {
    pub(super) name: NameRule,
    pub(super) create: Create,
    /// Steps for a new object.
    pub(super) created: &'static [ValidationPhase],
    pub(super) update: Update,
    /// Steps for an updated object.
    pub(super) changed: &'static [ValidationPhase],
    pub(super) status: Update,
    /// Steps for an update of the status subresource.
    pub(super) status_changed: &'static [ValidationPhase],
}

/// A part of the judgement of an object. Upstream's kinds differ in what they look at, how often and in which
/// order, and clients see it: causes are told as often as they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValidationPhase {
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

use ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate, Spec, StopOnError};

/// The whole object as if it were new, and what may not change.
pub(crate) const CREATE_AND_UPDATE: &[ValidationPhase] = &[ObjectMeta, Spec, ObjectMetaUpdate, Immutable];
/// Steps of kinds whose spec is validated twice on update.
pub(crate) const SPEC_TWICE: &[ValidationPhase] = &[ObjectMeta, Spec, ObjectMetaUpdate, Spec, Immutable];
/// Steps of kinds whose update validation includes the whole of create validation.
pub(crate) const CREATE_WITHIN_UPDATE: &[ValidationPhase] = &[ObjectMetaUpdate, ObjectMeta, Spec, Immutable];
/// Steps of kinds that check immutable fields first, and then validate like a new object.
pub(crate) const IMMUTABLE_FIRST: &[ValidationPhase] = &[ObjectMetaUpdate, Immutable, ObjectMeta, Spec];
pub(crate) const META_AND_SPEC: &[ValidationPhase] = &[ObjectMetaUpdate, Spec, Immutable];
/// All of it twice, as roles of the whole cluster and their bindings are judged.
pub(crate) const CLUSTER_ROLES: &[ValidationPhase] = &[ObjectMeta, Spec, ObjectMeta, Spec, ObjectMetaUpdate, Immutable];

/// The drivers of a node as if they were new, twice; its metadata is never compared.
pub(crate) const CSI_NODES: &[ValidationPhase] = &[ObjectMeta, Spec, ObjectMeta, Spec, Immutable];
/// Requests for certificates, through each of their ways in.
pub(crate) const CERTIFICATE_REQUESTS: &[ValidationPhase] = &[ObjectMeta, Immutable, ObjectMetaUpdate];

fn nothing(_: &Value, _: &Value, _: &mut FieldErrors) {}

/// Metadata that only the general rules look at, which come last and only for what is right otherwise.
pub(crate) const META_LAST: &[ValidationPhase] = &[Spec, StopOnError, ObjectMeta];

/// A kind's rules for new objects, which changed ones have to keep as well.
pub(crate) const fn rules(create: Create) -> KindRules {
    let (created, changed, status_changed) =
        (&[ObjectMeta, Spec], &[ObjectMetaUpdate, Immutable, Spec], &[ObjectMetaUpdate, Immutable]);
    let (name, update, status) = (NameRule::Subdomain, nothing, nothing);
    KindRules { name, create, created, update, changed, status, status_changed }
}

impl KindRules {
    pub(crate) const fn named(mut self, name: NameRule) -> Self {
        self.name = name;
        self
    }

    /// Replaces the steps for a new object.
    pub(crate) const fn created(mut self, steps: &'static [ValidationPhase]) -> Self {
        self.created = steps;
        self
    }

    /// Sets the update rules.
    pub(crate) const fn update(mut self, update: Update) -> Self {
        self.update = update;
        self
    }

    /// Sets the update rules where the rest of an updated object is not validated again.
    pub(crate) const fn update_only(self, update: Update) -> Self {
        self.update(update).changed(&[ObjectMetaUpdate, Immutable])
    }

    /// Replaces the steps for an updated object.
    pub(crate) const fn changed(mut self, steps: &'static [ValidationPhase]) -> Self {
        self.changed = steps;
        self
    }

    pub(crate) const fn status(mut self, status: Update) -> Self {
        self.status = status;
        self
    }

    /// Replaces the steps for an update of the status.
    pub(crate) const fn status_changed(mut self, steps: &'static [ValidationPhase]) -> Self {
        self.status_changed = steps;
        self
    }
}

/// KindRules of kinds that say none.
pub(crate) static GENERIC: KindRules = rules(core::any);
