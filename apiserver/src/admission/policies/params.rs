//! The objects a binding names as parameters of a policy. Answers for upstream's `CollectParams`.

use std::sync::Arc;
use std::time::Duration;

use proto::resources::Row;
use proto::selector::label::Selector;
use serde_json::Value;

use super::super::Attributes;
use super::PolicyError;
use crate::api::Reader;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::rows::Rows;

/// Longest wait for parameters of a kind that was not read before; upstream waits as long for its informer.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// The row of the parameters of a policy that has some; why there is none otherwise.
pub(super) fn row(rows: &Rows, policy: &Value) -> Option<Result<Row, PolicyError>> {
    let kind = policy.pointer("/spec/paramKind").filter(|k| k.is_object())?;
    let (api_version, kind) = (tree::text(kind, "/apiVersion"), tree::text(kind, "/kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Some(rows.find_kind(group, version, kind).ok_or_else(|| {
        PolicyError::Policy(format!(
            "failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'"
        ))
    }))
}

/// The parameters; one null for a policy (or binding) without. Waits until they have been read.
pub(super) async fn find(
    reader: &dyn Reader,
    row: Option<&Row>,
    a: &Attributes<'_>,
    binding: &Value,
) -> Result<Vec<Arc<Value>>, PolicyError> {
    let reference = binding.pointer("/spec/paramRef").filter(|r| r.is_object());
    let (Some(row), Some(reference)) = (row, reference) else { return Ok(vec![Arc::new(Value::Null)]) };
    let wrong = |why: &str| PolicyError::Binding(why.to_owned());
    let namespace = match tree::text(reference, "/namespace") {
        _ if !row.namespaced => "",
        "" => a.namespace,
        own => own,
    };
    if row.namespaced && namespace.is_empty() {
        return Err(wrong("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"));
    }
    if !row.namespaced && !tree::text(reference, "/namespace").is_empty() {
        return Err(wrong("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"));
    }
    let name = tree::text(reference, "/name");
    if !reader.synced(GroupResource::of(row)) {
        // What is not read by then is not found.
        tokio::time::timeout(READ_WITHIN, reader.changed(GroupResource::of(row), u64::MAX)).await.ok();
    }
    let found = if name.is_empty() {
        let selector = Selector::from_object(reference.get("selector")).map_err(|e| wrong(&e.to_string()))?;
        let scope = row.namespaced.then_some(namespace);
        let mut all = reader.list(GroupResource::of(row), scope);
        all.retain(|o| selector.matches(o.pointer("/metadata/labels")));
        all
    } else {
        reader.get(GroupResource::of(row), namespace, name).into_iter().collect()
    };
    if !found.is_empty() {
        return Ok(found);
    }
    if tree::text(reference, "/parameterNotFoundAction") == "Allow" {
        return Ok(Vec::new());
    }
    Err(wrong("no params found for policy binding with `Deny` parameterNotFoundAction"))
}
