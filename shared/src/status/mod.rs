//! The API's error object (`meta/v1` Status) with upstream's wording, and field errors in [`field`].
//!
//! Plain data: knows neither HTTP servers nor clients.

mod failures;
pub mod field;

use serde::{Deserialize, Serialize};

pub use failures::qualified;
pub use proto::selector::format::quote as go_quote;

/// One cause inside [`Details`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// Machine-readable reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field concerned.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Object of the error, and its causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    /// Object name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind, or plural resource for errors raised by the storage layer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Object uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Individual causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Seconds to wait before a retry.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

fn is_zero(v: &i32) -> bool {
    *v == 0
}

/// List metadata of a Status; only an expired continue token fills it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMeta {
    /// A fresh continue token.
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
    /// Revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

/// `v1 Status`. Serialises with kind and apiVersion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default = "kind")]
    kind: String,
    #[serde(default = "api_version")]
    api_version: String,
    /// List metadata, normally empty.
    #[serde(default)]
    pub metadata: ListMeta,
    /// `Success` or `Failure`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Human-readable text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Machine-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Details of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    /// HTTP code.
    #[serde(default)]
    pub code: u16,
}

/// [`Status`] without its kind.
#[derive(Serialize)]
struct Bare<'a> {
    metadata: &'a ListMeta,
    #[serde(skip_serializing_if = "str::is_empty")]
    status: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: &'a Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

fn json(tree: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    proto::json::encode_raw(&serde_json::to_vec(tree).unwrap_or_default(), &mut out);
    out
}

fn kind() -> String {
    "Status".to_owned()
}

