//! Selectable fields per resource, and the text for those that are not. Answers for upstream's `SelectableFields`,
//! `GetAttrs`.
//!
//! `metadata.name` and `metadata.namespace` come from the key; the others are read once, when an object enters the
//! cache.

use std::borrow::Borrow;

use proto::Value;
use proto::resources::Resource;
use proto::schema::group_version;

use super::kinds::find;
pub use super::selectable::Selectable;
use crate::crd;
use crate::machinery::GroupResource;

/// The selectable fields of a resource beyond its name and namespace.
pub fn selectable_fields(group: &str, plural: &str) -> &'static [Selectable] {
    find(GroupResource::new(group, plural)).map_or(&[], |kind| kind.selectable)
}

/// The values of an object's selectable fields, in the order of its row's table.
pub fn of_object(row: &Resource, object: &Value) -> Vec<Box<str>> {
    let Some(served) = crd::version_of(row) else {
        return values(selectable_fields(&row.group, &row.plural), |pointer| object.pointer(pointer));
    };
    let value = |path: &crd::JsonPath| path.find(object).first().and_then(|v| shown(v)).unwrap_or_default();
    served.selectable.iter().map(|(_, path)| value(path)).collect()
}

/// A field label that selects nothing, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldLabelError {
    /// The kind has selectable fields, and this is none of them.
    #[error("field label not supported: {0}")]
    Unsupported(String),
    /// The kind has no selectable fields.
    #[error("{0:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")]
    Unknown(String),
    /// The kind has its own words for it.
    #[error("{0}")]
    OfKind(String),
}

/// Resolves a field label as used with a row.
pub fn resolve_for(row: &Resource, label: &str) -> Result<FieldSource, FieldLabelError> {
    let Some(served) = crd::version_of(row) else {
        return resolve(&row.group, &row.version, &row.plural, &row.kind, row.namespaced, label);
    };
    let unsupported = || FieldLabelError::Unsupported(label.to_owned());
    match label {
        "metadata.name" => Ok(FieldSource::Name),
        "metadata.namespace" if row.namespaced => Ok(FieldSource::Namespace),
        _ if served.labels.iter().any(|l| l == label) => {
            let at = served.selectable.iter().position(|(l, _)| l == label);
            at.map(FieldSource::Value).ok_or_else(unsupported)
        }
        _ => Err(unsupported()),
    }
}

/// The values of the selectable fields of an object, in the table's order; `at` reads the object at a JSON pointer.
pub fn values<V: Borrow<Value>>(table: &[Selectable], at: impl Fn(&str) -> Option<V>) -> Vec<Box<str>> {
    table
        .iter()
        .map(|f| f.pointers.iter().find_map(|p| shown(at(p)?.borrow())).unwrap_or_else(|| f.absent.into()))
        .collect()
}

fn shown(v: &Value) -> Option<Box<str>> {
    match v {
        Value::String(s) if !s.is_empty() => Some(s.as_str().into()),
        Value::Bool(b) => Some(b.to_string().into()),
        Value::Number(n) => Some(n.to_string().into()),
        _ => None,
    }
}

/// Source of a selectable field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldSource {
    /// The object's name.
    Name,
    /// The object's namespace.
    Namespace,
    /// This index of [`values`].
    Value(usize),
}

/// Resolves a field label as used with a group version.
pub fn resolve(
    group: &str,
    version: &str,
    plural: &str,
    kind: &str,
    namespaced: bool,
    label: &str,
) -> Result<FieldSource, FieldLabelError> {
    let definition = find(GroupResource::new(group, plural));
    let table = definition.map_or(&[][..], |definition| definition.selectable);
    let label_here = definition.and_then(|definition| definition.label_alias).map_or(label, |alias| alias(label));
    match label_here {
        "metadata.name" => return Ok(FieldSource::Name),
        // Kinds with fields of their own list `metadata.namespace` only when they are namespaced.
        "metadata.namespace" if !definition.is_some_and(|definition| definition.hides_namespace_label) => {
            if table.is_empty() || namespaced {
                return Ok(FieldSource::Namespace);
            }
        }
        _ => {}
    }
    if let Some(i) = table.iter().position(|f| f.label == label_here) {
        return Ok(FieldSource::Value(i));
    }
    Err(match definition.and_then(|definition| definition.label_error) {
        Some(error) => FieldLabelError::OfKind(error(&group_version(group, version), kind, label)),
        None if table.is_empty() => FieldLabelError::Unknown(label.to_owned()),
        None => FieldLabelError::Unsupported(label.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_for_unknown_labels() {
        let r = |g: &str, p: &str, k: &str| resolve(g, "v1", p, k, true, "zz.zz").expect_err("unknown").to_string();
        assert_eq!(
            r("", "configmaps", "ConfigMap"),
            r#""zz.zz" is not a known field selector: only "metadata.name", "metadata.namespace""#
        );
        assert_eq!(r("", "pods", "Pod"), "field label not supported: zz.zz");
        assert_eq!(resolve("", "v1", "pods", "Pod", true, "spec.host"), Ok(FieldSource::Value(0)));
        let (group, plural) = ("certificates.k8s.io", "podcertificaterequests");
        let asked = |label: &str| resolve(group, "v1beta1", plural, "PodCertificateRequest", true, label);
        assert_eq!(asked("spec.nodeName"), Ok(FieldSource::Value(2)));
        assert_eq!(asked("metadata.namespace"), Err(FieldLabelError::Unsupported("metadata.namespace".to_owned())));
        assert_eq!(r("batch", "jobs", "Job"), r#"field label "zz.zz" not supported for Job"#);
        assert_eq!(
            r("resource.k8s.io", "resourceslices", "ResourceSlice"),
            "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: zz.zz"
        );
    }

    #[test]
    fn pod_values() {
        let pod =
            serde_json::json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running", "podIPs": [{"ip": "::1"}]}});
        let v = values(selectable_fields("", "pods"), |pointer| pod.pointer(pointer));
        assert_eq!((&*v[0], &*v[4], &*v[5], &*v[7]), ("n1", "false", "Running", ""));
    }
}
