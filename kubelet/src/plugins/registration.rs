//! Registration of the plugin behind one socket. Upstream's `operationexecutor.GenerateRegisterPluginFunc`.

use super::handler::{HandlerError, Handlers, Plugin};
use super::socket::{SocketError, call_error, channel};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::{Request, Status};
use v1::registration_client::RegistrationClient;

/// The interface's messages.
pub mod v1 {
    #![allow(
        clippy::allow_attributes_without_reason,
        clippy::pedantic,
        clippy::all,
        missing_docs,
        reason = "generated from the registration's API"
    )]
    tonic::include_proto!("pluginregistration");
}

/// Longest answer to either call.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reasons why a plugin was not taken in, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterError {
    /// A path that is no address.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// No answer about what it is.
    #[error(
        "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {}, err: {}",
        .socket.display(),
        call_error(.status)
    )]
    Info {
        socket: PathBuf,
        #[source]
        status: Status,
    },
    /// A type that nobody handles.
    #[error("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {}", .socket.display())]
    NoHandler { kind: String, socket: PathBuf },
    /// The handler cannot use it.
    #[error("RegisterPlugin error -- plugin validation failed with err: {0}")]
    Invalid(HandlerError),
    /// The handler did not take it in.
    #[error("RegisterPlugin error -- plugin registration failed with err: {0}")]
    Refused(HandlerError),
    /// No word to it that it was taken in.
    #[error(
        "RegisterPlugin error -- failed to send registration status at socket {}, err: {}",
        .socket.display(),
        call_error(.status)
    )]
    Notify {
        socket: PathBuf,
        #[source]
        status: Status,
    },
}

/// A plugin that was taken in, and its type.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) kind: &'static str,
    pub(super) plugin: Plugin,
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(TIMEOUT);
    request
}

/// Asks the plugin what it is, hands it to its handler and tells it the outcome.
pub(super) async fn register(socket: &Path, handlers: &Handlers) -> Result<Registered, RegisterError> {
    let mut client = RegistrationClient::new(channel(socket)?);
    let info = client.get_info(request(v1::InfoRequest {})).await;
    let info = info.map_err(|status| RegisterError::Info { socket: socket.to_path_buf(), status })?;
    let outcome = hand_over(socket, info.into_inner(), handlers).await;
    let status = v1::RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.as_ref().err().map(ToString::to_string).unwrap_or_default(),
    };
    let told = client.notify_registration_status(request(status)).await;
    match (&outcome, told) {
        (Ok(registered), Err(status)) => {
            // The plugin does not know that it is used: it is, only if it can be told.
            if let Err(error) = handlers[registered.kind].deregister(&registered.plugin).await {
                tracing::error!(name = registered.plugin.name, %error, "DeregisterPlugin failed");
            }
            Err(RegisterError::Notify { socket: socket.to_path_buf(), status })
        }
        _ => outcome,
    }
}

async fn hand_over(socket: &Path, info: v1::PluginInfo, handlers: &Handlers) -> Result<Registered, RegisterError> {
    let Some((kind, handler)) = handlers.get_key_value(info.r#type.as_str()) else {
        return Err(RegisterError::NoHandler { kind: info.r#type, socket: socket.to_path_buf() });
    };
    let endpoint = if info.endpoint.is_empty() { socket.to_path_buf() } else { info.endpoint.into() };
    let plugin = Plugin { name: info.name, endpoint, versions: info.supported_versions };
    handler.validate(&plugin).map_err(RegisterError::Invalid)?;
    handler.register(&plugin).await.map_err(RegisterError::Refused)?;
    Ok(Registered { kind, plugin })
}
