//! Sockets between the kubelet and plugins, in both directions.

use crate::bounded::Bounded;
use crate::files::make_private;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};

/// Upstream's wait for a plugin's socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A path that is no address of a socket.
#[derive(Debug, thiserror::Error)]
#[error("invalid socket {}: {cause}", .socket.display())]
pub struct SocketError {
    socket: PathBuf,
    #[source]
    cause: tonic::transport::Error,
}

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
