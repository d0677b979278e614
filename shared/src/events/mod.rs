//! Events about objects, recorded without ever blocking or failing the caller, by client-go's rules. Of core/v1 Events
//! (`event`) equal ones are counted instead of written again, floods about one object are dropped, and similar ones are
//! combined: [`correlate`]. Of events.k8s.io/v1 ones (`event_v1`) those that repeat are a series: [`series`].

mod correlate;
mod series;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::Request;
use serde::Serialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::informer::Cached;
use crate::run::{Shutdown, TaskGroup};
pub use crate::types::object_reference as reference;
use correlate::{Correlator, Verdict};
use series::{EventAction, Repeated, Series};

/// Events that may wait for the server; more are dropped.
const PENDING: usize = 4096;
/// Tries for one event while nobody answers, and the pause between two, of which the first is random; client-go's
/// `maxTriesPerEvent` and `defaultSleepDuration`.
const ATTEMPTS: u32 = 12;
const RETRY: Duration = Duration::from_secs(10);
/// Longest message the API accepts.
const MESSAGE_LIMIT: usize = 1024;

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Normal.
    Normal,
    /// Warning.
    Warning,
}

impl EventKind {
    /// Value of the event's `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Event as the caller reports it.
#[derive(Clone, Debug)]
struct Record {
    about: ObjectReference,
    related: Option<ObjectReference>,
    kind: EventKind,
    reason: String,
    /// Set for events.k8s.io events.
    action: Option<String>,
    message: String,
    at: Timestamp,
}

/// A cloneable handle; recording is cheap and never waits.
#[derive(Clone)]
pub struct Recorder {
    /// Boxed, as the channel sets aside room for dozens of records from the start.
    queue: mpsc::Sender<Box<Record>>,
}

impl Recorder {
    /// Starts a recorder for `component` on `host` (empty where the host says nothing).
    pub fn new(client: Client, tasks: &TaskGroup, shutdown: &Shutdown, component: &str, host: &str) -> Self {
        let (queue, records) = mpsc::channel(PENDING);
        let writer = EventWriter {
            client,
            source: Arc::new(EventSource {
                component: Some(component.to_owned()),
                host: (!host.is_empty()).then(|| host.to_owned()),
            }),
            instance: format!("{component}-{}", hostname()),
            correlator: Correlator::default(),
            series: Series::default(),
        };
        tasks.spawn("events", writer.run(records, shutdown.clone()));
        Self { queue }
    }

    /// A recorder whose events go nowhere.
    pub fn discard() -> Self {
        Self { queue: mpsc::channel(1).0 }
    }

    /// Records a core/v1 Event.
    pub fn event(&self, about: &ObjectReference, kind: EventKind, reason: &str, message: impl Into<String>) {
        self.record(Record {
            about: about.clone(),
            related: None,
            kind,
            reason: reason.to_owned(),
            action: None,
            message: message.into(),
            at: Timestamp::now(),
        });
    }

    /// Records an events.k8s.io/v1 Event; `action` says what was tried.
    pub fn event_v1(
        &self,
        about: &ObjectReference,
        related: Option<&ObjectReference>,
        kind: EventKind,
        reason: &str,
        action: &str,
        message: impl Into<String>,
    ) {
        self.record(Record {
            about: about.clone(),
            related: related.cloned(),
            kind,
            reason: reason.to_owned(),
            action: Some(action.to_owned()),
            message: message.into(),
            at: Timestamp::now(),
        });
    }

