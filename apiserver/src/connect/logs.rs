//! Logs of pods, which the pod's kubelet has. Answers for upstream's `pkg/registry/core/pod/rest/log.go`,
//! `LogLocation`.

use std::future::ready;
use std::io::Error;

use actix_web::HttpResponse;
use actix_web::body::MessageBody as _;
use actix_web::http::header::HeaderMap;
use futures::{StreamExt as _, stream};
use shared::status::{Status, field, go_quote};

use super::pods::{container, encode, joined, redirect};
use super::transport::collect;
use super::{Call, Connect, messages, meters};
use crate::machinery::query::Query;
use crate::machinery::tree::text;
use crate::registry::core::pod::PODS;

/// Of a kubelet's refusal, so much is passed on.
const REFUSAL: usize = 50_000;
const STREAMS: &[&str] = &["All", "Stderr", "Stdout"];

impl Connect {
    /// `pods/log`.
    pub(super) async fn log(&self, call: Call<'_>) -> Result<HttpResponse, Status> {
        let query = Query::parse(call.request.query_string());
        let unverified = query.flag("insecureSkipTLSVerifyBackend");
        meters::logs(unverified);
        let parameters = log_parameters(&query, &call.info.name, self.splits_logs)?;
        let pod = self.pod(&call).await?;
        let container = container(&pod, query.get("container").unwrap_or_default())?;
        let node = text(&pod, "/spec/nodeName");
        if node.is_empty() {
            return Ok(HttpResponse::NoContent().finish());
        }
        let kubelet = match unverified {
            true => self.kubelets.unverified(&self.api, node).await?,
            false => self.kubelets.origin(&self.api, node).await?,
        };
        let path = format!("/containerLogs/{}/{}/{container}{parameters}", call.info.namespace, call.info.name);
        let response = kubelet.send("GET", &path, &HeaderMap::new(), None).await;
        let response = response.inspect_err(meters::logs_failed).map_err(|e| {
            Status::unknown(&format!("Get \"https://{}{path}\": {}", kubelet.authority(), kubelet.why(&e)))
        })?;
        if let Some(elsewhere) = redirect(response.status(), response.headers()) {
            return Err(Status::unknown(&format!("Get {}: redirects forbidden", go_quote(elsewhere))));
        }
        match response.status().as_u16() {
            200..=206 if messages::is_requested(call.request) => {
                Ok(messages::send(call.request, call.payload, response))
            }
            200..=206 => Ok(lines(response)),
            code => {
                let said = collect(response, REFUSAL).await;
                Err(refusal(code, &String::from_utf8_lossy(&said), &call.info.name))
            }
        }
    }
}

/// The answer with a log. None of the kubelet's headers concern the client; and where the log breaks off it ends, as
/// there is no more of it.
fn lines(log: HttpResponse) -> HttpResponse {
    let mut body = Box::pin(log.into_body());
    let parts = stream::poll_fn(move |cx| body.as_mut().poll_next(cx));
    let whole = parts.scan((), |(), part| {
        ready(
            part.inspect_err(|error| tracing::debug!(%error, "Failed to stream container log"))
                .ok()
                .map(Ok::<_, Error>),
        )
    });
    HttpResponse::Ok().content_type("text/plain").streaming(whole)
}

