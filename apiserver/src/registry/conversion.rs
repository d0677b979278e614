//! Between the served versions of a kind and the one it is stored in.
//!
//! Most kinds have one version, or versions that are alike. The others name their conversion in their home; those are
//! pure functions on trees, below.

pub(super) mod autoscaler;
pub(super) mod definitions;
pub(super) mod devices;
pub(super) mod events;

use std::num::IntErrorKind;

use proto::Value;
use proto::resources::Resource;
use proto::schema::group_version;
use shared::status::go_quote;

use super::kinds::{find_kind, kind_of};
use super::rollback::ROLLBACK;

/// Converts `object` to another API version of its kind. `apiVersion` is always set to `to`.
pub fn convert(mut object: Value, group: &str, kind: &str, to_group: &str, to_version: &str) -> Value {
    if let Some(convert) = find_kind(group, kind).and_then(|kind| kind.converts) {
        convert(&mut object, to_group, to_version);
    }
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::String(group_version(to_group, to_version)));
    }
    object
}

/// Explains why a sent object cannot be decoded in its version.
pub fn unreadable(row: &Resource, object: &Value) -> Option<String> {
    let key = kind_of(row)?.number_annotation?;
    let text = object["metadata"]["annotations"][key].as_str()?;
    if key == ROLLBACK && text.is_empty() {
        return None;
    }
    let why = match text.parse::<i64>().err()?.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    };
    let why = format!("strconv.ParseInt: parsing {}: {why}", go_quote(text));
    let why = if key == ROLLBACK { format!("failed to parse annotation[{key}]={text} as int64: {why}") } else { why };
    let version = go_quote(&row.version);
    Some(format!("{} in version {version} cannot be handled as a {}: {why}", row.kind, row.kind))
}

/// Reports whether objects of a kind are stored in a version that is not served.
pub fn is_stored_only(group: &str, kind: &str, version: &str) -> bool {
    (group, kind, version) == ("apiextensions.k8s.io", "CustomResourceDefinition", "v1beta1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_that_are_numbers() {
        let told = |plural: &str, key: &str, text: &str| {
            let row = crate::rows::builtin("apps", plural).expect("a row");
            unreadable(&row, &json!({"metadata": {"annotations": {key: text}}}))
        };
        let template = "deprecated.daemonset.template.generation";
        for (plural, key, text, why) in [
            ("daemonsets", template, "7", None),
            (
                "daemonsets",
                template,
                "",
                Some(
                    "DaemonSet in version \"v1\" cannot be handled as a DaemonSet: strconv.ParseInt: parsing \"\": invalid syntax",
                ),
            ),
            (
                "daemonsets",
                template,
                "99999999999999999999",
                Some(
                    "DaemonSet in version \"v1\" cannot be handled as a DaemonSet: strconv.ParseInt: parsing \"99999999999999999999\": value out of range",
                ),
            ),
            ("deployments", ROLLBACK, "", None),
            (
                "deployments",
                ROLLBACK,
                "x",
                Some(
                    "Deployment in version \"v1\" cannot be handled as a Deployment: failed to parse annotation[deprecated.deployment.rollback.revision]=x as int64: strconv.ParseInt: parsing \"x\": invalid syntax",
                ),
            ),
            ("replicasets", template, "x", None),
        ] {
            assert_eq!(told(plural, key, text).as_deref(), why, "{plural} {text}");
        }
    }

    #[test]
    fn events_change_names_and_back() {
        let core =
            json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "p"}, "message": "m", "count": 2});
        let ev = convert(core.clone(), "", "Event", "events.k8s.io", "v1");
        assert_eq!(
            ev,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "p"}, "note": "m", "deprecatedCount": 2})
        );
        assert_eq!(convert(ev, "events.k8s.io", "Event", "", "v1"), core);
    }
}
