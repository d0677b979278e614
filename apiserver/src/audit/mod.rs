//! Audit: who asked for what, when, and what came of it, written down as far as a policy wants it.
//!
//! In come a request's head, its body and its outcome, out go events to the back ends. Where the policy wants nothing
//! of a request, nothing is copied and nothing is made. Answers for upstream's audit filters and plugins.

mod client;
mod error;
pub mod event;
mod log;
pub mod policy;
mod recorder;
mod sink;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::HttpResponse;
use actix_web::body::{BoxBody, MessageBody as _};
use actix_web::http::header::CONTENT_TYPE;
use bytes::Bytes;
use prometheus::{Counter, CounterVec};
use serde_json::{Value, json};
use shared::authn::{Headers, UserInfo};
use shared::authz::Attributes;
use shared::flags::FlagSet;
use shared::metrics;
use shared::run::{Shutdown, TaskGroup};
use shared::status::Status;

use crate::admission::PATCHES;
use crate::egress::Egress;
use crate::machinery::meta::micro_time;
pub(crate) use client::{source_ips, user_agent};
pub use error::{AuditError, PolicyError, PolicyFileError};
use event::{AuthenticationMetadata, Event, ObjectRef};
use policy::{Level, Omit, Policy, Stage};
pub use recorder::RequestRecorder;
use sink::Sink;

/// Audit: the policy and its back ends.
pub struct Audit {
    policy: Policy,
    sinks: Vec<Sink>,
    tasks: TaskGroup,
    events: Counter,
    levels: CounterVec,
    rejected: Counter,
}

/// Origin of a request, as events record it.
pub struct Origin<'a> {
    /// The id all events of the request have.
    pub audit_id: &'a str,
    /// Path and query as sent.
    pub uri: &'a str,
    /// Headers.
    pub headers: &'a dyn Headers,
    /// The other end of the connection.
    pub peer: Option<SocketAddr>,
    /// The answer takes as long as the client likes.
    pub long_running: bool,
}

fn single(name: &str, help: &str) -> Counter {
    metrics::counter(name, help, &[]).with_label_values::<&str>(&[])
}

impl Audit {
    /// From the flags; `None` where they want no audit.
    ///
    /// # Errors
    /// [`AuditError`].
    pub async fn from_flags(
        flags: &FlagSet,
        egress: &Egress,
        tasks: &TaskGroup,
        shutdown: &Shutdown,
    ) -> Result<Option<Arc<Self>>, AuditError> {
        let (events, rejected) = (
            single(
                "apiserver_audit_event_total",
                "[ALPHA] Counter of audit events generated and sent to the audit backend.",
            ),
            single(
                "apiserver_audit_requests_rejected_total",
                "[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.",
            ),
        );
        let path = flags.string("audit-policy-file");
        let sinks = sink::from_flags(flags, egress, tasks, shutdown).await?;
        if path.is_empty() {
            if !sinks.is_empty() {
                tracing::info!("No audit policy file provided, no events will be recorded for log backend");
            }
            return Ok(None);
        }
        let policy = Policy::read(&path)?;
        if sinks.is_empty() {
            return Ok(None);
        }
        let audit = Self {
            policy,
            sinks,
            tasks: tasks.clone(),
            events,
            levels: metrics::counter(
                "apiserver_audit_level_total",
                "[ALPHA] Counter of policy levels for audit events (1 per request).",
                &["level"],
            ),
            rejected,
        };
        Ok(Some(Arc::new(audit)))
    }

    /// Begins the trail of a request; `None` where the policy wants nothing of it.
    pub fn begin(self: &Arc<Self>, request: &Attributes, origin: &Origin<'_>) -> Option<Trail> {
        let (level, omit) = self.policy.decide(request);
        self.levels.with_label_values(&[level.name()]).inc();
        if level == Level::None {
            return None;
        }
        let object_ref = request.resource_request.then(|| ObjectRef {
            resource: request.resource.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            api_group: request.api_group.clone(),
            api_version: request.api_version.clone(),
            subresource: request.subresource.clone(),
            ..ObjectRef::default()
        });
        let now = micro_time(jiff::Timestamp::now());
        let header = |name: &str| origin.headers.first(name).unwrap_or("");
        let event = Event {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: level.name(),
            audit_id: origin.audit_id.to_owned(),
            request_uri: origin.uri.to_owned(),
            verb: request.verb.clone(),
            user: request.user.clone(),
            source_ips: source_ips(header("x-forwarded-for"), header("x-real-ip"), origin.peer.map(|peer| peer.ip())),
            user_agent: user_agent(header("user-agent")).into_owned(),
            object_ref,
            request_received_timestamp: now,
            ..Event::default()
        };
        let begun = Instant::now();
        Some(Trail {
            audit: self.clone(),
            level,
            omit: omit.clone(),
            event,
            long_running: origin.long_running,
            begun,
            recorder: None,
        })
    }

