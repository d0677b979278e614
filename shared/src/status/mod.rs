//! The API's error object (`meta/v1` Status) with upstream's wording, and field errors in [`field`].
//!
//! Plain data: knows neither HTTP servers nor clients.

pub mod field;

use serde::{Deserialize, Serialize};

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

/// `pods` or `deployments.apps`: how a group resource or group kind reads in messages.
pub fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

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

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let details = Details { name: name.into(), group: group.into(), kind: kind.into(), ..Details::default() };
        self.details = Some(details);
        self
    }

    /// 404 `pods "x" not found`.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(group, plural), go_quote(name));
        Self::failure(404, "NotFound", message).about(group, plural, name)
    }

    /// 404 for a path no resource answers.
    pub fn generic_not_found() -> Self {
        Self {
            details: Some(Details::default()),
            ..Self::failure(404, "NotFound", "the server could not find the requested resource")
        }
    }

    /// 409 `pods "x" already exists`.
    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} {} already exists", qualified(group, plural), go_quote(name));
        Self::failure(409, "AlreadyExists", message).about(group, plural, name)
    }

    /// 409 `Operation cannot be fulfilled on pods "x": why`.
    pub fn conflict(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {}: {why}", qualified(group, plural), go_quote(name));
        Self::failure(409, "Conflict", message).about(group, plural, name)
    }

    /// 409 with the text for a stale resourceVersion.
    pub fn stale(group: &str, plural: &str, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, plural, name, why)
    }

    /// 409 of server-side apply; `conflicts` are (message, field) pairs such as (`conflict with "m1"`, `.data.k`).
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let causes = conflicts.iter().map(|(message, field)| Cause {
            reason: "FieldManagerConflict".into(),
            message: message.clone(),
            field: field.clone(),
        });
        let causes: Vec<Cause> = causes.collect();
        let mut by_message: Vec<(&str, Vec<&str>)> = Vec::new();
        for (message, field) in conflicts {
            match by_message.iter_mut().find(|(m, _)| *m == message.as_str()) {
                Some((_, fields)) => fields.push(field),
                None => by_message.push((message, vec![field])),
            }
        }
        by_message.sort();
        let plural = if conflicts.len() == 1 { "" } else { "s" };
        let mut text = format!("Apply failed with {} conflict{plural}: ", conflicts.len());
        if let [(message, fields)] = by_message.as_slice()
            && fields.len() == 1
        {
            text.push_str(&format!("{message}: {}", fields[0]));
        } else {
            let blocks = by_message.iter().map(|(m, fields)| format!("{m}:\n- {}", fields.join("\n- ")));
            text.push_str(&blocks.collect::<Vec<_>>().join("\n"));
        }
        Self { details: Some(Details { causes, ..Details::default() }), ..Self::failure(409, "Conflict", text) }
    }

    /// 422 `Pod "x" is invalid: …` with one cause per field error.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: impl IntoIterator<Item = field::Error>) -> Self {
        let errors: Vec<field::Error> = errors.into_iter().collect();
        let causes = errors
            .iter()
            .map(|e| Cause { reason: e.kind.reason().into(), message: e.body(), field: e.field.clone() })
            .collect();
        let message =
            format!("{} {} is invalid: {}", qualified(group, kind), go_quote(name), field::aggregate(&errors));
        let details =
            Details { name: name.into(), group: group.into(), kind: kind.into(), causes, ..Details::default() };
        Self { details: Some(details), ..Self::failure(422, "Invalid", message) }
    }

    /// 403 `pods "x" is forbidden: why`; without a name `pods is forbidden: why`, without a resource `forbidden: why`.
    pub fn forbidden(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let resource = qualified(group, plural);
        let message = match (resource.as_str(), name) {
            ("", _) => format!("forbidden: {why}"),
            (r, "") => format!("{r} is forbidden: {why}"),
            (r, n) => format!("{r} {} is forbidden: {why}", go_quote(n)),
        };
        Self::failure(403, "Forbidden", message).about(group, plural, name)
    }

    /// 401 `Unauthorized`.
    pub fn unauthorized() -> Self {
        Self::failure(401, "Unauthorized", "Unauthorized")
    }

    /// 400 with any text.
    pub fn bad_request(message: &str) -> Self {
        Self::failure(400, "BadRequest", message)
    }

    /// 405 `<verb> is not supported on resources of kind "pods"`.
    pub fn method_not_supported(group: &str, plural: &str, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {}", go_quote(&qualified(group, plural)));
        Self::failure(405, "MethodNotAllowed", message).about(group, plural, "")
    }

    /// 405 of the generic handler.
    pub fn generic_method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: Some(Details::default()), ..Self::failure(405, "MethodNotAllowed", message) }
    }

    /// 406; `available` are the media types on offer.
    pub fn not_acceptable(available: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", available.join(", "));
        Self::failure(406, "NotAcceptable", message)
    }

    /// 415; `accepted` are the media types understood.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, "UnsupportedMediaType", message)
    }

    /// 413 `Request entity too large: limit is N`.
    pub fn too_large(limit: usize) -> Self {
        Self::failure(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// 410 with reason `Expired`, for revisions compacted away.
    pub fn expired(message: &str) -> Self {
        Self::failure(410, "Expired", message)
    }

    /// 410 with reason `Gone`.
    pub fn gone(message: &str) -> Self {
        Self::failure(410, "Gone", message)
    }

    /// 429 with a delay.
    pub fn too_many_requests(message: &str, retry_after_seconds: i32) -> Self {
        let details = Details { retry_after_seconds, ..Details::default() };
        Self { details: Some(details), ..Self::failure(429, "TooManyRequests", message) }
    }

    /// 503 with any text.
    pub fn service_unavailable(message: &str) -> Self {
        Self::failure(503, "ServiceUnavailable", message)
    }

    /// 504 `Timeout: why`.
    pub fn timeout(why: &str, retry_after_seconds: i32) -> Self {
        let details = Details { retry_after_seconds, ..Details::default() };
        Self { details: Some(details), ..Self::failure(504, "Timeout", format!("Timeout: {why}")) }
    }

    /// 504 for a revision this server has not seen yet.
    pub fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let mut status = Self::timeout(&format!("Too large resource version: {asked}, current: {current}"), 1);
        status.add_cause("ResourceVersionTooLarge", "Too large resource version", "");
        status
    }

    /// 500 `Internal error occurred: why`.
    pub fn internal(why: &str) -> Self {
        let causes = vec![Cause { message: why.into(), ..Cause::default() }];
        let message = format!("Internal error occurred: {why}");
        Self { details: Some(Details { causes, ..Details::default() }), ..Self::failure(500, "InternalError", message) }
    }

    /// 500 without a reason, as upstream answers when an error was never classified.
    pub fn unknown(message: &str) -> Self {
        Self::failure(500, "", message)
    }

    /// Status that client-go makes of a response that is neither a success nor a status: `said` is its text.
    pub fn answered(code: u16, said: &str) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server rejected our request for an unknown reason"),
            401 => ("Unauthorized", "the server has asked for the client to provide credentials"),
            403 => ("Forbidden", said),
            404 => ("NotFound", "the server could not find the requested resource"),
            405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
            406 if said.is_empty() => {
                let why = "the server was unable to respond with a content type that the client supports";
                ("NotAcceptable", why)
            }
            406 => ("NotAcceptable", said),
            409 => ("Conflict", "the server reported a conflict"),
            415 => ("UnsupportedMediaType", said),
            422 => ("Invalid", "the server rejected our request due to an error in our request"),
            429 => {
                let why = "the server has received too many requests and has asked us to try again later";
                ("TooManyRequests", why)
            }
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => (
                "Timeout",
                "the server was unable to return a response in the time allotted, but may still be processing the request",
            ),
            500.. => {
                let said = go_quote(said);
                let why = format!("an error on the server ({said}) has prevented the request from succeeding");
                return Self::failure(code, "InternalError", why);
            }
            _ => {
                let why =
                    format!("the server responded with the status code {code} but did not return more information");
                return Self::failure(code, "", why);
            }
        };
        Self::failure(code, reason, message)
    }

    /// [`Self::answered`] of an object, which the message names.
    pub fn answered_of(code: u16, said: &str, group: &str, plural: &str, name: &str) -> Self {
        let plain = Self::answered(code, said);
        let message = format!("{} ( {} {name})", plain.message, qualified(group, plural));
        Self { message, ..plain }.about(group, plural, name)
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
