//! Plugins as the modules of their types see them.

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A plugin as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Name of the driver or resource.
    pub name: String,
    /// Socket that it serves.
    pub endpoint: PathBuf,
    /// Versions of its protocol that it speaks.
    pub versions: Vec<String>,
}

/// A handler's reason for not taking a plugin in, or for not letting it go. The plugin is told its text; nobody tells reasons
/// apart.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// Uses the plugins of one type.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Refuses what cannot be used, before anything is done with it.
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError>;
    /// Takes a plugin in; an error is told to it, and the registration is tried again later.
    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError>;
    /// Forgets a plugin whose socket is gone, unless another socket has taken over its name; tried again after an error.
    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError>;
}

/// Handlers by the type that plugins give: `CSIPlugin`, `DRAPlugin`, `DevicePlugin`.
pub type Handlers = BTreeMap<&'static str, Arc<dyn Handler>>;
