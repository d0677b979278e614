//! Spans: what was done, when, and for whom.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::config::Configuration;
use super::context::Context;
use super::export::{Finished, Sink};
use super::steps::{Said, Trace};
use super::{CALLS, OWN, otlp};

/// Attributes of a span.
const MOST: usize = 128;

/// Kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Internal operation.
    Internal = 1,
    /// Server side of a request.
    Server = 2,
    /// Client side of a request.
    Client = 3,
}

/// Begins traces.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    sink: Option<Sink>,
    /// The part of requests that have a trace when they do not bring one.
    ratio: f64,
}

/// A span. It ends when it is dropped.
#[derive(Debug)]
pub struct Span {
    /// Context of the span, where it is part of a trace.
    context: Option<Context>,
    sink: Option<Sink>,
    /// Of one that is written down.
    written: Option<Box<Finished>>,
    noted: Option<Noted>,
}

/// Position in the trace of the current request.
#[derive(Clone, Debug)]
struct Noted {
    trace: Arc<Trace>,
    /// Number of the part.
    part: u8,
    /// The part that this is one of by itself, if it is; a span that is none adds to those of others.
    own: Option<Own>,
}

#[derive(Clone, Copy, Debug)]
struct Own {
    name: &'static str,
    above: u8,
}

/// Tracing state of the current task.
#[derive(Clone)]
struct Current {
    context: Option<Context>,
    sink: Option<Sink>,
    noted: Option<Noted>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

pub(super) fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Tracer {
    /// Creates a tracer that exports as configured.
    pub(super) fn new(sink: Sink, configuration: &Configuration) -> Self {
        Self { sink: Some(sink), ratio: configuration.ratio() }
    }

    /// Reports whether spans are exported.
    pub fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// The span of a request that came with a context, or without one. Only who is `trusted` goes on with his own trace; that
    /// of others is referred to. None where nobody wants to know and nothing is to be handed on.
    pub fn begin(&self, scope: &'static str, name: String, remote: Option<Context>, trusted: bool) -> Option<Span> {
        let Some(sink) = &self.sink else {
            return remote.map(|context| Span { context: Some(context), sink: None, written: None, noted: None });
        };
        let parent = remote.as_ref().filter(|_| trusted);
        let mut context = Context::new(parent);
        if parent.is_none() {
            context.sampled = chosen(context.trace, self.ratio);
        }
        let mut span = Span::new(context, parent, sink, (scope, name, SpanKind::Server));
        if let (Some(written), Some(remote)) = (&mut span.written, remote.filter(|_| !trusted)) {
            written.span.links.push(otlp::Link {
                trace_id: remote.trace.to_be_bytes().to_vec(),
                span_id: remote.span.to_be_bytes().to_vec(),
                trace_state: remote.state(),
            });
        }
        Some(span)
    }

    /// The span of work that nobody asked for, the first of a trace of its own. None where nobody wants to know.
    pub fn root(&self, scope: &'static str, name: &str, kind: SpanKind) -> Option<Span> {
        let sink = self.sink.as_ref()?;
        let mut context = Context::new(None);
        context.sampled = chosen(context.trace, self.ratio);
        Some(Span::new(context, None, sink, (scope, name.to_owned(), kind)))
    }

    /// The span of a call by gRPC (`/package.Service/Method`), as part of what is being done or by itself.
    pub fn call(&self, path: &str) -> Option<Span> {
        let busy = CURRENT.with_borrow(|current| current.as_ref().is_some_and(|c| c.context.is_some()));
        if busy {
            call(path)
        } else {
            self.root(CALLS, path.trim_start_matches('/'), SpanKind::Client).map(|s| s.calls(path))
        }
    }
}

/// The span of a call by gRPC as part of what is being done, if that is written down.
pub fn call(path: &str) -> Option<Span> {
    let name = path.trim_start_matches('/');
    let span = CURRENT.with_borrow(|current| current.as_ref()?.written_below((CALLS, name, SpanKind::Client)));
    span.map(|span| span.calls(path))
}

/// Decides whether a new trace is sampled: all servers of a cluster decide alike on one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "upstream's formula in floats; casts saturate"
)]
fn chosen(trace: u128, ratio: f64) -> bool {
    if ratio >= 1.0 {
        return true;
    }
    // The lower half of the identifier is the random one.
    (trace as u64) >> 1 < (ratio * (1_u64 << 63) as f64) as u64
}

