//! From the file of `--encryption-provider-config` to the transformers of a store, once and whenever it changes.
//! Answers for upstream's `pkg/server/options/encryptionconfig/controller`.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use shared::os;

use super::Transformers;
use super::config::{self, ConfigError};
use super::kms::{ASK_EVERY, ASK_EVERY_WHEN_UNWELL, Kms, KmsUnhealthy};
use crate::reloads::Reloads;

/// Between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for the services of a new configuration to become healthy.
const PATIENCE: Duration = Duration::from_secs(10);

/// A configuration in use.
#[derive(Clone)]
pub struct Loaded {
    path: String,
    /// The file is read again when it changes.
    reload: bool,
    transformers: Transformers,
    services: Arc<ArcSwap<Vec<Arc<Kms>>>>,
    hash: Arc<ArcSwap<[u8; 32]>>,
    reloads: Option<Arc<Reloads>>,
}

/// A file's hash as metrics show it.
fn shown(hash: &[u8; 32]) -> String {
    format!("k8s:enc:unstable:1:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

impl Loaded {
    /// Names of the health checks: one for each service, or one for all when they may change.
    pub fn checks(&self) -> Vec<String> {
        match (self.reload, self.services.load().len()) {
            (true, _) => vec!["kms-providers".to_owned()],
            (false, count) => (0..count).map(|i| format!("kms-provider-{i}")).collect(),
        }
    }

    /// Health of the services behind a check.
    pub fn check(&self, name: &str) -> Result<(), KmsUnhealthy> {
        let services = self.services.load();
        match name.strip_prefix("kms-provider-").and_then(|i| i.parse::<usize>().ok()) {
            Some(i) => services.get(i).map_or(Ok(()), |kms| kms.health()),
            None => services.iter().try_for_each(|kms| kms.health()),
        }
    }
}

async fn text(path: &str) -> Result<Vec<u8>, ConfigError> {
    tokio::fs::read(path).await.map_err(|e| ConfigError::Read { path: path.to_owned(), why: os::explain(&e) })
}

/// Reads the file and sets the transformers.
pub async fn load(path: &str, transformers: &Transformers, reload: bool) -> Result<Loaded, ConfigError> {
    let read = config::read(path, &text(path).await?)?;
    for kms in &read.services {
        // One that is not well shows in the health of the server.
        if let Err(error) = kms.check_status().await {
            tracing::warn!(%error, provider = kms.name(), "KMS plugin is unhealthy");
        }
    }
    transformers.set(read.table);
    let reloads = reload.then(|| Arc::new(Reloads::new("encryption", "ALPHA")));
    if let Some(reloads) = &reloads {
        reloads.in_force(&shown(&read.hash));
    }
    Ok(Loaded {
        path: path.to_owned(),
        reload,
        transformers: transformers.clone(),
        services: Arc::new(ArcSwap::from_pointee(read.services)),
        hash: Arc::new(ArcSwap::from_pointee(read.hash)),
        reloads,
    })
}

/// Looks after the services, and after the file where that was asked for; until dropped.
pub async fn watch(loaded: Loaded) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.tick().await;
    let mut ask = Box::pin(tokio::time::sleep(ASK_EVERY));
    loop {
        tokio::select! {
            _ = look.tick(), if loaded.reload => reload(&loaded).await,
            () = ask.as_mut() => {
                let mut well = true;
                for kms in loaded.services.load_full().iter() {
                    if let Err(error) = kms.check_status().await {
                        well = false;
                        tracing::warn!(%error, provider = kms.name(), "KMS plugin is unhealthy");
                    }
                }
                let next = if well { ASK_EVERY } else { ASK_EVERY_WHEN_UNWELL };
                ask.as_mut().reset(tokio::time::Instant::now() + next);
            }
        }
    }
}

/// A changed file that is not taken over.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    /// A file that is not good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A service is not well.
    #[error(transparent)]
    Service(#[from] super::errors::Error),
    /// A service does not say in time how it is.
    #[error("timed out")]
    Deadline,
}

/// Takes a changed file over if it is good and its services are well; else what was there stays.
async fn reload(loaded: &Loaded) {
    let outcome = async {
        let read = config::read(&loaded.path, &text(&loaded.path).await?)?;
        if read.hash == **loaded.hash.load() {
            return Ok(false);
        }
        for kms in &read.services {
            let asked = tokio::time::timeout(PATIENCE, kms.check_status()).await;
            asked.map_err(|_| ReloadError::Deadline)??;
        }
        loaded.transformers.set(read.table);
        loaded.services.store(Arc::new(read.services));
        loaded.hash.store(Arc::new(read.hash));
        Ok::<bool, ReloadError>(true)
    };
    let reloads = loaded.reloads.as_ref();
    match outcome.await {
        Ok(true) => {
            tracing::info!(file = loaded.path, "Loaded new encryption config");
            reloads.inspect(|reloads| reloads.reloaded(&shown(&loaded.hash.load())));
        }
        Ok(false) => {}
        Err(error) => {
            tracing::error!(error = error.to_string(), file = loaded.path, "Failed to process new encryption config");
            reloads.inspect(|reloads| reloads.failure());
        }
    }
}
