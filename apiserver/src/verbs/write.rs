//! POST and PUT. Answers for upstream's `createHandler`, `UpdateResource`.

use std::sync::Arc;

use proto::resources::{Resource, Row};
use proto::{Value, schema};
use shared::authz::Attributes;
use shared::status::Status;
use shared::traces;

use super::engine::Engine;
use super::managers::WrittenKind;
use super::{Reply, VerbRequest, managers, namespace_of, reply_object, target};
use crate::admission::Operation;
use crate::machinery::meta;
use crate::machinery::query::{OptionsKind, WriteOptions};
use crate::negotiate::{self, Decoded, Expected};
use crate::registry::{behavior, owners, strategy};
use crate::storage::other_than_asked;

/// Decodes a body as the row's kind and fills in defaults.
pub fn body(r: &VerbRequest, row: &Row, options: &WriteOptions) -> Result<Decoded, Status> {
    let behavior = behavior(row);
    let open = behavior.has_open_bodies();
    let decoded = negotiate::decode_object(r.sent_body(), row, options.field_validation)?;
    if let Some(why) = behavior.misfit(row, &decoded.object) {
        if open {
            r.recorder.add_warnings(decoded.warnings);
        }
        return Err(Status::bad_request(&why));
    }
    r.recorder.record_object(row.schema().filter(|_| !open), &decoded.object);
    Ok(decoded)
}

/// Decodes the body of a subresource that has a kind of its own, and fills in its defaults.
pub fn body_of_kind(r: &VerbRequest, kind: (&str, &str, &str), options: &WriteOptions) -> Result<Decoded, Status> {
    let (group, version, kind) = kind;
    let mut decoded =
        negotiate::decode(r.sent_body(), &Expected::kind(group, version, kind), options.field_validation)?;
    let schema = schema::kind(group, version, kind);
    if let Some(schema) = schema {
        proto::defaulting::apply(schema, &mut decoded.object);
    }
    r.recorder.record_object(schema, &decoded.object);
    Ok(decoded)
}

/// Fills in defaults.
pub fn default(row: &Resource, object: &mut Value) -> Result<(), Status> {
    behavior(row).default(row, object)
}

/// Defaults the result of an apply as [`default`] does.
pub fn default_applied(row: &Resource, object: &mut Value) -> Result<(), Status> {
    behavior(row).default_applied(row, object)
}

/// The object must be in the namespace of the request, or say nothing.
pub fn check_namespace(object: &mut Value, namespace: &str) -> Result<(), Status> {
    let there = meta::text(object, "namespace");
    if !there.is_empty() && !namespace.is_empty() && there != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta::set_text(object, "namespace", namespace);
    Ok(())
}

