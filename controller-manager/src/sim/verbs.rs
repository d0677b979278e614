//! The write verbs of the simulated server: preconditions, generations, finalizers, subresources.

use proto::merge::{json_patch, merge_patch, strategic};
use proto::resources::Resource;
use proto::schema::Message;
use serde_json::{Value, json};

use super::store::{Name, Store, key, name_of};
use super::strategy;
use crate::engine::clock;
use crate::engine::object::seconds;

/// A refusal as the API words it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) cause: &'static str,
}

pub(super) fn refuse<T>(code: u16, reason: &'static str, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, reason, message: message.into(), cause: "" })
}

fn resource_name(row: &Resource) -> String {
    if row.group.is_empty() { row.plural.to_string() } else { format!("{}.{}", row.plural, row.group) }
}

pub(super) fn not_found<T>(row: &Resource, name: &Name) -> Result<T, Refusal> {
    refuse(404, "NotFound", format!("{} {:?} not found", resource_name(row), name.1))
}

fn conflict<T>(row: &Resource, name: &str, why: &str) -> Result<T, Refusal> {
    refuse(409, "Conflict", format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource_name(row)))
}

fn schema(row: &Resource) -> Option<&'static Message> {
    proto::schema::kind(&row.group, &row.version, &row.kind)
}

fn now() -> Value {
    json!(seconds(clock::now()))
}

/// POST.
pub(super) fn create(store: &mut Store, row: &Resource, namespace: &str, mut object: Value) -> Result<Value, Refusal> {
    if !object.is_object() {
        return refuse(400, "BadRequest", "not an object");
    }
    let uid = store.uid();
    let serial: u64 = uid.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    if row.namespaced {
        object["metadata"]["namespace"] = json!(namespace);
        let space = store.get(&(String::new(), "namespaces".into()), &(String::new(), namespace.to_owned()));
        match space {
            None => return refuse(404, "NotFound", format!("namespaces {namespace:?} not found")),
            Some(space) if space["metadata"]["deletionTimestamp"].is_string() => {
                let message =
                    format!("unable to create new content in namespace {namespace} because it is being terminated");
                return Err(Refusal { code: 403, reason: "Forbidden", message, cause: "NamespaceTerminating" });
            }
            Some(_) => {}
        }
    }
    if object["metadata"]["name"].as_str().is_none_or(str::is_empty) {
        let Some(prefix) = object["metadata"]["generateName"].as_str().filter(|p| !p.is_empty()) else {
            return refuse(422, "Invalid", "name or generateName is required");
        };
        object["metadata"]["name"] = json!(format!("{prefix}{:05}", serial % 100_000));
    }
    let name = name_of(&object);
    if store.get(&key(row), &name).is_some() {
        return refuse(409, "AlreadyExists", format!("{} {:?} already exists", resource_name(row), name.1));
    }
    object["apiVersion"] = json!(row.api_version());
    object["kind"] = json!(row.kind);
    object["metadata"]["uid"] = json!(uid);
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.insert("creationTimestamp".into(), now());
        meta.insert("generation".into(), json!(1));
        meta.remove("resourceVersion");
    }
    if row.subresource("status").is_some() && row.plural != "pods" {
        object.as_object_mut().map(|o| o.remove("status"));
    }
    strategy::create(row, &mut object, serial);
    if let Some(schema) = schema(row) {
        proto::defaulting::apply(schema, &mut object);
    }
    Ok(store.put(&key(row), object))
}