    /// Hands an event to all back ends; `false` when one of them insists on having had it.
    async fn send(&self, event: Arc<Event>, first: bool) -> bool {
        self.events.inc();
        let mut accepted = true;
        for sink in &self.sinks {
            accepted &= sink.send(&event, first).await;
        }
        accepted
    }
}

/// Part of the request body that is kept for audit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CaptureLevel {
    /// None of it.
    #[default]
    Nothing,
    /// The object reference only.
    Reference,
    /// All of it.
    All,
}

/// Decoded content of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// An object.
    Object(Value),
    /// A patch, or options.
    Other(Value),
}

/// Audit trail of one request.
pub struct Trail {
    audit: Arc<Audit>,
    level: Level,
    omit: Omit,
    event: Event,
    long_running: bool,
    begun: Instant,
    /// Receives annotations while the request is served.
    recorder: Option<RequestRecorder>,
}

/// Annotation of the latency.
const LATENCY: &str = "apiserver.latency.k8s.io/total";
/// Latency from which it is annotated.
const SLOW: Duration = Duration::from_millis(500);

/// Annotation of a slow request; `None` for others.
fn latency(took: Duration) -> Option<(String, String)> {
    (took > SLOW).then(|| (LATENCY.to_owned(), shared::flags::format_duration(took)))
}

/// Bytes at the beginning of an answer that say of which kind it is.
const REPORT: usize = 64;

/// The parts of a Status that are written down beside the answer.
fn bounded(status: &Value) -> Value {
    let mut kept = json!({"metadata": {}});
    for key in ["status", "message", "reason", "details", "code"] {
        if let Some(value) = status.get(key) {
            kept[key] = value.clone();
        }
    }
    kept
}

/// A body as a tree, whatever it was written in; nothing when it cannot be read.
pub fn object(content_type: &str, body: &Bytes) -> Option<Value> {
    if body.is_empty() {
        return None;
    }
    if body.starts_with(b"k8s\0") {
        return proto::protobuf::decode_envelope(body).ok();
    }
    // As deep as what is served, where JSON may pass for YAML: nobody hides anything by nesting it.
    let json = |text: &[u8]| proto::json::decode_any(text).ok();
    if content_type.contains("cbor") {
        return proto::cbor::to_json(body).ok().and_then(|text| json(&text));
    }
    json(body).or_else(|| content_type.contains("yaml").then(|| proto::yaml::decode_any(body).ok()).flatten())
}

fn without_managed_fields(mut object: Value) -> Value {
    let strip = |o: &mut Value| {
        if let Some(meta) = o.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
    };
    strip(&mut object);
    object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(strip);
    object
}

impl Trail {
    /// Reports whether the request is long-running.
    pub fn is_long_running(&self) -> bool {
        self.long_running
    }

    /// Writes down that the request came. `false`: it must be refused, as that could not be written down.
    pub async fn received(&self) -> bool {
        let accepted = self.emit(Stage::RequestReceived, true).await;
        if !accepted {
            self.audit.rejected.inc();
        }
        accepted
    }

    /// Records the impersonated user and the constraint.
    pub fn impersonates(&mut self, user: Option<UserInfo>, constraint: &'static str) {
        self.event.impersonated_user = user;
        let said = AuthenticationMetadata { impersonation_constraint: constraint };
        self.event.authentication_metadata = (!constraint.is_empty()).then_some(said);
    }

    /// Adds annotations; those that are there stay. What webhooks changed is as secret as what was sent.
    pub fn annotate(&mut self, annotations: BTreeMap<String, String>) {
        let open = self.level >= Level::Request;
        for (key, value) in annotations.into_iter().filter(|(key, _)| open || !key.starts_with(PATCHES)) {
            self.event.annotations.entry(key).or_insert(value);
        }
    }

    /// Follows `recorder`, which receives annotations and content while the request is served, however it ends.
    pub fn follows(&mut self, recorder: &RequestRecorder) {
        self.recorder = Some(recorder.clone());
    }

    /// Takes over the recorded annotations.
    fn collect(&mut self) {
        if let Some(recorder) = self.recorder.take() {
            self.sent(recorder.take_content());
            self.annotate(recorder.annotations());
        }
    }

    /// Records the request body: the object reference at every level, the content only where the policy wants it.
    fn sent(&mut self, sent: Option<Content>) {
        let object = match sent {
            None => return,
            Some(Content::Other(tree)) => tree,
            Some(Content::Object(object)) => {
                if let Some(about) = &mut self.event.object_ref {
                    about.fill(&object);
                }
                object
            }
        };
        if self.level >= Level::Request {
            self.event.request_object = Some(self.shown(object));
        }
    }

