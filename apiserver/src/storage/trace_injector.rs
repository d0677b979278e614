//! Headers that tell etcd which trace a call is part of.

use std::task::{Context, Poll};

use http::{HeaderValue, Request};
use shared::traces;
use tower::Service;

/// Tells etcd which trace a call is part of.
#[derive(Clone)]
pub(super) struct TraceInjector<S>(pub(super) S);

impl<S: Service<Request<B>>, B> Service<Request<B>> for TraceInjector<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        for (name, value) in traces::headers() {
            if let Ok(value) = HeaderValue::from_str(&value) {
                request.headers_mut().insert(name, value);
            }
        }
        self.0.call(request)
    }
}
