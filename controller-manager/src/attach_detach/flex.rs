//! FlexVolumes whose drivers attach them: programs on this controller manager's machine. Answers for the controller's share of
//! upstream's `pkg/volume/flexvolume`.
//!
//! Attachments are read from the nodes' status after a restart, as upstream does. A driver may take its time: each call is a
//! task, and the node is looked at again when it has ended. Calls for one volume on one node never overlap.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{AttachedVolume, PersistentVolume, Volume};
use parking_lot::Mutex;
use shared::flex::{CallFailure, Drivers, FlexDriver, FlexVolume, NoDriver, split};
use shared::workqueue::Queue;

use super::report::{self, VolumeOperation};
use super::volume::exclusive;
use crate::engine::clock;
use crate::engine::object;

/// Longest wait for a driver to say what it can do.
const INIT: Duration = Duration::from_secs(10);
/// First and longest pause before a call is tried again, upstream's.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));
/// Names in a node's status that begin so are of other plugins.
const OTHERS: &str = "kubernetes.io/";

/// Failures of attaching a volume or detaching it.
#[derive(Debug, thiserror::Error)]
enum DriverError {
    /// There is no such driver.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// The driver's message.
    #[error("{0}")]
    Failed(String),
}

/// A FlexVolume that pods need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlexAttachable {
    /// The volume.
    pub volume: FlexVolume,
    /// The volume can be attached to a single node only.
    pub exclusive: bool,
}

impl FlexAttachable {
    /// None for any other volume.
    #[must_use]
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let source = spec.flex_volume.as_ref()?;
        let read_only = source.read_only.unwrap_or(false);
        let exclusive = exclusive(spec.access_modes.as_deref().unwrap_or_default());
        Some(Self { volume: FlexVolume::persistent(object::name(&volume.metadata), source, read_only), exclusive })
    }

    /// Reads a volume that a pod names itself; several nodes may have it.
    #[must_use]
    pub fn of_disk(volume: &Volume) -> Option<Self> {
        let source = volume.flex_volume.as_ref()?;
        Some(Self { volume: FlexVolume::inline(&volume.name, source), exclusive: false })
    }
}

/// State of a FlexVolume on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlexState {
    /// Path of the device, maybe empty, where the volume is attached.
    pub attached: Option<String>,
    /// A driver is at it.
    pub is_busy: bool,
    /// Time until a call that has failed is tried again.
    pub waits: Option<Duration>,
    /// Time since nobody needs the volume any more.
    pub unwanted_for: Duration,
}

#[derive(Debug, Default)]
struct FlexRecord {
    /// None for one that only the node's status knows.
    volume: Option<FlexVolume>,
    attached: Option<String>,
    is_busy: bool,
    failures: u32,
    retry_at: Option<Instant>,
    unwanted_since: Option<Instant>,
    /// Error of the last call to attach, until it is told.
    error: Option<String>,
    verified: Option<Instant>,
}

/// Node and name of the volume in its status.
type Place = (String, String);

/// Attaches FlexVolumes to nodes.
pub struct FlexAttacher {
    drivers: Drivers,
    entries: Mutex<HashMap<Place, FlexRecord>>,
    queue: Queue<String>,
    /// `--attach-detach-reconcile-sync-period`: how often drivers are asked whether volumes are still attached. None where
    /// `--disable-attach-detach-reconcile-sync` is set.
    verify_after: Option<Duration>,
}

fn pause(failures: u32) -> Duration {
    PAUSE.0.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(PAUSE.1)
}

impl FlexAttacher {
    /// Drivers are below `folder`; the nodes of calls that have ended are put into `queue`.
    #[must_use]
    pub fn new(folder: &Path, queue: Queue<String>, verify_after: Option<Duration>) -> Self {
        Self { drivers: Drivers::new(folder), entries: Mutex::default(), queue, verify_after }
    }

    /// A driver that attaches volumes.
    async fn attaching(&self, driver: &str) -> Option<Arc<FlexDriver>> {
        let found = tokio::time::timeout(INIT, self.drivers.get(driver)).await;
        found.ok()?.ok().filter(|driver| driver.abilities.attach)
    }

    /// Reports whether a volume's driver is there and attaches volumes.
    pub async fn attaches(&self, volume: &FlexVolume) -> bool {
        self.attaching(&volume.driver).await.is_some()
    }

