//! Which requests webhooks and policies are about: rules, selectors of namespaces and objects, and versions that are
//! the same thing under another name.

use std::sync::Arc;

use proto::merge::apply;
use proto::resources::{Resource, Row};
use proto::selector::label::Selector;
use serde_json::Value;
use shared::status::Status;

use super::{Attributes, Operation};
use crate::access::tree;
use crate::api::Reader;
use crate::crd;
use crate::registry::{Rows, conversion, strategy};

/// What is chosen by.
pub(super) struct Scene<'a> {
    rows: &'a Rows,
    resource: &'a Resource,
    subresource: &'a str,
    name: &'a str,
    namespaced: bool,
    operation: Operation,
    objects: [Option<&'a Value>; 2],
    /// The namespace, or the object when it is one itself; `None` at cluster scope.
    pub(super) namespace: Option<Arc<Value>>,
}

impl<'a> Scene<'a> {
    pub(super) fn of(a: &'a Attributes<'_>, reader: &dyn Reader, rows: &'a Rows) -> Self {
        let objects = [a.object(), a.old_object];
        let namespace = if a.of("", "namespaces") {
            let own = objects[0].or(objects[1]).cloned();
            own.map(Arc::new)
        } else if a.namespace.is_empty() {
            None
        } else {
            Some(reader.get("", "namespaces", "", a.namespace).unwrap_or_default())
        };
        Self {
            rows,
            resource: a.resource,
            subresource: a.subresource,
            name: if a.name.is_empty() { a.object().map_or("", tree::name) } else { a.name },
            namespaced: !a.namespace.is_empty() && !a.of("", "namespaces"),
            operation: a.operation,
            objects,
            namespace,
        }
    }

    /// The row by which rules match: the request's own, or unless `matchPolicy` is `Exact` another version of it.
    pub(super) fn by_rules(&self, rules: &[Value], policy: &str) -> Option<Shown> {
        let exact = |row: &Resource| rules.iter().any(|rule| self.covered(rule, row));
        if exact(self.resource) {
            return Some(Shown::row(self.resource));
        }
        if policy == "Exact" {
            return None;
        }
        let same = |row: &Row| row.plural == self.resource.plural && row.storage == self.resource.storage;
        self.rows.all().iter().filter(|row| same(row)).find(|row| exact(row)).map(|row| Shown::row(row))
    }

    /// The request's own row.
    pub(super) fn own(&self) -> Shown {
        Shown::row(self.resource)
    }

    /// Whether `namespaceSelector` and `objectSelector` of `spec` let the request through. Absent ones mean everything.
    pub(super) fn selected(&self, spec: &Value) -> Result<bool, Status> {
        let selector = |field: &str| {
            let found = spec.get(field).filter(|s| !s.is_null());
            let read = found.map_or(Ok(Selector::everything()), |s| Selector::from_object(Some(s)));
            read.map_err(|e| Status::internal(&e.to_string()))
        };
        let (namespaces, objects) = (selector("namespaceSelector")?, selector("objectSelector")?);
        let labels = |o: &Value| o.pointer("/metadata/labels").cloned();
        if !namespaces.is_empty()
            && let Some(namespace) = &self.namespace
            && !namespaces.matches(labels(namespace).as_ref())
        {
            return Ok(false);
        }
        Ok(objects.is_empty() || self.objects.iter().flatten().any(|o| objects.matches(labels(o).as_ref())))
    }

    /// Whether one rule covers the request, seen as `row`.
    fn covered(&self, rule: &Value, row: &Resource) -> bool {
        let any = |field: &str, value: &str| {
            tree::list(rule, field).iter().filter_map(Value::as_str).any(|v| v == "*" || v == value)
        };
        let scope = match tree::text(rule, "/scope") {
            "Namespaced" => self.namespaced,
            "Cluster" => !self.namespaced,
            _ => true,
        };
        let named = tree::list(rule, "/resourceNames");
        scope
            && any("/operations", self.operation.as_str())
            && any("/apiGroups", &row.group)
            && any("/apiVersions", &row.version)
            && tree::list(rule, "/resources")
                .iter()
                .filter_map(Value::as_str)
                .any(|r| names(r, &row.plural, self.subresource))
            && (named.is_empty() || named.iter().any(|n| n == self.name))
    }
}

/// Whether `pods`, `pods/*`, `*/status`, `*` or `*/*` names a resource or subresource.
fn names(pattern: &str, plural: &str, subresource: &str) -> bool {
    let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    let sub_fits = sub == "*" || sub == subresource;
    (resource == "*" || resource == plural) && sub_fits
}

/// A resource in the version somebody outside knows it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) kind: String,
    stored: (String, String),
}

impl Shown {
    fn row(row: &Resource) -> Self {
        Self {
            group: row.group.to_string(),
            version: row.version.to_string(),
            plural: row.plural.to_string(),
            kind: row.kind.to_string(),
            stored: (row.storage.0.to_string(), row.storage.1.to_string()),
        }
    }

    /// From the stored version to the one shown.
    pub(super) fn present(&self, object: &mut Value) {
        self.convert(object, &self.stored.0, &self.group, &self.version);
    }

    /// And back.
    pub(super) fn restore(&self, object: &mut Value) {
        self.convert(object, &self.group, &self.stored.0, &self.stored.1);
    }

    fn convert(&self, object: &mut Value, group: &str, to_group: &str, to_version: &str) {
        let own = tree::text(object, "/kind") == self.kind;
        let there = tree::text(object, "/apiVersion") == conversion::group_version(to_group, to_version);
        if own && !there {
            *object = conversion::convert(std::mem::take(object), group, &self.kind, to_group, to_version);
        }
    }
}

