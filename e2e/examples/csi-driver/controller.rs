//! The controller service: volumes and snapshots are made, attached, listed, grown, changed and deleted.

use std::collections::BTreeMap;

use tonic::{Request, Status};

use super::{Answer, Driver, answer};
use crate::store::{CAPACITY, DEFAULT_SIZE, Snapshot, Source, Volume, id};
use crate::v1;
use crate::v1::controller_server::Controller;
use crate::v1::controller_service_capability::{Rpc, Type, rpc};
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_content_source::{SnapshotSource, Type as From, VolumeSource};

/// The parameter of a volume that may change.
const TUNING: &str = "tier";

const ABLE: [rpc::Type; 14] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::PublishUnpublishVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetCapacity,
    rpc::Type::CreateDeleteSnapshot,
    rpc::Type::ListSnapshots,
    rpc::Type::CloneVolume,
    rpc::Type::PublishReadonly,
    rpc::Type::ExpandVolume,
    rpc::Type::ListVolumesPublishedNodes,
    rpc::Type::GetVolume,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::ModifyVolume,
    rpc::Type::GetSnapshot,
];

fn bytes(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// The size within a range that a volume gets: at least `least`.
fn size(range: Option<&v1::CapacityRange>, least: u64) -> Result<u64, Status> {
    let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    let (Ok(required), Ok(limit)) = (u64::try_from(required), u64::try_from(limit)) else {
        return Err(Status::invalid_argument("a size below nothing"));
    };
    let size = if required == 0 && limit != 0 { least.min(limit) } else { required.max(least) };
    // The file system wants whole blocks.
    let size = size.next_multiple_of(4_096);
    if size > CAPACITY || (limit != 0 && size > limit) || size < least {
        return Err(Status::out_of_range(format!("{size} bytes cannot be had")));
    }
    Ok(size)
}

/// The reason that volumes cannot be used so; empty where they can.
fn refusal(capabilities: &[v1::VolumeCapability]) -> &'static str {
    let multi_node = |capability: &v1::VolumeCapability| {
        let mode = capability.access_mode.as_ref().map(v1::volume_capability::AccessMode::mode);
        matches!(mode, Some(Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter))
    };
    let complete = |capability: &v1::VolumeCapability| {
        let mode = capability.access_mode.as_ref().map(v1::volume_capability::AccessMode::mode);
        capability.access_type.is_some() && !matches!(mode, None | Some(Mode::Unknown))
    };
    if capabilities.is_empty() || !capabilities.iter().all(complete) {
        "no volume capability"
    } else if capabilities.iter().any(multi_node) {
        "a volume is one node's"
    } else {
        ""
    }
}

fn tuning(parameters: &BTreeMap<String, String>) -> Result<(), Status> {
    let unknown = parameters.keys().find(|key| *key != TUNING);
    unknown.map_or(Ok(()), |key| Err(Status::invalid_argument(format!("no parameter {key} can change"))))
}

