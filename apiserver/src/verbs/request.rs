//! Requests that may proceed, and replies. Answers for upstream's `RequestScope` and the negotiation of its handlers.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream::LocalBoxStream;
use proto::resources::Resource;
use shared::authn::UserInfo;
use shared::status::Status;

use crate::api::RequestInfo;
use crate::audit::RequestRecorder;
use crate::machinery::query::Query;
use crate::negotiate::{self, Accepted, Media, NotAcceptable, RequestBody};

/// A request that may proceed.
pub struct VerbRequest {
    /// Request info.
    pub info: RequestInfo,
    /// HTTP method.
    pub method: String,
    /// Query parameters.
    pub query: Query,
    /// Media types the server speaks.
    pub media: Media,
    /// `Content-Type`.
    pub content_type: String,
    /// `Accept`.
    pub accept: Option<String>,
    /// `User-Agent`.
    pub user_agent: String,
    /// The client takes gzip.
    pub gzip: bool,
    /// The frames of a watch are to be sent apart.
    pub messages: bool,
    /// The body.
    pub body: Bytes,
    /// User of the request.
    pub user: UserInfo,
    /// Warnings that go out with an error.
    pub recorder: RequestRecorder,
}

impl VerbRequest {
    /// Body of the request.
    pub fn sent_body(&self) -> RequestBody<'_> {
        RequestBody { media: self.media, content_type: &self.content_type, body: &self.body }
    }
}

/// Response of a verb.
pub struct Reply {
    /// HTTP code.
    pub code: u16,
    /// `Content-Type`.
    pub content_type: String,
    /// `Warning` texts.
    pub warnings: Vec<String>,
    /// Content.
    pub body: Body,
    /// The content is compressed.
    pub packed: bool,
}

/// Content of an answer.
pub enum Body {
    /// All at once.
    Full(Bytes),
    /// Frame by frame.
    Stream(LocalBoxStream<'static, Result<Bytes, Infallible>>),
}

impl Reply {
    /// An answer of one piece.
    pub fn new(code: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            code,
            content_type: content_type.to_owned(),
            warnings: Vec::new(),
            body: Body::Full(body.into()),
            packed: false,
        }
    }

    /// A JSON document.
    pub fn json(body: Vec<u8>) -> Self {
        Self::new(200, "application/json", body)
    }

    /// Adds warnings.
    #[must_use]
    pub fn warn(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }
}

/// Negotiates the form of the response.
pub fn accepted(r: &VerbRequest, watch: bool) -> Result<Accepted, Status> {
    let mut accepted = negotiate::parse(r.media, r.accept.as_deref(), watch).map_err(|e| not_acceptable(r, e))?;
    accepted.pretty = !watch && (accepted.pretty || negotiate::for_people(r.query.get("pretty"), &r.user_agent));
    Ok(accepted)
}

/// Refuses an `Accept` that is not served.
pub(super) fn not_acceptable(r: &VerbRequest, why: NotAcceptable) -> Status {
    let streams = matches!(r.info.verb.as_str(), "list" | "watch");
    negotiate::not_acceptable(r.media, streams, &why)
}

/// Namespace of the objects a request is about: none for cluster-scoped rows (a namespace is not in itself).
pub fn namespace_of<'a>(info: &'a RequestInfo, row: &Resource) -> &'a str {
    if row.namespaced { &info.namespace } else { "" }
}
