//! Pods of the API server, as the informer tells of them. Answers for upstream's `pkg/kubelet/config/apiserver.go` and for
//! the order of `HandlePodAdditions`.
//!
//! In: events. Out: pods to run and pods to stop. Nothing is handed on before the first list is complete: a pod that is new
//! must be measured against all that run here already, and older pods come before younger ones.

use super::annotations;
use crate::workers::manager::is_new;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use shared::informer::Event;
use std::sync::Arc;

/// Drops what nobody reads, and says where the pod came from. That is not the pod's to say: static pods are admitted, evicted
/// and told of in other ways. A mirror pod is known by another annotation.
pub fn transform(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::SOURCE.to_owned(), annotations::SOURCE_API.to_owned());
}

/// Takes pods.
pub trait PodSink: Send + Sync {
    /// A pod is there, or has changed.
    fn upsert(&self, pod: &Arc<Pod>);
    /// A pod is gone.
    fn delete(&self, pod: &Arc<Pod>);
}

/// Stream of pods; see the module.
pub struct PodStream<S> {
    sink: S,
    /// Pods that wait for the end of the first list; none once it is complete.
    waiting: Mutex<Option<Vec<Arc<Pod>>>>,
}

impl<S: PodSink> PodStream<S> {
    /// A stream that waits for the first list.
    pub fn new(sink: S) -> Self {
        Self { sink, waiting: Mutex::new(Some(Vec::new())) }
    }

    /// Takes in a change.
    pub fn tell(&self, event: &Event<Pod>) {
        match event {
            Event::Added(pod) => self.upsert(pod),
            Event::Updated { old, new } => {
                // A pod that took another's name while the watch was away replaces it.
                if old.metadata.uid != new.metadata.uid {
                    self.delete(old);
                }
                self.upsert(new);
            }
            Event::Deleted(pod) => self.delete(pod),
        }
    }

    /// The first list is complete: hands on what waited, those that run here first, then the older before the younger.
    pub fn deliver(&self) {
        let mut waiting = self.waiting.lock();
        let mut pods = waiting.take().unwrap_or_default();
        pods.sort_by_cached_key(|pod| {
            (is_new(pod), pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pod.metadata.uid.clone())
        });
        // Under the lock, so that no change overtakes them.
        pods.iter().for_each(|pod| self.sink.upsert(pod));
    }

    fn upsert(&self, pod: &Arc<Pod>) {
        let mut waiting = self.waiting.lock();
        match waiting.as_mut() {
            Some(pods) => {
                pods.retain(|known| known.metadata.uid != pod.metadata.uid);
                pods.push(Arc::clone(pod));
            }
            None => self.sink.upsert(pod),
        }
    }

    fn delete(&self, pod: &Arc<Pod>) {
        let mut waiting = self.waiting.lock();
        match waiting.as_mut() {
            Some(pods) => pods.retain(|known| known.metadata.uid != pod.metadata.uid),
            None => self.sink.delete(pod),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods;
    use serde_json::json;

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl PodSink for Told {
        fn upsert(&self, pod: &Arc<Pod>) {
            self.0.lock().push(format!("+{}", pods::uid(pod)));
        }
        fn delete(&self, pod: &Arc<Pod>) {
            self.0.lock().push(format!("-{}", pods::uid(pod)));
        }
    }

    fn pod(uid: &str, created: &str, runs: bool) -> Arc<Pod> {
        let statuses =
            runs.then(|| json!([{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0}]));
        let pod = json!({"metadata": {"name": "p", "uid": uid, "creationTimestamp": created},
            "status": {"containerStatuses": statuses}});
        Arc::new(serde_json::from_value(pod).expect("pod"))
    }

    #[test]
    fn older_pods_come_before_younger_ones_and_those_that_run_before_all() {
        let stream = PodStream::new(Told::default());
        let (old, young) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let last = "2026-01-03T00:00:00Z";
        let gone = pod("gone", old, false);
        for pod in [&pod("young", young, false), &gone, &pod("old", old, false), &pod("runs", last, true)] {
            stream.tell(&Event::Added(Arc::clone(pod)));
        }
        stream.tell(&Event::Deleted(gone));
        assert!(stream.sink.0.lock().is_empty(), "the list is not complete");
        stream.deliver();
        stream.tell(&Event::Added(pod("later", last, false)));
        assert_eq!(*stream.sink.0.lock(), ["+runs", "+old", "+young", "+later"]);
    }

    #[test]
    fn a_pod_that_took_the_name_of_another_replaces_it() {
        let stream = PodStream::new(Told::default());
        stream.deliver();
        let (first, second) = (pod("a", "2026-01-01T00:00:00Z", true), pod("b", "2026-01-02T00:00:00Z", false));
        stream.tell(&Event::Added(Arc::clone(&first)));
        stream.tell(&Event::Updated { old: Arc::clone(&first), new: Arc::clone(&first) });
        stream.tell(&Event::Updated { old: first, new: second });
        assert_eq!(*stream.sink.0.lock(), ["+a", "+a", "-a", "+b"]);
    }

    #[test]
    fn pods_do_not_say_themselves_where_they_came_from() {
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {"annotations": {annotations::SOURCE: "file"}}})).expect("pod");
        assert!(pods::is_static(&pod));
        transform(&mut pod);
        assert!(!pods::is_static(&pod));
    }
}
