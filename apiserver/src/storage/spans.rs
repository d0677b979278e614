//! Calls to etcd in traces, under upstream's names, and what etcd is told of the trace.

use std::task::{Context, Poll};

use http::{HeaderValue, Request};
use shared::traces::{self, Kind, Span};
use tower::Service;

use super::grpc::Call;
use super::meters::Operation;

/// What spans of calls say they are from.
const CALLING: &str = "go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc";

impl Operation {
    /// What upstream calls the work that such a call is part of.
    pub(super) fn span(self) -> Option<&'static str> {
        match self {
            Self::Create => Some("Create etcd3"),
            Self::Update => Some("GuaranteedUpdate etcd3"),
            Self::List => Some("List(recursive=true) etcd3"),
            Self::Get | Self::Delete => None,
        }
    }
}

/// The span of a call.
pub(super) fn asking(call: Call, above: Option<&Span>) -> Option<Span> {
    let (name, method) = match call {
        Call::Range => ("etcdserverpb.KV/Range", "Range"),
        Call::Txn => ("etcdserverpb.KV/Txn", "Txn"),
        _ => return None,
    };
    let mut span = match above {
        Some(above) => above.child(CALLING, name, Kind::Client)?,
        None => traces::child(CALLING, name, Kind::Client)?,
    };
    for (key, value) in [("rpc.system", "grpc"), ("rpc.service", "etcdserverpb.KV"), ("rpc.method", method)] {
        span.text(key, value);
    }
    Some(span)
}

/// Tells etcd which trace a call is part of.
#[derive(Clone)]
pub(super) struct Telling<S>(pub(super) S);

impl<S: Service<Request<B>>, B> Service<Request<B>> for Telling<S> {
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