    /// Part of the request body to keep.
    pub fn capture_level(&self) -> CaptureLevel {
        if self.level >= Level::Request { CaptureLevel::All } else { CaptureLevel::Reference }
    }

    /// The body of the answer; looked at only where the policy wants it, or where it reports an outcome.
    pub fn response(&mut self, content_type: &str, body: &Bytes) {
        let reports = body[..body.len().min(REPORT)].windows(6).any(|word| word == b"Status");
        if self.level < Level::RequestResponse && !reports {
            return;
        }
        let Some(object) = object(content_type, body) else { return };
        if object["kind"] == "Status" && object["apiVersion"] == "v1" {
            self.event.response_status = Some(bounded(&object));
        }
        if self.level == Level::RequestResponse {
            self.event.response_object = Some(self.shown(object));
        }
    }

    /// An answer that is no resource's, such as a document of discovery.
    pub fn record_discovery(&mut self, response: HttpResponse) -> HttpResponse {
        let (head, body) = response.into_parts();
        let said = head.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        match body.try_into_bytes() {
            Ok(bytes) => {
                self.response(&said, &bytes);
                head.set_body(BoxBody::new(bytes))
            }
            Err(body) => head.set_body(body),
        }
    }

    fn shown(&self, object: Value) -> Value {
        if self.omit.managed_fields { without_managed_fields(object) } else { object }
    }

    /// The code of the answer; a status says more.
    pub fn answered(&mut self, code: u16) {
        self.collect();
        let status = self.event.response_status.get_or_insert_with(|| json!({"metadata": {}}));
        status["code"] = code.into();
    }

    /// The refusal.
    pub fn failed(&mut self, status: &Status) {
        let tree: Value = serde_json::from_slice(&status.to_json()).unwrap_or_default();
        self.event.response_status = Some(bounded(&tree));
        if self.level == Level::RequestResponse {
            self.event.response_object = Some(tree);
        }
    }

    /// Writes down that the server failed while it worked on the answer, of which there will be none.
    pub async fn panicked(mut self, why: &str) {
        self.collect();
        self.event.response_status = Some(json!({
            "metadata": {}, "status": "Failure", "message": format!("APIServer panic'd: {why}"),
            "reason": "InternalError", "code": 500,
        }));
        self.emit(Stage::Panic, false).await;
    }

    /// Writes down that the answer begins.
    pub async fn started(&self) {
        self.emit(Stage::ResponseStarted, false).await;
    }

    /// Writes down that the answer is out.
    pub async fn completed(&self) {
        self.emit(Stage::ResponseComplete, false).await;
    }

    /// For answers that end when nobody is there to wait for the back ends.
    pub fn complete_later(mut self) {
        self.collect();
        let tasks = self.audit.tasks.clone();
        tasks.spawn("audit-complete", async move { self.completed().await });
    }

    async fn emit(&self, stage: Stage, first: bool) -> bool {
        if self.omit.stages.contains(&stage) {
            return true;
        }
        let mut event = self.event.clone();
        event.stage = stage.name();
        if stage == Stage::ResponseComplete {
            event.annotations.extend(latency(self.begun.elapsed()));
        }
        event.stage_timestamp = match stage {
            Stage::RequestReceived => event.request_received_timestamp.clone(),
            _ => micro_time(jiff::Timestamp::now()),
        };
        self.audit.send(Arc::new(event), first).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_requests_say_so() {
        assert_eq!(latency(SLOW), None);
        let told = latency(Duration::from_micros(1_500_250)).map(|(_, took)| took);
        assert_eq!(told.as_deref(), Some("1.50025s"));
    }

    #[test]
    fn nested_managed_fields_are_omitted() {
        let json = format!(r#"{{"a":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        for (content_type, body) in [("application/json", json.clone()), ("application/apply-patch+yaml", json)] {
            let seen = object(content_type, &Bytes::from(body));
            assert!(seen.is_some_and(|o| o["a"].is_array()), "{content_type}");
        }
        assert_eq!(object("application/yaml", &Bytes::from_static(b"a: 1")), Some(json!({"a": 1})));
        assert_eq!(object("application/cbor", &Bytes::from_static(b"\xa1\x41a\x01")), Some(json!({"a": 1})));
    }

    #[test]
    fn managed_fields_are_left_out_of_objects_and_lists() {
        let object = json!({"metadata": {"name": "x", "managedFields": []}, "items": [{"metadata": {"managedFields": [], "name": "y"}}]});
        assert_eq!(
            without_managed_fields(object),
            json!({"metadata": {"name": "x"}, "items": [{"metadata": {"name": "y"}}]})
        );
    }
}