/// PUT of an object or one of its subresources.
pub(super) fn update(store: &mut Store, row: &Resource, name: &Name, sub: &str, new: Value) -> Result<Value, Refusal> {
    let Some(old) = store.get(&key(row), name).cloned() else { return not_found(row, name) };
    let meta = &new["metadata"];
    if meta["uid"].is_string() && meta["uid"] != old["metadata"]["uid"] {
        return conflict(row, &name.1, "Precondition failed: UID in precondition does not match");
    }
    if meta["resourceVersion"].as_str().is_some_and(|v| !v.is_empty())
        && meta["resourceVersion"] != old["metadata"]["resourceVersion"]
    {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        return conflict(row, &name.1, why);
    }
    let mut next = old.clone();
    match sub {
        "status" | "approval" => {
            next["status"] = new["status"].clone();
            if row.plural != "pods" {
                for k in ["labels", "annotations"] {
                    set(&mut next["metadata"], k, meta[k].clone());
                }
            }
            // Who balances their loads has no other way to hold them.
            if row.plural == "services" {
                set(&mut next["metadata"], "finalizers", meta["finalizers"].clone());
            }
        }
        "finalize" => next["spec"]["finalizers"] = new["spec"]["finalizers"].clone(),
        _ => {
            let status = old["status"].clone();
            next = new.clone();
            for k in [
                "uid",
                "creationTimestamp",
                "generation",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "namespace",
                "name",
            ] {
                set(&mut next["metadata"], k, old["metadata"][k].clone());
            }
            if row.subresource("status").is_some() && row.plural != "nodes" {
                set(&mut next, "status", status);
            }
            next["apiVersion"] = json!(row.api_version());
            next["kind"] = json!(row.kind);
        }
    }
    if let Some(schema) = schema(row) {
        proto::defaulting::apply(schema, &mut next);
    }
    tidy(&mut next);
    if bare(&next) != bare(&old) && (sub.is_empty() && (next["spec"] != old["spec"] || row.plural == "endpointslices"))
    {
        next["metadata"]["generation"] = json!(old["metadata"]["generation"].as_u64().unwrap_or(0) + 1);
    }
    finish(store, row, name, &old, next)
}

fn set(map: &mut Value, key: &str, value: Value) {
    let Some(map) = map.as_object_mut() else { return };
    if value.is_null() {
        map.remove(key);
    } else {
        map.insert(key.to_owned(), value);
    }
}

/// Drop what is null or an empty list or map in the metadata, as the server does not store it.
fn tidy(object: &mut Value) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.retain(|_, v| {
            !(v.is_null()
                || v.as_array().is_some_and(Vec::is_empty)
                || v.as_object().is_some_and(serde_json::Map::is_empty))
        });
    }
    if let Some(map) = object.as_object_mut() {
        map.retain(|_, v| !v.is_null());
    }
}

fn bare(object: &Value) -> Value {
    let mut copy = object.clone();
    set(&mut copy["metadata"], "resourceVersion", Value::Null);
    copy
}

/// Store the outcome of a write, or remove the object when nothing holds it any more.
fn finish(store: &mut Store, row: &Resource, name: &Name, old: &Value, next: Value) -> Result<Value, Refusal> {
    let held = |o: &Value| {
        let some = |v: &Value| v.as_array().is_some_and(|l| !l.is_empty());
        some(&o["metadata"]["finalizers"]) || (row.plural == "namespaces" && some(&o["spec"]["finalizers"]))
    };
    let dying = next["metadata"]["deletionTimestamp"].is_string();
    if dying && !held(&next) && held(old) && next["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0) == 0 {
        store.put(&key(row), next.clone());
        store.remove(&key(row), name);
        return Ok(next);
    }
    if bare(&next) == bare(old) {
        return Ok(old.clone());
    }
    Ok(store.put(&key(row), next))
}

