//! The node service: volumes are mounted, or given as devices.

use std::fs;
use std::path::Path;

use tonic::{Request, Status};

use super::{Answer, Driver, TOPOLOGY, answer};
use crate::mounts::{bind, detach, devices, failed, grow, is_mounted, mount_device, run, unbind};
use crate::store::{Content, Volume};
use crate::v1;
use crate::v1::node_server::Node;
use crate::v1::node_service_capability::{Rpc, Type, rpc};
use crate::v1::volume_capability::{AccessType, access_mode::Mode};

fn is_block(capability: &v1::VolumeCapability) -> bool {
    matches!(capability.access_type, Some(AccessType::Block(_)))
}

/// Options that a file system is mounted with.
fn options(capability: &v1::VolumeCapability) -> Vec<String> {
    match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount.mount_flags.clone(),
        _ => Vec::new(),
    }
}

impl Driver {
    /// Shows a volume at a pod's path.
    fn show(&self, volume: &Volume, request: &v1::NodePublishVolumeRequest, block: bool) -> Result<(), Status> {
        let target = &request.target_path;
        if block {
            fs::OpenOptions::new().create(true).append(true).open(target).map_err(failed)?;
            return bind(&self.store.device(volume)?, target, request.readonly);
        }
        fs::create_dir_all(target).map_err(failed)?;
        match self.store.content(volume) {
            // An inline volume has not been staged.
            Content::Folder(folder) if request.staging_target_path.is_empty() => {
                bind(&folder, target, request.readonly)
            }
            _ => bind(Path::new(&request.staging_target_path), target, request.readonly),
        }
    }

    /// Refuses a second place for a volume that one pod alone may have.
    fn check_single(&self, volume: &Volume, capability: &v1::VolumeCapability, target: &str) -> Result<(), Status> {
        let mode = capability.access_mode.as_ref().map(v1::volume_capability::AccessMode::mode);
        let targets = self.store.targets(&volume.id, &self.node);
        let other = targets.iter().find(|other| *other != target && is_mounted(other));
        match other {
            Some(other) if mode == Some(Mode::SingleNodeSingleWriter) => {
                Err(Status::failed_precondition(format!("it is published at {other}")))
            }
            _ => Ok(()),
        }
    }
}

fn numbers(unit: v1::volume_usage::Unit, total: u64, available: u64) -> v1::VolumeUsage {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    v1::VolumeUsage {
        available: number(available),
        total: number(total),
        used: number(total.saturating_sub(available)),
        unit: unit.into(),
    }
}