/// The object must have the name of the URL.
pub fn check_name(object: &Value, name: &str) -> Result<(), Status> {
    match meta::text(object, "name") {
        "" => Err(Status::bad_request(&format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        there if there != name => Err(Status::bad_request(&format!(
            "the name of the object ({there}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

/// Traces the result of a write. Not the error's text: that may quote the object.
fn traced<T>(r: &VerbRequest, stored: Result<T, Status>) -> Result<T, Status> {
    let how = if stored.is_ok() { "Write to database call succeeded" } else { "Write to database call failed" };
    traces::step_of(how, "len", r.body.len());
    stored
}

const STORING: &str = "About to store object in database";

/// POST.
pub async fn create(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Create, &r.user_agent)?;
    traces::step("About to convert to expected version");
    let Decoded { mut object, mut warnings } = body(r, row, &options)?;
    traces::step("Conversion done");
    meta::wipe(&mut object);
    if !row.is_stored() {
        return create_virtual(engine, r, row, object, &options).await;
    }
    let namespace = namespace_of(&r.info, row);
    r.recorder.keep_warnings(check_namespace(&mut object, namespace), &warnings)?;
    owners::dedup(&mut object, owners::DedupPhase::Sent, &mut warnings);
    let kind = WrittenKind { rows: &engine.rows, row, conversions: None };
    managers::updated(kind, "", &Value::Null, &mut object, &options.field_manager);
    let mut t = target(r, row, "", &options, "CreateOptions");
    t.warnings = warnings;
    traces::step(STORING);
    let created = traced(r, engine.create(&mut t, object).await);
    let created = r.recorder.keep_warnings(created, &t.warnings)?;
    Ok(created.reply(engine, r, row, 201)?.warn(t.warnings))
}

/// Creates of kinds that are computed or are actions.
async fn create_virtual(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    row: &Row,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Reply, Status> {
    let namespace = namespace_of(&r.info, row);
    check_namespace(&mut object, namespace)?;
    if let Some(acting) = engine.actions.create(engine, r, row, &mut object, options) {
        return acting.await;
    }
    let mut t = target(r, row, "", options, "CreateOptions");
    engine.admit_and_validate(&mut t, Operation::Create, Some(&mut object), None).await?;
    match engine.virtuals.create(&r.user, row, namespace, object).await {
        Some(answer) => reply_object(engine, r, row, 201, &answer?),
        None => Err(Status::generic_method_not_allowed()),
    }
}

/// A PUT may name a uid as a precondition.
pub(super) fn check_uid(
    engine: &Engine,
    row: &Resource,
    namespace: &str,
    new: &Value,
    old: &Value,
) -> Result<(), Status> {
    let (asked, there) = (meta::text(new, "uid"), meta::text(old, "uid"));
    if asked.is_empty() || asked == there {
        return Ok(());
    }
    let key = engine.key(row, namespace, meta::text(old, "name"));
    let why = other_than_asked(&key, "UID", asked, there);
    Err(Status::conflict(&row.group, &row.plural, meta::text(old, "name"), &why))
}

/// Attributes to authorize when a request other than a create comes to create an object.
pub(super) fn creation(r: &VerbRequest, row: &Resource) -> Attributes {
    Attributes {
        user: r.user.clone(),
        verb: "create".to_owned(),
        namespace: r.info.namespace.clone(),
        api_group: row.group.to_string(),
        api_version: row.version.to_string(),
        resource: row.plural.to_string(),
        name: r.info.name.clone(),
        path: r.info.path.clone(),
        resource_request: true,
        ..Attributes::default()
    }
}

/// PUT of an object or one of its object-shaped subresources.
pub async fn update(engine: &Arc<Engine>, r: &VerbRequest, row: &Row, subresource: &str) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Update, &r.user_agent)?;
    traces::step("About to convert to expected version");
    let Decoded { mut object, mut warnings } = body(r, row, &options)?;
    traces::step("Conversion done");
    let namespace = namespace_of(&r.info, row);
    let there = check_namespace(&mut object, namespace).and_then(|()| check_name(&object, &r.info.name));
    r.recorder.keep_warnings(there, &warnings)?;
    owners::dedup(&mut object, owners::DedupPhase::Sent, &mut warnings);
    let mut t = target(r, row, subresource, &options, "UpdateOptions");
    t.creation = (subresource.is_empty() && strategy::strategy_of(row).create_on_update).then(|| creation(r, row));
    t.warnings = warnings;
    let conversions = t.conversions.clone();
    let kind = WrittenKind { rows: &engine.rows, row, conversions: conversions.as_deref() };
    let mut change = |old: Option<&Value>| {
        let mut new = object.clone();
        match old {
            Some(old) => {
                check_uid(engine, row, namespace, &new, old)?;
                managers::updated(kind, subresource, old, &mut new, &options.field_manager);
            }
            None => managers::created(row, subresource, &mut new, &options.field_manager),
        }
        Ok(new)
    };
    traces::step(STORING);
    let updated = traced(r, engine.update(&mut t, &mut change).await);
    let (updated, created) = r.recorder.keep_warnings(updated, &t.warnings)?;
    let code = if created { 201 } else { 200 };
    Ok(updated.reply(engine, r, row, code)?.warn(t.warnings))
}
