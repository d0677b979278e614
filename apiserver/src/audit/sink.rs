//! Delivery to a back end: at once, or in batches with a rate limit; events that are too large are truncated first.
//! Answers for upstream's `plugin/pkg/audit/{buffered`,truncate,webhook}.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use shared::client::Remote;
use shared::flags::FlagSet;
use shared::metrics;
use shared::run::{Shutdown, TaskGroup};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::error::{AuditError, DeliveryError};
use super::event::Event;
use super::log::{self, Log};
use crate::backoff::Backoff;
use crate::egress::{Egress, NetworkContext};

/// For one try to reach a webhook.
const DEADLINE: Duration = Duration::from_secs(30);
/// Tries to reach it.
const TRIES: u32 = 5;

/// Batches that are on their way to a webhook at one time.
const WEBHOOK_BATCHES: usize = 128;

/// Destination of events.
enum AuditDestination {
    Log(Log),
    Webhook { remote: Remote, pause: Duration },
}

impl AuditDestination {
    fn name(&self) -> &'static str {
        match self {
            AuditDestination::Log(_) => "log",
            AuditDestination::Webhook { .. } => "webhook",
        }
    }

    async fn send(&self, events: &[Arc<Event>]) -> Result<(), DeliveryError> {
        match self {
            AuditDestination::Log(log) => Ok(log.write(events)?),
            AuditDestination::Webhook { remote, pause } => post(remote, *pause, events).await,
        }
    }
}

/// The body of a batch; inside of a list the items do not say again what they are.
fn list(events: &[Arc<Event>]) -> String {
    let bare = |event: &Arc<Event>| Event { kind: "", api_version: "", ..event.as_ref().clone() };
    let items: Vec<Value> = events.iter().filter_map(|e| serde_json::to_value(bare(e)).ok()).collect();
    json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": items}).to_string()
}

async fn post(remote: &Remote, pause: Duration, events: &[Arc<Event>]) -> Result<(), DeliveryError> {
    let body = Bytes::from(list(events));
    let (mut left, mut backoff) = (TRIES, Backoff::of_webhook(pause));
    loop {
        left -= 1;
        // Whatever is wrong may be well the next time, and nothing is lost by trying once more: events have ids.
        let error = match remote.post(body.clone(), DEADLINE).await {
            Ok(reply) if reply.is_success() => return Ok(()),
            Ok(reply) => DeliveryError::Refused(reply.failure()),
            Err(error) => error.into(),
        };
        if left == 0 {
            return Err(error);
        }
        backoff.wait().await;
    }
}

/// The largest events and batches, in bytes of JSON.
#[derive(Debug, Clone, Copy)]
struct Limits {
    event: usize,
    batch: usize,
}

/// Size of an event in bytes, with the end of its line.
fn length(event: &Event) -> usize {
    event.json().len() + 1
}

impl Limits {
    /// An event that fits: as it is, without its objects, or not at all.
    fn fit(self, event: &Arc<Event>) -> Option<(Arc<Event>, usize)> {
        let size = length(event);
        if size <= self.event {
            return Some((event.clone(), size));
        }
        let mut less = event.as_ref().clone();
        (less.request_object, less.response_object) = (None, None);
        less.annotations.insert("audit.k8s.io/truncated".to_owned(), "true".to_owned());
        let size = length(&less);
        (size <= self.event).then(|| (Arc::new(less), size))
    }

    /// Batches that fit, and how many events were dropped.
    fn split(self, events: &[Arc<Event>]) -> (Vec<Vec<Arc<Event>>>, usize) {
        let (mut batches, mut size, mut dropped) = (vec![Vec::new()], 0, 0);
        for event in events {
            let Some((event, length)) = self.fit(event) else {
                dropped += 1;
                continue;
            };
            if size + length > self.batch && size > 0 {
                batches.push(Vec::new());
                size = 0;
            }
            size += length;
            if let Some(last) = batches.last_mut() {
                last.push(event);
            }
        }
        batches.retain(|b| !b.is_empty());
        (batches, dropped)
    }
}

struct Backend {
    target: AuditDestination,
    limits: Option<Limits>,
}

