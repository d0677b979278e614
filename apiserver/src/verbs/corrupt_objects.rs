//! Objects that etcd has and nobody can read: sealed with a key that is gone, or damaged. Behind
//! `AllowUnsafeMalformedObjectDeletion` they are named in lists, and those who may say so delete them unread. Answers
//! for upstream's `corruptObjectDeleter`.
//!
//! Such a delete asks admission without an object, and nobody else: no finalizer and no precondition holds it up, and
//! nothing that belongs to the object is given back.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcd_client::KeyValue;
use proto::resources::{Resource, Row};
use proto::{Value, schema};
use serde_json::json;
use shared::authz::Attributes;
use shared::status::{Details, Status, field};

use super::engine::{Engine, UPDATE_ROUNDS, WriteTarget, conflict, storage_status};
use super::{Reply, VerbRequest, accepted};
use crate::admission::Operation;
use crate::api::NotPermitted;
use crate::negotiate;
use crate::registry::behavior;
use crate::rows::qualified;
use crate::storage::codec::{self, CodecError};
use crate::storage::{self, Stored, WriteResult};

/// The option of a delete.
pub(crate) const OPTION: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
const VERB: &str = "unsafe-delete-ignore-read-errors";
/// Says in the audit log that the option was given.
const ANNOTATION: &str = "apiserver.k8s.io/unsafe-delete-ignore-read-error";
/// Objects that an answer names.
const MOST_NAMED: usize = 100;
const PAGE: i64 = 500;

fn untransformable(why: &dyn std::fmt::Display) -> String {
    format!("data from the storage is not transformable revision=0: {why}")
}

fn undecodable(revision: i64, why: &dyn std::fmt::Display) -> String {
    format!("object not decodable revision={revision}: {why}")
}

/// The error of upstream's storage layer.
fn corrupt(key: &str, why: &str) -> String {
    format!("StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}")
}

impl Engine {
    /// The key as upstream's storage layer is given it, without the cluster's prefix.
    fn tail<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix(self.store.prefix()).unwrap_or(key)
    }

    /// Error of one object that could not be transformed from storage.
    pub(super) fn read_error(&self, error: &storage::Error) -> Status {
        match error {
            storage::Error::Transform { key, why } if self.policy.deletes_corrupt => {
                Status::internal(&corrupt(self.tail(key), &untransformable(why)))
            }
            other => storage_status(other),
        }
    }

    /// Error of one object that was read and cannot be decoded.
    pub(super) fn decode_error(&self, stored: &Stored, error: &CodecError) -> Status {
        if !self.policy.deletes_corrupt {
            return Status::internal(&error.to_string());
        }
        Status::internal(&corrupt(self.tail(&stored.key), &undecodable(stored.revision, error)))
    }

    /// Explains why a value of etcd is corrupt; `None` when it can be read.
    async fn corruption(&self, row: &Row, kv: KeyValue) -> Result<Option<String>, storage::Error> {
        match self.store.transform_from_storage(kv).await {
            Err(storage::Error::Transform { why, .. }) => Ok(Some(untransformable(&why))),
            Err(other) => Err(other),
            Ok(stored) => {
                let decoded = codec::decode(row, &stored.value, stored.revision);
                Ok(decoded.err().map(|error| undecodable(stored.revision, &error)))
            }
        }
    }

    /// Names the objects of a collection that cannot be read; `scope` is what their keys begin with.
    pub(super) async fn reject_corrupt(&self, row: &Row, scope: &str) -> Result<(), Status> {
        let prefix = format!("{}/{scope}", self.store.key(&row.etcd_prefix));
        let (mut start, mut revision, mut found) = (prefix.clone(), 0, Vec::new());
        loop {
            let page = self.store.raw_page(&prefix, &start, PAGE, revision).await.map_err(|e| storage_status(&e))?;
            revision = page.revision;
            for kv in page.items {
                let key = String::from_utf8_lossy(kv.key()).into_owned();
                start = format!("{key}\0");
                if let Some(why) = self.corruption(row, kv).await.map_err(|e| storage_status(&e))? {
                    found.push((key, why));
                }
            }
            if !page.more || found.len() > MOST_NAMED {
                return if found.is_empty() { Ok(()) } else { Err(named(row, &found)) };
            }
        }
    }
}

/// The answer to a list that some objects are missing of.
fn named(row: &Resource, found: &[(String, String)]) -> Status {
    let message = format!("failed to read one or more {} from the storage", qualified(row));
    let details = Details {
        group: row.group.to_string(),
        kind: row.plural.to_string(),
        name: "list".to_owned(),
        ..Details::default()
    };
    let mut status = Status::failure(500, "StorageReadError", message);
    status.details = Some(details);
    for (key, why) in found.iter().take(MOST_NAMED) {
        status.add_cause("UnexpectedServerResponse", &corrupt(key, why), key);
    }
    if found.len() > MOST_NAMED {
        status.add_cause("FieldValueTooMany", "too many errors, the list is truncated", "");
    }
    status
}

