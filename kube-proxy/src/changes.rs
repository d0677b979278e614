//! Services whose rules have to be planned anew, as events name them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use shared::informer::Event;
use tokio::sync::Notify;

use crate::plan::service_of;

/// Annotation of a slice: the time at which its endpoints changed.
pub(crate) const TRIGGERED: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Triggers remembered for each service until its rules are written.
const TRIGGERS: usize = 16;

/// Namespace and name of a service.
pub(crate) type Key = (String, String);

/// Services that wait to be planned.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Everything, since something about the node changed.
    pub all: bool,
    /// Networks of cluster IPs changed.
    pub environment: bool,
    /// By service.
    pub services: BTreeMap<Key, Pending>,
}

/// Changes of one service that wait.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    service: bool,
    endpoints: bool,
    /// Times at which its endpoints changed, as far as they are known.
    pub triggers: BTreeSet<Timestamp>,
}

impl Waiting {
    /// Services whose object changed, and services whose endpoints did.
    fn count(&self) -> (usize, usize) {
        let count = |has: fn(&Pending) -> bool| self.services.values().filter(|pending| has(pending)).count();
        (count(|pending| pending.service), count(|pending| pending.endpoints))
    }
}

/// Collects changes until somebody takes them.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    waiting: Mutex<Waiting>,
    notify: Notify,
}

impl Changes {
    /// Something about the node changed that rules of all services depend on.
    pub(crate) fn of_node(&self) {
        self.waiting.lock().all = true;
        self.notify.notify_one();
    }

    /// Something besides services and this node changed.
    pub(crate) fn of_environment(&self) {
        self.waiting.lock().environment = true;
        self.notify.notify_one();
    }

    /// Notes a Service's change; false for one that no rule depends on.
    pub(crate) fn of_service(&self, event: &Event<Service>) -> bool {
        if let Event::Updated { old, new } = event
            && (&old.spec, &old.status, &old.metadata.labels) == (&new.spec, &new.status, &new.metadata.labels)
        {
            return false;
        }
        let meta = &event.object().metadata;
        let key = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        self.add([key], |pending| pending.service = true);
        true
    }

    /// Notes a slice's change; false for one that no rule depends on.
    pub(crate) fn of_slice(&self, event: &Event<EndpointSlice>) -> bool {
        let old = match event {
            Event::Updated { old, new } => {
                if (&old.endpoints, &old.ports, service_of(old)) == (&new.endpoints, &new.ports, service_of(new)) {
                    return false;
                }
                service_of(old)
            }
            Event::Added(_) | Event::Deleted(_) => None,
        };
        let new = service_of(event.object());
        let keys = old.into_iter().chain(new).map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let annotations = event.object().metadata.annotations.as_ref();
        let triggered: Option<Timestamp> = annotations.and_then(|annotations| annotations.get(TRIGGERED)?.parse().ok());
        self.add(keys, |pending| {
            pending.endpoints = true;
            if pending.triggers.len() < TRIGGERS {
                pending.triggers.extend(triggered);
            }
        });
        true
    }

    fn add(&self, keys: impl IntoIterator<Item = Key>, note: impl Fn(&mut Pending)) {
        let mut waiting = self.waiting.lock();
        for key in keys {
            note(waiting.services.entry(key).or_default());
        }
        drop(waiting);
        self.notify.notify_one();
    }

    /// Services whose object waits to be planned, and services whose endpoints do.
    #[must_use]
    pub(crate) fn pending(&self) -> (usize, usize) {
        self.waiting.lock().count()
    }

    /// Takes what waits.
    #[must_use]
    pub(crate) fn take(&self) -> Waiting {
        std::mem::take(&mut self.waiting.lock())
    }

    /// Waits for a change since the last wait.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn slice(service: &str, more: Value) -> Arc<EndpointSlice> {
        let mut object = json!({"metadata": {"name": "s", "namespace": "n", "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "endpoints": []});
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        Arc::new(serde_json::from_value(object).expect("a slice"))
    }

    fn services(changes: &Changes) -> Vec<String> {
        changes.take().services.into_keys().map(|(_, name)| name).collect()
    }

    #[test]
    fn events_name_the_services_they_are_about() {
        let changes = Changes::default();
        let web = slice("web", json!({}));
        assert!(changes.of_slice(&Event::Added(Arc::clone(&web))));
        assert_eq!(changes.pending(), (0, 1));
        assert_eq!(services(&changes), ["web"]);
        assert!(!changes.of_slice(&Event::Updated { old: Arc::clone(&web), new: slice("web", json!({})) }));
        let ports = json!({"ports": [{"port": 80}]});
        assert!(changes.of_slice(&Event::Updated { old: Arc::clone(&web), new: slice("web", ports) }));
        assert_eq!(services(&changes), ["web"]);
        assert!(changes.of_slice(&Event::Updated { old: web, new: slice("other", json!({})) }));
        assert_eq!(services(&changes), ["other", "web"]);
        assert!(services(&changes).is_empty());
    }

    #[test]
    fn statuses_and_annotations_that_rules_do_not_depend_on_are_no_change() {
        let changes = Changes::default();
        let service = |version: &str, ip: &str| -> Arc<Service> {
            let object = json!({"metadata": {"name": "web", "namespace": "n", "resourceVersion": version},
                "spec": {"clusterIP": ip}});
            Arc::new(serde_json::from_value(object).expect("a service"))
        };
        let update = |old, new| Event::Updated { old, new };
        assert!(!changes.of_service(&update(service("1", "10.0.0.1"), service("2", "10.0.0.1"))));
        assert!(changes.of_service(&update(service("2", "10.0.0.1"), service("3", "10.0.0.2"))));
        assert_eq!(services(&changes), ["web"]);
    }
}