impl Backend {
    /// Sends, and counts what was lost; a batch that is lost does not take the others with it.
    async fn send(&self, events: &[Arc<Event>]) -> Result<(), DeliveryError> {
        let (batches, dropped) = match self.limits {
            Some(limits) => limits.split(events),
            None => (vec![events.to_vec()], 0),
        };
        if dropped > 0 {
            failed("truncate", dropped, "event is too large even after truncating");
        }
        let mut all = Ok(());
        for batch in batches {
            if let Err(error) = self.target.send(&batch).await {
                failed(self.target.name(), batch.len(), &error.to_string());
                all = Err(error);
            }
        }
        all
    }
}

/// Counts what was lost, by back end.
fn losses() -> metrics::CounterVec {
    metrics::counter(
        "apiserver_audit_error_total",
        "[ALPHA] Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.",
        &["plugin"],
    )
}

fn failed(plugin: &str, events: usize, error: &str) {
    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    losses().with_label_values(&[plugin]).inc_by(events as f64);
    tracing::error!(plugin, impacted = events, error, "Error in audit plugin");
}

/// Options of batching.
#[derive(Debug, Clone, Copy)]
struct Batching {
    buffer: usize,
    size: usize,
    wait: Duration,
    /// Batches a second, and how many in a burst.
    rate: Option<(f64, f64)>,
    /// Batches on their way at one time.
    at_once: usize,
}

/// Audit back end with its delivery: blocking or batched.
pub(super) enum Sink {
    /// The request waits for its events.
    Blocking {
        /// Back end.
        out: BackendHandle,
        /// A request whose first event is lost is refused.
        strict: bool,
    },
    /// Events are queued for batches.
    Batch(mpsc::Sender<Arc<Event>>),
}

/// Keeps what is behind a sink to this file.
pub(super) struct BackendHandle(Backend);

impl Sink {
    /// Hands over one event; `false` when it was lost and the request must be refused for it.
    pub(super) async fn send(&self, event: &Arc<Event>, first: bool) -> bool {
        match self {
            Sink::Blocking { out, strict } => {
                let sent = out.0.send(std::slice::from_ref(event)).await;
                sent.is_ok() || !(*strict && first)
            }
            Sink::Batch(queue) => {
                if queue.try_send(event.clone()).is_err() {
                    failed("buffered", 1, "audit buffer queue blocked");
                }
                true
            }
        }
    }
}

/// Batches on their way; a webhook that is slow does not keep the queue from being emptied.
struct BatchDelivery {
    out: Arc<Backend>,
    at_once: usize,
    tasks: JoinSet<()>,
}

impl BatchDelivery {
    async fn send(&mut self, batch: Vec<Arc<Event>>) {
        while self.tasks.len() >= self.at_once && self.tasks.join_next().await.is_some() {}
        while self.tasks.try_join_next().is_some() {}
        let out = self.out.clone();
        self.tasks.spawn(async move {
            // What was lost is counted there.
            let _ = out.send(&batch).await;
        });
    }
}

/// Gathers and sends until the shutdown, then what is left.
async fn run(out: Backend, mut events: mpsc::Receiver<Arc<Event>>, how: Batching, shutdown: Shutdown) {
    let mut sending = BatchDelivery { out: Arc::new(out), at_once: how.at_once, tasks: JoinSet::new() };
    let mut tokens = how.rate.map_or(0.0, |(_, burst)| burst);
    let mut since = Instant::now();
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            () = shutdown.wait() => break,
            got = events.recv_many(&mut batch, how.size) => if got == 0 { break },
        }
        let deadline = Instant::now() + how.wait;
        while batch.len() < how.size {
            tokio::select! {
                () = shutdown.wait() => break,
                () = tokio::time::sleep_until(deadline) => break,
                got = events.recv() => match got {
                    Some(event) => batch.push(event),
                    None => break,
                },
            }
        }
        if let Some((rate, burst)) = how.rate {
            tokens = (tokens + since.elapsed().as_secs_f64() * rate).min(burst);
            since = Instant::now();
            if tokens < 1.0 {
                let wait = Duration::try_from_secs_f64((1.0 - tokens) / rate).unwrap_or(Duration::MAX);
                tokio::select! {
                    () = shutdown.wait() => {}
                    () = tokio::time::sleep(wait) => {}
                }
                tokens = 1.0;
                since = Instant::now();
            }
            tokens -= 1.0;
        }
        sending.send(batch).await;
    }
    events.close();
    let mut rest = Vec::new();
    while events.recv_many(&mut rest, how.size).await > 0 {
        sending.send(std::mem::take(&mut rest)).await;
    }
    while sending.tasks.join_next().await.is_some() {}
}

