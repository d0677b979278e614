//! Objects and options of writes. Answers for upstream's `rest.UpdatedObjectInfo` and the options of writes.

use std::sync::Arc;

use proto::Value;
use proto::resources::Row;
use shared::authn::UserInfo;
use shared::authz::Attributes;
use shared::status::Status;

use super::super::version_converter::Conversions;
use crate::audit::RequestRecorder;
use crate::machinery::meta::Propagation;
use crate::machinery::query::WriteOptions;

/// Object and options of a write.
pub struct WriteTarget<'a> {
    /// The row of the request.
    pub row: &'a Row,
    /// Subresource, or "".
    pub subresource: &'a str,
    /// Namespace, or "".
    pub namespace: &'a str,
    /// Name in the URL; "" on a plain create.
    pub name: &'a str,
    /// User who writes.
    pub user: &'a UserInfo,
    /// Options of the write.
    pub options: &'a WriteOptions,
    /// Options as admission sees them.
    pub options_object: Value,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// Receives admission's annotations for the audit log.
    pub recorder: RequestRecorder,
    /// The request named a collection that the object is in: admission sees the object, and no name beside it.
    pub of_collection: bool,
    /// Admission was asked about this under another name: the eviction that a delete is part of.
    pub admitted: bool,
    /// Attributes to authorize before a request other than a create creates an object.
    pub creation: Option<Attributes>,
    /// The request is server-side apply.
    pub applies: bool,
    /// Managed fields are dropped: with them the object was too large.
    pub drops_managed_fields: bool,
    /// Results of the kind's conversion webhook, for kinds that have one and track managed fields.
    pub conversions: Option<Arc<Conversions>>,
}

impl<'a> WriteTarget<'a> {
    /// An object (of that namespace and name) that somebody writes. Admission sees no options, and nobody reads notes.
    pub fn new(
        row: &'a Row,
        (namespace, name): (&'a str, &'a str),
        user: &'a UserInfo,
        options: &'a WriteOptions,
    ) -> Self {
        Self {
            row,
            subresource: "",
            namespace,
            name,
            user,
            options,
            options_object: Value::Null,
            warnings: Vec::new(),
            recorder: RequestRecorder::default(),
            of_collection: false,
            admitted: false,
            creation: None,
            applies: false,
            drops_managed_fields: false,
            conversions: None,
        }
    }
}

impl WriteTarget<'_> {
    /// Reports whether a write that was refused for its size is repeated without managed fields, which may be large. An
    /// apply is not: it is about managed fields.
    pub(super) fn too_large(&mut self, refused: &Status) -> bool {
        let said = &refused.message;
        let large = said == "etcdserver: request is too large"
            || (said.contains("ResourceExhausted") && said.contains("trying to send message larger than max"));
        let again = large && !self.applies && !self.drops_managed_fields;
        self.drops_managed_fields |= again;
        again
    }
}

/// Computes the new object from the stored one (`None`: there is none), both in the request's version.
pub type Change<'a> = dyn FnMut(Option<&Value>) -> Result<Value, Status> + Send + 'a;

/// Options of a delete.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// A dry run: nothing is stored.
    pub dry_run: bool,
    /// Seconds of grace.
    pub grace_period_seconds: Option<i64>,
    /// Propagation policy for dependents.
    pub propagation: Option<Propagation>,
    /// `orphanDependents` is given, and false.
    pub cascades: bool,
    /// Precondition.
    pub uid: Option<String>,
    /// Precondition.
    pub resource_version: Option<String>,
    /// The object cannot be read, and goes all the same.
    pub unread: bool,
}

/// Outcome of a delete.
pub struct Deleted {
    /// The object as last seen, in the storage row's version.
    pub object: Value,
    /// False while it is only marked.
    pub gone: bool,
}
