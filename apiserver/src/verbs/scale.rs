//! The `scale` subresource: an `autoscaling/v1` Scale made from, and written back to, the object's replicas. Answers
//! for upstream's `ScaleREST`.

use std::sync::Arc;

use proto::resources::{Resource, Row};
use proto::{Value, schema};
use serde_json::{Map, json};
use shared::status::Status;

use super::engine::Engine;
use super::patch::{Patch, PatchDocument, check_applied};
use super::scale_managers::{of_object, of_scale};
use super::{Reply, VerbRequest, get, managers, namespace_of, patch, table, target, write};
use crate::machinery::meta;
use crate::machinery::query::{OptionsKind, WriteOptions};
use crate::machinery::tree;
use crate::negotiate::{self, ObjectForm};
use crate::registry::behavior;

/// Stands for replicas that nobody has set.
const UNSET: i64 = i32::MIN as i64;

/// The Scale of an object.
pub fn scale_of(row: &Resource, object: &Value) -> Value {
    let mut metadata = Map::new();
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(v) = object["metadata"].get(key) {
            metadata.insert(key.to_owned(), v.clone());
        }
    }
    let parts = behavior(row).scale_parts(object);
    let mut status = json!({"replicas": parts.status.as_i64().unwrap_or(0)});
    if let Some(text) = parts.selector.filter(|text| !text.is_empty()) {
        status["selector"] = Value::from(text);
    }
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": parts.spec.as_i64().unwrap_or(0)}, "status": status,
    })
}

/// The Scale of an object as the answer. An object that lacks its replicas has none.
fn reply(r: &VerbRequest, row: &Row, object: &Value) -> Result<Reply, Status> {
    if let Some(path) = behavior(row).missing_replicas(object) {
        return Err(Status::internal(&format!("the spec replicas field {path:?} does not exist")));
    }
    let (accepted, scale) = (super::accepted(r, false)?, scale_of(row, object));
    let body = match accepted.shape {
        ObjectForm::Table(version) => {
            let (columns, cells) = behavior(row).scale_table(row, &scale);
            let tree = table::single(columns, cells, r, version, &scale)?;
            table::of_one(&accepted, accepted.pretty, tree)?
        }
        _ => {
            let schema = schema::kind("autoscaling", "v1", "Scale");
            negotiate::envelope(accepted.format, accepted.pretty, schema, &scale)
        }
    };
    Ok(Reply::new(200, accepted.format.content_type(), body))
}

/// Scale that a patch starts from: replicas that were never set are not zero.
fn patched(row: &Resource, object: &Value) -> Value {
    let mut scale = scale_of(row, object);
    if behavior(row).missing_replicas(object).is_some() {
        scale["spec"]["replicas"] = Value::from(UNSET);
    }
    scale
}

/// The replicas of a Scale that can be accepted.
fn check(row: &Resource, scale: &Value, name: &str) -> Result<i64, Status> {
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    let errors = behavior(row).validate_scale(row, scale);
    if errors.is_empty() { Ok(replicas) } else { Err(Status::invalid("autoscaling", "Scale", name, errors)) }
}

/// The object with the replicas, and preconditions, of a Scale, whose owners they belong to now.
fn written_back(row: &Resource, old: &Value, scale: &Value) -> Result<Value, Status> {
    let name = meta::text(old, "name");
    if let Some(path) = behavior(row).missing_replicas(old).filter(|_| scale["spec"]["replicas"] == UNSET) {
        return Err(Status::bad_request(&format!("the spec replicas field {path:?} cannot be empty")));
    }
    check(row, scale, name)?;
    let uid = meta::text(scale, "uid");
    if !uid.is_empty() && uid != meta::text(old, "uid") {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", meta::text(old, "uid"));
        return Err(Status::conflict(&row.group, &format!("{}/scale", row.plural), name, &why));
    }
    let mut new = old.clone();
    put_back(row, &mut new, scale)?;
    let revision = meta::text(scale, "resourceVersion");
    if !(behavior(row).scales_without_revision() && revision.is_empty()) {
        meta::set_text(&mut new, "resourceVersion", revision);
    }
    Ok(new)
}

/// Gives an object the replicas of its Scale, and their owners.
pub(super) fn put_back(row: &Resource, object: &mut Value, scale: &Value) -> Result<(), Status> {
    let replicas = check(row, scale, meta::text(object, "name"))?;
    let path = behavior(row).replicas_path();
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    *tree::field(object, &names) = Value::from(replicas);
    let entries = tree::list(object, "/metadata/managedFields");
    let entries = of_object(entries, tree::list(scale, "/metadata/managedFields"), &path, &row.api_version());
    if entries.is_empty() {
        meta::metadata(object).remove("managedFields");
    } else {
        meta::metadata(object).insert("managedFields".to_owned(), Value::from(entries));
    }
    Ok(())
}

/// The Scale of an object, with the owners of its replicas.
pub(super) fn owned(row: &Resource, object: &Value) -> Value {
    with_owners(row, object, scale_of(row, object))
}

