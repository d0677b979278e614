//! Sources of pods as the driver knows them: which have delivered, and where the pods of the API server go.

use crate::sources::api::PodSink;
use crate::status::writer::Writer;
use crate::workers::manager::Manager;
use k8s_openapi::api::core::v1::Pod;
use shared::informer::Informer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sources of pods that have delivered.
pub(super) struct Heard {
    /// All of the API server's first list was handed on.
    pub(super) api: AtomicBool,
    pub(super) file: AtomicBool,
    pub(super) url: AtomicBool,
    pub(super) pods: Option<Informer<Pod>>,
}

impl Heard {
    pub(super) fn all(&self) -> bool {
        [&self.api, &self.file, &self.url].iter().all(|heard| heard.load(Ordering::Relaxed))
    }

    /// Reports whether a pod is in the API and cannot be decoded: what it has on the node stays.
    pub(super) fn is_unreadable(&self, uid: &str) -> bool {
        self.pods.as_ref().is_some_and(|pods| pods.unreadable().contains_uid(uid))
    }
}

/// Takes the pods of the API server.
pub(super) struct ApiPods {
    pub(super) manager: Arc<Manager>,
    pub(super) writer: Arc<Writer>,
}

impl PodSink for ApiPods {
    fn upsert(&self, pod: &Arc<Pod>) {
        self.manager.upsert(Arc::clone(pod));
        self.writer.observed(pod);
    }

    fn delete(&self, pod: &Arc<Pod>) {
        self.manager.delete(pod);
    }
}