fn told(volume: &Volume) -> v1::Volume {
    let from = volume.source.clone().map(|source| match source {
        Source::Snapshot(snapshot_id) => From::Snapshot(SnapshotSource { snapshot_id }),
        Source::Volume(volume_id) => From::Volume(VolumeSource { volume_id }),
    });
    v1::Volume {
        capacity_bytes: bytes(volume.size),
        volume_id: volume.id.clone(),
        content_source: from.map(|from| v1::VolumeContentSource { r#type: Some(from) }),
        ..v1::Volume::default()
    }
}

fn told_snapshot(snapshot: &Snapshot) -> v1::Snapshot {
    let (seconds, nanos) = snapshot.created;
    v1::Snapshot {
        size_bytes: bytes(snapshot.size),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(v1::Time { seconds, nanos }),
        ready_to_use: true,
        ..v1::Snapshot::default()
    }
}

/// A page of a list whose tokens are the ids that pages begin with, and the token of the next.
fn page<T>(all: Vec<T>, key: impl Fn(&T) -> &str, token: &str, most: i32) -> Result<(Vec<T>, String), Status> {
    let most = usize::try_from(most).map_err(|_| Status::invalid_argument("a page below nothing"))?;
    if !token.is_empty() && !all.iter().any(|one| key(one) == token) {
        return Err(Status::aborted(format!("no page begins with {token}")));
    }
    let mut rest: Vec<T> = all.into_iter().skip_while(|one| !token.is_empty() && key(one) != token).collect();
    if most == 0 || rest.len() <= most {
        return Ok((rest, String::new()));
    }
    let next = rest.split_off(most).first().map(|one| key(one).to_owned()).unwrap_or_default();
    Ok((rest, next))
}

impl Driver {
    /// The source of a new volume, and its bytes.
    fn source(&self, source: Option<v1::VolumeContentSource>) -> Result<Option<(Source, u64)>, Status> {
        let Some(source) = source else { return Ok(None) };
        Ok(Some(match source.r#type {
            Some(From::Snapshot(SnapshotSource { snapshot_id })) => {
                let found = self.store.snapshot(&snapshot_id)?;
                let found = found.ok_or_else(|| Status::not_found(format!("no snapshot {snapshot_id}")))?;
                (Source::Snapshot(snapshot_id), found.size)
            }
            Some(From::Volume(VolumeSource { volume_id })) => {
                let found = self.store.find(&volume_id)?;
                let found = found.ok_or_else(|| Status::not_found(format!("no volume {volume_id}")))?;
                (Source::Volume(volume_id), found.size)
            }
            None => return Err(Status::invalid_argument("no kind of source")),
        }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn create_volume(&self, request: Request<v1::CreateVolumeRequest>) -> Answer<v1::CreateVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        let refusal = refusal(&request.volume_capabilities);
        if request.name.is_empty() || !refusal.is_empty() {
            return Err(Status::invalid_argument(if request.name.is_empty() { "no name" } else { refusal }));
        }
        tuning(&request.mutable_parameters)?;
        let source = self.source(request.volume_content_source)?;
        let least = source.as_ref().map_or(DEFAULT_SIZE, |(_, size)| *size);
        let range = request.capacity_range.as_ref();
        let volume = Volume {
            id: id("vol", &request.name),
            name: request.name,
            size: size(range, least)?,
            source: source.map(|(source, _)| source),
            tuning: request.mutable_parameters,
            nodes: BTreeMap::new(),
        };
        self.plugin.log(&format!("create {} {}", volume.id, volume.size));
        match self.store.find(&volume.id)?.filter(|known| !known.name.is_empty()) {
            Some(known) if known.size != volume.size || known.source != volume.source => {
                return Err(Status::already_exists(format!("the volume {} is another", volume.name)));
            }
            Some(_) => {}
            None => self.store.create(&volume)?,
        }
        answer(v1::CreateVolumeResponse { volume: Some(told(&volume)) })
    }

    async fn delete_volume(&self, request: Request<v1::DeleteVolumeRequest>) -> Answer<v1::DeleteVolumeResponse> {
        let _turn = self.turn.lock().await;
        let id = request.into_inner().volume_id;
        if id.is_empty() {
            return Err(Status::invalid_argument("no volume id"));
        }
        self.plugin.log(&format!("delete {id}"));
        if self.store.find(&id)?.is_some_and(|volume| !volume.nodes.is_empty()) {
            return Err(Status::failed_precondition(format!("the volume {id} is attached")));
        }
        self.store.delete_volume(&id)?;
        answer(v1::DeleteVolumeResponse {})
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Answer<v1::ControllerPublishVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.node_id.is_empty() || request.volume_capability.is_none() {
            return Err(Status::invalid_argument("no volume id, no node id, or no capability"));
        }
        let mut volume = self.store.volume(&request.volume_id)?;
        let Some(most) = self.store.max_volumes(&request.node_id) else {
            return Err(Status::not_found(format!("no node {}", request.node_id)));
        };
        self.plugin.log(&format!("attach {} {}", volume.id, request.node_id));
        match volume.nodes.get(&request.node_id) {
            Some(read_only) if *read_only != request.readonly => {
                return Err(Status::already_exists("it is attached in another way"));
            }
            None if !volume.nodes.is_empty() => return Err(Status::failed_precondition("it is another node's")),
            _ => {}
        }
        let others = self.store.volumes()?;
        let others = others.iter().filter(|one| one.id != volume.id && one.nodes.contains_key(&request.node_id));
        if others.count() >= most {
            return Err(Status::resource_exhausted(format!("{} has {most} volumes", request.node_id)));
        }
        volume.nodes.insert(request.node_id, request.readonly);
        self.store.save(&volume)?;
        let publish_context = [("lun".to_owned(), "7".to_owned())].into();
        answer(v1::ControllerPublishVolumeResponse { publish_context })
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Answer<v1::ControllerUnpublishVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("no volume id"));
        }
        self.plugin.log(&format!("detach {} {}", request.volume_id, request.node_id));
        if let Some(mut volume) = self.store.find(&request.volume_id)?.filter(|volume| !volume.name.is_empty()) {
            // Without a node it leaves all of them.
            volume.nodes.retain(|node, _| !request.node_id.is_empty() && *node != request.node_id);
            self.store.save(&volume)?;
        }
        answer(v1::ControllerUnpublishVolumeResponse {})
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<v1::ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("no volume id, or no capabilities"));
        }
        self.store.volume(&request.volume_id)?;
        let message = refusal(&request.volume_capabilities).to_owned();
        let confirmed = message.is_empty().then_some(v1::validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        });
        answer(v1::ValidateVolumeCapabilitiesResponse { confirmed, message })
    }

    async fn list_volumes(&self, request: Request<v1::ListVolumesRequest>) -> Answer<v1::ListVolumesResponse> {
        let request = request.into_inner();
        let all = self.store.volumes()?;
        let (volumes, next_token) = page(all, |one| &one.id, &request.starting_token, request.max_entries)?;
        let entry = |volume: &Volume| v1::list_volumes_response::Entry {
            volume: Some(told(volume)),
            status: Some(v1::list_volumes_response::VolumeStatus {
                published_node_ids: volume.nodes.keys().cloned().collect(),
            }),
        };
        answer(v1::ListVolumesResponse { entries: volumes.iter().map(entry).collect(), next_token })
    }

    async fn get_capacity(&self, _: Request<v1::GetCapacityRequest>) -> Answer<v1::GetCapacityResponse> {
        let used: u64 = self.store.volumes()?.iter().map(|volume| volume.size).sum();
        answer(v1::GetCapacityResponse { available_capacity: bytes(CAPACITY.saturating_sub(used)) })
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Answer<v1::ControllerGetCapabilitiesResponse> {
        let capability =
            |kind: rpc::Type| v1::ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        answer(v1::ControllerGetCapabilitiesResponse { capabilities: ABLE.map(capability).into() })
    }

    async fn create_snapshot(&self, request: Request<v1::CreateSnapshotRequest>) -> Answer<v1::CreateSnapshotResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        if request.name.is_empty() || request.source_volume_id.is_empty() {
            return Err(Status::invalid_argument("no name, or no source"));
        }
        let volume = self.store.volume(&request.source_volume_id)?;
        let snapshot = match self.store.snapshot(&id("snap", &request.name))? {
            Some(known) if known.volume != volume.id => {
                return Err(Status::already_exists(format!("the snapshot {} is of another volume", request.name)));
            }
            Some(known) => known,
            None => {
                self.plugin.log(&format!("snapshot {}", volume.id));
                self.store.take(&request.name, &volume)?
            }
        };
        answer(v1::CreateSnapshotResponse { snapshot: Some(told_snapshot(&snapshot)) })
    }

    async fn delete_snapshot(&self, request: Request<v1::DeleteSnapshotRequest>) -> Answer<v1::DeleteSnapshotResponse> {
        let _turn = self.turn.lock().await;
        let id = request.into_inner().snapshot_id;
        if id.is_empty() {
            return Err(Status::invalid_argument("no snapshot id"));
        }
        self.store.delete_snapshot(&id)?;
        answer(v1::DeleteSnapshotResponse {})
    }

    async fn list_snapshots(&self, request: Request<v1::ListSnapshotsRequest>) -> Answer<v1::ListSnapshotsResponse> {
        let request = request.into_inner();
        let (of, id) = (&request.source_volume_id, &request.snapshot_id);
        let mut all = self.store.snapshots()?;
        all.retain(|one| (of.is_empty() || one.volume == *of) && (id.is_empty() || one.id == *id));
        let (snapshots, next_token) = page(all, |one| &one.id, &request.starting_token, request.max_entries)?;
        let entry = |one: &Snapshot| v1::list_snapshots_response::Entry { snapshot: Some(told_snapshot(one)) };
        answer(v1::ListSnapshotsResponse { entries: snapshots.iter().map(entry).collect(), next_token })
    }

    async fn get_snapshot(&self, request: Request<v1::GetSnapshotRequest>) -> Answer<v1::GetSnapshotResponse> {
        let id = request.into_inner().snapshot_id;
        if id.is_empty() {
            return Err(Status::invalid_argument("no snapshot id"));
        }
        let found = self.store.snapshot(&id)?.ok_or_else(|| Status::not_found(format!("no snapshot {id}")))?;
        answer(v1::GetSnapshotResponse { snapshot: Some(told_snapshot(&found)) })
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Answer<v1::ControllerExpandVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.capacity_range.is_none() {
            return Err(Status::invalid_argument("no volume id, or no capacity range"));
        }
        let mut volume = self.store.volume(&request.volume_id)?;
        volume.size = size(request.capacity_range.as_ref(), volume.size)?;
        self.plugin.log(&format!("enlarge {} {}", volume.id, volume.size));
        self.store.save(&volume)?;
        let capacity_bytes = bytes(volume.size);
        answer(v1::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true })
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> Answer<v1::ControllerGetVolumeResponse> {
        let volume = self.store.volume(&request.into_inner().volume_id)?;
        let published_node_ids = volume.nodes.keys().cloned().collect();
        let status = v1::controller_get_volume_response::VolumeStatus { published_node_ids };
        answer(v1::ControllerGetVolumeResponse { volume: Some(told(&volume)), status: Some(status) })
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Answer<v1::ControllerModifyVolumeResponse> {
        let _turn = self.turn.lock().await;
        let request = request.into_inner();
        let mut volume = self.store.volume(&request.volume_id)?;
        tuning(&request.mutable_parameters)?;
        volume.tuning.extend(request.mutable_parameters);
        self.store.save(&volume)?;
        answer(v1::ControllerModifyVolumeResponse {})
    }
}
