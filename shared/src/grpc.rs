//! Calls by gRPC: what its codes are called where people and metrics see them, and calls in traces.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use tonic::{Code, Status};
use tower::Service;

use crate::traces::{self, Span, Tracer};

/// A channel whose calls are spans, and whose servers are told which trace a call is part of.
#[derive(Clone, Debug)]
pub struct Traced<S> {
    channel: S,
    tracer: Tracer,
}

impl<S> Traced<S> {
    /// Over a channel. What is called outside of any work begins a trace of its own.
    pub fn new(channel: S, tracer: Tracer) -> Self {
        Self { channel, tracer }
    }
}

impl<S, B, A> Service<Request<B>> for Traced<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Error: std::fmt::Display,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let span = self.tracer.call(request.uri().path());
        for (name, value) in span.as_ref().map_or_else(traces::headers, Span::headers) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                request.headers_mut().insert(name, value);
            }
        }
        let called = self.channel.call(request);
        Box::pin(async move {
            let answer = called.await;
            if let Some(span) = span.filter(Span::is_written) {
                conclude(span, &answer);
            }
            answer
        })
    }
}

/// Status of a call whose answer begins to come. A server that fails a call says so in the head of its answer.
pub fn status<A, E: std::fmt::Display>(answer: &Result<Response<A>, E>) -> Status {
    match answer {
        Ok(answer) => Status::from_header_map(answer.headers()).unwrap_or_else(|| Status::ok("")),
        Err(why) => Status::unavailable(why.to_string()),
    }
}

/// Ends the span of a call with the call's status.
fn conclude<A, E: std::fmt::Display>(mut span: Span, answer: &Result<Response<A>, E>) {
    let status = status(answer);
    span.number("rpc.grpc.status_code", i64::from(i32::from(status.code())));
    if status.code() != Code::Ok {
        span.fail(status.message());
    }
}

/// A code as Go prints it.
#[must_use]
pub fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
