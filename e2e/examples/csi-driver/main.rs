//! A CSI driver for tests: volumes are folders, and devices are files behind a loop, below `ROOT/plugins/NAME`.
//!
//! `csi-driver ROOT NAME NODE` registers with the kubelet whose root directory ROOT is, as NODE. What it is asked for is
//! written to `calls.log` beside the volumes, a line a call.

#[path = "../registration/mod.rs"]
mod registration;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kubelet::csi::v1;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use registration::{Plugin, listen};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use v1::identity_server::{Identity, IdentityServer};
use v1::node_server::{Node, NodeServer};
use v1::node_service_capability::{Rpc, Type, rpc};
use v1::volume_capability::AccessType;

/// Key of the node's topology.
const TOPOLOGY: &str = "topology.test.ironclad/node";
/// Bytes of a device.
const DEVICE_SIZE: u64 = 4 << 20;

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
struct Driver {
    plugin: Plugin,
    node: String,
}

fn failed(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

fn is_mounted(path: &str) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

fn bind(from: &Path, to: &str, read_only: bool) -> Result<(), Status> {
    if is_mounted(to) {
        return Ok(());
    }
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(failed)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, to, None::<&str>, flags, None::<&str>).map_err(failed)?;
    }
    Ok(())
}

fn unbind(path: &str) -> Result<(), Status> {
    while is_mounted(path) {
        umount2(path, MntFlags::UMOUNT_NOFOLLOW).map_err(failed)?;
    }
    Ok(())
}

fn is_block(capability: Option<&v1::VolumeCapability>) -> bool {
    capability.is_some_and(|capability| matches!(capability.access_type, Some(AccessType::Block(_))))
}

impl Driver {
    fn volume(&self, handle: &str) -> Result<PathBuf, Status> {
        if handle.is_empty() || handle.contains('/') {
            return Err(Status::invalid_argument("no volume id"));
        }
        let folder = self.plugin.folder.join("volumes").join(handle);
        fs::create_dir_all(&folder).map_err(failed)?;
        Ok(folder)
    }

