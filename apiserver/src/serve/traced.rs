//! The audit trail of a request, to its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;

use crate::audit::Trail;

/// What is to be written down of a request, also when its client goes away before there is an answer.
pub(super) struct Kept(pub(super) Option<Trail>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(trail) = self.0.take() {
            trail.complete_later();
        }
    }
}

/// Writes down how a request ended; for one that goes on, that it began, and how it ends when it does.
pub(super) async fn written_down(mut trail: Trail, response: HttpResponse) -> HttpResponse {
    trail.code_unless_failed(response.status().as_u16());
    if trail.is_long_running() {
        trail.started().await;
    }
    if trail.is_long_running() && response.status().as_u16() < 400 {
        return response.map_body(|_, body| BoxBody::new(Traced { body, trail: Some(trail) }));
    }
    trail.completed().await;
    response
}

/// A body that says when it has ended, or when nobody reads it any more.
struct Traced {
    body: BoxBody,
    trail: Option<Trail>,
}

impl MessageBody for Traced {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(trail) = self.trail.take() {
            trail.complete_later();
        }
    }
}
