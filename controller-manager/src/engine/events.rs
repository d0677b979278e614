//! A controller's voice: events about the objects it works on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use shared::events::{EventType, Recorder};

/// Events with one controller's name as their source.
#[derive(Clone)]
pub struct Events {
    recorder: Arc<Recorder>,
}

impl Events {
    /// Through a recorder.
    #[must_use]
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder: Arc::new(recorder) }
    }

    /// Record one event; never waits.
    pub fn say(&self, about: &ObjectReference, warning: bool, reason: &str, message: String) {
        let kind = if warning { EventType::Warning } else { EventType::Normal };
        self.recorder.event(about, kind, reason, &message);
    }
}
