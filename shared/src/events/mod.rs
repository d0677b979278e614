//! Events about objects, recorded without ever blocking or failing the caller. Equal events are counted instead of
//! written again, floods about one object are dropped, and similar ones are combined: client-go's rules, which
//! [`correlate`] holds as pure state. `event` writes core/v1 Events, `event_v1` events.k8s.io/v1 ones.

mod correlate;
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

use crate::informer::Cached;
use crate::run::{Shutdown, TaskGroup};
pub use crate::types::object_reference as reference;
use correlate::{Correlator, Verdict};

/// Events that may wait for the server; more are dropped.
const PENDING: usize = 4096;
const ATTEMPTS: u32 = 3;
const RETRY: Duration = Duration::from_secs(2);
/// Longest message the API accepts.
const MESSAGE_LIMIT: usize = 1024;

/// Whether something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It is not.
    Normal,
    /// It may be.
    Warning,
}

impl Kind {
    /// As in the event's `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What happened, as the caller says it.
#[derive(Clone, Debug)]
struct Record {
    about: ObjectReference,
    related: Option<ObjectReference>,
    kind: Kind,
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
        let writer = Writer {
            client,
            source: Arc::new(EventSource {
                component: Some(component.to_owned()),
                host: (!host.is_empty()).then(|| host.to_owned()),
            }),
            instance: format!("{component}-{}", hostname()),
            correlator: Correlator::default(),
        };
        tasks.spawn("events", writer.run(records, shutdown.clone()));
        Self { queue }
    }

    /// A recorder whose events go nowhere.
    pub fn discard() -> Self {
        Self { queue: mpsc::channel(1).0 }
    }

    /// Records a core/v1 Event.
    pub fn event(&self, about: &ObjectReference, kind: Kind, reason: &str, message: impl Into<String>) {
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
        kind: Kind,
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

struct Writer {
    client: Client,
    source: Arc<EventSource>,
    /// Which process reports, in events.k8s.io events.
    instance: String,
    correlator: Correlator,
}

impl Writer {
    async fn run(mut self, mut records: mpsc::Receiver<Box<Record>>, shutdown: Shutdown) {
        loop {
            let record = tokio::select! {
                () = shutdown.wait() => return,
                record = records.recv() => record,
            };
            let Some(record) = record else { return };
            let verdict = self.correlator.see(&record);
            tokio::select! {
                () = shutdown.wait() => return,
                () = self.write(record, verdict) => {}
            }
        }
    }

    async fn write(&mut self, record: Box<Record>, verdict: Verdict) {
        for attempt in 1..=ATTEMPTS {
            let outcome = match &verdict {
                Verdict::Drop => return,
                Verdict::Create { message, key } => {
                    self.create(&record, message).await.map(|name| self.correlator.created(key.clone(), name))
                }
                Verdict::Count { name, count, message, .. } => self.count(&record, name, *count, message).await,
            };
            match outcome {
                Ok(()) => return,
                Err(kube::Error::Api(status)) if status.code == 404 && matches!(verdict, Verdict::Count { .. }) => {
                    // The counted event ran out of its time to live: begin again.
                    if let Verdict::Count { message, key, .. } = &verdict
                        && let Ok(name) = self.create(&record, message).await
                    {
                        self.correlator.created(key.clone(), name);
                    }
                    return;
                }
                Err(kube::Error::Api(status)) => {
                    tracing::debug!(error = %status.message, reason = %record.reason, "Server rejected event (will not retry!)");
                    return;
                }
                Err(error) => tracing::debug!(%error, attempt, "Unable to write event (may retry after sleeping)"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn meta(record: &Record) -> ObjectMeta {
        let namespace = record.about.namespace.clone().filter(|ns| !ns.is_empty()).unwrap_or("default".to_owned());
        let about = record.about.name.as_deref().unwrap_or_default();
        let name = format!("{about}.{:x}", record.at.as_nanosecond());
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
        if record.action.is_some() {
            let series = serde_json::json!({"series": {"count": count, "lastObservedTime": MicroTime(record.at)}});
            let api = Api::<Event>::namespaced(self.client.clone(), &namespace);
            return api.patch(name, &PatchParams::default(), &Patch::Strategic(series)).await.map(drop);
        }
        let patch = serde_json::json!({"count": count, "lastTimestamp": Time(record.at), "message": message});
        let api = Api::<CoreEvent>::namespaced(self.client.clone(), &namespace);
        api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
    }
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}
