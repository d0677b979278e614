//! Plugins of a node: programs that serve a socket below `<root-dir>/plugins_registry`, register there and are used by the module
//! of their type. Answers for upstream's `pkg/kubelet/pluginmanager`.
//!
//! In: sockets that come and go. Out: calls of a [`Handler`]. A type of plugins is one handler and one line in [`Handlers`].

pub mod metrics;
mod registration;
mod watcher;

pub use registration::v1;
pub use watcher::run;

use crate::bounded::Bounded;
use crate::files::make_private;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};

/// The folder of sockets, below the root directory.
pub const REGISTRY: &str = "plugins_registry";

/// Upstream's wait for a plugin's socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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

/// A path that is no address of a socket.
#[derive(Debug, thiserror::Error)]
#[error("invalid socket {}: {cause}", .socket.display())]
pub struct SocketError {
    socket: PathBuf,
    #[source]
    cause: tonic::transport::Error,
}

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

/// Serves a socket of the kubelet's own until shutdown.
pub async fn serve(socket: &Path, router: Router, shutdown: CancellationToken) {
    if let Err(error) = listen(socket, router, shutdown).await {
        tracing::error!(socket = %socket.display(), %error, "Failed to serve");
    }
}

async fn listen(socket: &Path, router: Router, shutdown: CancellationToken) -> anyhow::Result<()> {
    if let Some(folder) = socket.parent() {
        make_private(folder)?;
    }
    std::fs::remove_file(socket).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let connections = UnixListenerStream::new(UnixListener::bind(socket)?);
    Ok(router.serve_with_incoming_shutdown(connections, shutdown.cancelled_owned()).await?)
}

/// A channel to a socket, connected when it is first used, whose calls end by their deadlines.
///
/// # Errors
/// The path is no address.
pub fn channel(socket: &Path) -> Result<Bounded<Channel>, SocketError> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let endpoint = endpoint.map_err(|cause| SocketError { socket: socket.to_path_buf(), cause })?;
    Ok(Bounded::new(endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy()))
}

/// Text of a failed call, as gRPC for Go writes it.
pub fn call_error(status: &tonic::Status) -> String {
    format!("rpc error: code = {} desc = {}", shared::grpc::name(status.code()), status.message())
}