/// Bytes and inodes of a file system.
fn usage(path: &str) -> Result<Vec<v1::VolumeUsage>, Status> {
    let found = nix::sys::statvfs::statvfs(path).map_err(failed)?;
    let block = found.fragment_size();
    Ok(vec![
        numbers(v1::volume_usage::Unit::Bytes, found.blocks() * block, found.blocks_available() * block),
        numbers(v1::volume_usage::Unit::Inodes, found.files(), found.files_available()),
    ])
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Answer<v1::NodeStageVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        let staging = &request.staging_target_path;
        let Some(capability) = request.volume_capability.as_ref().filter(|_| !staging.is_empty()) else {
            return Err(Status::invalid_argument("no staging path, or no capability"));
        };
        let volume = self.store.volume(&request.volume_id)?;
        self.plugin.log(&format!("stage {} {:?}", volume.id, request.publish_context));
        match self.store.content(&volume) {
            _ if is_block(capability) => drop(self.store.device(&volume)?),
            Content::Folder(folder) => bind(&folder, staging, false)?,
            Content::Image => mount_device(&self.store.device(&volume)?, staging, &options(capability))?,
        }
        answer(v1::NodeStageVolumeResponse {})
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Answer<v1::NodeUnstageVolumeResponse> {
        let _turn = self.turn.lock().await;
        let v1::NodeUnstageVolumeRequest { volume_id, staging_target_path } = request.into_inner();
        if volume_id.is_empty() || staging_target_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no staging path"));
        }
        self.plugin.log(&format!("unstage {volume_id}"));
        unbind(&staging_target_path)?;
        if let Some(volume) = self.store.find(&volume_id)? {
            detach(&self.store.image(&volume))?;
        }
        answer(v1::NodeUnstageVolumeResponse {})
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Answer<v1::NodePublishVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        let (handle, target) = (&request.volume_id, &request.target_path);
        let Some(capability) = request.volume_capability.as_ref().filter(|_| !target.is_empty()) else {
            return Err(Status::invalid_argument("no target path, or no capability"));
        };
        let of_pod = |key: &str| request.volume_context.get(&format!("csi.storage.k8s.io/{key}")).map(String::as_str);
        if of_pod("ephemeral") == Some("true") {
            self.store.create_inline(handle)?;
        }
        let volume = self.store.volume(handle)?;
        self.plugin.log(&format!("publish {handle} {}", of_pod("pod.name").unwrap_or_default()));
        self.check_single(&volume, capability, target)?;
        let mut targets = self.store.targets(handle, &self.node);
        if !targets.contains(target) {
            targets.push(target.clone());
        }
        self.store.set_targets(handle, &self.node, &targets)?;
        self.show(&volume, &request, is_block(capability))?;
        answer(v1::NodePublishVolumeResponse {})
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Answer<v1::NodeUnpublishVolumeResponse> {
        let _turn = self.turn.lock().await;
        let v1::NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        if volume_id.is_empty() || target_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no target path"));
        }
        self.plugin.log(&format!("unpublish {volume_id}"));
        unbind(&target_path)?;
        fs::remove_dir(&target_path).or_else(|_| fs::remove_file(&target_path)).ok();
        if self.store.find(&volume_id)?.is_none() {
            return answer(v1::NodeUnpublishVolumeResponse {});
        }
        let mut targets = self.store.targets(&volume_id, &self.node);
        targets.retain(|target| *target != target_path);
        self.store.set_targets(&volume_id, &self.node, &targets)?;
        if volume_id.starts_with("csi-") {
            // It was made for its pod.
            self.store.delete_volume(&volume_id)?;
        }
        answer(v1::NodeUnpublishVolumeResponse {})
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Answer<v1::NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.volume_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no path"));
        }
        let volume = self.store.volume(&request.volume_id)?;
        if !is_mounted(&request.volume_path) {
            return Err(Status::not_found("nothing is mounted there"));
        }
        let usage = match self.store.content(&volume) {
            Content::Folder(_) => vec![
                numbers(v1::volume_usage::Unit::Bytes, 1 << 20, (1 << 20) - (1 << 10)),
                numbers(v1::volume_usage::Unit::Inodes, 1_000, 990),
            ],
            Content::Image if Path::new(&request.volume_path).is_dir() => usage(&request.volume_path)?,
            Content::Image => vec![numbers(v1::volume_usage::Unit::Bytes, volume.size, 0)],
        };
        answer(v1::NodeGetVolumeStatsResponse { usage, volume_condition: None })
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Answer<v1::NodeExpandVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.volume_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no path"));
        }
        let volume = self.store.volume(&request.volume_id)?;
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.plugin.log(&format!("expand {} {capacity_bytes}", request.volume_id));
        for device in devices(&self.store.image(&volume))? {
            run("losetup", &["--set-capacity", &device.display().to_string()])?;
        }
        if matches!(self.store.content(&volume), Content::Image) && Path::new(&request.volume_path).is_dir() {
            grow(&request.volume_path)?;
        }
        answer(v1::NodeExpandVolumeResponse { capacity_bytes })
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Answer<v1::NodeGetCapabilitiesResponse> {
        let all = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let capability =
            |kind: rpc::Type| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        answer(v1::NodeGetCapabilitiesResponse { capabilities: all.map(capability).into() })
    }

    async fn node_get_info(&self, _: Request<v1::NodeGetInfoRequest>) -> Answer<v1::NodeGetInfoResponse> {
        let segments = [(TOPOLOGY.to_owned(), self.node.clone())].into();
        answer(v1::NodeGetInfoResponse {
            node_id: self.node.clone(),
            max_volumes_per_node: self.max_volumes,
            accessible_topology: Some(v1::Topology { segments }),
        })
    }
}
