//! Durations of making a volume for a claim, and of deleting one, from end to end; whoever does it. Answers for
//! upstream's `pkg/controller/volume/persistentvolume/metrics` (`OperationStartTimeCache`).
//!
//! In: what is asked for, and what the watches show. Out: durations. Nothing here is decided upon.

use std::collections::HashMap;
use std::time::Instant;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use shared::informer::Event;

use super::plan::{self, HOST_PATH};
use crate::engine::metrics;
use crate::engine::object::{self, Key};

const SECONDS: &str = "volume_operation_total_seconds";
const ERRORS: &str = "volume_operation_total_errors";
const PROVISION: &str = "provision";
const DELETE: &str = "delete";

/// An operation that has ended well: its name, its plugin, how long it took in seconds.
type Ended = (&'static str, String, f64);

/// Operations under way, by claim or volume (which has no namespace).
#[derive(Debug, Default)]
pub struct Operations {
    begun: HashMap<Key, (String, Instant)>,
}

impl Operations {
    /// A volume is to be made for a claim. The first time counts.
    pub fn provision(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        if let Some(plugin) = object::annotation(&claim.metadata, plan::PROVISIONER) {
            self.begun.entry(Key::of(&claim.metadata)).or_insert_with(|| (plugin.to_owned(), now));
        }
    }

    /// A released volume is to go. The first time counts.
    pub fn delete(&mut self, volume: &PersistentVolume, now: Instant) {
        let plugin = object::annotation(&volume.metadata, plan::PROVISIONED_BY).unwrap_or(HOST_PATH);
        self.begun.entry(Key::of(&volume.metadata)).or_insert_with(|| (plugin.to_owned(), now));
    }

    /// A try has failed.
    pub fn failed(&self, key: &Key) {
        if let Some((plugin, _)) = self.begun.get(key) {
            metrics::count(ERRORS, &[name(key), plugin]);
        }
    }

    /// The watch shows a claim.
    pub fn claim(&mut self, event: &Event<PersistentVolumeClaim>, now: Instant) {
        let claim = event.object();
        let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let gone = matches!(event, Event::Deleted(_));
        if gone || bound {
            tell(self.end(&Key::of(&claim.metadata), now).filter(|_| !gone));
        }
    }

    /// The watch shows that a volume is gone.
    pub fn volume_gone(&mut self, volume: &PersistentVolume, now: Instant) {
        tell(self.end(&Key::of(&volume.metadata), now));
    }

    fn end(&mut self, key: &Key, now: Instant) -> Option<Ended> {
        let (plugin, since) = self.begun.remove(key)?;
        Some((name(key), plugin, now.saturating_duration_since(since).as_secs_f64()))
    }
}

fn name(key: &Key) -> &'static str {
    if key.namespace.is_empty() { DELETE } else { PROVISION }
}

fn tell(ended: Option<Ended>) {
    if let Some((operation, plugin, took)) = ended {
        metrics::observe(SECONDS, &[operation, &plugin], took);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn operations_are_timed_from_the_first_try() {
        let claim: PersistentVolumeClaim = serde_json::from_value(
            json!({"metadata": {"name": "c", "namespace": "ns", "annotations": {plan::PROVISIONER: "acme.io/p"}}}),
        )
        .expect("claim");
        let volume: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "v"}})).expect("volume");
        let (mut operations, start) = (Operations::default(), Instant::now());
        let at = |second: u64| start + Duration::from_secs(second);
        operations.provision(&claim, at(0));
        operations.provision(&claim, at(5));
        operations.delete(&volume, at(1));
        let (claim, volume) = (Key::of(&claim.metadata), Key::of(&volume.metadata));
        assert_eq!(operations.end(&claim, at(7)), Some((PROVISION, "acme.io/p".to_owned(), 7.0)));
        assert_eq!(operations.end(&claim, at(8)), None, "once");
        assert_eq!(operations.end(&volume, at(9)), Some((DELETE, HOST_PATH.to_owned(), 8.0)));
    }
}
