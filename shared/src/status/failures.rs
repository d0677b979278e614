//! Failures by their reasons, in upstream's words. Answers for `k8s.io/apimachinery/pkg/api/errors`.

use super::{Cause, Details, Status, field, go_quote};

/// `pods` or `deployments.apps`: how a group resource or group kind reads in messages.
pub fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

impl Status {
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
}
