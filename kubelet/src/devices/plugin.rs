//! Calls of one device plugin. Upstream's `endpoint.go`.

use super::error::DeviceError;
use super::state::{Choices, Device};
use super::v1beta1::device_plugin_client::DevicePluginClient;
use super::v1beta1::{self as api, ContainerAllocateResponse};
use crate::bounded::Bounded;
use crate::plugins::{SocketError, call_error, channel};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::transport::Channel;

/// Upstream's limit of the preparations for a container's start.
const PREPARATION: Duration = Duration::from_secs(30);
/// Longest time of other calls.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A plugin that has registered.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// Tells registrations of a resource apart.
    pub(super) id: u64,
    pub(super) socket: PathBuf,
    /// Another one has taken its place.
    pub(super) gone: CancellationToken,
    client: DevicePluginClient<Bounded<Channel>>,
    /// Options of its registration; none where it has to be asked.
    options: Option<api::DevicePluginOptions>,
}

fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

impl Endpoint {
    /// A plugin behind a socket, connected when it is first called.
    pub(super) fn new(socket: &Path, options: Option<api::DevicePluginOptions>) -> Result<Self, SocketError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            socket: socket.to_path_buf(),
            gone: CancellationToken::new(),
            client: DevicePluginClient::new(channel(socket)?),
            options,
        })
    }

    /// Hands on every list of devices; returns when the plugin is away.
    pub(super) async fn follow(&self, mut update: impl FnMut(BTreeMap<String, Device>)) {
        let mut lists = match self.client.clone().list_and_watch(api::Empty {}).await {
            Ok(lists) => lists.into_inner(),
            Err(status) => {
                let error = call_error(&status);
                tracing::error!(socket = %self.socket.display(), error, "ListAndWatch ended unexpectedly for device plugin");
                return;
            }
        };
        loop {
            match lists.message().await {
                Ok(Some(list)) => {
                    update(list.devices.iter().map(|device| (device.id.clone(), device.into())).collect())
                }
                Ok(None) => return,
                Err(status) => {
                    let error = call_error(&status);
                    tracing::error!(socket = %self.socket.display(), error, "ListAndWatch ended unexpectedly for device plugin");
                    return;
                }
            }
        }
    }

    async fn options(&self) -> api::DevicePluginOptions {
        if let Some(options) = self.options {
            return options;
        }
        let asked = self.client.clone().get_device_plugin_options(request(api::Empty {}, TIMEOUT)).await;
        asked.map(tonic::Response::into_inner).unwrap_or_default()
    }

    /// The plugin's choice, best first; empty where it has none.
    pub(super) async fn preferred(&self, choices: &Choices) -> Vec<String> {
        if !self.options().await.get_preferred_allocation_available {
            return Vec::new();
        }
        let size = choices.needed.saturating_add(choices.own.len());
        let wanted = api::ContainerPreferredAllocationRequest {
            available_device_i_ds: choices.own.iter().chain(&choices.free).cloned().collect(),
            must_include_device_i_ds: choices.own.clone(),
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let call = api::PreferredAllocationRequest { container_requests: vec![wanted] };
        match self.client.clone().get_preferred_allocation(request(call, TIMEOUT)).await {
            Ok(answer) => {
                let answers = answer.into_inner().container_responses.into_iter();
                answers.flat_map(|answer| answer.device_i_ds).collect()
            }
            Err(status) => {
                tracing::warn!(error = call_error(&status), "GetPreferredAllocation failed");
                Vec::new()
            }
        }
    }

    /// Tells the plugin which devices a container gets: what the container needs for them.
    pub(super) async fn allocate(&self, ids: &[String]) -> Result<ContainerAllocateResponse, DeviceError> {
        let wanted = api::ContainerAllocateRequest { devices_ids: ids.to_vec() };
        let call = api::AllocateRequest { container_requests: vec![wanted] };
        let answer = self.client.clone().allocate(request(call, TIMEOUT)).await;
        let answer = answer.map_err(DeviceError::Allocate)?.into_inner();
        let first = answer.container_responses.into_iter().next();
        first.ok_or(DeviceError::NoAnswer)
    }

    /// Lets the plugin prepare devices for the start of a container.
    pub(super) async fn prepare(&self, ids: &[String]) -> Result<(), DeviceError> {
        if !self.options().await.pre_start_required {
            return Ok(());
        }
        let call = api::PreStartContainerRequest { devices_ids: ids.to_vec() };
        let answer = self.client.clone().pre_start_container(request(call, PREPARATION)).await;
        answer.map(drop).map_err(DeviceError::Prepare)
    }
}
