//! The node service of one driver, call by call. Upstream's `csi_client.go`.

use super::v1::node_client::NodeClient;
use super::v1::node_service_capability::{Type, rpc};
use super::{CallError, v1};
use crate::plugins::channel;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Upstream's `csiTimeout`: longest time of a call.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Something that the node service of a driver can do.
pub(super) use rpc::Type as Capability;

/// A driver that has registered.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    pub(super) name: String,
    pub(super) endpoint: PathBuf,
    client: NodeClient<Channel>,
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
    pub(super) fn new(name: &str, endpoint: &Path) -> Result<Self, String> {
        let client = NodeClient::new(channel(endpoint)?);
        Ok(Self { name: name.to_owned(), endpoint: endpoint.to_path_buf(), client })
    }

    pub(super) async fn info(&self) -> Result<v1::NodeGetInfoResponse, CallError> {
        Ok(self.client.clone().node_get_info(request(v1::NodeGetInfoRequest {})).await?.into_inner())
    }

    pub(super) async fn capabilities(&self) -> Result<BTreeSet<Capability>, CallError> {
        let answer = self.client.clone().node_get_capabilities(request(v1::NodeGetCapabilitiesRequest {})).await?;
        let capabilities = answer.into_inner().capabilities.into_iter();
        Ok(capabilities.filter_map(|capability| capability.r#type.map(|Type::Rpc(rpc)| rpc.r#type())).collect())
    }

    pub(super) async fn stage(&self, call: v1::NodeStageVolumeRequest) -> Result<(), CallError> {
        self.client.clone().node_stage_volume(request(call)).await?;
        Ok(())
    }

    pub(super) async fn unstage(&self, volume_id: &str, staging: &Path) -> Result<(), CallError> {
        let staging_target_path = staging.display().to_string();
        let call = v1::NodeUnstageVolumeRequest { volume_id: volume_id.to_owned(), staging_target_path };
        self.client.clone().node_unstage_volume(request(call)).await?;
        Ok(())
    }

    pub(super) async fn publish(&self, call: v1::NodePublishVolumeRequest) -> Result<(), CallError> {
        self.client.clone().node_publish_volume(request(call)).await?;
        Ok(())
    }

    pub(super) async fn unpublish(&self, volume_id: &str, target: &Path) -> Result<(), CallError> {
        let target_path = target.display().to_string();
        let call = v1::NodeUnpublishVolumeRequest { volume_id: volume_id.to_owned(), target_path };
        self.client.clone().node_unpublish_volume(request(call)).await?;
        Ok(())
    }

    pub(super) async fn stats(
        &self,
        call: v1::NodeGetVolumeStatsRequest,
    ) -> Result<v1::NodeGetVolumeStatsResponse, CallError> {
        Ok(self.client.clone().node_get_volume_stats(request(call)).await?.into_inner())
    }

    pub(super) async fn expand(&self, call: v1::NodeExpandVolumeRequest) -> Result<i64, CallError> {
        Ok(self.client.clone().node_expand_volume(request(call)).await?.into_inner().capacity_bytes)
    }
}
