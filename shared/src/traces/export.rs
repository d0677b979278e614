//! Spans on their way to the collector, in batches; what finds no room is lost.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tonic::Code;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint as Address};
use tonic_prost::ProstCodec;

use super::config::{CollectorAddress, Configuration};
use super::otlp::{
    Attribute, ExportRequest, ExportResponse, InstrumentationScope, Resource, ResourceSpans, ScopeSpans, Span,
};
use super::span::Tracer;
use crate::client::{BoxStream, Dialer};

/// Spans that wait.
const QUEUE: usize = 2048;
/// Spans that are sent together.
const BATCH: usize = 512;
/// Interval at which incomplete batches are sent.
const EVERY: Duration = Duration::from_secs(5);
/// Timeout of sending a batch.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of retries towards an unavailable collector.
const AGAIN: u32 = 12;
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) scope: &'static str,
    pub(super) span: Span,
}

/// Takes them.
#[derive(Clone, Debug)]
pub(super) struct Sink(mpsc::Sender<Finished>);

impl Sink {
    pub(super) fn new() -> (Self, mpsc::Receiver<Finished>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    pub(super) fn take(&self, span: Finished) {
        // Nothing waits for a collector.
        let _ = self.0.try_send(span);
    }
}

/// Sends spans to the collector.
pub struct Exporting {
    spans: mpsc::Receiver<Finished>,
    collector: Grpc<Channel>,
    resource: Resource,
}

impl Tracer {
    /// A tracer, and what is to be run beside it. `about` says who we are; `dialer` opens connections that do not go straight.
    ///
    /// # Errors
    /// The endpoint is none.
    pub fn start(
        configuration: &Configuration,
        about: &[(&str, &str)],
        dialer: Option<Dialer>,
    ) -> anyhow::Result<(Self, Exporting)> {
        let (sink, spans) = Sink::new();
        let endpoint = configuration.endpoint();
        // Over a socket of the machine the name is nobody's.
        let name = if let CollectorAddress::Tcp(address) = &endpoint { address.as_str() } else { "localhost" };
        let address = Address::from_shared(format!("http://{name}"))?.connect_timeout(PATIENCE);
        let collector = match (endpoint, dialer) {
            (CollectorAddress::Tcp(_), None) => address.connect_lazy(),
            (CollectorAddress::Tcp(_), Some(dialer)) => address.connect_with_connector_lazy(dialer),
            (socket, _) => address.connect_with_connector_lazy(local(socket)),
        };
        let resource = Resource { attributes: about.iter().map(|(key, text)| Attribute::text(key, text)).collect() };
        let exporting = Exporting { spans, collector: Grpc::new(collector), resource };
        Ok((Self::new(sink, configuration), exporting))
    }
}

fn local(socket: CollectorAddress) -> Dialer {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net;
    Dialer::new(move |_| {
        let socket = socket.clone();
        Box::pin(async move {
            let stream = match socket {
                CollectorAddress::Abstract(name) => {
                    let address = net::SocketAddr::from_abstract_name(name)?;
                    let stream = net::UnixStream::connect_addr(&address)?;
                    stream.set_nonblocking(true)?;
                    UnixStream::from_std(stream)?
                }
                CollectorAddress::Unix(path) | CollectorAddress::Tcp(path) => UnixStream::connect(path).await?,
            };
            let stream: BoxStream = Box::pin(stream);
            Ok(stream)
        })
    })
}

impl Exporting {
    /// Until `end`; what is there by then is still sent.
    pub async fn run(mut self, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut batch, mut tries) = (Vec::new(), 0);
        loop {
            let ended = tokio::select! {
                () = fill(&mut self.spans, &mut batch), if batch.len() < BATCH => false,
                _ = tick.tick() => false,
                () = &mut end => true,
            };
            if ended {
                while let Ok(span) = self.spans.try_recv() {
                    batch.push(span);
                }
            }
            if !batch.is_empty() && self.sent(&batch, &mut tries).await {
                batch.clear();
                tries = 0;
            }
            if ended {
                return;
            }
        }
    }

    /// Sends a batch; reports whether it is done with.
    async fn sent(&mut self, batch: &[Finished], tries: &mut u32) -> bool {
        let request = request(&self.resource, batch);
        let call = async {
            let unavailable = |e: tonic::transport::Error| tonic::Status::unavailable(e.to_string());
            self.collector.ready().await.map_err(unavailable)?;
            let codec = ProstCodec::<ExportRequest, ExportResponse>::default();
            self.collector.unary(tonic::Request::new(request), PathAndQuery::from_static(EXPORT), codec).await
        };
        let outcome = tokio::time::timeout(PATIENCE, call).await;
        let status = match outcome {
            Ok(Ok(_)) => return true,
            Ok(Err(status)) => status,
            Err(_) => tonic::Status::deadline_exceeded("context deadline exceeded"),
        };
        *tries += 1;
        let again = status.code() == Code::Unavailable && *tries <= AGAIN;
        if !again {
            tracing::warn!(spans = batch.len(), "traces export: {}", status.message());
        }
        !again
    }
}

/// Takes spans in until the batch is full.
async fn fill(spans: &mut mpsc::Receiver<Finished>, batch: &mut Vec<Finished>) {
    while batch.len() < BATCH {
        match spans.recv().await {
            Some(span) => batch.push(span),
            None => std::future::pending().await,
        }
    }
}

/// The spans of a batch by what they are from.
fn request(resource: &Resource, batch: &[Finished]) -> ExportRequest {
    let mut scopes: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for finished in batch {
        scopes.entry(finished.scope).or_default().push(finished.span.clone());
    }
    let scopes = scopes
        .into_iter()
        .map(|(name, spans)| ScopeSpans { scope: Some(InstrumentationScope { name: name.to_owned() }), spans });
    ExportRequest { resources: vec![ResourceSpans { resource: Some(resource.clone()), scopes: scopes.collect() }] }
}
