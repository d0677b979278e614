//! Repair loops: bring allocated addresses and ports in line with services, after a crash between the two writes, an
//! upgrade from another allocator, or tampering.
//!
//! Each file decides purely what is wrong and what mends it; here is what both have in common.

pub(crate) mod addresses;
pub(crate) mod ports;

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use proto::Value;
use serde_json::json;
use shared::status::Status;

use crate::api::Api;
use crate::backoff::Backoff;
use crate::machinery::GroupResource;
use crate::machinery::identity::server_user;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::core::event::EVENTS;
use crate::rest::AllocationStorage;

/// Time between two looks at everything.
const EVERY: Duration = Duration::from_secs(3 * 60);
/// Time until something that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// Complaints that are remembered, so that they are told once and not with every look.
const REMEMBERED: usize = 1000;

/// Pauses between looks that fail.
fn backoff() -> Backoff {
    Backoff::doubling(RETRY, LONGEST_RETRY)
}

/// Refuses to judge what is known of a kind when some of it in etcd cannot be read: what such a one has would pass for
/// nobody's.
fn all_readable(backend: &AllocationStorage, resource: GroupResource<'_>) -> Result<(), Status> {
    match backend.rows.storage(resource).is_some_and(|row| backend.caches.has_unreadable(&row)) {
        true => Err(Status::internal(&format!("some {} in etcd cannot be read", resource.plural))),
        false => Ok(()),
    }
}

/// Something that is wrong with an object, as its event says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rest) struct RepairEvent {
    /// Reason of the event, in upstream's words.
    pub(in crate::rest) reason: Cow<'static, str>,
    /// Action of the event; none for an event of the core group.
    pub(in crate::rest) action: Option<&'static str>,
    /// In words.
    pub(in crate::rest) message: String,
}

/// Tells of complaints as events of one component.
pub(in crate::rest) struct EventWriter {
    api: Api,
    component: &'static str,
    told: HashSet<(String, String)>,
}

impl EventWriter {
    pub(in crate::rest) fn new(api: Api, component: &'static str) -> Self {
        Self { api, component, told: HashSet::new() }
    }

    /// Tells of a complaint about an object, unless it has.
    pub(in crate::rest) async fn tell(&mut self, kind: (&str, &str), about: &Value, complaint: &RepairEvent) {
        tracing::warn!(
            object = meta::text(about, "name"),
            namespace = meta::text(about, "namespace"),
            "{}",
            complaint.message
        );
        if self.told.len() >= REMEMBERED {
            self.told.clear();
        }
        if !self.told.insert((meta::text(about, "uid").to_owned(), complaint.message.clone())) {
            return;
        }
        let event = event(self.component, kind, about, complaint);
        let namespace = tree::namespace(&event).to_owned();
        if let Err(error) = self.api.create(&server_user(), EVENTS, &namespace, event).await {
            tracing::debug!(%error, "Failed to write event");
        }
    }
}

/// The event of a complaint about an object of a kind (`apiVersion`, `kind`).
fn event(component: &str, (api_version, kind): (&str, &str), about: &Value, complaint: &RepairEvent) -> Value {
    let (name, namespace) = (meta::text(about, "name"), meta::text(about, "namespace"));
    let nanoseconds = jiff::Timestamp::now().as_nanosecond();
    // What is no name of an event gives it none.
    let own = if name.contains(':') { uuid::Uuid::new_v4().to_string() } else { format!("{name}.{nanoseconds:x}") };
    let mut event = json!({
        "metadata": {"name": own, "namespace": if namespace.is_empty() { "default" } else { namespace }},
        "involvedObject": {
            "apiVersion": api_version, "kind": kind, "name": name, "namespace": namespace,
            "uid": meta::text(about, "uid"), "resourceVersion": meta::text(about, "resourceVersion"),
        },
        "type": "Warning", "reason": complaint.reason, "message": complaint.message, "reportingComponent": component,
    });
    let more = match complaint.action {
        Some(action) => json!({
            "action": action, "eventTime": meta::micro_time(jiff::Timestamp::now()),
            "reportingInstance": format!("{component}-{}", shared::serve::hostname()),
        }),
        None => json!({
            "source": {"component": component}, "count": 1, "firstTimestamp": meta::now(), "lastTimestamp": meta::now(),
        }),
    };
    proto::merge::merge_patch::apply(&mut event, more);
    event
}