fn with_owners(row: &Resource, object: &Value, mut scale: Value) -> Value {
    let entries = of_scale(tree::list(object, "/metadata/managedFields"), &behavior(row).replicas_path());
    if !entries.is_empty() {
        scale["metadata"]["managedFields"] = Value::from(entries);
    }
    scale
}

fn updated(row: &Resource, old: &Value, mut scale: Value, manager: &str) -> Result<Value, Status> {
    let there = with_owners(row, old, patched(row, old));
    managers::updated_scale(&there, &mut scale, manager)?;
    written_back(row, old, &scale)
}

/// Server-side apply: the Scale has owners, which are the object's that own its replicas.
fn applied(row: &Resource, old: &Value, config: &Value, options: &WriteOptions) -> Result<Value, Status> {
    let there = with_owners(row, old, patched(row, old));
    written_back(row, old, &managers::applied_scale(&there, config, options)?)
}

/// GET, PUT and PATCH.
pub async fn dispatch(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let namespace = namespace_of(&r.info, row);
    let name = &r.info.name;
    match r.info.verb.as_str() {
        "get" => {
            let at = get::revision(r.query.get("resourceVersion").unwrap_or(""))
                .map_err(|e| Status::unknown(&e.to_string()))?;
            let entry = get::entry(engine, row, namespace, name, at).await?;
            reply(r, row, &engine.served(row, &entry.raw)?)
        }
        "update" => {
            let options = WriteOptions::read(&r.query, OptionsKind::Update, &r.user_agent)?;
            let decoded = write::body_of_kind(r, ("autoscaling", "v1", "Scale"), &options);
            let mut scale = decoded.map_err(|why| behavior(row).no_scale(why))?;
            write::check_name(&scale.object, name)?;
            write::check_namespace(&mut scale.object, namespace)?;
            let mut t = target(r, row, "scale", &options, "UpdateOptions");
            let mut change = |old: Option<&Value>| {
                let old = old.ok_or_else(|| Status::not_found(&row.group, &row.plural, name))?;
                write::check_uid(engine, row, namespace, &scale.object, old)?;
                updated(row, old, scale.object.clone(), &options.field_manager)
            };
            let (written, _) = engine.update(&mut t, &mut change).await?;
            Ok(reply(r, row, &written.tree(engine, row)?)?.warn(scale.warnings))
        }
        "patch" => {
            let is_apply = Patch::applies(&r.content_type);
            let options = WriteOptions::read(&r.query, OptionsKind::Patch(is_apply), &r.user_agent)?;
            patch::record_sent(r);
            let patch = Patch::read(r.sent_body())?;
            if let PatchDocument::Apply(config) = &patch.document {
                check_applied(("autoscaling/v1", "Scale"), config, name, namespace)?;
            }
            let schema = schema::kind("autoscaling", "v1", "Scale").ok_or_else(Status::generic_not_found)?;
            let mut t = target(r, row, "scale", &options, "PatchOptions");
            let mut found = Vec::new();
            let mut change = |old: Option<&Value>| {
                let old = old.ok_or_else(|| Status::not_found(&row.group, &row.plural, name))?;
                if let PatchDocument::Apply(config) = &patch.document {
                    let new = applied(row, old, config, &options)?;
                    found = patch.check_text(options.field_validation)?;
                    return Ok(new);
                }
                let named = ("autoscaling/v1", "Scale");
                let (scale, warnings) = patch.on_kind(named, schema, &patched(row, old), options.field_validation)?;
                found = warnings;
                updated(row, old, scale, &options.field_manager)
            };
            let (written, _) = engine.update(&mut t, &mut change).await?;
            Ok(reply(r, row, &written.tree(engine, row)?)?.warn(found))
        }
        _ => Err(Status::generic_method_not_allowed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_in_text_form() {
        let rc = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"replicas": 2, "selector": {"a": "b"}}, "status": {"replicas": 1}});
        let row = proto::resources::find("", "v1", "replicationcontrollers").expect("row");
        let s = scale_of(row, &rc);
        assert_eq!((&s["spec"]["replicas"], &s["status"]["selector"]), (&json!(2), &json!("a=b")));
        assert!(s["metadata"].get("labels").is_none());
        let d = json!({"metadata": {}, "spec": {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}}});
        assert_eq!(scale_of(row, &d)["status"]["selector"], "a=b,c");
    }

    /// The metadata beside the replicas is validated, though none of it is stored.
    #[test]
    fn scale_metadata_is_validated() {
        let row = proto::resources::find("", "v1", "replicationcontrollers").expect("row");
        let rc = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"replicas": 2}});
        let mut scale = scale_of(row, &rc);
        assert!(written_back(row, &rc, &scale).is_ok());
        scale["metadata"]["labels"] = json!({"a b": "c"});
        scale["spec"]["replicas"] = json!(-1);
        let refused = written_back(row, &rc, &scale).expect_err("a refusal").message;
        assert!(
            refused.starts_with("Scale.autoscaling \"a\" is invalid: [metadata.labels: Invalid value"),
            "{refused}"
        );
        assert!(
            refused.ends_with("spec.replicas: Invalid value: -1: must be greater than or equal to 0]"),
            "{refused}"
        );
    }
}