impl Span {
    fn new(context: Context, parent: Option<&Context>, sink: &Sink, what: (&'static str, String, SpanKind)) -> Self {
        let (scope, name, kind) = what;
        let written = context.sampled.then(|| {
            let span = otlp::Span {
                trace_id: context.trace.to_be_bytes().to_vec(),
                span_id: context.span.to_be_bytes().to_vec(),
                trace_state: context.state(),
                parent_span_id: parent.map(|parent| parent.span.to_be_bytes().to_vec()).unwrap_or_default(),
                name,
                kind: kind as i32,
                start: nanoseconds(SystemTime::now()),
                flags: 1,
                ..otlp::Span::default()
            };
            Box::new(Finished { scope, span })
        });
        Self { context: Some(context), sink: Some(sink.clone()), written, noted: None }
    }

    /// Reports whether the span is recorded.
    pub fn is_written(&self) -> bool {
        self.written.is_some()
    }

    /// A span below it, if it is written down.
    pub fn child(&self, scope: &'static str, name: &'static str, kind: SpanKind) -> Option<Self> {
        self.current().below((scope, name, kind))
    }

    fn current(&self) -> Current {
        Current { context: self.context.clone(), sink: self.sink.clone(), noted: self.noted.clone() }
    }

    /// Sets an earlier start.
    #[must_use]
    pub fn since(mut self, time: SystemTime) -> Self {
        if let Some(written) = &mut self.written {
            written.span.start = nanoseconds(time);
        }
        self
    }

    /// Says something of it.
    pub fn text(&mut self, key: &str, value: &str) {
        self.attribute(|| otlp::Attribute::text(key, value));
    }

    /// Says a number of it.
    pub fn number(&mut self, key: &str, value: i64) {
        self.attribute(|| otlp::Attribute::number(key, value));
    }

    fn attribute(&mut self, made: impl FnOnce() -> otlp::Attribute) {
        if let Some(written) = self.written.as_mut().filter(|w| w.span.attributes.len() < MOST) {
            written.span.attributes.push(made());
        }
    }

    /// Adds the attributes of a gRPC call.
    fn calls(mut self, path: &str) -> Self {
        let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or_default();
        for (key, value) in [("rpc.service", service), ("rpc.method", method), ("rpc.system", "grpc")] {
            self.text(key, value);
        }
        self
    }

    /// The headers by which others go on with it.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        self.context.as_ref().map(Context::headers).unwrap_or_default()
    }

    /// Something was done as part of it.
    pub fn step(&self, name: &'static str) {
        if let Some(noted) = &self.noted {
            noted.trace.step(noted.part, Instant::now(), name, None);
        }
    }

    /// Adds a step with a number.
    pub fn step_of(&self, name: &'static str, key: &'static str, number: usize) {
        if let Some(noted) = &self.noted {
            noted.trace.step(noted.part, Instant::now(), name, Some((key, number)));
        }
    }

    /// Ends the span. `about` is called only where its attributes are used: the span is recorded, or it took `least`
    /// and slow requests are logged. A request is logged by itself.
    pub fn end(mut self, least: Duration, about: impl FnOnce(&mut About<'_>)) {
        let noted = self.noted.take();
        let own = noted.as_ref().and_then(|n| Some((n, n.own?)));
        let slow = own.filter(|(n, _)| n.trace.is_slow(n.part, least));
        if slow.is_some() || self.is_written() {
            let mut told = About { fields: slow.is_some().then(String::new), span: &mut self };
            about(&mut told);
            if let (Some((noted, _)), Some(fields)) = (slow, told.fields) {
                noted.trace.say(noted.part, fields);
            }
        }
        if let Some((noted, own)) = own {
            if let Some(written) = &mut self.written {
                written.span.events = noted.trace.events(noted.part);
            }
            match noted.part {
                0 => noted.trace.log(own.name, least),
                part => noted.trace.end(own.above, part, least),
            }
        }
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, why: &str) {
        const ERROR: i32 = 2;
        if let Some(written) = &mut self.written {
            written.span.status = Some(otlp::PartialSuccess { message: why.to_owned(), code: ERROR });
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let (Some(mut written), Some(sink)) = (self.written.take(), &self.sink) {
            written.span.end = nanoseconds(SystemTime::now());
            sink.take(*written);
        }
    }
}

/// Receives attributes of a span and fields of its log line.
pub struct About<'s> {
    span: &'s mut Span,
    fields: Option<String>,
}

impl About<'_> {
    /// Says a text.
    pub fn text(&mut self, key: &str, value: &str) {
        self.span.text(key, value);
        self.field(key, value);
    }

