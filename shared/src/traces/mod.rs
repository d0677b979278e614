//! Traces as upstream's components write them: spans that are sent to an OpenTelemetry collector, and the context that
//! requests bring along and take on (W3C `traceparent`).
//!
//! A [`Tracer`] begins the span of a request; work that is done [`within`] a span has [`child`] spans, and says with [`step`]
//! how far it is. What a [`verb`] did is noted whether its request has a trace or not: when it was slow, the log says what
//! took so long. Where nobody asked for traces or for such lines there is no span, and looking for one is all it costs.

mod config;
mod context;
mod export;
mod otlp;
mod slow;
mod span;
mod steps;

pub use config::Configuration;
pub use context::Context;
pub use export::Exporting;
pub use span::{
    About, Span, SpanKind, Tracer, Within, audit_id, call, child, headers, late, step, step_of, verb, within,
};
pub use steps::{SLOW, Said, logged};

/// Instrumentation scope of spans in upstream's own code.
pub const OWN: &str = "k8s.io/component-base/tracing";

/// Instrumentation scope of gRPC calls.
pub const CALLS: &str = "go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc";

/// Instrumentation scope of HTTP requests.
pub const HTTP: &str = "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp";

/// The span of a request to another server.
pub fn request(method: &str, host: &str, url: impl Fn() -> String) -> Option<Span> {
    let name = match method {
        "GET" => "HTTP GET",
        "POST" => "HTTP POST",
        "PUT" => "HTTP PUT",
        "PATCH" => "HTTP PATCH",
        "DELETE" => "HTTP DELETE",
        _ => "HTTP",
    };
    let mut span = child(HTTP, name, SpanKind::Client)?;
    for (key, value) in [("http.request.method", method), ("server.address", host), ("url.full", &url())] {
        span.text(key, value);
    }
    Some(span)
}