/// The sinks of the flags.
///
/// # Errors
/// [`AuditError`].
pub(super) async fn from_flags(
    flags: &FlagSet,
    egress: &Egress,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> Result<Vec<Sink>, AuditError> {
    let mut sinks = Vec::new();
    let path = flags.string("audit-log-path");
    if !path.is_empty() {
        let format = flags.string("audit-log-format");
        if !matches!(format.as_str(), "json" | "legacy") {
            return Err(AuditError::LogFormat(format));
        }
        let number = |flag: &str| {
            let value = flags.integer(flag);
            u64::try_from(value).map_err(|_| AuditError::Negative { flag: flag.to_owned(), value })
        };
        let options = log::Options {
            legacy: format == "legacy",
            max_size: number("audit-log-maxsize")?,
            max_backups: usize::try_from(number("audit-log-maxbackup")?).unwrap_or(usize::MAX),
            max_age: number("audit-log-maxage")?,
            compress: flags.boolean("audit-log-compress"),
            path,
        };
        let log = Log::new(options).map_err(AuditError::Log)?;
        sinks.push(sink("log", AuditDestination::Log(log), flags, tasks, shutdown)?);
    }
    let kubeconfig = flags.string("audit-webhook-config-file");
    if !kubeconfig.is_empty() {
        let remote = Remote::from_kubeconfig(&kubeconfig, egress.proxied(NetworkContext::ControlPlane)).await;
        let remote = remote.map_err(AuditError::Webhook)?;
        let target = AuditDestination::Webhook { remote, pause: flags.duration("audit-webhook-initial-backoff") };
        sinks.push(sink("webhook", target, flags, tasks, shutdown)?);
    }
    Ok(sinks)
}

fn sink(
    backend: &'static str,
    target: AuditDestination,
    flags: &FlagSet,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> Result<Sink, AuditError> {
    let name = |rest: &str| format!("audit-{backend}-{rest}");
    let count = |rest: &str| usize::try_from(flags.integer(&name(rest))).unwrap_or(0);
    let version = flags.string(&name("version"));
    if version != "audit.k8s.io/v1" {
        return Err(AuditError::Version { backend, version });
    }
    let limits = Limits { event: count("truncate-max-event-size"), batch: count("truncate-max-batch-size") };
    if flags.boolean(&name("truncate-enabled")) && limits.event > limits.batch {
        return Err(AuditError::EventSize { event: limits.event, batch: limits.batch });
    }
    let out = Backend { target, limits: flags.boolean(&name("truncate-enabled")).then_some(limits) };
    match flags.string(&name("mode")).as_str() {
        "blocking" => return Ok(Sink::Blocking { out: BackendHandle(out), strict: false }),
        "blocking-strict" => return Ok(Sink::Blocking { out: BackendHandle(out), strict: true }),
        "batch" => {}
        other => return Err(AuditError::Mode { backend, mode: other.to_owned() }),
    }
    let rate = (flags.float(&name("batch-throttle-qps")), flags.float(&name("batch-throttle-burst")));
    let throttled = flags.boolean(&name("batch-throttle-enable"));
    let batching = Batching {
        buffer: count("batch-buffer-size"),
        size: count("batch-max-size"),
        wait: flags.duration(&name("batch-max-wait")),
        rate: throttled.then_some(rate),
        at_once: if backend == "log" { 1 } else { WEBHOOK_BATCHES },
    };
    if batching.buffer == 0 || batching.size == 0 {
        return Err(AuditError::BatchSize { backend, size: batching.size });
    }
    if throttled && (rate.0 <= 0.0 || rate.1 <= 0.0) {
        return Err(AuditError::Throttle { backend, qps: rate.0 });
    }
    let (sender, receiver) = mpsc::channel(batching.buffer);
    let task = if backend == "log" { "audit-log" } else { "audit-webhook" };
    tasks.spawn(task, run(out, receiver, batching, shutdown.clone()));
    Ok(Sink::Batch(sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, object: usize) -> Arc<Event> {
        let request_object = (object > 0).then(|| Value::from("x".repeat(object)));
        Arc::new(Event { audit_id: id.into(), request_object, ..Event::default() })
    }

    #[test]
    fn large_events_lose_their_objects_and_batches_are_split() {
        let plain = length(&event("a", 0));
        let limits = Limits { event: plain + 100, batch: 2 * plain + 150 };
        let (batches, dropped) =
            limits.split(&[event("a", 0), event("b", 5000), event("c", 0), event(&"d".repeat(5000), 0)]);
        assert_eq!(dropped, 1);
        let shown: Vec<Vec<&str>> = batches.iter().map(|b| b.iter().map(|e| e.audit_id.as_str()).collect()).collect();
        assert_eq!(shown, [vec!["a", "b"], vec!["c"]]);
        assert_eq!(batches[0][1].annotations["audit.k8s.io/truncated"], "true");
        assert!(batches[0][1].request_object.is_none());
    }

    #[tokio::test]
    async fn failed_batch_does_not_affect_others() {
        let flags = FlagSet::of("kube-apiserver", &["--audit-log-path=/dev/full", "--audit-log-mode=blocking"]);
        let (tasks, shutdown) = (TaskGroup::new(), Shutdown::new());
        let mut sinks = from_flags(&flags.expect("flags"), &Egress::default(), &tasks, &shutdown).await.expect("sinks");
        let Some(Sink::Blocking { out: BackendHandle(mut out), .. }) = sinks.pop() else { panic!("a log that blocks") };
        let one = length(&event("a", 0));
        out.limits = Some(Limits { event: one, batch: one });
        let before = losses().with_label_values(&["log"]).get();
        assert!(out.send(&[event("a", 0), event("b", 0), event("c", 0)]).await.is_err());
        let lost = losses().with_label_values(&["log"]).get() - before;
        assert!((2.5..3.5).contains(&lost), "each was tried, and each is counted: {lost}");
    }

    #[tokio::test]
    async fn shutdown_flushes_the_last_batch() {
        let path = std::env::temp_dir().join(format!("audit-{}.log", uuid::Uuid::new_v4()));
        let flags = FlagSet::of(
            "kube-apiserver",
            &[
                &format!("--audit-log-path={}", path.display()),
                "--audit-log-mode=batch",
                "--audit-log-batch-max-size=2",
                "--audit-log-batch-max-wait=1h",
            ],
        )
        .expect("flags");
        let (tasks, shutdown) = (TaskGroup::new(), Shutdown::new());
        let sinks = from_flags(&flags, &Egress::default(), &tasks, &shutdown).await.expect("sinks");
        for id in ["1", "2", "3"] {
            assert!(sinks[0].send(&event(id, 0), true).await);
        }
        shutdown.trigger();
        tasks.drain(Duration::from_secs(5)).await;
        let text = std::fs::read_to_string(&path).expect("a log");
        assert_eq!(text.lines().count(), 3, "{text}");
        std::fs::remove_file(path).expect("removed");
    }

    #[tokio::test]
    async fn flags_are_checked() {
        for (args, want) in [
            (
                &["--audit-log-path=-", "--audit-log-format=xml"][..],
                "invalid audit log format xml, allowed formats are \"legacy,json\"",
            ),
            (
                &["--audit-log-path=-", "--audit-log-mode=later"],
                "invalid audit log mode later, allowed modes are \"batch,blocking,blocking-strict\"",
            ),
            (&["--audit-log-path=-", "--audit-log-maxage=-1"], "--audit-log-maxage -1 can't be a negative number"),
            (
                &["--audit-log-path=-", "--audit-log-version=v9"],
                "invalid audit log API version v9, allowed versions are \"audit.k8s.io/v1\"",
            ),
        ] {
            let flags = FlagSet::of("kube-apiserver", args).expect("flags");
            let got = from_flags(&flags, &Egress::default(), &TaskGroup::new(), &Shutdown::new()).await.err();
            assert_eq!(got.map(|e| e.to_string()).as_deref(), Some(want));
        }
    }
}
