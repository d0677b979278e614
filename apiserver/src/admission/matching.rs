//! Matching of requests by webhooks and policies: rules, namespace and object selectors, and equivalent resources.
//! Answers for upstream's `pkg/admission/plugin/webhook/predicates`, `rules.Matcher`.

use std::sync::{Arc, OnceLock};

use proto::resources::{Resource, Row};
use proto::selector::label::Selector;
use serde_json::Value;
use shared::status::Status;

use super::{Attributes, Operation};
use crate::machinery::tree;
use crate::registry::behavior;
use crate::registry::core::namespace::NAMESPACES;
use crate::rows::Rows;

/// Request that is matched.
pub(super) struct MatchRequest<'a> {
    rows: &'a Rows,
    resource: &'a Row,
    /// Other versions of the resource, read when needed.
    others: OnceLock<Vec<Row>>,
    subresource: &'a str,
    name: &'a str,
    namespaced: bool,
    operation: Operation,
    objects: [Option<&'a Value>; 2],
    /// The namespace, or the object when it is one itself; `None` at cluster scope. Or why it is not known.
    namespace: Result<Option<Arc<Value>>, Status>,
}

impl<'a> MatchRequest<'a> {
    /// Of a write whose object whoever was asked last left as `object`, in a namespace.
    pub(super) fn of(
        a: &'a Attributes<'_>,
        object: Option<&'a Value>,
        namespace: Result<Option<Arc<Value>>, Status>,
        rows: &'a Rows,
    ) -> Self {
        let objects = [object, a.old_object];
        let namespace = if a.of(NAMESPACES) {
            let own = objects[0].or(objects[1]).cloned();
            Ok(own.map(Arc::new))
        } else if a.namespace.is_empty() {
            Ok(None)
        } else {
            namespace.map(|namespace| Some(namespace.unwrap_or_default()))
        };
        Self {
            rows,
            resource: a.resource,
            others: OnceLock::new(),
            subresource: a.subresource,
            name: if a.name.is_empty() { a.object().map_or("", tree::name) } else { a.name },
            namespaced: !a.namespace.is_empty() && !a.of(NAMESPACES),
            operation: a.operation,
            objects,
            namespace,
        }
    }

    /// The row by which rules match: the request's own, or unless `matchPolicy` is `Exact` another version of it. Rules
    /// that come first count first.
    pub(super) fn by_rules(&self, rules: &[Value], policy: &str) -> Option<Row> {
        if rules.iter().any(|rule| self.covered(rule, self.resource)) {
            return Some(self.resource.clone());
        }
        if policy == "Exact" {
            return None;
        }
        let other = |rule: &Value| self.others().iter().find(|row| self.covered(rule, row));
        rules.iter().find_map(other).cloned()
    }

    /// Equivalent resources; of a custom resource all versions, served or not.
    fn others(&self) -> &[Row] {
        self.others.get_or_init(|| {
            let own = self.resource;
            let mut all = behavior(own).equivalents(self.rows, own);
            let subresource = |row: &Row| row.subresources.iter().any(|s| s.name == self.subresource);
            all.retain(|row| {
                (row.group != own.group || row.version != own.version)
                    && (self.subresource.is_empty() || subresource(row))
            });
            all
        })
    }

    /// The request's own row.
    pub(super) fn own(&self) -> Row {
        self.resource.clone()
    }

    /// Reports whether `namespaceSelector` and `objectSelector` of `spec` match the request. Absent ones match
    /// everything.
    ///
    /// # Errors
    /// A selector makes no sense, or selects among namespaces and the request's is not known
    /// (`MatchNamespaceSelector`). They count only for requests that rules cover.
    pub(super) fn selected(&self, spec: &Value) -> Result<bool, Status> {
        let selector = |field: &str| {
            let found = spec.get(field).filter(|s| !s.is_null());
            let read = found.map_or(Ok(Selector::everything()), |s| Selector::from_object(Some(s)));
            read.map_err(|e| Status::internal(&e.to_string()))
        };
        let (namespaces, objects) = (selector("namespaceSelector")?, selector("objectSelector")?);
        let labels = |o: &Value| o.pointer("/metadata/labels").cloned();
        if !namespaces.is_empty() {
            let namespace = self.namespace.as_ref().map_err(|why| match why.code {
                404 => why.clone(),
                _ => Status::internal(&why.message),
            })?;
            if namespace.as_ref().is_some_and(|namespace| !namespaces.matches(labels(namespace).as_ref())) {
                return Ok(false);
            }
        }
        Ok(objects.is_empty() || self.objects.iter().flatten().any(|o| objects.matches(labels(o).as_ref())))
    }

    /// Reports whether one rule matches the request, seen as `row`.
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

/// Reports whether `pods`, `pods/*`, `*/status`, `*` or `*/*` matches a resource or subresource.
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
