//! The node service of one driver, call by call. Upstream's `csi_client.go`.

use super::error::CallError;
use super::v1;
use super::v1::node_client::NodeClient;
use super::v1::node_service_capability::{Type, rpc};
use crate::bounded::Bounded;
use crate::plugins::{SocketError, channel, metrics};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Upstream's `csiTimeout`: longest time of a call.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A capability of a driver's node service.
pub(super) use rpc::Type as Capability;

/// A driver that has registered.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    pub(super) name: String,
    pub(super) endpoint: PathBuf,
    client: NodeClient<Bounded<Channel>>,
    /// Calls are for a volume of a plugin of old.
    pub(super) is_migrated: bool,
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(TIMEOUT);
    request
}

impl From<Status> for CallError {
    /// Tells whether the driver may have done the work all the same: upstream's `isFinalError`.
    fn from(status: Status) -> Self {
        let is_final = !matches!(
            status.code(),
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        );
        Self { message: crate::plugins::call_error(&status), code: status.code(), is_final }
    }
}

impl Driver {
    /// A driver behind a socket, connected when it is first called.
    pub(super) fn new(name: &str, endpoint: &Path) -> Result<Self, SocketError> {
        let client = NodeClient::new(channel(endpoint)?);
        Ok(Self { name: name.to_owned(), endpoint: endpoint.to_path_buf(), client, is_migrated: false })
    }

    /// Counts a call.
    async fn timed<A>(
        &self,
        method: &str,
        call: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, CallError> {
        let begun = Instant::now();
        let outcome = call.await;
        metrics::csi_call((&self.name, self.is_migrated), &format!("/csi.v1.Node/{method}"), begun, &outcome);
        Ok(outcome?.into_inner())
    }

    pub(super) async fn info(&self) -> Result<v1::NodeGetInfoResponse, CallError> {
        let mut client = self.client.clone();
        self.timed("NodeGetInfo", client.node_get_info(request(v1::NodeGetInfoRequest {}))).await
    }

    pub(super) async fn capabilities(&self) -> Result<BTreeSet<Capability>, CallError> {
        let mut client = self.client.clone();
        let call = client.node_get_capabilities(request(v1::NodeGetCapabilitiesRequest {}));
        let capabilities = self.timed("NodeGetCapabilities", call).await?.capabilities.into_iter();
        Ok(capabilities.filter_map(|capability| capability.r#type.map(|Type::Rpc(rpc)| rpc.r#type())).collect())
    }

    pub(super) async fn stage(&self, call: v1::NodeStageVolumeRequest) -> Result<(), CallError> {
        let mut client = self.client.clone();
        self.timed("NodeStageVolume", client.node_stage_volume(request(call))).await.map(drop)
    }

    pub(super) async fn unstage(&self, volume_id: &str, staging: &Path) -> Result<(), CallError> {
        let staging_target_path = staging.display().to_string();
        let call = v1::NodeUnstageVolumeRequest { volume_id: volume_id.to_owned(), staging_target_path };
        let mut client = self.client.clone();
        self.timed("NodeUnstageVolume", client.node_unstage_volume(request(call))).await.map(drop)
    }

    pub(super) async fn publish(&self, call: v1::NodePublishVolumeRequest) -> Result<(), CallError> {
        let mut client = self.client.clone();
        self.timed("NodePublishVolume", client.node_publish_volume(request(call))).await.map(drop)
    }

    pub(super) async fn unpublish(&self, volume_id: &str, target: &Path) -> Result<(), CallError> {
        let target_path = target.display().to_string();
        let call = v1::NodeUnpublishVolumeRequest { volume_id: volume_id.to_owned(), target_path };
        let mut client = self.client.clone();
        self.timed("NodeUnpublishVolume", client.node_unpublish_volume(request(call))).await.map(drop)
    }

    pub(super) async fn stats(
        &self,
        call: v1::NodeGetVolumeStatsRequest,
    ) -> Result<v1::NodeGetVolumeStatsResponse, CallError> {
        let mut client = self.client.clone();
        self.timed("NodeGetVolumeStats", client.node_get_volume_stats(request(call))).await
    }

    pub(super) async fn expand(&self, call: v1::NodeExpandVolumeRequest) -> Result<i64, CallError> {
        let mut client = self.client.clone();
        Ok(self.timed("NodeExpandVolume", client.node_expand_volume(request(call))).await?.capacity_bytes)
    }
}
