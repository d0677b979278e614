//! Status of a storage version after servers have gone. Answers for upstream's `pkg/controller/storageversiongc`.

use k8s_openapi::api::apiserverinternal::v1alpha1::{StorageVersion, StorageVersionCondition, StorageVersionStatus};
use k8s_openapi::jiff::Timestamp;

use crate::engine::action::Action;
use crate::engine::object::seconds;

const ENCODING: &str = "AllEncodingVersionsEqual";

/// Drop the entries of servers that are not alive; the object goes with the last of them.
pub fn plan(version: &StorageVersion, alive: &dyn Fn(&str) -> bool, now: Timestamp) -> Option<Action> {
    let status = &version.status;
    let all = status.storage_versions.as_deref().unwrap_or_default();
    let id = |s: &Option<String>| s.as_deref().is_some_and(alive);
    let left: Vec<_> = all.iter().filter(|s| id(&s.api_server_id)).cloned().collect();
    if left.len() == all.len() {
        return None;
    }
    if left.is_empty() {
        return Some(Action::delete::<StorageVersion>(&version.metadata));
    }
    let first = left.first().and_then(|s| s.encoding_version.clone());
    let agreed = left.iter().all(|s| s.encoding_version == first);
    let mut conditions = status.conditions.clone().unwrap_or_default();
    let (value, reason, message) = if agreed {
        ("True", "CommonEncodingVersionSet", "Common encoding version set")
    } else {
        ("False", "CommonEncodingVersionUnset", "Common encoding version unset")
    };
    let before = conditions.iter().position(|c| c.type_ == ENCODING).map(|i| conditions.remove(i));
    let same = before.filter(|c| c.status == value).and_then(|c| c.last_transition_time);
    conditions.push(StorageVersionCondition {
        type_: ENCODING.into(),
        status: value.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: version.metadata.generation,
        last_transition_time: same.or_else(|| Some(seconds(now))),
    });
    let new = StorageVersionStatus {
        storage_versions: Some(left),
        common_encoding_version: first.filter(|_| agreed),
        conditions: Some(conditions),
    };
    Some(Action::update_status(&StorageVersion { status: new, ..version.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn version(servers: Value) -> StorageVersion {
        serde_json::from_value(
            json!({"metadata": {"name": "apps.deployments"}, "spec": {}, "status": {"storageVersions": servers}}),
        )
        .expect("version")
    }

    #[test]
    fn servers_that_are_gone() {
        let now = "2026-01-01T00:00:00Z".parse().expect("time");
        let server = |id: &str, v: &str| json!({"apiServerID": id, "encodingVersion": v, "decodableVersions": [v]});
        let alive = |id: &str| id.starts_with('a');
        assert_eq!(plan(&version(json!([server("a1", "v1")])), &alive, now), None);
        let gone = plan(&version(json!([server("b", "v1")])), &alive, now);
        assert!(matches!(gone, Some(Action::Delete { .. })));
        for (servers, common, why) in [
            (json!([server("a1", "v1"), server("b", "v2")]), json!("v1"), "CommonEncodingVersionSet"),
            (
                json!([server("a1", "v1"), server("a2", "v2"), server("b", "v2")]),
                Value::Null,
                "CommonEncodingVersionUnset",
            ),
        ] {
            let Some(Action::Update { path, body }) = plan(&version(servers), &alive, now) else { panic!("{why}") };
            assert!(path.ends_with("/status"));
            assert_eq!(body["status"]["commonEncodingVersion"], common);
            assert_eq!(body["status"]["conditions"][0]["reason"], why);
        }
    }
}
