//! The drivers that have registered.

use super::driver::Driver;
use super::node::NodeObjects;
use crate::plugins::{Handler, Plugin};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Type that drivers register as.
pub const KIND: &str = "CSIPlugin";

/// First and longest wait for the node to be there.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Drivers by name.
pub struct Drivers {
    known: Mutex<BTreeMap<String, Driver>>,
    /// None without an API server.
    objects: Option<NodeObjects>,
    /// Held while the API is told of a driver: the last word must be of the last state.
    telling: tokio::sync::Mutex<()>,
}

impl Drivers {
    /// Creates a registry without drivers for the node of this name.
    pub fn new(client: Option<kube::Client>, node: &str) -> Self {
        Self {
            known: Mutex::default(),
            objects: client.map(|client| NodeObjects::new(client, node)),
            telling: Default::default(),
        }
    }

    /// Makes the node's CSINode as soon as there is a node.
    pub async fn run(&self, shutdown: CancellationToken) {
        let Some(objects) = &self.objects else { return };
        let mut pause = RETRY.0;
        loop {
            let made = {
                let _telling = self.telling.lock().await;
                objects.initialize().await
            };
            let Err(error) = made else { return };
            tracing::info!(error, "Failed to initialize CSINode, will retry");
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
            }
        }
    }

    /// A driver, if it has registered.
    pub(super) fn get(&self, name: &str) -> Result<Driver, String> {
        let known = self.known.lock().get(name).cloned();
        known.ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))
    }

    async fn install(&self, driver: &Driver) -> Result<(), String> {
        let info = driver.info().await.map_err(|error| format!("error calling NodeGetInfo: {error}"))?;
        let _telling = self.telling.lock().await;
        match &self.objects {
            Some(objects) => objects.install(&driver.name, &info).await,
            None => Ok(()),
        }
    }
}

/// The major version of `1.2.3` or `v1.2`.
fn major(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').next()?.parse().ok()
}

#[async_trait]
impl Handler for Drivers {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        if plugin.name.is_empty() {
            return Err("CSI driver has no name".to_owned());
        }
        let versions = &plugin.versions;
        if versions.iter().any(|version| major(version) == Some(1)) {
            return Ok(());
        }
        Err(format!("none of the CSI versions reported by this driver are supported: {versions:?}"))
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), String> {
        let driver = Driver::new(&plugin.name, &plugin.endpoint)?;
        self.known.lock().insert(plugin.name.clone(), driver.clone());
        let installed = self.install(&driver).await;
        if installed.is_err() {
            self.remove(plugin);
        }
        installed
    }

    async fn deregister(&self, plugin: &Plugin) -> Result<(), String> {
        let _telling = self.telling.lock().await;
        self.remove(plugin);
        match &self.objects {
            // Another socket serves the driver by now.
            _ if self.known.lock().contains_key(&plugin.name) => Ok(()),
            Some(objects) => objects.uninstall(&plugin.name).await,
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