    /// Says a number.
    pub fn number(&mut self, key: &str, value: i64) {
        self.span.number(key, value);
        if self.fields.is_some() {
            self.field(key, &value.to_string());
        }
    }

    fn field(&mut self, key: &str, value: &str) {
        let Some(fields) = &mut self.fields else { return };
        if !fields.is_empty() {
            fields.push(',');
        }
        fields.push_str(key);
        fields.push(':');
        // Nobody writes lines of his own.
        fields.extend(value.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
}

/// A span below what is being done, if that is written down or its steps are noted.
pub fn child(scope: &'static str, name: &'static str, kind: SpanKind) -> Option<Span> {
    CURRENT.with_borrow(|current| current.as_ref()?.below((scope, name, kind)))
}

/// The span of what a request asks for, of which it is noted what it does: it is written down, or those who look for slow
/// requests `want` it. The audit log knows it by its `audit_id`.
pub fn verb(name: &'static str, want: bool, audit_id: &str) -> Option<Span> {
    let mut span = CURRENT.with_borrow(|current| current.as_ref()?.written_below((OWN, name, SpanKind::Internal)));
    if span.is_none() && want {
        // What is handed on stays what it was.
        let (context, sink) =
            CURRENT.with_borrow(|c| c.as_ref().map_or((None, None), |c| (c.context.clone(), c.sink.clone())));
        span = Some(Span { context, sink, written: None, noted: None });
    }
    let mut span = span?;
    let trace = Arc::new(Trace::since(Instant::now(), audit_id));
    span.noted = Some(Noted { trace, part: 0, own: Some(Own { name, above: 0 }) });
    Some(span)
}

/// Logs a slow request without a trace: `steps` with their times.
pub fn late(
    name: &'static str,
    begun: Instant,
    steps: &[(Instant, &'static str, Option<Said>)],
    about: impl FnOnce(&mut About<'_>),
) {
    let trace = Arc::new(Trace::since(begun, ""));
    for (at, name, said) in steps {
        trace.step(0, *at, name, *said);
    }
    let noted = Some(Noted { trace, part: 0, own: Some(Own { name, above: 0 }) });
    Span { context: None, sink: None, written: None, noted }.end(super::SLOW, about);
}

impl Current {
    fn below(&self, what: (&'static str, &'static str, SpanKind)) -> Option<Span> {
        let mut span = self.written_below(what);
        let Some(noted) = &self.noted else { return span };
        let (scope, name, _) = what;
        if scope != OWN {
            // It is no part of what upstream notes by itself.
            if let Some(span) = &mut span {
                span.noted = Some(Noted { own: None, ..noted.clone() });
            }
            return span;
        }
        let (context, sink) = (self.context.clone(), self.sink.clone());
        let mut span = span.unwrap_or(Span { context, sink, written: None, noted: None });
        let part = noted.trace.begin(noted.part, name);
        let own = Some(Own { name, above: noted.part });
        span.noted = Some(Noted { trace: noted.trace.clone(), part, own });
        Some(span)
    }

    fn written_below(&self, (scope, name, kind): (&'static str, &str, SpanKind)) -> Option<Span> {
        let above = self.context.as_ref().filter(|above| above.sampled)?;
        let sink = self.sink.as_ref()?;
        Some(Span::new(Context::new(Some(above)), Some(above), sink, (scope, name.to_owned(), kind)))
    }
}

/// Something was done, as part of what is being done.
pub fn step(name: &'static str) {
    noted(name, None);
}

/// Adds a step with a number to the current span.
pub fn step_of(name: &'static str, key: &'static str, number: usize) {
    noted(name, Some((key, number)));
}

fn noted(name: &'static str, said: Option<Said>) {
    CURRENT.with_borrow(|current| {
        if let Some(noted) = current.as_ref().and_then(|current| current.noted.as_ref()) {
            noted.trace.step(noted.part, Instant::now(), name, said);
        }
    });
}

/// Audit ID of the current request, where it is traced.
pub fn audit_id() -> String {
    CURRENT.with_borrow(|current| {
        let noted = current.as_ref().and_then(|current| current.noted.as_ref());
        noted.map(|noted| noted.trace.audit_id().to_owned()).unwrap_or_default()
    })
}

/// The headers by which others go on with what is being done.
pub fn headers() -> Vec<(&'static str, String)> {
    CURRENT.with_borrow(|current| {
        let context = current.as_ref().and_then(|current| current.context.as_ref());
        context.map(Context::headers).unwrap_or_default()
    })
}

/// Work that is done as part of a span, if there is one. Large work is pinned where it is.
pub fn within<F: Future + Unpin>(span: Option<&Span>, work: F) -> Within<F> {
    Within { current: span.map(Span::current), work }
}

/// See [`within`].
pub struct Within<F> {
    current: Option<Current>,
    work: F,
}

/// Puts back what was being done, also after a panic.
struct Before(Option<Current>);

impl Drop for Before {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl<F: Future + Unpin> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<F::Output> {
        let _before = self.current.clone().map(|current| Before(CURRENT.replace(Some(current))));
        Pin::new(&mut self.work).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn remote(sampled: bool) -> Context {
        Context { trace: 7, span: 9, sampled, carried: None }
    }

    #[test]
    fn who_is_trusted_decides_whether_a_trace_is_written() {
        let (sink, mut spans) = Sink::new();
        for (ratio, sampled, trusted, want) in [
            (0.0, None, false, false),
            (1.0, None, false, true),
            (0.0, Some(true), true, true),
            (1.0, Some(false), true, false),
            (0.0, Some(true), false, false),
            (1.0, Some(false), false, true),
        ] {
            let tracer = Tracer { sink: Some(sink.clone()), ratio };
            let span = tracer.begin("s", "n".to_owned(), sampled.map(remote), trusted).expect("a span");
            assert_eq!(span.is_written(), want, "{ratio} {sampled:?} {trusted}");
            let (same, linked) = (
                span.context.as_ref().is_some_and(|c| c.trace == 7),
                span.written.as_ref().map_or(0, |w| w.span.links.len()),
            );
            assert_eq!(same, sampled.is_some() && trusted);
            assert_eq!(linked, usize::from(want && sampled.is_some() && !trusted));
            drop(span);
            assert_eq!(spans.try_recv().is_ok(), want);
        }
        assert!(Tracer::default().begin("s", String::new(), None, true).is_none());
    }

    #[test]
    fn a_part_of_all_traces_is_written() {
        let random = |i: u64| u128::from(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = (0..10_000).filter(|i| chosen(random(*i), 0.25)).count();
        assert!((2400..2600).contains(&count), "{count}");
    }

    #[tokio::test]
    async fn spans_stand_below_what_is_being_done() {
        let (sink, mut spans) = Sink::new();
        let tracer = Tracer { sink: Some(sink), ratio: 1.0 };
        let root = tracer.begin("s", "root".to_owned(), None, true).expect("a span");
        assert!(child("s", "nobody's", SpanKind::Internal).is_none());
        let work = pin!(async {
            let mut below = child("s", "below", SpanKind::Client).expect("a span");
            below.text("key", "value");
            tokio::task::yield_now().await;
            headers()
        });
        let told = within(Some(&root), work).await;
        let context = root.context.as_ref().expect("a context");
        let parent = format!("00-{:032x}-{:016x}-01", context.trace, context.span);
        assert_eq!(told, [("traceparent", parent)]);
        assert!(headers().is_empty());
        drop(root);
        let (below, root) = (spans.try_recv().expect("below"), spans.try_recv().expect("root"));
        assert_eq!((below.span.parent_span_id, below.span.trace_id), (root.span.span_id, root.span.trace_id));
        assert_eq!(below.span.attributes, [otlp::Attribute::text("key", "value")]);
        assert!(below.span.end >= below.span.start);
    }
}
