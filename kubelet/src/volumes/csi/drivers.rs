//! The drivers that have registered.

use super::driver::Driver;
use super::error::{CallError, NotRegistered};
use super::node::{NodeError, NodeObjects};
use crate::objects::ObjectSource;
use crate::plugins::{Handler, HandlerError, Plugin};
use async_trait::async_trait;
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Type that drivers register as.
pub const KIND: &str = "CSIPlugin";

/// Upstream's shortest `nodeAllocatableUpdatePeriodSeconds`: how soon a change of one is seen.
const LOOK: Duration = Duration::from_secs(10);
/// First and longest wait for the node to be there.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Reasons why a driver is not taken in.
#[derive(Debug, thiserror::Error)]
enum DriverError {
    /// No name.
    #[error("CSI driver has no name")]
    NoName,
    /// Other versions of CSI than the kubelet's: these.
    #[error("none of the CSI versions reported by this driver are supported: {0:?}")]
    Versions(Vec<String>),
    /// No answer about the node.
    #[error("error calling NodeGetInfo: {0}")]
    Info(#[from] CallError),
    /// The API server cannot be told of it.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// Drivers by name.
pub struct Drivers {
    known: Mutex<BTreeMap<String, Driver>>,
    /// None without an API server.
    objects: Option<NodeObjects>,
    /// Held while the API is told of a driver: the last word must be of the last state.
    telling: tokio::sync::Mutex<()>,
    /// The gate `MutableCSINodeAllocatableCount`: drivers may change the number of volumes that they can have on the node.
    counts_change: bool,
}

impl Drivers {
    /// Creates a registry without drivers for the node of this name.
    pub fn new(client: Option<kube::Client>, node: &str) -> Self {
        Self {
            known: Mutex::default(),
            objects: client.map(|client| NodeObjects::new(client, node)),
            telling: Default::default(),
            counts_change: false,
        }
    }

    /// Lets drivers change the number of volumes that they can have on the node.
    #[must_use]
    pub fn with_changing_counts(self, counts_change: bool) -> Self {
        Self { counts_change, ..self }
    }

    /// Makes the node's CSINode as soon as there is a node, and keeps it up to date, until shutdown.
    pub async fn run(&self, objects: &dyn ObjectSource, shutdown: CancellationToken) {
        self.initialize(&shutdown).await;
        self.update(objects, shutdown).await;
    }

    async fn initialize(&self, shutdown: &CancellationToken) {
        let Some(objects) = &self.objects else { return };
        let mut pause = RETRY.0;
        loop {
            let made = {
                let _telling = self.telling.lock().await;
                objects.initialize().await
            };
            let Err(error) = made else { return };
            tracing::info!(%error, "Failed to initialize CSINode, will retry");
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
            }
        }
    }

    /// A driver, if it has registered.
    pub(super) fn get(&self, name: &str) -> Result<Driver, NotRegistered> {
        let known = self.known.lock().get(name).cloned();
        known.ok_or_else(|| NotRegistered(name.to_owned()))
    }

    /// Asks drivers again for the number of volumes that they can have on the node, each in the period of its `CSIDriver`, until
    /// shutdown. Upstream's `csiNodeUpdater`.
    async fn update(&self, objects: &dyn ObjectSource, shutdown: CancellationToken) {
        let mut last = BTreeMap::new();
        if !self.counts_change {
            return;
        }
        while shutdown.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            let names: Vec<String> = self.known.lock().keys().cloned().collect();
            let mut periods = BTreeMap::new();
            for name in names {
                let object = objects.csi_driver(&name).await.ok().flatten();
                periods.extend(object.as_deref().and_then(update_period).map(|period| (name, period)));
            }
            for name in due(&mut last, &periods, Instant::now()) {
                self.update_one(&name).await;
            }
        }
    }

    /// Reports whether a driver may change the number of volumes that it can have on the node.
    pub(super) fn may_change_count(&self, object: &CSIDriver) -> bool {
        self.counts_change && update_period(object).is_some()
    }