/// PATCH.
pub(super) fn patch(
    store: &mut Store,
    row: &Resource,
    name: &Name,
    sub: &str,
    content_type: &str,
    patch: Value,
) -> Result<Value, Refusal> {
    let Some(old) = store.get(&key(row), name).cloned() else { return not_found(row, name) };
    let mut next = old.clone();
    let merged = match content_type {
        "application/json-patch+json" => match json_patch::Patch::decode(patch) {
            Ok(p) => p.apply(&mut next).map_err(|e| format!("{e:?}")),
            Err(e) => Err(format!("{e:?}")),
        },
        "application/strategic-merge-patch+json" => match schema(row) {
            Some(schema) => strategic::apply(schema, &mut next, patch).map_err(|e| format!("{e:?}")),
            None => return refuse(415, "UnsupportedMediaType", "no strategic merge for this resource"),
        },
        "application/apply-patch+yaml" => {
            apply(&mut next, patch);
            Ok(())
        }
        _ => {
            merge_patch::apply(&mut next, patch);
            Ok(())
        }
    };
    if let Err(why) = merged {
        return refuse(422, "Invalid", why);
    }
    update(store, row, name, sub, next)
}

/// Server-side apply, for one applier and the fields at the top: those it no longer names are gone.
fn apply(object: &mut Value, config: Value) {
    const APPLIED: &str = "sim/applied";
    let names = |v: &Value| v.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let now: Vec<String> =
        names(&config).into_iter().filter(|n| !matches!(n.as_str(), "apiVersion" | "kind" | "metadata")).collect();
    let before = object["metadata"]["annotations"][APPLIED].as_str().unwrap_or_default().to_owned();
    merge_patch::apply(object, config);
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|name, _| now.contains(name) || !before.split(',').any(|n| n == name));
    }
    object["metadata"]["annotations"][APPLIED] = json!(now.join(","));
}

/// DELETE.
pub(super) fn delete(store: &mut Store, row: &Resource, name: &Name, options: &Value) -> Result<Value, Refusal> {
    let Some(old) = store.get(&key(row), name).cloned() else { return not_found(row, name) };
    let wanted = &options["preconditions"];
    if wanted["uid"].is_string() && wanted["uid"] != old["metadata"]["uid"] {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            wanted["uid"].as_str().unwrap_or_default(),
            old["metadata"]["uid"].as_str().unwrap_or_default()
        );
        return conflict(row, &name.1, &why);
    }
    if wanted["resourceVersion"].is_string() && wanted["resourceVersion"] != old["metadata"]["resourceVersion"] {
        return conflict(row, &name.1, "Precondition failed: ResourceVersion does not match");
    }
    let mut next = old.clone();
    let mut finalizers: Vec<Value> = next["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let mark = match options["propagationPolicy"].as_str() {
        Some("Orphan") => Some("orphan"),
        Some("Foreground") => Some("foregroundDeletion"),
        _ => None,
    };
    finalizers.retain(|f| {
        mark.is_none() || !(f == "orphan" || f == "foregroundDeletion") || Some(f.as_str().unwrap_or("")) == mark
    });
    if let Some(mark) = mark.filter(|m| !finalizers.iter().any(|f| f == m)) {
        finalizers.push(json!(mark));
    }
    let held = !finalizers.is_empty()
        || row.plural == "namespaces" && !old["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty);
    let grace = strategy::grace(row, &old, options);
    let already = old["metadata"]["deletionTimestamp"].is_string();
    let left = old["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
    let ends = !held && grace == 0;
    // Those who watch pods are told of their end beforehand.
    if ends && (!strategy::has_grace(row) || already && left == 0) {
        return Ok(store.remove(&key(row), name).unwrap_or(old));
    }
    set(&mut next["metadata"], "finalizers", Value::Array(finalizers));
    let shorter = already && left > grace;
    if !already || shorter {
        let at = clock::now() + std::time::Duration::from_secs(grace);
        next["metadata"]["deletionTimestamp"] = json!(seconds(at));
        next["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        if !already {
            next["metadata"]["generation"] = json!(old["metadata"]["generation"].as_u64().unwrap_or(0) + 1);
        }
    }
    if row.plural == "namespaces" {
        next["status"]["phase"] = json!("Terminating");
    }
    tidy(&mut next);
    if bare(&next) == bare(&old) {
        return Ok(old);
    }
    let marked = store.put(&key(row), next);
    Ok(if ends { store.remove(&key(row), name).unwrap_or(marked) } else { marked })
}
