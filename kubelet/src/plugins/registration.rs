//! Registration of the plugin behind one socket. Upstream's `operationexecutor.GenerateRegisterPluginFunc`.

use super::{Handlers, Plugin, call_error, channel};
use std::path::Path;
use std::time::Duration;
use tonic::Request;
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
pub(super) async fn register(socket: &Path, handlers: &Handlers) -> Result<Registered, String> {
    let at = socket.display();
    let mut client = RegistrationClient::new(channel(socket)?);
    let info = client.get_info(request(v1::InfoRequest {})).await.map_err(|status| {
        format!(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {at}, err: {}",
            call_error(&status)
        )
    })?;
    let outcome = hand_over(socket, info.into_inner(), handlers).await;
    let status = v1::RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.as_ref().err().cloned().unwrap_or_default(),
    };
    let told = client.notify_registration_status(request(status)).await;
    match (&outcome, told) {
        (Ok(registered), Err(status)) => {
            // The plugin does not know that it is used: it is, only if it can be told.
            if let Err(error) = handlers[registered.kind].deregister(&registered.plugin).await {
                tracing::error!(name = registered.plugin.name, error, "DeregisterPlugin failed");
            }
            Err(format!(
                "RegisterPlugin error -- failed to send registration status at socket {at}, err: {}",
                call_error(&status)
            ))
        }
        _ => outcome,
    }
}

async fn hand_over(socket: &Path, info: v1::PluginInfo, handlers: &Handlers) -> Result<Registered, String> {
    let at = socket.display();
    let Some((kind, handler)) = handlers.get_key_value(info.r#type.as_str()) else {
        let kind = &info.r#type;
        return Err(format!("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {at}"));
    };
    let endpoint = if info.endpoint.is_empty() { socket.to_path_buf() } else { info.endpoint.into() };
    let plugin = Plugin { name: info.name, endpoint, versions: info.supported_versions };
    let refused = |error| format!("RegisterPlugin error -- plugin validation failed with err: {error}");
    handler.validate(&plugin).map_err(refused)?;
    let failed = |error| format!("RegisterPlugin error -- plugin registration failed with err: {error}");
    handler.register(&plugin).await.map_err(failed)?;
    Ok(Registered { kind, plugin })
}