fn api_version() -> String {
    "v1".to_owned()
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl Status {
    /// A failure without details.
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind: kind(),
            api_version: api_version(),
            metadata: ListMeta::default(),
            status: "Failure".to_owned(),
            message: message.into(),
            reason: reason.to_owned(),
            details: None,
            code,
        }
    }

    /// The answer to a delete: `Success` and what was deleted.
    pub fn success(group: &str, plural: &str, name: &str, uid: &str) -> Self {
        let details = Details {
            name: name.into(),
            group: group.into(),
            kind: plural.into(),
            uid: uid.into(),
            ..Details::default()
        };
        Self { status: "Success".into(), details: Some(details), code: 200, ..Self::failure(200, "", "") }
    }

    /// Appends a cause.
    pub fn add_cause(&mut self, reason: &str, message: &str, field: &str) {
        let details = self.details.get_or_insert_with(Details::default);
        details.causes.push(Cause { reason: reason.into(), message: message.into(), field: field.into() });
    }

    /// True for reason `NotFound`.
    pub fn is_not_found(&self) -> bool {
        self.reason == "NotFound"
    }

    /// True for reason `AlreadyExists`.
    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// True for reason `Conflict`.
    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    /// Seconds for a `Retry-After` header.
    pub fn retry_after(&self) -> Option<i32> {
        self.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0)
    }

    /// The JSON of it where nobody says of which kind it is, as between the ends of a session in a container.
    pub fn to_bare_json(&self) -> Vec<u8> {
        let Self { metadata, status, message, reason, details, code, .. } = self;
        let bare = Bare { metadata, status, message, reason, details, code: (*code > 0).then_some(*code) };
        json(&bare)
    }

    /// The JSON body, with Go's escapes.
    pub fn to_json(&self) -> Vec<u8> {
        json(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_wording() {
        let table = [
            (Status::not_found("", "pods", "x"), r#"pods "x" not found"#),
            (Status::not_found("apps", "deployments", "x"), r#"deployments.apps "x" not found"#),
            (Status::already_exists("", "configmaps", "a"), r#"configmaps "a" already exists"#),
            (
                Status::stale("", "configmaps", "a"),
                r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#,
            ),
            (Status::forbidden("", "pods", "x", "no"), r#"pods "x" is forbidden: no"#),
            (Status::forbidden("", "pods", "", "no"), "pods is forbidden: no"),
            (Status::forbidden("", "", "", "no"), "forbidden: no"),
            (Status::too_large(3145728), "Request entity too large: limit is 3145728"),
            (Status::too_large_resource_version(9, 4), "Timeout: Too large resource version: 9, current: 4"),
            (
                Status::apply_conflict(&[("conflict with \"m1\"".into(), ".data.k".into())]),
                r#"Apply failed with 1 conflict: conflict with "m1": .data.k"#,
            ),
        ];
        for (status, message) in table {
            assert_eq!(status.message, message);
        }
    }

    #[test]
    fn json_shape() {
        let text = String::from_utf8(Status::not_found("", "pods", "x").to_json()).expect("utf-8");
        assert_eq!(
            text,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"x\" not found","reason":"NotFound","details":{"name":"x","kind":"pods"},"code":404}"#
        );
        let back: Status = serde_json::from_str(&text).expect("round trip");
        assert!(back.is_not_found());
    }

    #[test]
    fn invalid_joins_errors() {
        let errors = vec![
            field::Error::required(field::Path::new("metadata").child("name"), "name or generateName is required"),
            field::Error::invalid(
                field::Path::new("spec").child("ports").index(0),
                70000,
                "must be between 1 and 65535, inclusive",
            ),
        ];
        let one = Status::invalid("", "ConfigMap", "", errors[..1].to_vec());
        assert_eq!(
            one.message,
            r#"ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required"#
        );
        let two = Status::invalid("apps", "Foo", "x", errors);
        assert_eq!(
            two.message,
            r#"Foo.apps "x" is invalid: [metadata.name: Required value: name or generateName is required, spec.ports[0]: Invalid value: 70000: must be between 1 and 65535, inclusive]"#
        );
        assert_eq!(two.details.expect("details").causes[1].reason, "FieldValueInvalid");
    }

    /// Statuses of foreign responses have the wording of upstream's library.
    #[test]
    fn answers_of_other_servers() {
        for (code, said, reason, message) in [
            (302, "", "", "the server responded with the status code 302 but did not return more information"),
            (403, "said", "Forbidden", "said"),
            (406, "", "NotAcceptable", "the server was unable to respond with a content type that the client supports"),
            (406, "said", "NotAcceptable", "said"),
            (410, "said", "", "the server responded with the status code 410 but did not return more information"),
            (415, "said", "UnsupportedMediaType", "said"),
            (
                502,
                "a \"b\"",
                "InternalError",
                r#"an error on the server ("a \"b\"") has prevented the request from succeeding"#,
            ),
        ] {
            let status = Status::answered(code, said);
            assert_eq!((status.reason.as_str(), status.message.as_str()), (reason, message), "{code}");
        }
    }

    /// Every Status recorded from upstream: made again from its parts, it reads the same.
    #[test]
    fn recorded_statuses() {
        let all: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("../../testdata/statuses.json")).expect("facts");
        assert!(all.len() > 200);
        for entry in &all {
            let name = entry["name"].as_str().expect("name");
            let recorded = &entry["status"];
            let status: Status = serde_json::from_value(recorded.clone()).expect("status");
            let mut again = serde_json::to_value(&status).expect("json");
            for key in ["kind", "apiVersion", "metadata"] {
                again.as_object_mut().expect("object").remove(key);
            }
            let mut wanted = recorded.clone();
            wanted.as_object_mut().expect("object").remove("metadata");
            assert_eq!(again, wanted, "{name}");
            let details = status.details.clone().unwrap_or_default();
            let made = match status.reason.as_str() {
                "NotFound" if details.kind.is_empty() => Status::generic_not_found(),
                "NotFound" if details.causes.is_empty() => {
                    Status::not_found(&details.group, &details.kind, &details.name)
                }
                "AlreadyExists" => Status::already_exists(&details.group, &details.kind, &details.name),
                "Conflict" if details.causes.is_empty() => {
                    let why = status.message.split_once("\": ").map_or("", |(_, why)| why);
                    Status::conflict(&details.group, &details.kind, &details.name, why)
                }
                "Conflict" if status.message.starts_with("Apply failed") => {
                    let pairs = details.causes.iter().map(|c| (c.message.clone(), c.field.clone()));
                    Status::apply_conflict(&pairs.collect::<Vec<_>>())
                }
                "Invalid" if status.message.contains(" is invalid: ") => {
                    let texts: Vec<String> =
                        details.causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
                    let what = format!("{} {}", qualified(&details.group, &details.kind), go_quote(&details.name));
                    let message = format!("{what} is invalid: {}", field::aggregate(&texts));
                    Status { message, ..status.clone() }
                }
                "InternalError" => Status::internal(&details.causes[0].message),
                "RequestEntityTooLarge" if status.message.contains("limit") => Status::too_large(3_145_728),
                _ => continue,
            };
            assert_eq!(made.message, status.message, "{name}");
            assert_eq!(
                (made.code, &made.reason, &made.details),
                (status.code, &status.reason, &status.details),
                "{name}"
            );
        }
    }
}