    fn record(&self, record: Record) {
        let mut record = Box::new(record);
        if record.message.len() > MESSAGE_LIMIT {
            let end = record.message.floor_char_boundary(MESSAGE_LIMIT - 3);
            record.message.truncate(end);
            record.message.push_str("...");
        }
        if self.queue.try_send(record).is_err() {
            tracing::debug!("Event dropped: too many are waiting");
        }
    }
}

struct EventWriter {
    client: Client,
    source: Arc<EventSource>,
    /// Instance of the reporting component, in events.k8s.io events.
    instance: String,
    correlator: Correlator,
    series: Series,
}

/// Write of an event.
#[derive(Clone, Copy)]
enum EventWrite<'a> {
    /// A new event that says something.
    Create(&'a Record, &'a str),
    /// One of a name, that happened so often and says something now.
    Count(&'a Record, &'a str, u32, &'a str),
    /// One of events.k8s.io.
    Series(&'a Repeated),
}

impl EventWriter {
    async fn run(mut self, mut records: mpsc::Receiver<Box<Record>>, shutdown: Shutdown) {
        let mut look = Instant::now() + series::ENDED;
        loop {
            let record = tokio::select! {
                () = shutdown.wait() => return,
                record = records.recv() => record,
                () = tokio::time::sleep_until(look), if !self.series.is_empty() => {
                    look = Instant::now() + series::ENDED;
                    let due = self.series.due();
                    tokio::select! {
                        () = shutdown.wait() => return,
                        () = self.write_series(due) => continue,
                    }
                }
            };
            let Some(record) = record else { return };
            tokio::select! {
                () = shutdown.wait() => return,
                () = self.write(*record) => {}
            }
        }
    }

    async fn write(&mut self, record: Record) {
        if record.action.is_some() {
            return self.write_v1(&record).await;
        }
        let (record, reason) = (&record, &record.reason);
        let (made, key) = match self.correlator.see(record) {
            Verdict::Drop => return,
            Verdict::Create { message, key } => (self.persist(reason, EventWrite::Create(record, &message)).await, key),
            Verdict::Count { name, count, message, key } => {
                match self.persist(reason, EventWrite::Count(record, &name, count, &message)).await {
                    // The counted event ran out of its time to live: begin again.
                    Err(404) => (self.persist(reason, EventWrite::Create(record, &message)).await, key),
                    _ => return,
                }
            }
        };
        if let Ok(Some(name)) = made {
            self.correlator.created(key, name);
        }
    }

    async fn write_v1(&mut self, record: &Record) {
        let meta = Self::meta(record);
        match self.series.see(record, meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default()) {
            EventAction::Create => {
                // The log says what became of it; nobody else asks.
                let _ = self.persist(&record.reason, EventWrite::Create(record, &record.message)).await;
            }
            EventAction::Write(repeated) => self.write_series(vec![repeated]).await,
            EventAction::Wait => {}
        }
    }

    async fn write_series(&mut self, due: Vec<Repeated>) {
        for one in due {
            if self.persist("series", EventWrite::Series(&one)).await == Err(404) {
                self.series.forget(&one.namespace, &one.name);
            }
        }
    }

    /// Writes a few times if need be. The name of an event that was made; the error is the code of a refusal, or 0 where
    /// nobody answered.
    async fn persist(&self, reason: &str, write: EventWrite<'_>) -> Result<Option<String>, u16> {
        for attempt in 1..=ATTEMPTS {
            let outcome = match write {
                EventWrite::Create(record, message) => self.create(record, message).await.map(Some),
                EventWrite::Count(record, name, count, message) => {
                    self.count(record, name, count, message).await.map(|()| None)
                }
                EventWrite::Series(repeated) => self.count_series(repeated).await.map(|()| None),
            };
            match outcome {
                Ok(made) => return Ok(made),
                Err(kube::Error::Api(status)) => {
                    tracing::debug!(error = %status.message, reason, "Server rejected event (will not retry!)");
                    return Err(status.code);
                }
                Err(error) => tracing::debug!(%error, attempt, "Unable to write event (may retry after sleeping)"),
            }
            match attempt {
                ATTEMPTS => {}
                // Who lost the same server does not come back at the same time.
                1 => tokio::time::sleep(RETRY.mul_f64(rand::random())).await,
                _ => tokio::time::sleep(RETRY).await,
            }
        }
        Err(0)
    }

    fn meta(record: &Record) -> ObjectMeta {
        let namespace = record.about.namespace.clone().filter(|ns| !ns.is_empty()).unwrap_or("default".to_owned());
        let about = record.about.name.as_deref().unwrap_or_default();
        let name = event_name(about, record.at);
        ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() }
    }

    async fn create(&self, record: &Record, message: &str) -> Result<String, kube::Error> {
        let metadata = Self::meta(record);
        let name = metadata.name.clone().unwrap_or_default();
        let namespace = metadata.namespace.clone().unwrap_or_default();
        if let Some(action) = &record.action {
            let component = self.source.component.clone().unwrap_or_default();
            let event = Event {
                metadata,
                action: Some(action.clone()),
                event_time: Some(MicroTime(record.at)),
                note: Some(message.to_owned()),
                reason: Some(record.reason.clone()),
                regarding: Some(record.about.clone()),
                related: record.related.clone(),
                reporting_instance: Some(self.instance.clone()),
                reporting_controller: Some(component),
                type_: Some(record.kind.as_str().to_owned()),
                ..Event::default()
            };
            self.post(&event, &namespace).await?;
            return Ok(name);
        }
        let event = CoreEvent {
            metadata,
            involved_object: record.about.clone(),
            count: Some(1),
            first_timestamp: Some(Time(record.at)),
            last_timestamp: Some(Time(record.at)),
            message: Some(message.to_owned()),
            reason: Some(record.reason.clone()),
            source: Some((*self.source).clone()),
            reporting_component: self.source.component.clone(),
            reporting_instance: self.source.host.clone(),
            type_: Some(record.kind.as_str().to_owned()),
            ..CoreEvent::default()
        };
        self.post(&event, &namespace).await?;
        Ok(name)
    }

    /// Creates without looking at what comes back.
    async fn post<K: Cached + Serialize>(&self, event: &K, namespace: &str) -> Result<(), kube::Error> {
        let body = serde_json::to_vec(event).map_err(kube::Error::SerdeError)?;
        let request = Request::new(K::collection_path(Some(namespace))).create(&PostParams::default(), body);
        self.client.request::<IgnoredAny>(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
    }

    async fn count(&self, record: &Record, name: &str, count: u32, message: &str) -> Result<(), kube::Error> {
        let namespace = Self::meta(record).namespace.unwrap_or_default();
        let patch = serde_json::json!({"count": count, "lastTimestamp": Time(record.at), "message": message});
        let api = Api::<CoreEvent>::namespaced(self.client.clone(), &namespace);
        api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
    }

    async fn count_series(&self, repeated: &Repeated) -> Result<(), kube::Error> {
        let series = serde_json::json!({"count": repeated.count, "lastObservedTime": MicroTime(repeated.last)});
        let patch = Patch::Strategic(serde_json::json!({"series": series}));
        let api = Api::<Event>::namespaced(self.client.clone(), &repeated.namespace);
        api.patch(&repeated.name, &PatchParams::default(), &patch).await.map(drop)
    }
}

/// The object as a whole, without which part of it is meant.
fn object_key(about: &ObjectReference) -> String {
    let parts = [&about.kind, &about.namespace, &about.name, &about.uid, &about.api_version];
    let parts: Vec<&str> = parts.iter().map(|part| part.as_deref().unwrap_or_default()).collect();
    parts.join("/")
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// Name of an event about an object: its name and the time, where that is a DNS subdomain. Answers for client-go's
/// `GenerateEventName`.
fn event_name(about: &str, at: Timestamp) -> String {
    let name = format!("{about}.{:x}", at.as_nanosecond());
    let is_label_character = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = |label: &str| {
        label.chars().all(is_label_character) && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    match name.len() <= 253 && name.split('.').all(is_label) {
        true => name,
        false => uuid::Uuid::new_v4().to_string(),
    }
}