    /// Takes in what a node's status lists, and what pods need: the FlexVolumes of the node by their names in its status.
    pub async fn look<'a>(
        &self,
        node: &str,
        listed: &[AttachedVolume],
        wanted: impl Iterator<Item = &'a FlexAttachable>,
    ) -> BTreeMap<String, FlexState> {
        let mut found = Vec::new();
        for entry in listed.iter().filter(|entry| !entry.name.starts_with(OTHERS)) {
            let Some((driver, _)) = split(&entry.name) else { continue };
            if self.attaching(driver).await.is_some() {
                found.push(entry);
            }
        }
        let now = clock::instant();
        let mut entries = self.entries.lock();
        for listed in found {
            let place = (node.to_owned(), listed.name.clone());
            entries
                .entry(place)
                .or_insert_with(|| FlexRecord { attached: Some(listed.device_path.clone()), ..FlexRecord::default() });
        }
        let wanted: BTreeMap<String, &FlexVolume> =
            wanted.map(|found| (found.volume.unique_name(), &found.volume)).collect();
        for (unique, volume) in &wanted {
            let entry = entries.entry((node.to_owned(), unique.clone())).or_default();
            entry.volume = Some((*volume).clone());
            entry.unwanted_since = None;
        }
        // What is neither wanted nor attached is of no interest any more.
        entries.retain(|(of, unique), entry| {
            of != node || wanted.contains_key(unique) || entry.attached.is_some() || entry.is_busy
        });
        let own = entries.iter_mut().filter(|((of, _), _)| of == node);
        let state = own.map(|((_, unique), entry)| {
            if !wanted.contains_key(unique) {
                entry.unwanted_since.get_or_insert(now);
            }
            let state = FlexState {
                attached: entry.attached.clone(),
                is_busy: entry.is_busy,
                waits: entry.retry_at.map(|at| at.saturating_duration_since(now)).filter(|left| !left.is_zero()),
                unwanted_for: entry.unwanted_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
            };
            (unique.clone(), state)
        });
        state.collect()
    }

    /// Other nodes that have a volume, or are about to.
    #[must_use]
    pub fn elsewhere(&self, node: &str, unique: &str) -> Vec<String> {
        let entries = self.entries.lock();
        let has = |entry: &FlexRecord| entry.attached.is_some() || entry.is_busy;
        let others = entries.iter().filter(|((of, name), entry)| of != node && name == unique && has(entry));
        others.map(|((of, _), _)| of.clone()).collect()
    }

    /// Errors of drivers that have not attached volumes to a node, each told once.
    #[must_use]
    pub fn errors(&self, node: &str) -> Vec<(String, String)> {
        let mut entries = self.entries.lock();
        let own = entries.iter_mut().filter(|((of, _), _)| of == node);
        own.filter_map(|((_, unique), entry)| Some((unique.clone(), entry.error.take()?))).collect()
    }

    /// Marks a volume as being worked on. Reports whether nobody is at it.
    fn begin(&self, place: &Place) -> bool {
        let mut entries = self.entries.lock();
        let entry = entries.entry(place.clone()).or_default();
        !std::mem::replace(&mut entry.is_busy, true)
    }

    /// Takes in the end of a call.
    fn end(&self, place: &Place, change: impl FnOnce(&mut FlexRecord)) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(place) {
            entry.is_busy = false;
            change(entry);
        }
        // Other nodes may wait for the volume to come free.
        let concerned: Vec<String> =
            entries.keys().filter(|(_, unique)| *unique == place.1).map(|(node, _)| node.clone()).collect();
        drop(entries);
        concerned.into_iter().for_each(|node| self.queue.add(node));
    }

    fn count(operation: VolumeOperation, driver: &str, begun: Instant, outcome: &Result<String, DriverError>) {
        report::ended(operation, driver, outcome.is_ok(), clock::instant().saturating_duration_since(begun));
    }

    /// Lets the driver of a wanted volume attach it to a node.
    pub fn attach(self: &Arc<Self>, node: &str, unique: &str) {
        let place = (node.to_owned(), unique.to_owned());
        let volume = self.entries.lock().get(&place).and_then(|entry| entry.volume.clone());
        let Some(volume) = volume.filter(|_| self.begin(&place)) else { return };
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let begun = clock::instant();
            let outcome = this.call_attach(&volume, &place.0).await;
            Self::count(VolumeOperation::Attach, &volume.driver, begun, &outcome);
            this.end(&place, |entry| match outcome {
                Ok(device) => {
                    (entry.attached, entry.failures, entry.retry_at) = (Some(device), 0, None);
                    entry.verified = Some(clock::instant());
                }
                Err(error) => {
                    entry.failures = entry.failures.saturating_add(1);
                    entry.retry_at = Some(clock::instant() + pause(entry.failures));
                    entry.error = Some(error.to_string());
                }
            });
        });
    }

    async fn call_attach(&self, volume: &FlexVolume, node: &str) -> Result<String, DriverError> {
        let driver = self.drivers.get(&volume.driver).await?;
        match driver.call("attach", &[&volume.json(BTreeMap::new()), node]).await {
            Ok(answer) => Ok(answer.device),
            Err(CallFailure::NotSupported) => Ok(String::new()),
            Err(CallFailure::Failed(error)) => Err(DriverError::Failed(error)),
        }
    }

    /// Lets the driver of a volume detach it from a node.
    pub fn detach(self: &Arc<Self>, node: &str, unique: &str) {
        let place = (node.to_owned(), unique.to_owned());
        let Some((driver, name)) = split(unique) else { return };
        if !self.begin(&place) {
            return;
        }
        let (this, driver, name) = (Arc::clone(self), driver.to_owned(), name.to_owned());
        tokio::spawn(async move {
            let begun = clock::instant();
            let outcome = this.call_detach(&driver, &name, &place.0).await;
            Self::count(VolumeOperation::Detach, &driver, begun, &outcome);
            this.end(&place, |entry| match outcome {
                Ok(_) => (entry.attached, entry.failures, entry.retry_at) = (None, 0, None),
                Err(error) => {
                    tracing::warn!(node = place.0, volume = place.1, %error, "DetachVolume.Detach failed");
                    entry.failures = entry.failures.saturating_add(1);
                    entry.retry_at = Some(clock::instant() + pause(entry.failures));
                }
            });
        });
    }

    async fn call_detach(&self, driver: &str, name: &str, node: &str) -> Result<String, DriverError> {
        match self.drivers.get(driver).await?.call("detach", &[name, node]).await {
            Ok(_) | Err(CallFailure::NotSupported) => Ok(String::new()),
            Err(CallFailure::Failed(error)) => Err(DriverError::Failed(error)),
        }
    }

    /// Asks drivers whether the volumes of a node are still attached, each once a period: the time until the next look.
    pub fn verify(self: &Arc<Self>, node: &str) -> Option<Duration> {
        let (after, now) = (self.verify_after?, clock::instant());
        let mut due = Vec::new();
        let mut next: Option<Duration> = None;
        for ((of, unique), entry) in self.entries.lock().iter_mut() {
            let (true, Some(_), false, Some(volume)) = (of == node, &entry.attached, entry.is_busy, &entry.volume)
            else {
                continue;
            };
            let left = after.saturating_sub(now.saturating_duration_since(*entry.verified.get_or_insert(now)));
            if left.is_zero() {
                (entry.verified, entry.is_busy) = (Some(now), true);
                due.push(((of.clone(), unique.clone()), volume.clone()));
            }
            let left = if left.is_zero() { after } else { left };
            next = Some(next.map_or(left, |next| next.min(left)));
        }
        for (place, volume) in due {
            let this = Arc::clone(self);
            tokio::spawn(async move {
                let is_gone = this.is_gone(&volume, &place.0).await;
                this.end(&place, |entry| {
                    if is_gone {
                        tracing::warn!(node = place.0, volume = place.1, "Volume is no longer attached");
                        entry.attached = None;
                    }
                });
            });
        }
        next
    }

    async fn is_gone(&self, volume: &FlexVolume, node: &str) -> bool {
        let Ok(driver) = self.drivers.get(&volume.driver).await else { return false };
        let answer = driver.call("isattached", &[&volume.json(BTreeMap::new()), node]).await;
        // A driver that cannot tell, or has failed, says nothing.
        answer.is_ok_and(|answer| !answer.attached)
    }
}

#[cfg(test)]
#[path = "flex_tests.rs"]
mod tests;