/// The `request` that webhooks and expressions are told about, without uid.
pub(super) fn request(shown: &Shown, a: &Attributes<'_>) -> Value {
    let present = |object: Option<&Value>| {
        let mut object = object.cloned().unwrap_or_default();
        shown.present(&mut object);
        object
    };
    let (object, old) = (present(a.object()), present(a.old_object));
    let own = [&object, &old].into_iter().find(|o| !tree::text(o, "/kind").is_empty());
    let kind = match own {
        // A subresource may have a kind of its own.
        Some(o) => gvk(tree::text(o, "/apiVersion"), tree::text(o, "/kind")),
        None => serde_json::json!({"group": shown.group, "version": shown.version, "kind": shown.kind}),
    };
    let mut request_kind = kind.clone();
    if tree::text(&kind, "/kind") == shown.kind {
        let row = a.resource;
        request_kind = serde_json::json!({"group": row.group, "version": row.version, "kind": row.kind});
    }
    let name = match (a.name, a.object()) {
        ("", Some(object)) => tree::name(object),
        (name, _) => name,
    };
    let row = a.resource;
    let mut request = serde_json::json!({
        "kind": kind,
        "resource": {"group": shown.group, "version": shown.version, "resource": shown.plural},
        "requestKind": request_kind,
        "requestResource": {"group": row.group, "version": row.version, "resource": row.plural},
        "operation": a.operation.as_str(),
        "userInfo": a.user,
        "object": object,
        "oldObject": old,
        "dryRun": a.dry_run,
        "options": a.options,
    });
    for (field, value) in [
        ("subResource", a.subresource),
        ("requestSubResource", a.subresource),
        ("name", name),
        ("namespace", a.namespace),
    ] {
        if !value.is_empty() {
            request[field] = value.into();
        }
    }
    request
}

/// Changes the object of a request, in the version somebody outside knows it by. What he adds is as incomplete as what
/// clients send, and may be as wrong. Whether anything changed; without an object nothing does.
pub(super) fn amend<E>(
    shown: &Shown,
    a: &mut Attributes<'_>,
    change: impl FnOnce(&mut Value) -> Result<(), E>,
) -> Result<bool, E> {
    let Some(before) = a.object().cloned() else { return Ok(false) };
    let mut object = before.clone();
    shown.present(&mut object);
    change(&mut object)?;
    // A subresource may have a kind of its own.
    let own = tree::text(&object, "/kind") == &*a.resource.kind;
    match crd::served(a.resource).filter(|_| own) {
        Some(served) => {
            shown.restore(&mut object);
            // What is wrong with it is found when it is judged.
            let _ = crd::objects::settle(served, &mut object);
        }
        None => {
            let own = proto::schema::kind_of(tree::text(&object, "/apiVersion"), tree::text(&object, "/kind"));
            if let Some(schema) = own.or_else(|| a.resource.schema()) {
                proto::defaulting::apply(schema, &mut object);
            }
            shown.restore(&mut object);
        }
    }
    if let Some(why) = restore_managed_fields(&mut object, &before) {
        a.warnings.push(format!(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"));
    }
    let changed = object != before;
    if let Some(slot) = a.object.as_deref_mut() {
        *slot = object;
    }
    Ok(changed)
}

/// Puts back what was known of owners if it was damaged; says what is wrong with it.
fn restore_managed_fields(object: &mut Value, before: &Value) -> Option<String> {
    const FIELDS: &str = "/metadata/managedFields";
    if object.pointer(FIELDS) == before.pointer(FIELDS) {
        return None;
    }
    let why = apply::complaint(object)?;
    strategy::restore(&mut object["metadata"], &before["metadata"], "managedFields");
    Some(why)
}

fn gvk(api_version: &str, kind: &str) -> Value {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    serde_json::json!({"group": group, "version": version, "kind": kind})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn damaged_owners_are_put_back() {
        let object = |entry: Value| json!({"metadata": {"name": "a", "managedFields": [entry]}});
        let good = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}});
        let with = |key: &str, value: &str| {
            let mut entry = good.clone();
            entry[key] = value.into();
            object(entry)
        };
        let before = object(good.clone());
        for (mut now, why) in [
            (before.clone(), None),
            (with("manager", "other"), None),
            (with("operation", "Think"), Some("operation must be `Apply` or `Update`")),
            (with("apiVersion", ""), Some("apiVersion must not be empty")),
            (with("fieldsType", ""), Some("missing fieldsType in managed fields entry 0")),
            (with("fieldsType", "V2"), Some("invalid fieldsType \"V2\" in managed fields entry 0")),
        ] {
            let sent = now.clone();
            assert_eq!(restore_managed_fields(&mut now, &before).as_deref(), why);
            assert_eq!(now, if why.is_some() { before.clone() } else { sent });
        }
    }

    #[test]
    fn resource_patterns() {
        for (pattern, plural, sub, want) in [
            ("pods", "pods", "", true),
            ("pods", "pods", "status", false),
            ("pods/*", "pods", "", true),
            ("pods/*", "pods", "exec", true),
            ("pods/exec", "pods", "exec", true),
            ("*/scale", "deployments", "scale", true),
            ("*", "pods", "", true),
            ("*", "pods", "status", false),
            ("*/*", "pods", "status", true),
        ] {
            assert_eq!(names(pattern, plural, sub), want, "{pattern} {plural}/{sub}");
        }
    }
}