    /// The device of a volume: made when it is first asked for.
    fn device(&self, handle: &str) -> Result<PathBuf, Status> {
        let image = self.volume(handle)?.join("image");
        if !image.exists() {
            fs::File::create(&image).and_then(|file| file.set_len(DEVICE_SIZE)).map_err(failed)?;
        }
        let run = |arguments: &[&str]| -> Result<String, Status> {
            let output = Command::new("losetup").args(arguments).output().map_err(failed)?;
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let image = image.display().to_string();
        let known = run(&["--noheadings", "--output", "NAME", "--associated", &image])?;
        let device = if known.is_empty() { run(&["--find", "--show", &image])? } else { known };
        if device.is_empty() { Err(Status::internal("no loop device")) } else { Ok(device.into()) }
    }

    fn detach(&self, handle: &str) {
        let image = self.plugin.folder.join("volumes").join(handle).join("image");
        let image = image.display().to_string();
        let output =
            Command::new("losetup").args(["--noheadings", "--output", "NAME", "--associated", &image]).output();
        let devices = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        for device in devices.split_whitespace() {
            Command::new("losetup").args(["--detach", device]).status().ok();
        }
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(&self, _: Request<v1::GetPluginInfoRequest>) -> Answer<v1::GetPluginInfoResponse> {
        let (name, vendor_version) = (self.plugin.name.clone(), "1".to_owned());
        Ok(Response::new(v1::GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Answer<v1::GetPluginCapabilitiesResponse> {
        Ok(Response::new(v1::GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Answer<v1::ProbeResponse> {
        Ok(Response::new(v1::ProbeResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Answer<v1::NodeStageVolumeResponse> {
        let request = request.into_inner();
        let (handle, staging) = (&request.volume_id, &request.staging_target_path);
        let folder = self.volume(handle)?;
        if staging.is_empty() || request.volume_capability.is_none() {
            return Err(Status::invalid_argument("no staging path, or no capability"));
        }
        self.plugin.log(&format!("stage {handle} {:?}", request.publish_context));
        if is_block(request.volume_capability.as_ref()) {
            self.device(handle)?;
        } else {
            bind(&folder, staging, false)?;
        }
        Ok(Response::new(v1::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Answer<v1::NodeUnstageVolumeResponse> {
        let v1::NodeUnstageVolumeRequest { volume_id, staging_target_path } = request.into_inner();
        if volume_id.is_empty() || staging_target_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no staging path"));
        }
        self.plugin.log(&format!("unstage {volume_id}"));
        unbind(&staging_target_path)?;
        self.detach(&volume_id);
        Ok(Response::new(v1::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Answer<v1::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let (handle, target) = (&request.volume_id, &request.target_path);
        if target.is_empty() || request.volume_capability.is_none() {
            return Err(Status::invalid_argument("no target path, or no capability"));
        }
        let pod = request.volume_context.get("csi.storage.k8s.io/pod.name").cloned().unwrap_or_default();
        self.plugin.log(&format!("publish {handle} {pod}"));
        if is_block(request.volume_capability.as_ref()) {
            fs::File::create(target).map_err(failed)?;
            bind(&self.device(handle)?, target, false)?;
        } else {
            let folder = self.volume(handle)?;
            fs::create_dir_all(target).map_err(failed)?;
            let from = if request.staging_target_path.is_empty() { folder } else { request.staging_target_path.into() };
            bind(&from, target, request.readonly)?;
        }
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Answer<v1::NodeUnpublishVolumeResponse> {
        let v1::NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        if volume_id.is_empty() || target_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no target path"));
        }
        self.plugin.log(&format!("unpublish {volume_id}"));
        unbind(&target_path)?;
        fs::remove_dir(&target_path).or_else(|_| fs::remove_file(&target_path)).ok();
        if volume_id.starts_with("csi-") {
            // It was made for its pod.
            fs::remove_dir_all(self.plugin.folder.join("volumes").join(&volume_id)).ok();
        }
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Answer<v1::NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.volume_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no path"));
        }
        if !Path::new(&request.volume_path).exists() {
            return Err(Status::not_found("no such path"));
        }
        let usage = |unit: v1::volume_usage::Unit, total: i64, used: i64| v1::VolumeUsage {
            available: total - used,
            total,
            used,
            unit: unit.into(),
        };
        let usage = vec![
            usage(v1::volume_usage::Unit::Bytes, 1 << 20, 1 << 10),
            usage(v1::volume_usage::Unit::Inodes, 1_000, 10),
        ];
        Ok(Response::new(v1::NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Answer<v1::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.volume_path.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no path"));
        }
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.plugin.log(&format!("expand {} {capacity_bytes}", request.volume_id));
        Ok(Response::new(v1::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Answer<v1::NodeGetCapabilitiesResponse> {
        let all = [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume];
        let capability =
            |kind: rpc::Type| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = all.map(capability).into();
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<v1::NodeGetInfoRequest>) -> Answer<v1::NodeGetInfoResponse> {
        let segments = [(TOPOLOGY.to_owned(), self.node.clone())].into();
        Ok(Response::new(v1::NodeGetInfoResponse {
            node_id: self.node.clone(),
            max_volumes_per_node: 3,
            accessible_topology: Some(v1::Topology { segments }),
        }))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, name, node] = arguments.as_slice() else { anyhow::bail!("usage: csi-driver ROOT NAME NODE") };
    let root = Path::new(root);
    let plugin = Plugin::new(root, "CSIPlugin", name, &["1.0.0"])?;
    fs::create_dir_all(plugin.folder.join("volumes"))?;
    let driver = Driver { plugin: plugin.clone(), node: node.clone() };
    let service = Server::builder()
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(NodeServer::new(driver))
        .serve_with_incoming(listen(&plugin.socket())?);
    tokio::try_join!(async { Ok(service.await?) }, plugin.register(root))?;
    Ok(())
}
