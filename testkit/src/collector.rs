//! A collector of traces: OTLP over gRPC.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<OfResource>,
}

#[derive(Clone, PartialEq, Message)]
struct OfResource {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<OfScope>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct OfScope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

/// A span, as far as tests look at it.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub parent: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Text>,
}

#[derive(Clone, PartialEq, Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

fn text<'a>(attributes: &'a [Attribute], key: &str) -> &'a str {
    let found = attributes.iter().find(|a| a.key == key).and_then(|a| a.value.as_ref());
    found.map_or("", |value| &value.text)
}

impl Span {
    pub fn text(&self, key: &str) -> &str {
        text(&self.attributes, key)
    }
}

/// Lives as long as the test's runtime.
pub struct Collector {
    port: u16,
    /// With the service that they are of.
    seen: Arc<Mutex<Vec<(String, Span)>>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let made = Self { port: listener.local_addr().expect("an address").port(), seen: Arc::default() };
        let seen = made.seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = seen.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let seen = seen.clone();
                    async move {
                        let traces =
                            request.uri().path() == "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
                        let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
                        let export = Export::decode(body.get(5..).unwrap_or_default()).expect("an export");
                        for of in export.resources.into_iter().filter(|_| traces) {
                            let service = text(&of.resource.unwrap_or_default().attributes, "service.name").to_owned();
                            let spans = of.scopes.into_iter().flat_map(|scope| scope.spans);
                            seen.lock().extend(spans.map(|span| (service.clone(), span)));
                        }
                        let trailers = http::HeaderMap::from_iter([(
                            http::HeaderName::from_static("grpc-status"),
                            http::HeaderValue::from_static("0"),
                        )]);
                        let frames = [Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(trailers)];
                        let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, Infallible>)));
                        let answer = Response::builder().header("content-type", "application/grpc");
                        Ok::<_, Infallible>(answer.body(body).expect("a response"))
                    }
                });
                let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move { serving.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        made
    }

    /// `host:port`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The spans of a trace, once there are some with all of these names, in no order.
    pub fn trace(&self, trace: &str, names: &[&str]) -> Option<Vec<Span>> {
        let seen = self.seen.lock();
        let hex = |id: &[u8]| id.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let of = seen.iter().filter(|(service, span)| service == "apiserver" && hex(&span.trace) == trace);
        let spans: Vec<Span> = of.map(|(_, span)| span.clone()).collect();
        names.iter().all(|name| spans.iter().any(|span| span.name == *name)).then_some(spans)
    }

    /// All spans of a service.
    pub fn of(&self, service: &str) -> Vec<Span> {
        self.seen.lock().iter().filter(|(of, _)| of == service).map(|(_, span)| span.clone()).collect()
    }

    /// Reports whether a span with this name was received.
    pub fn saw(&self, name: &str) -> bool {
        self.seen.lock().iter().any(|(_, span)| span.name == name)
    }
}