/// The kubelet's query for a log request, with upstream's validation of `PodLogOptions`. Where streams are `split`, one
/// of them may be asked for.
fn log_parameters(query: &Query, pod: &str, split: bool) -> Result<String, Status> {
    let mut errors = Vec::new();
    let mut parameters = Vec::new();
    for name in ["follow", "previous", "timestamps"] {
        if query.flag(name) {
            parameters.push(format!("{name}=true"));
        }
    }
    let twice = query.get("sinceTime").is_some() && query.get("sinceSeconds").is_some();
    for (name, least, words) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
    ] {
        let Some(value) = query.int(name)? else { continue };
        if value < least && !(twice && name == "sinceSeconds") {
            errors.push(field::Error::invalid(field::Path::new(name), value, words));
        }
        parameters.push(format!("{name}={value}"));
    }
    if twice {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(field::Error::forbidden(field::Path::new("[]"), why));
    }
    if let Some(time) = query.get("sinceTime") {
        parameters.push(format!("sinceTime={}", encode(time)));
    }
    let stream = field::Path::new("stream");
    match query.get("stream") {
        Some(_) if !split => errors.push(field::Error::forbidden(stream, "may not be specified")),
        None if !split => {}
        asked => {
            let asked = asked.unwrap_or("All");
            if !STREAMS.contains(&asked) {
                errors.push(field::Error::not_supported(stream, asked, STREAMS));
            }
            if asked != "All" && query.get("tailLines").is_some() {
                let why = "`tailLines` and specific `stream` are mutually exclusive for now";
                errors.push(field::Error::forbidden(field::Path::new("[]"), why));
            }
            parameters.push(format!("stream={}", encode(asked)));
        }
    }
    if !errors.is_empty() {
        return Err(Status::invalid("", "PodLogOptions", pod, errors));
    }
    // Errors show the whole of it, in this order.
    parameters.sort();
    Ok(joined(&parameters))
}

/// A kubelet's refusal as the API's error.
fn refusal(code: u16, said: &str, pod: &str) -> Status {
    match code {
        500 => Status::internal(said),
        400 => Status::bad_request(said),
        _ => Status::answered_of(code, said, PODS.group, &format!("{}/log", PODS.plural), pod),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelets_refusal_is_the_apis() {
        for (code, said, reason, message) in [
            (400, "container not found", "BadRequest", "container not found"),
            (401, "", "Unauthorized", "the server has asked for the client to provide credentials ( pods/log p)"),
            (403, "not you", "Forbidden", "not you ( pods/log p)"),
            (404, "404 page not found", "NotFound", "the server could not find the requested resource ( pods/log p)"),
            (500, "boom", "InternalError", "Internal error occurred: boom"),
            (503, "", "ServiceUnavailable", "the server is currently unable to handle the request ( pods/log p)"),
        ] {
            let status = refusal(code, said, "p");
            assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (code, reason, message));
        }
        let details = refusal(404, "", "p").details.expect("details");
        assert_eq!((details.kind.as_str(), details.name.as_str()), ("pods/log", "p"));
    }

    #[test]
    fn log_options_are_checked_and_passed_on() {
        let read =
            |query: &str| log_parameters(&Query::parse(query), "p", false).map_err(|status| status.message.clone());
        assert_eq!(
            read("container=a&follow=true&tailLines=5&sinceTime=2026-01-01T00:00:00Z"),
            Ok("?follow=true&sinceTime=2026-01-01T00%3A00%3A00Z&tailLines=5".to_owned())
        );
        assert_eq!(read(""), Ok(String::new()));
        let error = read("tailLines=-1").expect_err("negative");
        assert_eq!(
            error,
            "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(
            read("sinceSeconds=0&sinceTime=2026-01-01T00:00:00Z").expect_err("both"),
            "PodLogOptions \"p\" is invalid: []: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
        );
    }

    #[test]
    fn single_stream_can_be_selected_with_split_streams() {
        let invalid = |what: &str| Err(format!("PodLogOptions \"p\" is invalid: {what}"));
        for (split, query, want) in [
            (false, "stream=All", invalid("stream: Forbidden: may not be specified")),
            (false, "", Ok(String::new())),
            (true, "", Ok("?stream=All".to_owned())),
            (true, "stream=Stderr&follow=true", Ok("?follow=true&stream=Stderr".to_owned())),
            (true, "stream=All&tailLines=1", Ok("?stream=All&tailLines=1".to_owned())),
            (
                true,
                "stream=Stdout&tailLines=1",
                invalid("[]: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"),
            ),
            (
                true,
                "stream=none",
                invalid("stream: Unsupported value: \"none\": supported values: \"All\", \"Stderr\", \"Stdout\""),
            ),
        ] {
            let got = log_parameters(&Query::parse(query), "p", split).map_err(|status| status.message);
            assert_eq!(got, want, "{split} {query}");
        }
    }
}
