//! Spans: what was done, when, and for whom.

use std::cell::RefCell;
use std::pin::Pin;
use std::task;
use std::time::{SystemTime, UNIX_EPOCH};

use super::config::Configuration;
use super::context::Context;
use super::export::{Finished, Sink};
use super::otlp;

/// Attributes and events of a span.
const MOST: usize = 128;

/// What a span is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Internal = 1,
    /// It answers somebody.
    Server = 2,
    /// It asks somebody.
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
    context: Context,
    sink: Option<Sink>,
    /// Of one that is written down.
    written: Option<Box<Finished>>,
}

/// What is being done on this thread.
#[derive(Clone)]
struct Current {
    context: Context,
    sink: Option<Sink>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Tracer {
    /// Which writes down as configured.
    pub(super) fn new(sink: Sink, configuration: &Configuration) -> Self {
        Self { sink: Some(sink), ratio: configuration.ratio() }
    }

    /// Whether traces are written down.
    pub fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// The span of a request that came with a context, or without one. Only who is `trusted` goes on with his own trace; that
    /// of others is referred to. None where nobody wants to know and nothing is to be handed on.
    pub fn begin(&self, scope: &'static str, name: String, remote: Option<Context>, trusted: bool) -> Option<Span> {
        let Some(sink) = &self.sink else {
            return remote.map(|context| Span { context, sink: None, written: None });
        };
        let parent = remote.as_ref().filter(|_| trusted);
        let mut context = Context::new(parent);
        if parent.is_none() {
            context.sampled = chosen(context.trace, self.ratio);
        }
        let mut span = Span::new(context, parent, sink, (scope, name, Kind::Server));
        if let (Some(written), Some(remote)) = (&mut span.written, remote.filter(|_| !trusted)) {
            written.span.links.push(otlp::Link {
                trace_id: remote.trace.to_be_bytes().to_vec(),
                span_id: remote.span.to_be_bytes().to_vec(),
                trace_state: remote.state(),
            });
        }
        Some(span)
    }
}

/// Whether a new trace is written down: all servers of a cluster decide alike about one.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
fn chosen(trace: u128, ratio: f64) -> bool {
    if ratio >= 1.0 {
        return true;
    }
    // The lower half of the identifier is the random one.
    (trace as u64) >> 1 < (ratio * (1_u64 << 63) as f64) as u64
}

impl Span {
    fn new(context: Context, parent: Option<&Context>, sink: &Sink, what: (&'static str, String, Kind)) -> Self {
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
        Self { context, sink: Some(sink.clone()), written }
    }

    /// Whether what is said of it is written down.
    pub fn is_written(&self) -> bool {
        self.written.is_some()
    }

    /// A span below it, if it is written down.
    pub fn child(&self, scope: &'static str, name: &str, kind: Kind) -> Option<Self> {
        below(&self.context, self.sink.as_ref(), (scope, name, kind))
    }

    /// It began earlier.
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

    /// Something has happened.
    pub fn event(&mut self, name: &str) {
        if let Some(written) = self.written.as_mut().filter(|w| w.span.events.len() < MOST) {
            let time = nanoseconds(SystemTime::now());
            written.span.events.push(otlp::Event { time, name: name.to_owned() });
        }
    }

    /// It did not end well.
    pub fn fail(&mut self, why: &str) {
        const ERROR: i32 = 2;
        if let Some(written) = &mut self.written {
            written.span.status = Some(otlp::Outcome { message: why.to_owned(), code: ERROR });
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

/// A span below what is being done, if that is written down.
pub fn child(scope: &'static str, name: &str, kind: Kind) -> Option<Span> {
    CURRENT.with_borrow(|current| {
        let current = current.as_ref()?;
        below(&current.context, current.sink.as_ref(), (scope, name, kind))
    })
}

fn below(above: &Context, sink: Option<&Sink>, (scope, name, kind): (&'static str, &str, Kind)) -> Option<Span> {
    let sink = sink.filter(|_| above.sampled)?;
    Some(Span::new(Context::new(Some(above)), Some(above), sink, (scope, name.to_owned(), kind)))
}

/// The headers by which others go on with what is being done.
pub fn headers() -> Vec<(&'static str, String)> {
    CURRENT.with_borrow(|current| current.as_ref().map(|current| current.context.headers()).unwrap_or_default())
}

/// Work that is done as part of a span, if there is one. Large work is pinned where it is.
pub fn within<F: Future + Unpin>(span: Option<&Span>, work: F) -> Within<F> {
    let current = span.map(|span| Current { context: span.context.clone(), sink: span.sink.clone() });
    Within { current, work }
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
            let (same, linked) = (span.context.trace == 7, span.written.as_ref().map_or(0, |w| w.span.links.len()));
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
        assert!(child("s", "nobody's", Kind::Internal).is_none());
        let work = pin!(async {
            let mut below = child("s", "below", Kind::Client).expect("a span");
            below.text("key", "value");
            tokio::task::yield_now().await;
            headers()
        });
        let told = within(Some(&root), work).await;
        let parent = format!("00-{:032x}-{:016x}-01", root.context.trace, root.context.span);
        assert_eq!(told, [("traceparent", parent)]);
        assert!(headers().is_empty());
        drop(root);
        let (below, root) = (spans.try_recv().expect("below"), spans.try_recv().expect("root"));
        assert_eq!((below.span.parent_span_id, below.span.trace_id), (root.span.span_id, root.span.trace_id));
        assert_eq!(below.span.attributes, [otlp::Attribute::text("key", "value")]);
        assert!(below.span.end >= below.span.start);
    }
}
