//! A controller's voice: events about the objects it works on.

use k8s_openapi::api::core::v1::ObjectReference;
use shared::events::{EventKind, Recorder};

/// Events with one controller's name as their source.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Through a recorder.
    #[must_use]
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder }
    }

    /// Record one event; never waits.
    pub fn say(&self, about: &ObjectReference, warning: bool, reason: &str, message: String) {
        let kind = if warning { EventKind::Warning } else { EventKind::Normal };
        self.recorder.event(about, kind, reason, message);
    }
}
