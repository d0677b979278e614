//! An audit event and its two spellings: JSON, with upstream's fields in upstream's order, and the older line of text.
//! Answers for upstream's `pkg/apis/audit/v1` (`Event`), `EventString`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use shared::authn::UserInfo;

/// Object of the event.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Plural.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

impl ObjectRef {
    /// Completes the reference from the object, where the URL did not name it.
    pub fn fill(&mut self, object: &Value) {
        let meta = &object["metadata"];
        for (own, key) in [
            (&mut self.namespace, "namespace"),
            (&mut self.name, "name"),
            (&mut self.uid, "uid"),
            (&mut self.resource_version, "resourceVersion"),
        ] {
            if own.is_empty() {
                meta[key].as_str().unwrap_or_default().clone_into(own);
            }
        }
    }
}

/// Metadata of the authentication.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationMetadata {
    /// The verb of constrained impersonation that was allowed.
    pub impersonation_constraint: &'static str,
}

/// One event.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// `Event`; nothing inside of a list.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: &'static str,
    /// `audit.k8s.io/v1`; nothing inside of a list.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub api_version: &'static str,
    /// See [`super::policy::Level`].
    pub level: &'static str,
    /// Audit ID, shared by all events of a request.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// See [`super::policy::Stage`].
    pub stage: &'static str,
    /// Path and query as sent.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// Verb, or lower-case method.
    pub verb: String,
    /// Authenticated user.
    pub user: UserInfo,
    /// Impersonated user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<UserInfo>,
    /// Authentication metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_metadata: Option<AuthenticationMetadata>,
    /// Source addresses, nearest last.
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    /// User agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// Object of the request; none for non-resource requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectRef>,
    /// A Status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<Value>,
    /// Object in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Value>,
    /// Object in the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Value>,
    /// Time at which the request arrived.
    pub request_received_timestamp: String,
    /// Time at which the stage was reached.
    pub stage_timestamp: String,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn list(words: &[String]) -> String {
    words.iter().map(|w| format!("{w:?}")).collect::<Vec<_>>().join(",")
}

impl Event {
    /// The line of JSON, without its end.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The older line of text, without its end.
    pub fn legacy(&self) -> String {
        let or = |text: &str, other: &'static str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
        let groups = |user: &UserInfo, other: &'static str| match user.groups.as_slice() {
            [] => other.to_owned(),
            groups => list(groups),
        };
        let (by, by_groups) = match &self.impersonated_user {
            Some(user) => (user.name.clone(), groups(user, "<lookup>")),
            None => ("<self>".to_owned(), "<lookup>".to_owned()),
        };
        let namespace = self.object_ref.as_ref().map_or("", |o| &o.namespace);
        let code = self.response_status.as_ref().and_then(|s| s["code"].as_u64());
        let code = code.map_or_else(|| "<deferred>".to_owned(), |c| c.to_string());
        let own_groups = if self.user.name.is_empty() { "<none>".to_owned() } else { groups(&self.user, "<none>") };
        let mut line = format!("{} AUDIT:", self.request_received_timestamp);
        let _ = write!(
            line,
            " id={:?} stage={:?} ip={:?} method={:?} user={:?} groups={own_groups} as={by:?} asgroups={by_groups} user-agent={:?} namespace={:?} uri={:?} response=\"{code}\"",
            self.audit_id,
            self.stage,
            or(self.source_ips.first().map_or("", String::as_str), "<unknown>"),
            self.verb,
            or(&self.user.name, "<none>"),
            self.user_agent,
            or(namespace, "<none>"),
            self.request_uri,
        );
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machinery::meta::micro_time;
    use serde_json::json;

    fn sample() -> Event {
        Event {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: "a-1".into(),
            stage: "ResponseComplete",
            request_uri: "/api/v1/namespaces/e/pods?limit=1".into(),
            verb: "list".into(),
            user: UserInfo { name: "jane".into(), groups: vec!["g".into(), "h".into()], ..UserInfo::default() },
            source_ips: vec!["192.0.2.1".into()],
            user_agent: "kubectl".into(),
            object_ref: Some(ObjectRef {
                resource: "pods".into(),
                namespace: "e".into(),
                api_version: "v1".into(),
                ..ObjectRef::default()
            }),
            response_status: Some(json!({"metadata": {}, "code": 200})),
            request_received_timestamp: micro_time("2026-01-02T03:04:05.5Z".parse().expect("a time")),
            stage_timestamp: micro_time("2026-01-02T03:04:06Z".parse().expect("a time")),
            annotations: BTreeMap::from([("authorization.k8s.io/decision".to_owned(), "allow".to_owned())]),
            ..Event::default()
        }
    }

    #[test]
    fn spelled_as_upstream_spells_them() {
        assert_eq!(
            sample().json(),
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a-1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/e/pods?limit=1","verb":"list","user":{"username":"jane","groups":["g","h"]},"sourceIPs":["192.0.2.1"],"userAgent":"kubectl","objectRef":{"resource":"pods","namespace":"e","apiVersion":"v1"},"responseStatus":{"code":200,"metadata":{}},"requestReceivedTimestamp":"2026-01-02T03:04:05.500000Z","stageTimestamp":"2026-01-02T03:04:06.000000Z","annotations":{"authorization.k8s.io/decision":"allow"}}"#
        );
        assert_eq!(
            sample().legacy(),
            r#"2026-01-02T03:04:05.500000Z AUDIT: id="a-1" stage="ResponseComplete" ip="192.0.2.1" method="list" user="jane" groups="g","h" as="<self>" asgroups=<lookup> user-agent="kubectl" namespace="e" uri="/api/v1/namespaces/e/pods?limit=1" response="200""#
        );
    }
}