/// Validates the other options of an unsafe delete (`ignoreStoreReadErrorWithClusterBreakingPotential`).
pub(crate) fn check(options: &Value) -> Vec<field::Error> {
    if options[OPTION] != true {
        return Vec::new();
    }
    let given = |key: &&str| match &options[*key] {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    let others = ["dryRun", "propagationPolicy", "orphanDependents", "gracePeriodSeconds", "preconditions"];
    let said = |key: &str| field::Error::invalid(OPTION, true, &format!("cannot be set together with .{key}"));
    others.into_iter().filter(given).map(said).collect()
}

/// The answer to who wants to delete a collection that way.
pub(crate) fn refuse_collection() -> Status {
    let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
    Status::invalid("meta.k8s.io", "DeleteOptions", "", [field::Error::invalid(OPTION, true, why)])
}

/// Deletes an object that cannot be read.
pub(crate) async fn delete(engine: &Arc<Engine>, r: &VerbRequest, t: &mut WriteTarget<'_>) -> Result<Reply, Status> {
    t.recorder.annotate(BTreeMap::from([(ANNOTATION.to_owned(), String::new())]));
    authorize(engine, t).await?;
    let storage = behavior(t.row).working_row(t.row);
    let key = engine.key(&storage, t.namespace, t.name);
    let mut there = engine.store.raw(&key).await.map_err(|e| storage_status(&e))?;
    if !is_corrupt(engine, &storage, there.clone()).await? {
        let why = "is exclusively used to delete corrupt object(s), try again by removing this option";
        let error = field::Error::invalid(OPTION, true, why);
        return Err(Status::invalid(&t.row.group, &t.row.plural, t.name, [error]));
    }
    let nothing = json!({"kind": &*storage.kind, "apiVersion": storage.api_version(), "metadata": {}});
    engine.admit_and_validate(t, Operation::Delete, None, Some(&nothing)).await?;
    for _ in 0..UPDATE_ROUNDS {
        let Some(kv) = there else { return success(r, t.row) };
        match engine.store.delete_if(&key, kv.mod_revision()).await {
            Ok(WriteResult::Done(_)) => return success(r, t.row),
            // Somebody was faster, and wrote something that can be read or cannot.
            Ok(WriteResult::Lost(_)) | Err(storage::Error::Transform { .. }) => {}
            Err(error) => return Err(storage_status(&error)),
        }
        there = engine.store.raw(&key).await.map_err(|e| storage_status(&e))?;
    }
    Err(conflict(t.row, t.name))
}

async fn is_corrupt(engine: &Engine, storage: &Row, there: Option<KeyValue>) -> Result<bool, Status> {
    match there {
        Some(kv) => engine.corruption(storage, kv).await.map(|fault| fault.is_some()).map_err(|e| storage_status(&e)),
        None => Ok(false),
    }
}

/// Such a delete needs a right of its own.
async fn authorize(engine: &Engine, t: &WriteTarget<'_>) -> Result<(), Status> {
    let question = Attributes {
        user: t.user.clone(),
        verb: VERB.to_owned(),
        namespace: t.namespace.to_owned(),
        name: t.name.to_owned(),
        api_group: t.row.group.to_string(),
        api_version: t.row.version.to_string(),
        resource: t.row.plural.to_string(),
        resource_request: true,
        ..Attributes::default()
    };
    let Err(NotPermitted { reason }) = engine.permits.ask(&question).await else { return Ok(()) };
    let why = format!("not permitted to do {VERB:?}, reason: {reason}");
    Err(Status::forbidden(&t.row.group, &t.row.plural, t.name, &why))
}

/// There is no object to answer with.
fn success(r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let accepted = accepted(r, false)?;
    let tree = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": r.info.name, "kind": &*row.kind}, "code": 200});
    let body = negotiate::envelope(accepted.format, accepted.pretty, schema::kind("", "v1", "Status"), &tree);
    Ok(Reply::new(200, accepted.format.content_type(), body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::builtin;

    #[test]
    fn the_option_stands_alone() {
        let said = |options: Value| check(&options).into_iter().map(|e| e.body()).collect::<Vec<_>>();
        assert_eq!(said(json!({"dryRun": ["All"]})), [""; 0]);
        assert_eq!(said(json!({OPTION: false, "gracePeriodSeconds": 0})), [""; 0]);
        assert_eq!(said(json!({OPTION: true, "dryRun": []})), [""; 0]);
        let all = json!({OPTION: true, "dryRun": ["All"], "propagationPolicy": "Orphan", "orphanDependents": false,
            "gracePeriodSeconds": 0, "preconditions": {}});
        let keys = ["dryRun", "propagationPolicy", "orphanDependents", "gracePeriodSeconds", "preconditions"];
        assert_eq!(said(all), keys.map(|key| format!("Invalid value: true: cannot be set together with .{key}")));
    }

    #[test]
    fn corrupt_list_names_a_limited_number_of_objects() {
        let row = builtin("apps", "deployments").expect("a row");
        let one = ("/registry/deployments/n/a".to_owned(), untransformable(&"no matching prefix found"));
        let status = named(&row, std::slice::from_ref(&one));
        assert_eq!(status.message, "failed to read one or more deployments.apps from the storage");
        let details = status.details.expect("details");
        assert_eq!((details.kind.as_str(), details.name.as_str(), details.causes.len()), ("deployments", "list", 1));
        assert_eq!(details.causes[0].field, "/registry/deployments/n/a");
        let want = "StorageError: corrupt object, Code: 7, Key: /registry/deployments/n/a, ResourceVersion: 0, AdditionalErrorMsg: data from the storage is not transformable revision=0: no matching prefix found";
        assert_eq!(details.causes[0].message, want);
        let many = vec![one; MOST_NAMED + 1];
        let causes = named(&row, &many).details.expect("details").causes;
        assert_eq!(causes.len(), MOST_NAMED + 1);
        assert_eq!(causes.last().map(|c| c.reason.as_str()), Some("FieldValueTooMany"));
    }
}
