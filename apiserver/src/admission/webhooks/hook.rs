//! One webhook of a configuration, and whether it wants to see a request.

use std::sync::Arc;
use std::time::Duration;

use proto::resources::{self, Resource};
use proto::selector::label::Selector;
use serde_json::Value;
use shared::status::Status;

use super::super::chain::NOTHING;
use super::super::{Attributes, Operation};
use crate::access::tree;
use crate::api::Reader;
use crate::registry::conversion;

/// What webhooks choose by.
pub(super) struct Scene<'a> {
    resource: &'a Resource,
    subresource: &'a str,
    namespaced: bool,
    operation: Operation,
    objects: [Option<&'a Value>; 2],
    /// The labels of the namespace, or of the object when it is one itself; `None` at cluster scope.
    namespace: Option<Arc<Value>>,
}

impl<'a> Scene<'a> {
    pub(super) fn of(a: &'a Attributes<'_>, reader: &dyn Reader) -> Self {
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
            resource: a.resource,
            subresource: a.subresource,
            namespaced: !a.namespace.is_empty() && !a.of("", "namespaces"),
            operation: a.operation,
            objects,
            namespace,
        }
    }
}

/// One webhook that wants to see a request, and the version it wants to see it in.
pub(super) struct Hook {
    configuration: Arc<Value>,
    at: usize,
    /// The row the webhook's rules know the resource by.
    pub(super) shown: Shown,
}

/// A resource as a webhook sees it.
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
}

impl Hook {
    /// The webhook at a place in a configuration, if it wants to see the request.
    pub(super) fn matching(configuration: &Arc<Value>, at: usize, scene: &Scene<'_>) -> Result<Option<Self>, Status> {
        let Some(spec) = tree::list(configuration, "/webhooks").get(at) else { return Ok(None) };
        let Some(shown) = by_rules(spec, scene) else { return Ok(None) };
        let selector = |field: &str| {
            let found = spec.get(field).filter(|s| !s.is_null());
            // An absent selector means everything here.
            found.map_or(Ok(Selector::everything()), |s| Selector::from_object(Some(s)))
        };
        let (namespaces, objects) = match (selector("namespaceSelector"), selector("objectSelector")) {
            (Ok(n), Ok(o)) => (n, o),
            (Err(e), _) | (_, Err(e)) => return Err(Status::internal(&e.to_string())),
        };
        let labels = |o: &Value| o.pointer("/metadata/labels").cloned();
        if !namespaces.is_empty()
            && let Some(namespace) = &scene.namespace
            && !namespaces.matches(labels(namespace).as_ref())
        {
            return Ok(None);
        }
        if !objects.is_empty() && !scene.objects.iter().flatten().any(|o| objects.matches(labels(o).as_ref())) {
            return Ok(None);
        }
        Ok(Some(Self { configuration: configuration.clone(), at, shown }))
    }

    pub(super) fn spec(&self) -> &Value {
        tree::list(&self.configuration, "/webhooks").get(self.at).unwrap_or(NOTHING)
    }

    pub(super) fn name(&self) -> &str {
        tree::text(self.spec(), "/name")
    }

    pub(super) fn ignores_failures(&self) -> bool {
        tree::text(self.spec(), "/failurePolicy") == "Ignore"
    }

    pub(super) fn wants_reinvocation(&self) -> bool {
        tree::text(self.spec(), "/reinvocationPolicy") == "IfNeeded"
    }

    /// Whether it may be asked about something that will not happen.
    pub(super) fn harmless(&self) -> bool {
        matches!(tree::text(self.spec(), "/sideEffects"), "None" | "NoneOnDryRun")
    }

    pub(super) fn timeout(&self) -> Duration {
        let seconds = tree::int(self.spec(), "/timeoutSeconds").unwrap_or(10).clamp(1, 30);
        Duration::from_secs(seconds.unsigned_abs())
    }

    /// `v1`, or `v1beta1` for a webhook that knows nothing newer.
    pub(super) fn review_version(&self) -> &'static str {
        let known = tree::strings(self.spec(), "/admissionReviewVersions");
        match known.iter().find(|v| matches!(v.as_str(), "v1" | "v1beta1")).map(String::as_str) {
            Some("v1beta1") => "v1beta1",
            _ => "v1",
        }
    }

    /// From the stored version to the one shown.
    pub(super) fn to_shown(&self, object: &mut Value) {
        let s = &self.shown;
        self.convert(object, &s.stored.0, &s.group, &s.version);
    }

    /// And back.
    pub(super) fn from_shown(&self, object: &mut Value) {
        let s = &self.shown;
        self.convert(object, &s.group, &s.stored.0, &s.stored.1);
    }

    fn convert(&self, object: &mut Value, group: &str, to_group: &str, to_version: &str) {
        let own = tree::text(object, "/kind") == self.shown.kind;
        let there = tree::text(object, "/apiVersion") == conversion::group_version(to_group, to_version);
        if own && !there {
            *object = conversion::convert(std::mem::take(object), group, &self.shown.kind, to_group, to_version);
        }
    }
}

/// The row by which a webhook's rules match: the request's own, or with `matchPolicy: Equivalent` another version of it.
fn by_rules(spec: &Value, scene: &Scene<'_>) -> Option<Shown> {
    let rules = tree::list(spec, "/rules");
    let exact = |row: &Resource| rules.iter().any(|rule| covers(rule, row, scene));
    if exact(scene.resource) {
        return Some(Shown::row(scene.resource));
    }
    if tree::text(spec, "/matchPolicy") == "Exact" {
        return None;
    }
    let same = |row: &&Resource| row.plural == scene.resource.plural && row.storage == scene.resource.storage;
    resources::all().iter().filter(same).find(|row| exact(row)).map(Shown::row)
}

fn covers(rule: &Value, row: &Resource, scene: &Scene<'_>) -> bool {
    let any = |field: &str, value: &str| {
        tree::list(rule, field).iter().filter_map(Value::as_str).any(|v| v == "*" || v == value)
    };
    let scope = match tree::text(rule, "/scope") {
        "Namespaced" => scene.namespaced,
        "Cluster" => !scene.namespaced,
        _ => true,
    };
    scope
        && any("/operations", scene.operation.as_str())
        && any("/apiGroups", &row.group)
        && any("/apiVersions", &row.version)
        && tree::list(rule, "/resources")
            .iter()
            .filter_map(Value::as_str)
            .any(|r| names(r, &row.plural, scene.subresource))
}

/// Whether `pods`, `pods/*`, `*/status`, `*` or `*/*` names a resource or subresource.
fn names(pattern: &str, plural: &str, subresource: &str) -> bool {
    let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    let sub_fits = sub == "*" || sub == subresource;
    (resource == "*" || resource == plural) && sub_fits
}

#[cfg(test)]
mod tests {
    use super::*;

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