    /// Asks a driver again for the number of volumes that it can have on the node.
    pub(super) async fn update_one(&self, name: &str) {
        let Ok(driver) = self.get(name) else { return };
        let updated: Result<(), DriverError> = async {
            let info = driver.info().await?;
            let _telling = self.telling.lock().await;
            match &self.objects {
                Some(objects) => Ok(objects.update(name, &info).await?),
                None => Ok(()),
            }
        }
        .await;
        if let Err(error) = updated {
            tracing::error!(driver = name, %error, "Failed to update CSIDriver");
        }
    }

    async fn install(&self, driver: &Driver) -> Result<(), DriverError> {
        let info = driver.info().await?;
        let _telling = self.telling.lock().await;
        match &self.objects {
            Some(objects) => Ok(objects.install(&driver.name, &info).await?),
            None => Ok(()),
        }
    }
}

/// Period in which a driver wants to be asked for its number of volumes; none where it does not change.
fn update_period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = driver.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// Drivers that are to be asked now, by their periods; a driver or period that is new counts from now on.
fn due(
    last: &mut BTreeMap<String, (Duration, Instant)>,
    periods: &BTreeMap<String, Duration>,
    now: Instant,
) -> Vec<String> {
    last.retain(|name, (period, _)| periods.get(name) == Some(period));
    let mut due = Vec::new();
    for (name, period) in periods {
        let (_, at) = last.entry(name.clone()).or_insert((*period, now));
        if now.saturating_duration_since(*at) >= *period {
            *at = now;
            due.push(name.clone());
        }
    }
    due
}

/// The major version of `1.2.3` or `v1.2`.
fn major(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').next()?.parse().ok()
}

#[async_trait]
impl Handler for Drivers {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        if plugin.name.is_empty() {
            return Err(DriverError::NoName.into());
        }
        let versions = &plugin.versions;
        if versions.iter().any(|version| major(version) == Some(1)) {
            return Ok(());
        }
        Err(DriverError::Versions(versions.clone()).into())
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let driver = Driver::new(&plugin.name, &plugin.endpoint)?;
        self.known.lock().insert(plugin.name.clone(), driver.clone());
        let installed = self.install(&driver).await;
        if installed.is_err() {
            self.remove(plugin);
        }
        Ok(installed?)
    }

    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let _telling = self.telling.lock().await;
        self.remove(plugin);
        match &self.objects {
            // Another socket serves the driver by now.
            _ if self.known.lock().contains_key(&plugin.name) => Ok(()),
            Some(objects) => Ok(objects.uninstall(&plugin.name).await?),
            None => Ok(()),
        }
    }
}

impl Drivers {
    /// Removes a driver, unless it serves another socket by now.
    fn remove(&self, plugin: &Plugin) {
        let mut known = self.known.lock();
        if known.get(&plugin.name).is_some_and(|driver| driver.endpoint == plugin.endpoint) {
            known.remove(&plugin.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_asked_in_their_periods() {
        let (mut last, start) = (BTreeMap::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let periods = |list: &[(&str, u64)]| -> BTreeMap<String, Duration> {
            list.iter().map(|(name, period)| ((*name).to_owned(), Duration::from_secs(*period))).collect()
        };
        let both = periods(&[("a", 10), ("b", 30)]);
        for (second, expected) in [(0, &[][..]), (9, &[]), (10, &["a"]), (19, &[]), (30, &["a", "b"])] {
            assert_eq!(due(&mut last, &both, at(second)), expected, "{second}");
        }
        // Another period begins anew, and so does a driver that was away.
        let other = periods(&[("a", 20)]);
        assert_eq!(due(&mut last, &other, at(49)), Vec::<String>::new());
        assert_eq!(due(&mut last, &periods(&[("a", 20), ("b", 30)]), at(69)), ["a"]);
        for (seconds, expected) in [(Some(60), Some(60)), (Some(0), None), (Some(-1), None), (None, None)] {
            let mut driver = CSIDriver::default();
            driver.spec.node_allocatable_update_period_seconds = seconds;
            assert_eq!(update_period(&driver), expected.map(Duration::from_secs));
        }
    }
}
