//! Events that the kubelet reports about pods and its node.
//!
//! Rooms of the kubelet report through [`EventSink`]; the driver forwards to the API server's recorder, a
//! standalone kubelet (no API server) only logs, and tests record.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

/// Event severity as in `Event.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Something expected happened.
    Normal,
    /// Something that a person should look at.
    Warning,
}

/// Takes events. Must never block: implementations queue and drop when full.
pub trait EventSink: Send + Sync {
    /// Reports about a pod; `field_path` is `spec.containers{name}` and the like, or empty for the whole pod.
    fn pod(&self, pod: &Pod, field_path: &str, kind: EventType, reason: &str, message: &str);
    /// Reports about a claim of a pod.
    fn claim(&self, claim: &PersistentVolumeClaim, kind: EventType, reason: &str, message: &str);
    /// Reports about the node object.
    fn node(&self, kind: EventType, reason: &str, message: &str);
}

/// The field path of a container of `pod` as events carry it, or empty when there is no such container.
pub fn field_path(pod: &Pod, container: &str) -> String {
    let Some(spec) = &pod.spec else { return String::new() };
    if spec.containers.iter().any(|c| c.name == container) {
        return format!("spec.containers{{{container}}}");
    }
    if spec.init_containers.iter().flatten().any(|c| c.name == container) {
        return format!("spec.initContainers{{{container}}}");
    }
    if spec.ephemeral_containers.iter().flatten().any(|c| c.name == container) {
        return format!("spec.ephemeralContainers{{{container}}}");
    }
    String::new()
}

/// Only logs; used when there is no API server.
#[derive(Debug, Default)]
pub struct LogSink;

impl EventSink for LogSink {
    fn pod(&self, pod: &Pod, field_path: &str, kind: EventType, reason: &str, message: &str) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        tracing::info!(pod = %format!("{namespace}/{name}"), field_path, ?kind, reason, message, "Event occurred");
    }

    fn claim(&self, claim: &PersistentVolumeClaim, kind: EventType, reason: &str, message: &str) {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        tracing::info!(claim = %format!("{namespace}/{name}"), ?kind, reason, message, "Event occurred");
    }

    fn node(&self, kind: EventType, reason: &str, message: &str) {
        tracing::info!(?kind, reason, message, "Event occurred");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Keeps events for tests.
    #[derive(Debug, Default)]
    pub(crate) struct Recorded(Mutex<Vec<String>>);

    impl Recorded {
        /// The events so far, as `Warning SystemOOM text`.
        pub(crate) fn taken(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock())
        }
    }

    impl EventSink for Recorded {
        fn pod(&self, _: &Pod, _: &str, kind: EventType, reason: &str, message: &str) {
            self.node(kind, reason, message);
        }
        fn claim(&self, _: &PersistentVolumeClaim, kind: EventType, reason: &str, message: &str) {
            self.node(kind, reason, message);
        }
        fn node(&self, kind: EventType, reason: &str, message: &str) {
            self.0.lock().push(format!("{kind:?} {reason} {message}"));
        }
    }
}
